"""The one style of all pictures, as matplotlib Figures, and what they are saved as.

Nothing here uses pyplot or any global state but fonts. The colors can be told apart by color-blind
readers.
"""

import base64
import io
from typing import Any

from matplotlib.figure import Figure

UP, DOWN, QUIET, BAND, INK = "#b2182b", "#2166ac", "#7b8794", "#dfe3e8", "#1f2933"
WIDTH = 9.6  # inches, the width of a page
# the palette of Okabe and Ito, with two colors changed
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933", "#8c6d31")
MARKERS = "osD^vPX*"


def canvas(height: float, rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, Any]:
    """Return a figure of the page's width, and its axes as an array (rows, columns)."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9, colors=INK)
        ax.tick_params(which="minor", labelsize=8, colors=INK)
        ax.xaxis.label.set_size(9.5)
        ax.yaxis.label.set_size(9.5)
    return figure, axes


def png(figure: Figure, dpi: int = 144) -> bytes:
    """Return the figure as the bytes of a PNG file, cropped to its content."""
    out = io.BytesIO()
    figure.savefig(
        out,
        format="png",
        dpi=dpi,
        bbox_inches="tight",
        pad_inches=0.08,
        metadata={"Software": None},
    )
    return out.getvalue()


def data_uri(figure: Figure) -> str:
    """Return the figure as a data URI for the src of an <img>."""
    return "data:image/png;base64," + base64.b64encode(png(figure)).decode("ascii")
