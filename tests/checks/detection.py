"""Which planted faults does `roundscope check` find, by which test, and how few tokens suffice?

python -m tests.checks.detection [--only NAME ...] [--out FILE.json] [--table]
python -m tests.checks.detection --calibrate 20    # good kernels with 20 seeds: false alarms
python -m tests.checks.detection --read FILE.json --table    # the table of an earlier run

Every fault of `faults_kernel`, every harmless change, the reference kernel, and the rebuilt public
kernels with their repairs are asked what `roundscope check` asks, on calls of its sizes: is the
kernel as good as the plan on its kinds of inputs (until the first objection), what changes its
results, and how are they at the edges? The real tensors and the search for a plan are left out.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.cases import Answer, Case
from roundscope.attention.testing.comparison import Comparison, compare
from roundscope.attention.testing.errors import UNITS, Margins
from roundscope.attention.testing.foreign.user import Kernel, kernel_of
from roundscope.attention.testing.invariance import check_invariance
from roundscope.attention.testing.reference import Reference, reference
from roundscope.tools.check.options import CheckOptions
from roundscope.tools.check.run import drawn as of_check
from roundscope.tools.check.run import edge_cases, kinds, taken_kinds
from tests.checks.detection_table import table
from tests.checks.mutants import faults_kernel
from tests.checks.mutants import reference as good
from tests.checks.public_bugs import causal_tiles, fp8_clipping, split_kv

ASKED = CheckOptions(source="", claims="fa2-bf16")  # the sizes of the calls of a check
TOKENS = ASKED.tokens
FEWER = (16, 32, 64, 128)  # tokens of the comparisons that look for the least number
CALIBRATED = 96  # tokens of a calibration: two key tiles of the reference kernel
KINDS = tuple(kinds(None))
FP8 = "fa3-fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A kernel to be tested.

    Attributes:
        name: Its name.
        level: "gross", "moderate", "subtle", "harmless", "public" or "repaired".
        function: The function.
        claims: The name of the plan that it claims.
    """

    name: str
    level: str
    function: Callable[..., Any]
    claims: str = "fa2-bf16"

    @property
    def is_good(self) -> bool:
        """True if the kernel has no fault, so that an objection to it is a false alarm."""
        return self.level in ("harmless", "repaired")


@dataclass(slots=True, kw_only=True)
class Record:
    """What the tests said of one kernel.

    Attributes:
        name: The kernel's name.
        level: The level of its fault, or "harmless" or "repaired".
        by: The tests that object, in the order in which they ran.
        how: What the first of them saw: a statistic, or the name of an invariance or an edge.
        inputs: The inputs on which it saw that.
        sentence: The same in words.
        least_tokens: The least number of tokens with which the comparison alone objects, or None.
        heads: How many heads were compared until the first objection of the comparison.
        draws: How many draws of each family were looked at.
        notes: Answers that are notes, not failures.
        seconds: How long the comparison, the invariances and the edges took, without the plan
            where it was known.
    """

    name: str
    level: str
    by: list[str] = field(default_factory=list)
    how: str = ""
    inputs: str = ""
    sentence: str = ""
    least_tokens: int | None = None
    heads: int = 0
    draws: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered(Reference):
    """A plan whose results are computed once for each inputs, since many kernels are compared."""

    known: dict[bytes, Outputs] = field(default_factory=dict)

    def outputs(self, x: Inputs, backward: bool) -> Outputs:
        """Return what the plan gives on some inputs, with the gradients in any case."""
        digest = blake2b(repr((x.scale, x.is_causal, x.q.shape, x.k.shape)).encode())
        for array in (x.q, x.k, x.v, x.do, *([] if x.mask is None else [x.mask])):
            digest.update(np.ascontiguousarray(array))
        key = digest.digest()
        if key not in self.known:
            self.known[key] = Reference.outputs(self, x, True)
        return self.known[key] if backward else Outputs(out=self.known[key].out)


def subjects() -> Iterator[Subject]:
    """Yield the reference kernel, its harmless changes, its faults and the public kernels."""
    yield Subject(name="reference", level="harmless", function=good.attention)
    for fault in (*faults_kernel.HARMLESS, *faults_kernel.FAULTS):
        function = faults_kernel.kernel_of(fault)
        yield Subject(name=fault.name, level=fault.level, function=function)
    faults = ("triton_tutorial", "jax_pallas", "bf16_partials", "clipping")
    for module, claims in ((causal_tiles, "fa2-bf16"), (split_kv, "fa2-bf16"), (fp8_clipping, FP8)):
        for name, function in module.KERNELS.items():
            level = "public" if name in faults else "repaired"
            yield Subject(name=name, level=level, function=function, claims=claims)


def drawn(kind: str, look: int, seed: int = 0, tokens: int = TOKENS) -> Inputs:
    """Return the inputs of a kind of the check."""
    return of_check(replace(ASKED, seed=seed, tokens=tokens), kind, look)


def compared(
    kernel: Kernel,
    plan: Reference,
    inputs: Sequence[str] = KINDS,
    draws: int = ASKED.draws,
    seed: int = 0,
    tokens: int = TOKENS,
) -> Comparison:
    """Compare a kernel with a plan until the first objection."""
    with np.errstate(all="ignore"):
        return compare(
            kernel,
            plan,
            inputs,
            partial(drawn, seed=seed, tokens=tokens),
            draws=draws,
            margins=Margins(),
            unit=UNITS["bfloat16"],
        )


def seen(found: Comparison) -> tuple[str, str, str]:
    """Return what a comparison saw first: the statistic, the inputs and the words."""
    if found.gross:
        worst = max(found.gross, key=lambda g: g.size)
        statistic = "gross" if np.isfinite(worst.size) else "not finite"
        return f"{statistic} {worst.result}", worst.inputs, worst.sentence
    alarm = found.alarms[0]
    return f"{alarm.statistic} {alarm.result}", alarm.inputs, alarm.sentence


def asked(subject: Subject, plan: Reference) -> Record:
    """Return what all tests say of a kernel."""
    kernel = kernel_of(subject.function, library="numpy")
    record = Record(name=subject.name, level=subject.level)
    began = time.perf_counter()
    with np.errstate(all="ignore"):
        others, _ = taken_kinds(kernel, ASKED)
    found = compared(kernel, plan, (*KINDS, *others))
    record.heads, record.draws = found.heads, found.looks
    if not found.is_fine:
        objected(record, "compare", *seen(found))
    for case in cases(kernel, plan):
        if case.answer is Answer.FAIL:
            objected(record, case.test, case.name, case.name, case.sentence)
        elif case.answer is Answer.NOTE:
            record.notes.append(f"{case.name}: {case.sentence}")
    record.seconds = round(time.perf_counter() - began, 1)
    if "compare" in record.by:
        record.least_tokens = least(kernel, plan)
    return record


def objected(record: Record, test: str, how: str, inputs: str, sentence: str) -> None:
    """Add an objection; the first one is kept in words."""
    if not record.by:
        record.how, record.inputs, record.sentence = how, inputs, sentence
    if test not in record.by:
        record.by.append(test)


def cases(kernel: Kernel, plan: Reference) -> Iterator[Case]:
    """Yield the answers of the invariances and of the edges."""
    with np.errstate(all="ignore"):
        yield from check_invariance(kernel, plan, drawn(KINDS[0], 0), margins=Margins())
    yield from edge_cases(kernel, plan, ASKED, (True, False))


def least(kernel: Kernel, plan: Reference) -> int | None:
    """Return the least number of tokens with which the families of inputs object, or None."""
    for tokens in (*FEWER, TOKENS):
        if not compared(kernel, plan, tokens=tokens).is_fine:
            return tokens
    return None


def run(only: list[str], out: Path | None) -> list[dict[str, Any]]:
    """Ask about every kernel, or some; write what is known after each."""
    plans: dict[str, Remembered] = {}
    records: list[dict[str, Any]] = []
    for subject in subjects():
        if only and subject.name not in only:
            continue
        plan = plans.setdefault(subject.claims, remembered(subject.claims))
        record = asked(subject, plan)
        records.append(asdict(record))
        words = f"{', '.join(record.by) or '-'}: {record.how} on {record.inputs}"
        print(f"{record.name:28}{record.level:10}{record.seconds:6.1f} s  {words}", flush=True)
        if out:
            out.write_text(json.dumps(records, indent=1) + "\n")
    return records


def remembered(claims: str) -> Remembered:
    """Return the plan of a name, which computes nothing twice."""
    plan = reference(claims)
    return Remembered(plan=plan.plan, tiles=plan.tiles)


def calibrate(seeds: int) -> None:
    """Print how often a good kernel is flagged, over seeds that share no inputs."""
    alarms: dict[str, list[str]] = {}
    for i in range(seeds):
        plan = remembered("fa2-bf16")
        for subject in subjects():
            if subject.level != "harmless":
                continue
            kernel = kernel_of(subject.function, library="numpy")
            found = compared(kernel, plan, draws=1, seed=1000 + 10 * i, tokens=CALIBRATED)
            alarms.setdefault(subject.name, []).extend(found.worst()[:1])
            for reason in found.worst():
                print(f"seed {1000 + 10 * i}: {subject.name}: {reason}", flush=True)
        counts = ", ".join(f"{name} {len(reasons)}" for name, reasons in alarms.items())
        print(f"after {i + 1} seeds: {counts}", flush=True)


def main() -> None:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--read", type=Path, metavar="FILE.json")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--calibrate", type=int, default=0, metavar="SEEDS")
    given = parser.parse_args()
    if given.calibrate:
        return calibrate(given.calibrate)
    records = json.loads(given.read.read_text()) if given.read else run(given.only, given.out)
    if given.table:
        print(table(records))


if __name__ == "__main__":
    main()
