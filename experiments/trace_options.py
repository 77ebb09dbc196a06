"""What `roundscope trace` was asked for: `Request`, and the grammar of --set, --inject and --record.

    --set     SITE=FORMAT[:MODE]          O=bf16:stochastic
    --inject  SITE:WHAT[:WHERE]...        O:ulps=0.5:rows=0-63:heads=3    PV:exact    P:flip=3:rows=5,9
    --record  rows | events:SITE,SITE | steps:SITE,SITE

WHAT   exact | ulps=X | bias=X | set=X | flip=BIT | noise=ULPS
WHERE  batch= heads= rows= columns= features= tiles=, each a list of numbers and ranges, both ends included
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attention.events import Record
from attention.injection import AddUlps, Bias, Exact, FlipBit, Injection, Noise, SetTo, What
from attention.plan import Plan, site_named
from attention.sites import PRODUCTS, Axes, Site
from emu.formats import Format, unknown
from experiments.errors import UsageError, bad

WHATS = ("exact", "ulps", "bias", "set", "flip", "noise")
WHERES = ("batch", "heads", "rows", "columns", "features", "tiles")
ENGINES = ("numpy", "xla")
RESCALING = (Site.DM, Site.ALPHA, Site.AL, Site.AO)
KEY_SITES = (Site.K, Site.V, Site.DK_OUT, Site.DV_OUT)


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
        """Whether random bits or injections tell heads apart, so that a call must not be split by heads."""
        steps = [a.step for a in self.plan.accumulators]
        stochastic = any(r.mode == "stochastic" for r in (*self.plan.roundings, *steps))
        return stochastic or bool(self.inject)


def request(
    *, plan: str, against: str, sets: list[str], inject: list[str], record: list[str], engine: str, seed: int,
    block_q: int, block_k: int, scale: float | None, causal: bool,
) -> Request:  # fmt: skip
    """The request in the words of the command line. Raises UsageError naming argument, value and repair."""
    for name, size in (("--block-q", block_q), ("--block-k", block_k)):
        if size < 1:
            raise bad(name, size, "a tile has at least one row; 128 is usual")
    if engine not in ENGINES:
        raise UsageError(f"--engine {unknown('engine', engine, ENGINES)}")
    if not 0 <= seed < 2**32:
        raise bad("--seed", seed, "a seed is a whole number from 0 to 2^32 - 1")
    if scale is not None and not math.isfinite(scale):
        raise bad("--scale", scale, "give a finite number, such as 0.125")
    chosen = _preset("--plan", plan)
    for text in sets:
        chosen = with_rounding(chosen, text, seed)
    kept, rows = recording(record)
    return Request(
        plan=chosen, against=_preset("--against", against), block_q=block_q, block_k=block_k, causal=causal, scale=scale,
        inject=tuple(injection(text, chosen, seed) for text in inject), record=kept, rows=rows, engine=engine, seed=seed,
    )  # fmt: skip


def _preset(argument: str, name: str) -> Plan:
    try:
        return Plan.preset(name)
    except ValueError as error:
        raise UsageError(f"{argument} '{name}': {error}") from None


def with_rounding(plan: Plan, text: str, seed: int = 0) -> Plan:
    """The plan changed by one --set SITE=FORMAT[:MODE]."""
    site, found, target = text.partition("=")
    if not found or not target:
        raise bad("--set", text, "write SITE=FORMAT[:MODE], as in O=bf16:stochastic")
    name, _, mode = target.partition(":")
    try:
        changed = plan.at(site, name, mode or None, seed=seed)
        occurs(plan, site_named(site))
    except ValueError as error:
        raise UsageError(f"--set '{text}': {error}") from None
    f = changed[site_named(site)].format
    if not (f.zero and f.signed):
        raise bad("--set", text, f"{f.name} is a scale format without zero or sign; no event fits it")
    return changed


def injection(text: str, plan: Plan, seed: int = 0) -> Injection:
    """One --inject SITE:WHAT[:WHERE]... ; a value must be a number of the site's format."""
    site, _, rest = text.partition(":")
    what, *where = rest.split(":")
    try:
        chosen = site_named(site)
        occurs(plan, chosen)
        made = Injection(site=chosen, what=_what(what, plan[chosen].format, seed), **dict(_where(w) for w in where))
        if isinstance(made.what, FlipBit) and not (made.what.bit < plan[chosen].format.bits <= 32):
            raise ValueError(f"{chosen} is {plan[chosen].format.name} with bits 0 to {plan[chosen].format.bits - 1}")
        return made
    except ValueError as error:
        raise UsageError(f"--inject '{text}': {error}") from None


def occurs(plan: Plan, site: Site) -> None:
    """Raises ValueError if the plan never reaches the site."""
    if site is Site.PV and plan.pv_into_o:
        raise ValueError(f"{plan.name} accumulates P V into O, so PV never rounds alone; use O")
    if plan.normalise_first and site in RESCALING:
        raise ValueError(f"{plan.name} normalises before P V and never rescales; use P, PV or OUT")


def _what(text: str, f: Format, seed: int) -> What:
    name, given, value = text.partition("=")
    if name not in WHATS or bool(given) == (name == "exact"):
        raise ValueError(f"{unknown('change', text, WHATS)} ; write exact, ulps=0.5, bias=1e-3, set=1, flip=3 or noise=0.5")
    if name == "exact":
        return Exact()
    if name == "flip":
        return FlipBit(bit=_whole(value))
    x = _number(value)
    if name == "set":
        return SetTo(value=_held(x, f))
    return {"ulps": AddUlps(ulps=x), "bias": Bias(value=x)}.get(name) or Noise(ulps=x, seed=seed)


def _number(text: str) -> float:
    try:
        x = float(text)
    except ValueError:
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"'{text}' is no finite number; write one such as 0.5")
    return x


def _held(x: float, f: Format) -> float:
    """x if the format holds it."""
    from emu.rounding import Overflow, Rounding

    if abs(x) > f.max_finite:
        raise ValueError(f"{f.name} cannot hold {x:g}; its largest number is {f.max_finite:g}")
    nearest = _rounded(x, Rounding(format=f, overflow=None if f.inf else Overflow.SATURATE))
    if nearest != x:
        raise ValueError(f"{f.name} cannot hold {x!r}; the nearest number it has is {nearest!r}")
    return x


def _rounded(x: float, r: Any) -> float:
    import numpy as np

    from emu.numpy_ops import numpy_ops

    return float(numpy_ops().round(np.array([x]), r, None)[0])


def _where(text: str) -> tuple[str, range | tuple[int, ...]]:
    name, given, value = text.partition("=")
    if name not in WHERES or not given:
        raise ValueError(f"{unknown('place', text, WHERES)} ; write rows=0-63 or heads=1,3")
    parts = [_range(part) for part in value.split(",")]
    return name, parts[0] if len(parts) == 1 else tuple(i for part in parts for i in part)


def _range(text: str) -> range:
    low, dash, high = text.partition("-")
    first = _whole(low)
    last = _whole(high) if dash else first
    if last < first:
        raise ValueError(f"'{text}' is empty; write the smaller number first")
    return range(first, last + 1)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"'{text}' is no whole number from 0; write one such as 3, or a range 0-63")
    return int(text)


def recording(texts: list[str]) -> tuple[Record, bool]:
    """(what a trace keeps, whether the rows' sums are written out)."""
    record, rows = Record(), False
    for text in texts:
        kind, _, names = text.partition(":")
        if kind not in ("rows", "events", "steps") or (kind == "rows") == bool(names):
            raise bad("--record", text, "write rows, events:SITE,SITE or steps:SITE,SITE")
        try:
            sites = tuple(site_named(n) for n in names.split(",")) if names else ()
        except ValueError as error:
            raise UsageError(f"--record '{text}': {error}") from None
        if kind == "steps" and any(s not in PRODUCTS for s in sites):
            raise bad("--record", text, f"steps are of sums of products: {' '.join(PRODUCTS)}")
        rows = rows or kind == "rows"
        record = replace(record, **{kind: getattr(record, kind) + sites}) if sites else record
    return record, rows


def check_places(req: Request, sizes: dict[str, int], key_heads: int, has_do: bool) -> None:
    """Raises UsageError for an injection at entries, or events, that a layer does not have.

    sizes: batch, heads, queries, keys, features of the layer.
    """
    for made in req.inject:
        of_keys = made.site.axes is Axes.SH
        repeats = -(-sizes["queries"] // req.block_q) if of_keys else -(-sizes["keys"] // req.block_k)
        limits = {
            "batch": sizes["batch"], "heads": key_heads if made.site in KEY_SITES else sizes["heads"], "tiles": repeats,
            "rows": sizes["keys"] if of_keys else sizes["queries"], "columns": sizes["keys"], "features": sizes["features"],
        }  # fmt: skip
        for name, limit in limits.items():
            where: Any = getattr(made, name)
            if where is not None and max(where) >= limit:
                raise bad(f"--inject {made.site}:{name}=", max(where), f"the layer has {limit}, numbered from 0 to {limit - 1}")
        if not has_do and (made.site.stage == "backward" or made.site is Site.DO):
            raise bad("--inject", str(made.site), "the file has no do, so there is no backward; add do or choose a forward site")
