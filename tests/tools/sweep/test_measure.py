"""`measure`: the numbers of a cell against plain calls of `examine`, whatever the order, company,
memory and engine.
"""

import math
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import PRESETS, Bias, Injection, Plan, Record, Site, examine
from roundscope.attention.plans.choices import KeyOrder
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell
from roundscope.tools.sweep.conditions.inputs import draw
from roundscope.tools.sweep.measuring import calls, measure, metrics
from roundscope.tools.sweep.measuring.calls import Kept

SMALL = {"T": 24, "S": 32, "N": 2, "H": 8, "block_q": 8, "block_k": 8}


def cell(plan="qiu-yao", inject=(), **parameters):
    plan = Plan.preset(plan) if isinstance(plan, str) else plan
    return Cell(parameters=tuple((DEFAULTS | SMALL | parameters).items()), plan=plan, inject=inject)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Every test starts with empty memories."""
    remember(monkeypatch, 1 << 24)


def remember(monkeypatch, size):
    """New memories of that many bytes."""
    monkeypatch.setattr(calls, "_INPUTS", Kept(size))
    for name in ("_GOLDEN", "_UNFUSED"):
        monkeypatch.setattr(calls, name, {engine: Kept(size) for engine in ("numpy", "xla")})


def same(a, b):
    """Equal to the bit, NaN included, in all that does not tell the time."""
    return (
        a.key == b.key
        and a.error == b.error
        and repr(a.metrics) == repr(b.metrics)
        and repr(a.sites) == repr(b.sites)
    )


def attention(c, plan=None, block_k=8, **more):
    x = draw(c)
    return examine(
        x.q,
        x.k,
        x.v,
        plan=plan or c.plan,
        block_q=8,
        block_k=block_k,
        is_causal=bool(c["causal"]),
        **more,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16", "fa3-fp8"])
def test_numbers_are_those_of_plain_calls(plan, causal):
    """Catches the wrong golden or unfused value, tiles of the wrong size, a mask or seed that is
    lost.
    """
    c = cell(plan, causal=causal, seed=3)
    (found,) = measure.measure([c])
    x = draw(c)
    s = np.where(
        np.tril(np.ones((24, 32), bool)) | (not causal),
        np.einsum("tnh,snh->nts", x.q[0], x.k[0]) / np.sqrt(8),
        -np.inf,
    )
    p = np.exp(s - s.max(-1, keepdims=True))
    golden = np.einsum("nts,snh->tnh", p / p.sum(-1, keepdims=True), x.v[0])
    lse = (s.max(-1) + np.log(p.sum(-1))).T
    mine = attention(c)
    unfused = attention(c, replace(c.plan, normalise_first=True, pv_into_o=False))
    d, other = mine.out[0] - golden, unfused.out[0] - golden
    wanted = {
        "max_abs": np.abs(d).max(),
        "rms": np.sqrt((d**2).mean()),
        "mean": d.mean(),
        "unfused_max_abs": np.abs(other).max(),
        "ratio_rms": np.sqrt((d**2).mean() / (other**2).mean()),
        "vs_unfused_max": np.abs(mine.out - unfused.out).max(),
        "lse_max_abs": np.abs(mine.lse[0] - lse).max(),
    }
    assert found.error is None and found.key == c.key
    assert {k: found.metrics[k] for k in wanted} == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert found.sites["P"]["n"] == mine.trace.stats["P"].total().n


def test_every_metric_is_named_and_backward_ones_are_nan_without_backward():
    """Catches a metric without a column, a column without a metric, and a gradient of a forward
    cell.
    """
    forward, backward = measure.measure([cell(), cell(backward=True)])
    assert list(forward.metrics) == list(backward.metrics) == list(metrics.METRICS)
    missing = {name for name, value in forward.metrics.items() if math.isnan(value)}
    assert missing == {m for m in metrics.METRICS if m.startswith(("dq", "dk", "dv", "delta"))}
    assert not any(math.isnan(v) for v in backward.metrics.values())
    assert "DS" in backward.sites and "DS" not in forward.sites
    assert all(set(site) == set(metrics.SITE_METRICS) for site in backward.sites.values())


def test_backward_against_exact_gradients():
    """Catches gradients compared with those of another tensor or another dO."""
    c = cell("fa2-bf16", backward=True)
    x, (found,) = draw(c), measure.measure([c])
    a, b = (
        examine(x.q, x.k, x.v, x.do, plan=p, block_q=8, block_k=8) for p in ("fa2-bf16", "exact")
    )
    for g in ("dq", "dk", "dv"):
        assert found.metrics[f"{g}_max_abs"] == pytest.approx(
            np.abs(getattr(a, g) - getattr(b, g)).max(), rel=1e-9
        )
    assert found.metrics["delta_bias"] == pytest.approx((a.delta - b.delta).mean(), rel=1e-9)


CELLS = [
    cell(plan, seed=seed, causal=causal, block_k=block)
    for plan in ("qiu-yao", "fa2-bf16")
    for seed in (0, 1)
    for causal in (False, True)
    for block in (8, 16)
]


def test_order_company_and_memory_change_nothing(monkeypatch):
    """Catches results that follow another cell's, and a kept value that stands for two
    conditions.
    """
    together = measure.measure(CELLS)
    again = measure.measure(CELLS[::-1])[::-1]
    remember(monkeypatch, 0)
    alone = [measure.measure([c])[0] for c in CELLS]
    assert [r.key for r in together] == [c.key for c in CELLS]
    assert all(same(a, b) and same(a, c) for a, b, c in zip(together, again, alone, strict=True))


def test_golden_and_unfused_are_computed_once(monkeypatch):
    """Catches a memory that never hits: tiles and formats without a say share both, a seed shares
    neither.
    """
    seen = []
    monkeypatch.setattr(
        calls, "examine", lambda *a, **more: seen.append(more["plan"].name) or examine(*a, **more)
    )
    measure.measure(
        [
            cell(),
            cell(block_k=16),
            cell(Plan.preset("qiu-yao").at("AO", "fp32")),
            cell(backward=False),
        ]
    )
    assert (seen.count("exact"), seen.count("unfused"), len(seen)) == (1, 1, 6)
    measure.measure([cell(seed=1), cell(Plan.preset("qiu-yao").at("PV", "fp32"))])
    assert (seen.count("exact"), seen.count("unfused"), len(seen)) == (2, 3, 11)


def test_kept_forgets_the_oldest():
    """Catches a memory that grows without end, and one that drops what was just put or used."""
    kept = Kept(10)
    for name in "abc":
        kept.put([name], name, 4)
    assert [kept.get(n) for n in "abc"] == [None, "b", "c"]
    kept.get("b")
    kept.put(["d"], "d", 4)
    assert (kept.get("b"), kept.get("c"), kept.get("d"), kept.bytes) == ("b", None, "d", 8)
    kept.put(["big"], "big", 99)
    assert kept.get("big") == "big" and kept.get("d") is None and kept.bytes == 99


WHOLE = [n for n in PRESETS if n not in ("flash-mla", "flashinfer-split")]  # no lanes, no splits


@pytest.mark.parametrize("name", [*WHOLE, "all:e5m2"])
def test_unfused_plan_drops_only_what_has_no_say(name):
    """Catches a site wrongly thought silent: the shared plan gives the bits of the whole one."""
    plan = replace(
        Plan.preset(name).at("P", "bf16", "stochastic", seed=5), key_order=KeyOrder.DESCENDING
    )
    whole, c = replace(plan, normalise_first=True, pv_into_o=False), cell(plan)
    assert np.array_equal(
        attention(c, whole).out,
        attention(c, calls.unfused_plan(plan), block_k=32).out,
        equal_nan=True,
    )


@pytest.mark.parametrize("name", ["fa2", "fa2-split", "cudnn", "flash-mla", "flashinfer-split"])
def test_kernels_that_keep_lanes_have_an_unfused_reference(name):
    """Catches kernels of which no cell can be measured, since a softmax of whole rows has neither
    lanes nor splits to keep, and a reference in other formats than theirs.
    """
    (found,) = measure.measure([c := cell(name)])
    assert found.error is None and 0.1 < found.metrics["ratio_rms"] < 10.0
    record = Record(events=(Site.EXP,))
    plans = replace(c.plan, split_tiles=0), calls.unfused_plan(c.plan)
    one_tile, whole = (
        attention(c, plan, block_k=32, record=record).trace.events["EXP"][1] for plan in plans
    )
    assert np.array_equal(one_tile, whole)


def test_unfused_cell_costs_nothing_over_itself():
    """Catches an unfused condition compared with something else than itself."""
    (found,) = measure.measure([cell("baseline-bf16")])
    assert (
        found.metrics["ratio_max"],
        found.metrics["ratio_rms"],
        found.metrics["vs_unfused_max"],
    ) == (1.0, 1.0, 0.0)


def test_injection_hits_the_cell_and_not_what_it_is_compared_with():
    """Catches an injection into golden or unfused attention, which would hide it."""
    bias = Injection(site=Site.OUT, what=Bias(value=10.0))
    clean, hit = measure.measure([cell(), cell(inject=(bias,))])
    assert hit.metrics["mean"] == pytest.approx(10.0, abs=0.1)
    assert hit.metrics["unfused_max_abs"] == clean.metrics["unfused_max_abs"]
    (unfused,) = measure.measure([cell("baseline-bf16", inject=(bias,))])
    assert unfused.metrics["vs_unfused_max"] == 10.0


def test_a_failing_cell_is_a_result_and_the_others_go_on():
    """Catches an exception that ends a sweep, and one that loses its reason."""
    wrong = cell("fa2-bf16", inject=(Injection(site=Site.PV, what=Bias(value=1.0)),))
    gone = cell(input="no/such/file.npz")
    before, error, lost, after = measure.measure([cell(), wrong, gone, cell(seed=1)])
    assert (
        before.error is None is after.error
        and before.metrics["rms"] > 0.0
        and after.key == cell(seed=1).key
    )
    assert (
        error.key == wrong.key and "site=PV" in error.error and not error.metrics and error.versions
    )
    assert "no such file" in lost.error and "\n" not in lost.error


def test_unforeseen_errors_name_their_kind(monkeypatch):
    """Catches an empty message, as MemoryError has; a user's interrupt must pass."""
    monkeypatch.setattr(calls, "examine", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
    assert measure.measure([cell()])[0].error == "MemoryError: MemoryError"
    monkeypatch.setattr(
        calls, "examine", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt())
    )
    with pytest.raises(KeyboardInterrupt):
        measure.measure([cell()])


def test_time_device_and_versions():
    """Catches parts that do not add up, and a result that cannot be traced to what made it."""
    (found,) = measure.measure([cell()])
    assert set(found.parts) == {"inputs", "golden", "attention", "unfused", "metrics"}
    assert (
        found.seconds == pytest.approx(sum(found.parts.values()))
        and min(found.parts.values()) >= 0.0
    )
    assert found.device.startswith("cpu ") and {
        "python",
        "numpy",
        "numba",
        "ml_dtypes",
        "roundscope",
    } <= set(found.versions)
    assert pickle.loads(pickle.dumps(measure.measure)) is measure.measure
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)


def test_numpy_cells_never_import_jax():
    """Catches seconds of start-up, and gigabytes of a GPU, for every worker of a pool."""
    code = (
        "import sys; from tests.tools.sweep.test_measure import cell, measure; r ="
        " measure.measure([cell(backward=True)])[0];assert r.error is None and 'jax' not in"
        " r.versions; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=".")


def test_batch_sizes():
    """Catches batches of seconds under numpy, of one under xla, and of more than memory takes."""
    assert (
        measure.batch_size(cell()) == 64
        and measure.batch_size(cell(T=4096, S=4096, N=8, H=128)) == 1
    )
    sizes = [
        measure.batch_size(cell(engine="xla", T=t, S=t, N=n, H=64))
        for t, n in ((256, 4), (2048, 8), (16384, 32))
    ]
    assert sizes[0] == 64 > sizes[1] >= 1 == sizes[2] and all(s & (s - 1) == 0 for s in sizes)


def test_groups():
    """Catches xla cells put into one call that share no executable, and formats or seeds that keep
    them apart.
    """

    def x(plan="qiu-yao", **p):
        return measure.group(cell(plan, engine="xla", **p))

    q = Plan.preset("qiu-yao")
    alike = {x(), x(seed=4), x(input="sink"), x(q.at("O", "fp16", "toward-zero"))}
    apart = {
        x(T=16),
        x(block_k=16),
        x(causal=True),
        x(backward=True),
        x("fa2-bf16"),
        x(q.at("O", "bf16", "stochastic")),
        x(input="sample"),
    }
    assert len(alike) == 1 and len(apart) == 7 and not alike & apart
    assert len({measure.group(c) for c in (*CELLS, cell(T=16, backward=True))}) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("backward", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_xla_gives_the_metrics_of_numpy(monkeypatch, backward):
    """Catches batch entries that see each other's plan, seed or padding, results of another entry,
    and sums in another order.
    """
    monkeypatch.setattr(measure, "LARGEST", 4)
    monkeypatch.setattr(
        calls, "REFERENCES", 2
    )  # results that a call is compared with come from several others
    q = Plan.preset("qiu-yao")
    sizes = {"T": 12, "S": 16, "N": 2, "H": 4, "block_q": 8, "block_k": 8, "backward": backward}
    others = (
        (q.at("O", "fp16", "toward-zero"), 1),
        (q.at("AO", "e5m2"), 1),
        (q.at("P", "e4m3fn"), 2),
        (q.at("OUT", "fp16"), 0),
    )
    kinds = (q, 0), *others  # two calls, the second one padded
    both = [
        [cell(plan, engine=engine, seed=seed, **sizes) for plan, seed in kinds]
        for engine in ("numpy", "xla")
    ]
    for plain, compiled in zip(*(measure.measure(cells) for cells in both), strict=True):
        assert compiled.error is None and "jax" in compiled.versions and compiled.device
        assert repr(compiled.metrics) == repr(plain.metrics)
        assert list(compiled.sites) == list(plain.sites)
        for name, site in plain.sites.items():
            assert compiled.sites[name] == pytest.approx(site, rel=1e-12, abs=1e-300), name
            counts = (
                "n",
                "inexact",
                "ties",
                "carries",
                "overflow",
                "underflow",
                "subnormal",
                "nan",
            )
            assert [compiled.sites[name][m] for m in counts] == [site[m] for m in counts], name


def test_a_batch_that_fails_is_repeated_one_by_one(monkeypatch):
    """Catches innocent cells of a failed call, and a padded call where one entry is all that is
    left to do.
    """
    asked = []

    def measured(cells, size):
        asked.append((len(cells), size))
        if any(c["seed"] == 1 for c in cells):
            raise RuntimeError("out of memory")
        return [measure.Result(key=c.key) for c in cells]

    monkeypatch.setattr(measure, "_measured", measured)
    found = measure.measure([cell(engine="xla", seed=seed) for seed in range(3)])
    assert [r.error for r in found] == [None, "RuntimeError: out of memory", None]
    assert asked == [(3, 64), (1, 1), (1, 1), (1, 1)]


def test_record_counts_ones_of_p_and_alpha():
    """Catches ones counted on what an event received: P rounds to 1 from just below."""
    c = cell("qiu-yao", seed=2)
    trace = attention(c, record=Record(ones=(Site.P,), events=(Site.P,))).trace
    p = trace.events["P"][1]
    tiles = p.reshape(*p.shape[:-1], -1, int(c["block_k"]))
    wanted = ((tiles == 1.0).sum(-1) >= 2).any(-1).mean()
    assert measure.measure([c])[0].metrics["several_ones"] == pytest.approx(float(wanted))
