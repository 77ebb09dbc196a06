"""`roundscope kernels --record FILE` and `--compare OLD NEW`."""

from pathlib import Path

from roundscope.emu.whole_files import write_whole
from roundscope.experiments.framework import command
from roundscope.experiments.framework.study import Figure, Outcome, Study, Table
from roundscope.experiments.options import KernelsOptions
from roundscope.experiments.questions.kernels.passport import page, record
from roundscope.experiments.questions.kernels.passport.compare import alone, steps
from roundscope.experiments.questions.kernels.passport.page import Compared
from roundscope.experiments.questions.kernels.passport.recording import recorded
from roundscope.tools.errors import UsageError
from roundscope.tools.report.pictures import png
from roundscope.tools.report.terminal import console

CAPTION = (
    "A row is a kernel in one type of numbers whose bits changed, from its oldest release to its"
    " newest. Another tint: the bits of some result changed; = the arithmetic is known, ~ it is one"
    " of a few changes, ? it is open. Gray: it did not run."
)
CAVEATS = (
    "One call of each operation: attention of two heads of 256 tokens and 64 features, causal;"
    " rows of 512 features, 64 of them. Releases with the same bits here may differ in other calls."
    " Rows are compared by checksums of 16 bits. A plan is known if it gives every number of the"
    " results that changed; for attention 300 plans are tried, in FP32 60."
)


def run(options: KernelsOptions) -> int:
    """Record or compare, as the options say; return the exit code.

    Raises:
        UsageError: Options that do not go together, or a file that is not what it should be.
    """
    only = None if options.only is None else [name.strip() for name in options.only.split(",")]
    if options.compare is None:
        assert options.record is not None
        whole = recorded(options.record, options.written, only, options.timeout)
        named = [r for r in whole.releases if not r.failed]
        found = [b.twin for b in whole.bits.values()]
        plans = sum(t is not None and all(map(t.gives, t.equal)) for t in found)
        console().print(
            f"{options.record}: {len(named)} releases of kernels that ran, with {len(found)}"
            f" different bits; of {plans} a plan gives every number."
            f" {len(whole.releases) - len(named)} did not run."
        )
        return 0
    return _compare(*options.compare, options)


def check(options: KernelsOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if options.record is not None and options.compare is not None:
        raise UsageError("--record and --compare: give one of them, one after the other")
    if options.written is not None and options.record is None:
        raise UsageError("--written: give --record FILE too, which it is judged into")


def _compare(old: Path, new: Path, options: KernelsOptions) -> int:
    before = record.read(old)
    after = before if new.resolve() == old.resolve() else record.read(new)

    def measure(out: Path, draw: bool) -> tuple[Outcome, Compared]:
        found = steps(before, after)
        devices = sorted({s.new.device for s in found})
        outcome = Outcome(launches=len(found), there=len(found), ran=len(found), devices=devices)
        lone = alone(before, after)
        return outcome, Compared(old=before, new=after, steps=found, alone=lone)

    study: Study[Compared] = Study(
        name="passport",
        question="Which release changed which bits of a kernel, and what arithmetic changed?",
        answer=page.answer,
        measure=measure,
        unit="steps",
        page="passport",
        figures=[
            Figure(title="Where did bits change?", draw=page.picture, caption=CAPTION),
        ],
        tables=[
            Table(
                name="steps",
                title="Every step that changed bits",
                heads=page.STEPS[0],
                rows=page.step_rows,
                records=page.step_records,
                shown=page.STEPS[1],
                grouped=True,
            ),
            Table(
                name="kernels",
                title="Every kernel and its releases",
                heads=page.KERNELS,
                rows=page.kernel_rows,
                records=page.kernel_records,
                note="Releases are in order: = the same bits, | other bits.",
            ),
            Table(
                name="releases",
                title="Every release",
                heads=page.RELEASES,
                rows=page.release_rows,
                records=page.release_records,
            ),
        ],
        caveats=CAVEATS,
    )
    words = f"roundscope kernels --compare {old} {new}"
    code = command.run(study, out=options.out, command=words, as_json=options.json)
    drawn = page.picture(Compared(old=before, new=after, steps=steps(before, after)))
    if drawn is not None:
        write_whole(options.out / "passport.png", png(drawn))
    return code
