"""The page of a comparison: its answer, its tables and its picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.experiments.questions.kernels.passport.compare import Step
from roundscope.experiments.questions.kernels.passport.record import Record, Release
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.report.terminal import plain

TINTS = ("#d3e4f1", "#f7e2d0")  # of bits, which alternate where they change
FAILED = "#eeeeee"
STEPS = (
    ("kernel", "type", "from", "to", "rows of bits that changed", "arithmetic"),
    (0, 1, 2, 3, 4, 5),
)
RELEASES = (
    "kernel",
    "type",
    "release",
    "error of out",
    "gain",
    "bias",
    "of dq",
    "row sums of dS",
    "nearest plan",
    "share of equal bits",
    "again",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two records, or one given twice, and the steps between their releases."""

    old: Record
    new: Record
    steps: Sequence[Step]
    alone: Sequence[str] = ()


def answer(c: Compared) -> str:
    """Return what changed, in sentences, what is not finite first."""
    ran = [step for step in c.steps if step.ran]
    moved = [step for step in ran if not step.is_same]
    known = [step for step in moved if step.found]
    strange = [step for step in moved if step.strange]
    words = [f"{step.new.kernel} {step.new.type}: {step.strange}" for step in strange]
    first = f"Not finite: {'; '.join(words)}. " if words else ""
    kernels = {(step.new.kernel, step.new.type, step.new.device) for step in c.steps}
    text = (
        f"{first}Of {len(ran)} steps from one release to the next, of {len(kernels)} kernels,"
        f" {len(moved)} changed bits: of {len(known)} the arithmetic that changed is known, and"
        f" {len(moved) - len(known)} are open."
    )
    failed = len(c.steps) - len(ran)
    if failed:
        text += f" In {failed} more one of the two did not run."
    if c.alone:
        text += f" {len(c.alone)} kernels are in one record alone."
    return text


def step_rows(c: Compared) -> list[list[str]]:
    """Return a line for each step that changed bits, or in which one of the two did not run."""
    return [_step(s) for s in c.steps if not s.is_same and (s.ran or s.old.failed != s.new.failed)]


def _step(s: Step) -> list[str]:
    rows = [f"{name} {r.changed} of {r.of}" for name, r in s.rows.items()]
    if s.ran:
        said = f"{s.strange}; {s.arithmetic}" if s.strange else s.arithmetic
    elif s.old.failed:
        said = f"before: {s.old.failed}"
    else:
        said = f"after: {s.new.failed}"
    return [s.new.kernel, s.new.type, *_names(s), ", ".join(rows), said]


def _names(s: Step) -> tuple[str, str]:
    """Return the two releases; by another library where that of the kernel is the same."""
    if s.old.version != s.new.version:
        return f"{s.old.library} {s.old.version}", s.new.version
    names = [name for name in s.versions if name != "python"] or [*s.versions]
    sides = (" ".join(f"{n} {s.versions[n][k] or 'none'}" for n in names) for k in (0, 1))
    first, second = sides
    return first, second


def step_records(c: Compared) -> list[dict[str, Any]]:
    """Return all steps as data."""
    return [
        {
            "kernel": s.new.kernel,
            "type": s.new.type,
            "device": s.new.device,
            "old": s.old.version,
            "new": s.new.version,
            "versions": {name: list(pair) for name, pair in s.versions.items()},
            "same": s.is_same,
            "failed": [s.old.failed, s.new.failed],
            "rows": plain(s.rows),
            "not_finite": s.strange,
            "arithmetic": s.arithmetic,
            "known": s.found,
        }
        for s in c.steps
    ]


def releases_of(c: Compared) -> list[Release]:
    """Return the releases of both records, each once."""
    found = {release.key: release for record in (c.old, c.new) for release in record.releases}
    return [found[key] for key in found]


def release_rows(c: Compared) -> list[list[str]]:
    """Return a line for each release of a kernel."""
    return [_release(r, c) for r in releases_of(c)]


def _release(r: Release, c: Compared) -> list[str]:
    name = f"{r.library} {r.version}"
    if r.failed:
        return [r.kernel, r.type, name, f"does not run: {r.failed}", *[""] * 7]
    judged = (c.new.bits.get(r.bits) or c.old.bits[r.bits]) if r.bits else None
    assert judged is not None
    out, dq, twin = judged.results["out"], judged.results.get("dq"), judged.twin
    lost = [f"{n.nan:,} NaN, {n.infinite:,} infinite in {name}"
            for name, n in judged.results.items() if n.nan or n.infinite]  # fmt: skip
    return [
        r.kernel,
        r.type,
        name,
        "; ".join(lost) or f"{out.error:.2e}",
        f"{out.gain:+.1e}",
        f"{out.bias:+.3f} (n = {out.of:,})",
        f"{dq.error:.2e}" if dq else "",
        f"{judged.drift:.1e}" if dq else "",
        twin.plan if twin else "none",
        ", ".join(f"{name} {share:.5f}" for name, share in twin.equal.items()) if twin else "",
        "same" if r.again else "other",
    ]


def release_records(c: Compared) -> list[Mapping[str, Any]]:
    """Return the releases as data."""
    return [plain(release) for release in releases_of(c)]


def picture(c: Compared) -> Picture | None:
    """Draw a row for each kernel: its releases, in another tint where bits changed."""
    rows: dict[tuple[str, str, str], list[Release]] = {}
    for s in c.steps:
        row = rows.setdefault((s.new.kernel, s.new.type, s.new.device), [])
        row += [r for r in (s.old, s.new) if r not in row]
    if not rows:
        return None
    figure, axes = canvas(0.8 + 0.235 * len(rows))
    ax, width = axes[0][0], max(map(len, rows.values()))
    known = {(s.old.key, s.new.key): s for s in c.steps}
    for y, releases in enumerate(rows.values()):
        tint, before = 0, releases[0]
        for x, r in enumerate(releases):
            moved = known.get((before.key, r.key))
            if moved is not None and moved.ran and not moved.is_same:
                tint = 1 - tint
                mark, colour = ("=", INK) if moved.found else ("?", "#b2182b")
                ax.text(x - 0.5, y, mark, ha="center", va="center", fontsize=9, color=colour)
            colour = FAILED if r.failed else TINTS[tint]
            ax.add_patch(Rectangle((x - 0.43, y - 0.42), 0.86, 0.84, color=colour, lw=0))
            style = {"color": QUIET if r.failed else INK, "fontsize": 7}
            ax.text(x, y, _short(r, releases), ha="center", va="center", **style)
            before = r if not r.failed else before
    ax.set(xlim=(-0.5, width - 0.5), ylim=(len(rows) - 0.5, -0.5), xticks=[])
    ax.set_yticks(range(len(rows)), [f"{kernel} {kind}" for kernel, kind, _ in rows], fontsize=7.5)
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    return figure


def _short(r: Release, releases: Sequence[Release]) -> str:
    """Return the version; where several releases have it, that of what they run on too."""
    if sum(other.version == r.version for other in releases) == 1:
        return r.version
    differ = {n for o in releases for n in r.versions if o.versions.get(n) != r.versions[n]}
    more = [n for n in ("torch", "jax", "numpy") if n in differ and n != r.library]
    return f"{r.version} {more[0]} {r.versions[more[0]]}" if more else r.version
