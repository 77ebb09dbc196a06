"""Faults planted in a good attention kernel, as data, and changes of it that are no faults.

`kernel_of(fault)` is a kernel to test. Each is an attribute of this module as well, under its name
with underscores: `tests.checks.mutants.faults_kernel:stale_maximum` names a user's function.

python -m tests.checks.mutants.faults_kernel [NAME...]    # measures them, about a minute
"""

import sys
from collections.abc import Callable

from tests.checks.mutants.faults_kernel_harmless import HARMLESS
from tests.checks.mutants.faults_kernel_logic import LOGIC
from tests.checks.mutants.faults_kernel_rounding import ROUNDING
from tests.checks.mutants.kernel_fault import Fault, kernel_of

__all__ = ["CHANGES", "FAULTS", "HARMLESS", "Fault", "kernel_of"]

FAULTS: tuple[Fault, ...] = LOGIC + ROUNDING
CHANGES: dict[str, Fault] = {change.name: change for change in FAULTS + HARMLESS}


def __getattr__(name: str) -> Callable[..., object]:
    if (fault := CHANGES.get(name.replace("_", "-"))) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return kernel_of(fault)


def main(names: list[str]) -> None:
    """Print, per fault, the largest error relative to the clean kernel's and the largest gain."""
    from tests.checks.mutants.measured_kernel import (
        CASES,
        is_batch_invariant,
        is_repeatable,
        level,
        measurements,
        size,
    )

    x = CASES["gaussian"]()
    print(f"{'fault':28}{'level':10}{'gaussian':>9}{'worst':>11}  where{'gain':>22}  where")
    for fault, found in measurements(tuple(CHANGES[n] for n in names or CHANGES)):
        worst = max(found, key=lambda name: found[name].ratio)
        biased = max(found, key=lambda name: size(found[name].gain))
        w, b, kernel = found[worst], found[biased], kernel_of(fault)
        notes = [
            ""
            if fault.level in ("harmless", level(found[fault.shows]))
            else "IS NOT OF THIS LEVEL",
            "" if is_repeatable(kernel, x) else "differs at every call",
            "" if is_batch_invariant(kernel, x) else "differs with the batch",
        ]
        print(
            f"{fault.name:28}{fault.level:10}{found['gaussian'].ratio:9.2f}{w.ratio:11.2f}"
            f"  {f'{worst} {w.worst}':18}{b.gain:+9.1e}  {f'{biased} {b.longest}':22}"
            f"{'; '.join(filter(None, notes))}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
