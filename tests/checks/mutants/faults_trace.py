"""Faults in what a trace says of biases: which events it tests, and the sentence about them."""

from tests.checks.mutants.faults import Fault

BIAS = ("tests/tools/trace/test_both_tests.py",)
COUNTED = ("tests/attention/trace/test_traces.py",)

FAULTS = (
    Fault(
        name="tested-up-and-down-only",
        kind="bias of events",
        imitates="Truncation of numbers of both signs has a mean error of nothing: not biased.",
        file="tools/trace/analysis/bias.py",
        old="return self.signed.is_biased or self.away.is_biased",
        new="return self.signed.is_biased",
        tests=BIAS,
    ),
    Fault(
        name="away-from-zero-by-sign-of-nothing",
        kind="bias of events",
        imitates="Errors of negative numbers count as those of positive ones, in both tests.",
        file="events/recorder.py",
        old="xp, is_negative = self.ops.xp, before < 0.0",
        new="xp, is_negative = self.ops.xp, before < -1e300",
        tests=COUNTED,
    ),
    Fault(
        name="no-event-beside-a-biased-result",
        kind="bias of events",
        imitates="A page says that no event is biased, and that the output is too short.",
        file="tools/trace/biased.py",
        old="    if s.biased_results:\n        agree",
        new="    if not s.rounding:\n        agree",
        tests=BIAS,
    ),
    Fault(
        name="one-test-in-the-threshold",
        kind="bias of events",
        imitates="Every event is tested twice, and the threshold counts it once.",
        file="tools/trace/summary.py",
        old="analysis.threshold(2 * sum(",
        new="analysis.threshold(sum(",
        tests=BIAS,
    ),
    Fault(
        name="truncation-repaired-by-bits",
        kind="repair",
        imitates="The step against a truncation is promotion to FP32, not rounding to nearest.",
        file="attention/budget/parts.py",
        old="replace(event, mode=RoundingMode.TIES_TO_EVEN) if event.mode in DIRECTED else event",
        new="event",
        tests=BIAS,
    ),
)
