"""Steps 1 and 2 in the report, and the column of step 6 that a run fills."""

from dataclasses import dataclass, field
from typing import Any

from roundscope.experiments.diagnose.gpt.states import RunPart
from roundscope.experiments.diagnose.gpt.units import unit_words
from roundscope.experiments.diagnose.report import pictures_run, words_run, words_search
from roundscope.experiments.diagnose.search.ddmin import Outcome
from roundscope.experiments.diagnose.search.guilty import Guilty
from roundscope.experiments.train.spikes import RULE

Table = tuple[list[str], list[list[str]], list[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: pictures are (title, Figure or None, caption), tables (heads, rows of text, marked rows)."""

    number: int
    title: str
    sentence: str
    pictures: list[tuple[str, Any, str]]
    tables: list[Table] = field(default_factory=list)


def first_steps(part: RunPart | None) -> list[Step]:
    """Steps 1 and 2 of a run; none of tensors."""
    return [] if part is None else [_replay(part), _search(part)]


def _replay(part: RunPart) -> Step:
    caption = "Loss of the run, as its log has it." if part.replayed is None else (
        f"Grey: the log. Black: the replay. Green and red: from the same state, in one launch. Dotted: the alarm with its limit, and "
        f"the state that steps 3 to 6 look at. {RULE} The rule goes on with what it had seen before the checkpoint.")  # fmt: skip
    return Step(number=1, title="Replay", sentence=words_run.replayed(part),
                pictures=[("Losses", pictures_run.losses(part), caption)])  # fmt: skip


def _search(part: RunPart) -> Step:
    r = part.replayed
    if r is None or r.guilty is None:
        return Step(number=2, title="What must be exact", sentence=words_search.searched(part), pictures=[])
    g = r.guilty
    red = "those that must be exact" if g.holds else "the best set, which does not hold up"
    made = [
        ("What must be exact", pictures_run.exact_map(g),
         f"Coloured: events that round to fewer than 24 bits; red: {red}. As a change: {words_search.change(g)}"),
        ("Survivors", pictures_run.survivors(r, g), (
            "Each point is a replay with a set of events exact, the others as in the run. Sets by ddmin (Zeller and Hildebrandt, 2002) "
            "over heads, then events; where all sets of heads are few, all of them. Outcomes are kept, so none is replayed twice.")),
    ]  # fmt: skip
    return Step(number=2, title="What must be exact", sentence=words_search.searched(part), pictures=made, tables=[_levels(g), _checks(g)])


def _levels(g: Guilty) -> Table:
    rows = [[x.name, str(len(x.blocks)), str(len(x.needed)), "; ".join(x.needed)] for x in g.levels]
    return ["level", "of", "needed", "which"], rows, [False] * len(rows)


def _checks(g: Guilty) -> Table:
    rows = [["the set exact", unit_words(g.found, g.all_units), "survives" if g.confirmed is None else outcome_words(g.confirmed)]]
    rows += [["put back alone", name, outcome_words(o)] for name, o in g.without]
    rows += [["random set", unit_words(o.units, g.all_units), outcome_words(o)] for o in g.controls]
    rows += [["no larger, survives", unit_words(o.units, g.all_units), outcome_words(o)] for o in g.ties[:8]]
    rows += [["the set low alone", unit_words(g.found, g.all_units), outcome_words(g.only)]]
    return ["check", "events", "replay"], rows, [False] * len(rows)


def outcome_words(o: Outcome) -> str:
    """For a table."""
    if len(o.fates) > 1:
        return f"{len(o.fates) - o.failures} of {len(o.fates)} survive"
    return "survives" if o.survives else f"fails at {o.fates[0].failed}"


def survival(part: RunPart | None, name: str, is_base: bool) -> str:
    """The column `replay survives` of an arm of step 6."""
    if part is None or part.replayed is None:
        return "not shown"
    if is_base:
        return "yes" if part.replayed.failed is None else f"fails at {part.replayed.failed}"
    return outcome_words(part.survivals[name]) if name in part.survivals else "not shown"
