"""`roundscope dose` as a study: doses of one rounded event, or the cases of one of four topics.

`asked` reads the words of the command line; `of_scale` and `of_topic` say what is run and what is
reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from roundscope.emu.errors import unknown
from roundscope.experiments.framework import command
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Progress, Study, Table
from roundscope.experiments.framework.words import NAMED, seeds_of
from roundscope.experiments.options import DoseOptions
from roundscope.experiments.questions.dose import claims, pictures, points, words
from roundscope.experiments.questions.dose.arms import Dose, doses, key, launches
from roundscope.experiments.questions.dose.results import Results
from roundscope.experiments.questions.dose.scale import Scale, scale
from roundscope.experiments.questions.dose.topics import bias, cases, conditions, identity, scaling
from roundscope.experiments.questions.dose.topics.cases import Found, Topic
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.spikes import RULE
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

TOPICS = {"bias": bias, "scaling": scaling, "conditions": conditions, "identity": identity}
PAIRED = "mean [95 % t interval] over seeds, pairs of one seed"


def run(options: DoseOptions) -> int:
    """Write dose.sqlite, and the study's page and data; as `framework.command.run`."""
    study = asked(options.words, name=options.study, quick=options.quick, seeds=options.seeds)
    said = ["--study", options.study] if options.study else []
    said += ["--quick"] if options.quick else []
    said += ["--seeds", options.seeds] if options.seeds else []
    line = " ".join(["roundscope dose", *said, *options.words])
    return command.run(study, out=options.out, command=line, as_json=options.json)


def asked(
    given: Sequence[str], *, name: str | None, quick: bool, seeds: str | None
) -> Study[Results] | Study[Found]:
    """Return the study that words and options ask for.

    name   the name of a topic; None for doses of one event

    Raises UsageError naming the word and the repair.
    """
    if name is None:
        return of_scale(scale(given, quick=quick, seeds=seeds))
    return of_topic(name, topic(name, given, quick=quick, seeds=seeds_of(seeds)))


def topic(name: str, given: Sequence[str], *, quick: bool, seeds: tuple[int, ...] | None) -> Topic:
    """Return the topic of that name. Raises UsageError naming the word and the repair."""
    if name not in TOPICS:
        raise UsageError(f"--study: {unknown('study', name, tuple(TOPICS))}")
    module = TOPICS[name]
    chosen: Topic = module.quick() if quick else module.full()
    return chosen.given(given, seeds)


def of_scale(asked: Scale) -> Study[Results]:
    """Return the study of every dose of a scale."""
    return Study(
        name="dose",
        question=words.QUESTION,
        launches=partial(_launches, asked.config, doses(asked), False),
        results=lambda store: _results(asked, store),
        answer=lambda r: f"{words.answer(r)} {words.others(r)}".strip(),
        claims=lambda r: claims.judged(r, asked),
        source="probe",
        figures=[Figure(title=t, draw=draw, caption=CAPTIONS[t]) for t, draw in pictures.PICTURES],
        tables=[
            Table(
                name="points",
                title="Every point",
                heads=points.HEADS,
                rows=points.rows,
                records=points.points,
                note=PAIRED,
                shown=(0, 1, 2, 3, 4),
            )
        ],
        rules=(claims.RULES,),
        caveats=words.LEFT_OUT,
        about={"model": _model(asked.config, "all is FP32 but one event of attention")},
        config=_config(asked.config),
        scale=asked.name,
    )


def of_topic(name: str, asked: Topic) -> Study[Found]:
    """Return the study of the cases of a topic."""
    return Study(
        name=name,
        file="dose",
        page=name,
        question=asked.question,
        launches=partial(_launches, asked.config, asked.doses, asked.ties),
        results=lambda store: _found(asked, store),
        answer=asked.answer,
        figures=[Figure(title=asked.question, draw=asked.draw, caption=f"{asked.caption} {RULE}")],
        tables=[
            Table(
                name="cases",
                title="Every case",
                heads=cases.HEADS,
                rows=cases.rows,
                records=cases.points,
                note=PAIRED,
                shown=(0, 1, 2, 4, 6),
                grouped=True,
            )
        ],
        caveats=asked.notes,
        about={"model": _model(asked.config, asked.about), "seeds": str(len(asked.seeds))},
        config=_config(asked.config),
    )


def _launches(config: Config, wanted: Sequence[Dose], ties: bool, store: Store) -> list[Launch]:
    return [_launch(config, group, ties, store) for group in launches(config, wanted)]


def _launch(config: Config, group: Sequence[Dose], ties: bool, store: Store) -> Launch:
    """Return the launch of doses of one executable; those that are stored are not trained again."""
    keys = {dose: key(config, dose) for dose in group}

    def run(progress: Progress) -> Mapping[str, Run[Any]]:
        from roundscope.experiments.questions.dose.run import launch

        there = store.keys()
        missing = [dose for dose in group if keys[dose] not in there]
        return {keys[r.condition]: r for r in launch(config, missing, progress, ties)}

    return Launch(
        title=f"{len(group)} arms",
        steps=group[0].steps,
        config=asdict(config),
        keys=tuple(keys.values()),
        run=run,
    )


def _read(config: Config, wanted: Sequence[Dose], store: Store) -> dict[Dose, Run[Dose]]:
    return store.read({dose: key(config, dose) for dose in wanted})


def _results(asked: Scale, store: Store) -> Results | None:
    """Return the points that are stored with all seeds and their exact arms."""
    wanted = doses(asked)
    found = _read(asked.config, wanted, store)
    lacking = {(d.point, d.exact.point) for d in wanted if d not in found}
    missing = {point for points in lacking for point in points}
    whole = [r for d, r in found.items() if not {d.point, d.exact.point} & missing]
    return Results(whole) if any(r.condition.site for r in whole) else None


def _found(asked: Topic, store: Store) -> Found | None:
    """Return all cases, since an answer compares them; None if one is missing."""
    found = _read(asked.config, asked.doses, store)
    return Found(asked, found.values()) if len(found) == len(asked.doses) else None


def _model(c: Config, what: str) -> str:
    data = "the sources of Python" if c.data == "stdlib" else c.data
    return (
        f"byte-level GPT of {c.layers} layers, width {c.width}, {c.heads} heads, context"
        f" {c.context}, batch {c.batch}, on {data}; {what}"
    )


def _config(c: Config) -> dict[str, Any]:
    return {name: value for name, value in asdict(c).items() if name not in NAMED}


CAPTIONS: dict[str, str] = {
    "How many steps does training survive?": (
        "Dots: seeds; marker: their median, hollow where it is not reached; bar: smallest to"
        " largest (holds the median with 94 % for 5 seeds). An arrow: runs that ended without"
        " divergence, all of them or as many as its number. " + RULE
    ),
    "What loss is left?": (
        "Mean of the last 50 losses; line: median of the seeds. Grey: the range of the exact arms,"
        " FP32 throughout, with the same weights and batches. A cross at the top edge: some loss is"
        " not finite."
    ),
    "What grows first?": (
        "The largest spectral norm of a head's query matrix at the fewest bits, a "
        "line for each seed; a cross marks divergence. Grey: exact arms."
    ),
}
