"""One rounding, or one sum, drawn in bits, in lines of at most 100 columns.

The command `explain` prints the lines, and the assertions of `emu.testing` put them into their
messages. They can be read without color too. This module imports rich, so it is imported where
something is drawn.
"""

import math

from rich.text import Text

from roundscope.emu.explanation.one_rounding import Addition, Explanation

WIDTH = 100  # the number of columns of a drawing
LABEL = 11  # the number of columns left of the drawing
TAIL = 24  # how many bits of an addition are shown behind the bar
STYLE = {
    "sign": "magenta",
    "exponent": "yellow",
    "kept": "bold cyan",
    "round": "bold red",
    "sticky": "red",
    "carry": "bold green",
}
WIDE = 40  # the precision above which the columns stand closer together


def lines(e: Explanation, addition: Addition | None = None) -> list[Text]:
    """Return the lines that draw a rounding, below those of an addition whose sum was rounded.

    Args:
        e: the explanation of the rounding.
        addition: the addition that gave the number which is rounded, if it is to be drawn too.

    Returns:
        Lines of rich text of at most `WIDTH` columns.
    """
    return [*(_addition(addition, e) if addition else []), *_lines(e)]


def drawn(e: Explanation) -> str:
    """Return the drawing of a rounding as plain text without color.

    Example:
        >>> from roundscope import emu
        >>> print(drawn(emu.explain("0.1", "bf16")).splitlines()[0])
        value      0.1  to  bf16, ties-to-even
    """
    return "\n".join(line.plain for line in lines(e))


def _row(label: str = "", *parts: tuple[str, str]) -> Text:
    """Return a label followed by styled pieces: (text, a key of STYLE or a style)."""
    line = Text().append(f"{label:<{LABEL}}", style="dim")
    for text, style in parts:
        line.append(text, style=STYLE.get(style, style))
    line.rstrip()
    return line


def _lines(e: Explanation) -> list[Text]:
    mode = "" if str(e.rounding.mode) in str(e.rounding) else f", {e.rounding.mode}"
    note = "" if e.exact_input else "   (nearest to what is written)"
    rows = [_row("value", (e.text, "bold"), (f"  to  {e.rounding}{mode}", ""))]
    rows.append(_row("binary64", (e.value.hex() + note, "dim")))
    if e.exponent is not None:
        rows += [_row(), *_bits(e)]
    rows.append(_row())
    for i, words in enumerate(e.why.split("; ")):
        rows.append(_row("because" if i == 0 else "", (words, "")))
    return [*rows, *_result(e)]


def _bits(e: Explanation) -> list[Text]:
    """Return the value cut where the rounding cuts it, then what is added to the kept part.

    Each part of the value is named above and marked below.
    """
    sign, exponent = _sign(e), _field(e, e.place)
    widths = [4, max(8, len(exponent)), max(4, len(e.kept) + 1), 5, 0]
    room = max(1, WIDTH - LABEL - sum(widths) - 4 * _gap(widths) - len("... 9999 more"))
    sticky, more = e.sticky[:room] or "0", max(0, len(e.sticky) - room)
    heads = [(h, "dim") for h in ("sign", "exponent", "kept", "round", "sticky")]
    kept = f"{e.kept[:1]}.{e.kept[1:]}"
    cells = [
        (sign, "sign"),
        (exponent, "exponent"),
        (kept, "kept"),
        (e.round_bit, "round"),
        (sticky, "sticky"),
    ]
    rows = [_columns("", heads, widths), _columns("exact", cells, widths)]
    rows[-1].append(f"... {more} more" if more else "", style="dim")
    below = (
        "above half" if "1" in e.sticky and e.round_bit == "1" else f"sticky {int('1' in e.sticky)}"
    )
    last = len(kept) - (len(kept) == 2)
    marks = ["", f"2^{e.exponent}", f"{'^':>{last}}", "^", "^" * len(sticky)]
    names = ["", "", f"{'last':>{last}}", "half", below if _gap(widths) == 3 else ""]
    rows += [_columns("", [(m, "dim") for m in row], widths) for row in (marks, names)]
    return [*rows, *_carry(e, kept, widths)]


def _carry(e: Explanation, kept: str, widths: list[int]) -> list[Text]:
    """Return the kept part after the decision, and carets under the bits that the carry flipped."""
    before = _field(e, e.place)
    if not e.up:
        cells = [(_sign(e), "sign"), (before, "exponent"), (kept, "kept"), ("no carry", "kept")]
        return [_columns("kept", cells, widths)]
    assert e.place is not None  # a carry goes into the last place of a finite number
    place, fraction = e.place + 1, len(e.kept) - 1
    leading = "0" if e.kept[0] == "0" and not _becomes_normal(e) else "1"
    after = f"{leading}.{place & ((1 << fraction) - 1):0{fraction}b}" if fraction else "1."
    cells = [
        (_sign(e), "sign"),
        (_field(e, place), "exponent"),
        (after, "kept"),
        ("carry +1", "carry"),
    ]
    bits = f"{e.flips} bit{'s' * (e.flips > 1)} of the code flip{'s' * (e.flips == 1)}"
    grown = ", the binade grows" if e.grows else ", it becomes normal" if _becomes_normal(e) else ""
    marks = ("", _flipped(before, _field(e, place)), _flipped(kept, after), bits + grown)
    return [_columns("kept + 1", cells, widths), _columns("", [(m, "dim") for m in marks], widths)]


def _columns(label: str, cells: list[tuple[str, str]], widths: list[int]) -> Text:
    gap = (" " * _gap(widths), "")
    parts = [
        part
        for (text, style), w in zip(cells, widths, strict=False)
        for part in ((f"{text:<{w}}", style), gap)
    ]
    return _row(label, *parts[:-1])


def _gap(widths: list[int]) -> int:
    return 2 if widths[2] > WIDE else 3


def _field(e: Explanation, place: int | None) -> str:
    """Return the exponent field of a place, "none" where the format has no such field."""
    f, fraction = e.rounding.format, e.rounding.format.precision - 1
    width, field = f.bits - int(f.signed) - fraction, (place or 0) >> fraction
    return f"{field:0{width}b}" if 0 <= field < 1 << width else "none"


def _sign(e: Explanation) -> str:
    return str(int(e.value < 0)) if e.rounding.format.signed else "-"


def _becomes_normal(e: Explanation) -> bool:
    return e.up and e.kept[0] == "0" and "0" not in e.kept[1:]


def _flipped(before: str, after: str) -> str:
    return "".join("^" if a != b else " " for a, b in zip(before, after, strict=False))


def _result(e: Explanation) -> list[Text]:
    rows = [_row(), _row("result", (repr(e.result), "bold"))]
    if e.code is None or e.fields is None:
        rows.append(_row("code", (f"none: {e.rounding.format.name} does not have it", "")))
    else:
        digits = (e.rounding.format.bits + 3) // 4
        parts = [p for p in zip(e.fields, ("sign", "exponent", "kept"), strict=True) if p[0]]
        wide = e.rounding.format.precision > WIDE
        bits = [x for p in parts for x in (p, ("|" if wide else " | ", "dim"))][:-1]
        names = " | ".join(name.replace("kept", "fraction") for _, name in parts)
        code = f"0x{e.code:0{digits}x}   "
        rows.append(_row("code", (code, ""), *bits, ("" if wide else f"   {names}", "dim")))
    ulps = "" if e.ulps is None else f"   = {e.ulps:+.6g} ulp of {_ulp(e)!r}"
    return [*rows, _row("error", (repr(e.error), "bold"), (f"{ulps}   (result - value)", ""))]


def _ulp(e: Explanation) -> float:
    return math.ldexp(1.0, (e.exponent or 0) - e.rounding.format.precision + 1)


def _addition(a: Addition, e: Explanation) -> list[Text]:
    """Return both operands and the sum in bits, aligned at the point and at the last kept bit."""
    f, wide = e.rounding.format, max(len(before) for before, _ in a.rows)
    keep = f.precision - 1
    unit = f"in units of 2^{a.exponent}; {f.name} keeps {keep} bits behind the point, up to the bar"
    rows = [_row("", (unit, "dim"))]
    for label, (before, after), value in zip(
        ("a", "+ b", "= sum"), a.rows, (a.a, a.b, a.total), strict=True
    ):
        tail = after[keep:]
        tail = tail[:TAIL] + "..." if len(tail) > TAIL + 3 else tail
        number = (f" {before:>{wide}}.{after[:keep]:<{keep}}", "kept")
        pieces = [
            ("-" if value < 0 else " ", "sign"),
            number,
            (" | ", "dim"),
            (f"{tail:<{TAIL + 3}}", "sticky"),
        ]
        rows.append(_row(label, *pieces, (f"  {value!r}", "")))
    note = [] if a.exact else [_row("", ("the sum becomes a binary64 number first", "dim"))]
    return [*rows, _row("", (_moved(a), "carry")), *note, _row()]


def _moved(a: Addition) -> str:
    if a.shift > 0:
        return (
            f"carry out into binade 2^{a.exponent + 1}: to make room, the last kept bit is pushed"
            " over the bar"
        )
    if a.shift < 0:
        return f"cancellation: the sum moves {-a.shift} place{'s' * (a.shift < -1)} left"
    return f"the sum stays in binade 2^{a.exponent}"
