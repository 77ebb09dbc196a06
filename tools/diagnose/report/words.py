"""The sentences of the report: one per step, the verdict, and what was not shown.

The last ones only a GPT's run has: its failure, its repairs.
"""

from collections.abc import Sequence

import numpy as np

from roundscope.attention.models.alarm import THRESHOLD
from roundscope.tools.diagnose.replay.start import GREW, RunPart
from roundscope.tools.diagnose.report import words_run
from roundscope.tools.diagnose.search import REPEATS
from roundscope.tools.diagnose.tensors.findings import Findings
from roundscope.tools.diagnose.tensors.measured import OUTPUT_SITES, Measured
from roundscope.tools.diagnose.tensors.origin import Origin
from roundscope.tools.diagnose.tensors.verdict import Effect, Kind, Link
from roundscope.tools.report.wording import many

NEVER = "the run never failed"
KINDS = {
    "not finite": "its loss is not finite",
    "rise": "its loss rises for good",
    "stay": "its loss jumps up and stays",
    "spike": "its loss spikes",
    GREW: "its gradient norm has grown to more than ten times its lowest",
}


def headline(found: Findings) -> str:
    """Return the verdict in a few sentences: what replays say, then what tensors say."""
    replays = "" if found.run is None else f"{_run_headline(found.run)} "
    return f"{left_out(found)}{replays}{mechanism(found)}"


def kind(found: Findings) -> str:
    """Return the verdict in a few words."""
    if found.run is None:
        return str(found.verdict.kind)
    replayed = found.run.replayed
    return f"{NEVER if replayed is None else replayed.verdict}; {found.verdict.kind}"


def first_line(found: Findings) -> str:
    """Return the events, the evidence with counts, and the repair as a command."""
    run = found.run
    if run is None or run.replayed is None:
        return f"{left_out(found)}{kind(found)}"
    return f"{left_out(found)}{words_run.first_line(run.replayed)}"


def left_out(found: Findings) -> str:
    """Return what is infinite or NaN in layers that take no part in the steps; "" for none."""
    if not found.lost:
        return ""
    names = " and ".join(m.layer.name for m in found.lost)
    return f"{not_finite(found.lost)} What follows leaves out {names}. "


def not_finite(lost: Sequence[Measured]) -> str:
    """Return the numbers of layers that are infinite or NaN, where they begin, what avoids them."""
    return " ".join(f"{m.layer.name}: {m.not_finite}" for m in lost)


def opening(found: Findings) -> str:
    """Return the answer for tensors in a sentence, after layers that are not finite."""
    count, of, before = len(found.biased), found.coherence.tests, left_out(found)
    if not count:
        most = max((float(np.nanmax(x)) for x in found.rows if x is not None), default=0.0)
        but = f" But the sums of rows of dS make {most:.2g} of the gradient of W_Q: {judged(most)}"
        return (
            f"{before}Rounding does not add up here: in none of {many(of, 'head')} does the error"
            " of delta, summed over tokens, exceed what random signs would give."
            f"{but if most > THRESHOLD / 2 else ''}"
        )
    start = f"{before}Rounding adds up here: the error of delta grows over tokens in {count} of"
    if found.verdict.kind is Kind.NOTHING:
        return f"{start} {many(of, 'head')}, but not in the one that was examined."
    but = "" if found.verdict.kind is Kind.CHAIN else "but not "
    return f"{start} {many(of, 'head')}, {but}by the mechanism of arXiv 2510.04212."


def links(found: Findings) -> list[Link]:
    """Return the verdict link by link: for a run what its replays say, then the tensors."""
    replayed = None if found.run is None else found.run.replayed
    return [*([] if replayed is None else words_run.links(replayed)), *found.verdict.links]


def mechanism(found: Findings) -> str:
    """Return what the tensors say: steps 3 to 6."""
    kind = found.verdict.kind
    if kind is Kind.NOTHING:
        return _nothing(found)
    here = ""
    if found.furthest != (found.chosen, found.head):
        here = f" Examined is {found.where} ({_sum(found)}), where an event must be exact."
    return f"{_biased(found)}.{here} {_chain(found) if kind is Kind.CHAIN else _other(found)}"


def _biased(found: Findings) -> str:
    """Return in how many of all heads delta's error adds up, and the most extreme of them."""
    return (
        f"The error of delta adds up over tokens in {len(found.biased)} of {found.coherence.tests}"
        f" heads, most in {_furthest(found)}"
    )


def _furthest(found: Findings) -> str:
    layer, head = found.furthest
    c = found.coherences[layer]
    mean, rms = c.total[head] / c.error.shape[1], c.rms[head]
    return f"{found.named(layer, head)} ({_numbers(c.a[head], c.p[head], mean, rms)})"


def most_extreme(found: Findings) -> str:
    """Return the head that stands out most of all, in a sentence without symbols."""
    layer, head = found.furthest
    c = found.coherences[layer]
    return (
        f"In the most extreme head ({found.named(layer, head)}) the sum is {c.a[head]:.1f} times"
        f" what random signs give: p = {c.p[head]:.1g}, where p below {c.level:.1g} counts."
    )


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
    if found.biased:
        which = "where an event must be exact"
        if found.among > 1:
            which = f"the most extreme of the {found.among} heads {which}"
        return (
            f"{_biased(found)}; but not in {found.where}, {which}: A = {c.a[h]:.1f}, p ="
            f" {c.p[h]:.2g}, where a head counts below p = {c.level:.1g}. {smallest(found)}"
        )
    layers = f" of {len(found.measured)} layers" if len(found.measured) > 1 else ""
    return (
        f"No bias seen: in none of {many(c.tests, 'head')}{layers} does the error of delta add"
        f" up over tokens more than random signs would."
        f" The most extreme is {_furthest(found)}, where a"
        f" head counts below p = {c.level:.1g}. {smallest(found)}"
    )


def smallest(found: Findings) -> str:
    """Return the power: the bias that would have been detected."""
    c, h = found.coherence, found.head
    part = c.smallest[h] / c.rms[h] if c.rms[h] else 0.0
    ulp = ""
    if found.half_ulp:
        times = c.smallest[h] / found.half_ulp
        ulp = (
            f", or {times:.2g} times the error that delta would have if every number of OUT were"
            " off by half an ulp in the direction of dO"
        )
    return (
        f"The smallest bias that this would have shown nine times in ten is {c.smallest[h]:.2g} per"
        f" token in {found.where}, {100 * part:.0f} % of the rms error of delta{ulp}."
    )


def _chain(found: Findings) -> str:
    o = found.origin
    assert o.site is not None
    site, more = o.site.site, ""
    beside = [n for n in o.origins if n != site]
    apart = [n for n in beside if n not in OUTPUT_SITES]
    if beside:
        tail = f"; {apart[0]} is not changed by a repair of O alone" if apart else ""
        more = f" Beside it: {_parts(o, beside)}{tail}."
    chain = (
        "the chain of arXiv 2510.04212: sums of V at P = 1 tie and sticky bits break the ties"
        f" ({_parts(o, [site])})"
    )
    return f"It is {chain}.{more} {_repaired(found)}"


def _parts(o: Origin, names: Sequence[str]) -> str:
    return ", ".join(f"{n} {100 * o.share(n):.0f} %" for n in names)


def _other(found: Findings) -> str:
    o = found.origin
    parts = _parts(o, o.origins) or "no account by itself"
    missing = ", ".join(found.verdict.missing)
    return (
        f"It comes from {parts}; but it is not, or not shown to be, the chain of arXiv 2510.04212:"
        f" missing {missing}. {_repaired(found)}"
    )


def _repaired(found: Findings) -> str:
    effects = [(o.arm, found.effect(o)) for o in found.outcomes]
    done = [a.name for a, did in effects if did is Effect.REMOVED and not a.is_sham]
    sham = [did for a, did in effects if a.is_sham]
    tail = f"; a sham that changes the output as much: {sham[0]}" if sham else ""
    return f"Removed by: {', '.join(done) or 'none of the repairs tried'}{tail}."


def read_by(found: Findings) -> str:
    """Return what the atoms are made of beside P K: X, where it is known, else q."""
    return "q" if found.layer.x is None else "X"


def direction(found: Findings) -> str:
    """Return the sentence of step 3."""
    c, h, x = found.carriers[found.chosen], found.head, read_by(found)
    every = sum(int((x.atoms > x.flipped_atoms).sum()) for x in found.carriers)
    low, _, high = c.permuted[h]
    same = (
        f"against {100 * low:.0f} to {100 * high:.0f} % when they are permuted: it depends on which"
        " tokens have errors"
    )
    if low - 0.02 <= c.share[h] <= high + 0.02:
        same = "as when they are permuted: the errors of any tokens would add up there"
    return (
        f"Could errors of different tokens add along one direction? In {every} of"
        f" {many(found.coherence.tests, 'head')} the atoms {x}[T] (P K)[T] have a common direction"
        f" more than with flipped signs; in {found.where} two tokens' atoms have a mean cosine of"
        f" {c.atoms[h]:.2f}, and {100 * c.share[h]:.0f} % of the weighted sum lies along its"
        f" leading direction, {same}. The weighted sum is {c.growth[h]:.1f} times what unrelated"
        " errors would make."
    )


def coherence(found: Findings) -> str:
    """Return the sentence of step 4."""
    count = len(found.biased)
    named = [f"{layer}, head {head}" for layer, head in found.biased[:6]]
    which = "; ".join(named) + (" and more" if count > 6 else "")
    answer = f"It does in none of {many(found.coherence.tests, 'head')}"
    if count:
        answer = f"It does in {count} of {many(found.coherence.tests, 'head')}: {which}"
    chosen = ""
    if found.furthest != (found.chosen, found.head):
        chosen = f" Steps 5 and 6 examine {found.where} ({_sum(found)})."
    answer = f"{answer}. The most extreme is {_furthest(found)}.{chosen}"
    question = "Does the error of delta add up over tokens?"
    return f"{question} {answer} {smallest(found)} {rows(found)}".rstrip()


def rows(found: Findings) -> str:
    """Return the sums of the rows of dS, for step 4."""
    whole = [(i, own) for i, own in enumerate(found.rows) if own is not None]
    known = [(float(x), i, n) for i, own in whole for n, x in enumerate(own) if x == x]
    if not known:
        return ""
    (most, layer, head), median = max(known), float(np.median([x for x, _, _ in known]))
    exact = [] if found.run is None else [float(x) for own in found.run.rows for x in own if x == x]
    cured = f"; with the set of step 2 exact at most {max(exact):.2g}" if exact else ""
    return (
        f"The rows of dS sum to 0 in exact arithmetic; here their sums make {most:.2g} of the"
        f" gradient of W_Q in {found.named(layer, head)}, {median:.2g} in the median head{cured}."
        f" {judged(most)}"
    )


def judged(share: float) -> str:
    """Return how a sum of rows of dS, relative to the gradient of W_Q, compares with the alarm."""
    if share >= THRESHOLD:
        way = f"At {THRESHOLD:g} or more, as here, `roundscope.torch.watch` warns of a run"
        return f"{way} if later looks have the same direction."
    near = ", of which it is more than half" if share > THRESHOLD / 2 else ""
    return f"The alarm of `roundscope.torch.watch` is at {THRESHOLD:g}{near}."


def origin(found: Findings) -> str:
    """Return the sentence of step 5."""
    o = found.origin
    several = f"{int(o.several.sum())} of {o.several.size} rows have several P = 1 in a key tile"
    if found.verdict.kind is Kind.NOTHING:
        return (
            f"What makes the error of {found.where}? It is not biased, so this shows only how a"
            f" bias would be found. {several}."
        )
    parts = _parts(o, o.origins) or "no account is biased by itself"
    shown = [x.evidence for x in found.verdict.links if x.name in ("P = 1", "sticky")]
    evidence = ". ".join(text[0].upper() + text[1:] for text in shown)
    return f"What carries the bias of {found.where}? {parts}. {evidence}. {several}."


def repairs(found: Findings) -> str:
    """Return the sentence of step 6."""
    replays = survivors(found.run)
    if found.verdict.kind is Kind.NOTHING:
        harmful = [o.arm.name for o in found.outcomes if found.effect(o) is Effect.MADE]
        tail = f"; {', '.join(harmful)} would make a bias" if harmful else " and none makes one"
        answer = f"In {found.where} there is no bias to remove{tail}."
        return f"What would the known repairs do? {answer} {replays}".rstrip()
    effects = "; ".join(f"{o.arm.name}: {found.effect(o)}" for o in found.outcomes)
    return f"Which repair removes the bias of {found.where}? {effects}. {replays}".rstrip()


def not_shown(found: Findings) -> list[str]:
    """Return what this diagnosis leaves open."""
    request = found.layer.request
    replay = (
        "Whether a training run fails, or survives with a repair: from tensors alone there is no"
        " replay (steps 1 and 2)."
    )
    x = "X: it is not in the file. q stands in for it, and shows only the part of it that W_Q maps."
    lines = _not_shown_of_run(found.run) if found.run else [replay, x]
    inputs = (
        "Other inputs: p, intervals and the smallest bias are statistics of these tokens; other"
        " steps of training may differ."
    )
    biases = (
        "Biases that do not add up in delta: `roundscope trace` tests every event by itself. The"
        " comparison is with exact arithmetic on the same q, k, v and do, so errors made before"
        f" them are not seen. The plan is {request.plan.name}, the tiles are {request.block_q} x"
        f" {request.block_k}."
    )
    cost = "The cost of a repair in a kernel: the times are those of this emulation, measured now."
    lines += [inputs, biases, cost]
    if found.verdict.kind is not Kind.NOTHING:
        others = len(found.biased) - 1
        too = f"; {others} other heads are biased too" if others > 0 else ""
        lines.append(f"Other heads: steps 5 and 6 examine {found.where} alone{too}.")
    if found.layer.request.depends_on_head_number:
        lines.append("The plan rounds stochastically: step 5 draws other random bits than step 4.")
    return lines


def _run_headline(part: RunPart) -> str:
    failure, r = part.failure, part.replayed
    whom = "The run" if part.arms == 1 else f"Arm {part.arm}"
    if r is None or failure is None:
        never = f"{whom} never failed in {part.last} steps, so nothing is replayed"
        return f"{never}; its last state was examined."
    how = KINDS[failure.kind]
    if part.grown is not None and failure.kind != GREW:
        how += f"; its gradient norm has grown tenfold by step {part.grown}"
    return f"{whom} fails at step {failure.step}: {how}. {words_run.ending(r)}"


def replayed(part: RunPart) -> str:
    """Return the sentence of step 1."""
    if part.replayed is None:
        return (
            "Does the failure come again? There is none: no loss rose, jumped up or was not finite"
            f" in {part.last} steps, and no gradient norm grew."
        )
    return words_run.replayed(part.replayed)


def survivors(part: RunPart | None) -> str:
    """Return the outcomes of the replays of step 6."""
    if part is None or not part.survivals:
        return ""
    each = part.survivals.items()
    kept = ", ".join(f"{name} ({o.count})" for name, o in each if o.survives)
    lost = ", ".join(f"{name} ({o.count} survive)" for name, o in each if not o.survives)
    return f"Replays survive with: {kept or 'none'}. They fail with: {lost or 'none'}."


def _not_shown_of_run(part: RunPart) -> list[str]:
    r = part.replayed
    state = (
        f"Other states: steps 3 to 6 examine one state, before step {part.step}, on its batch and,"
        " if that is small, on those after it."
    )
    lines = [state, part.rest]
    if r is None:
        return [*lines, "Whether the run would have failed later, or with another seed."]
    lines.append(
        f"What comes after step {r.replayer.until} (--until): 'survives' means up to there, from"
        f" step {r.replayer.first}, on these batches."
    )
    if part.grown is not None:
        lines.append(
            "What the loss does later: a replay counts as failed once its gradient norm has grown."
        )
    if r.guilty is not None:
        lines.append(
            "Other seeds: the set is that of this failure. No element can be left out; a smaller"
            " set of other elements may exist."
        )
    if part.survivals:
        lines.append(
            f"How often: stochastic repairs are replayed {REPEATS} times, others as often as the"
            " sets of step 2; all must survive."
        )
        lines.append(
            "The replay's sham is stochastic rounding of delta's operand, or of delta, about as"
            " large as the output's roundings or larger; the one in the other columns of the table"
            " is noise in binary64."
        )
    return lines
