"""Which release of a kernel changed which bits, and what arithmetic changed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from roundscope.experiments.questions.kernels.passport.judged import Judged
from roundscope.experiments.questions.kernels.passport.plans import changed
from roundscope.experiments.questions.kernels.passport.record import Record, Release, numbered
from roundscope.experiments.questions.kernels.passport.writer.calls import FEATURES, WIDTH


class Known(StrEnum):
    """How much is known of what changed.

    KNOWN     two plans give every number, and no other pair that does differs in as few words
    NARROWED  up to `FEW` pairs do, whose words are all named
    OPEN      nothing, or that more pairs do
    """

    KNOWN = "known"
    NARROWED = "narrowed"
    OPEN = "open"


OPEN = "open"
FEW = 4  # smallest changes of arithmetic that are named
MOST = 12  # words beyond which two plans that happen to give the numbers explain nothing
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
        known: How much of it is known.
    """

    old: Release
    new: Release
    versions: dict[str, tuple[str, str]]
    rows: dict[str, Rows] = field(default_factory=dict)
    strange: str = ""
    arithmetic: str = ""
    known: Known = Known.OPEN

    @property
    def is_same(self) -> bool:
        """Return whether both releases ran and returned the same bits in every result."""
        return self.old.bits == self.new.bits and not self.old.failed

    @property
    def ran(self) -> bool:
        """Return whether the kernel ran in both releases."""
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
    words, known = _arithmetic(before, after, rows)
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
        known=known,
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


def _arithmetic(before: Judged, after: Judged, rows: dict[str, Rows]) -> tuple[str, Known]:
    """Return what arithmetic changed, in words, and how much of it is known."""
    sides = {"before": before, "after": after}
    if not rows:
        return f"{OPEN}: other results were returned", Known.OPEN
    lacking = {
        side: [name for name in rows if judged.twin is None or not judged.twin.gives(name)]
        for side, judged in sides.items()
    }
    missing = {side: names for side, names in lacking.items() if names}
    why = "; ".join(_lack(sides[side], side, names) for side, names in lacking.items())
    if before.twin is None or after.twin is None:
        return f"{OPEN}: {why}", Known.OPEN
    found = changed(before.twin, after.twin, rows)
    if missing:
        near = all(t.equal.get(n, 0.0) >= NEAR for t in (before.twin, after.twin) for n in rows)
        is_told = near and len(found) == 1 and 0 < len(found[0]) <= MOST
        most = f"of all but few numbers {', '.join(found[0])}; " if is_told else ""
        return f"{OPEN}: {most}{why}", Known.OPEN
    if not found[0]:  # such as two zeros of other signs, of which a comparison of numbers is silent
        return f"{OPEN}: one plan gives the numbers of both", Known.OPEN
    plans = f"{before.twin.ties + after.twin.ties + 2} plans that give these numbers"
    if len(found[0]) > MOST or len(found) > FEW:
        told = f"{len(found)} pairs of {plans} differ in {len(found[0])} words, the least"
        return f"{OPEN}: {told}", Known.OPEN
    if len(found) == 1:
        return ", ".join(found[0]), Known.KNOWN
    common = [word for word in found[0] if all(word in words for words in found)]
    rest = " or ".join(", ".join(w for w in words if w not in common) for words in found)
    return f"{', '.join(common)}, and {rest}" if common else rest, Known.NARROWED


def _lack(judged: Judged, side: str, names: Sequence[str]) -> str:
    """Return what plan a side has, in words; of results that it does not give, for one."""
    if any(result.nan or result.infinite for result in judged.results.values()):
        return f"{side} not all numbers are finite"
    if judged.twin is None:
        return f"{side} no plan was found"
    if not names:
        return f"{side} these are the numbers of {judged.twin.plan}"
    name = "out" if "out" in names else names[0]
    share = 1e4 * judged.twin.equal.get(name, 0.0)
    base, _, words = judged.twin.plan.partition(" with ")
    plan = (
        f"{base} with {len(words.split())} changes" if len(words.split()) > 3 else judged.twin.plan
    )
    return f"{side} the nearest plan, {plan}, gives {math.floor(share) / 100:g} % of {name}"
