"""How an injection changes an event of a tile: the entries that it selects, and their error."""

from types import ModuleType

from roundscope.attention.events.streams import NOISE, random_bits
from roundscope.attention.injection import (
    AddUlps,
    Bias,
    Exact,
    FlipBit,
    Injection,
    Noise,
    SetTo,
    Where,
)
from roundscope.attention.sites import Axes
from roundscope.attention.tiles.records import Index
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.formats.codes import decode, encode
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import spacing


def perturbed(
    ops: Ops,
    tile: Tile,
    injection: Injection,
    exact: Array,
    after: Array,
    f: Format,
    unit: Array | None,
) -> Array:
    """Return an event's result with the injection's error at the entries that it selects.

    exact   the values that an Exact() injection uses: those before the rounding, or sums in
            binary64
    after   the result, a number of the format f
    unit    the scale of each entry's block, or None where the site has no block format
    """
    hit = _hit(ops, tile, injection, exact, after, f, unit)
    return ops.xp.where(_selected(ops.xp, tile, injection, after.shape), hit, after)


def _hit(
    ops: Ops,
    tile: Tile,
    injection: Injection,
    exact: Array,
    after: Array,
    f: Format,
    unit: Array | None,
) -> Array:
    """Return the result with the error at every entry."""
    what = injection.what
    match what:
        case AddUlps():
            return after + what.ulps * _ulp(ops, after, f, unit)
        case Noise():
            sign = (
                random_bits(ops.xp, tile, injection.site, what.seed, after.shape, NOISE) & 1
            ) * 2 - 1
            return after + sign.astype("float64") * what.ulps * _ulp(ops, after, f, unit)
        case Bias():
            return after + what.value
        case SetTo():
            return ops.xp.full_like(after, what.value)
        case FlipBit():
            element = after if unit is None else ops.divide(after, unit)
            flipped = decode(ops, encode(ops, element, f) ^ (1 << what.bit), f)
            return flipped if unit is None else ops.multiply(flipped, unit)
        case Exact():
            return exact


def _ulp(ops: Ops, x: Array, f: Format, unit: Array | None) -> Array:
    """Return the ulp at x; in a block it is the ulp of the element times the block's scale."""
    return (
        spacing(ops, x, f)
        if unit is None
        else ops.multiply(spacing(ops, ops.divide(x, unit), f), unit)
    )


def _selected(xp: ModuleType, tile: Tile, injection: Injection, shape: tuple[int, ...]) -> Array:
    """Return which entries of the tile's event, an array of bool, the injection selects."""
    rows, second, repeated = tile.coordinates(xp, injection.site, shape)
    is_score = injection.site.axes is Axes.TS
    chosen = [
        (injection.batch, tile.head // tile.heads),
        (injection.heads, tile.head % tile.heads),
        (injection.rows, rows),
        (injection.columns if is_score else injection.features, second),
        (injection.tiles, repeated),
    ]
    selected = xp.ones(shape, dtype=bool)
    for where, index in chosen:
        if where is not None:
            selected = selected & _among(index, where)
    return selected


def _among(index: Index, where: Where) -> Array:
    """Return whether each index is selected: an array of bool, or a bool if `index` is an int."""
    if isinstance(where, range):
        return (
            (index >= where.start)
            & (index < where.stop)
            & ((index - where.start) % where.step == 0)
        )
    found = index == -1
    for i in where:  # type: ignore[union-attr]  # an Injection has made a tuple of every int
        found = found | (index == i)
    return found
