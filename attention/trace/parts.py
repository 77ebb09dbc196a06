"""What an engine recorded of a call, in parts, and the sums of its tiles over a head.

Engines record tile by tile (`Part`). Events are repeated by tile: an event of a query row happens
again at every key tile, and an event of a key at every query tile. The tiles of that second kind
are called the tiles of the other side.
"""

from typing import NamedTuple

import numpy as np

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.ops import Array
from roundscope.events.place import Index
from roundscope.events.recorder import NO_SUMMARIES, Seen, Summary


class Part(NamedTuple):
    """What an engine recorded in one stage of a call, by name, heads along the first axis.

    lead      (batch, heads), of query heads or of key heads
    number    how many heads are numbered one after another: those of all batch entries, or of one
    whole     what was recorded of whole heads: events that are not repeated, and events whose tiles
              the engine has already added up
    tiles     what was recorded of tiles, (heads, query tile, key tile, ...), in the backward
              (heads, key tile, query tile, ...)
    backward  whether it is a stage of the backward
    """

    lead: tuple[int, ...]
    number: int
    whole: Seen
    tiles: Seen
    backward: bool


def site_of(name: str) -> Site:
    """Return the site that a name in a trace belongs to: "PV" and "PV.step" are both PV."""
    return Site[name.partition(".")[0]]


def summaries(seen: Seen) -> dict[str, Summary]:
    """Return the summaries among what was recorded, without single events and counts."""
    return {name: value for name, value in seen.items() if not name.endswith(NO_SUMMARIES)}


def features_of(site: Site, features: tuple[int, int]) -> int:
    """Return how many features the events of a site have, for a site whose events have features.

    This holds for sites that are repeated by tile.

    features: how many features q and k have, and how many v has.
    """
    return features[0] if site in (Site.DQ, Site.DK) else features[1]


def tiles_added(setup: Setup, site: Site, features: int, backward: bool, seen: Summary) -> Summary:
    """Return the summaries of heads at a site from those of tiles, NumPy or JAX.

    features: how many the site has; backward: whether the axis of key tiles precedes the axis of
    query tiles.
    """
    counts, sums, peak, place, row = (v.swapaxes(1, 2) for v in seen) if backward else seen
    place = counts.__array_namespace__().where(
        counts[..., 0] > 0, place, -1
    )  # a tile that was left out has no place
    with np.errstate(over="ignore", invalid="ignore"):  # sums beyond binary64 are infinite
        return (
            counts.sum((1, 2)),
            sums.sum((1, 2)),
            *_worst(setup, site, peak, place, features),
            by_row(site, row).sum(1),
        )


def by_row(site: Site, row: Array) -> Array:
    """Return (heads, query tile, key tile, rows of a tile) as (heads, tiles, rows of a head).

    The axis `tiles` has the tiles of the other side. The rows of a head are padded to whole tiles.
    """
    v = row if site.axes is Axes.SH else row.swapaxes(1, 2)
    return v.reshape(*v.shape[:2], -1)


def _worst(
    setup: Setup, site: Site, peak: Array, place: Array, features: int
) -> tuple[Array, Array]:
    """Return the largest error of each head, and the flat index of its event in the whole head.

    peak, place: the largest error and the index of its event in each tile, (heads, query tile, key
    tile). The index is -1 in a tile that has no event.
    """
    xp = peak.__array_namespace__()
    heads, _, nk = peak.shape
    tile = xp.where(place < 0, -1.0, peak).reshape(heads, -1).argmax(1)
    i, j = xp.divmod(tile, nk)
    here = xp.arange(heads)
    local = place.reshape(heads, -1)[here, tile]
    return peak.reshape(heads, -1)[here, tile], xp.where(
        local < 0, -1, flat_place(setup, site, i, j, local, features)
    )


def flat_place(setup: Setup, site: Site, i: Index, j: Index, local: Array, features: int) -> Array:
    """Return the flat index in its head of an entry of tile (i, j), from its index in the tile.

    A flat index is row * columns + column.

    local: the flat index in the tile; features: how many the site has, if it has features.
    """
    if site.axes is Axes.TS:
        return (
            (i * setup.block_q + local // setup.block_k) * setup.keys
            + j * setup.block_k
            + local % setup.block_k
        )
    first = j * setup.block_k if site.axes is Axes.SH else i * setup.block_q
    return first * (1 if site.axes is Axes.T else features) + local
