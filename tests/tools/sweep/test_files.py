"""Files of tensors in a sweep: what a file says of its call takes part in it, and what is asked
otherwise comes before it and is said.
"""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from roundscope.attention import Plan, examine
from roundscope.emu.stats.comparison import relative_rms
from roundscope.experiments.cli.main import app
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.axes import each_point, spec_of
from roundscope.tools.sweep.conditions.cell import DEFAULTS
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.measuring.measure import measure
from roundscope.tools.sweep.report.report import write
from roundscope.tools.sweep.storage.frames import frame_of
from roundscope.tools.tensors.layers import read_layers
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.run import observe

B, T, N, G, H = 2, 20, 4, 2, 8
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": 5},
    "softcap": {"softcap": 0.7},
    "scale": {"scale": 0.9},
    "mask": {"mask": True},
    "sinks": {"sinks": True},
    "all": {
        "is_causal": True, "window": 9, "softcap": 0.7, "scale": 0.9, "mask": True, "sinks": True,
    },
}  # fmt: skip


def tensors(layers=("",)):
    """Tensors (B, heads, T, H) of BF16 numbers by name, a mask for each entry, and sinks."""
    random, found = np.random.default_rng(5), {}
    for layer in layers:
        for role, heads in (("q", N), ("k", G), ("v", G), ("do", N)):
            x = random.standard_normal((B, heads, T, H)).astype(ml_dtypes.bfloat16)
            found[f"{layer}{role}"] = x.astype(np.float32)
    mask = random.random((B, 1, T, T)) < 0.5
    mask[..., 0] = True
    return found, {"mask": mask, "sinks": np.linspace(-1.0, 2.0, N, dtype=np.float32)}


@pytest.fixture
def file(tmp_path):
    """Write a file of which the metadata and tensors say a call; return (its name, the call)."""

    def written(name, **call):
        x, more = tensors()
        more = {role: value for role, value in more.items() if call.get(role)}
        words = {k: str(v).lower() for k, v in call.items() if k not in more}
        path = tmp_path / f"{name}.safetensors"
        save_file(x | more, path, metadata={"layout": "BNTH"} | words)
        return str(path), {role: x.transpose(0, 2, 1, 3) for role, x in x.items()}, call | more

    return written


def exact(x, call):
    """The output in binary64, from the equations."""
    q, k, v = (x[r].astype(np.float64).transpose(0, 2, 1, 3) for r in "qkv")
    k, v = (np.repeat(y, N // G, 1) for y in (k, v))
    s = q @ k.swapaxes(2, 3) * call.get("scale", H**-0.5)
    if "softcap" in call:
        s = call["softcap"] * np.tanh(s / call["softcap"])
    apart = np.arange(T)[:, None] - np.arange(T)
    sees = (apart >= 0) | (not call.get("is_causal"))
    sees = sees & (abs(apart) < call.get("window", T)) & call.get("mask", True)
    s = np.where(sees, s, -np.inf)
    if "sinks" in call:
        s = np.concatenate([s, np.broadcast_to(call["sinks"][:, None, None], (B, N, T, 1))], -1)
    e = np.exp(s - s.max(-1, keepdims=True))
    return ((e / e.sum(-1, keepdims=True))[..., :T] @ v).transpose(0, 2, 1, 3)


POINT = {"preset": "fa2-bf16", "tile": 8, "backward": True}


@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_those_of_the_call_that_the_file_says(file, name):
    """Catches files with other metadata that all give the digits of a full, unmasked call of the
    first batch entry: six files gave one number.
    """
    path, x, call = file(name, **CALLS[name])
    (found,) = measure([cell_of(POINT | {"input": path})])
    options = {"block_q": 8, "block_k": 8} | call
    mine, golden = (
        examine(*(x[r].astype(np.float64) for r in ("q", "k", "v", "do")), plan=p, **options)
        for p in ("fa2-bf16", "exact")
    )
    assert found.error is None
    by_hand = relative_rms(mine.out, exact(x, call))
    assert found.metrics["rel_rms"] == pytest.approx(by_hand, rel=1e-9)
    for g in ("dq", "dk", "dv"):
        wanted = relative_rms(getattr(mine, g), getattr(golden, g))
        assert found.metrics[f"{g}_rel_rms"] == pytest.approx(wanted, rel=1e-9), g
    assert found.metrics["lse_max_abs"] == pytest.approx(abs(mine.lse - golden.lse).max())
    for site, stats in mine.trace.stats.items():
        total = stats.total()
        if total.n:
            assert (found.sites[site]["n"], found.sites[site]["inexact"]) == (
                total.n,
                total.inexact / total.n,
            )
    assert 0.0 < found.metrics["ratio_rms"] < 10.0


def test_numbers_are_those_of_a_trace(file):
    """Catches a sweep and a trace of one file that tell two stories."""
    path, _, _ = file("all", **CALLS["all"])
    (found,) = measure([cell_of(POINT | {"input": path})])
    plan = Plan.preset("fa2-bf16")
    request = Request(plan=plan, against=Plan.preset("exact"), block_q=8, block_k=8)
    seen = observe(read_layers(path)[0], request)
    traced = relative_rms(seen.results["out"], seen.reference["out"])
    # a trace rounds the output to the type of the inputs
    assert found.metrics["rel_rms"] == pytest.approx(traced, rel=1e-6)


@pytest.mark.thorough
def test_engines_give_the_same_bits_of_a_file(file):
    """Catches a mask, sinks or batch entries that one engine loses, and random bits of another
    head: P rounds stochastically.
    """
    path, _, _ = file("all", **CALLS["all"])
    point = POINT | {"input": path, "mode.P": "stochastic", "backward": False}
    plain, compiled = (measure([cell_of(point | {"engine": e})])[0] for e in ("numpy", "xla"))
    assert compiled.error is None and repr(compiled.metrics) == repr(plain.metrics)


ASKED = {
    "causal": {"causal": False},
    "window": {"window": "none"},
    "softcap": {"softcap": 0},
    "mask": {"mask": "none"},
    "sinks": {"sinks": "none"},
    "scale": {"scale": "none"},
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_comes_before_what_the_file_says(file, name):
    """Catches an axis that a file overrules, and one that overrules it in silence."""
    path, _, _ = file("said", **CALLS[name])
    said, asked = cell_of({"input": path}), cell_of({"input": path} | ASKED[name])
    plain, _, _ = file("plain")
    a, b = measure([asked, cell_of({"input": plain})])
    assert repr(a.metrics) == repr(b.metrics)
    assert "as the file says" in said.note and name in said.note.partition("as asked")[0]
    assert f"as asked, {name}=" in asked.note and "(the file: " in asked.note
    assert said.key != asked.key


def test_what_else_a_file_says_is_told(file):
    """Catches a tensor that nobody reads, or dropout that is not repeated, without a word."""
    path, _, _ = file("dropped", dropout=0.1)
    (note,) = read_layers(path)[0].notes
    assert "dropped weights with probability 0.1" in note and note in cell_of({"input": path}).note


def test_a_plan_that_rounds_fp16_to_bf16_is_told(tmp_path):
    """Catches the 2^-9 of a cast that the file's call never made, taken for the kernel's error."""
    x = {role: value.astype(np.float16) for role, value in tensors()[0].items()}
    path = str(tmp_path / "half.safetensors")
    save_file(x, path, metadata={"layout": "BNTH"})
    assert "q is float16, and the plan fa2 rounds it to bf16" in cell_of({"input": path}).note
    assert "float16" not in cell_of({"input": path, "preset": "fa2-fp16"}).note


def test_sizes_that_are_asked_cut_and_say_so(file):
    """Catches a file that is cut to defaults: 256 tokens, 4 heads, one batch entry."""
    path, x, call = file("all", **CALLS["all"])
    whole = cell_of({"input": path})
    assert [whole[n] for n in ("T", "S", "N", "H", "batch", "causal")] == [T, T, N, H, "2", True]
    cut = cell_of(POINT | {"input": path, "T": 12, "N": 2, "batch": 1, "backward": False})
    assert "T=12 (the file: 20), S=12 (the file: 20), N=2 (the file: 4), batch=1 (the file: 2)" in (
        cut.note
    )
    (found,) = measure([cut])
    q, k, v = (x[r][:1, :12, :n].astype(np.float64) for r, n in (("q", 2), ("k", 1), ("v", 1)))
    own = call | {"mask": call["mask"][:1, :, :12, :12], "sinks": call["sinks"][:2]}
    mine, golden = (
        examine(q, k, v, plan=p, block_q=8, block_k=8, **own).out for p in ("fa2-bf16", "exact")
    )
    assert found.metrics["rel_rms"] == pytest.approx(relative_rms(mine, golden), rel=1e-9)


def test_keys_of_calls_that_say_nothing_are_those_of_before(file):
    """Catches stored results that lose their cell: parameters that a cell did not have before, in
    the key of a cell of which nothing has changed.
    """
    assert set(dict(cell_of({"preset": "fa2"}).parameters)) == set(DEFAULTS)
    assert cell_of({}).key == replace(cell_of({}), note="anything").key
    path, _, _ = file("all", **CALLS["all"])
    nothing = dict.fromkeys(("window", "softcap", "mask", "sinks"), "none") | {"causal": False}
    bare = cell_of({"input": path, "batch": 1} | nothing)
    assert set(dict(bare.parameters)) == set(DEFAULTS)
    each = [
        cell_of({"input": path, "batch": 1} | nothing | {n: "default"})
        for n in nothing
        if n != "causal"
    ]
    assert len({bare.key, *(c.key for c in each)}) == 5


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"window": "0.5"}, "window '0.5': give a whole number"),
        ({"softcap": "-1"}, "softcap '-1': give a number above 0, or none"),
        ({"scale": "nan"}, "scale 'nan': give a finite number"),
        ({"mask": "yes"}, "mask 'yes': give none, or default for what the file has"),
        ({"batch": "3"}, "batch '?3'?: input gaussian is drawn: vary the seed"),
    ],
)
def test_values_that_no_call_has(point, message):
    """Catches a word that is read as something else, or a batch of a drawn input."""
    with pytest.raises(UsageError, match=message):
        cell_of(point)


def test_a_drawn_input_takes_a_window_and_a_softcap():
    """Catches axes that only files have, though every call takes them."""
    plain, same, narrow = measure(
        [
            cell_of({"T": 16, "N": 1, "H": 8} | more)
            for more in ({}, {"window": "none"}, {"window": 3})
        ]
    )
    assert repr(plain.metrics) == repr(same.metrics) and plain.key == same.key
    assert narrow.metrics["rms"] != plain.metrics["rms"] and narrow.key != plain.key


def test_a_file_that_is_aligned_bottom_right(tmp_path):
    """Catches queries counted from the first key where the file says from the last."""
    x = tensors()[0]
    x = {r: x[r][:, :, : 6 if r in ("q", "do") else T] for r in x}
    path = str(tmp_path / "a.safetensors")
    words = {"layout": "BNTH", "is_causal": "true", "alignment": "bottom-right"}
    save_file({r: np.ascontiguousarray(v) for r, v in x.items()}, path, metadata=words)
    point = {"input": path, "preset": "fa2-bf16", "tile": 4}
    cells = [cell_of(point), cell_of(point | {"alignment": "top-left"})]
    q, k, v = (x[r].transpose(0, 2, 1, 3).astype(np.float64) for r in "qkv")
    for found, alignment in zip(measure(cells), ("bottom-right", "top-left"), strict=True):
        mine, golden = (
            examine(q, k, v, plan=p, block_q=4, block_k=4, is_causal=True, alignment=alignment).out
            for p in ("fa2-bf16", "exact")
        )
        assert found.metrics["rel_rms"] == pytest.approx(relative_rms(mine, golden), rel=1e-9)
    assert "alignment=bottom-right" in cells[0].note
    assert "alignment=top-left (the file: bottom-right)" in cells[1].note
    with pytest.raises(UsageError, match="a cut of a call aligned bottom-right is another call"):
        cell_of(point | {"T": 4})


def test_a_file_of_several_layers_is_several_inputs(tmp_path):
    """Catches the first layer in place of the file, without a word."""
    x, _ = tensors(("a.", "b."))
    path = str(tmp_path / "two.safetensors")
    save_file(x, path, metadata={"layout": "BNTH"})
    names = [point["input"] for point in list(each_point(spec_of([f"input=gaussian,{path}"])))]
    assert names == ["gaussian", f"{path}:a", f"{path}:b"]
    assert [p["input"] for p in list(each_point(spec_of([f"input={path}:b"])))] == [f"{path}:b"]
    assert [p["input"] for p in list(each_point(spec_of(["input=sample"])))] == ["sample"]
    with pytest.raises(UsageError, match=r"has 2 layers, a, b; name one of them, as in .*:a"):
        cell_of({"input": path})


def test_the_terminal_the_page_and_the_preview_say_it(file, tmp_path):
    """Catches a note that nobody sees, and what a file says as an axis of its own."""
    files = [file(name, **CALLS[name])[0] for name in ("plain", "causal", "all")]
    words = ["sweep", f"input={','.join(files)}", "preset=fa2-bf16", "T=16", "tile=8", "seed=0"]
    out = tmp_path / "s.sqlite"
    run = CliRunner()
    dry = run.invoke(app, [*words, "--out", str(out), "--dry-run", "--json"])
    notes = json.loads(dry.stdout)["notes"]
    assert len(notes) == 3 and all("as asked, T=16 (the file: 20)" in note for note in notes)
    shown = run.invoke(app, [*words, "--out", str(out), "--jobs", "1"])
    assert shown.exit_code == 0 and all(note in shown.stdout for note in notes)
    (axis,) = frame_of(out).axes
    assert axis.label == "input (with causal and mask and sinks and softcap and window)"
    page = write(out).read_text()
    assert "as the file says, causal=true scale=0.9 window=9 softcap=0.7 mask sinks batch=2" in page
