"""The public face of `roundscope.testing`: its names, and where they come from."""

import importlib
import subprocess
import sys

import pytest

from roundscope import testing
from roundscope.testing import strategies


def test_every_name_is_there_and_sorted():
    """A name in `__all__` that has no home, or a home that `__all__` does not show."""
    assert sorted(testing.__all__) == sorted(testing._HOMES)
    upper = [n for n in testing.__all__ if n.isupper()]
    classes = [n for n in testing.__all__ if n[0].isupper() and n not in upper]
    functions = [n for n in testing.__all__ if n[0].islower()]
    assert testing.__all__ == [*sorted(upper), *sorted(classes), *sorted(functions)]
    assert set(dir(testing)) == set(testing.__all__)
    for name in testing.__all__:
        home = importlib.import_module(f"roundscope.{testing._HOMES[name]}")
        assert getattr(testing, name) is getattr(home, name)


def test_every_function_and_class_says_how_it_is_used():
    """A public name whose documentation shows no use of it."""
    data = ("FAMILIES", "Kernel", "Inputs", "Outputs", "Comparison", "Margins")
    named = [n for n in testing.__all__ if n not in data]
    assert len(named) > 7
    assert not [n for n in named if ">>> " not in getattr(testing, n).__doc__]
    assert not [n for n in strategies.__all__ if ">>> " not in getattr(strategies, n).__doc__]


def test_a_name_that_does_not_exist_is_an_attribute_error():
    """A misspelled name that gives None, or an error of another kind."""
    with pytest.raises(AttributeError, match=r"roundscope\.testing.*assert_equal"):
        testing.assert_equal  # noqa: B018


@pytest.mark.parametrize("name", ["emu.testing", "attention.testing"])
def test_strategies_are_all_reexported(name):
    """A strategy that is added to a layer and forgotten here."""
    module = importlib.import_module(f"roundscope.{name}.strategies")
    own = {
        n
        for n, x in vars(module).items()
        if callable(x) and not n.startswith("_") and getattr(x, "__module__", "") == module.__name__
    }
    assert own and own <= set(strategies.__all__)
    assert all(getattr(strategies, n) is getattr(module, n) for n in own)
    assert strategies.__all__ == sorted(strategies.__all__)


def test_strategies_alone_need_hypothesis():
    """An assertion that cannot be used without hypothesis and pytest."""
    code = (
        "import sys; sys.modules.update(hypothesis=None, pytest=None);"
        " from roundscope.testing import *; print(assert_invariant.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["assert_invariant"]
