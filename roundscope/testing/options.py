"""The options of `pytest --pyargs roundscope.testing.attention`, and what is printed after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from roundscope.attention.testing.calls import Inputs, Outputs
    from roundscope.attention.testing.foreign.user import Kernel
    from roundscope.attention.testing.reference import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The kernel that is tested, and what it claims.

    Attributes:
        kernel: The kernel.
        plan: The plan that it claims.
        features: The number of features of a head.
        dtype: The type of the inputs.
    """

    kernel: Kernel
    plan: Reference
    features: int
    dtype: str


ASKED = pytest.StashKey[Asked]()
NOTE = "roundscope: note"  # the name of a test's property that is printed after the tests
OF_GPUS = ("sdpa-flash",)  # names for which PyTorch has another kernel on a CPU
NEEDED = "needs a GPU, and none is found here"
USAGE = (
    "roundscope.testing.attention tests the kernel that --kernel names, as in:"
    " pytest --pyargs roundscope.testing.attention --kernel my_module:my_function"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, or say why a project has no place for them."""
    group = parser.getgroup("roundscope", "the kernel that roundscope.testing.attention tests")
    try:
        _add(group)
    except ValueError as error:  # a conftest.py has an option of the same name
        raise pytest.UsageError(
            "roundscope.testing.attention: a plugin or a conftest.py has an option of the same name"
            f" ({error}); run it in another folder or with --noconftest"
        ) from error


def _add(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--kernel",
        metavar="KERNEL",
        help="the kernel: MODULE:FUNCTION, a function (q, k, v, *, scale, is_causal) that returns"
        " the output, or a name that `roundscope check` takes, such as sdpa-flash",
    )
    group.addoption(
        "--claims",
        metavar="PLAN",
        help="the plan that the kernel must be as good as (default: the twin of a kernel that has"
        " one, else fa2)",
    )
    group.addoption(
        "--kernel-library",
        choices=("numpy", "jax", "torch"),
        help="the library of the kernel's arrays (default: the one that its module imports)",
    )
    group.addoption(
        "--kernel-layout",
        choices=("BTNH", "BNTH"),
        help="the order of axes (default: BNTH, batch heads tokens features, for torch, else BTNH)",
    )
    group.addoption(
        "--kernel-dtype",
        choices=("bfloat16", "float16", "float32"),
        default="bfloat16",
        help="the type of the kernel's inputs (default: bfloat16)",
    )
    group.addoption(
        "--kernel-features",
        type=int,
        metavar="H",
        default=64,
        help="the number of features of a head (default: 64)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Stop before the first test if no kernel is given, or none of this name is found."""
    if config.getoption("help"):
        return
    if not config.getoption("--kernel"):
        raise pytest.UsageError(USAGE)
    try:
        config.stash[ASKED] = _asked(config)
    except (ValueError, TypeError) as error:
        raise pytest.UsageError(str(error)) from error


def _asked(config: pytest.Config) -> Asked:
    """Return what the command line asks."""
    from roundscope.attention.testing.foreign.user import kernel_of
    from roundscope.attention.testing.reference import reference
    from roundscope.tools.check.options import claims_of
    from roundscope.tools.identify.adapters import ADAPTERS, plain_name

    option = config.getoption
    name, dtype = option("--kernel"), option("--kernel-dtype")
    if name in ADAPTERS or plain_name(name) != name:
        kernel = _listed(name)
    else:
        kernel = kernel_of(
            name,
            library=option("--kernel-library"),
            layout=option("--kernel-layout"),
            dtype=dtype,
        )
    plan = reference(option("--claims") or claims_of(name), dtype)
    return Asked(kernel=kernel, plan=plan, features=option("--kernel-features"), dtype=dtype)


def _listed(name: str) -> Kernel:
    """Return a kernel of `roundscope check` by its name; every test of one not here is skipped."""
    from roundscope.attention.testing.foreign.user import Unavailable, unavailable
    from roundscope.tools.identify.adapters import kernel

    try:
        found = kernel(name)
        if name not in OF_GPUS or _is_on_gpu():
            return found
        reason: str | None = f"{name} on a CPU is another kernel than its plan's, which {NEEDED}"
    except ImportError as error:
        reason = unavailable(error)
    assert reason is not None

    def missing(x: Inputs) -> Outputs:
        raise Unavailable(reason)

    return missing


def _is_on_gpu() -> bool:
    from roundscope.attention.testing.foreign.torch_call import device

    return device() != "cpu"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print what the tests noted about the kernel that is no failure."""
    notes = list(_notes(terminalreporter))
    if notes:
        terminalreporter.section("notes of roundscope")
    for note in notes:
        terminalreporter.line(note)


def _notes(reporter: TerminalReporter) -> Iterator[str]:
    """Yield the notes of the tests that passed, with the names of the tests."""
    for report in reporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == NOTE:
                yield f"{report.nodeid.partition('::')[2]}: {value}"
