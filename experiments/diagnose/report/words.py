"""The sentences of the report: one per step, the verdict, and what was not shown."""

import numpy as np

from roundscope.experiments.diagnose.report import words_gpt, words_run
from roundscope.experiments.diagnose.tensors.findings import Findings
from roundscope.experiments.diagnose.tensors.measured import OUTPUT_SITES
from roundscope.experiments.diagnose.tensors.verdict import Effect, Kind, Link


def headline(found: Findings) -> str:
    """The verdict in a few sentences: of a run what its replays say, then what its tensors say."""
    return (
        mechanism(found)
        if found.run is None
        else f"{words_gpt.headline(found.run)} {mechanism(found)}"
    )


def kind(found: Findings) -> str:
    """The verdict in a few words."""
    return (
        str(found.verdict.kind)
        if found.run is None
        else f"{words_gpt.cause(found.run)}; {found.verdict.kind}"
    )


def first_line(found: Findings) -> str:
    """The events, the evidence with counts, the repair as a command."""
    run = found.run
    if run is None or run.replayed is None:
        return kind(found)
    return words_run.first_line(run.replayed)


def links(found: Findings) -> list[Link]:
    """The verdict link by link: of a run what its replays say, then the tensors."""
    replayed = None if found.run is None else found.run.replayed
    return [*([] if replayed is None else words_run.links(replayed)), *found.verdict.links]


def mechanism(found: Findings) -> str:
    """What the tensors say: steps 3 to 6."""
    kind = found.verdict.kind
    if kind is Kind.NOTHING:
        return _nothing(found)
    here = (
        ""
        if found.furthest == (found.chosen, found.head)
        else f" Looked at is {found.where} ({_sum(found)}), where an event must be exact."
    )
    return f"{_leaning(found)}.{here} {_chain(found) if kind is Kind.CHAIN else _other(found)}"


def _leaning(found: Findings) -> str:
    """In how many of all heads delta's error adds up, and the furthest of them."""
    return (
        f"The error of delta adds up over tokens in {len(found.leaning)} of {found.coherence.tests}"
        f" heads, most in {_furthest(found)}"
    )


def _furthest(found: Findings) -> str:
    """The head that stands out most of all, with its numbers."""
    layer, head = found.furthest
    c = found.coherences[layer]
    mean, rms = c.total[head] / c.error.shape[1], c.rms[head]
    return f"{found.named(layer, head)} ({_numbers(c.a[head], c.p[head], mean, rms)})"


def _sum(found: Findings) -> str:
    c, h, b = found.coherence, found.head, found.origin.total
    return _numbers(c.a[h], c.p[h], b.mean, b.rms)


def _numbers(a: float, p: float, mean: float, rms: float) -> str:
    return (
        f"A = {a:.1f}, p = {p:.1g}; mean {mean:+.2g} per token,"
        f" {100 * abs(mean) / rms if rms else 0.0:.0f} % of its rms error"
    )


def _nothing(found: Findings) -> str:
    c, h = found.coherence, found.head
    if found.leaning:
        which = "where an event must be exact"
        which = f"of the {found.among} heads {which} the furthest" if found.among > 1 else which
        return (
            f"{_leaning(found)}; but not in {found.where}, {which}: A = {c.a[h]:.1f}, p ="
            f" {c.p[h]:.2g}, where a head counts below p = {c.level:.1g}. {smallest(found)}"
        )
    layers = f" of {len(found.measured)} layers" if len(found.measured) > 1 else ""
    return (
        f"No bias seen: in none of {c.tests} heads{layers} does the error of delta add up over"
        f" tokens more than random signs would. The furthest is {_furthest(found)}, where a head"
        f" counts below p = {c.level:.1g}. {smallest(found)}"
    )


def smallest(found: Findings) -> str:
    """The power: the bias that would have been seen."""
    c, h = found.coherence, found.head
    part = c.smallest[h] / c.rms[h] if c.rms[h] else 0.0
    ulp = (
        f", or {100 * c.smallest[h] / found.half_ulp:.1f} % of what half an ulp of OUT, always to"
        " dO's side, makes"
        if found.half_ulp
        else ""
    )
    return (
        f"The smallest bias that this would have shown nine times in ten is {c.smallest[h]:.2g} per"
        f" token in {found.where}, {100 * part:.0f} % of the rms error of delta{ulp}."
    )


def _chain(found: Findings) -> str:
    o = found.origin
    assert o.site is not None
    site = o.site.site

    def parts(names):
        return ", ".join(f"{n} {100 * o.share(n):.0f} %" for n in names)

    beside = [n for n in o.origins if n != site]
    apart = [n for n in beside if n not in OUTPUT_SITES]
    more = (
        " Beside it:"
        f" {parts(beside)}{f'; {apart[0]} is not touched by a repair of O alone' if apart else ''}."
        if beside
        else ""
    )
    chain = (
        "the chain of arXiv 2510.04212: sums of V at P = 1 tie and sticky bits break the ties"
        f" ({parts([site])})"
    )
    return f"It is {chain}.{more} {_repaired(found)}"


def _other(found: Findings) -> str:
    o = found.origin
    parts = ", ".join(f"{n} {100 * o.share(n):.0f} %" for n in o.origins) or "no account by itself"
    missing = ", ".join(found.verdict.missing)
    return (
        f"It comes from {parts}; but it is not, or not shown to be, the chain of arXiv 2510.04212:"
        f" missing {missing}. {_repaired(found)}"
    )


def _repaired(found: Findings) -> str:
    done = [
        o.arm.name
        for o in found.outcomes
        if found.effect(o) is Effect.REMOVED and not o.arm.is_sham
    ]
    control = [o for o in found.outcomes if o.arm.is_sham]
    tail = (
        f"; a sham that changes the output as much: {found.effect(control[0])}" if control else ""
    )
    return f"Removed by: {', '.join(done) or 'none of the repairs tried'}{tail}."


def read_by(found: Findings) -> str:
    """What the atoms are made of beside P K: X, where it is known, else q."""
    return "q" if found.layer.x is None else "X"


def direction(found: Findings) -> str:
    """Step 3."""
    c, h, x = found.carriers[found.chosen], found.head, read_by(found)
    every = sum(int((x.atoms > x.flipped_atoms).sum()) for x in found.carriers)
    low, _, high = c.permuted[h]
    same = (
        "as when they are permuted: any tokens' errors would meet there"
        if low - 0.02 <= c.share[h] <= high + 0.02
        else (
            f"against {100 * low:.0f} to {100 * high:.0f} % when they are permuted: it depends on"
            " which tokens err"
        )
    )
    return (
        f"Could errors of different tokens add along one direction? In {every} of"
        f" {found.coherence.tests} heads the atoms {x}[T] (P K)[T] point one way more than with"
        f" flipped signs; in {found.where} two tokens' atoms have a mean cosine of"
        f" {c.atoms[h]:.2f}, and {100 * c.share[h]:.0f} % of the weighted sum lies along its"
        f" leading direction, {same}. The weighted sum is {c.growth[h]:.1f} times what unrelated"
        " errors would make."
    )


def coherence(found: Findings) -> str:
    """Step 4."""
    count = len(found.leaning)
    named = [f"{layer}, head {head}" for layer, head in found.leaning[:6]]
    which = "; ".join(named) + (" and more" if count > 6 else "")
    answer = (
        f"It does in {count} of {found.coherence.tests} heads: {which}"
        if count
        else f"It does in none of {found.coherence.tests} heads"
    )
    looked = (
        ""
        if found.furthest == (found.chosen, found.head)
        else f" Steps 5 and 6 look at {found.where} ({_sum(found)})."
    )
    answer = f"{answer}. The furthest is {_furthest(found)}.{looked}"
    question = "Does the error of delta add up over tokens?"
    return f"{question} {answer} {smallest(found)} {rows(found)}".rstrip()


def rows(found: Findings) -> str:
    """Step 4: what the rows of dS sum to."""
    known = [
        (float(x), i, n)
        for i, own in enumerate(found.rows)
        if own is not None
        for n, x in enumerate(own)
        if x == x
    ]
    if not known:
        return ""
    most, layer, head = max(known)
    exact = [] if found.run is None else [float(x) for own in found.run.rows for x in own if x == x]
    cured = f"; with the set of step 2 exact at most {max(exact):.2g}" if exact else ""
    return (
        f"The rows of dS sum to 0 in exact arithmetic; here their sums make {most:.2g} of the"
        f" gradient of W_Q in {found.named(layer, head)},"
        f" {float(np.median([x for x, _, _ in known])):.2g} in the median head{cured}."
    )


def origin(found: Findings) -> str:
    """Step 5."""
    o = found.origin
    several = f"{int(o.several.sum())} of {o.several.size} rows have several P = 1 in a key tile"
    if found.verdict.kind is Kind.NOTHING:
        return (
            f"What makes the error of {found.where}? It is not biased, so this shows only how a"
            f" bias would be found. {several}."
        )
    parts = (
        ", ".join(f"{n} {100 * o.share(n):.0f} %" for n in o.origins)
        or "no account is biased by itself"
    )
    evidence = ". ".join(
        x.evidence[0].upper() + x.evidence[1:]
        for x in found.verdict.links
        if x.name in ("P = 1", "sticky")
    )
    return f"What carries the bias of {found.where}? {parts}. {evidence}. {several}."


def repairs(found: Findings) -> str:
    """Step 6."""
    return f"{_tried(found)} {words_gpt.survivors(found.run)}".rstrip()


def _tried(found: Findings) -> str:
    if found.verdict.kind is Kind.NOTHING:
        made = [o.arm.name for o in found.outcomes if found.effect(o) is Effect.MADE]
        tail = f"; {', '.join(made)} would make a bias" if made else " and none makes one"
        return (
            f"What would the known repairs do? In {found.where} there is no bias to remove{tail}."
        )
    said = "; ".join(f"{o.arm.name}: {found.effect(o)}" for o in found.outcomes)
    return f"Which repair removes the bias of {found.where}? {said}."


def not_shown(found: Findings) -> list[str]:
    """What this diagnosis says nothing of."""
    lines = (
        words_gpt.not_shown(found.run)
        if found.run
        else [
            (
                "Whether a training run fails, or survives with a repair: from tensors alone there"
                " is no replay (steps 1 and 2)."
            ),
            (
                "X: it is not in the file. q stands in for it, and shows only what W_Q lets through"
                " of it."
            ),
        ]
    )
    lines += [
        (
            "Other inputs: p, intervals and the smallest bias are statistics about these tokens;"
            " other steps of training may differ."
        ),
        (
            "Biases that do not add up in delta: `roundscope trace` tests every event by itself."
            " Compared is with exact arithmetic on the same q, k, v and do, so what lies before"
            f" them is not seen. Plan {found.layer.request.plan.name}, tiles"
            f" {found.layer.request.block_q} x {found.layer.request.block_k}."
        ),
        "The cost of a repair in a kernel: times are the emulation's, one machine, now.",
    ]
    if found.verdict.kind is not Kind.NOTHING:
        others = len(found.leaning) - 1
        lines.append(
            f"Steps 5 and 6 look at {found.where}"
            f" alone{f'; {others} other heads are biased too' if others > 0 else ''}."
        )
    if found.layer.request.depends_on_head_number:
        lines.append("The plan rounds stochastically: step 5 draws other random bits than step 4.")
    return lines
