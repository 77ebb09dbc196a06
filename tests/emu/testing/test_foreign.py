"""Functions that are not ours: whatever they do is a result or one error with a sentence."""

import contextlib
import os
import random
import time

import numpy as np
import pytest

from roundscope.emu.testing.foreign import ForeignError, call_foreign, limited


class Own(BaseException):
    """An error that no `except Exception` catches, as KeyboardInterrupt is one."""


def _raise(error):
    raise error


FAULTS = {
    "exits": (lambda: _raise(SystemExit(0)), "ends the process (SystemExit, code 0)"),
    "no exception": (lambda: _raise(Own("x")), "raised Own"),
    "prints": (lambda: print("hello"), "writes to stdout ('hello\\n')"),
    "seterr": (lambda: np.seterr(all="ignore"), "numpy.seterr"),
    "print options": (lambda: np.set_printoptions(precision=2), "NumPy's print options"),
    "folder": (lambda: os.chdir("/"), "the current folder"),
    "seed of NumPy": (lambda: np.random.seed(0), "sets the seed of numpy.random"),
    "seed of Python": (lambda: random.seed(0), "sets the seed of random"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_told_and_put_back(what):
    """A function that ends the process, or changes it for all after it, without a word."""
    function, said = FAULTS[what]
    before = np.geterr(), np.get_printoptions(), os.getcwd(), random.getstate()
    drawn = np.random.get_state()[1].copy()
    with pytest.raises(ForeignError) as found:
        call_foreign(function, what="cast")
    assert said in str(found.value) and str(found.value).startswith("cast: ")
    assert not found.value.is_refusal and "\n" not in str(found.value)
    assert before == (np.geterr(), np.get_printoptions(), os.getcwd(), random.getstate())
    np.testing.assert_array_equal(drawn, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.set_default_dtype(t.float64), "default dtype"),
        (lambda t: t.set_grad_enabled(False) and None, "gradient mode"),
        (lambda t: t.manual_seed(3), "sets the seed of torch"),
    ],
)
def test_defaults_of_torch(change, said):
    """A kernel after which PyTorch makes other tensors."""
    torch = pytest.importorskip("torch")
    state = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    with pytest.raises(ForeignError, match=said):
        call_foreign(change, torch)
    assert state == (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())


def test_what_a_function_may_do():
    """A cast that draws random numbers, overflows, or sets a state for itself, refused."""

    def uses(x):
        with np.errstate(all="ignore"):
            return x * np.float32(1e38) * np.random.random(), random.random()

    first, second = (call_foreign(uses, np.full(2, 1e38, np.float32)) for _ in range(2))
    assert np.isinf(first[0]).all() and first[1] != second[1]


def test_an_ordinary_error_is_a_refusal_that_names_the_line():
    """An error without its place, or one that counts as a fault: it may not take the call."""
    with pytest.raises(ForeignError, match=r"raised KeyError at test_foreign.py:\d+: 'boo'") as e:
        call_foreign(lambda: _raise(KeyError("boo")))
    assert e.value.is_refusal and isinstance(e.value.__cause__, KeyError)


def test_control_c_is_no_fault_of_a_function():
    """Ctrl-C that becomes the failure of a kernel, after which the run goes on."""
    with pytest.raises(KeyboardInterrupt):
        call_foreign(lambda: _raise(KeyboardInterrupt()))


def test_a_hang_ends():
    """A call that never ends, or ends in an `except Exception` of its own; a slow one refused."""

    def hangs():
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    for function in (hangs, lambda: call_foreign(hangs)):
        began = time.perf_counter()
        with pytest.raises(ForeignError, match=r"runs longer than 0\.2 seconds"):
            limited(function, 0.2)
        assert time.perf_counter() - began < 5.0
    assert limited(lambda: 3, 5.0) == 3
    with pytest.raises(ValueError, match="timeout=0: give seconds above 0"):
        limited(lambda: 3, 0)
