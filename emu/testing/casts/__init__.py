"""Judgment of a user's cast or quantizer, against the rounding that it is meant to do.

`examine_cast` calls a function on systematic inputs and returns a `CastReport`. The report has one
row for each question, such as what the function does with ties, and says which known rounding or
scale rule the function behaves as. Nothing here prints.
"""

from roundscope.emu.testing.casts.examine import examine_cast
from roundscope.emu.testing.casts.records import CastReport, Example, Row, Status

__all__ = ["CastReport", "Example", "Row", "Status", "examine_cast"]
