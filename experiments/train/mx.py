"""Linear layers whose operands and results are rounded to block-scaled formats.

The student and the GPT share them. `Site`: the rounding events, in the order in which a step
reaches them. `Formats`: the format to which every event of every layer and matrix rounds, as words
and as the table of numbers that XLA reads. `linear` and `passed`: what a layer computes with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.grammar.changes import Change
from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.xla import SEED, is_even, round_even, round_row, row_of
from roundscope.emu.errors import unknown
from roundscope.emu.roundings.modes import BF16, BINARY32, Rounding, RoundingMode
from roundscope.emu.roundings.random import threefry2x32

Kept = BlockFormat | Rounding
Rows = Array  # (events, FIELDS) int32: the formats of one matrix of a layer
MX, ALL = "mx", "all"
M = TypeVar("M", bound=StrEnum)


class Site(StrEnum):
    """One rounding event.

    formula     what is rounded;  axis: the axis along which its blocks run
    stage       forward or backward;  per_matrix: whether it exists once for each matrix

    A product x W has three forms in a step, each with two operands: y = x W, dx = g W^T, dW = x^T
    g, where g = dy. A block runs along the axis that the product sums over.
    """

    formula: str
    axis: int
    stage: str
    per_matrix: bool

    def __new__(cls, value: str, formula: str, axis: int, stage: str, per_matrix: bool) -> "Site":
        self = str.__new__(cls, value)
        self._value_ = value
        self.formula, self.axis, self.stage, self.per_matrix = formula, axis, stage, per_matrix
        return self

    GAMMA = "GAMMA", "gamma, the scale of LayerNorm", -1, "forward", False
    LN = "LN", "gamma xhat + beta", -1, "forward", False
    X = "X", "x as the operand of x W", -1, "forward", True
    W = "W", "W as the operand of x W", 0, "forward", True
    Y = "Y", "sum x W", -1, "forward", True
    PHI = "PHI", "phi(h)", -1, "forward", False

    G_X = "G_X", "g as the operand of g W^T", -1, "backward", True
    W_X = "W_X", "W as the operand of g W^T", 1, "backward", True
    DX = "DX", "sum g W^T", -1, "backward", True
    G_W = "G_W", "g as the operand of x^T g", 0, "backward", True
    X_W = "X_W", "x as the operand of x^T g", 0, "backward", True
    DW = "DW", "sum x^T g", 0, "backward", True
    DPHI = "DPHI", "dphi(h), what leaves the activation function backward", -1, "backward", False
    DLN = "DLN", "what leaves LayerNorm backward", -1, "backward", False


FORWARD = (Site.X, Site.W)
BACKWARD = (Site.G_X, Site.W_X, Site.G_W, Site.X_W)
GROUPS: dict[str, tuple[Site, ...]] = {
    "all": tuple(Site),
    "operands": (*FORWARD, *BACKWARD),
    "forward": FORWARD,
    "backward": BACKWARD,
    "weights": (Site.W, Site.W_X),
    "activations": (Site.X, Site.X_W),
    "gradients": (Site.G_X, Site.G_W),
    "outputs": (Site.Y, Site.DX, Site.DW),
    "norm": (Site.GAMMA, Site.LN, Site.DLN),
    "phi": (Site.PHI, Site.DPHI),
}
"""Words for several events; forward and backward: the operands of these products."""

INDEX = {site: i for i, site in enumerate(Site)}
Written = tuple[tuple[tuple[Site, ...] | None, Kept], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """formats[layer][matrix][event], with events in the order of `INDEX`."""

    formats: tuple[tuple[tuple[Kept, ...], ...], ...]

    def _places(self) -> Iterator[tuple[Site, Kept]]:
        return (
            place for row in self.formats for own in row for place in zip(Site, own, strict=True)
        )

    @property
    def drawn(self) -> frozenset[Site]:
        """The events with a stochastic rounding somewhere."""
        elements = (
            (site, f.element if isinstance(f, BlockFormat) else f) for site, f in self._places()
        )
        return frozenset(site for site, f in elements if f.mode is RoundingMode.STOCHASTIC)

    @property
    def rounded(self) -> frozenset[Site]:
        """The events that are not FP32 everywhere."""
        return frozenset(site for site, f in self._places() if f != BINARY32)

    @property
    def even(self) -> bool:
        """Return whether `round_even` is sufficient."""
        return all(is_even(f) for _, f in self._places())

    def table(self, seed: int = 0) -> np.ndarray:
        """Return the table of `round_row`, (layers, matrices, events, FIELDS) int32."""
        rows = [[[row_of(f) for f in own] for own in row] for row in self.formats]
        table = np.array(rows, np.int32)
        table[..., SEED] = np.uint32(seed).view(np.int32)
        return table


def reseeded(table: Array, step: Array) -> Array:
    """Return the table of one step: every event draws from (its seed, step, place)."""
    seeds = lax.bitcast_convert_type(table[..., SEED], jnp.uint32)
    place = jnp.arange(seeds.size, dtype=jnp.uint32).reshape(seeds.shape)
    step = jnp.broadcast_to(step.astype(jnp.uint32), seeds.shape)
    word = threefry2x32(seeds, step, place, jnp.zeros_like(place))[0]
    return table.at[..., SEED].set(lax.bitcast_convert_type(word, jnp.int32))


def put(
    formats: np.ndarray, layers: Sequence[int], matrices: Sequence[int], sites: Any, f: Kept
) -> None:
    """Write a format into some places of an array of objects (layers, matrices, events)."""
    for index in product(layers, matrices, (INDEX[site] for site in sites)):
        formats[index] = f


def as_formats(formats: np.ndarray) -> tuple[tuple[tuple[Kept, ...], ...], ...]:
    """Return an array of objects (layers, matrices, events) as `Formats` keeps it."""
    return tuple(tuple(map(tuple, row)) for row in formats)


def kept(text: str, block: int) -> Kept:
    """Return FORMAT[:RULE][:MODE] with blocks of `block` numbers. Raises ValueError."""
    found = event_of(text)
    if isinstance(found, BlockFormat):
        found = replace(found, size=block)
    row_of(found)
    return found


def written(change: Change, block: int) -> Written:
    """Return (events, None for mx=, and format) of what a change writes. Raises ValueError."""
    place = change.where.get("site")
    return tuple((_events(name, place), kept(value, block)) for name, value in change.what)


def _events(name: str, place: str | None) -> tuple[Site, ...] | None:
    if name and name not in (MX, *Site, *GROUPS):
        named = f"{unknown('site', name, (*Site, *GROUPS, MX))}; put ; between two changes"
        takes = f"those take SITE=FORMAT[:RULE][:MODE] or {MX}=FORMAT"
        raise ValueError(f"{name}= is not of linear layers; {takes}; {named}")
    if name and place is not None:
        if name == MX:
            raise ValueError(f"{MX}= is of all events; leave site= out, or write the format alone")
        raise ValueError(f"{name}= says its events itself; leave site= out")
    if name == MX:
        return None
    found: list[Site] = []
    for part in (name or place or "all").split(","):
        if part not in (*Site, *GROUPS):
            raise ValueError(unknown("site", part, (*Site, *GROUPS)))
        found += GROUPS[part] if part in GROUPS else [Site[part]]
    return tuple(found)


def put_written(
    formats: np.ndarray, layers: Sequence[int], matrices: Sequence[int], what: Written
) -> None:
    """Write the formats of a change into some places of an array of objects, as `put` does.

    mx= gives the six operands the format and all other events BF16, as the emulator of arXiv
    2506.20752 does.
    """
    for sites, f in what:
        if sites is None:
            put(formats, layers, matrices, tuple(Site), BF16)
        put(formats, layers, matrices, GROUPS["operands"] if sites is None else sites, f)


def matrices_of(text: str, kind: type[M]) -> tuple[M, ...]:
    """Return the matrices of a text: up,down or all. ValueError with the nearest name."""
    found: list[M] = []
    for name in text.split(","):
        if name not in (*kind, ALL):
            raise ValueError(unknown("matrix", name, (*kind, ALL)))
        found += list(kind) if name == ALL else [kind(name)]
    return tuple(found)


class How(NamedTuple):
    """What is not data of the roundings.

    size     the numbers of a block
    rounded  the events that round in some arm;  drawn: those that may draw random bits
    even     whether all others are `is_even`
    """

    size: int
    rounded: frozenset[Site]
    drawn: frozenset[Site] = frozenset()
    even: bool = False


def how_of(size: int, found: Sequence[Formats]) -> How:
    """Return what an executable for all of these formats needs; size: numbers of a block."""
    rounded, drawn = (
        frozenset[Site]().union(*(getattr(f, name) for f in found)) for name in ("rounded", "drawn")
    )
    return How(size, rounded, drawn, all(f.even for f in found))


def rounded(how: How, x: Array, rows: Rows, site: Site) -> Array:
    """Return x as an event rounds it."""
    if site not in how.rounded:
        return x
    if how.even:
        return round_even(x, rows[INDEX[site]], how.size, site.axis)
    return round_row(x, rows[INDEX[site]], how.size, site.axis, drawn=site in how.drawn)


def _times(a: Array, b: Array) -> Array:
    # without it a GPU drops bits of the operands (TF32)
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear(how: How, x: Array, w: Array, rows: Rows) -> Array:
    """Return Y(X(x) W(w)) with sums in FP32: x (batch, in), w (in, out) -> (batch, out).

    The backward, of g, is DX(G_X(g) W_X(w)^T) and DW(X_W(x)^T G_W(g)). Every rounding starts from
    x, w and g as they are, so an operand along one axis and the same along the other are two
    roundings of one number.
    """
    y = _times(rounded(how, x, rows, Site.X), rounded(how, w, rows, Site.W))
    return rounded(how, y, rows, Site.Y)


def _backward(how: How, kept: Any, g: Array) -> tuple[Array, Array, None]:
    x, w, rows = kept
    dx = _times(rounded(how, g, rows, Site.G_X), rounded(how, w, rows, Site.W_X).T)
    dw = _times(rounded(how, x, rows, Site.X_W).T, rounded(how, g, rows, Site.G_W))
    return rounded(how, dx, rows, Site.DX), rounded(how, dw, rows, Site.DW), None


linear.defvjp(lambda how, x, w, rows: (linear(how, x, w, rows), (x, w, rows)), _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def passed(how: How, forward: Site | None, backward: Site | None, x: Array, rows: Rows) -> Array:
    """Return x as the event `forward` rounds it, its gradient as `backward` does; None: as is."""
    return x if forward is None else rounded(how, x, rows, forward)


passed.defvjp(
    lambda how, forward, backward, x, rows: (passed(how, forward, backward, x, rows), rows),
    lambda how, forward, backward, rows, g: (
        g if backward is None else rounded(how, g, rows, backward),
        None,
    ),
)
