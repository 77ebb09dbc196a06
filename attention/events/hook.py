"""`Events`, the hook `at`: it rounds, perturbs if asked, and records if asked.

There is one for each tile. The equations (`attention.algorithm`) only call it: they know the names
of their rounding events, and neither formats nor what is injected or recorded.
"""

from collections.abc import Callable
from dataclasses import dataclass

from roundscope.attention.events.perturbing import perturbed
from roundscope.attention.events.recorder import Recorder, Seen
from roundscope.attention.events.streams import random_bits
from roundscope.attention.injection import Exact, Injection
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import BLOCK_AXIS, RESCALES, Site
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import ANY_PRODUCT, Array, Ops
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import BINARY64, Rounding, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator, accumulate

_WHOLE = Accumulator(step=BINARY64)


@dataclass(frozen=True, slots=True)
class Events:
    """The rounding events of one tile: `at(site, value)` is the event of one site.

    ops, plan  the array library, and the plan that gives each site its format
    tile       where the tile is, and which of its entries exist
    inject     the injections of the call, of all sites
    recorder   what collects the events, or None
    sink       the logit of the head's sink, a scalar, or None

    An event is one operation on binary64 numbers and one rounding to the site's format. The
    operation's result is itself rounded to binary64, to nearest, so there are two roundings
    wherever binary64 does not hold it:

    - Products of numbers of up to 26 bits are held, and so are sums of numbers of like size: the
      event is one rounding.
    - To nearest, sums and quotients of numbers of p <= 24 bits, rounded to p bits, are what one
      rounding gives (53 >= 2 p + 2).
    - In directed modes and to odd, a sum or quotient beyond binary64 may go to the wrong side: X =
      2^-60 - 1 is -1 in binary64, and fp32:toward-positive leaves it there, where one rounding
      would give -1 + 2^-24.
    - In stochastic modes the probability is off by at most 2^(p - 54).
    - A sum of x and -x is +0, toward-negative too, where IEEE 754 (6.3) has -0.

    Each step of an accumulator is a single rounding in every mode (`emu.sums.odd`).

    Entries that do not exist (`Tile.valid`: masked scores, padding, rows without a key so far, the
    rescaling of a row that had no key yet) are neither rounded nor injected into nor recorded: they
    keep the value that came in, or what `kept` says. The operations before and after the event take
    part in them all the same. So a row without a visible key in a backward tile leaves the running
    sum of its dQ as it was, and at a masked score DP and DPD stay as binary64 has them, though the
    steps of DP's accumulator round there. P = 0 multiplies them: were they rounded, one beyond the
    format could become infinite, and 0 times infinity is NaN.
    """

    ops: Ops
    plan: Plan
    tile: Tile
    inject: tuple[Injection, ...]
    recorder: Recorder | None
    sink: Array | None = None

    def __call__(
        self, site: Site, value: Array, exact: Array | None = None, kept: Array | None = None
    ) -> Array:
        """Return the value rounded by the plan and perturbed by the injections at this site.

        The event is recorded if asked.

        value  what is rounded, (rows, columns) or (rows,) as the site's axes say
        exact  what an Exact() injection puts in the result's place, if that is not `value`
        kept   what entries have where the event does not exist, if that is not `value`
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
        """Return whether the event may be applied to all entries, also those that do not exist.

        It may where all of them exist, and, in a tile that nobody records, where it leaves the
        others as they are: there it meets 0, -inf or NaN, or scores that are masked later. DP and
        DPD are not among those: what the event meets of them is multiplied by P = 0, and if it
        became infinite the product would be NaN. Nor are events with a `kept`, a sum so far, of
        which a -0 would become +0.
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
        """Return the value rounded in blocks, and the scale of each entry, 1 where that is NaN.

        Entries that do not exist count as zeros of their block.
        """
        xp = self.ops.xp
        there = xp.where(self.tile.valid(site), value, 0.0)
        after, unit = self.ops.round_blocks(there, block, BLOCK_AXIS[site], random)
        return after, xp.where(xp.isnan(unit), 1.0, unit)

    def sum(
        self, site: Site, a: Array, b: Array, init: Array | None = None, event: Site | None = None
    ) -> tuple[Array, Array | None]:
        """Return init + a @ b by the site's accumulator, before the event's own rounding.

        The second result is the same sum in binary64 if an Exact() injection at the event wants it,
        else None. Both are arguments of the event: `at(site, *at.sum(site, a, b))`.

        a, b   (T, K) and (K, N)
        init   (T, N), where the sum begins; zeros if None
        event  the site at which the sum rounds, if it is not `site`
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
        steps: list[tuple[Array, Array]] | None = None if recorder is None else []
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
        """Return init + a @ b in binary64 if an Exact() injection at the event wants it."""
        if not any(i.site is event and isinstance(i.what, Exact) for i in self.inject):
            return None
        return (
            accumulate(self.ops, _WHOLE, a.T, b, init)
            if self.ops.own_sum is None
            else self.ops.own_sum(_WHOLE, a, b, init)
        )

    def product(self, site: Site, a: Array, b: Array, init: Array | None = None) -> Array:
        """Return the event of a sum of products: init + a @ b, by the accumulator, then rounded.

        Where the event does not exist, `init` stays.
        """
        return self(site, *self.sum(site, a, b, init), kept=init)

    def seen(self) -> Seen:
        """Return what was recorded of the tile so far, by name; empty without a recorder."""
        return {} if self.recorder is None else self.recorder.seen()

    def _random(self, site: Site, seed: int, shape: tuple[int, ...], step: Index = 0) -> Array:
        """Return the random bits of an addition of a sum, counted from 1, or of the event: 0."""
        return random_bits(self.ops.xp, self.tile, site, seed, shape, step)

    def _stochastic_step(self, site: Site, r: Rounding) -> Callable[[Index, Array], Array]:
        """Return the rounding of a sum's k-th addition, counted from 0: (k, total) -> rounded."""
        return lambda k, total: self.ops.round(
            total, r, self._random(site, r.seed, total.shape, k + 1)
        )
