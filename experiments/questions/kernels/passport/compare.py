"""Which release of a kernel changed which bits, and what arithmetic changed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from roundscope.experiments.questions.kernels.passport.judged import Judged
from roundscope.experiments.questions.kernels.passport.plans import changed
from roundscope.experiments.questions.kernels.passport.record import Record, Release, numbered
from roundscope.experiments.questions.kernels.passport.writer.calls import FEATURES, WIDTH

OPEN = "open"
NEAR = 0.999  # the share of equal numbers from which a plan says something of a change


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How many rows of a result changed, of how many, and the first of them."""

    changed: int
    of: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A kernel from one release to another, on one device.

    Attributes:
        old, new: The releases.
        versions: The versions that differ, library -> (old, new); "" where it is not installed.
        rows: Of each result whose bits changed, the rows of features that did.
        strange: What is NaN or infinite in one of them, in words; "" for nothing.
        arithmetic: What changed in it, in words of plans; `OPEN` with the reason if it is not
            known, "" if no bit changed.
        found: Whether `arithmetic` is known.
    """

    old: Release
    new: Release
    versions: dict[str, tuple[str, str]]
    rows: dict[str, Rows] = field(default_factory=dict)
    strange: str = ""
    arithmetic: str = ""
    found: bool = False

    @property
    def is_same(self) -> bool:
        """Whether both ran and every bit is the same."""
        return self.old.bits == self.new.bits and not self.old.failed

    @property
    def ran(self) -> bool:
        """Whether both ran."""
        return not self.old.failed and not self.new.failed


def steps(old: Record, new: Record) -> list[Step]:
    """Return the steps from one record to another, kernel by kernel.

    Of two records a step leads from the last release of the first to the last one of the second; of
    one that is given twice, the same object, from each release that ran to the next.
    """
    found = []
    for key, releases in by_kernel(new).items():
        if old is new:
            ran = [release for release in releases if not release.failed]
            found += [step(a, b, old, new) for a, b in pairwise(ran)]
        elif before := by_kernel(old).get(key):
            found.append(step(before[-1], releases[-1], old, new))
    return found


def alone(old: Record, new: Record) -> list[str]:
    """Return the kernels, types and devices that one of two records lacks, in words."""
    keys = [{*by_kernel(record)} for record in (old, new)]
    return [f"{kernel} in {kind} on {on}" for kernel, kind, on in sorted(keys[0] ^ keys[1])]


def by_kernel(record: Record) -> dict[tuple[str, str, str], list[Release]]:
    """Return the releases of each kernel, type and device, from the oldest to the newest."""
    found: dict[tuple[str, str, str], list[Release]] = {}
    for release in record.releases:
        found.setdefault((release.kernel, release.type, release.device), []).append(release)
    for releases in found.values():
        releases.sort(key=lambda r: [numbered(r.version), *_numbers(r)])
    return dict(sorted(found.items()))


def _numbers(release: Release) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in sorted(release.versions):
        yield name, numbered(release.versions[name])


def step(a: Release, b: Release, old: Record, new: Record) -> Step:
    """Return what changed from release a of one record to release b of another."""
    names = dict.fromkeys((*a.versions, *b.versions))
    pairs = {name: (a.versions.get(name, ""), b.versions.get(name, "")) for name in names}
    versions = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if a.failed or b.failed or a.bits == b.bits:
        return Step(old=a, new=b, versions=versions)
    if a.inputs != b.inputs:
        words = f"{OPEN}: the two had other inputs"
        return Step(old=a, new=b, versions=versions, arithmetic=words)
    before, after = old.bits[a.bits], new.bits[b.bits]
    rows = _rows(before, after)
    words, found = _arithmetic(before, after, rows)
    strange = [
        f"{count:,} {what} in {name} of {release.version}"
        for release, judged in ((a, before), (b, after))
        for name, result in judged.results.items()
        for what, count in (("NaN", result.nan), ("infinite", result.infinite))
        if count
    ]
    return Step(
        old=a,
        new=b,
        versions=versions,
        rows=rows,
        strange=", ".join(strange),
        arithmetic=words,
        found=found,
    )


def _rows(before: Judged, after: Judged) -> dict[str, Rows]:
    """Return the rows whose checksums differ, of results that both have and whose digests do."""
    found = {}
    for name, result in before.results.items():
        if name not in after.results or after.results[name].digest == result.digest:
            continue
        count = result.of // (FEATURES if before.operation == "attention" else WIDTH)
        size = len(result.rows) // count
        pairs = zip(*(_pieces(r.rows, size) for r in (result, after.results[name])), strict=True)
        differ = [n for n, (own, other) in enumerate(pairs) if own != other]
        found[name] = Rows(changed=len(differ), of=count, first=differ[0] if differ else -1)
    return found


def _pieces(text: str, size: int) -> list[str]:
    return [text[n : n + size] for n in range(0, len(text), size)]


def _arithmetic(before: Judged, after: Judged, rows: dict[str, Rows]) -> tuple[str, bool]:
    """Return what arithmetic changed, in words, and whether it is known."""
    sides = {"before": before, "after": after}
    if {*before.results} != {*after.results} and not rows:
        return f"{OPEN}: other results were returned", False
    lacking = {
        side: [name for name in rows if judged.twin is None or not judged.twin.gives(name)]
        for side, judged in sides.items()
    }
    missing = {side: names for side, names in lacking.items() if names}
    why = "; ".join(_lack(sides[side], side, names) for side, names in missing.items())
    if before.twin is None or after.twin is None:
        return f"{OPEN}: {why}", False
    words = changed(before.twin, after.twin, rows)
    text = ", ".join(words)
    if missing:
        near = all(t.equal.get(n, 0.0) >= NEAR for t in (before.twin, after.twin) for n in rows)
        most = f"of all but few numbers {text}; " if near and words else ""
        return f"{OPEN}: {most}{why}", False
    if not words:  # such as two zeros of other signs, of which a comparison of numbers is silent
        return f"{OPEN}: one plan gives the numbers of both", False
    ties = before.twin.ties + after.twin.ties
    also = f" (or another pair of {ties + 2} plans that these numbers do not tell apart)"
    return text + (also if ties else ""), True


def _lack(judged: Judged, side: str, names: Sequence[str]) -> str:
    """Return why a side has no plan for some results, in words; of several, for the first one."""
    if any(result.nan or result.infinite for result in judged.results.values()):
        return f"{side} not all numbers are finite"
    if judged.twin is None:
        return f"{side} no plan was found"
    name = "out" if "out" in names else names[0]
    share = 1e4 * judged.twin.equal.get(name, 0.0)
    base, _, words = judged.twin.plan.partition(" with ")
    plan = (
        f"{base} with {len(words.split())} changes" if len(words.split()) > 3 else judged.twin.plan
    )
    return f"{side} the nearest plan, {plan}, gives {math.floor(share) / 100:g} % of {name}"
