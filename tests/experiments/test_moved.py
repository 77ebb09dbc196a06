"""Modules by their old names: one module, not a second copy of it, and a warning."""

import importlib
import sys

import pytest

from roundscope.experiments.moved import MOVED, new_name


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_its_module(old):
    """An old name that finds nothing, or a second module with classes of its own."""
    name = f"roundscope.experiments.{old}"
    with pytest.warns(DeprecationWarning, match="now"):
        module = importlib.import_module(name)
    new = importlib.import_module(new_name(name))
    assert module is new and new.__spec__.name == new.__name__ == new_name(name)
    for loaded in [m for m in sys.modules if new_name(m)]:
        del sys.modules[loaded]


def test_modules_inside_and_names_that_never_were():
    with pytest.warns(DeprecationWarning, match=r"roundscope\.tools\.trace"):
        run = importlib.import_module("roundscope.experiments.trace.run")
    assert run is importlib.import_module("roundscope.tools.trace.run")
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("roundscope.experiments.nothing")
