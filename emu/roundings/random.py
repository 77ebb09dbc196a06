"""The random bits of an event, from the seed, the event's stream and its coordinates alone.

They are counter-based: Threefry-2x32 with 20 rounds (Salmon et al., SC'11), written once. The same
(key, counter) gives the same bits on every engine and device, however the work is cut into pieces.
The code uses only + ^ << >> on unsigned 32-bit words, so it runs on NumPy and JAX arrays alike.

An axis that `jax.vmap` maps over is not a coordinate, so all its entries have the same bits. The
key of the k-th addition of a sum is seed ^ (k STEP). Different seeds can therefore share bits:
`round_to` with seed STEP draws the bits that the first addition of `dot` with seed 0 draws in row
0. Two seeds that are chosen without regard to STEP share bits with a probability of 2^-32.
"""

from typing import Any

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32(k0: Any, k1: Any, c0: Any, c1: Any) -> tuple[Any, Any]:
    """Return two words of random bits from a key of two words and a counter of two words.

    All four words are uint32 arrays (or NumPy scalars) of the same library, broadcast together.
    """
    k0, k1, c0, c1 = (_array(word) for word in (k0, k1, c0, c1))
    keys = (k0, k1, k0 ^ k1 ^ _word(k0, PARITY))
    x0, x1 = c0 + k0, c1 + k1
    for block in range(5):
        for r in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = (x1 << _word(x1, r)) | (x1 >> _word(x1, 32 - r))
            x1 = x0 ^ x1
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + _word(x1, block + 1)
    return x0, x1


def _array(word: Any) -> Any:
    """Return a NumPy scalar as an array of one, whose additions wrap around without a warning."""
    return word.reshape(1) if word.ndim == 0 else word


def _word(like: Any, value: int) -> Any:
    return like.dtype.type(value)


def random31(key: tuple[Any, Any], counter: tuple[Any, Any]) -> Any:
    """Return uniform integers in [0, 2^31): the upper bits of the first word."""
    word = threefry2x32(*key, *counter)[0]
    return word >> _word(word, 1)


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
