"""Faults in what summaries say of numbers that are not finite, and of injections in a budget."""

from tests.checks.mutants.faults import Fault

COMPARISON = ("tests/emu/test_comparison.py", "tests/attention/budget/test_origin.py")
ORIGIN = ("tests/attention/budget/test_origin.py",)
TRACE = ("tests/tools/trace/test_infinite_and_nan.py",)

FAULTS = (
    Fault(
        name="lost-left-out",
        kind="not finite",
        imitates="An error is the mean over the numbers that are finite, as if the others were.",
        file="emu/stats/comparison.py",
        old="    return np.where(is_lost(own, want), math.inf, off)",
        new="    return np.where(is_lost(own, want), 0.0, off)",
        tests=COMPARISON,
    ),
    Fault(
        name="masked-score-blamed",
        kind="not finite",
        imitates="The event that is named is that of a score which the mask hides.",
        file="attention/budget/origin.py",
        old="                gone &= visible",
        new="                pass",
        tests=ORIGIN,
    ),
    Fault(
        name="repair-not-run",
        kind="not finite",
        imitates="The first event that overflows is widened, and nobody looks whether that helps.",
        file="attention/budget/origin.py",
        old="        if not here:\n",
        new="        if words:\n            return tuple(words)\n        if not here:\n",
        tests=ORIGIN,
    ),
    Fault(
        name="sums-seen-from-outside",
        kind="not finite",
        imitates="An addition that overflows inside a sum is taken for the rounding of its event.",
        file="attention/budget/origin.py",
        old="    inside = product is not None and not math.isfinite(value)",
        new="    inside = False",
        tests=ORIGIN,
    ),
    Fault(
        name="injected-alone",
        kind="injection",
        imitates="Injected errors are measured in binary64, where an ulp is none and no bit flips.",
        file="attention/budget/measure.py",
        old="        absent = want = call.results(without(plan, part), inject, MEASURED)",
        new=(
            "        absent = want = call.results(without(plan, part), inject, MEASURED)\n"
            "        if part is INJECTED:\n"
            "            own = call.results(exactly(plan), call.inject, MEASURED)\n"
            "            want = exact"
        ),
        tests=ORIGIN,
    ),
    Fault(
        name="delta-of-nan-is-exact",
        kind="not finite",
        imitates="NaN of delta counts as an error of 0, so that delta equals that of exact.",
        file="tools/trace/analysis/consequences.py",
        old="    d = deviations(delta, other)",
        new="    d = np.nan_to_num(deviations(delta, other), posinf=0.0)",
        tests=("tests/tools/trace/test_statistics.py", *TRACE),
    ),
    Fault(
        name="green-box-over-nan",
        kind="not finite",
        imitates="The page of an output that is NaN opens with a green box.",
        file="tools/trace/report/report.py",
        old="any(s.biased_results or s.not_finite is not None for s in summaries)",
        new="any(s.biased_results for s in summaries)",
        tests=TRACE,
    ),
    Fault(
        name="sinks-not-looked-at",
        kind="not finite",
        imitates="NaN in the sinks of a file is not counted among the inputs.",
        file="tools/tensors/layers.py",
        old="    if sinks is not None:  # a sink of -inf is none",
        new="    if sinks is not None and not name:",
        tests=TRACE,
    ),
)
