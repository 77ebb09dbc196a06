"""`Injection`: a controlled error at chosen entries of one site of attention."""

from dataclasses import dataclass

from roundscope.attention.sites import Axes, Site, site_named
from roundscope.emu.shown import shown
from roundscope.events.injection import InjectionBase
from roundscope.events.readers import READERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection(InjectionBase):
    """An error at one site, at the entries that all of its selections name.

    The arguments `batch` to `tiles` are selections. A selection is an int, a range, a slice with a
    stop, an iterable of ints, or None (default), which selects all. Indices count from 0. `attend`
    and `examine` refuse entries that the call does not have, sites that the plan never reaches, and
    a bit that the site's format does not have.

    Args:
        site: The site at which the error happens, or its name in upper or lower case.
        what: The error: `AddUlps`, `Bias`, `FlipBit`, `SetTo`, `Exact` or `Noise`.
        batch: Entries of the batch axis.
        heads: Query heads, or key heads for events of key heads (such as K, V, DK_OUT, DV_OUT).
        rows: Queries, or keys for events that have a row per key (such as K, V, DK, DV).
        columns: Keys, for events that have one entry per score.
        features: Features, for events that have one entry per feature.
        tiles: Tiles, for events that are computed anew at each tile. These are key tiles, or query
            tiles for DV and DK. The error happens only at the selected tiles.
        share: The part of the entries that is hit, above 0 and at most 1; None hits all. Each entry
            is chosen or not by a random number of its own, from `seed` and the place of the entry
            in the call. So the choice is the same on every engine and for all sizes of tiles, and
            however the other selections are divided among injections. (An event that is computed
            anew at each tile has other entries for tiles of another size.) A smaller share with
            the same seed is a part of a larger one. It is the expected part: of n entries about
            share * n are hit, with a standard deviation of sqrt(share (1 - share) n).
        seed: Seed of `share`, a whole number from 0 to 2^32 - 1. `Noise` has a seed of its own.
        mask: A boolean array; entries are hit where it is True. It is (queries, keys) for events of
            scores, (queries, features) or (keys, features) for events with features, and (queries,)
            for others, or that with axes of heads, (N, ...), or of batch entries and heads,
            (B, N, ...), before it. An axis of one entry stands for all. Engine "pallas" refuses it.

    Raises:
        TypeError: `what` is not one of these errors, or `mask` is no array of booleans.
        ValueError: The site is unknown. Or a selection is empty, has a negative index, or is not of
            a type listed above. Or `columns` or `features` is given for a site whose events do not
            have this axis. Or `share` is not above 0 and at most 1, or `mask` names nothing.

    Example:
        >>> from roundscope.attention import AddUlps, Injection
        >>> Injection(site="O", what=AddUlps(ulps=0.5), rows=range(64), heads=3).heads
        (3,)
        >>> Injection.parse("O:ulps=0.5:rows=0:64:heads=3").rows
        range(0, 64)
        >>> Injection(site="P", what=AddUlps(ulps=0.5), share=0.01).share  # 1 % of the entries
        0.01
    """

    site: Site

    @staticmethod
    def parse(text: str, *, seed: int = 0) -> "Injection":
        """Return an injection from the words of the command line (docs/reference/grammar.md).

        Args:
            text: SITE:WHAT[:WHERE]..., such as "O:ulps=0.5:rows=0:64:heads=1,3".
            seed: Seed of the error `Noise` and of `share`, from 0 to 2^32 - 1.

        Returns:
            The injection.

        Raises:
            ValueError: A word is unknown. The message names the word and how to fix it.
            TypeError: `text` is not a string.

        Example:
            >>> from roundscope.attention import Injection
            >>> Injection.parse("P:flip=3:rows=5,9").what
            FlipBit(bit=3)
        """
        injection: Injection = READERS["injection"](text, seed=seed)
        return injection

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", site_named(self.site))
        InjectionBase.__post_init__(self)
        axes = self.site.axes
        if self.columns is not None and axes is not Axes.TS:
            raise ValueError(
                f"columns={shown(self.columns)}: {self.site} has one entry per {axes}; use rows or"
                " features"
            )
        if self.features is not None and axes not in (Axes.TH, Axes.SH):
            raise ValueError(
                f"features={shown(self.features)}: {self.site} has one entry per {axes}; use"
                " rows or"
                " columns"
            )
