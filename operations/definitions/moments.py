"""The mean of a row and its mean squared distance from it, in one pass (Welford, 1962).

Parts of a row are merged as by Chan, Golub and LeVeque (1979). Implementations differ in how they
deal the numbers to parts, and in which steps are multiply-adds.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.steps import Steps
from roundscope.emu.roundings.modes import Rounding

CHUNK = 16  # vectors that torch's kernel on a CPU adds up before it merges


class Moments(NamedTuple):
    """What is known of a part of each row: how many numbers, their mean, and the sum of their
    squared distances from it.
    """

    number: int
    mean: Array
    squares: Array


def by_vectors(ops: Ops, x: Array, lanes: int, own: int, step: Rounding) -> tuple[Array, Array]:
    """Return the means (R,) and the mean squared distances of rows (R, F), as torch on a CPU.

    Vectors of `lanes` numbers are added one after the other in chunks of 16, chunks are merged in
    pairs, then the lanes one after the other with the numbers that fill no vector
    (aten/src/ATen/native/cpu/moments_utils.h, RowwiseMomentsImpl).

    own: how many vectors are read at once, whose numbers go to sums of their own: 2 of 16 bits
    """
    do, (rows, features) = Steps(ops, step), x.shape
    whole = features // (lanes * own) * lanes * own
    vectors = x[:, :whole].reshape(rows, whole // (lanes * own), own, lanes)
    levels: list[Moments | None] = [None] * 64
    depth = max(-(-vectors.shape[1] // CHUNK) - 1, 0).bit_length()
    for n, chunk in enumerate(_chunks(do, vectors)):
        for part in chunk:
            levels[0] = _merged(do, levels[0], part)
        level = 0
        while level + 1 < depth and (n + 1) >> level & 1 == 0:
            levels[level + 1] = _merged(do, levels[level + 1], levels[level])
            levels[level], level = None, level + 1
    total = levels[0]
    for more in levels[1:]:
        total = _merged(do, total, more)
    return _over_lanes(do, x[:, whole:], total, float(features))


def _chunks(do: Steps, vectors: Array) -> Iterator[list[Moments]]:
    """Yield the moments of each chunk of vectors (R, N, own, lanes), as many as vectors at once.

    Whole chunks are computed at once, since each begins at zero.
    """
    rows, count, own, lanes = vectors.shape
    full, xp = count // CHUNK, do.ops.xp
    if full:
        whole = vectors[:, : full * CHUNK].reshape(rows, full, CHUNK, own, lanes)
        mean, squares = _one_by_one(do, xp.moveaxis(whole, 2, 0), is_product=True)
        for n in range(full):
            yield [Moments(CHUNK, mean[:, n, i], squares[:, n, i]) for i in range(own)]
    if rest := count - full * CHUNK:
        mean, squares = _one_by_one(do, xp.moveaxis(vectors[:, -rest:], 1, 0), is_product=True)
        yield [Moments(rest, mean[:, i], squares[:, i]) for i in range(own)]


def _one_by_one(do: Steps, x: Array, *, is_product: bool) -> tuple[Array, Array]:
    """Return the means along the first axis and the sums of the squared distances.

    is_product: whether a distance is multiplied by 1 / n, in a multiply-add, or divided by n
    """
    zero = do.ops.hidden(do.ops.xp.zeros(x.shape[1:]))
    if not x.shape[0]:
        return zero, zero
    counts = [float(n + 1) for n in range(x.shape[0])]
    parts = do.numbers([1.0 / n for n in counts] if is_product else counts)

    def body(total: tuple[Array, Array], _: Any, own: tuple[Array, Array]) -> Any:
        (mean, squares), (number, part) = total, own
        before = do.add(number, -mean)
        if is_product:
            mean = do.fma(do.ops.xp.broadcast_to(part, before.shape), before, mean)
        else:
            mean = do.add(mean, do.divide(before, part))
        return (mean, do.fma(before, do.add(number, -mean), squares)), None

    found: tuple[Array, Array] = do.ops.scan(body, (zero, zero), (x, parts))[0]
    return found


def _merged(do: Steps, one: Moments | None, other: Moments | None) -> Moments | None:
    """Return the moments of two parts; of one part if there is no other."""
    if one is None or other is None:
        return one or other
    count = one.number + other.number
    delta = do.add(other.mean, -one.mean)
    share, size = do.numbers([other.number / count, one.number])
    part = do.multiply(do.ops.xp.broadcast_to(share, delta.shape), delta)
    between = do.multiply(delta, do.ops.xp.broadcast_to(size, delta.shape))
    squares = do.fma(between, part, do.add(one.squares, other.squares))
    return Moments(count, do.add(one.mean, part), squares)


def _over_lanes(
    do: Steps, rest: Array, total: Moments | None, features: float
) -> tuple[Array, Array]:
    """Return mean and mean squared distance of the numbers that fill no vector and of the lanes."""
    xp, found = do.ops.xp, _one_by_one(do, rest.T, is_product=False)
    if total is not None:
        before = [rest.shape[1] + n * total.number for n in range(total.mean.shape[1])]
        shares = do.numbers([total.number / (n + total.number) for n in before])

        def body(sums: tuple[Array, Array], _: Any, own: tuple[Array, ...]) -> Any:
            (mean, squares), (own_mean, own_squares, share, size) = sums, own
            share, size = (xp.broadcast_to(v, mean.shape) for v in (share, size))
            delta = do.add(own_mean, -mean)
            spread = do.multiply(do.multiply(delta, delta), share)
            more = do.fma(spread, size, own_squares)
            return (do.fma(share, delta, mean), do.add(squares, more)), None

        own = (total.mean.T, total.squares.T, shares, do.numbers(list(map(float, before))))
        found = do.ops.scan(body, found, own)[0]
    return found[0], do.divide(found[1], features)


def by_threads(ops: Ops, x: Array, threads: int, step: Rounding) -> tuple[Array, Array]:
    """Return the means (R,) and the mean squared distances of rows (R, F), as torch on a GPU.

    Each thread reads four neighbors at a time, one after the other. Threads are merged by halves
    of a warp, then warps by halves (aten/src/ATen/native/cuda/layer_norm_kernel.cu, compute_stats).

    Raises:
        ValueError: F is no multiple of 4; torch's kernel for such rows is another one.
    """
    do, xp, (rows, features) = Steps(ops, step), ops.xp, x.shape
    if features % 4:
        told = "moments=threads reads four features at a time"
        raise ValueError(f"x of {features} features: {told}; give a multiple of 4")
    pages = -(-features // (4 * threads))
    padded = xp.concatenate([x, xp.zeros((rows, pages * 4 * threads - features))], axis=1)
    read = xp.moveaxis(padded.reshape(rows, pages, threads, 4), (1, 3), (0, 1))
    read = read.reshape(4 * pages, rows, threads)
    own = np.array([4.0 * len(range(n, features // 4, threads)) for n in range(threads)])
    steps = np.arange(4.0 * pages)

    def body(total: tuple[Array, Array], _: Any, given: tuple[Array, ...]) -> Any:
        (mean, squares), (number, part, there) = total, given
        before = do.add(number, -mean)
        new = do.fma(before, xp.broadcast_to(part, before.shape), mean)
        more = do.fma(before, do.add(number, -new), squares)
        return (xp.where(there, new, mean), xp.where(there, more, squares)), None

    zero = ops.hidden(xp.zeros((rows, threads)))
    given = read, do.numbers(list(1.0 / (steps + 1.0))), xp.asarray(own > steps[:, None])
    sums = ops.scan(body, (zero, zero), given)[0]
    for size in (32, threads // 32):
        own = own.reshape(-1, size)
        sums = tuple(v.reshape(rows, *own.shape) for v in sums)
        while own.shape[1] > 1:
            own, sums = _halved(do, own, *sums)
        own = own.reshape(1, -1)
    mean, squares = (v.reshape(rows) for v in sums)
    return mean, do.divide(squares, float(features))


def _halved(
    do: Steps, own: np.ndarray, mean: Array, squares: Array
) -> tuple[np.ndarray, tuple[Array, Array]]:
    """Return counts, means and squares in which the second half of the threads is merged with the
    first.
    """
    xp, half = do.ops.xp, own.shape[1] // 2
    a, b, count = own[:, half:], own[:, :half], own[:, :half] + own[:, half:]
    mean_a, mean_b = mean[..., half:], mean[..., :half]
    delta = do.add(mean_b, -mean_a)
    full = partial(xp.broadcast_to, shape=delta.shape)
    inverse = do.divide(xp.ones_like(delta), full(np.maximum(count, 1.0)))
    part_a, part_b = do.multiply(full(a), inverse), do.multiply(full(b), inverse)
    merged = do.fma(part_a, mean_a, do.multiply(part_b, mean_b))
    spread = do.multiply(do.multiply(delta, delta), full(a))
    total = do.fma(spread, part_b, do.add(squares[..., half:], squares[..., :half]))
    there = count > 0.0
    return count, (xp.where(there, merged, 0.0), xp.where(there, total, 0.0))
