"""The table of `detection` in Markdown."""

from typing import Any

HEAD = (
    "| kernel | level | found by | first seen | inputs | least T | heads | draws | s |",
    "|---|---|---|---|---|---|---|---|---|",
)


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
    found = [r for r in bad if r["by"]]
    missed = ", ".join(r["name"] for r in bad if not r["by"])
    false = sum(bool(r["by"]) for r in good)
    return (
        f"{len(found)} of {len(bad)} faults are found; not found: {missed or 'none'}. Of"
        f" {len(good)} good kernels {false} are flagged."
    )
