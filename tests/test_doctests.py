"""The examples in docstrings: whoever tries one gets the output that stands there.

A module is imported only if its source has an example, so that collecting these tests is cheap.
"""

import ast
import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from roundscope import attention, emu


def sources(package: ModuleType) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of a package and of every module below it."""
    yield package.__name__, Path(str(package.__file__))
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        spec = module.module_finder.find_spec(module.name, None)
        assert spec is not None and spec.origin is not None, module.name
        yield module.name, Path(spec.origin)


def prompts(source: str) -> int:
    """Return the number of examples in the strings of a source file, wherever they stand."""
    strings = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    lines = (line for s in strings if isinstance(s, str) for line in s.splitlines())
    return sum(line.lstrip().startswith(">>> ") for line in lines)


def run(module: ModuleType) -> tuple[int, str]:
    """Run the examples of a module; return how many ran, and a report of those that failed."""
    runner, report = doctest.DocTestRunner(verbose=False), list[str]()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(test, out=report.append)
    return runner.tries, "".join(report)


WITH_EXAMPLES = {
    name: count
    for package in (emu, attention)
    for name, path in sources(package)
    if (count := prompts(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_give_the_output_that_they_show(name: str) -> None:
    """An example that went stale; one that doctest does not find, or that is told to skip."""
    tried, report = run(importlib.import_module(name))
    assert not report, report
    assert tried == WITH_EXAMPLES[name]


def test_another_output_is_a_failure() -> None:
    module = ModuleType("wrong", ">>> 1 + 1\n2\n>>> 1 + 1\n3\n")
    tried, report = run(module)
    assert tried == 2
    assert report.count("Failed example") == 1


def test_an_example_of_every_public_function_and_class_of_emu() -> None:
    """A public name whose documentation shows no use of it."""
    named = (getattr(emu, name) for name in emu.__all__)
    documented = [x for x in named if callable(x)]
    assert documented
    assert not [x for x in documented if ">>> " not in (x.__doc__ or "")]
