"""Every test runs under strict dtype promotion: an accidental mix of types in JAX code is an
error.

`make test` has PyTorch, transformers and flax. Where they are not installed (`make test-matrix`),
the tests of models in these libraries are not collected.
"""

import gc
import os
from importlib.util import find_spec

import pytest

os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # read by jax when it is first imported

OF_LIBRARIES = {
    "torch": [
        "attention/torch",
        "attention/models/test_layer_drift.py",
        "emu/test_torch.py",
        "test_bring_your_model.py",
    ],
    "flax": ["attention/flax", "test_bring_your_model.py"],
}
collect_ignore = [
    path for name, paths in OF_LIBRARIES.items() if find_spec(name) is None for path in paths
]


def pytest_configure():
    """An error that the command line does not know is a failure of the test, not a line."""
    from roundscope.experiments.cli import main

    def failure(error, words):
        raise AssertionError(f"roundscope {' '.join(words)}: an unexpected error") from error

    main.unexpected = failure


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the imports make what stays without a search for garbage in between."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Spare the garbage collector what lives as long as the tests: a million objects of libraries,
    which it would visit again and again while JAX makes programs, in a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
