"""All faults in our own code, in the order of the table, and the choice of some of them."""

from collections.abc import Sequence

from tests.checks.mutants import (
    faults_attention,
    faults_check,
    faults_emu,
    faults_files,
    faults_identify,
    faults_kernels,
    faults_serving,
    faults_summaries,
    faults_sweep,
    faults_trace,
)
from tests.checks.mutants.faults import Fault

FAULTS: tuple[Fault, ...] = (
    *faults_emu.FAULTS,
    *faults_attention.FAULTS,
    *faults_kernels.FAULTS,
    *faults_sweep.FAULTS,
    *faults_files.FAULTS,
    *faults_check.FAULTS,
    *faults_identify.FAULTS,
    *faults_serving.FAULTS,
    *faults_summaries.FAULTS,
    *faults_trace.FAULTS,
)


def chosen(names: Sequence[str]) -> tuple[Fault, ...]:
    """Return the faults with these names, or all of them without names.

    Raises ValueError for a name that no fault has.
    """
    known = {fault.name for fault in FAULTS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--only {unknown[0]}: no such fault; --list prints all names")
    return tuple(fault for fault in FAULTS if not names or fault.name in names)
