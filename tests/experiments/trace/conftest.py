"""The command in this process, a small file of tensors, and the sample's summary."""

import numpy as np
import pytest

from experiments import cli
from experiments.tensors import read_layers, sample_path
from experiments.trace_run import observe
from experiments.trace_summary import summarise
from tests.experiments.trace.inputs import asked, tensors


@pytest.fixture
def run(capsys):
    """Runs `roundscope trace` in this process: (exit code, stdout, stderr)."""

    def of(*args):
        with pytest.raises(SystemExit) as stop:
            cli.main(["trace", *map(str, args)])
        out = capsys.readouterr()
        return stop.value.code or 0, out.out, out.err

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
def sample():
    """Layer 1 of the sample under the default plan: its summary."""
    (layer,) = read_layers(sample_path(), layer="layer1")
    return summarise(observe(layer, asked(block_q=128, block_k=128)))
