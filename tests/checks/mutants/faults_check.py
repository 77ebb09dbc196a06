"""Faults in the tests of kernels and of casts: a verdict that is kinder than it should be."""

from tests.checks.mutants.faults import Fault

ERRORS = ("tests/attention/testing/test_errors.py",)
EDGES = ("tests/attention/testing/test_edges_of_kernels.py",)
CHECK = ("tests/tools/check/test_check.py",)
CASTS = ("tests/emu/testing/casts/test_cast_blocks.py",)
HEADLINES = ("tests/emu/testing/casts/test_headlines.py",)

FAULTS = (
    Fault(
        name="lost-numbers-left-out",
        kind="verdict",
        imitates="Numbers that are not finite are left out of the errors of a head.",
        file="attention/testing/errors.py",
        old="    off = deviations(by_head(x), want)\n",
        new="    off = deviations(by_head(x), want)\n    off = np.where(np.isinf(off), 0.0, off)\n",
        tests=ERRORS,
    ),
    Fault(
        name="exit-is-no-failure",
        kind="verdict",
        imitates="A kernel that ends the process ends the check, with the exit code of a pass.",
        file="emu/testing/foreign.py",
        old="        except SystemExit as error:\n"
        "            raise ForeignError(what, ends(error)) from error\n",
        new="",
        tests=EDGES,
    ),
    Fault(
        name="extremes-in-causal-calls-alone",
        kind="verdict",
        imitates="The second kind of calls is asked about no edges with extreme scores.",
        file="tools/check/run.py",
        old="            names=names,\n            explains=",
        new="            names=('one token',) if is_further else names,\n            explains=",
        tests=CHECK,
    ),
    Fault(
        name="scales-that-fit-none-pass",
        kind="verdict",
        imitates="A scale that no number of its block fits counts as the asked one.",
        file="emu/testing/casts/blocks.py",
        old="    kept = kept & found.fit\n",
        new="    without = 0\n",
        tests=CASTS,
    ),
    Fault(
        name="headline-without-rows",
        kind="verdict",
        imitates="The headline says that all is as asked, whatever the rows of special inputs say.",
        file="emu/testing/casts/records.py",
        old="        if self.passed:\n            law",
        new="        if self.passed or self.whole.agree == self.whole.of:\n            law",
        tests=HEADLINES,
    ),
)
