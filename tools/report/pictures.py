"""The one style of all pictures, as matplotlib Figures, and what they are saved as.

Nothing here uses pyplot or any global state but fonts. The colors can be told apart by color-blind
readers.
"""

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context, rcdefaults
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.collections import Collection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import Bbox

rcdefaults()  # what is drawn does not depend on the settings of the user (LaTeX, fonts, sizes)

UP, DOWN, QUIET, BAND, INK = "#b2182b", "#2166ac", "#7b8794", "#dfe3e8", "#1f2933"
WIDTH = 9.6  # inches, the width of a page
NARROW = 4.6  # that of a telephone
# the palette of Okabe and Ito, with two colors changed
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933", "#8c6d31")
MARKERS = "osD^vPX*"
# marks beyond which an artist of an SVG is drawn as pixels, so that it stays small, and marks that
# all of its other artists may have together: 100 bytes each
DENSE, TOGETHER = 5000, 10_000
DPI = 144
SANS, MONO = "system-ui, sans-serif", "ui-monospace, Menlo, Consolas, monospace"
HOVER = "hover:"  # begins the gid of an artist that has a text for the pointer


def canvas(
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = WIDTH,
    narrow: bool = False,
    **more: Any,
) -> tuple[Figure, Any]:
    """Return a figure of the page's width, and its axes as an array (rows, columns).

    narrow: whether it is of a telephone's width, each panel below the one before it.
    """
    stacked = (rows * columns, 1) if narrow else (rows, columns)
    if narrow:
        width, height = NARROW, height * columns
        more.pop("width_ratios", None)
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(*stacked, squeeze=False, **more).reshape(rows, columns)
    for ax in axes.flat:
        if narrow and columns > 1:  # each panel has its own numbers
            ax.tick_params(labelbottom=True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9, colors=INK)
        ax.tick_params(which="minor", labelsize=8, colors=INK)
        ax.xaxis.label.set_size(9.5)
        ax.yaxis.label.set_size(9.5)
    return figure, axes


def bars(ax: Any, x: np.ndarray, heights: np.ndarray, width: float, **more: Any) -> None:
    """Draw bars that stand on 0 as one artist, which many bars need to be drawn quickly.

    x: their middles; more: arguments of a `PolyCollection`, of which facecolors may be one by bar.
    """
    left, right, low = x - width / 2, x + width / 2, np.zeros(len(x))
    corners = (left, low), (left, heights), (right, heights), (right, low)
    collection = PolyCollection(list(np.transpose(corners, (2, 0, 1))), **more)
    collection.sticky_edges.y.append(0.0)  # no margin below the bars
    ax.add_collection(collection)
    ax.autoscale_view()


def logarithmic(axis: Axis) -> None:
    """Make an axis of a picture logarithmic, with few numbers that do not touch."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100.0 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


class _Texts(Text):
    """Texts that have all but their places, words and colors in common, as one artist."""

    def __init__(self, each: Sequence[tuple[tuple[float, float], str, str]], **more: Any) -> None:
        super().__init__(**more)
        self._each = each

    def draw(self, renderer: Any) -> None:
        """Draw one after the other, as artists of their own would be drawn."""
        for place, words, color in self._each:
            self.update({"position": place, "text": words, "color": color})
            super().draw(renderer)


def texts(ax: Any, each: Sequence[tuple[tuple[float, float], str, str]], **more: Any) -> None:
    """Write texts (place, words, color) as one artist, which many need to be drawn quickly.

    They take no part in the layout: each is within a cell. more: arguments of a `Text`.
    """
    ax.add_artist(_Texts(each, clip_on=False, in_layout=False, **more))


def hover(artist: Artist, text: str) -> None:
    """Let a page show a text where the pointer is on this artist: a bar, a line, a label."""
    artist.set_gid(HOVER + text)


def png(figure: Figure, dpi: int = DPI, software: str | None = None) -> bytes:
    """Return a figure as a PNG file, cropped to its content; software: what made it, as it says."""
    out = io.BytesIO()
    figure.savefig(
        out,
        format="png",
        dpi=dpi,
        bbox_inches="tight",
        pad_inches=0.08,
        metadata={"Software": software},
    )
    return out.getvalue()


def svg(figure: Figure | Callable[[], Figure], label: str) -> str:
    """Return the figure as an <svg> element for a page, cropped to its content.

    The same figure gives the same text. Its background is transparent, its letters are text, and
    its ids are its own, so that many figures fit on one page. Artists of many marks are pixels.

    Args:
        figure: The figure, or a function that draws it.
        label: What it shows, for readers who cannot see it.
    """
    figure = figure if isinstance(figure, Figure) else figure()
    for artist in _dense(figure):
        artist.set_rasterized(True)
    for ax in figure.axes:  # white is the paper, which is dark on a dark page
        is_paper = ax.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
        ax.patch.set_visible(ax.patch.get_visible() and not is_paper)
    out = io.StringIO()
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "roundscope"}),
        _laid_out(figure) as box,
    ):
        figure.savefig(
            out,
            format="svg",
            dpi=DPI,
            bbox_inches=box,
            facecolor="none",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return _for_page(out.getvalue(), label)


class _Canvas(FigureCanvasSVG):
    """A canvas whose texts are measured by one renderer, which remembers their sizes."""

    @cached_property
    def _measuring(self) -> RendererSVG:
        return RendererSVG(*self.figure.bbox.size, io.StringIO())  # type: ignore[no-untyped-call]

    def get_renderer(self) -> RendererSVG:
        """Return the renderer; without this method matplotlib makes one for every question."""
        return self._measuring


@contextmanager
def _laid_out(figure: Figure) -> Iterator[Bbox]:
    """Lay a figure out as an SVG; yield the box of its content in inches, drawing nothing twice."""
    dpi, layout = figure.dpi, figure.get_layout_engine()
    _Canvas(figure)
    figure.dpi = 72
    try:
        if layout is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)
        yield figure.get_tightbbox().padded(0.08)
    finally:
        figure.dpi = dpi
        figure.set_layout_engine(layout)


def _dense(figure: Figure) -> list[Artist]:
    """Return the artists with too many marks for a vector graphic, each alone or all together."""
    artists = sorted(figure.findobj(lambda artist: _marks(artist) > 0), key=_marks, reverse=True)
    found, rest = [], sum(map(_marks, artists))
    for artist in artists:
        if _marks(artist) > DENSE or rest > TOGETHER:
            found.append(artist)
            rest -= _marks(artist)
    return found


def _marks(artist: Artist) -> int:
    """Return how many marks an artist draws, or as how many its points count."""
    if isinstance(artist, Collection):
        return int(max(len(artist.get_paths()), np.shape(artist.get_offsets())[0]))
    if not isinstance(artist, Line2D):
        return 0
    points = int(np.size(artist.get_xdata(orig=False)))
    # of a line without markers, matplotlib leaves out what cannot be seen
    return points if artist.get_marker() not in ("", " ", "None", None) else points // 5


def _for_page(text: str, label: str) -> str:
    """Return matplotlib's SVG document as an element of a page."""
    text = text[text.index("<svg") :].strip().replace("xlink:href=", "href=")
    text = re.sub(r"<defs>\s*<style type=\"text/css\">\*\{[^}]*\}</style>\s*</defs>\s*", "", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*?sans-serif", SANS, text)
    text = re.sub(r"'DejaVu Sans Mono'[^;\"]*?monospace", MONO, text)
    text = re.sub(rf"<g id=([\"']){HOVER}(.*?)\1>", r"<g><title>\2</title>", text)
    text = re.sub(r'(?<= )(?:d|x|y|transform)="[^"]*"', _shorter, text)
    text = re.sub(r"\n +", "\n", text)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    own = "s" + hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{own}{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{own}", text)
    size = re.search(r'viewBox="[^"]+"', text)
    assert size is not None
    head = f'<svg {size[0]} role="img" aria-label="{escape(label)}" stroke-linejoin="round">'
    return head + text[text.index(">") + 1 :]


def _shorter(attribute: re.Match[str]) -> str:
    """Return an attribute with coordinates of two decimals: a hundredth of a point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])
