"""A sweep that goes on with a file of the time when the default preset was another."""

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from roundscope.tools.errors import StorageError, UsageError, bad
from roundscope.tools.sweep.conditions.axes import Spec, each_point
from roundscope.tools.sweep.conditions.cell import DEFAULTS, PRESET_BEFORE, Value
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.storage.store import reading


def check_default(spec: Spec, keys: Iterable[str], out: Path) -> None:
    """Raise UsageError if a file has cells of this sweep under the preset that was the default.

    The same words made other cells then. Their rows name that preset and stay as they are, but
    this sweep would add its cells beside them instead of going on with them. A file that a sweep
    cannot have made is none of these: it is refused when it is opened for writing.

    spec  the sweep;  keys: of its cells;  out: the results file
    """
    if any(name == "preset" for name, _ in spec.axes):
        return
    try:
        with reading(out) as connection:
            count = _before(connection, spec, keys)
    except (UsageError, StorageError):
        return
    if count:
        cells = "1 cell" if count == 1 else f"{count} cells"
        raise bad(
            "--out",
            str(out),
            f"has {cells} of this sweep under preset={PRESET_BEFORE}, which was the default; it is"
            f" {DEFAULTS['preset']} now: give preset={PRESET_BEFORE} to go on with them,"
            f" preset={DEFAULTS['preset']} to add cells, or another --out",
        )


def _before(connection: sqlite3.Connection, spec: Spec, keys: Iterable[str]) -> int:
    """Return how many cells of the sweep a file has under that preset; 0 if it has some of `keys`.

    Cells are looked up by their keys, so that a large file is not read.
    """

    def held(key: str) -> bool:
        return bool(connection.execute("SELECT 1 FROM cells WHERE key = ?", (key,)).fetchone())

    if any(map(held, keys)):
        return 0
    of_preset = "SELECT 1 FROM cells WHERE preset = ? LIMIT 1"
    if connection.execute(of_preset, (PRESET_BEFORE,)).fetchone() is None:
        return 0
    return sum(held(_key_before(point)) for point in each_point(spec))


def _key_before(point: Mapping[str, Value]) -> str:
    try:
        return cell_of({"preset": PRESET_BEFORE, **point}).key
    except UsageError:  # an event that only kernels have
        return ""
