"""What is refused of what a plan is changed with: each a TypeError or ValueError that names the
argument, its value and the repair.
"""

from collections.abc import Mapping
from typing import Any

from roundscope.attention.sites import PRODUCTS, Site, site_named
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.rounding.modes import Rounding


def events_given(events: Any) -> dict[Site, Rounding | BlockFormat]:
    """Return the roundings by site, where a site may have been given by its name.

    Raises TypeError for anything else.
    """
    if not isinstance(events, Mapping):
        raise TypeError(
            f"events={events!r}: give roundings by site, such as {{'P': rounding('bf16')}}"
        )
    found = {site_named(site): event for site, event in events.items()}
    for site, event in found.items():
        if not isinstance(event, (Rounding, BlockFormat)):
            raise TypeError(
                f"events: {site}={event!r}: give a rounding, such as rounding('bf16'), or use"
                " Plan.at, which takes names"
            )
    return found


def product_named(site: Site | str) -> Site:
    """Return the site of that name, whose event must be a sum of products.

    Raises ValueError for another.
    """
    site = site_named(site)
    if site not in PRODUCTS:
        raise ValueError(f"site={site}: not a sum of products; those are {' '.join(PRODUCTS)}")
    return site
