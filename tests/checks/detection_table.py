"""The table of `detection` in Markdown."""

from typing import Any

HEAD = (
    "| kernel | level | found by | first seen | inputs | least T | heads | draws | s |",
    "|---|---|---|---|---|---|---|---|---|",
)

CHECK = {"compare", "invariance", "edges"}  # what `roundscope check` asks


def table(records: list[dict[str, Any]]) -> str:
    """Return a row for each kernel, and a line that counts."""
    return "\n".join([*HEAD, *map(_row, records), "", _counts(records)])


def _row(r: dict[str, Any]) -> str:
    found = ", ".join(r["by"]) or "—"
    cells = (r["name"], r["level"], found, r["how"] or "—", r["inputs"] or "—")
    least = "—" if r["least_tokens"] is None else r["least_tokens"]
    return f"| {' | '.join(cells)} | {least} | {r['heads']} | {r['draws']} | {r['seconds']} |"


def _counts(records: list[dict[str, Any]]) -> str:
    good = [r for r in records if r["level"] in ("harmless", "repaired")]
    bad = [r for r in records if r not in good]
    by_check = [r for r in bad if CHECK & {*r["by"]}]
    later = ", ".join(f"{r['name']} ({r['by'][0]})" for r in bad if r["by"] and r not in by_check)
    missed = ", ".join(r["name"] for r in bad if not r["by"])
    false = sum(bool(r["by"]) for r in good)
    return (
        f"The tests of `roundscope check` find {len(by_check)} of {len(bad)} faults. Further tests"
        f" find: {later or 'none'}. Not found: {missed or 'none'}. Of {len(good)} good kernels"
        f" {false} are flagged."
    )
