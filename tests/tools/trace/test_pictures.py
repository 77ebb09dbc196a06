"""What the pictures of a trace leave out, and whether their scales can be read."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from roundscope.tools.trace.report import captions, plots
from tests.tools.trace.test_results import summary


@pytest.fixture(scope="module")
def injected():
    """A summary of a run with an error of three ulps in half of the heads' P."""
    return summary(inject=["P:ulps=3:heads=0:2"])


def test_errors_beyond_the_histogram_are_counted_in_its_caption(injected):
    """Errors off the scale that are left out without a note."""
    captioned = {title: caption for title, _, caption, _ in captions.pictures(injected)}
    assert "Beyond an ulp and not drawn: 51 % of P." in captioned["Signed errors"]
    plain = {title: caption for title, _, caption, _ in captions.pictures(summary())}
    assert "not drawn" not in plain["Signed errors"]


@pytest.mark.parametrize("quantile", [1e-6, 1.2e-4, 9e-4, 0.03])
def test_ticks_of_the_bias_do_not_overlap(quantile):
    """The labels -10^-4, 0 and 10^-4 on top of each other, in the linear part of the scale."""
    figure = Figure(figsize=(9.6, 3), layout="constrained")
    ax = figure.subplots()
    ax.tick_params(labelsize=8)
    values = quantile * np.array([1.0, 1.0, 3.0, 40.0])
    ax.barh(range(4), values)
    ax.barh(range(4), -values)
    plots._signed_log(ax.set_xscale, values)
    figure.canvas.draw()
    low, high = ax.get_xlim()
    labels = [
        label.get_window_extent()
        for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        if low <= tick <= high
    ]
    assert len(labels) >= 3 and all(a.x1 < b.x0 for a, b in pairwise(labels))


def test_heads_and_rows_are_counted_in_whole_numbers():
    """A bar over head -0.5, and a quarter of a row."""
    several = np.zeros((1, 2, 8), dtype=bool)
    several[0, 1, 3] = True
    figure = plots.several_ones(SimpleNamespace(several=several, shares=[]))
    left = figure.axes[0]
    for ticks in (left.get_xticks(), left.get_yticks()):
        assert np.array_equal(ticks, np.round(ticks))


def test_the_null_bands_words_stand_above_the_bars(injected):
    """Words written over the last bars, which end where they begin."""
    figure = plots.bias(injected)
    figure.draw_without_rendering()
    for ax in figure.axes:
        box = ax.get_legend().get_window_extent()
        assert box.y0 >= ax.get_window_extent().y1
        title = ax.get_title(loc="left")
        assert title and ax.get_title() == ""
