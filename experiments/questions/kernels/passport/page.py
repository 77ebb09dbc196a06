"""The page of a comparison: its answer, its tables and its picture."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.emu.stats.comparison import share_words
from roundscope.experiments.questions.kernels.passport.compare import FEW, Known, Step, by_kernel
from roundscope.experiments.questions.kernels.passport.judged import Judged
from roundscope.experiments.questions.kernels.passport.plans import Twin
from roundscope.experiments.questions.kernels.passport.record import Record, Release, merged
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.report.terminal import plain

TINTS = ("#d3e4f1", "#f7e2d0")  # of bits, which alternate where they change
FAILED = "#eeeeee"
MARKS = {Known.KNOWN: ("=", INK), Known.NARROWED: ("~", INK), Known.OPEN: ("?", "#b2182b")}
STEPS = (
    ("kernel", "type", "on", "from", "to", "rows of bits that changed", "arithmetic"),
    (0, 1, 3, 4, 5, 6),
)
RELEASES = (
    "kernel",
    "type",
    "on",
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

    @property
    def whole(self) -> Record:
        """The releases of both records."""
        return self.new if self.old is self.new else merged((self.old, self.new))


def answer(c: Compared) -> str:
    """Return what changed, in sentences, what is not finite first."""
    ran = [step for step in c.steps if step.ran]
    moved = [step for step in ran if not step.is_same]
    count = Counter(step.known for step in moved)
    strange = [step for step in moved if step.strange]
    words = [f"{step.new.kernel} {step.new.type}: {step.strange}" for step in strange]
    first = f"Not finite: {'; '.join(words)}. " if words else ""
    kernels = {(step.new.kernel, step.new.type, step.new.device) for step in c.steps}
    text = (
        f"{first}Of {len(ran)} steps from one release to the next, of {len(kernels)} kernels,"
        f" {len(moved)} changed bits: of {count[Known.KNOWN]} the arithmetic that changed is known,"
        f" of {count[Known.NARROWED]} it is one of up to {FEW} smallest changes that are named, and"
        f" {count[Known.OPEN]} are open."
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
    on = short_device(s.new.device)
    return [s.new.kernel, s.new.type, on, *_names(s), ", ".join(rows), said]


def _names(s: Step) -> tuple[str, str]:
    """Return the two releases, with the versions of what else changed between them."""
    more = [n for n in s.versions if n not in (s.old.library, "jaxlib", "mlx-cpu")]
    sides = []
    for k, own in enumerate((s.old, s.new)):
        with_more = [f"{name} {s.versions[name][k] or 'none'}" for name in more]
        sides.append(
            ", ".join([f"{own.library} {own.version}" if not k else own.version, *with_more])
        )
    return sides[0], sides[1]


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
            "known": s.known if not s.is_same and s.ran else None,
        }
        for s in c.steps
    ]


KERNELS = (
    "kernel",
    "type",
    "on",
    "releases in order",
    "error of out",
    "of dq",
    "nearest plan to the last release",
    "its share of equal numbers",
)


def kernel_rows(c: Compared) -> list[list[str]]:
    """Return a line for each kernel, type and device, with all of its releases in order."""
    found = []
    for releases in by_kernel(c.whole).values():
        ran = [r for r in releases if not r.failed]
        if not ran:
            continue
        judged = _judged(ran[-1], c)
        text = _short(ran[0], releases)
        for a, b in pairwise(ran):
            text += f" {'=' if a.bits == b.bits else '|'} {_short(b, releases)}"
        if lost := [_short(r, releases) for r in releases if r.failed]:
            text += f" (does not run: {', '.join(lost)})"
        twin, dq = judged.twin, judged.results.get("dq")
        found.append(
            [
                ran[-1].kernel,
                ran[-1].type,
                short_device(ran[-1].device),
                f"{ran[-1].library} {text}",
                f"{judged.results['out'].error:.1e}",
                f"{dq.error:.1e}" if dq else "",
                twin.plan if twin else "none",
                shares(twin) if twin else "",
            ]
        )
    return found


def kernel_records(c: Compared) -> list[dict[str, str]]:
    """Return the lines of `kernel_rows` as data."""
    return [dict(zip(KERNELS, row, strict=True)) for row in kernel_rows(c)]


def shares(twin: Twin) -> str:
    """Return the shares of equal numbers of a plan; one number if all are equal."""
    if all(map(twin.gives, twin.equal)):
        return "all"
    return ", ".join(f"{name} {share_words(x, 4)}" for name, x in twin.equal.items())


def short_device(name: str) -> str:
    """Return the name of a device in a word or two.

    Example:
        >>> short_device("NVIDIA H100 80GB HBM3"), short_device("AMD EPYC 9R45")
        ('H100', 'AMD EPYC')
    """
    words = name.split()
    return words[1] if words[:1] == ["NVIDIA"] and len(words) > 1 else " ".join(words[:2])


def _judged(r: Release, c: Compared) -> Judged:
    return (c.new.bits if r.bits in c.new.bits else c.old.bits)[r.bits]


def release_rows(c: Compared) -> list[list[str]]:
    """Return a line for each release of a kernel."""
    return [_release(r, c) for releases in by_kernel(c.whole).values() for r in releases]


def _release(r: Release, c: Compared) -> list[str]:
    name, on = f"{r.library} {r.version}", short_device(r.device)
    if r.failed:
        return [r.kernel, r.type, on, name, f"does not run: {r.failed}", *[""] * 7]
    judged = _judged(r, c)
    out, dq, twin = judged.results["out"], judged.results.get("dq"), judged.twin
    lost = [f"{n.nan:,} NaN, {n.infinite:,} infinite in {name}"
            for name, n in judged.results.items() if n.nan or n.infinite]  # fmt: skip
    return [
        r.kernel,
        r.type,
        on,
        name,
        "; ".join(lost) or f"{out.error:.2e}",
        f"{out.gain:+.1e}",
        f"{out.bias:+.3f} (n = {out.of:,})",
        f"{dq.error:.2e}" if dq else "",
        f"{judged.drift:.1e}" if dq else "",
        twin.plan if twin else "none",
        shares(twin) if twin else "",
        "same" if r.again else "other",
    ]


def release_records(c: Compared) -> list[Mapping[str, Any]]:
    """Return the releases as data."""
    return [plain(r) for releases in by_kernel(c.whole).values() for r in releases]


def picture(c: Compared) -> Picture | None:
    """Draw the releases of each kernel whose bits changed, in another tint where they did."""
    changed = {(s.new.kernel, s.new.type, s.new.device) for s in c.steps if not s.is_same}
    rows = {key: own for key, own in by_kernel(c.whole).items() if key in changed}
    if not rows:
        return None
    figure, axes = canvas(0.6 + 0.2 * len(rows))
    ax, width = axes[0][0], max(map(len, rows.values()))
    known = {(s.old.key, s.new.key): s for s in c.steps}
    for y, releases in enumerate(rows.values()):
        tint, before = 0, releases[0]
        for x, r in enumerate(releases):
            moved = known.get((before.key, r.key))
            if moved is not None and moved.ran and not moved.is_same:
                tint = 1 - tint
                mark, colour = MARKS[moved.known]
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
    more = [n for n in ("torch", "jax") if n in r.versions and n != r.library]
    return " ".join([r.version, *(f"{name} {r.versions[name]}" for name in more)])
