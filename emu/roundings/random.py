"""The random bits of an event, from the seed, the event's stream and its coordinates alone.

An axis that `jax.vmap` maps over is not a coordinate, so all its entries have the same bits. The
key of the k-th addition of a sum is seed ^ (k STEP). Different seeds can therefore share bits:
`round_to` with seed STEP draws the bits that the first addition of `dot` with seed 0 draws in row
0. Two seeds that are chosen without regard to STEP share bits with a probability of 2^-32.
"""

from typing import Any

from roundscope.emu.roundings.threefry import random31

STEP = 0x9E3779B9  # an odd constant: one key for each addition inside a sum


def event_bits(xp: Any, seed: int, stream: Any, rows: Any, columns: Any, step: Any = 0) -> Any:
    """Return uniform integers in [0, 2^31) as int32, of the broadcast shape of rows and columns.

    Args:
        xp: the namespace, numpy or jax.numpy.
        seed: the seed of the rounding.
        stream: the number of the event's and the head's random stream, 0-d or of shape (1,).
        rows: integers, one coordinate of each number.
        columns: integers, the other coordinate.
        step: the index of the addition inside the event, counted from 1; 0 outside sums.
    """

    def word(x: Any) -> Any:
        return xp.asarray(x).astype("uint32")

    key = word(seed) ^ (word(step) * word(STEP))
    rows, columns = xp.broadcast_arrays(word(rows), word(columns))
    return random31((key, word(stream)), (rows, columns)).astype("int32")
