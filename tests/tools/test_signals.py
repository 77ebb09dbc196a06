"""Signals: a command that one ended exits with 128 plus its number."""

import os
import signal
from pathlib import Path

import pytest

from roundscope.tools.signals import stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_kept_and_the_second_acts_as_usual(number):
    before, told = signal.getsignal(number), []
    with stopping(lambda: told.append(1)) as stop:
        assert stop() == 0
        os.kill(os.getpid(), number)
        assert (stop(), told) == (number, [1])
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before


def test_every_pool_of_processes_is_the_one_that_ends_with_its_parent():
    """Workers that wait for work for ever after kill -9, or that print a traceback at Ctrl-C."""
    folders = [Path(__file__).parents[2] / name for name in ("tools", "experiments")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    pools = [path.name for path in files if "ProcessPoolExecutor(" in path.read_text()]
    assert pools == ["executors.py"]
