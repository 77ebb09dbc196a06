"""Whether a cast returns the same result again, and leaves its input as it was."""

import numpy as np

from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.tensors import is_tensor
from roundscope.emu.testing.casts.records import Function, Row, Status, skipped
from roundscope.emu.testing.casts.returned import call
from roundscope.emu.testing.foreign import ForeignError

AGAIN = "Does a second call on the same numbers return the same bits?"
INPUT = "Does the function leave its input as it was?"


def steady_rows(function: Function, x: np.ndarray, r: Rounding) -> list[Row]:
    """Return the rows on a second call and on the input, for random numbers."""
    if r.mode is RoundingMode.STOCHASTIC:
        return [skipped("second call", AGAIN, "the mode is stochastic"), _input_row(function, x)]
    first, second = (_bytes(call(function, x)) for _ in range(2))
    return [_row("second call", AGAIN, first == second), _input_row(function, x)]


def _input_row(function: Function, x: np.ndarray) -> Row:
    given, before = x.copy(), x.copy()
    seen = []

    def keeping(y: np.ndarray) -> object:
        seen.append(y)
        return function(y)

    try:
        call(keeping, given)
    except ForeignError as error:
        if not error.is_refusal:
            raise
        return skipped("input kept", INPUT, str(error))
    return _row("input kept", INPUT, np.array_equal(seen[0], before))


def _row(name: str, question: str, good: bool) -> Row:
    return Row(
        name=name,
        question=question,
        status=Status.PASS if good else Status.FAIL,
        agree=int(good),
        of=1,
    )


def _bytes(returned: object) -> bytes:
    """Return the bytes of an array, or of the arrays of a tuple."""
    if isinstance(returned, (tuple, list)):
        return b"".join(_bytes(part) for part in returned)
    if is_tensor(returned):
        import torch

        assert isinstance(returned, torch.Tensor)
        return returned.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(np.asarray(returned)).tobytes()
