"""What all figures of this study share: how an emulation or an input is drawn.

Here is also the caption on seeds.
"""

from typing import Any

from roundscope.experiments.framework.figures.series import COLOURS
from roundscope.tools.report.pictures import MARKERS

SEEDS = "Faint dots: seeds; markers and bars: mean and 95 % t interval over seeds."
STYLED = ("ops:bf16", "sums:bf16", "fa2-bf16", "qiu-yao", "one-signed-v", "sink", "sample:layer4")


def style(name: str) -> dict[str, Any]:
    """Return the color and marker of an emulation or input, the same in every picture."""
    place = STYLED.index(name)
    return {"color": COLOURS[place], "marker": MARKERS[place]}
