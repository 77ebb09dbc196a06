"""How close a plan comes to a kernel: equal bits, the distance of the rest in ulps, and the
comparison with everything that a kernel returned, in every head and batch entry.
"""

from dataclasses import dataclass

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.gathered import Gathered, gathered
from roundscope.emu.stats.comparison import Lost, agree, deviations, lost, share_words
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.candidates import Candidate, emulated, options_of
from roundscope.tools.identify.reading import of_key_head
from roundscope.tools.report.wording import listed

FAR = 64.0  # ulps; a larger distance counts as this one


@dataclass(frozen=True, slots=True, order=True)
class Nearness:
    """How close an output is to another; the greater, the closer.

    equal      the share of numbers with the same bits (zeros of either sign count as the same)
    distance   minus the mean distance of the others in ulps, each at most FAR
    """

    equal: float
    distance: float

    def __str__(self) -> str:
        return f"{share_words(self.equal)} of the bits, {-self.distance:.3g} ulps apart where not"


def nearness(got: np.ndarray, want: np.ndarray) -> Nearness:
    """Return how close `got` is to `want`, arrays of one shape; the ulps are those of `want`."""
    apart = ~agree(got, want)
    equal = float((~apart).mean())
    if equal == 1.0:
        return Nearness(1.0, 0.0)
    size = np.abs(np.where(np.isfinite(want[apart]), want[apart], 0.0))
    ulp = ulps(want[apart], float(size.max(initial=0.0)) * 2.0**-12)
    with np.errstate(invalid="ignore"):
        away = np.abs(got[apart].astype(np.float64) - want[apart]) / ulp
    return Nearness(equal, -float(np.nan_to_num(np.minimum(away, FAR), nan=FAR).mean()))


def ulps(x: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Return the ulps of x in BF16, the format in which kernels return their results.

    Numbers below `least` have the ulp of `least`.
    """
    size = np.abs(np.where(np.isfinite(x), x, 0.0)).astype(np.float64)
    return np.exp2(np.floor(np.log2(np.maximum(size, max(least, 2.0**-126))))) * 2.0**-7


def where_rows_differ(got: np.ndarray, want: np.ndarray, tile: int) -> list[tuple[int, float]]:
    """Return (first row, share of equal numbers) of each tile of rows that is not wholly equal.

    The arrays are (B, T, N, H); `tile` is the number of rows of a tile.
    """
    same = agree(got, want).mean(axis=(0, 2, 3))
    parts = [(lo, float(same[lo : lo + tile].mean())) for lo in range(0, same.size, tile)]
    return [part for part in parts if part[1] < 1.0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The comparison of one result with that of the nearest plan.

    near     how near they are
    one      the share, among the numbers that differ, of those that are at most one ulp apart
    rows     (first row, share of equal numbers) of each tile of rows that is not wholly equal
    """

    near: Nearness
    one: float
    rows: list[tuple[int, float]]


def part_of(got: np.ndarray, want: np.ndarray) -> Part:
    """Return the comparison of a plan's result with the kernel's, both (B, T, N, H)."""
    near, apart = nearness(got, want), ~agree(got, want)
    ulp = ulps(want[apart])
    with np.errstate(invalid="ignore"):
        one = np.abs(got[apart].astype(np.float64) - want[apart]) <= ulp
    return Part(
        near=near,
        one=float(one.mean()) if one.size else 1.0,
        rows=where_rows_differ(got, want, ROWS),
    )


SHOWN = 6  # heads that are named
ROWS = 64  # rows of the tiles whose differences are reported
GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One result of a kernel beside that of a plan, in all heads.

    name     "out", "dq", "dk" or "dv"
    of       how many numbers were compared
    differ   how many of them differ
    heads    for each (entry, head) how many numbers differ; query heads, key heads of dk and dv
    first    (entry, head, token) of the first number that differs
    most     the largest difference in ulps of BF16, of the kernel's number; infinite if one of the
             two is not finite
    strange  the kernel's numbers that are not finite
    lost     those that are not finite where the plan's are, or the other way round
    part     how near the two are, in all heads
    gathered where most of the numbers that differ are, if that is one place
    small    the kernel's number with the largest difference, and the rms of the result, where it is
             below a hundredth of that
    """

    name: str
    of: int
    differ: int
    heads: dict[tuple[int, int], int]
    first: tuple[int, int, int] | None
    most: float
    strange: Lost
    lost: int
    part: Part
    gathered: Gathered | None = None
    small: tuple[float, float] | None = None

    @property
    def equal(self) -> float:
        """The share of equal numbers, in all heads."""
        return 1.0 - self.differ / self.of if self.of else 1.0

    @property
    def wrong(self) -> list[tuple[int, int]]:
        """The heads in which some number differs."""
        return [place for place, count in self.heads.items() if count]

    def words(self) -> str:
        """Return how many numbers differ, in which heads, the first place and the largest ulps."""
        if not self.differ:
            return f"all {self.of:,} numbers of {self.name} are equal"
        assert self.first is not None
        entry, head, token = self.first
        entries = len({e for e, _ in self.heads}) > 1
        at = f"head {head}, token {token}"
        at = f"batch entry {entry}, {at}" if entries else at
        wrong = self.wrong
        if len(self.heads) == 1:
            where = ""
        elif len(wrong) <= SHOWN:
            names = [f"{e}/{h}" if entries else str(h) for e, h in wrong]
            kind = "batch entry/head" if entries else "head"
            where = f" ({kind}{'s' if len(wrong) > 1 and not entries else ''} {listed(names)}"
            where += f" of {len(self.heads)})"
        else:
            where = f" ({len(wrong)} of {len(self.heads)} heads)"
        most = f"at most {self.most:.3g} ulp{'s' if self.most > 1 else ''} of BF16"
        if self.small is not None:
            most += f", at a number near 0 ({self.small[0]:.1e}; the rms is {self.small[1]:.1e})"
        size = "one of the two is not finite" if np.isinf(self.most) else most
        return (
            f"{self.differ:,} of {self.of:,} numbers of {self.name}"
            f" {'differs' if self.differ == 1 else 'differ'}{where}, first at {at}; {size}"
            + (f"; {self.gathered.words}" if self.gathered else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A plan beside everything that a kernel returned.

    counts   the results by name
    about    what was compared, in words
    blind    the queries that see no key, booleans (B, N, T), which were left out
    """

    counts: dict[str, Counted]
    about: str
    blind: np.ndarray

    @property
    def differ(self) -> int:
        """How many numbers of all results differ."""
        return sum(c.differ for c in self.counts.values())


def best_over_heads(
    proposed: list[Candidate], x: Inputs, outputs: Outputs, names: tuple[str, ...], tell: object
) -> list[tuple[Candidate, Whole]]:
    """Return candidates with their comparison in all heads, those with fewer differences first.

    Of candidates that give every bit of one head, these are told apart by the other heads.
    """
    pairs = [(c, whole(c, x, outputs, names, tell)) for c in proposed]
    return sorted(pairs, key=lambda pair: pair[1].differ)


def whole(c: Candidate, x: Inputs, outputs: Outputs, names: tuple[str, ...], tell: object) -> Whole:
    """Compare a candidate's results with the kernel's in every head of every batch entry.

    Args:
        c: the candidate.
        x: the inputs of all heads.
        outputs: what the kernel returned.
        names: the results that are compared.
        tell: is told in words what runs.
    """
    batch, queries, heads, _ = x.q.shape
    groups = x.k.shape[2]
    share = heads // groups
    given = {n: a for n, a in outputs.named() if n in names}
    got = {n: np.full(a.shape, np.nan, np.float32) for n, a in given.items()}
    used = {n: np.zeros(a.shape[:3], bool) for n, a in given.items()}
    blind = np.zeros((batch, heads, queries), bool)
    for entry, group in np.ndindex(batch, groups):
        tell(f"comparing batch entry {entry}, key head {group}")  # type: ignore[operator]
        own = slice(group * share, (group + 1) * share)
        try:
            part, kept, unseen = of_key_head(x, outputs, entry, group)
        except UsageError:
            blind[entry, own] = True
            continue
        blind[entry, own] = unseen
        wanted = {n: a for n, a in kept.named() if n in given}
        has_do = any(n != "out" for n in wanted)
        result = emulated(
            c, part.q, part.k, part.v, part.do if has_do else None, **options_of(part)
        )
        for n in wanted:
            of_queries = n in ("out", "dq")
            places = own if of_queries else slice(group, group + 1)
            rows = ~unseen if of_queries else slice(None)
            got[n][entry, rows, places] = np.asarray(getattr(result, n))[0]
            used[n][entry, rows, places] = True
    counts = {n: _counted(n, got[n], a, used[n]) for n, a in given.items()}
    about = f"{heads} head{'s' * (heads > 1)}"
    about += f" over {groups} key head{'s' * (groups > 1)}" if share > 1 else ""
    about += f", {batch} batch entr{'ies' if batch > 1 else 'y'}, {queries:,} queries"
    return Whole(counts=counts, about=about, blind=blind)


def _counted(name: str, got: np.ndarray, want: np.ndarray, used: np.ndarray) -> Counted:
    """Return the count of one result; used: (B, T, N), the rows that were compared."""
    apart = ~agree(got, want) & used[..., None]
    heads = {
        (int(b), int(n)): int(apart[b, :, n].sum())
        for b, n in np.ndindex(want.shape[0], want.shape[2])
        if used[b, :, n].any()
    }
    first, most, small = None, 0.0, None
    if apart.any():
        b, n, t, _ = (int(i) for i in np.argwhere(apart.transpose(0, 2, 1, 3))[0])
        first = (b, n, t)
        a, w = got[apart].astype(np.float64), want[apart].astype(np.float64)
        away = np.abs(deviations(a, w)) / ulps(w)
        most, own = float(away.max()), float(np.abs(w[np.argmax(away)]))
        rms = float(np.sqrt(np.mean(np.square(want[used], dtype=np.float64))))
        small = (own, rms) if most > 1.0 and own < rms / 100.0 else None
    kept = np.where(used[..., None], want, 0.0)
    strange = lost(kept)
    plain = np.where(used[..., None], got, 0.0)
    return Counted(
        name=name,
        of=int(used.sum()) * want.shape[3],
        differ=int(apart.sum()),
        small=small,
        heads=heads,
        first=first,
        most=most,
        strange=strange,
        lost=lost(kept, plain).count,
        part=part_of(plain, kept),
        gathered=gathered(plain, kept, apart),
    )
