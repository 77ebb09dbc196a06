"""Step 4 of a proxy's run: the blocks of its operands, and what their format does to them.

Every operand of every product of a layer is computed once more at one state, as the event gets it:
x of the layer's maps, W, and g, the gradient of what the map returns. For an event in blocks
`emu.block_stats` then says what was clipped, what vanished, how much shorter magnitudes became,
what RCEIL would have saved, and how many different elements a block still has. They are compared
with blocks of independent normal numbers in the same format: what the format does to blocks without
any structure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.emu.blocks.api import to_blocks
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.stats import BlockStats, block_stats
from roundscope.experiments.diagnose.student.case import Case
from roundscope.experiments.diagnose.student.units import Unit, Units, format_of, ordered
from roundscope.experiments.train.mx import INDEX, How, Site, reseeded
from roundscope.experiments.train.step import arm
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.arms import Config, Matrix, how_of
from roundscope.experiments.train.student.run import Begin, data_of

# the events whose blocks are examined, and the operand of each
READ = {Site.X: "x", Site.X_W: "x", Site.W: "w", Site.W_X: "w", Site.G_X: "g", Site.G_W: "g"}
NORMAL = 4096  # number of blocks of normal numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of an event in some places.

    units        the places;  format: that of the blocks;  marked: whether they are in the set
    stats        of their blocks together;  last: how many numbers became the largest element
    spread       the median of max |V| / min |V|
    normal, normal_last   stats and last of independent normal numbers
    """

    units: tuple[Unit, ...]
    format: BlockFormat
    marked: bool
    stats: BlockStats
    last: int
    spread: float
    normal: BlockStats
    normal_last: int

    @property
    def shares(self) -> dict[str, float]:
        """clipped, last, underflow: shares of numbers; shrink: of magnitude; excess: of the error.

        excess is the share of the absolute error that RCEIL would not have made.
        """
        return _shares(self.stats, self.last)

    @property
    def normal_shares(self) -> dict[str, float]:
        """The same shares for normal numbers."""
        return _shares(self.normal, self.normal_last)


def _shares(s: BlockStats, last: int) -> dict[str, float]:
    return {
        "clipped": s.clipped / s.numbers,
        "last": last / s.numbers,
        "underflow": s.underflow / s.numbers,
        "shrink": s.relative_shrink,
        "excess": s.relative_excess,
        "rms": s.relative_rms,
        "distinct": s.codes_per_block,
    }


def origin(case: Case, begin: Begin, units: Units, marked: Units) -> list[Blocks]:
    """Return the blocks of operands in blocks, by event and format, the marked ones apart."""
    values, plan = operands(case, begin), case.plan(case.failed)
    groups: dict[tuple[Site, BlockFormat, bool], list[Unit]] = {}
    for u in ordered(units):
        f = format_of(plan, u)
        if u.site in READ and isinstance(f, BlockFormat):
            groups.setdefault((u.site, f, u in marked), []).append(u)
    found = []
    for site, f, is_marked in sorted(groups, key=lambda k: (INDEX[k[0]], not k[2])):
        own = groups[site, f, is_marked]
        arrays = [values[u.layer][u.matrix][READ[site]] for u in own]
        found.append(_blocks(own, arrays, f, is_marked))
    return found


def _blocks(units: list[Unit], arrays: list[np.ndarray], f: BlockFormat, marked: bool) -> Blocks:
    axis, rng = units[0].site.axis, np.random.Generator(np.random.Philox(key=6))
    normal = rng.standard_normal((NORMAL, f.size)).astype(np.float32)
    found = [block_stats(x, f, axis) for x in arrays]
    return Blocks(
        units=tuple(units),
        format=f,
        marked=marked,
        stats=reduce(add, found),
        last=sum(_last(x, f, axis) for x in arrays),
        spread=float(np.median([_spread(x, f.size, axis) for x in arrays])),
        normal=block_stats(normal, f),
        normal_last=_last(normal, f, -1),
    )


def _last(x: np.ndarray, f: BlockFormat, axis: int) -> int:
    elements = np.abs(np.asarray(to_blocks(x, f, axis).elements))
    return int((elements == f.element.format.max_finite).sum())


def _spread(x: np.ndarray, size: int, axis: int) -> float:
    """Return the median over blocks of max |V| / min |V|."""
    lines = np.abs(np.moveaxis(x, axis, -1)).reshape(-1, size)
    return float(np.median(lines.max(1) / np.maximum(lines.min(1), np.finfo(np.float32).tiny)))


def operands(case: Case, begin: Begin) -> list[dict[str, dict[str, np.ndarray]]]:
    """Return layer -> matrix -> x (batch, in), w (in, out), g (batch, out) of the run at a state.

    The state has an axis of one arm; the rows are those of its step.
    """
    config, arms = case.config, [case.own]
    seed = np.array([(config.seed + case.own.seed) % 2**32], np.uint32)
    x, y = model.batches(config)(seed, np.int32(begin.step))
    how = how_of(config, arms)
    table = data_of(config, arms, begin.step).table[0]
    table = reseeded(table, jnp.int32(begin.step)) if how.drawn else table
    params = arm(begin.state.params, 0)
    found = jax.jit(lambda *given: _operands(config, how, *given))(params, x[0], y[0], table)
    return [
        {m: {n: np.asarray(v) for n, v in own.items()} for m, own in layer.items()}
        for layer in found
    ]


def _operands(
    config: Config, how: How, params: Mapping[str, Any], x: Any, y: Any, table: Any
) -> list[dict[str, dict[str, Any]]]:
    """Compute forward, then backward; g of DOWN is the gradient of the layer, A + DOWN."""
    a, kept = x, []
    for i in range(config.depth):
        p = {name: leaf[i] for name, leaf in params.items()}
        h, gate, inputs = model.opened(how, p, a, table[i])

        def closed(h: Any, g: Any, p: Any = p, i: int = i) -> Any:
            return model.closed(config, how, p, h, g, table[i])

        def layer(a: Any, p: Any = p, i: int = i) -> Any:
            return model.layer(config, how, p, a, table[i])[0]

        _, inside, inner = jax.vjp(closed, h, gate, has_aux=True)
        a, through = jax.vjp(layer, a)
        kept.append((p, inputs, inner, inside, through))
    g = 2.0 * (a - y) / a.size  # the gradient of the mean of squares
    found = []
    for p, inputs, inner, inside, through in reversed(kept):
        of_h, of_gate = inside(g)
        own = {
            str(Matrix.UP): {"x": inputs, "w": p["up"], "g": of_h},
            str(Matrix.DOWN): {"x": inner, "w": p["down"], "g": g},
        }
        if "gate" in p:
            own[str(Matrix.GATE)] = {"x": inputs, "w": p["gate"], "g": of_gate}
        found.append(own)
        (g,) = through(g)
    return found[::-1]
