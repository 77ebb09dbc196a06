"""The command in this process, a small file of tensors, and the sample's summary."""

import numpy as np
import pytest

from roundscope.tools.tensors.layers import read_layers, sample_path
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.summary import summarise
from tests.tools.trace.inputs import asked, tensors


@pytest.fixture
def run(roundscope):
    """Runs `roundscope trace` in this process: (exit code, stdout, stderr without progress).

    The plan is qiu-yao, which has most kinds of events, and there is no error budget, unless the
    words say otherwise.
    """

    def of(*words):
        plan = () if "--plan" in words else ("--plan", "qiu-yao")
        budget = () if "--budget" in words else ("--no-budget",)
        code, out, err = roundscope("trace", *words, *plan, *budget)
        lines = [x for x in err.splitlines(keepends=True) if not x.startswith("trace: ")]
        return code, out, "".join(lines)

    return of


@pytest.fixture
def small(tmp_path):
    """Writes a file of random tensors and returns its path."""

    def of(name="small", **changes):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **tensors(**changes), layout="BTNH")
        return path

    return of


@pytest.fixture(scope="session")
def sample_seen():
    """Layer 1 of the sample under the default plan, as observed."""
    (layer,) = read_layers(sample_path(), layer="layer1")
    return observe(layer, asked(block_q=128, block_k=128))


@pytest.fixture(scope="session")
def sample(sample_seen):
    """The summary of it."""
    return summarise(sample_seen)
