"""The command in this process, a small file of tensors, and the sample's summary."""

from functools import partial

import numpy as np
import pytest

from roundscope.experiments.tensors.layers import read_layers, sample_path
from roundscope.experiments.trace.run import observe
from roundscope.experiments.trace.summary import summarise
from tests.experiments.trace.inputs import asked, tensors


@pytest.fixture
def run(roundscope):
    """Runs `roundscope trace` in this process: (exit code, stdout, stderr)."""

    return partial(roundscope, "trace")


@pytest.fixture
def small(tmp_path):
    """Writes a file of random tensors and returns its path."""

    def of(name="small", **changes):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **tensors(**changes), layout="BTNH")
        return path

    return of


@pytest.fixture(scope="session")
def sample():
    """Layer 1 of the sample under the default plan: its summary."""
    (layer,) = read_layers(sample_path(), layer="layer1")
    return summarise(observe(layer, asked(block_q=128, block_k=128)))
