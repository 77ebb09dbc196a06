"""The diagnosis of a training of ours: a GPT's run, or that of a student."""

from pathlib import Path
from typing import Any

from roundscope.tools.diagnose.command import LAST
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.tensors.findings import Progress


def of_run(folder: Path, options: DiagnoseOptions, out: Path, progress: Progress) -> Any:
    """Return the findings of a GPT's run, or the report of a student's (`roundscope proxy`).

    out: where replays are kept.
    """
    from roundscope.experiments.diagnose.student import case

    if case.file_of(folder) is None:
        from roundscope.experiments.diagnose.gpt.run import diagnose_run

        return diagnose_run(folder, options, out, progress)
    from roundscope.experiments.diagnose.student import report, run

    found = run.diagnose(folder, options, out, progress)
    progress(LAST, "report")
    return report.diagnosis(found)
