"""Units of the search in a proxy: one rounding event of one matrix of one layer.

Here are blocks of them, and their words.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import BINARY32, Rounding
from roundscope.experiments.train.mx import GROUPS, INDEX, Site
from roundscope.experiments.train.student.arms import MATRICES, Config, Matrix, Plan
from roundscope.tools.diagnose.search import Blocks, Family, grouped
from roundscope.tools.report.wording import listed

Kept = BlockFormat | Rounding
BESIDE = ""  # in the place of a matrix: events that belong to none


class Unit(NamedTuple):
    """An event of a layer: of one of its matrices, or BESIDE them."""

    layer: int
    matrix: str
    site: Site


Units = frozenset[Unit]


def there(config: Config) -> Units:
    """Return all events of a step of this config."""
    matrices = [m for m in MATRICES if m is not Matrix.GATE or config.phi == "swiglu"]
    layers = range(config.depth)
    own = {Unit(i, m, s) for i in layers for m in matrices for s in Site if s.per_matrix}
    beside = [s for s in Site if not s.per_matrix and (config.norm or s not in GROUPS["norm"])]
    return frozenset(own | {Unit(i, BESIDE, s) for i in layers for s in beside})


def place(u: Unit) -> tuple[int, int, int]:
    """Return the indices of an event's format in a plan, and of its row in a table."""
    return u.layer, MATRICES.index(Matrix(u.matrix)) if u.matrix else 0, INDEX[u.site]


def format_of(plan: Plan, u: Unit) -> Kept:
    """Return the format to which an event rounds."""
    layer, matrix, site = place(u)
    return plan.formats[layer][matrix][site]


def units_of(config: Config, plan: Plan) -> Units:
    """Return the events that the plan rounds to fewer bits than FP32 has."""
    return frozenset(u for u in there(config) if format_of(plan, u) != BINARY32)


def by_layer(units: Units) -> Blocks:
    """Return blocks of a layer's events."""
    return grouped(units, lambda u: u.layer, lambda u: f"layer {u.layer}")


def by_matrix(units: Units) -> Blocks:
    """Return blocks of a matrix's events over the layers; those of no matrix are one block."""
    return grouped(units, lambda u: u.matrix, lambda u: u.matrix or "beside the matrices")


def by_site(units: Units) -> Blocks:
    """Return blocks of an event over layers and matrices."""
    return grouped(units, lambda u: INDEX[u.site], lambda u: str(u.site))


def singly(units: Units) -> Blocks:
    """Return blocks of one event each."""
    return {name(u): frozenset([u]) for u in ordered(units)}


def ordered(units: Collection[Unit]) -> list[Unit]:
    """Return units by layer, matrix and the order in which a step reaches them."""
    return sorted(units, key=lambda u: (u.layer, u.matrix, INDEX[u.site]))


def name(u: Unit) -> str:
    """Return a unit in words: "X of layer 1, up"."""
    return f"{u.site} of layer {u.layer}{f', {u.matrix}' if u.matrix else ''}"


def change(units: Collection[Unit], to: str = "fp32") -> str:
    """Return the change of units to a format: layer=1 matrix=up site=X,W -> fp32; ..."""
    return "; ".join(
        f"layer={layer}{f' matrix={matrix}' if matrix else ''} site={','.join(sites)} -> {to}"
        for layer, matrix, sites in _grouped(units)
    )


def words(units: Collection[Unit], all_units: Units) -> str:
    """Return units in a sentence: 'X and X_W everywhere', 'W of up in layers 0 and 1'."""
    sites: dict[tuple[Site, ...], list[tuple[int, str]]] = {}
    for layer, matrix, own in _grouped(units):
        sites.setdefault(own, []).append((layer, matrix))
    return "; ".join(
        f"{listed([str(x) for x in own])}{_places(places, own, all_units)}"
        for own, places in sites.items()
    )


def _grouped(units: Collection[Unit]) -> list[tuple[int, str, tuple[Site, ...]]]:
    places = sorted({u[:2] for u in units})
    return [(i, m, tuple(s for s in Site if Unit(i, m, s) in units)) for i, m in places]


def _places(places: list[tuple[int, str]], own: tuple[Site, ...], all_units: Units) -> str:
    if set(places) == {u[:2] for u in all_units if u.site in own}:
        return " everywhere"
    matrices = sorted({m for _, m in places})
    layers = {m: [i for i, other in places if other == m] for m in matrices}
    alike = len({tuple(x) for x in layers.values()}) == 1
    parts = [(matrices, layers[matrices[0]])] if alike else [([m], layers[m]) for m in matrices]
    found = []
    for some, at in parts:
        named = [m for m in some if m]
        whose = f" of {listed(named)}" if named else ""
        found.append(f"{whose} in layer{'s' if len(at) > 1 else ''} {listed(list(map(str, at)))}")
    return " and".join(found)


def classes(units: Units) -> list[Units]:
    """Return the classes of events (`mx.GROUPS`), as far as they round."""
    return [frozenset(u for u in units if u.site in sites) for sites in GROUPS.values()]


def row_words(place: tuple[Any, ...]) -> str:
    """Return a place of a layer, in words."""
    return f"layer {place[0]}, {place[1] or 'beside'}"


FAMILY = Family(
    levels=lambda units: [("layers", by_layer), ("matrices", by_matrix), ("events", by_site)],
    classes=classes,
    few=16,
    by_site=by_site,
    singly=singly,
    words=words,
    change=change,
    row=row_words,
    sites=Site,
)
