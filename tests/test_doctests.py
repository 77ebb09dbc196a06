"""The examples in docstrings: whoever tries one gets the output that stands there.

A module is imported only if its source has an example, so that collecting these tests is cheap.
"""

import ast
import doctest
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from roundscope import attention, emu, events, operations


def sources(package: ModuleType) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of a package and of every module below it."""
    yield package.__name__, Path(str(package.__file__))
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        spec = module.module_finder.find_spec(module.name, None)
        assert spec is not None and spec.origin is not None, module.name
        yield module.name, Path(spec.origin)


def texts(source: str) -> list[str]:
    """Return the strings of a source file that have examples: docstrings, those of data as well."""
    if not prompts(source):  # to parse all of them takes seconds
        return []
    strings = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    return [s for s in strings if isinstance(s, str) and prompts(s)]


def prompts(text: str) -> int:
    """Return the number of examples in a text."""
    return sum(line.lstrip().startswith(">>> ") for line in text.splitlines())


def run(examples: Iterable[str], names: dict[str, object]) -> tuple[int, str]:
    """Run the examples of some texts; return how many ran, and a report of those that failed."""
    runner, report = doctest.DocTestRunner(verbose=False), list[str]()
    for n, text in enumerate(examples):
        test = doctest.DocTestParser().get_doctest(text, dict(names), f"text {n}", None, 0)
        runner.run(test, out=report.append)
    return runner.tries, "".join(report)


def is_of_a_missing_library(name: str) -> bool:
    """Return whether a module is one of the folders that PyTorch or flax is needed for."""
    missing = [library for library in ("torch", "flax") if find_spec(library) is None]
    return any(f".{library}" in name for library in missing)


WITH_EXAMPLES = {
    name: found
    for package in (emu, events, attention, operations)
    for name, path in sources(package)
    if not is_of_a_missing_library(name) and (found := texts(path.read_text(encoding="utf-8")))
}


@pytest.fixture
def without_chance():
    """Hypothesis finds the same, however long a first call takes to load what it needs."""
    before = settings.get_current_profile_name()
    settings.register_profile("examples", deadline=None, derandomize=True, database=None)
    settings.load_profile("examples")
    yield
    settings.load_profile(before)


@pytest.mark.usefixtures("without_chance")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_give_the_output_that_they_show(name: str) -> None:
    """An example that went stale, or one that is told to skip."""
    tried, report = run(WITH_EXAMPLES[name], vars(importlib.import_module(name)))
    assert not report, report
    assert tried == sum(map(prompts, WITH_EXAMPLES[name]))


def test_another_output_is_a_failure() -> None:
    tried, report = run([">>> 1 + 1\n2\n>>> 1 + 1\n3\n"], {})
    assert tried == 2
    assert report.count("Failed example") == 1


def test_an_example_of_every_public_function_and_class_of_emu() -> None:
    """A public name whose documentation shows no use of it."""
    named = (getattr(emu, name) for name in emu.__all__)
    documented = [x for x in named if callable(x)]
    assert documented
    assert not [x for x in documented if ">>> " not in (x.__doc__ or "")]
