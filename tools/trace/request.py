"""The request of `roundscope trace`, as its options give it: `Request`.

The words of --set and --inject are `attention.grammar`'s (docs/reference/grammar.md).

--record  rows | events:SITE,SITE | steps:SITE,SITE
"""

from dataclasses import dataclass, field, replace

from roundscope.attention.arguments import ENGINES, check_forward_record, plan_given
from roundscope.attention.grammar.changes import sites_of
from roundscope.attention.grammar.injections import check_injection, injection_of
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.alignment import Alignment
from roundscope.attention.places import Sizes, check_place, check_record
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import BACKWARD, PRODUCTS
from roundscope.emu.errors import Problem, unknown
from roundscope.tools.errors import UsageError, bad, why
from roundscope.tools.trace.options import TraceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything besides the tensors that decides the numbers of a trace.

    plan, against     the plan, and the plan with whose results it is compared
    beside            the plan whose results stand beside those of the plan; None for none
    budget            whether to measure which event makes how much of the error
    budget_heads      on how many query heads; None for as many as are quick
    block_q, block_k  queries and keys of a tile
    causal            whether query t sees the keys s <= t only; None for as the layer's file says
    alignment         whether t and s are counted from the first or the last, as the layer has it
    scale             that of the scores; None for the layer's own, or 1 / sqrt(H)
    inject            the errors to add;  record: the events and steps to keep
    rows              whether to write each row's sum of errors
    engine, seed      what runs it; the seed of stochastic rounding and noise
    """

    plan: Plan
    against: Plan
    beside: Plan | None = None
    budget: bool = False
    budget_heads: int | None = None
    block_q: int = 128
    block_k: int = 128
    causal: bool | None = None
    alignment: Alignment | None = None
    scale: float | None = None
    inject: tuple[Injection, ...] = ()
    record: Record = field(default_factory=Record)
    rows: bool = False
    engine: str = "numpy"
    seed: int = 0

    @property
    def depends_on_head_number(self) -> bool:
        """Return whether heads' numbers decide random bits or injections, so no call is split."""
        steps = [a.step for a in self.plan.accumulators]
        stochastic = any(r.mode == "stochastic" for r in (*self.plan.roundings, *steps))
        return stochastic or bool(self.inject)


def request(options: TraceOptions, plan: str, beside: str) -> Request:
    """Return the request that the words of the command line make.

    plan, beside: the names of the plans, where the options may leave them to the tensors; beside
    may be none

    Raises UsageError naming argument, value and repair.
    """
    for name, size in (("--block-q", options.block_q), ("--block-k", options.block_k)):
        if size < 1:
            raise bad(name, size, "a tile has at least one row; 128 is usual")
    if options.budget_heads is not None and not 1 <= options.budget_heads < 2**31:
        raise bad("--budget-heads", options.budget_heads, "give 1 or more, such as 12")
    engine, seed = options.engine, options.seed
    if engine not in ENGINES:
        raise UsageError(f"--engine '{engine}': {unknown('engine', engine, ENGINES)}")
    if not 0 <= seed < 2**32:
        raise bad("--seed", seed, "a seed is a whole number from 0 to 2^32 - 1")
    chosen = _preset("--plan", plan)
    for text in options.changes:
        chosen = changed(chosen, text, seed)
    recorded, rows = recording(options.record)
    try:
        check_record(recorded, chosen)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    if engine == "pallas" and recorded.steps:
        raise bad("--engine", engine, "fused kernels keep no steps; give --engine xla")
    return Request(
        plan=chosen,
        against=_preset("--against", options.against),
        beside=None if beside == "none" else _preset("--beside", beside),
        budget=options.budget,
        budget_heads=options.budget_heads,
        block_q=options.block_q,
        block_k=options.block_k,
        inject=tuple(injection(text, chosen, seed) for text in options.inject),
        record=recorded,
        rows=rows,
        engine=engine,
        seed=seed,
    )


def _preset(argument: str, name: str) -> Plan:
    try:
        return plan_given(name)
    except ValueError as error:
        raise UsageError(f"{argument} '{name}': {str(error).removeprefix('plan: ')}") from None


def changed(plan: Plan, text: str, seed: int = 0) -> Plan:
    """Return the plan after one --set. Raises UsageError."""
    try:
        return plan.changed(text, seed=seed)
    except ValueError as error:
        is_of_text = isinstance(error, Problem) and error.value == f"'{text}'"
        raise UsageError(f"--set '{text}': {why(error) if is_of_text else error}") from None


def injection(text: str, plan: Plan, seed: int = 0) -> Injection:
    """Return the injection of one --inject. Raises UsageError if the plan cannot have it."""
    try:
        parsed = injection_of(text, seed)
        check_injection(parsed, plan)
    except ValueError as error:
        raise UsageError(f"--inject '{text}': {error}") from None
    return parsed


def recording(texts: list[str]) -> tuple[Record, bool]:
    """Return (what a trace keeps, whether the rows' sums are written) for the texts of --record."""
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


def check_places(req: Request, sizes: Sizes, has_do: bool) -> None:
    """Raise UsageError for injections and records that a layer has no place for.

    These are injections at entries or events that it lacks, and a record of such events alone.
    sizes: those of the layer; has_do: whether it has a backward
    """
    for each in req.inject:
        try:
            check_place(each, sizes, "the layer")
        except ValueError as error:
            raise UsageError(f"--inject {error}") from None
        if not has_do and each.site in BACKWARD:
            repair = "the file has no do, so there is no backward; add do or choose a forward site"
            raise bad("--inject", str(each.site), repair)
    if not has_do:
        try:
            check_forward_record(req.record)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
