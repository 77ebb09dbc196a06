"""`Record`: what a trace of attention keeps besides the summary of every site.

A trace summarizes the rounding events of each site. A sample of the events may be enough for that:
the tiles of the sample are "looked at", and the other tiles are not (`attention.tiles.sample`).
"""

from dataclasses import dataclass

from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.numbers import is_whole
from roundscope.emu.shown import shown
from roundscope.events.recorder import RecordBase, check_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(RecordBase):
    """What a trace keeps besides the summary of every site.

    `Record()` keeps only the summaries, which is what `examine` does by default. A record never
    changes a bit of a result.

    Args:
        events: Sites whose single events are kept in `Trace.events`. Each event is kept as its
            values before and after the rounding.
        ones: Sites for which `Trace.ones` counts the results that equal 1, per row and tile.
        steps: Sums of products (`PRODUCTS`) whose single additions are summarized too, under the
            name "<SITE>.step" in `Trace.stats` and `Trace.rows`.
        away: Whether `Trace.away` has the errors of each row counted away from zero as well.
        every: 1 (default) summarizes all events. A larger number, here called n, summarizes a
            sample of one tile in n^2: every n-th query tile of each head, and for each of these
            every n-th key tile. For the events of the sums dK and dV it is every n-th key tile, and
            for each of these every n-th query tile. `attention.tiles.sample` says which tiles these
            are. Events that happen only once per head, and not in every tile, are summarized in the
            rows of the sampled tiles.

    `events`, `ones` and `steps` are tuples of sites, or any other collections of them. A site is a
    `Site` or its name in upper or lower case. A `Record` itself accepts sites that a plan does not
    have; the call that gets both checks them and may refuse the record.

    With a sample, the summaries, `ones` and `steps` contain the sampled events only, but `events`
    still contains all. The sample is the same on every engine. The field n of `Stats` is the number
    of events in it. Under a mask, including a causal one, a tile has fewer events or none, so this
    number can be 0 for a single head. With engine="pallas", the fused kernels run a second time for
    one query tile in `every`, over all its key tiles. They write the events of a sample of the
    tiles to memory, or of all tiles a summary of each row (of fewer than 1,024 columns; else the
    events), and the events that are asked for.

    Raises:
        TypeError: `events`, `ones` or `steps` is not a collection of sites but, for example, a
            single site or its name, a number, or None.
        ValueError: A name is not a site, `steps` names a site that is not a sum of products, or
            `every` is not a whole number of at least 1.

    Example:
        >>> from roundscope.attention import Record, Site
        >>> record = Record(events=("p", Site.O), steps=("PV",))
        >>> record.events == (Site.P, Site.O), record.steps == (Site.PV,), record.every
        (True, True, 1)
        >>> Record(events="P")
        Traceback (most recent call last):
            ...
        TypeError: events='P': give a tuple of sites, such as ('P',)
    """

    events: tuple[Site, ...] = ()
    ones: tuple[Site, ...] = ()
    steps: tuple[Site, ...] = ()
    every: int = 1

    def __post_init__(self) -> None:
        if not (is_whole(self.every) and 1 <= self.every < 2**31):
            raise ValueError(
                f"every={shown(self.every)}: a whole number, one tile in so many, both ways;"
                " 1 for all"
                " events"
            )
        check_record(self, Site, PRODUCTS)
