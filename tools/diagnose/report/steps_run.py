"""Steps 1 and 2 in the report of any run, and the column of step 6 that a GPT's run fills."""

from typing import Any

from roundscope.tools.diagnose.replay.run_part import RunPart
from roundscope.tools.diagnose.replay.start import Replayed
from roundscope.tools.diagnose.report import pictures_run, words_gpt, words_run
from roundscope.tools.diagnose.report.diagnosis import step
from roundscope.tools.diagnose.search.guilty import Guilty
from roundscope.tools.report.model import Picture, Section, Table
from roundscope.tools.report.pictures import DOWN, UP


def first_steps(part: RunPart | None) -> list[Section]:
    """Return steps 1 and 2 of a GPT's run; none for tensors."""
    if part is None:
        return []
    caption = "The loss of the run, as its log has it."
    if part.replayed is not None:
        caption = (
            "Gray: the log. Black: the replay. Green and red: replays from the same state. Dotted:"
            f" the alarm with its limit, and the state of steps 3 to 6. {part.rule} The rule"
            " continues with the losses before the checkpoint."
        )
    return [
        replay_step(words_gpt.replayed(part), _losses(part), caption),
        search_step(part.replayed, words_run.searched(part.replayed, words_gpt.NEVER)),
    ]


def _losses(part: RunPart) -> Any:
    curve, failure = list(part.losses.items()), part.failure
    if failure is None:
        return pictures_run.losses(curve, part.replayed)
    marks = [(failure.step, UP, failure.kind), (part.step, DOWN, "steps 3 to 6")]
    return pictures_run.losses(curve, part.replayed, marks, failure.limit)


def replay_step(sentence: str, figure: Any, caption: str) -> Section:
    """Return step 1."""
    return step(1, "Replay", sentence, Picture("Losses", figure, caption))


def search_step(r: Replayed | None, sentence: str) -> Section:
    """Return step 2."""
    if r is None or r.guilty is None:
        return step(2, "What must be exact", sentence)
    g = r.guilty
    red = "those that must be exact" if r.holds else "the best set, which does not hold up"
    exact = (
        f"Colored: events that round; red: {red}. As a change of the plan:"
        f" {g.family.change(g.found)}"
    )
    survivors = (
        "Each point is a replay with a set of events exact, the others as in the run. The sets are"
        " chosen by ddmin (Zeller and Hildebrandt, 2002), level by level; where a level has few"
        " sets, all are replayed, size by size. Outcomes are kept, none is replayed twice."
        f" {words_run.SHAM}"
    )
    return step(
        2,
        "What must be exact",
        sentence,
        Picture("What must be exact", pictures_run.exact_map(g), exact),
        Picture("Survivors", pictures_run.survivors(r, g), survivors),
        _levels(g),
        _checks(r, g),
    )


def _levels(g: Guilty) -> Table:
    rows = [[x.name, str(len(x.blocks)), str(len(x.needed)), "; ".join(x.needed)] for x in g.levels]
    return Table(("level", "of", "needed", "which"), rows)


def _checks(r: Replayed, g: Guilty) -> Table:
    words = words_run.outcome_words
    rows = [
        [
            "the set exact",
            g.words(g.found),
            "survives" if g.confirmed is None else words(g.confirmed),
        ]
    ]
    rows += [["sham", "none exact, other last bits", words(r.shams)]]
    rows += [["put back alone", name, words(o)] for name, o in g.without]
    rows += [["random set", g.words(o.units), words(o)] for o in g.controls]
    rows += [["no larger, survives", g.words(o.units), words(o)] for o in g.ties[:8]]
    rows += [["the set low alone", g.words(g.found), words(g.only)]]
    return Table(("check", "events", "replay"), rows)


def survival(part: RunPart | None, name: str, is_base: bool) -> str:
    """Return the text of the column `replay survives` for an arm of step 6."""
    if part is None or part.replayed is None:
        return "not shown"
    if is_base:
        return "yes" if part.replayed.failed is None else f"fails at {part.replayed.failed}"
    return words_run.outcome_words(part.survivals[name]) if name in part.survivals else "not shown"
