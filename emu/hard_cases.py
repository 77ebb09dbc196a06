"""Arguments of binary32 whose exp lies within 2^-51 of a rounding boundary, with a safe binary64 result."""

HARD_EXP: tuple[tuple[float, float], ...] = ()
