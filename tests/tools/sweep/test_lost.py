"""Infinities and NaN in a sweep, planted in tensors, at events and in gradients: every report
begins with them, and no error is a mean over what is left.
"""

import csv
import json
import math
import re
from html import unescape

import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.experiments.cli.main import main
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.command import summary
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.measuring.measure import measure
from roundscope.tools.sweep.report.effects import idle, shares
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.report.report import write
from roundscope.tools.sweep.running.run import Outcome
from roundscope.tools.sweep.storage.export import export
from roundscope.tools.sweep.storage.frames import frame_of
from roundscope.tools.sweep.storage.store import writing

SMALL = {"preset": "fp32", "T": 12, "N": 1, "H": 4, "tile": 6, "backward": True}
PLANTED = {  # what is planted -> (parameters, results that are lost, the event that is named)
    # sums of products of 2^127 are beyond binary32, and infinities of both signs make NaN
    "an event": (
        {"injection": f"P:set={2.0**127}:rows=3"},
        {"out", "delta", "dq", "dk"},
        "out has one first at batch entry 0, token 3, head 0, and the first event that counts"
        " some is O (fp32), with 1 NaN",
    ),
    "a gradient": (
        {"injection": f"DS:set={2.0**127}:rows=0:12"},
        {"dq", "dk"},
        "no event overflows, so a sum does",
    ),
    "tensors": (
        {"input": "large", "format.S": "fp16"},
        {"out", "L", "dq", "dk", "dv", "delta"},
        "beyond its largest number; S=fp32 has room for them",
    ),
}


def swept(path, points):
    """A results file of cells that are measured here; return (their cells, their results)."""
    cells = [cell_of(SMALL | point) for point in points]
    results = measure(cells)
    assert not any(r.error for r in results)
    with writing(path) as store:
        store.save(list(zip(cells, results, strict=True)))
    return cells, results


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file of finite tensors whose scores are beyond FP16."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x = {r: random.standard_normal((1, 1, 12, 4)).astype(np.float32) for r in ("q", "k", "v", "do")}
    x["q"], x["k"] = 500 * x["q"], 500 * x["k"]
    path = tmp_path / "large.safetensors"
    save_file(x, path, metadata={"layout": "BNTH"})
    return str(path)


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_comes_first(name, large, tmp_path):
    """Catches infinite results that read "differs by 0.18 %", gradients of NaN with an error of 0,
    and reports that tell them last.
    """
    more, results, event = PLANTED[name]
    more = more | ({"input": large} if "input" in more else {})
    out = tmp_path / "s.sqlite"
    cells, (plain, hit) = swept(out, [{}, more])
    prefixes = {r: {"out": "", "L": "lse_"}.get(r, f"{r}_") for r in results}
    for result, prefix in prefixes.items():
        assert hit.metrics[f"{prefix}not_finite"] > 0 == plain.metrics[f"{prefix}not_finite"]
        if result not in ("L", "delta"):
            assert hit.metrics[f"{prefix}rms"] == hit.metrics[f"{prefix}rel_rms"] == math.inf
            assert math.isnan(hit.metrics[f"{prefix}mean"])
    found = lost(frame_of(out))
    assert found.cells.tolist() == [False, True] and set(found.results) == results
    said = "1 of 2 cells has NaN or infinite results, all at "
    data = summary(cells, out, Outcome(done=2, failed=0, skipped=0, seconds=1, interrupted=False))
    assert list(data)[:2] == ["not_finite", "answer"] and data["not_finite"] == 1
    assert data["answer"].startswith(said) and event in data["answer"]
    page = unescape(write(out).read_text())
    (lead,) = re.findall(r"<div class='verdict bad'><p class=lead>(.*?)</p>", page)
    assert lead.startswith(said)
    export(out, tmp_path / "s.csv")
    row = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))[1]
    lost_rms = next(f"{prefixes[r]}rms" for r in results if r not in ("L", "delta"))
    assert row[lost_rms] == "inf" and row[lost_rms.replace("rms", "mean")] == ""


def test_the_terminal_begins_with_it(tmp_path, monkeypatch, capsys):
    """Catches the one line that everybody reads without what is wrong, in words and as JSON."""
    monkeypatch.chdir(tmp_path)
    axes = ("preset=fp32", "T=8", "N=1", "H=4", "S=fp16", "scale=0.5,1e38", "seed=0")
    words = ["sweep", *axes, "--jobs", "1"]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert not end.value.code
        told = capsys.readouterr().out
        answer = json.loads(told)["answer"] if more else told
        assert answer.startswith("1 of 2 cells has NaN or infinite results, all at scale = 1e+38")
    for words in (["export", "sweep.sqlite", "a.csv"], ["report", "sweep.sqlite"]):
        with pytest.raises(SystemExit):
            main(words)
        assert re.match("1 (of 2 )?cells? ha(s|ve) NaN or infinite", capsys.readouterr().out)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_tensors_that_are_not_finite_are_refused(value, tmp_path):
    """Catches a file of NaN that is compared with a reference of NaN."""
    x = {r: np.ones((1, 1, 4, 4), np.float32) for r in "qkv"}
    x["k"][0, 0, 2, 1] = value
    save_file(x, tmp_path / "f.safetensors", metadata={"layout": "BNTH"})
    with pytest.raises(UsageError, match="NaN or infinity: 1 in k; repair the tensors") as error:
        cell_of({"input": str(tmp_path / "f.safetensors")})
    assert "\n" not in str(error.value)


def test_shares_say_how_many_cells_they_are_of(tmp_path):
    """Catches an ANOVA over the cells that are left, as if it were of all."""
    out = tmp_path / "s.sqlite"
    points = [{"seed": s, "format.O": f} for s in range(3) for f in ("bf16", "fp32")]
    swept(out, [*points, *({"injection": f"P:set={2.0**127}:rows=1", "seed": s} for s in range(3))])
    frame = frame_of(out)
    found = shares(frame)
    assert (len(frame.rows), found.cells) == (9, 6)
    page = unescape(write(out).read_text())
    assert "Over the 6 cells of finite rms above 0:" in page
    assert "Left out of shares and means: 3 cells of infinite rms (red triangles)." in page
    assert "3 cells with NaN or infinite results have an infinite rms: red triangles" in page
    assert page.count("<td>3, 3 not finite<td>inf<td>inf<td>inf<td>-") == 1


def test_two_infinite_errors_are_no_axis_that_changed_nothing(tmp_path):
    """Catches "format.O changed nothing" of cells whose errors are all infinite."""
    out = tmp_path / "s.sqlite"
    one = {"injection": f"P:set={2.0**127}:rows=1"}
    swept(out, [one | {"format.OUT": f} for f in ("bf16", "fp32")])
    assert idle(frame_of(out)) == []
