"""The number of threads is Numba's, whether Numba is there or not."""

import os
import subprocess
import sys

import numba
import pytest

from roundscope.emu.backends.threads import thread_count

COUNTED = """
import sys
from roundscope.emu.backends.threads import thread_count
before = thread_count()
assert "numba" not in sys.modules
import numba
assert before == thread_count() == numba.get_num_threads()
"""


@pytest.mark.parametrize("asked", [None, "1", "3"])
def test_the_number_of_threads_needs_no_numba(asked: str | None) -> None:
    """A worker of a sweep that is told to use one thread and uses all."""
    others = {k: v for k, v in os.environ.items() if k != "NUMBA_NUM_THREADS"}
    env = others if asked is None else others | {"NUMBA_NUM_THREADS": asked}
    subprocess.run([sys.executable, "-c", COUNTED], check=True, env=env)


def test_the_threads_of_pytorch_stay_as_they_were() -> None:
    """Numba's threads are started by asking for their number; OpenMP's number is PyTorch's too."""
    pytest.importorskip("torch")
    code = """
import torch, numba
torch.set_num_threads(1)
from roundscope.emu.backends.threads import thread_count
assert (thread_count(), torch.get_num_threads()) == (3, 1)
"""
    env = os.environ | {"NUMBA_NUM_THREADS": "3"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_what_numba_is_told_counts() -> None:
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert thread_count() == 1
    finally:
        numba.set_num_threads(before)
