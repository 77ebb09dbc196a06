"""The verbs that need an experiment: what each is called, its help, and where its work is done.

Nothing but the records of options and the catalogue is imported before a verb runs.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from roundscope.experiments.options import (
    DoseOptions,
    KernelsOptions,
    ProxyOptions,
    ReproduceOptions,
    TrainOptions,
)
from roundscope.tools.cli.commands import verb
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.errors import bad
from roundscope.tools.options import Json, to_file, to_folder


@verb
def diagnose(options: DiagnoseOptions) -> None:
    """Find out why a run failed, or whether rounding adds up in tensors, and what repairs it."""
    from roundscope.tools.diagnose import command

    command.run(options, _of_run)


def _of_run(folder: Path, options: DiagnoseOptions, out: Path, progress: Any) -> Any:
    """Return the findings of a GPT's run, or the report of a student's; `out` keeps replays."""
    from roundscope.experiments.diagnose.student import case

    if case.file_of(folder) is None:
        from roundscope.experiments.diagnose.gpt.run import diagnose_run

        return diagnose_run(folder, options, out, progress)
    from roundscope.experiments.diagnose.student import report, run
    from roundscope.tools.diagnose.command import LAST

    found = run.diagnose(folder, options, out, progress)
    progress(LAST, "report")
    return report.diagnosis(found)


@verb
def reproduce(options: ReproduceOptions) -> int:
    """Measure the claims of a paper and give a verdict on each."""
    from roundscope.experiments import reproduce as papers

    return papers.run(options)


def studies(json: Json = False) -> None:
    """List every study: what it asks, its command, and how long it takes."""
    from roundscope.experiments import catalogue

    catalogue.show(as_json=json)


def accumulators(
    out: Annotated[
        Path, Option(callback=to_folder, help="Folder for report.html and accumulators.json.")
    ] = Path("accumulators"),
    order: Annotated[
        bool,
        Option(
            "--order", help="Find the order of additions in this machine's matrix products instead."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure how the sums of tensor cores are biased, as a function of their length K."""
    from roundscope.experiments.questions.tensor_cores import order as orders

    if order:
        orders.show(as_json=json)
        return
    from roundscope.experiments.questions.tensor_cores import study

    if code := study.run(out=out, as_json=json):
        raise typer.Exit(code)


@verb
def kernels(options: KernelsOptions) -> int:
    """Measure which real attention kernels are biased, on named inputs."""
    from roundscope.experiments.questions.kernels import study

    return study.run(options)


def prepare(
    paths: Annotated[
        list[Path], Argument(help="Text files, and folders of text files.", metavar="DIR_OR_FILES")
    ],
    out: Annotated[Path, Option(callback=to_folder, help="Folder for train.bin and val.bin.")],
    json: Json = False,
) -> None:
    """Make training data from any text, one token per byte, in nanoGPT's file format."""
    from roundscope.experiments.train.gpt import data

    data.prepare(paths, out, as_json=json)


@verb
def train(options: TrainOptions) -> int:
    """Train a small GPT with emulated attention, or continue or replay a run."""
    from roundscope.experiments.train.run import command

    return command.run(options)


@verb
def dose(options: DoseOptions) -> int:
    """Measure how soon training diverges, by how one event rounds and the learning rate."""
    from roundscope.experiments.questions.dose import study

    return study.run(options)


@verb
def proxy(options: ProxyOptions) -> int:
    """Train a student MLP in block-scaled formats, and change the arithmetic during training."""
    from roundscope.experiments.questions.proxy import study

    return study.run(options)


def export(
    file: Annotated[Path, Argument(help="Results of a sweep.", metavar="SWEEP.sqlite")],
    out: Annotated[
        Path,
        Argument(
            callback=to_file,
            help="File to write; its ending chooses the format.",
            metavar="OUT.csv|OUT.parquet",
        ),
    ],
    table: Annotated[str, Option(help="The table to write: cells or sites.")] = "cells",
    raw: Annotated[
        bool,
        Option(
            "--raw",
            help="CSV: texts as they are, also those that a spreadsheet takes for formulas; else"
            " these have a ' before them.",
        ),
    ] = False,
) -> None:
    """Write a sweep's results as CSV or Parquet."""
    from roundscope.experiments.train.record import is_log
    from roundscope.tools.sweep.storage import export as export_results

    if is_log(file):
        repair = (
            "is the log of a training run: SQLite with the tables steps, heads, sites and alarms;"
            f" draw it with  roundscope report {file.parent}"
        )
        raise bad("SWEEP.sqlite", str(file), repair)
    rows = export_results.export(file, out, table, raw=raw)
    if said := export_results.lost(file):
        print(said)
    print(f"written: {out} ({rows} rows)")


def report(
    file: Annotated[
        Path,
        Argument(
            help="Results of a sweep, or the folder of a training run.", metavar="SWEEP.sqlite|RUN"
        ),
    ],
    out: Annotated[
        Path | None,
        Option(
            callback=to_file,
            help="File to write; by default SWEEP.html beside the results, or RUN/report.html.",
        ),
    ] = None,
) -> None:
    """Draw a sweep's results or a training run into one HTML file that opens offline."""
    from roundscope.experiments.train import report as page

    if (folder := page.folder_of(file)) is not None:
        print(f"written: {page.write(folder, out)}")
        return
    from roundscope.tools.sweep.report import report as sweep_report

    page_of, answer = sweep_report.write(file, out), sweep_report.answer(file)
    print(f"{answer}\nwritten: {page_of}")


def bench(
    what: Annotated[
        str, Argument(help="round, mx, dot, attention, sweep or step.", metavar="WHAT")
    ],
    out: Annotated[
        Path | None,
        Option(
            callback=to_folder,
            help="Folder for bench-WHAT.json and bench-WHAT.png; not for sweep and step.",
            metavar="DIR",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure Roundscope's speed against that of the alternatives."""
    from roundscope.experiments.train import bench_step
    from roundscope.tools.bench import command as bench_command

    bench_command.run(what, as_json=json, out=out, more={"step": bench_step.run})
