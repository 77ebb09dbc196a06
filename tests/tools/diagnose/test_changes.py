"""`roundscope diagnose --set`: the plan that is asked for is the one that is diagnosed."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.tools.diagnose import command
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.report import data
from tests.tools.trace.inputs import tensors


class Reached(Exception):
    """Ends the command with the plan that it would diagnose."""


def test_changes_reach_the_plan_and_the_next_command(roundscope, tmp_path, monkeypatch):
    """A change that is read and not run, or that the advised command leaves out."""

    def stand_in(layers, asked, *_):
        raise Reached(asked.plan)

    monkeypatch.setattr(command, "diagnose", stand_in)
    np.savez(tmp_path / "x.npz", **tensors(b=1, t=16, s=16, h=4), layout="BTNH")
    words = ["P=bf16:toward-zero", "DS=fp32"]
    options = DiagnoseOptions(
        source=tmp_path / "x.npz", plan="fa2-bf16", changes=words, out=tmp_path / "d"
    )
    with pytest.raises(Reached) as reached:
        command.run(options, None)
    (plan,) = reached.value.args
    assert (str(plan["P"]), str(plan["DS"])) == ("bf16:toward-zero", "fp32")
    told = "--plan fa2-bf16 --set 'P=bf16:toward-zero DS=fp32'"
    assert data._trace("x.npz", plan.name) == f"roundscope trace x.npz {told}"


def test_the_layout_is_told_and_the_next_step_keeps_it(roundscope, tmp_path):
    """ "give --layout BNTH" of a command that has no such option; a next step without it."""
    path, given = tmp_path / "own.safetensors", tensors(b=1, t=16, s=16, n=4, g=4, hv=8)
    turned = {name: np.ascontiguousarray(x.swapaxes(1, 2)) for name, x in given.items()}
    save_file(turned, path)
    code, _, err = roundscope("diagnose", path, "--out", tmp_path / "d")
    assert code == 2 and "give --layout BNTH" in err
    order = ("--layout", "BNTH", "--plan", "fa2-bf16", "--full")
    code, out, err = roundscope("diagnose", path, *order, "--out", tmp_path / "d")
    assert (code, err) == (0, "")
    next_one = f"roundscope trace {path} --layout BNTH --full --plan fa2-bf16"
    assert f"Next, the error of every result, and which event makes it: {next_one}" in out
    code, _, err = roundscope("diagnose", tmp_path, "--layout", "BNTH")
    assert code == 2 and "--layout" in err and "a run has its own plan" in err


def test_wrong_changes_are_refused(roundscope, tmp_path):
    np.savez(tmp_path / "x.npz", **tensors(b=1, t=16, s=16, h=4), layout="BTNH")
    code, _, err = roundscope("diagnose", tmp_path / "x.npz", "--set", "P=fp8")
    assert code == 2 and "--set 'P=fp8'" in err and "'e4m3fn' or 'e5m2'" in err
    code, _, err = roundscope("diagnose", tmp_path, "--set", "P=fp16")
    assert code == 2 and "--set" in err and "a run has its own plan" in err
