"""A sweep that goes on with a file of the time when the default preset was another."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from roundscope.experiments.errors import StorageError, UsageError, bad
from roundscope.experiments.sweep.conditions.cell import DEFAULTS, PRESET_BEFORE, Value
from roundscope.experiments.sweep.conditions.condition import cell_of
from roundscope.experiments.sweep.storage.store import reading


def check_default(points: Sequence[Mapping[str, Value]], keys: Collection[str], out: Path) -> None:
    """Raise UsageError if a file has cells of this sweep under the preset that was the default.

    The same words made other cells then. Their rows name that preset and stay as they are, but
    this sweep would add its cells beside them instead of going on with them.

    points  those of `axes.points`;  keys: of their cells;  out: the results file
    """
    if any("preset" in point for point in points):
        return
    held = _presets(out)
    if PRESET_BEFORE not in held.values() or not held.keys().isdisjoint(keys):
        return
    if count := sum(_key_before(point) in held for point in points):
        cells = "1 cell" if count == 1 else f"{count} cells"
        raise bad(
            "--out",
            str(out),
            f"has {cells} of this sweep under preset={PRESET_BEFORE}, which was the default; it is"
            f" {DEFAULTS['preset']} now: give preset={PRESET_BEFORE} to go on with them,"
            f" preset={DEFAULTS['preset']} to add cells, or another --out",
        )


def _presets(out: Path) -> dict[str, str]:
    """Return key -> preset of every cell of a file; none of a file that a sweep cannot have made.

    That file is refused when it is opened for writing.
    """
    try:
        with reading(out) as connection:
            return dict(connection.execute("SELECT key, preset FROM cells"))
    except (UsageError, StorageError):
        return {}


def _key_before(point: Mapping[str, Value]) -> str:
    try:
        return cell_of({"preset": PRESET_BEFORE, **point}).key
    except UsageError:  # an event that only kernels have
        return ""
