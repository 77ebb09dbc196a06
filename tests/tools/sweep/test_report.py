"""The report of a sweep: what it says of files whose numbers we made up, so that the answer is
known.
"""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from roundscope.experiments.cli import main as cli
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.cell import Result
from roundscope.tools.sweep.measuring.metrics import METRICS, NOT_FINITE, SITE_METRICS
from roundscope.tools.sweep.report import captions, effects, pictures
from roundscope.tools.sweep.report.effects import LOG, between
from roundscope.tools.sweep.report.report import write
from roundscope.tools.sweep.report.slices import slice_of
from roundscope.tools.sweep.report.words import in_ends
from roundscope.tools.sweep.storage.frames import frame_of
from roundscope.tools.sweep.storage.store import writing
from tests.tools.sweep.fakes import cell

FORMATS, SIZES = ("fp32", "bf16", "fp16"), (64, 128, 256)
NONE_LOST = dict.fromkeys(NOT_FINITE, 0.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.sqlite"


def save(path, *cells):
    """A results file; cells: (parameters, metrics) or (parameters, the text of an error)."""
    pairs = []
    for parameters, metrics in cells:
        of = cell(
            what="gaussian", **({"S": parameters["T"]} if "T" in parameters else {}) | parameters
        )
        if isinstance(metrics, str):
            pairs.append((of, Result(key=of.key, error=metrics, versions={"numpy": "2"})))
            continue
        sites = {
            site: dict.fromkeys(SITE_METRICS, 0.5) | {"mean_error": -0.25} for site in ("P", "OUT")
        }
        whole = dict.fromkeys(METRICS, np.nan) | {"not_finite": 0.0} | metrics
        pairs.append(
            (
                of,
                Result(
                    key=of.key, metrics=whole, sites=sites, device="none", versions={"numpy": "2"}
                ),
            )
        )
    with writing(path) as store:
        store.save(pairs)
    return path


def numbers(rms):
    """All metrics that a picture may ask for, from one."""
    return {
        "rms": rms,
        "max_abs": 4 * rms,
        "rel_rms": 2 * rms,
        "mean_abs": rms / 2,
        "mean": rms / 9,
        "mean_se": rms / 9,
        "mean_ulps": 0.1,
        "mean_ulps_se": 0.1,
        "ratio_max": 1.5,
        "several_ones": 0.25,
        "rescales": 1.5,
    }


def crossed(rms, seeds=3, sizes=SIZES, formats=FORMATS):
    """Cells of every format and T; rms(index of format, index of T, seed)."""
    return [
        ({"format": f, "T": t, "seed": s}, numbers(rms(i, j, s)))
        for i, f in enumerate(formats)
        for j, t in enumerate(sizes)
        for s in range(seeds)
    ]


def page(path):
    """The text of a report, its pictures left out."""
    out = write(path, path.with_suffix(".html"))
    return out.read_text(encoding="utf-8")


# ---- which axis matters


def test_shares_are_those_of_an_additive_model(path):
    """Would catch a wrong sum of squares: factors without noise, so that shares are ratios of
    variances.
    """
    by_format, by_size = np.array([-6.0, -3.0, -4.0]), np.array([0.0, 0.5, 1.5])
    found = effects.shares(
        frame_of(save(path, *crossed(lambda i, j, s: 10 ** (by_format[i] + by_size[j]))))
    )
    first, second = found.effects
    whole = by_format.var() + by_size.var()
    assert (first.axis.name, second.axis.name) == ("format", "T") and found.crossed
    assert first.share == pytest.approx(by_format.var() / whole) and second.share == pytest.approx(
        by_size.var() / whole
    )
    assert found.seeds == pytest.approx(0.0, abs=1e-12) and first.stands_out and second.stands_out


def test_limit_is_the_f_test_of_means_by_seed(path):
    """Would catch cells of one seed that pass for independent ones."""
    noise = np.random.default_rng(0).standard_normal((3, 3, 5))
    found = effects.shares(
        frame_of(save(path, *crossed(lambda i, j, s: 10 ** noise[i, j, s], seeds=5)))
    )
    effect = next(e for e in found.effects if e.axis.name == "T")
    f = stats.f_oneway(*noise.mean(0))
    assert effect.stands_out == (f.pvalue < 0.005)
    assert effect.share / effect.limit == pytest.approx(f.statistic / stats.f.ppf(1 - 0.005, 2, 12))


def test_an_axis_that_does_nothing_stands_out_no_more_often_than_promised(tmp_path):
    """Inputs of one seed shared by all formats: T must not stand out though its 9 cells agree.

    40 reports, each wrong once in 100.
    """
    random, wrong = np.random.default_rng(1), 0
    for k in range(40):
        shared = random.standard_normal((3, 5))
        found = effects.shares(
            frame_of(
                save(
                    tmp_path / f"{k}.sqlite",
                    *crossed(lambda i, j, s, x=shared: 10 ** (3 * i + x[j, s]), seeds=5),
                )
            )
        )
        wrong += next(e for e in found.effects if e.axis.name == "T").stands_out
    assert wrong <= 3


def test_sentence_names_the_axis_and_by_how_much(path):
    text = page(save(path, *crossed(lambda i, j, s: (1e-6, 1e-3, 1e-4)[i] * (1 + 0.01 * s))))
    assert (
        "format matters most for the deviation: it explains 100.0 % of the variance of log rms"
        in text
    )
    assert "and relative rms is 1 000 times as large at bf16 as at fp32" in text


def test_noise_is_not_called_an_effect(path):
    random = np.random.default_rng(2)
    text = page(save(path, *crossed(lambda i, j, s: 10 ** random.normal(-3, 0.1))))
    assert "No axis stands out from the seeds" in text


def test_one_seed_says_that_chance_is_unknown(path):
    text = page(save(path, *crossed(lambda i, j, s: 10.0 ** -(i + j), seeds=1)))
    assert (
        "one seed alone tells no effect from chance; several seeds (seed=0:5) would" in text
        and "One seed each: no spread is known" in text
    )


def test_no_effect_at_all(path):
    assert "No axis matters: relative rms is 1 in every cell" in page(
        save(path, *crossed(lambda i, j, s: 0.5))
    )


def test_intervals_are_student_s(path):
    x = np.array([1.0, 2.0, 4.0, 9.0])
    low, high = stats.t.interval(0.95, 3, x.mean(), stats.sem(x))
    assert effects.mean_interval(np.append(x, np.nan)) == (
        pytest.approx(4.0),
        pytest.approx((high - low) / 2),
    )
    logs = np.log10(x)
    ends = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert effects.center("rms", x) == pytest.approx(
        (10 ** logs.mean(), 10 ** ends[0], 10 ** ends[1])
    )
    assert np.isnan(effects.mean_interval(x[:1])[1]) and np.isnan(effects.mean_interval(x[:0])[0])


# ---- axes


def test_formats_stand_by_precision_and_numbers_as_numbers(path):
    save(
        path,
        *[
            ({"format": f, "accumulator": f"chunked{c}"}, {"rms": 1.0})
            for f in ("tf32", "fp32", "bf16", "e5m2", "preset")
            for c in (16, 4)
        ],
    )
    axes = {axis.name: axis.values for axis in frame_of(path).axes}
    assert axes == {
        "format": ("preset", "e5m2", "bf16", "tf32", "fp32"),
        "accumulator": ("chunked4", "chunked16"),
    }


def test_axes_that_advance_together_are_one(path):
    save(
        path,
        *[
            ({"block_q": b, "block_k": b, "T": t, "H": t // 4}, {"rms": 1.0})
            for b in (16, 32)
            for t in (64, 128)
        ],
    )
    assert [(a.name, a.label) for a in frame_of(path).axes] == [
        ("block_q", "tile"),
        ("T", "T (with H)"),
    ]
    assert "S" not in page(path).split("All conditions")[1].split("<td>")[0]


def test_site_axis_that_earlier_cells_lack_is_as_the_preset_says(path):
    """Would catch NULL as a value of its own."""
    save(path, ({"seed": 0}, {"rms": 1.0}))
    save(
        path,
        ({"seed": 1, "format_O": "preset"}, {"rms": 1.0}),
        ({"seed": 0, "format_O": "fp32"}, {"rms": 2.0}),
    )
    frame = frame_of(path)
    assert [(a.name, a.values) for a in frame.axes] == [("format.O", ("preset", "fp32"))]
    assert sorted(frame.condition) == [0, 0, 1] and "Deviation against format.O" in page(path)


def test_a_cell_computed_again_counts_once(path):
    """Would catch one seed that counts twice: equal parameters, another key."""
    save(path, ({"seed": 0}, {"rms": 1.0}))
    of = replace(cell(what="gaussian"), content="another file")
    with writing(path) as store:
        store.save([(of, Result(key=of.key, metrics=dict.fromkeys(METRICS, 3.0) | NONE_LOST))])
    frame = frame_of(path)
    assert frame.repeated == 1 and list(frame.metric("rms")) == [3.0]


def test_other_axes_are_held_where_most_conditions_are(path):
    """Would catch a slice through a lonely outlier, in which nothing varies, and means over
    different conditions.
    """
    save(
        path,
        *crossed(lambda i, j, s: 1e-3),
        ({"format": "e5m2", "T": 64, "input": "sink"}, numbers(9.0)),
    )
    frame = frame_of(path)
    axes = {axis.name: axis for axis in frame.axes}
    cut = slice_of(frame, axes["T"], lines=axes["format"], flat=True)
    assert cut.held == {"input": "gaussian"} and cut.cells.sum() == 27


@pytest.mark.thorough
@pytest.mark.pictures
def test_no_more_than_eight_lines_the_largest_first(path):
    inputs = [f"file{k}.npz" for k in range(11)]
    save(
        path,
        *[
            ({"input": name, "T": t}, numbers(10.0**-k * t))
            for k, name in enumerate(inputs)
            for t in (64, 128)
        ],
    )
    frame = frame_of(path)
    cut = slice_of(frame, frame.axis("T"))
    assert [cut.lines.word(c) for c in cut.shown["input"]] == inputs[:8]
    assert "3 of 11 values of input are not shown" in page(path)


def test_a_map_of_events_says_which_values_it_leaves_out(path):
    """Eight of thirteen conditions in a picture that seems to have all."""
    doses = [f"O:ulps={k}" for k in range(1, 14)]
    frame = frame_of(
        save(path, *[({"injection": x}, numbers(2.0**k)) for k, x in enumerate(doses)])
    )
    [(_, _, caption, _)] = pictures._sites(frame, effects.shares(frame))
    assert "5 of 13 values of injection are not shown" in caption


def test_power_of_t_is_said(path):
    frame = frame_of(save(path, *crossed(lambda i, j, s: 10.0**-i / np.sqrt(SIZES[j]))))
    assert "rms goes as its power -0.50 (-0.50 to -0.50 over the lines)" in captions.against(
        frame, slice_of(frame, frame.axis("T"))
    )


# ---- whatever a file holds


def test_no_cells_is_one_line(path):
    save(path)
    with pytest.raises(
        UsageError, match=r"^file '.*sweep.sqlite': holds no cells; fill it with  roundscope sweep$"
    ):
        write(path, path.with_name("x.html"))
    assert not path.with_name("x.html").exists()


def test_nothing_ok(path):
    text = page(
        save(
            path,
            *[({"seed": s}, "boom <script>alert(1)</script>") for s in range(3)],
            ({"seed": 3}, "another"),
        )
    )
    assert (
        "None of 4 cells is ok" in text
        and "<td>3<td>seed=0<td class=left>boom &lt;script&gt;" in text
        and "<svg" not in text
    )


def test_single_cell(path):
    text = page(save(path, ({}, numbers(0.25))))
    assert (
        "1 cell, 1 condition, 1 seed" in text
        and "One condition, one seed: rms from float64 is 0.25" in text
    )
    assert re.findall("<h3>(.*?)</h3>", text) == ["Errors by event"]


def test_only_seeds(path):
    text = page(save(path, *[({"seed": s}, numbers(x)) for s, x in enumerate((0.1, 0.2, 0.3))]))
    assert (
        "3 seeds of one condition: rms from float64 is 0.182 [0.046, 0.72] (" in text
        and "How much do seeds differ?" in text
    )


def test_numbers_that_are_none(path):
    """NaN, infinite and zero metrics: no picture fails, left-out cells are counted, the condition
    is marked and comes first.
    """
    cells = crossed(lambda i, j, s: 1e-3 * (1 + s))
    cells[0][1].update(rms=np.inf, max_abs=np.inf, not_finite=12.0)
    cells[1][1].update(ratio_max=np.inf, rms=0.0)
    text = page(save(path, *cells))
    wanted = (
        "Left out of shares and means: 1 cell of infinite rms (red triangles) and 1 cell of rms 0."
    )
    assert wanted in text
    assert "1 with NaN or infinite results" in text
    assert (
        text.count("<tr class=marked>") == 1
        and "<td>fp32<td>64<td>3, 1 not finite" in text
        and ">nan" not in text
    )


def test_every_metric_none(path):
    text = page(save(path, *[({"T": t}, {}) for t in SIZES]))
    assert "No cell has a finite deviation above 0" in text


def test_mixed_engines_inputs_backward_and_failures(path):
    cells = [
        (
            {"engine": e, "input": i, "seed": s, "backward": True},
            numbers(0.1 + s) | dict.fromkeys(METRICS, 0.5) | NONE_LOST,
        )
        for e in ("numpy", "xla")
        for i in ("gaussian", "sink")
        for s in range(2)
    ]
    text = page(
        save(
            path,
            *cells,
            ({"input": "bad.npz", "engine": "xla"}, "no such file"),
            ({"seed": 9, "engine": "numpy", "backward": True}, "late"),
        )
    )
    titles = re.findall("<h3>(.*?)</h3>", text)
    assert (
        "Backward: bias of delta, and gradients" in titles and "Deviation against engine" in titles
    )
    assert "2 cells failed" in text and "no such file" in text and "3 of" not in text


def test_failures_of_a_condition_stand_beside_its_seeds(path):
    save(path, *crossed(lambda i, j, s: 10.0**-i), ({"format": "bf16", "T": 64, "seed": 7}, "late"))
    assert re.search(r"<td>bf16<td>64<td>3, 1 failed<td>", page(path))


def test_worst_condition_first_and_intervals_in_the_table(path):
    text = page(
        save(
            path,
            *[
                ({"format": f, "seed": s}, numbers(x + s))
                for f, x in (("bf16", 5.0), ("fp32", 1.0), ("fp16", 3.0))
                for s in (0, 2)
            ],
        )
    )
    whole = re.sub(r"</?span[^>]*>", "", text)  # a number that no line breaks
    rows = re.findall(r"<tr><td>(\w+)<td>2<td>([^<]*)<", whole)
    assert rows == [
        ("bf16", "5.92 [0.7, 50]"),
        ("fp16", "3.87 [0.15, 99]"),
        ("fp32", "1.73 [1.6e-3, 1900]"),
    ]  # of logarithms, with t of one degree of freedom: 12.7


# ---- the file


@pytest.mark.pictures
def test_report_opens_offline(path):
    text = page(save(path, *crossed(lambda i, j, s: 10.0 ** -(i + j + 0.1 * s))))
    assert "<script" not in text and "http" not in text and text.count("<svg") > 5
    assert "roundscope export sweep.sqlite cells.csv" in text and str(path.parent) not in text


def test_verb(path, tmp_path, capsys):
    save(path, ({}, numbers(0.25)))
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(path), "--out", str(tmp_path / "x.html")])
    answer, written = capsys.readouterr().out.splitlines()
    assert not stop.value.code and written == f"written: {tmp_path / 'x.html'}"
    assert answer.startswith("One condition, one seed: rms from float64 is 0.25")


def test_out_that_cannot_be(path, tmp_path):
    """Would catch a report that overwrites the results."""
    save(path, ({}, numbers(0.25)))
    before = path.read_bytes()
    for out, words in ((path, "is the results file itself"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=words):
            write(path, out)
    assert path.read_bytes() == before


def test_numerics_are_said_where_the_keys_agree(path):
    """Would catch a claim about numbers of another version: the key holds the version."""
    from roundscope.emu.numerics import NUMERICS
    from roundscope.tools.sweep.conditions.condition import cell_of

    for seed, of in enumerate((cell_of({"seed": 0}), cell_of({"seed": 1, "format.O": "preset"}))):
        with writing(path) as store:
            store.save([(of, Result(key=of.key, metrics=dict.fromkeys(METRICS, 1.0 + seed)))])
        assert f"numerics    {NUMERICS}\n" in page(path)
    with writing(path) as store:
        store.save(
            [(cell_of({"seed": 2}), Result(key="0" * 32, metrics=dict.fromkeys(METRICS, 1.0)))]
        )
    assert "numerics    not that of this Roundscope" in page(path)


@pytest.mark.parametrize("metric", sorted(LOG))
def test_no_interval_of_a_metric_above_zero_reaches_below(metric):
    """rms 0.0094 ± 0.03 of two seeds; a seed without any error; one whose results are infinite."""
    two = np.array([1e-3, 2e-2])
    mean, low, high = between(metric, two)
    assert 0.0 < low < mean < high and mean == pytest.approx(math.sqrt(two.prod()))
    # the t interval of the logarithms, by SciPy's own distribution
    half = stats.t.ppf(0.975, 1) * np.log(two).std(ddof=1) / math.sqrt(2)
    assert [low, high] == pytest.approx([mean * math.exp(-half), mean * math.exp(half)])
    assert between(metric, np.array([0.0, 1e-2]))[:2] == (5e-3, 0.0)
    assert between(metric, np.array([np.inf, 1e-2]))[0] == np.inf
    assert in_ends(*between(metric, np.array([0.5]))) == "0.5"
    assert between("gain", np.array([-1.0, 1.0]))[1] < 0.0  # a signed number
