"""The passport of kernels: planted releases whose changes are known, and its record."""

import json

import ml_dtypes
import numpy as np
import pytest

from roundscope.experiments.questions.kernels.passport import outputs, record
from roundscope.experiments.questions.kernels.passport.compare import Known, steps
from roundscope.experiments.questions.kernels.passport.judged import judge, result_of
from roundscope.experiments.questions.kernels.passport.plans import Twin, changed
from roundscope.experiments.questions.kernels.passport.record import Record, release_of
from roundscope.experiments.questions.kernels.passport.writer import calls
from roundscope.experiments.questions.kernels.passport.writer import write as writing
from roundscope.operations import run
from roundscope.tools.errors import StorageError


def quiet(text):
    """Nobody is told."""


def gated(plan):
    """The results of silu(gate) up under a plan."""
    found = run("silu_mul", plan, calls.inputs("silu_mul"))
    return {"out": np.asarray(found.outputs["out"], np.float32)}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A function that writes what a release of a planted library returns, by the writer."""

    def write(version, results, kind="bf16", again=None):
        answers = [results, again or results]

        def called(x, kind):
            if isinstance(results, Exception):
                raise results
            return answers.pop(0)

        kernel = ("planted", "silu_mul", "cpu", (kind,), called)
        monkeypatch.setitem(writing.KERNELS, "planted", kernel)
        there = {"python": "3.11.0", "planted": version}
        monkeypatch.setattr(writing, "versions", lambda: there)
        [path] = writing.write(tmp_path / version, ["planted"], quiet)
        return outputs.read(path)

    return write


def recorded(*files):
    whole = Record()
    for each in files:
        release = release_of(each)
        whole = whole.with_release(release, judge(each, quiet) if release.bits else None)
    return whole


def test_inputs_are_bf16_and_of_the_right_size():
    """Inputs that depend on a library's normal numbers, or whose last feature reaches a score."""
    for operation in calls.SEEDS:
        for x in calls.inputs(operation).values():
            assert np.array_equal(x, x.astype(ml_dtypes.bfloat16).astype(np.float32))
    x = calls.inputs("rms_norm")["x"]
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.05 and np.abs(x).max() < 5
    call = calls.inputs("attention")
    assert (call["k"][..., -1] == 1).all() and not any(call[n][..., -1].any() for n in "qv")
    values = np.float32([1.00390625, 1.01171875, -3.0e-39, 1 / 3])  # two ties, a subnormal
    want = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(calls.to_bf16(values), want)


def test_a_changed_arithmetic_is_named(library):
    """A change that is not seen, or is put down to another event; a release that changed none."""
    first, same = library("1.9.0", gated("torch-cpu")), library("1.10.0", gated("torch-cpu"))
    later = library("2.0.0", gated("fused"))
    whole = recorded(later, first, same)  # releases are in the order of their versions
    kept, moved = steps(whole, whole)
    assert kept.old.version == "1.9.0" and kept.is_same and not kept.arithmetic and not kept.rows
    assert moved.versions == {"planted": ("1.10.0", "2.0.0")} and moved.known is Known.NARROWED
    assert "SC: bf16 -> fp32" in moved.arithmetic.split(" or ")  # of tied plans the nearest two
    twins = [whole.bits[r.bits].twin for r in (moved.old, moved.new)]
    assert all(t.gives("out") for t in twins)
    [across] = steps(recorded(first), recorded(later))
    assert across.arithmetic == moved.arithmetic and across.rows == moved.rows


def test_an_unknown_change_is_open_and_its_rows_are_counted(library):
    """A change that no plan makes, put down to one; the number of rows and the first of them."""
    out = gated("torch-cpu")["out"]
    bent = out.copy()
    bent[[5, 40], 7] += 1.0
    whole = recorded(library("1.0", {"out": out}), library("1.1", {"out": bent}))
    [step] = steps(whole, whole)
    rows = step.rows["out"]
    assert (rows.changed, rows.of, rows.first) == (2, calls.ROWS, 5)
    assert (
        step.known is Known.OPEN
        and "after the nearest plan, torch-cpu, gives 99.99 %" in step.arithmetic
    )


def test_what_is_not_finite_comes_first(library):
    """NaN that is dropped from an error, and for which a plan is looked for."""
    out = gated("torch-cpu")["out"]
    lost = out.copy()
    lost[3, 1], lost[9, 2], lost[9, 3] = np.nan, np.inf, -np.inf
    whole = recorded(library("1.0", {"out": out}), library("1.1", {"out": lost}))
    [step] = steps(whole, whole)
    assert step.strange == "1 NaN in out of 1.1, 2 infinite in out of 1.1"
    judged = whole.bits[step.new.bits]
    assert judged.twin is None and np.isinf(judged.results["out"].error)
    assert np.isnan(judged.results["out"].bias) and step.rows["out"].changed == 2


def test_errors_are_those_of_the_formula():
    """A gain or a bias of another sign or size."""
    want = np.tile(np.array([3.0, -4.0]), (2, 1))
    short = result_of((want * (1 - 2.0**-8)).astype(np.float32), want)
    assert short.gain == -(2.0**-8) and short.error == 2.0**-8
    above = result_of((want + 0.5).astype(np.float32), want)
    assert above.bias == 1.0 and above.gain == -0.5 / 25
    assert len(short.rows) == 2 * 4 and short.rows[:4] == short.rows[4:]


def test_a_record_survives_and_a_later_schema_is_refused(library, tmp_path):
    """Numbers that change on the way through JSON; a record that is read as what it is not."""
    out = gated("torch-cpu")["out"]
    other = {"out": np.where(out > 1, np.nan, out)}
    whole = recorded(library("1.0", {"out": out}), library("1.1", other, again={"out": out}))
    path = tmp_path / "passport.json"
    record.write(path, whole)
    again = record.read(path)
    assert repr(again.bits) == repr({k: whole.bits[k] for k in sorted(whole.bits)})
    assert again.releases == whole.releases and not again.releases[1].again
    data = json.loads(path.read_text())
    for change, told in (
        ({"schema": {"name": record.NAME, "version": 2}}, "a later release of Roundscope"),
        ({"schema": {"name": "other", "version": 1}}, "is no passport"),
        ({"releases": [{}]}, "is not what roundscope writes"),
        ({"bits": {}}, "nothing is said of the bits"),
    ):
        path.write_text(json.dumps(data | change))
        with pytest.raises(StorageError, match=told):
            record.read(path)


def test_a_release_that_fails_is_kept(library, monkeypatch, tmp_path):
    """A kernel that ends the writing; other inputs than ours."""

    failed = library("0.9", RuntimeError("no such operator\nand more"))
    assert failed.about["failed"] == "RuntimeError: no such operator" and not failed.results
    first, last = library("0.8", gated("torch-cpu")), library("1.0", gated("fused"))
    whole = recorded(failed, first, last)
    [over] = steps(whole, whole)
    assert (over.old.version, over.new.version) == ("0.8", "1.0") and over.known is Known.NARROWED
    [step] = steps(recorded(failed), recorded(last))
    assert not step.ran and not step.is_same and step.old.failed
    monkeypatch.setitem(calls.SEEDS, "silu_mul", 1)
    with pytest.raises(ValueError, match="other inputs"):
        outputs.read(tmp_path / "0.9" / "planted-bf16-0.9.npz")


def test_the_commands(library, tmp_path, roundscope):
    """A record that the command does not write or read, and bad words without one line."""
    library("1.0", gated("torch-cpu"))
    file = tmp_path / "record.json"
    code, out, err = roundscope("kernels", "--record", file, "--written", tmp_path / "1.0")
    assert code == 0 and "1 releases of kernels that ran" in " ".join(out.split()), err
    library("2.0", gated("fused"))
    assert roundscope("kernels", "--record", file, "--written", tmp_path / "2.0")[0] == 0
    code, out, _ = roundscope("kernels", "--compare", file, file, "--out", tmp_path / "page")
    said = " ".join(out.split())
    assert (
        code == 0
        and "1 changed bits: of 0 the arithmetic that changed is known, of 1 it is one of" in said
    )
    names = {p.name for p in (tmp_path / "page").iterdir()}
    assert names >= {"passport.html", "passport.json", "passport.png"}
    for words, told in (
        (("--record", file, "--compare", file, file), "give one of them"),
        (("--written", tmp_path), "--record"),
        (("--record", file, "--only", "torch-mth"), "torch-math"),
        (("--record", file, "--written", tmp_path / "page"), "no .npz file"),
        (("--compare", file, tmp_path / "none.json"), "no such file"),
    ):
        code, _, err = roundscope("kernels", *words)
        assert code == 2 and told in err and err.count("\n") == 1, err


def test_changes_that_are_not_told_apart_are_not_known():
    """One of several changes that would give the numbers, taken for the one that did."""

    def twin(*forms):
        first, *others = forms
        whole = {"forward": first, "backward": {"DS": "bf16"}}
        deltas = [{"forward": form, "backward": {}} for form in others]
        return Twin(plan="p", equal={"out": 1.0}, ties=len(others), arithmetic=whole, others=deltas)

    old = twin({"P": "bf16", "sum": "ascending", "root": "divided"})
    assert changed(old, twin({"P": "fp32", "sum": "ascending", "root": "divided"}), ["out"]) == [
        ["P: bf16 -> fp32"]
    ]
    either = twin(
        {"P": "bf16", "sum": "pairwise", "root": "divided"}, {"sum": "ascending", "root": "rsqrt"}
    )
    assert changed(old, either, ["out"]) == [
        ["sum: ascending -> pairwise"],
        ["root: divided -> rsqrt"],
    ]
    fewer = twin({"P": "bf16", "sum": "ascending"}, {"root": "rsqrt", "P": "fp32"})
    assert changed(old, fewer, ["out"]) == [["root: divided -> none"]]
