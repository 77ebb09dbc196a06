"""The hook `at`: rounds, perturbs if asked, records if asked.

One `Events` per tile; the algorithm only calls it.
"""

from dataclasses import dataclass
from typing import Any

from roundscope.attention.events.perturbing import perturbed
from roundscope.attention.events.recorder import Recorder
from roundscope.attention.events.streams import random_bits
from roundscope.attention.injection import Exact, Injection
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import BLOCK_AXIS, RESCALES, Site
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import ANY_PRODUCT, Array, Ops
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.rounding.modes import BINARY64, Rounding, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator, accumulate

_WHOLE = Accumulator(step=BINARY64)


@dataclass(frozen=True, slots=True)
class Events:
    """`at(site, value)`: the event of one site over one tile.

    An event is one operation on binary64 numbers and one rounding to the site's format. The
    operation's result is itself rounded to binary64, to nearest, so there are two roundings
    wherever binary64 does not hold it:

      products of numbers of up to 26 bits are held, and so are sums of numbers of like size: the
      event is one rounding
      to nearest, sums and quotients of numbers of p <= 24 bits, rounded to p bits, are what one
      rounding gives (53 >= 2 p + 2)
      in directed modes and to odd, a sum or quotient beyond binary64 may go to the wrong side: X =
      2^-60 - 1 is -1 in binary64,
          and fp32:toward-positive leaves it there, where one rounding would give -1 + 2^-24
      in stochastic modes the chance is off by at most 2^(p - 54)
      a sum of x and -x is +0, toward-negative too, where IEEE 754 (6.3) has -0

    Steps of an accumulator round once in every mode (`emu.sums.odd`).
    """

    ops: Ops
    plan: Plan
    tile: Tile
    inject: tuple[Injection, ...]
    recorder: Recorder | None
    sink: Array | None = None  # the head's own, a scalar

    def __call__(
        self, site: Site, value: Array, exact: Array | None = None, kept: Array | None = None
    ) -> Array:
        """The value rounded by the plan, perturbed by the injections at this site, recorded if
        asked.

        exact  what Exact() puts in its place, if that is not the value itself
        kept   what stays where the event does not exist, if that is not the value itself
        """
        r = self.plan[site]
        random = (
            self._random(site, r.seed, value.shape) if r.mode is RoundingMode.STOCHASTIC else None
        )
        block, unit = self.plan.block(site), None
        if block is None:
            after = self.ops.round(value, r, random)
        else:
            after, unit = self._rounded_in_blocks(site, value, block, random)
        for injection in self.inject:
            if injection.site is site:
                before = value if exact is None else exact
                after = perturbed(self.ops, self.tile, injection, before, after, r.format, unit)
        if not self._may_happen_everywhere(site, r, kept):
            valid = self.tile.valid(site) if value.ndim == 2 else self.tile.valid(site).squeeze(1)
            after = self.ops.xp.where(valid, after, value if kept is None else kept)
        if self.recorder is not None:
            self.recorder.keep(str(site), site, value, after, r.format, unit)
        return after

    def _may_happen_everywhere(self, site: Site, r: Rounding, kept: Array | None) -> bool:
        """Whether all of the event exists, or it does nothing elsewhere: there it meets 0, -inf or
        NaN, or scores that are masked later.

        But what it meets of DP and DPD is multiplied by P = 0, and an infinity would become NaN;
        and a sum so far of -0 would become +0.
        """
        if self.tile.is_whole and site not in RESCALES:
            return True
        if kept is not None:
            return False
        disturbed = site in (Site.DP, Site.DPD) or any(
            injection.site is site for injection in self.inject
        )
        return self.tile.is_unrecorded and r.keeps_specials and not disturbed

    def _rounded_in_blocks(
        self, site: Site, value: Array, block: BlockFormat, random: Array | None
    ) -> tuple[Array, Array]:
        """(the value rounded, the scale of each entry, 1 where it is NaN).

        Entries that do not exist are zeros of their block.
        """
        xp = self.ops.xp
        there = xp.where(self.tile.valid(site), value, 0.0)
        after, unit = self.ops.round_blocks(there, block, BLOCK_AXIS[site], random)
        return after, xp.where(xp.isnan(unit), 1.0, unit)

    def sum(
        self, site: Site, a: Array, b: Array, init: Array | None = None, event: Site | None = None
    ) -> tuple[Array, Array | None]:
        """init + a @ b by the site's accumulator, and the binary64 sum if an injection at `event`
        wants it.

        a: (T, K), b: (K, N); event: the site at which the sum rounds, if not this one.
        """
        xp = self.ops.xp
        acc = self.plan.accumulator(site)
        start = xp.zeros((a.shape[0], b.shape[1])) if init is None else init
        if self.ops.own_sum is not None:
            return self.ops.own_sum(acc, a, b, start), self._exact_sum(event or site, a, b, start)
        recorder = (
            self.recorder
            if self.recorder is not None and self.recorder.wants_steps(site, acc.order)
            else None
        )
        steps: list[Any] | None = None if recorder is None else []
        step = (
            self._stochastic_step(site, acc.step)
            if acc.step.mode is RoundingMode.STOCHASTIC
            else None
        )
        total = accumulate(
            self.ops,
            acc,
            a.T,
            b,
            start,
            step,
            steps,
            ANY_PRODUCT if self.inject else self.plan.product_bits(site),
        )
        if recorder is not None:
            for before, after in steps or ():
                recorder.keep_steps(site, acc.order, before, after, acc.step.format)
        return total, self._exact_sum(event or site, a, b, start)

    def _exact_sum(self, event: Site, a: Array, b: Array, init: Array) -> Array | None:
        """init + a @ b in binary64 if an injection at the event wants it."""
        if not any(i.site is event and isinstance(i.what, Exact) for i in self.inject):
            return None
        return (
            accumulate(self.ops, _WHOLE, a.T, b, init)
            if self.ops.own_sum is None
            else self.ops.own_sum(_WHOLE, a, b, init)
        )

    def product(self, site: Site, a: Array, b: Array, init: Array | None = None) -> Array:
        """The event of a sum of products: init + a @ b, added up and then rounded."""
        return self(site, *self.sum(site, a, b, init), kept=init)

    def seen(self) -> dict[str, Any]:
        """What was recorded, by name."""
        return {} if self.recorder is None else self.recorder.seen()

    def _random(self, site: Site, seed: int, shape: tuple[int, ...], step: Any = 0) -> Array:
        return random_bits(self.ops.xp, self.tile, site, seed, shape, step)

    def _stochastic_step(self, site: Site, r: Rounding) -> Any:
        return lambda k, total: self.ops.round(
            total, r, self._random(site, r.seed, total.shape, k + 1)
        )
