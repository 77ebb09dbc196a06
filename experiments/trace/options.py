"""What `roundscope trace` was asked for: `Request`.

The words of --set and --inject are `attention.grammar`'s (docs/grammar.md).

--record  rows | events:SITE,SITE | steps:SITE,SITE
"""

import math
from dataclasses import dataclass, field, replace

from roundscope.attention.arguments import ENGINES, check_forward_record
from roundscope.attention.events.recorder import Record
from roundscope.attention.grammar.changes import sites_of
from roundscope.attention.grammar.injections import check_injection, injection_of
from roundscope.attention.injection import Injection
from roundscope.attention.places import Sizes, check_place, check_record
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import BACKWARD, PRODUCTS
from roundscope.emu.formats.format import unknown
from roundscope.experiments.errors import UsageError, bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that decides the numbers of a trace, beside the tensors."""

    plan: Plan
    against: Plan
    block_q: int = 128
    block_k: int = 128
    causal: bool = False
    scale: float | None = None
    inject: tuple[Injection, ...] = ()
    record: Record = field(default_factory=Record)
    rows: bool = False
    engine: str = "numpy"
    seed: int = 0

    @property
    def depends_on_head_number(self) -> bool:
        """Whether random bits or injections tell heads apart, so that a call must not be split by
        heads.
        """
        steps = [a.step for a in self.plan.accumulators]
        stochastic = any(r.mode == "stochastic" for r in (*self.plan.roundings, *steps))
        return stochastic or bool(self.inject)


def request(
    *,
    plan: str,
    against: str,
    sets: list[str],
    inject: list[str],
    record: list[str],
    engine: str,
    seed: int,
    block_q: int,
    block_k: int,
    scale: float | None,
    causal: bool,
) -> Request:
    """The request in the words of the command line.

    Raises UsageError naming argument, value and repair.
    """
    for name, size in (("--block-q", block_q), ("--block-k", block_k)):
        if size < 1:
            raise bad(name, size, "a tile has at least one row; 128 is usual")
    if engine not in ENGINES:
        raise UsageError(f"--engine '{engine}': {unknown('engine', engine, ENGINES)}")
    if not 0 <= seed < 2**32:
        raise bad("--seed", seed, "a seed is a whole number from 0 to 2^32 - 1")
    if scale is not None and not (math.isfinite(scale) and scale):
        raise bad("--scale", scale, "give a finite number other than 0, such as 0.125")
    chosen = _preset("--plan", plan)
    for text in sets:
        chosen = changed(chosen, text, seed)
    kept, rows = recording(record)
    try:
        check_record(kept, chosen)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    if engine == "pallas" and kept.steps:
        raise bad("--engine", engine, "fused kernels keep no steps; give --engine xla")
    return Request(
        plan=chosen,
        against=_preset("--against", against),
        block_q=block_q,
        block_k=block_k,
        causal=causal,
        scale=scale,
        inject=tuple(injection(text, chosen, seed) for text in inject),
        record=kept,
        rows=rows,
        engine=engine,
        seed=seed,
    )


def _preset(argument: str, name: str) -> Plan:
    try:
        return Plan.preset(name)
    except ValueError as error:
        raise UsageError(f"{argument} '{name}': {error}") from None


def changed(plan: Plan, text: str, seed: int = 0) -> Plan:
    """The plan after one --set. Raises UsageError."""
    try:
        return plan.changed(text, seed=seed)
    except ValueError as error:
        raise UsageError(f"--set '{text}': {error}") from None


def injection(text: str, plan: Plan, seed: int = 0) -> Injection:
    """One --inject; the plan has its event, and its format the bit or the value. Raises
    UsageError.
    """
    try:
        made = injection_of(text, seed)
        check_injection(made, plan)
    except ValueError as error:
        raise UsageError(f"--inject '{text}': {error}") from None
    return made


def recording(texts: list[str]) -> tuple[Record, bool]:
    """(what a trace keeps, whether the rows' sums are written out)."""
    record, rows = Record(), False
    for text in texts:
        kind, _, names = text.partition(":")
        if kind not in ("rows", "events", "steps") or (kind == "rows") == bool(names):
            raise bad("--record", text, "write rows, events:SITE,SITE or steps:SITE,SITE")
        try:
            sites = sites_of(names) if names else ()
        except ValueError as error:
            raise UsageError(f"--record '{text}': {error}") from None
        if kind == "steps" and any(s not in PRODUCTS for s in sites):
            raise bad("--record", text, f"steps are of sums of products: {' '.join(PRODUCTS)}")
        rows = rows or kind == "rows"
        record = replace(record, **{kind: getattr(record, kind) + sites}) if sites else record
    return record, rows


def check_places(req: Request, sizes: Sizes, has_do: bool, owner: str = "the layer") -> None:
    """Raises UsageError for an injection at entries, or events, that a layer does not have, and for
    a record of such events alone.
    """
    for made in req.inject:
        try:
            check_place(made, sizes, owner)
        except ValueError as error:
            raise UsageError(f"--inject {error}") from None
        if not has_do and made.site in BACKWARD:
            raise bad(
                "--inject",
                str(made.site),
                "the file has no do, so there is no backward; add do or choose a forward site",
            )
    if not has_do:
        try:
            check_forward_record(req.record)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
