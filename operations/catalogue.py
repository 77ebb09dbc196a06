"""The operations by name; attention has calls of its own (`roundscope.attention`)."""

from roundscope.operations.operation import Operation
from roundscope.operations.rms_norm import RMS_NORM

OPERATIONS: dict[str, Operation] = {own.name: own for own in (RMS_NORM,)}
"""The operations by name."""
