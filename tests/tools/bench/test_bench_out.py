"""What `roundscope bench` hands over: one JSON object with the machine, a picture of the same
numbers, and rivals that may be missing.
"""

import json
import sys
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest

from roundscope.emu import round_to
from roundscope.experiments.train import bench_step
from roundscope.tools.bench import attention as bench_attention
from roundscope.tools.bench import deliver as bench_machine
from roundscope.tools.bench import dot as bench_dot
from roundscope.tools.bench import picture as bench_picture
from roundscope.tools.bench import rivals as bench_rivals
from roundscope.tools.bench import round as bench
from roundscope.tools.bench import sweep as bench_sweep
from roundscope.tools.bench.round import ROUNDING, THREADS, Row, sample
from roundscope.tools.errors import UsageError
from roundscope.tools.report import pictures

WORK = {
    "round": (bench, "bench"),
    "mx": (bench, "bench"),
    "dot": (bench_dot, "bench_dot"),
    "attention": (bench_attention, "bench_attention"),
    "sweep": (bench_sweep, "bench_sweep"),
    "step": (bench_step, "bench_step"),
}
ROWS = [
    Row(format="bf16", name="copy", of_copy=1.0, ours=0.5),
    Row(format="bf16", name="ours", of_copy=0.5),
    Row(format="bf16", name="ours, new array", of_copy=0.4),
    Row(format="bf16", name="A", of_copy=0.2, ours=2.0, differing=0),
    Row(format="bf16", name="B", of_copy=0.1, ours=4.0, differing=0),
    Row(format="e5m2", name="ours", of_copy=0.25),
    Row(format="e5m2", name="ours, XLA on CPU", of_copy=0.3, ours=0.8, differing=0),
    Row(format="e5m2", name="A", note="not installed"),
    Row(format="e5m2", name="B", of_copy=0.002, ours=125.0, differing=7, note="saturates"),
]
SUMS = [
    bench_dot.Row(operand="fp32", name=bench_dot.MATMUL, of_matmul=1.0),
    bench_dot.Row(operand="bf16", name="Hopper", of_matmul=0.08),
    bench_dot.Row(operand="e4m3fn", name="Hopper", of_matmul=0.07),
    bench_dot.Row(operand="bf16", name=bench_dot.RIVAL, of_matmul=0.00002, ours=4000.0),
]
DRAWN = {
    ("bf16", "ours"): 0.5,
    ("bf16", "ours, new array"): 0.4,
    ("bf16", "A"): 0.2,
    ("bf16", "B"): 0.1,
    ("e5m2", "ours, XLA on CPU"): 0.3,
    ("e5m2", "ours"): 0.25,
    ("e5m2", "B"): 0.002,
}


@pytest.fixture
def measured(monkeypatch):
    """Rows in the place of a minute's measurements."""
    monkeypatch.setattr(bench, "measured", lambda contest, quick: ROWS)
    monkeypatch.setattr(bench_dot, "bench_dot", lambda size, repeat, progress: SUMS)


@pytest.mark.parametrize(
    ("what", "count"), [("round", len(ROWS)), ("mx", len(ROWS)), ("dot", len(SUMS))]
)
def test_json_is_one_object_and_the_file_is_the_same(measured, tmp_path, roundscope, what, count):
    """Words between the JSON, numbers without a machine, a file that says otherwise."""
    code, out, err = roundscope("bench", what, "--json", "--out", tmp_path / "new" / "x")
    assert (code, err.strip()) == (0, "")
    found = json.loads(out)
    assert set(found) == {"machine", "rows"} and len(found["rows"]) == count
    assert (
        set(found["machine"]) == {"platform", "processor", "cores", "threads", "gpu", "versions"}
        and found["machine"]["threads"] == THREADS
    )
    assert found == json.loads((tmp_path / "new" / "x" / f"bench-{what}.json").read_text())
    assert (tmp_path / "new" / "x" / f"bench-{what}.png").exists()


@pytest.mark.parametrize("what", ["round", "mx", "dot"])
def test_table_machine_and_files(measured, tmp_path, roundscope, what):
    code, out, _ = roundscope("bench", what, "--out", tmp_path)
    lines = out.splitlines()
    assert code == 0 and f"numpy {np.__version__}" in " ".join(lines)
    assert lines[-2:] == [
        f"written: {tmp_path / f'bench-{what}.{ending}'}" for ending in ("json", "png")
    ]
    assert all(len(text) <= 100 for text in lines[:-2])


def test_versions_are_the_installed_ones(monkeypatch):
    """A version that is made up, and a rival that is imported only to be asked."""
    there: dict[str, str] = {}
    for d in metadata.distributions():
        there.setdefault(
            d.name.lower().replace("-", "_"), d.version
        )  # of two on the path the first is imported
    before = set(sys.modules)
    found = bench_machine.versions()
    assert {"python", "numpy", "numba", "jax", "jaxlib", "ml_dtypes"} <= set(found)
    assert all(
        version == there[name]
        for name, version in found.items()
        if name not in ("python", "roundscope")
    )
    assert not (set(sys.modules) - before) & set(bench_machine.RIVALS)
    installed = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "9.9" if name == "qtorch" else installed(name)
    )
    assert bench_machine.versions()["qtorch"] == "9.9"
    assert bench_machine.machine(None)["threads"] is None


@pytest.mark.pictures
def test_the_picture_is_written(measured, tmp_path):
    bench_picture.draw(tmp_path / "x.png", bench._bars(ROWS), "A title", "an axis")
    head = (tmp_path / "x.png").read_bytes()[:24]
    assert head[1:4] == b"PNG" and 1150 <= int.from_bytes(head[16:20]) <= 1250


def test_bars_are_the_ratios():
    """A bar under another's name, a rival in our colour, a copy or a missing rival that is
    drawn.
    """
    figure = bench_picture.picture(bench._bars(ROWS), "A title", "an axis")
    (ax,) = figure.axes
    names = {
        y: tick.get_text() for y, tick in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
    }
    heads = [y for y in names if names[y] in ("bf16", "e5m2")]
    drawn, colours = {}, {}
    for bar in ax.patches:
        y = bar.get_y() + bar.get_height() / 2
        key = names[max(h for h in heads if h < y)], names[min(names, key=lambda at: abs(at - y))]
        drawn[key], colours[key] = bar.get_width(), bar.get_facecolor()
    assert drawn == DRAWN and list(drawn) == list(DRAWN)  # the fastest of a group first
    ours = {c for (_, name), c in colours.items() if name.startswith("ours")}
    assert len(ours) == 1 and not ours & {
        c for (_, name), c in colours.items() if not name.startswith("ours")
    }
    assert colours["bf16", "B"] == colours["e5m2", "B"] != colours["bf16", "A"]
    assert [t.get_text() for t in ax.texts] == ["0.5", "0.4", "0.2", "0.1", "0.3", "0.25", "0.002"]
    assert ax.get_xscale() == "log" and ax.get_xlim()[0] < 0.002 < 1.0 < ax.get_xlim()[1]


def test_bars_that_are_alike_start_at_zero():
    (ax,) = bench_picture.picture(
        [("bf16", "ours", 0.5, True), ("bf16", "A", 0.2, False)], "A title", "an axis"
    ).axes
    assert ax.get_xscale() == "linear" and ax.get_xlim()[0] == 0.0


def test_titles_say_the_ratios():
    """Our own XLA or the copy taken for a rival, a slower library for the fastest."""
    assert (
        bench.answer("Rounding", ROWS)
        == "Rounding into a new array is 2 to 125 times as fast as the fastest library that has the"
        " format; in place it runs at 0.25 to 0.5 of a copy's speed"
    )
    assert (
        "0.07 to 0.08 of the speed of a float32 product; 4,000 times as fast as MMA-Sim"
        in bench_dot.answer(SUMS)
    )
    assert bench_dot.answer(SUMS[:3]).endswith("MMA-Sim, the rival, is not installed")


@pytest.mark.parametrize("what", ["sweep", "step"])
def test_out_where_there_is_no_picture(tmp_path, roundscope, what):
    code, out, err = roundscope("bench", what, "--out", tmp_path / "x")
    assert (code, out) == (2, "") and "--out" in err and f"bench {what} has no picture" in err
    assert not (tmp_path / "x").exists()


def test_a_file_is_no_folder(tmp_path, roundscope):
    """Found out after a minute's measurement."""
    (tmp_path / "x").write_text("")
    code, _, err = roundscope("bench", "attention", "--out", tmp_path / "x")
    assert code == 2 and "--out" in err and "is a file; name a folder" in err


def test_attention_is_given_the_folder(tmp_path, roundscope, monkeypatch):
    seen = []
    monkeypatch.setattr(bench_attention, "run", lambda *words, quick: seen.append((*words, quick)))
    assert roundscope("bench", "attention", "--json", "--out", tmp_path)[0] == 0
    assert roundscope("bench", "attention", "--quick")[0] == 0
    assert seen == [(True, tmp_path, False), (False, None, True)]


@pytest.mark.parametrize("what", ["round", "mx", "dot", "attention", "sweep", "step"])
def test_every_benchmark_has_a_quick_version(what, roundscope, monkeypatch):
    """An option that one benchmark takes and ignores: the work that it is asked for is smaller."""
    asked = []

    def instead(*words, **more):
        asked.append([x for x in (*words, *more.values()) if not callable(x)])
        raise UsageError("asked")

    monkeypatch.setattr(*WORK[what], instead)
    for options in ([], ["--quick"]):
        assert roundscope("bench", what, *options)[0] == 2
    whole, quick = asked
    assert whole != quick


def test_attention_counts_its_steps(monkeypatch):
    """A bar that ends before the work, or never: a size is compiled, tried, and has its rounds."""
    done, field = [], [bench_attention.Contestant("a", lambda: 1, lambda: 2, lambda x: x)]
    monkeypatch.setattr(bench_attention, "_on_cpu", lambda size: field)
    monkeypatch.setattr(bench_attention, "contestants", lambda size: field)
    rows = bench_attention.bench_attention(done.append, 3, bench_attention.SIZES["cpu"])
    assert len(rows) == 2
    assert done == [*range(1, bench_attention.steps_of(bench_attention.SIZES["cpu"], 3) + 1)]


@pytest.fixture
def without_torch(monkeypatch):
    """PyTorch and QPyTorch cannot be imported."""
    for name in ("torch", "qtorch", "qtorch.quant"):
        monkeypatch.setitem(sys.modules, name, None)
    bench_rivals._float_quantize.cache_clear()
    yield
    bench_rivals._float_quantize.cache_clear()


def test_torch_may_be_missing(without_torch):
    """A benchmark that wants PyTorch; the makers are asked in a run of their own, so that it is
    short.
    """
    names = ("torch .to", "qtorch float_quantize")
    contest = replace(ROUNDING, rivals=[r for r in bench_rivals.RIVALS if r.name in names])
    rows = [r for r in bench.bench(contest, 1 << 10, 1, ("bf16",)) if r.name in names]
    assert [(r.name, r.note, r.of_copy) for r in rows] == [
        (name, "not installed", None) for name in names
    ]


def test_torch_s_rounding_is_ours():
    """Another format under a format's name, where PyTorch is installed."""
    torch = pytest.importorskip("torch")
    x = sample(1 << 12)
    x = x[np.abs(x) < 400]
    for name in bench_rivals.TORCH:
        function = bench_rivals.torch_there_and_back(name)
        np.testing.assert_array_equal(np.asarray(function(torch.from_numpy(x))), round_to(x, name))
    assert bench_rivals.torch_there_and_back("e2m3fn") is None


def test_no_picture_is_drawn_unless_asked(measured, roundscope, monkeypatch):
    """Matplotlib's half second, spent for a table."""
    monkeypatch.setattr(pictures, "png", lambda *a, **k: pytest.fail("drawn"))
    assert roundscope("bench", "round")[0] == 0
