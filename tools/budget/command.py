"""`roundscope budget`: run a model, measure its error budget, and report.

It needs PyTorch, whose functions the operations are.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from roundscope.tools.budget.options import BudgetOptions
from roundscope.tools.budget.report import RECORD, report
from roundscope.tools.compare.command import given
from roundscope.tools.errors import UsageError, bad, shown
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.progress import telling
from roundscope.tools.results.folder import checked_folder


def run(options: BudgetOptions) -> None:
    """Measure the error budget of a model, print the report and write the files.

    Raises:
        ValueError: A word that names no run, or a run of which no budget can be measured.
    """
    from roundscope.operations.models.replay import ReplayError
    from roundscope.operations.models.torch.budget.error_budget import budget_of

    if options.out is not None:
        checked_folder(options.out, RECORD)
    plan = plans_of(options.plan or ())
    side = given(options.run, "RUN")
    if isinstance(side, Path):
        raise bad("RUN", options.run, "a file; gradients need the model: give module:function")
    began = time.perf_counter()
    with telling("budget") as tell:
        try:
            found = budget_of(
                side,
                plan=plan,
                by=options.by.value,
                gradients=options.gradients,
                events=options.events,
                tell=tell,
                name=f"RUN {shown(options.run)}",
            )
        except (TypeError, ValueError, ReplayError) as error:
            raise UsageError(str(error)) from error
    told = report(options, found, time.perf_counter() - began)
    deliver(told, options.out, RECORD, as_json=options.json)


def plans_of(words: Sequence[str]) -> dict[str, str]:
    """Return the words of plans by their groups.

    Raises:
        ValueError: One is not GROUP:WORDS, or a group is given twice.

    Example:
        >>> plans_of(["rms_norm: XC=fp32"])
        {'rms_norm': 'XC=fp32'}
    """
    found: dict[str, str] = {}
    for text in words:
        name, colon, plan = (x.strip() for x in text.partition(":"))
        if not (name and colon and plan):
            raise bad("--plan", text, "write GROUP:WORDS, as in 'rms_norm: XC=fp32'")
        if name in found:
            raise bad("--plan", text, f"{name} is given twice; write one text of words for it")
        found[name] = plan
    return found
