"""The command `formats`: the table of number formats."""

from collections.abc import Iterable
from typing import Any

from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.tools.report import terminal
from roundscope.tools.report.model import Code, Part, Table, Text

LEGEND = (
    "p: precision.  epsilon: from 1 to the next number.  tie window: exp(-g) rounds to 1 up to"
    " this g."
)
OTHERS = (  # words that stand for many formats, or for what a list of plans calls one
    " int8[64]     any element, int4 and int8 too, in blocks of 64, a scale in fp32;"
    "\n              128 x 64 as e4m3fn[128x64]; another scale as e2m1fn[16]*e4m3fn",
    " int8[token]  in check-cast: a scale for each row; int8[channel] for each"
    "\n              column, int8[tensor] for the array",
    " e4m3fn-blocks, e4m3fn/256: such blocks, and E4M3 over 256, in lists of plans",
)
OPTIONAL = (3, 5)  # columns that a narrow screen goes without: emin and min normal


def row(f: Format) -> dict[str, Any]:
    """Return the columns of one format; min_subnormal is None where there are no subnormals."""
    return {
        "name": f.name,
        "bits": f.bits,
        "precision": f.precision,
        "emin": f.emin,
        "max": f.max_finite,
        "min_normal": f.min_normal,
        "min_subnormal": f.min_positive if f.zero and f.precision > 1 else None,
        "epsilon": f.epsilon,
        "inf": f.inf,
        "nan": f.nan,
        "tie_window": f.tie_window,
    }


def show(names: Iterable[str] = (), as_json: bool = False) -> None:
    """Print the formats of these names, or all. Raises ValueError for another name."""
    rows = [row(format_named(name)) for name in names or NAMED]
    if as_json:
        terminal.print_json(rows)
        return
    heads = ["p" if key == "precision" else key.replace("_", " ") for key in rows[0]]
    cells = [[_cell(value) for value in r.values()] for r in rows]
    parts: list[Part] = [Table(heads, cells, optional=OPTIONAL), Text(LEGEND, "note")]
    if not names:
        title = "Block formats, for the operands of products (docs/findings/block-formats.md):"
        lines = []
        for name, f in BLOCK_NAMED.items():
            tile = f"{f.rows} x {f.size}" if f.rows > 1 else f"{f.size}"
            whole = ", the array's in fp32" if f.tensor else ""
            about = f"{f.element.format.name}, a scale in {f.scale.name} for {tile} numbers{whole}"
            lines.append(f" {name:12} {about}")
        parts += [Text(""), Text(title), Code("\n".join([*lines, *OTHERS]))]
    terminal.show(parts)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bool, str)):
        return value if isinstance(value, str) else "yes" if value else "no"
    is_long = isinstance(value, float) and (value != int(value) or value > 1e6)
    return f"{value:.4g}" if is_long else f"{value:g}"
