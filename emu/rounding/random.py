"""The random bits of an event: from the seed, the event's stream and its coordinates, nothing else.

A mapped axis (`jax.vmap`) is no coordinate: its entries have the same bits. The key of the k-th
addition of a sum is seed ^ (k STEP), so seeds can meet: `round_to` with seed STEP draws what the
first addition of `dot` with seed 0 draws in row 0. Of two seeds that are chosen without regard to
STEP that has a chance of 2^-32.
"""

from typing import Any

from roundscope.emu.rounding.threefry import random31

STEP = 0x9E3779B9  # an odd constant: one key for each addition inside a sum


def event_bits(xp: Any, seed: int, stream: Any, rows: Any, columns: Any, step: Any = 0) -> Any:
    """Uniform integers in [0, 2^31), int32, of the broadcast shape of rows and columns (integer
    arrays).

    stream  which event and which head (0-d or of shape (1,)); step: which addition inside it,
            counted from 1
    """

    def word(x: Any) -> Any:
        return xp.asarray(x).astype("uint32")

    key = word(seed) ^ (word(step) * word(STEP))
    rows, columns = xp.broadcast_arrays(word(rows), word(columns))
    return random31((key, word(stream)), (rows, columns)).astype("int32")
