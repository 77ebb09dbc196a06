"""The command `explain`: one rounding, drawn in bits or as JSON."""

from typing import Any

from roundscope.emu.explanation.drawing import lines
from roundscope.emu.explanation.one_rounding import Addition, Explanation, add, explain
from roundscope.emu.roundings.modes import Rounding
from roundscope.tools.report.terminal import console, plain, print_json


def run(value: str, r: Rounding, plus: str | None = None, *, as_json: bool = False) -> None:
    """Explain a rounded value, or a rounded sum. Raises ValueError for words that are not known."""
    addition = add(value, plus, r.format) if plus is not None else None
    e = explain(addition.total if addition else value, r)
    if as_json:
        print_json(document(e, addition))
        return
    for line in lines(e, addition):
        console().print(line)


def document(e: Explanation, addition: Addition | None = None) -> dict[str, Any]:
    """Return the explanation as plain data, with the parts of the rounding by name."""
    r = e.rounding
    result: dict[str, Any] = plain(e)
    result["rounding"] = {
        "format": r.format.name,
        "mode": r.mode.value,
        "overflow": r.overflow,
        "seed": r.seed,
    }
    result["code"] = None if e.code is None else f"0x{e.code:0{(r.format.bits + 3) // 4}x}"
    return result | ({"addition": plain(addition)} if addition else {})
