"""The order of a sum's additions is found by probing it: that of every accumulator, of twins on
known tiles, and of a kernel of NumPy whose tiles come in no order that a plan has.
"""

from dataclasses import replace
from functools import partial, reduce

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention import Plan, examine
from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.sites import Site
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.user import kernel_of
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.tools.identify import search
from roundscope.tools.identify.order_names import named_order
from roundscope.tools.identify.orders import Unprobed, leaves, part_of, tree_of
from roundscope.tools.identify.probes import products, softmax
from roundscope.tools.identify.probes.calls import NARROW, WIDE, Calls, plain
from roundscope.tools.identify.probes.kernel import Probed, probed, sums_of, tilings

HOPPER = Accumulator.tensor_core("hopper", "bf16")
COUNTS = (1, 2, 7, 16, 33, 64)


def first(tree):
    return min(leaves(tree))


def added(*terms):
    """The tree of one addition; None stands for a padding of 0."""
    terms = sorted((t for t in terms if t is not None), key=first)
    return tuple(terms) if len(terms) > 1 else terms[0] if terms else None


def one_by_one(terms):
    return reduce(added, terms)


def in_pairs(terms):
    while len(terms) > 1:
        pairs = [added(*terms[k : k + 2]) for k in range(0, len(terms), 2)]
        terms = pairs
    return terms[0]


def by_halves(terms):
    while (half := len(terms) // 2) > 0:
        terms = [added(terms[k], terms[half + k]) for k in range(half)] + terms[2 * half :]
    return terms[0]


def at_once(terms, chunk, start=None):
    """A tensor core: the running sum and a chunk are one addition."""
    for lo in range(0, len(terms), chunk):
        start = added(start, *terms[lo : lo + chunk])
    return start


def padded(terms, unit):
    return [*terms, *[None] * (-len(terms) % unit)]


def in_octets(terms, chunk):
    lanes = min(chunk, -(-len(terms) // 8))
    terms = padded(terms, 8 * lanes)
    octets = [terms[k : k + 8] for k in range(0, len(terms), 8)]
    own = [[k for octet in octets[lane::lanes] for k in octet] for lane in range(lanes)]
    return by_halves([one_by_one(terms) for terms in own])


def in_warps(terms, chunk):
    terms = padded(terms, 32 * chunk)
    threads = [in_pairs(terms[k : k + chunk]) for k in range(0, len(terms), chunk)]
    return by_halves([by_halves(threads[k : k + 32]) for k in range(0, len(threads), 32)])


PLANTED = {
    "ascending": (Accumulator(), one_by_one),
    "pairwise": (Accumulator(order=Order.PAIRWISE), in_pairs),
    "halves": (Accumulator(order=Order.HALVES), by_halves),
    "strided": (
        Accumulator(order=Order.STRIDED, chunk=8),
        lambda x: by_halves([one_by_one(x[n::8]) for n in range(min(8, len(x)))]),
    ),
    "octets": (Accumulator(order=Order.OCTETS, chunk=2), partial(in_octets, chunk=2)),
    "warps": (Accumulator(order=Order.WARPS, chunk=2), partial(in_warps, chunk=2)),
    "chunked": (
        Accumulator(order=Order.CHUNKED, chunk=10),
        lambda x: one_by_one([one_by_one(x[k : k + 10]) for k in range(0, len(x), 10)]),
    ),
    "hopper": (HOPPER, partial(at_once, chunk=16)),
    "four at once": (replace(HOPPER, chunk=4), partial(at_once, chunk=4)),
    "32 at once": (replace(HOPPER, chunk=32), partial(at_once, chunk=32)),
    "bf16 steps": (Accumulator(step=emu.BF16), one_by_one),
    "fp64 steps": (Accumulator(step=emu.rounding("fp64"), order=Order.PAIRWISE), in_pairs),
}


def sums(rows, accumulator):
    return np.asarray(emu.sum(np.asarray(rows, np.float64), accumulator))


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("n", COUNTS)
def test_the_order_of_an_accumulator_is_found(name, n):
    """Few calls suffice, and the tree is the planted one."""
    accumulator, plant = PLANTED[name]
    calls = []

    def probe(rows):
        calls.append(len(rows))
        return sums(rows, accumulator)

    assert tree_of(probe, n) == plant(list(range(n)))
    assert len(calls) <= 2 * np.log2(n) + 2 and sum(calls) <= n * n / 2 + n + 1


def test_the_orders_are_told_apart():
    """No two of the planted orders have one tree in 64 terms, but those of one order."""
    trees = {plant(list(range(64))) for _, plant in PLANTED.values()}
    assert len(trees) == len(PLANTED) - 2  # bf16 steps and fp64 steps repeat an order


@pytest.mark.parametrize("n", COUNTS)
def test_an_exact_sum_has_no_order(n):
    """All ones survive; with two terms or fewer there is one order."""
    tree = tree_of(partial(sums, accumulator=Accumulator(order=Order.EXACT)), n)
    assert tree is None if n > 2 else tree == (0, (0, 1))[n - 1]


def test_the_order_of_the_device_has_every_term_once():
    """NATIVE has an order that is the device's, and not ours to know."""
    native = Accumulator(order=Order.NATIVE)
    tree = tree_of(partial(sums, accumulator=native), 33)
    assert sorted(leaves(tree)) == list(range(33))


def drawn(draw, terms, most):
    """A random tree whose nodes have two to `most` children."""
    if len(terms) == 1:
        return terms[0]
    cuts = draw.permutation(np.arange(1, len(terms)))[: draw.integers(1, most)]
    return added(*(drawn(draw, list(p), most) for p in np.split(terms, np.sort(cuts)) if len(p)))


def summed(rows, tree):
    """Rows added up by a tree, where M swallows all that is added at once with it."""
    if not isinstance(tree, tuple):
        return rows[:, tree]
    parts = np.stack([summed(rows, child) for child in tree])
    is_large = np.abs(parts) > 2.0**50
    return np.where(is_large.any(0), np.where(is_large, parts, 0.0), parts).sum(0)


@pytest.mark.parametrize("seed", range(40))
def test_random_trees_are_found(seed):
    draw = np.random.default_rng(seed)
    n, most = int(draw.integers(2, 90)), int(draw.integers(2, 20))
    tree = drawn(draw, [int(k) for k in draw.permutation(n)], most)
    found = tree_of(lambda rows: summed(np.asarray(rows, np.float64), tree), n, most=11)
    assert found == tree


@pytest.mark.thorough
def test_deep_chains_are_found_and_named():
    """A chain of 512 terms nests as deep; in random order it has no name."""
    order = [int(k) for k in np.random.default_rng(0).permutation(512)]
    tree = tree_of(lambda rows: sums(rows[:, order], Accumulator()), 512)
    assert tree == one_by_one(order)
    assert "no order that has a name" in named_order(tree).words
    last_first = named_order(one_by_one(list(range(511, -1, -1))))
    assert last_first.words == "one after the other, from the last to the first"


def test_chains_from_either_end_need_few_probes():
    """A chain of n terms takes about 2 n pairs from the first or the last term on."""
    for order in (slice(None), slice(None, None, -1)):
        count = []

        def probe(rows, order=order, count=count):
            count.append(len(rows))
            return sums(rows[:, order], Accumulator())

        tree = tree_of(probe, 200)
        assert tree == one_by_one(list(range(200))[order]) and sum(count) < 700


def test_large_sums_are_counted_in_parts():
    """A result of 8 bits counts no more than 255 ones at once."""

    def probe(rows):
        return np.asarray(emu.round_to(sums(rows, Accumulator()), "bf16"))

    assert tree_of(probe, 600) == one_by_one(list(range(600)))


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (lambda rows: np.full(len(rows), np.nan), "infinite or NaN"),
        (lambda rows: 0.37 * rows.sum(1), "whole number"),
        (lambda rows: 2.0 * rows.sum(1), "ones add up to"),
    ],
)
def test_what_is_no_sum_is_refused(probe, why):
    with pytest.raises(Unprobed, match=why):
        tree_of(probe, 12)


def test_an_order_that_changes_is_refused():
    """A tree that is told for additions whose order changes from call to call, as of atomics."""
    draw = np.random.default_rng(0)

    def probe(rows):
        return np.array([sums(row[draw.permutation(len(row))], Accumulator()) for row in rows])

    with pytest.raises(Unprobed, match="no tree"):
        tree_of(probe, 40)


def test_parts_of_trees():
    tree = one_by_one([3, 2, 0, 1])
    assert part_of(tree, [0, 1, 2]) == one_by_one([2, 0, 1])
    assert part_of(tree, [3, 1, 0]) == one_by_one([0, 2, 1])


@pytest.mark.parametrize("name", ["ascending", "pairwise", "halves", "strided", "warps", "hopper"])
def test_a_tree_gets_its_accumulator_back(name):
    accumulator, plant = PLANTED[name]
    assert named_order(plant(list(range(128)))).accumulator == accumulator


@pytest.mark.parametrize("size", [64, 96])
def test_chunks_and_pairs_that_a_cpu_adds(size):
    """vdpbf16ps adds the second of two products first; libraries add chunks of keys apart."""
    swapped = [k ^ 1 for k in range(192)]
    found = named_order(one_by_one(swapped))
    assert found.words.startswith("one after the other, the second of each pair first")
    chunks = [swapped[lo : lo + size] for lo in range(0, 192, size)]
    found = named_order(one_by_one([one_by_one(chunk) for chunk in chunks]))
    assert "the second of each pair first" in found.words and str(size) in found.words
    plain_chunks = one_by_one([one_by_one(chunk) for chunk in tiles_of(192, 48)])
    assert "as one sum this is chunked48" in named_order(plain_chunks, "keys").words


# kernels


def zeros(tokens, keys, heads=4, features=64):
    q, k = (np.zeros((1, n, heads, features), np.float32) for n in (tokens, keys))
    return Inputs(q=q, k=k, v=k, do=q, scale=features**-0.5, is_causal=False)


def emulated(plan, block_k, block_q=128, *, backward=False):
    """A kernel with the arithmetic of a plan."""
    plan = Plan.preset(plan) if isinstance(plan, str) else plan

    def kernel(x):
        do = x.do if backward else None
        tiles = {"block_q": block_q, "block_k": block_k}
        got = examine(
            x.q, x.k, x.v, do, plan=plan, engine="numpy", record=None, **tiles, **x.options
        )
        gradients = {n: np.asarray(getattr(got, n)) for n in ("dq", "dk", "dv")} if backward else {}
        return Outputs(out=np.asarray(got.out), **gradients)

    return kernel


def calls(kernel, x):
    return Calls(kernel, plain(x), lambda text: None)


def tiles_of(count, size):
    return [list(range(lo, min(lo + size, count))) for lo in range(0, count, size)]


def running(parts, chunk=16):
    """Tiles that tensor cores add into one running sum."""
    total = None
    for part in parts:
        total = at_once(part, chunk, total)
    return total


def test_p_v_of_fa2_goes_down():
    run = calls(emulated("fa2", 64), zeros(8, 256))
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == running(tiles_of(256, 64)[::-1])
    found = named_order(tree, "keys")
    assert (found.block, found.order, found.tiles) == (64, KeyOrder.DESCENDING, (3, 2, 1, 0))
    assert found.accumulator == HOPPER and not found.apart
    seen = softmax.tiles(run, WIDE)
    assert (seen.block, seen.order) == (64, KeyOrder.DESCENDING)


def test_tiles_of_96_keys_whose_last_is_short():
    run = calls(emulated("fa2", 96), zeros(8, 256))
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == running(tiles_of(256, 96)[::-1])
    for found in (named_order(tree, "keys"), softmax.tiles(run, WIDE)):
        assert (found.block, found.order) == (96, KeyOrder.DESCENDING)


def test_p_v_of_cudnn_hides_its_tiles_and_the_softmax_shows_them():
    run = calls(emulated("cudnn", 64), zeros(8, 256))
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == running(tiles_of(256, 64)) == at_once(list(range(256)), 16)
    assert named_order(tree).block is None
    seen = softmax.tiles(run, WIDE)
    assert (seen.block, seen.order) == (64, KeyOrder.ASCENDING)


def test_split_keys_are_combined_at_the_end():
    run = calls(emulated("fa2-split", 64), zeros(8, 256))
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == one_by_one([at_once(part, 16) for part in tiles_of(256, 64)])
    found = named_order(tree, "keys")
    assert (found.block, found.order, found.apart) == (64, KeyOrder.ASCENDING, True)
    seen = softmax.tiles(run, WIDE)
    assert seen.block == 64 and seen.order is None and "split_tiles=1" in seen.words


def test_two_tiles_to_a_split():
    plan = Plan.preset("fa2-split").changed("split_tiles=2")
    seen = softmax.tiles(calls(emulated(plan, 32), zeros(8, 256)), WIDE)
    assert (seen.block, seen.order) == (32, KeyOrder.DESCENDING) and "split_tiles=2" in seen.words


def test_whole_rows_are_one_chain():
    run = calls(emulated("sdpa-math", 256), zeros(8, 256))
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == one_by_one(list(range(256)))
    assert softmax.tiles(run, WIDE).words.startswith("whole rows")


def test_another_sum_over_keys_is_another_tree():
    """Keys added in chunks of 64, as cuBLAS does in calls of one head, told as one chain."""
    plan = Plan.preset("sdpa-math").changed("PV.sum=chunked64")
    run = calls(emulated(plan, 256), zeros(8, 256))
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == one_by_one([one_by_one(part) for part in tiles_of(256, 64)])
    assert named_order(tree).accumulator == Accumulator(order=Order.CHUNKED, chunk=64)


def test_random_numbers_confirm_a_tree():
    """The planted order gives every bit, another order does not, nor do steps in BF16."""
    x = zeros(8, 256)
    run = calls(emulated("sdpa-math", 256), x)
    chain = one_by_one(list(range(256)))
    assert products.confirmed(products.pv, run, WIDE, chain) == (256, 256)
    equal, of = products.confirmed(products.pv, run, WIDE, in_pairs(list(range(256))))
    assert equal < of / 2
    assert products.confirmed(products.pv, run, WIDE, at_once(list(range(256)), 16)) is None
    run = calls(emulated(Plan.preset("sdpa-math").changed("PV.sum=ascending:bf16"), 256), x)
    assert products.tree_of_product(products.pv, run, WIDE) == chain
    equal, of = products.confirmed(products.pv, run, WIDE, chain)
    assert equal < of / 2


@pytest.mark.parametrize(
    ("name", "features", "plant"),
    [
        ("fa2", 64, partial(at_once, chunk=16)),
        ("sdpa-efficient", 64, partial(at_once, chunk=8)),
        ("sdpa-math", 64, one_by_one),
        ("eager", 96, partial(at_once, chunk=16)),
    ],
)
def test_scores_over_features(name, features, plant):
    run = calls(emulated(name, 64), zeros(64, 64, features=features))
    tree = products.tree_of_product(products.scores, run, WIDE)
    assert tree == plant(list(range(features)))


def test_a_kernel_in_fp16():
    """M = 2^90 is infinite there; smaller numbers are tried."""
    run = calls(emulated("fa2-fp16", 64), zeros(16, 128, features=32))
    with pytest.raises(Unprobed, match="infinite or NaN"):
        products.tree_of_product(products.pv, run, WIDE)
    tree = products.tree_of_product(products.pv, run, NARROW)
    assert tree == running(tiles_of(128, 64)[::-1])
    assert softmax.tiles(run, NARROW).order is KeyOrder.DESCENDING
    assert products.tree_of_product(products.scores, run, NARROW) == at_once(list(range(32)), 16)


def test_gradients_of_fa2():
    """dV and dK go down over query tiles; dQ is added up by tiles, as by atomics."""
    x = zeros(64, 128, features=32)
    run = calls(emulated("fa2", 32, 32, backward=True), x)
    over_queries = running(tiles_of(64, 32)[::-1])
    assert products.tree_of_product(products.dv, run, WIDE) == over_queries
    assert products.tree_of_product(products.dk, run, WIDE) == over_queries
    tree = products.tree_of_product(products.dq, run, WIDE)
    assert tree == one_by_one([at_once(part, 16) for part in tiles_of(128, 32)])


def test_gradients_of_whole_rows():
    """The scale, 1 / 8, is no power of 4, and this kernel multiplies q and k by its root."""
    x = zeros(64, 128, heads=2, features=64)
    run = calls(emulated("sdpa-math", 128, backward=True), x)
    for product, count in ((products.dv, 64), (products.dk, 64), (products.dq, 128)):
        chain = one_by_one(list(range(count)))
        assert products.tree_of_product(product, run, WIDE) == chain
        assert products.confirmed(product, run, WIDE, chain) == (128, 128)


@pytest.mark.thorough
def test_query_heads_that_share_a_key_head():
    """With two batch entries, two query heads to a key head, and wider values."""
    q, k, v = (
        np.zeros((2, n, heads, width), np.float32)
        for n, heads, width in ((64, 4, 16), (128, 2, 16), (128, 2, 32))
    )
    do = np.zeros((2, 64, 4, 32), np.float32)
    x = Inputs(q=q, k=k, v=v, do=do, scale=0.25, is_causal=False)
    run = calls(emulated("fa2", 32, 32, backward=True), x)
    over_keys, over_queries = (running(tiles_of(n, 32)[::-1]) for n in (128, 64))
    assert products.tree_of_product(products.pv, run, WIDE) == over_keys
    assert products.tree_of_product(products.scores, run, WIDE) == at_once(list(range(16)), 16)
    for product in (products.dv, products.dk):
        assert products.tree_of_product(product, run, WIDE) == over_queries
    tree = products.tree_of_product(products.dq, run, WIDE)
    assert tree == one_by_one([at_once(part, 16) for part in tiles_of(128, 32)])
    assert softmax.tiles(run, WIDE).order is KeyOrder.DESCENDING


def wide(q, k, v, *, scale, is_causal):
    """Attention in float64, keys from the last to the first."""
    s = scale * np.einsum("btnh,bsnh->btns", q.astype(float), k)
    p = np.exp(s - s.max(-1, keepdims=True))
    o = np.zeros((*s.shape[:3], v.shape[-1]))
    for key in range(k.shape[1] - 1, -1, -1):
        o = o + p[..., key, None] * v[:, None, key]
    return o / p.sum(-1, keepdims=True)


def test_a_kernel_in_binary64():
    """Its order is found, and that it does not round to binary32; its exp does not underflow."""
    found = probed(kernel_of(wide, library="numpy"), zeros(64, 64, features=32), gradients=False)
    lines = {p.name: p.words for p in found}
    assert "one after the other, from the last to the first" in lines["P V"]
    assert lines["P V"].endswith("some numbers are rounded otherwise")
    assert "not found: exp of -110 is not 0 there" in lines["the softmax"]
    assert "not found: it has more bits than binary32" in lines["the row sum"]


def test_calls_too_small_for_a_probe_lose_it():
    """One query, one key."""
    found = probed(emulated("fa2", 16, backward=True), zeros(1, 1, features=16))
    assert found[1].name == "P V" and found[1].tree == 0
    assert "it needs" in found[0].words and all(p.order is not None or p.why for p in found)


def lanes(count, number, width=2):
    own = [[k for k in range(31) if k // width % number == n] for n in range(number)]
    return [one_by_one(part) for part in own][:count]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("fa2", lambda: (lambda a, b, c, d: added(added(a, c), added(b, d)))(*lanes(4, 4))),
        ("cudnn", lambda: (lambda a, b, c, d: added(added(a, b), added(c, d)))(*lanes(4, 4))),
        ("fp32", lambda: one_by_one(list(range(31)))),
        ("sdpa-math", lambda: part_of(by_halves(list(range(32))), range(31))),
    ],
)
def test_row_sums_of_kernels_whose_output_has_all_bits(name, plant):
    """One key more would be the 32nd lane of the warp that adds a row in SDPA's math back end."""
    plan = Plan.preset(name).changed("OUT=fp32")
    run = calls(emulated(plan, 64), zeros(256, 64, heads=8))
    tree, found = softmax.row_sum(run, WIDE)
    assert tree == plant() and "first 31 keys" in found.words
    if name in ("fa2", "cudnn"):
        assert ("row_sum=lanes" if name == "fa2" else "row_sum=tile-lanes") in found.words


def test_row_sums_need_all_bits():
    with pytest.raises(Unprobed, match="out has too few bits"):
        softmax.row_sum(calls(emulated("fa2", 64), zeros(64, 64)), WIDE)


SIZE, MIXED = 96, (3, 2, 0, 1)


def mixed(q, k, v, *, scale, is_causal):
    """Tiles of 96 keys in mixed order, whose keys go down in two lanes, in float32."""
    if q.shape[1] % 16:
        raise ValueError("queries come in sixteens")
    s = np.float32(scale) * np.einsum("btnh,bsnh->btns", q, k)
    m = np.full(s.shape[:3], -np.inf, np.float32)
    l, o = np.zeros_like(m), np.zeros((*m.shape, v.shape[-1]), np.float32)
    for tile in MIXED:
        keys = range(k.shape[1])[tile * SIZE : (tile + 1) * SIZE]
        if not keys:
            continue
        new = np.maximum(m, s[..., keys].max(-1))
        alpha, p = np.exp(m - new), np.exp(s[..., keys] - new[..., None])
        l, parts, m = alpha * l + p.sum(-1), [np.zeros_like(o), np.zeros_like(o)], new
        for n in range(len(keys) - 1, -1, -1):
            parts[n % 2] = parts[n % 2] + p[..., n, None] * v[:, None, keys[n]]
        o = alpha[..., None] * o + (parts[0] + parts[1])
    return o / l[..., None]


def of_tile(keys):
    return added(*(one_by_one(keys[::-1][n::2]) for n in range(2)))


def test_a_kernel_of_numpy_with_tiles_in_mixed_order():
    x = zeros(16, 300, heads=2)  # 256 keys in a probe
    tiles = tiles_of(256, SIZE)
    run = calls(kernel_of(mixed, library="numpy"), x)
    tree = products.tree_of_product(products.pv, run, WIDE)
    assert tree == one_by_one([of_tile(tiles[n]) for n in (2, 0, 1)])
    found = named_order(tree, "keys")
    assert (found.block, found.order, found.apart) == (SIZE, None, True)
    assert sorted(found.tiles[:2]) == [0, 2] and found.tiles[2] == 1  # of the first two either
    seen = softmax.tiles(run, WIDE)
    assert (seen.block, seen.order) == (SIZE, None) and "neither" in seen.words
    assert "in the order 0 and 2, 1, each summed apart" in found.words
    assert products.confirmed(products.pv, run, WIDE, tree) == (128, 128)


def test_a_kernel_that_fails_loses_its_probes_alone():
    """It refuses a negative v, and returns no gradients."""

    def kernel(x):
        if x.v.min() < 0.0:
            raise ValueError("v is negative")
        return emulated("fa2", 32)(x)

    found = {p.name: p for p in probed(kernel, zeros(16, 64, features=32))}
    assert found["P V"].order is None and "the kernel fails: v is negative" in found["P V"].words
    assert found["Q K^T"].tree == at_once(list(range(32)), 16)
    assert "no gradients" in found["dV"].words and "v is negative" in found["dQ"].words
    assert tilings(list(found.values())) == [(32, KeyOrder.DESCENDING)]  # of the softmax


def test_a_kernel_that_always_fails_is_one_line():
    def kernel(x):
        raise ValueError("no such shape")

    [found] = probed(kernel, zeros(16, 64))
    assert (
        found.words == "probe of every sum over 64 keys: not found: the kernel fails: no such shape"
    )


@pytest.mark.thorough
def test_the_search_begins_with_the_tiles_that_were_seen():
    """It then tries few other plans; cuDNN's own tiles are of 128 keys."""
    draw = np.random.default_rng(3).standard_normal((4, 1, 256, 1, 32), np.float32)
    q, k, v, do = (np.asarray(emu.round_to(a, "bf16")) for a in draw)
    x = Inputs(q=q, k=k, v=v, do=do, scale=0.25, is_causal=False)
    kernel = emulated("cudnn", 80)
    probes = [
        Probed(name="the softmax", terms="256 keys", order=softmax.tiles(calls(kernel, x), WIDE))
    ]
    assert tilings(probes) == [(80, KeyOrder.ASCENDING)]
    out = kernel(x).out
    plain_search = search.forward(x, out, lambda text: None)
    found = search.forward(x, out, lambda text: None, seen=tilings(probes))
    assert found.near.equal == plain_search.near.equal == 1.0
    assert found.best.plan.name == plain_search.best.plan.name
    assert (found.best.block_k, found.best.plan.key_order) == (80, KeyOrder.ASCENDING)
    assert 4 * found.tried < plain_search.tried


def test_the_search_takes_sums_that_it_would_not_try():
    """Chunks of 48 keys are none of those that the search knows."""
    draw = np.random.default_rng(5).standard_normal((4, 1, 256, 1, 32), np.float32)
    q, k, v, do = (np.asarray(emu.round_to(a, "bf16")) for a in draw)
    x = Inputs(q=q, k=k, v=v, do=do, scale=0.25, is_causal=False)
    plan = Plan.preset("sdpa-math").changed("PV.sum=chunked48 OUT=fp32")
    kernel = emulated(plan, 256)
    found = probed(kernel, x, gradients=False)
    sums = sums_of(found)
    assert tilings(found) == [] and sums == {
        Site.PV: Accumulator(order=Order.CHUNKED, chunk=48),
        Site.S: Accumulator(),
    }
    out = kernel(x).out
    best = search.forward(x, out, lambda text: None, 200, tilings(found), sums)
    assert best.near.equal == 1.0 and best.best.plan.accumulator("PV") == sums[Site.PV]
    assert search.forward(x, out, lambda text: None, 200).near.equal < 1.0
