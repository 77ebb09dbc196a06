"""A fault planted in the reference kernel: one replacement in its text, and the kernel it makes."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np

from tests.checks.mutants import broken_parts

REFERENCE = Path(__file__).with_name("reference.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of an attention kernel.

    Attributes:
        name: Its name, words joined by hyphens.
        level: "gross" if its worst error is more than 10 times the correct kernel's, or not finite,
            in the case where it shows; "moderate" if it is more than 1.5 times as large, or the
            result is longer or shorter by more than 2^-10; "subtle" otherwise. "harmless" is no
            fault: another way to compute that is as good.
        shows: The case (`measured_kernel.CASES`) in which it shows most.
        imitates: A sentence that says which mistake of real kernels it imitates.
        old: The text that is replaced; it occurs exactly once in reference.py.
        new: The text that replaces it. It may call the functions of broken_parts.py.
    """

    name: str
    level: Literal["gross", "moderate", "subtle", "harmless"]
    shows: str
    imitates: str
    old: str
    new: str


def changed_source(fault: Fault) -> str:
    """Return the reference kernel's text with the fault in it.

    Raises:
        ValueError: The text to replace does not occur exactly once.
    """
    source = REFERENCE.read_text()
    if (found := source.count(fault.old)) != 1:
        raise ValueError(
            f"{fault.name}: {fault.old!r} occurs {found} times in {REFERENCE.name}, must be once;"
            " adapt the fault to the kernel"
        )
    return source.replace(fault.old, fault.new)


def kernel_of(fault: Fault) -> Callable[..., object]:
    """Return the function `attention` of the reference kernel with the fault in it.

    It is silent about NaN and overflow, as a GPU is.
    """
    module = ModuleType(f"{__package__}.faulty_{fault.name.replace('-', '_')}")
    vars(module).update({name: getattr(broken_parts, name) for name in broken_parts.__all__})
    exec(compile(changed_source(fault), f"<{fault.name}>", "exec"), vars(module))
    sys.modules[module.__name__] = module  # where callers look up the function's libraries
    faulty = module.attention

    @functools.wraps(faulty)
    def attention(*tensors, **options):
        with np.errstate(all="ignore"):
            return faulty(*tensors, **options)

    return attention
