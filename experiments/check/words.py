"""The words that a check's page and its terminal output share."""

from roundscope.attention.testing.cases import Answer, Case
from roundscope.experiments.check.report import QUESTIONS, Report

MANY = 6  # reasons that are shown


def reasons(report: Report) -> list[str]:
    """Return why a kernel is not as good as its plan: one reason for each test and result."""
    failed = report.failed
    lines = [f"{case.test}, {case.name}: {case.sentence}" for case in _spread(report)]
    more = len(failed) - len(lines)
    return [*lines, f"{more} more below"] if more > 0 else lines


def _spread(report: Report) -> list[Case]:
    """Return the failures to show, some of every test."""
    by_test = [[c for c in report.failed if c.test == test] for test in QUESTIONS]
    shown: list[Case] = []
    turn = 0
    while len(shown) < MANY and any(turn < len(cases) for cases in by_test):
        shown += [cases[turn] for cases in by_test if turn < len(cases)]
        turn += 1
    order = {id(case): i for i, case in enumerate(report.failed)}
    return sorted(shown[:MANY], key=lambda case: order[id(case)])


def counts(report: Report) -> list[tuple[str, ...]]:
    """Return a row for each test: its name, its question, how many of each answer, seconds."""
    rows: list[tuple[str, ...]] = []
    for test, question in QUESTIONS.items():
        cases = report.of(test)
        if cases:
            answers = [sum(c.answer is a for c in cases) for a in Answer]
            seconds = sum(c.seconds for c in cases)
            passed, noted, failed, skipped = (str(n) if n else "" for n in answers)
            rows.append((test, question, passed, noted, failed, skipped, f"{seconds:.1f}"))
    return rows


def next_step(report: Report) -> tuple[str, str]:
    """Return what to do next in words, and the command for it."""
    source, tests = report.asked.source, [test for test in QUESTIONS if _fails(report, test)]
    again = f"roundscope check {source} --claims {report.asked.plan}"
    if not tests:
        return (
            "Next: keep it so, by assert_as_good_as(kernel,"
            f' "{report.asked.claims}") in a test, or in CI by',
            f"{again} --junit check.xml",
        )
    if "explanation" in tests:
        return (
            "Next: no rounding does this, so look for a mistake in the code: masks, tiles, scales."
            " The failed cases say on which inputs it is largest. After the repair, check again",
            again,
        )
    if {*tests} <= {"invariance", "edges"}:
        return (
            "Next: call the kernel as the first failed case does, which says its inputs. After the"
            " repair, check again",
            f"{again} --only {','.join(tests)}",
        )
    return (
        "Next: look longer for the rounding that does this (or does it claim another plan? Name it"
        " with --claims)",
        f"roundscope identify {source} --budget 50000",
    )


def _fails(report: Report, test: str) -> bool:
    return any(case.test == test for case in report.failed)


def number(report: Report) -> str:
    """Return how many cases failed, and the rms error that is largest beside the plan's."""
    asked = [case for case in report.cases if case.answer is not Answer.NOT_RUN]
    failed = f"{len(report.failed) or 'None'} of {len(asked)} cases failed."
    ratios = [
        (f.kernel / f.plan, f)
        for f in (report.compared.findings if report.compared is not None else ())
        if f.statistic == "rms" and f.plan
    ]
    if not ratios:
        return failed
    ratio, f = max(ratios, key=lambda pair: pair[0])
    return (
        f"{failed} The relative rms error is at most {ratio:.3g} times the plan's: {f.kernel:.2e}"
        f" ({f.result}, {f.inputs})."
    )


def how(report: Report) -> list[str]:
    """Return how the answers were found, in sentences."""
    m = report.asked.margins
    lines = [f"{report.about}."]
    if report.compared is not None:
        c = report.compared
        lines.append(
            f"The kernel and {c.plan} ran on the same inputs, and the errors of both from exact"
            f" attention in binary64 were compared: {c.heads} heads, {c.looks} draws of each kind"
            f" of inputs at most. It may have {m.rms:g} times the plan's rms error, {m.row:g} times"
            f" that of its worst row, and a bias that differs by {m.bias:g} of the rms error. A"
            " single head fails beyond"
            f" {m.gross_rms:g} and {m.gross_row:g} times. The means over heads of a kernel as good"
            f" as the plan give a false alarm with probability {c.false_alarm:g} at most, over all"
            " questions."
        )
    return lines
