"""Blocks of events that the search takes or leaves as one: a layer's, a head's, an event in all heads, single ones."""

from collections.abc import Collection

from roundscope.attention import Site
from roundscope.experiments.diagnose.gpt.units import Unit, Units


def by_layer(units: Units) -> dict[str, Units]:
    """Blocks of a layer's events."""
    return {f"layer {i}": frozenset(u for u in units if u.layer == i) for i in sorted({u.layer for u in units})}


def by_head(units: Units) -> dict[str, Units]:
    """Blocks of a head's events."""
    places = sorted({u[:2] for u in units})
    return {f"layer {i}, head {n}": frozenset(u for u in units if u[:2] == (i, n)) for i, n in places}


def by_site(units: Units) -> dict[str, Units]:
    """Blocks of an event in all heads."""
    return {str(s): frozenset(u for u in units if u.site is s) for s in Site if any(u.site is s for u in units)}


def singly(units: Units) -> dict[str, Units]:
    """Blocks of one event in one head."""
    order = {site: i for i, site in enumerate(Site)}
    inside = sorted(units, key=lambda u: (u.layer, u.head, order[u.site]))
    return {f"{u.site} of layer {u.layer}, head {u.head}": frozenset([u]) for u in inside}


def union(blocks: dict[str, Units], names: Collection[str]) -> Units:
    """The events of some blocks."""
    return frozenset[Unit]().union(*(blocks[name] for name in names))
