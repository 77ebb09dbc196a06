"""The figures: the first answers the paper's question, the others are the paper's own and ours."""

from roundscope.experiments.framework.study import Figure
from roundscope.experiments.papers.stability_2405_02803.figures import deviations, drift, tiles
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import Scale


def figures(scale: Scale) -> list[Figure[Results]]:
    """Return all figures, in the order of the page."""
    return [
        deviations.opening(scale),
        deviations.formats(scale),
        deviations.lengths(scale),
        tiles.shape(scale),
        tiles.controls(scale),
        tiles.attribution(scale),
        tiles.bias(scale),
        drift.drift(scale),
    ]
