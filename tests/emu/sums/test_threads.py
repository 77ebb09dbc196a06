"""How threads of a GPU add, and lanes of a CPU, against loops in float32."""

import functools
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.roundings.modes import BINARY64, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order

LENGTHS = (1, 2, 7, 8, 9, 31, 32, 33, 65, 100, 128, 129, 512, 700)
ACCUMULATORS = (
    *(Accumulator(order=Order.STRIDED, chunk=n) for n in (1, 4, 5, 32)),
    *(Accumulator(order=Order.OCTETS, chunk=n) for n in (1, 2, 8, 16)),
    *(Accumulator(order=Order.WARPS, chunk=n) for n in (4, 8, 1)),
    *(Accumulator(order=Order.OCTET_PAIRS, chunk=n) for n in (5, 16)),
    *(Accumulator(order=Order.CASCADE, chunk=n) for n in (4, 8)),
    Accumulator(order=Order.LEVELS, chunk=8),
    *(Accumulator(order=Order.QUAD_WARPS, chunk=n) for n in (64, 5)),
    *(Accumulator(order=Order.OCTET_WARPS, chunk=n) for n in (64, 5)),
    *(Accumulator(order=Order.BLOCK, chunk=n) for n in (32, 128)),
    *(Accumulator(order=Order.QUAD_STRIDES, chunk=n) for n in (64, 5)),
    *(Accumulator(order=Order.OCTET_STRIDES, chunk=n) for n in (64, 5)),
)
accumulators = pytest.mark.parametrize("acc", ACCUMULATORS, ids=lambda a: f"{a.order}{a.chunk}")
ZERO = np.float32(0.0)


def by_halves(values: list[Any]) -> Any:
    """The first half is added to the second, an odd one out goes on unchanged behind them."""
    while len(values) > 1:
        half = len(values) // 2
        values = [values[n] + values[half + n] for n in range(half)] + values[2 * half :]
    return values[0]


def of_strided(x: list[Any], lanes: int) -> Any:
    """Lane n has every lanes-th number from x_n on, as far as there are any."""
    total = []
    for n in range(min(lanes, len(x))):
        own = x[n]
        for more in x[n + lanes :: lanes]:
            own = own + more
        total.append(own)
    return by_halves(total)


def octets(x: list[Any], lanes: int) -> list[Any]:
    """Lane n has eight neighbours from x_8n on, then the eight that lie 8 lanes further."""
    octets = [x[lo : lo + 8] + [ZERO] * (8 - len(x[lo : lo + 8])) for lo in range(0, len(x), 8)]
    lanes = min(lanes, len(octets))
    octets += [[ZERO] * 8] * (-len(octets) % lanes)
    total = []
    for n in range(lanes):
        numbers = list(itertools.chain(*octets[n::lanes]))
        own = numbers[0]
        for more in numbers[1:]:
            own = own + more
        total.append(own)
    return total


def of_octets(x: list[Any], lanes: int) -> Any:
    return by_halves(octets(x, lanes))


def of_octet_pairs(x: list[Any], lanes: int) -> Any:
    """Each lane has as many octets, and adds number after number of all of them at once;
    neighbouring lanes are added, an odd one out goes on unchanged behind them.
    """
    x = x + [ZERO] * (-len(x) % 8)
    lanes, found = math.gcd(lanes, len(x) // 8), []
    for n in range(lanes):
        starts = range(8 * n, len(x), 8 * lanes)
        found.append(functools.reduce(np.add, [x[lo + k] for k in range(8) for lo in starts]))
    while len(found) > 1:
        odd = found[len(found) // 2 * 2 :]
        found = [found[n] + found[n + 1] for n in range(0, len(found) - 1, 2)] + odd
    return found[0]


def of_warps(x: list[Any], count: int) -> Any:
    """Each thread has so many neighbours, 4: (x_4n + x_(4n + 1)) + (x_(4n + 2) + x_(4n + 3)); 32
    threads are a warp.
    """
    x = x + [ZERO] * (-len(x) % (32 * count))
    threads = x
    while count > 1:
        threads, count = (
            [a + b for a, b in zip(threads[::2], threads[1::2], strict=True)],
            count // 2,
        )
    return by_halves([by_halves(threads[w : w + 32]) for w in range(0, len(threads), 32)])


def of_reads(x: list[Any], threads: int, own: int) -> Any:
    """Thread n reads the numbers whose place divided by `own` is n, modulo the threads, as a loop
    over all numbers does; threads without a number have 0, and fill the last warp.
    """
    sums = [ZERO] * (-(-threads // 32) * 32)
    for place, number in enumerate(x):
        sums[place // own % threads] = sums[place // own % threads] + number
    return by_halves([by_halves(sums[w : w + 32]) for w in range(0, len(sums), 32)])


def of_strides(x: list[Any], threads: int, own: int) -> Any:
    """Whole rounds of reads, then one number for each thread at a time, as in ATen's ilpReduce."""
    sums = [ZERO] * (-(-threads // 32) * 32)
    whole = len(x) // (own * threads) * own * threads
    for place, number in enumerate(x):
        thread = place // own % threads if place < whole else (place - whole) % threads
        sums[thread] = sums[thread] + number
    return by_halves([by_halves(sums[w : w + 32]) for w in range(0, len(sums), 32)])


def of_block(x: list[Any], width: int) -> Any:
    """Threads (column, row) of a block of 512, as its launch and its loops are written in ATen."""
    count, rows = len(x), 512 // width
    vectors = count > 128
    power = 1
    while 2 * power <= (count // 4 if vectors else count):
        power *= 2
    columns = min(power, width)
    rows = rows if rows > 1 and math.ceil(count / columns) >= min(16 * rows, 256) else 1
    found = []
    for row in range(rows):
        of_row = []
        for column in range(columns):
            four, start = [ZERO] * 4, column + columns * row
            if vectors:
                for read in range(start, count // 4, columns * rows):
                    for n in range(4):
                        four[n] = four[n] + x[4 * read + n]
                tail = count - count % 4 + column
                if row == 0 and tail < count:
                    four[0] = four[0] + x[tail]
            else:
                for n, place in enumerate(range(start, count, columns * rows)):
                    four[n % 4] = four[n % 4] + x[place]
            of_row.append(((four[0] + four[1]) + four[2]) + four[3])
        found.append(by_halves(of_row))
    return by_halves(found)


def of_levels(x: list[Any], _: int = 0) -> Any:
    """One counter for each of four levels, as an odometer: a number goes to level 0, which empties
    itself into level 1 after every 16th, and so on.
    """
    assert len(x) <= 2**19
    levels = [ZERO] * 4
    for n, number in enumerate(x):
        levels[0] = levels[0] + number
        for level in (1, 2, 3):
            if (n + 1) % 16**level:
                break
            levels[level] = levels[level] + levels[level - 1]
            levels[level - 1] = ZERO
    return ((levels[0] + levels[1]) + levels[2]) + levels[3]


def of_cascade(x: list[Any], lanes: int) -> Any:
    """Four sums in levels for each lane, whose vectors are taken by turns."""
    width = lanes if len(x) >= lanes else 1
    vectors = [x[lo : lo + width] for lo in range(0, len(x) - width + 1, width)]
    fours = len(vectors) // 4
    of_lanes = []
    for lane in range(width):
        partial = [of_levels([v[lane] for v in vectors[k : 4 * fours : 4]]) for k in range(4)]
        for vector in vectors[4 * fours :]:
            partial[0] = partial[0] + vector[lane]
        of_lanes.append(((partial[0] + partial[1]) + partial[2]) + partial[3])
    total = ZERO
    for number in [*x[len(vectors) * width :], *of_lanes]:
        total = total + number
    return total


LOOPS = {
    Order.STRIDED: of_strided,
    Order.OCTETS: of_octets,
    Order.OCTET_PAIRS: of_octet_pairs,
    Order.WARPS: of_warps,
    Order.CASCADE: of_cascade,
    Order.LEVELS: of_levels,
    Order.QUAD_WARPS: functools.partial(of_reads, own=4),
    Order.OCTET_WARPS: functools.partial(of_reads, own=8),
    Order.BLOCK: of_block,
    Order.QUAD_STRIDES: functools.partial(of_strides, own=4),
    Order.OCTET_STRIDES: functools.partial(of_strides, own=8),
}


def operands(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(2, count) and (count, 3) numbers of 12 bits, so that products are float32 numbers; (2, 3) to
    start from.
    """
    rng = np.random.default_rng([21, count])
    shapes = ((2, count), (count, 3), (2, 3))
    numbers = (rng.integers(-2047, 2048, s) * 2.0 ** rng.integers(-14, -6, s) for s in shapes)
    a, b, init = (x.astype(np.float32) for x in numbers)
    return a, b, init


def looped(acc: Accumulator, a: np.ndarray, b: np.ndarray, init: np.ndarray) -> np.ndarray:
    """The sums of float32 products, added in float32."""
    found = np.empty_like(init)
    for i, j in np.ndindex(init.shape):
        products = list(a[i] * b[:, j])
        found[i, j] = init[i, j] + LOOPS[acc.order](products, acc.chunk)
    return found.astype(np.float64)


def same(x: Any, y: np.ndarray) -> bool:
    return np.array_equal(np.asarray(x, np.float64).view(np.int64), y.view(np.int64))


@accumulators
def test_sums_are_those_of_the_loop(acc: Accumulator) -> None:
    """Lanes that take their neighbours' numbers, lanes added in another order, padding that is not
    at the end.
    """
    for count in LENGTHS:
        arrays = operands(count)
        assert same(emu.dot(*arrays[:2], acc, arrays[2]), looped(acc, *arrays)), count
        ones = np.ones((count, 1), np.float32)
        alone = looped(acc, arrays[0], ones, np.zeros((2, 1), np.float32))
        assert same(emu.sum(arrays[0], acc), alone[:, 0]), count


@pytest.mark.parametrize("order", [Order.STRIDED, Order.OCTETS, Order.OCTET_PAIRS])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_the_first_product_of_a_lane_is_rounded(order: Order, array: Any) -> None:
    """A product of 48 bits that a lane keeps: 1 + 2^-11 + 2^-24 is a tie of binary32, and so is its
    rounded value + 2^-24; both go down, whereas their sum without the first rounding is a number.
    """
    a = np.array([[1.0 + 2.0**-12, 1.0]], np.float32)
    b = np.array([[1.0 + 2.0**-12], [2.0**-24]], np.float32)
    found = emu.dot(array(a), array(b), Accumulator(order=order, chunk=1))
    assert np.asarray(found).tolist() == [[1.0 + 2.0**-11]]


def test_the_orders_are_not_one_another() -> None:
    """A word that leads to another order's sum, and a test whose data cannot tell."""
    several = [acc for acc in ACCUMULATORS if acc != Accumulator(order=Order.OCTETS, chunk=1)]
    sums = {
        str(acc): looped(acc, *operands(750)).tobytes() for acc in several
    }  # one lane of octets is one of strided
    sums["ascending"] = emu.dot(*operands(750)[:2], Accumulator(), operands(750)[2]).tobytes()
    assert len(set(sums.values())) == len(sums)


@pytest.mark.parametrize(
    "acc",
    [ACCUMULATORS[n] for n in (3, 6, 8, 11, 14, 15, 16, 18, 20)],
    ids=lambda a: f"{a.order}{a.chunk}",
)
def test_under_jax_too(acc: Accumulator) -> None:
    """An addition that XLA moves or contracts."""
    a, b, init = operands(100)
    assert same(
        emu.dot(jnp.asarray(a), jnp.asarray(b), acc, jnp.asarray(init)), looped(acc, a, b, init)
    )


@pytest.mark.thorough
@accumulators
def test_under_jax_for_every_length(acc: Accumulator) -> None:
    """A shape that NumPy's library and JAX's cut otherwise."""
    for count in LENGTHS:
        a, b, init = operands(count)
        assert same(
            emu.dot(jnp.asarray(a), jnp.asarray(b), acc, jnp.asarray(init)), looped(acc, a, b, init)
        ), count
        assert same(emu.sum(jnp.asarray(a), acc), emu.sum(a, acc)), count


CASCADE = Accumulator(order=Order.CASCADE, chunk=8)
CAPABLE = ("AVX2", "AVX512")  # whose sums of float32 have vectors of 8 lanes


@pytest.mark.parametrize("count", [1, 3, 5, 7, 8, 64, 100, 1000, 1024, 4096, 20000])
def test_a_cascade_is_torch_s_sum_on_a_cpu(count: int) -> None:
    """All bits of torch.sum and torch.mean of rows of float32, with numbers of any size."""
    torch = pytest.importorskip("torch")
    found = torch.backends.cpu.get_cpu_capability()
    if found not in CAPABLE:
        pytest.skip(f"torch adds with the vectors of {found}; cascade8 is that of AVX2")
    rng = np.random.default_rng([33, count])
    x = (rng.normal(size=(40, count)) * 2.0 ** rng.integers(-9, 9, (40, count))).astype(np.float32)
    sums = np.asarray(emu.sum(x, CASCADE))
    assert same(sums, torch.from_numpy(x).sum(-1).numpy().astype(np.float64))
    mean = sums.astype(np.float32) / np.float32(count)
    assert same(mean, torch.from_numpy(x).mean(-1).numpy().astype(np.float64))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100, 300, 5000])
def test_levels_are_torch_s_sum_of_columns(count: int) -> None:
    """All bits of torch.sum over the rows, of columns that fill vectors."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng([34, count]).normal(size=(count, 64)).astype(np.float32)
    sums = emu.sum(np.ascontiguousarray(x.T), Accumulator(order=Order.LEVELS))
    assert same(sums, torch.from_numpy(x).sum(0).numpy().astype(np.float64))


@pytest.mark.parametrize("count", [4095, 20000])
def test_levels_of_a_cascade_are_those_of_the_loop(count: int) -> None:
    """A third level, which sums of 16,384 numbers and more have; in NumPy and in JAX."""
    x = np.random.default_rng(count).normal(size=(2, count)).astype(np.float32)
    wanted = np.array([of_cascade(list(row), 8) for row in x]).astype(np.float64)
    assert same(emu.sum(x, CASCADE), wanted)
    assert same(emu.sum(jnp.asarray(x), CASCADE), wanted)


@accumulators
def test_no_product_is_what_the_sum_starts_from(acc: Accumulator) -> None:
    """An index error where there is nothing to add."""
    init = np.array([[1.5, -2.0]])
    assert same(emu.dot(np.zeros((1, 0)), np.zeros((0, 2)), acc, init), init)


@accumulators
def test_every_step_rounds_to_its_format(acc: Accumulator) -> None:
    """Steps of lanes left in FP32: 256 + 1 is 256 in BF16, so that ones are lost in long lanes
    only.
    """
    ones = np.ones((1, 1024), np.float32)
    lanes = 256 if acc.order is Order.WARPS else acc.chunk
    bf16 = Accumulator(order=acc.order, chunk=acc.chunk, step=rounding("bf16"))
    if lanes != 5:  # whose halves are odd
        assert emu.sum(ones, bf16).item() == lanes * min(1024.0 / lanes, 256.0)
    assert emu.sum(ones, acc).item() == 1024.0


@accumulators
def test_additions_that_are_kept_are_a_list_of_sums(acc: Accumulator) -> None:
    """Axes of lanes or warps left in what a trace counts as additions; a sum that changes when they
    are kept.
    """
    for count in (1, 7, 100, 300):
        a, b, init = operands(count)
        steps: list[Any] = []
        total = emu.dot(a, b, acc, init, steps)
        assert same(total, looped(acc, a, b, init))
        assert all(
            before.shape == after.shape and before.shape[1:] == (2, 3) for before, after in steps
        )
        before, after = (np.concatenate([pair[side] for pair in steps]) for side in (0, 1))
        assert same(after, emu.round_to(before, "fp32")) and same(after[-1], total)
        assert len(after) >= count


@pytest.mark.parametrize("order", LOOPS)
def test_stochastic_steps_are_refused(order: Order) -> None:
    """Random bits that many additions share, in silence."""
    with pytest.raises(
        ValueError,
        match=f"stochastic.*an {order} sum has no random bits; use a mode that draws none",
    ):
        Accumulator(order=order, step=rounding("fp32", "stochastic"))
    with pytest.raises(ValueError, match="chunk=0"):
        Accumulator(order=order, chunk=0)


@accumulators
def test_infinities_reach_the_sum(acc: Accumulator) -> None:
    """Padding that makes NaN of an infinity, or hides it."""
    for count in (3, 40):
        x = np.ones((3, count))
        x[0, -1], x[1, 0], x[2, 1] = np.inf, -np.inf, np.nan
        assert emu.sum(x, acc).tolist()[:2] == [np.inf, -np.inf] and np.isnan(emu.sum(x, acc)[2])


@accumulators
def test_in_binary64_a_sum_of_integers_is_exact(acc: Accumulator) -> None:
    """A step rounded to FP32 on its way."""
    x = np.random.default_rng(3).integers(0, 1 << 40, (2, 150)).astype(np.float64)
    wide = Accumulator(order=acc.order, chunk=acc.chunk, step=BINARY64)
    assert same(emu.sum(x, wide), x.sum(axis=1))


def test_names_say_the_lanes() -> None:
    """strided32 and strided8 printed as one."""
    said = [str(Accumulator(order=o, chunk=8)) for o in LOOPS]
    names = ("strided[8]", "octets[8]", "octet-pairs[8]", "warps[8]", "cascade[8]", "levels")
    names += ("quad-warps[8]", "octet-warps[8]", "block[8]", "quad-strides[8]", "octet-strides[8]")
    assert said == [f"{name} fp32" for name in names]
