"""`roundscope check-cast`: is a user's cast or quantizer what it is meant to be?

Its report has a row for each question, the worst results in bits, and the known ways to round that
would explain them.
"""

import math
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.attention.grammar.roundings import event_of
from roundscope.attention.testing.foreign.user import LIBRARIES, function_named, library_of
from roundscope.emu.blocks.format import INTEGERS, BlockFormat
from roundscope.emu.errors import MEANT, unknown
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding
from roundscope.emu.testing.casts import examine_cast
from roundscope.emu.testing.casts.behaviors import MODES
from roundscope.emu.testing.casts.hadamard import hadamard as transform
from roundscope.emu.testing.casts.records import (
    NARROW,
    Agreement,
    CastReport,
    Example,
    Row,
    Status,
)
from roundscope.emu.testing.casts.shared_scales import Scope, parted
from roundscope.emu.testing.differences import bits_of
from roundscope.emu.testing.foreign import ForeignError, check_timeout, limited
from roundscope.emu.testing.rounding import overflows
from roundscope.tools.check_cast.options import CheckCastOptions
from roundscope.tools.errors import bad
from roundscope.tools.report.deliver import deliver, failed
from roundscope.tools.report.model import (
    Case,
    Cell,
    Code,
    Folded,
    Mood,
    Opening,
    Part,
    Report,
    Section,
    Table,
    Text,
    notes,
)
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.folder import checked_folder, request_of
from roundscope.tools.results.machine import all_versions, command_line

SCHEMA = "roundscope-check-cast-1"
READ = (
    "Each question gives the function many numbers and compares every result, bit for"
    " bit, with the rounding that was asked for. As asked: how many results have the right bits."
    " Below the questions, the worst results are shown in bits: sign, exponent and fraction. Known"
    " behaviors are other ways to round, with the number of results that each would explain: the"
    " first in that list is what the function most likely does."
)
OF_SCALES = ("scales", "smallest blocks", "tensor scale")  # rows whose results are scales
MOODS: dict[Status, Mood] = {Status.PASS: "good", Status.FAIL: "bad", Status.SKIPPED: "note"}
NARROW_TOO = "Next, if the function means to divide in float32, ask for just that"
FEW = 5  # how many known behaviors and exceptions the terminal shows
RECORD = "check-cast.json"


def run(options: CheckCastOptions) -> int:
    """Check a cast, print the report and write the files. Return 1 if a row fails, and else 0.

    Raises:
        ValueError: for a format or a function that is not known.
    """
    function, out = options.function, options.out
    if out is not None:
        checked_folder(out, RECORD)
    rounding = asked_of(options.format)
    check_timeout(options.timeout)
    signs = None if options.signs is None else signs_of(options.signs)
    if options.hadamard is not None:
        transform(options.hadamard, signs)
    cast, chosen = cast_named(function, options.library)
    began = time.perf_counter()
    name = f"check-cast {function} {options.format}"
    try:
        found = examine_cast(
            lambda x: limited(cast, options.timeout, x, what="function"),
            rounding,
            tensor_scale=options.tensor_scale,
            divided=options.divided,
            hadamard=options.hadamard,
            signs=signs,
        )
    except ForeignError as error:
        if error.is_refusal:
            raise
        return failed(options.junit, name, function, error)
    seconds = time.perf_counter() - began
    told = report(replace(options, library=chosen), found, seconds)
    deliver(told, out, RECORD, as_json=options.json, junit_file=options.junit)
    return 0 if found.passed else 1


def asked_of(words: str) -> str | Rounding | BlockFormat:
    """Return what a text asks for; with one scale for a tensor, a token or a channel, the text.

    Raises ValueError, with the known words, for an unknown one.
    """
    plain, scope = parted(words)
    try:
        asked = event_of(plain)
    except ValueError:
        if (meant := _meant(words)) is None:
            raise
        raise ValueError(meant) from None
    return asked if scope is None else words


def _meant(words: str) -> str | None:
    """Return the error of a format with a misspelled element or scope, such as int9[token]."""
    found = re.fullmatch(r"([^\[\]]+)\[([a-z]\w*)\](.*)", words.lower())
    if found is None:
        return None
    name, scope, rest = found.groups()
    if name in MEANT or (name in (*INTEGERS, *NAMED) and scope in (*Scope,)):
        return None  # whose own error says what is meant, or of a word behind
    known = [f"{e}[{s}]{rest}" for s in Scope for e in (*INTEGERS, *NAMED) if e != "e8m0fnu"]
    same = [k for k in known if k.startswith(f"{name}[") or k.endswith(f"[{scope}]{rest}")]
    elsewhere = "write ELEMENT[tensor], [token] or [channel], or ELEMENT[SIZE], as int8[128]"
    return unknown("format", words, same or known, elsewhere=elsewhere)


def signs_of(text: str) -> np.ndarray:
    """Return the signs of a transform from + and -, or from a file.npy; ValueError for others."""
    if text and not set(text) - set("+-"):
        return np.array([1 if sign == "+" else -1 for sign in text])
    try:
        return np.asarray(np.load(text, allow_pickle=False))
    except (OSError, ValueError):
        raise bad(
            "--signs", text, "write + and -, one for each number, or name a file.npy of 1 and -1"
        ) from None


def cast_named(name: str, library: str | None) -> tuple[Callable[[np.ndarray], Any], str]:
    """Return the cast that module:function is, and the library whose arrays it is given.

    library: None for the one that the function's module has imported. Raises ValueError if the
    function does not exist, or the library is not known.
    """
    if library is not None and library not in LIBRARIES:
        raise bad("--library", library, f"must be one of {', '.join(LIBRARIES)}")
    found = function_named(name, "FUNCTION")
    if not callable(found):
        raise bad("FUNCTION", name, "is no function; name one that takes an array")
    chosen = library or library_of(found)

    def of_torch(x: np.ndarray) -> Any:
        import torch

        with torch.no_grad():
            return found(torch.from_numpy(x))

    def of_jax(x: np.ndarray) -> Any:
        import jax.numpy as jnp

        return found(jnp.asarray(x))

    return {"numpy": found, "torch": of_torch, "jax": of_jax}[chosen], chosen


def report(asked: CheckCastOptions, found: CastReport, seconds: float) -> Report:
    """Return the report on a cast: the page, what the terminal shows, JSON and test cases."""
    return Report(
        title=f"check-cast {asked.function} {asked.format}",
        heading=f"{asked.function} against {asked.format}",
        about=f"It returns {found.returned}, and was given arrays of {asked.library}."
        f" {seconds:.1f} s.",
        opening=_opening(asked, found),
        parts=[
            Folded("How to read this page", notes(READ)),
            Section(
                "Questions",
                [
                    _questions(found.rows, "question"),
                    *(_worst(row, found.asked) for row in found.rows if row.examples),
                ],
            ),
            *_agreements(
                "Scale rules",
                "On how many blocks each rule agrees.",
                found.scales,
                *_exceptions(found),
            ),
            *_agreements("Known behaviors", "How many results each explains.", found.behaviors),
            Section("What was run", [Code(" ".join(command_line()))]),
        ],
        brief=_brief(asked, found),
        data=document(asked, found, seconds),
        cases=[_case(row, found.asked) for row in found.rows],
    )


def document(asked: CheckCastOptions, found: CastReport, seconds: float) -> dict[str, Any]:
    """Return the contents of check-cast.json as data."""
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "versions": all_versions("jax" if asked.library == "jax" else "numpy"),
        "request": request_of(
            asked.function,
            asked.format,
            asked.library,
            asked.tensor_scale,
            asked.divided,
            asked.hadamard,
            asked.signs,
        ),
        "function": asked.function,
        "format": asked.format,
        "library": asked.library,
        "returned": found.returned,
        "passed": found.passed,
        "sentence": found.sentence,
        "behaves_as": found.behaves_as,
        "as_asked": plain(found.whole),
        "rows": [plain(row) | {"examples": [*map(_data, row.examples)]} for row in found.rows],
        "behaviors": plain(found.behaviors),
        "scale_rules": plain(found.scales),
        "exceptions": [*map(_data, found.exceptions)],
        "seconds": round(seconds, 1),
    }


def _data(example: Example) -> dict[str, object]:
    """Return an example as plain data, with its numbers in hexadecimal too."""
    data: dict[str, object] = plain(example)
    numbers = ("given", "got", "expected", "scale")
    return data | {f"{name}_hex": hexed(float(getattr(example, name))) for name in numbers}


def _opening(asked: CheckCastOptions, found: CastReport) -> Opening:
    ran = [row for row in found.rows if row.status is not Status.SKIPPED]
    number = f"{len(found.failed) or 'None'} of {len(ran)} questions failed. {found.sentence}"
    if found.passed:
        return Opening(
            f"{asked.function} rounds as {asked.format} does, in every question asked.",
            number,
            f"{_command(asked)} --junit cast.xml",
            why="Next: keep it so, in CI by",
            mood="good",
        )
    examples, r, explained = [e for row in found.failed for e in row.examples], found.asked, ""
    if not isinstance(r, BlockFormat) and examples:  # the worst one
        mode = "" if r.mode is RoundingMode.TIES_TO_EVEN else f" --mode {r.mode.value}"
        given = hexed(examples[0].given)
        explained = f"roundscope explain {given} --to {r.format.name}{mode}"
    why = "Next, one of the results that differ, in bits as it should be"
    if again := _again(asked, found):
        explained, why = again[1], again[0]
    instead = f": it behaves as {found.instead}" if found.instead else ""
    return Opening(
        f"{asked.function} does not round as {asked.format} does{instead}.",
        number,
        explained,
        why=why,
        mood="bad",
    )


def _again(asked: CheckCastOptions, found: CastReport) -> tuple[str, str] | None:
    """Return what to ask instead in words, and the command: what explains most or all results."""
    if found.instead in (f"{found.name}, {NARROW}", f"{found.name} divided in float32"):
        return NARROW_TOO, _command(replace(asked, divided="float32"))
    if (other := found.otherwise) is None:
        if isinstance(found.asked, Rounding) and found.instead in _roundings(found.asked):
            own = replace(asked, format=str(_roundings(found.asked)[found.instead]))
            return "Next, if the function means that, ask for it", _command(own)
        return None
    changed: dict[str, Any] = {other.option: other.value}
    if other.option == "tensor_scale":
        changed = {"tensor_scale": float(other.value)}
    return f"Next, since {other}, ask for that", _command(replace(asked, **changed))


def _roundings(asked: Rounding) -> dict[str, Rounding]:
    """Return the roundings of other modes and policies by their names as known behaviors."""
    policies = overflows(asked.format)
    all_of = (rounding(asked, mode, overflow=p) for mode in MODES for p in policies)
    return {f"{r.format.name}:{r.mode}:{r.overflow}": r for r in all_of}


def _command(asked: CheckCastOptions) -> str:
    """Return the command that asks for this, for a shell."""
    words = f"{asked.function} --format {shlex.quote(asked.format)}{_more(asked)}"
    return f"roundscope check-cast {words}"


def _more(asked: CheckCastOptions) -> str:
    """Return what else was asked, as options that ask it again."""
    more = "" if asked.tensor_scale is None else f" --tensor-scale {asked.tensor_scale!r}"
    more += "" if asked.hadamard is None else f" --hadamard {asked.hadamard}"
    more += "" if asked.signs is None else f" --signs={asked.signs}"
    return more + ("" if asked.divided == "exact" else f" --divided {asked.divided}")


def _brief(asked: CheckCastOptions, found: CastReport) -> list[Part]:
    """Return what the terminal shows, the sentence on the first line."""
    parts: list[Part] = [
        Text(found.sentence, "good" if found.passed else "bad"),
        Text(f"{asked.function} against {asked.format}; it returns {found.returned}"),
        _questions(found.rows),
    ]
    for row in found.failed:
        parts.append(Text(f"{row.name}: {row.question}", "strong"))
        if row.examples:
            example = row.examples[0]
            lines = [f"  {example.where}"] if example.where else []
            for label, decimal, hexadecimal, bits in lines_of(example, row, found.asked):
                lines.append(f"  {label:<18}{decimal:<15} {hexadecimal:<16} {bits}")
            parts.append(Code("\n".join(lines)))
    if found.scales:
        parts.append(_agreement("scale rules: on how many blocks each agrees", found.scales))
    if found.exceptions:
        lines = [
            f"  largest {hexed(e.given)}: scale {hexed(e.got)}, expected {hexed(e.expected)}"
            for e in found.exceptions[:FEW]
        ]
        title = f"blocks that {found.scales[0].name} does not explain"
        parts.append(Section(title, [Code("\n".join(lines))]))
    if not found.passed:
        title = "known behaviors: how many results each explains"
        if not found.has_nearest and found.otherwise is None:
            title += "; none explains half, so that none is a cause"
        parts.append(_agreement(title, found.behaviors[:FEW]))
    if again := _again(asked, found):
        parts += [Text(f"{again[0]}:"), Code(f"  {again[1]}")]
    return parts


def _questions(rows: Sequence[Row], *more: str) -> Table:
    """Return a row for each question; more: further columns, which are fields of a row."""
    cells = [
        (
            r.name,
            Cell(str(r.status), MOODS[r.status]),
            share(r),
            *(getattr(r, m) for m in more),
            r.note,
        )
        for r in rows
    ]
    heads = ["", "answer", "as asked", *more, "note"]
    return Table(heads, cells, [r.status is Status.FAIL for r in rows], name="answers")


def share(row: Row) -> str:
    """Return "252 of 252" of a row, or nothing for a skipped one."""
    return f"{row.agree:,} of {row.of:,}" if row.of else ""


def _worst(row: Row, asked: Rounding | BlockFormat) -> Section:
    lines = [
        (str(number), *line)
        for number, example in enumerate(row.examples, 1)
        for line in lines_of(example, row, asked)
    ]
    heads = ("example", "", "decimal", "hexadecimal", "sign|exponent|fraction")
    return Section(f"{row.name}: the worst", [Table(heads, lines)])


def _agreements(title: str, note: str, found: Sequence[Agreement], *more: Part) -> list[Section]:
    return [Section(title, [*notes(note), _agreement("", found), *more])] if found else []


def _agreement(title: str, found: Sequence[Agreement]) -> Table:
    rows = [(a.name, f"{a.agree:,}", f"{a.of:,}") for a in found]
    return Table(("behavior", "agrees", "of"), rows, title=title)


def _exceptions(found: CastReport) -> list[Section]:
    if not found.exceptions:
        return []
    rows = [(e.where, hexed(e.given), hexed(e.got), hexed(e.expected)) for e in found.exceptions]
    heads = ("block", "largest magnitude", "scale got", "scale expected")
    return [Section(f"Blocks that {found.scales[0].name} does not explain", [Table(heads, rows)])]


def _case(row: Row, asked: Rounding | BlockFormat) -> Case:
    """Return the test case of a row; its failure has counts, the note and the worst example."""
    if row.status is Status.SKIPPED:
        return Case(row.name, skipped=row.note)
    if row.status is not Status.FAIL:
        return Case(row.name)
    text = [f"{row.name}: {share(row)} as asked. {row.question}"]
    text += [row.note] if row.note else []
    for example in row.examples[:1]:
        text += ["  ".join(line) for line in lines_of(example, row, asked)]
    return Case(row.name, failure="\n".join(text))


def lines_of(
    example: Example, row: Row, asked: Rounding | BlockFormat
) -> list[tuple[str, str, str, str]]:
    """Return what was given, got and expected: (label, decimal, hexadecimal, bits) of each."""
    if row.name == "tensor scale":
        f = format_named("fp32")
    elif isinstance(asked, Rounding):
        f = asked.format
    else:
        f = asked.scale if row.name in OF_SCALES else asked.element.format
    of_scales = row.name in OF_SCALES
    scale = 1.0 if of_scales else example.scale
    given = "largest magnitude" if of_scales else "input"
    lines = [_line(given, example.given, example.given, format_named("fp32"))]
    if math.isnan(example.given):  # which NaN it was stands in the note of its row
        lines = [(given, "nan", "nan", "")]
    is_grid = f in INTEGERS.values() and not of_scales
    unit = 2.0 ** (f.precision - 1) if is_grid else 1.0
    if scale != 1.0:
        lines.append(("scale", f"{scale / unit:.9g}", hexed(scale / unit), ""))
    for label, value in (("got", example.got), ("expected", example.expected)):
        label, decimal, hexadecimal, bits = _line(label, value, value / scale, f)
        if is_grid and math.isfinite(value):
            bits = f"{f.name} {value / scale * unit:.9g}"
        if math.isnan(value) and not f.nan and isinstance(asked, BlockFormat):
            bits = f"{f.name} has no NaN: only the scale can be NaN"
        lines.append((label, decimal, hexadecimal, bits))
    return lines


def _line(label: str, value: float, stored: float, f: Format) -> tuple[str, str, str, str]:
    return label, f"{value:.9g}", hexed(value), f"{f.name} {bits_of(stored, f)}"


def hexed(x: float) -> str:
    """Return a number as a hexadecimal float without trailing zeros, such as 0x1.8p-3."""
    fraction, p, exponent = x.hex().partition("p")
    return f"{fraction.rstrip('0').rstrip('.')}{p}{exponent}" if x else x.hex()
