"""The words that a check's page and its terminal output share."""

import math
from shlex import quote

from roundscope.attention.testing.cases import Answer, Case
from roundscope.tools.check.asked import Asked, command_of
from roundscope.tools.check.report import QUESTIONS, Report

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
    asked, tests = report.asked, [test for test in QUESTIONS if _fails(report, test)]
    again = command_of(asked)
    if not tests:
        return (
            f"Next: keep it so, by {_assertion(asked)} in a test, or in CI by",
            f"{again} --junit check.xml",
        )
    if any(case.is_lost for case in report.failed):
        return (
            "Next: find the event that overflows or divides by 0 (trace the plan on these inputs,"
            " or print the maxima and row sums of the kernel). After the repair, check again",
            again,
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
            command_of(asked, tuple(tests)),
        )
    return (
        "Next: look longer for the rounding that does this (or does it claim another plan? Name it"
        " with --claims)",
        f"roundscope identify {quote(asked.source)}{_mode(asked)} --budget 50000",
    )


def _assertion(asked: Asked) -> str:
    """Return the call in Python that asks the same, with all that differs from its defaults."""
    plan = f'"{asked.claims}"'
    if asked.changes:
        plan = f"Plan.preset({plan}).changed({', '.join(map(repr, asked.changes))})"
    words = ["kernel", plan]
    if asked.is_causal:
        words.append("is_causal=True")
    words += ["backward=False"] if not asked.backward else []
    words += ["strict=True"] if asked.is_strict else []
    usual = Asked(source="", claims="")
    for name in ("tokens", "features", "batch", "heads", "dtype", "block_q", "block_k"):
        value = getattr(asked, name)
        if value != getattr(usual, name):
            words.append(f"{name}={value!r}")
    return f"assert_as_good_as({', '.join(words)})"


def _mode(asked: Asked) -> str:
    """Return the options of `identify` that say which call is meant."""
    causal = {None: "", True: " --causal", False: " --full"}[asked.is_causal]
    layout = f" --layout {asked.layout}" if asked.layout and ":" not in asked.source else ""
    layer = f" --layer {quote(asked.layer)}" if asked.layer is not None else ""
    return causal + layout + layer + (f" --head {asked.head}" if asked.head else "")


def _fails(report: Report, test: str) -> bool:
    return any(case.test == test for case in report.failed)


def number(report: Report) -> str:
    """Return how many cases failed, and the rms error that is largest beside the plan's."""
    asked = [case for case in report.cases if case.answer is not Answer.NOT_RUN]
    failed = f"{len(report.failed) or 'None'} of {len(asked)} cases failed."
    sizes = [
        (f.kernel / f.plan, f)
        for f in (report.compared.findings if report.compared is not None else ())
        if f.statistic == "rms" and f.plan and math.isfinite(f.plan)
    ]
    if not sizes:
        return failed
    ratio, f = max(sizes, key=lambda pair: pair[0])
    if math.isinf(ratio):
        return f"{failed} The error of {f.result} is infinite ({f.inputs})."
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
