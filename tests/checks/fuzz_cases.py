"""Cases of the fuzzer `tests.checks.fuzz_engines`: how they are drawn, and what they call.

A case is a dict of numbers and words that prints as a small Python literal, such as

    {"plan": "fa2-bf16 P=e4m3fn", "shape": (1, 2, 3, 1, 1, 1, 1), "seed": 4, "is_causal": True}

    plan      a preset and changes in the words of docs/reference/grammar.md; a list: one per batch
    entry
    shape     B, T, S, N, G, H and the width of v
    seed      of the inputs, of masks and sinks, and of stochastic roundings
    tiles     (block_q, block_k); left out: whole
    mask      (share of keys seen, shape with 0 for a full axis and 1 for one that broadcasts)
    sinks     the kind of numbers that they are
    dtypes    of q, k, v and do; left out: float32
    nan       what a NaN becomes in events and steps of formats without NaN; left out: "keep"
    backward  False: without do
    record    arguments of `Record`, or None; left out: a summary of every site
    attend    whether `attend` is called too
    kinds     families of inputs that are tried, of KINDS; left out: all
    others    is_causal, window, softcap, scale and inject are arguments of `examine`

What the engines cannot agree on by the documents is never drawn:

    native accumulators   the device's own order (README.md, "What is exact, and what is not")
    engine="pallas"       needs a GPU; has tests of its own (tests/attention/engines/test_pallas.py)
    subnormal binary64    XLA on a CPU flushes it (docs/notes/decisions.md, 2026-11-20, the
    carrier):
                          inputs of any type stay in the range of binary32; sinks that lie far
                          above the scores, so that 1 / l may be e^-709, meet no plan that holds it
    zeros of m            the sign of a maximum of 0 and -0 is the library's: single events of M and
                          of what has m in it are not recorded, and no bit of them is flipped.
                          No result has that sign (tests/attention/engines/test_fuzz.py, ACCEPTED)
    lists of plans that differ in more than formats and modes, or with a bit that is flipped:
                          `examine` refuses them under XLA alone, and says so
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from roundscope import PRODUCTS, Axes, Plan, Record, Site
from roundscope.attention.sites import BACKWARD, ONCE
from roundscope.attention.testing.words import (
    FORMATS,
    MODES,
    accepted,
    plan_of,
    plans,
    sites_of,
    words,
)
from roundscope.emu.roundings.modes import rounding
from tests.attention.judge import ARITHMETICS
from tests.attention.judge import FORMATS as JUDGED_FORMATS

Case = dict[str, Any]

SPECIAL = {
    "zeros": [0.0, -0.0],
    "tiny": [1e-40, -1e-40, 3e-45, -1e-38, 1e-20, -1e-25],
    "huge": [1e38, -1e38, 3e38, 1e19, -1e19],
    "infinite": [np.inf, -np.inf],
    "nan": [np.nan],
    "any": [0.0, -0.0, 1e-40, -1e-39, 1e30, -3e38, np.inf, -np.inf, np.nan],
}
KINDS = ("normal", "large", "few", "wide", *SPECIAL)
FAR = ("wide", "huge", "any")  # kinds with finite numbers that are large
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}


ERRORS = words(
    "exact ulps=0.5 ulps=-3 bias=0.25 bias=-1e30 bias=1e-40 set=0 set=-2 set=0.5 noise=1 "
    "noise=0.5 flip=0 flip=2 flip=5 flip=15"
)
OF_MAXIMUM = words("M CM MO MS X DM DX SX")
JUDGED_EVENTS = words(
    "P V O S Q K DO SCALED M X EXP DM ALPHA AL ROWSUM L INV AO PV OUT LSE OD DELTA S_B "
    "SCALED_B X_B EXP_B P_B DV DP DPD DS DQ DK DQ_OUT DK_OUT DV_OUT"
)


def small(*ranges: tuple[int, int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Whole numbers, each in a range whose ends it includes."""
    return st.tuples(*(st.integers(*pair) for pair in ranges))


@st.composite
def relatives(draw: Callable[..., Any], like: str) -> str:
    """Words of a plan that differs from another in formats and modes, none of them stochastic."""
    plan = plan_of(like, 0)
    single = [site for site in sites_of(plan, True) if plan.block(site) is None]
    taken = [site for site in single if plan[site].mode != "stochastic"]
    for site in draw(st.lists(st.sampled_from(taken), max_size=4)):
        mode = draw(st.sampled_from([mode for mode in MODES if mode != "stochastic"]))
        change = f"{site}={draw(st.sampled_from(FORMATS))}:{mode}"
        changed = accepted(plan, change)
        if changed is not None:
            plan = changed
            like = f"{like} {change}"
    return like


@st.composite
def selections(draw: Callable[..., Any], site: Site) -> str:
    """Which entries an injection names; a few calls lack them, and have to say so."""
    own = {Axes.TS: ("columns",), Axes.T: ()}.get(site.axes, ("features",))
    names = ("rows", "heads", "batch", *own, *(() if site in ONCE else ("tiles",)))
    chosen = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    entries = st.sampled_from(("0", "0", "0:1", "0", "0:2", "0", "1", "0,2", "0:3:2"))
    return "".join(f":{name}={draw(entries)}" for name in chosen)


@st.composite
def injections(draw: Callable[..., Any], plan: Plan, is_backward: bool) -> str:
    """An injection in words, at an event of the plan."""
    sites = sites_of(plan, is_backward)
    error = draw(st.sampled_from(ERRORS))
    site = draw(st.sampled_from(sites))
    error = "exact" if site in OF_MAXIMUM and error.startswith("flip") else error
    return f"{site}:{error}{draw(selections(site))}"


@st.composite
def records(draw: Callable[..., Any], plan: Plan, is_backward: bool) -> dict[str, Any]:
    """Arguments of `Record`."""
    sites = [str(site) for site in sites_of(plan, is_backward) if site not in OF_MAXIMUM]
    sums = [str(site) for site in PRODUCTS if str(site) in sites] or ["S"]
    made: dict[str, Any] = {}
    for name, names in (("events", sites), ("ones", sites), ("steps", sums)):
        chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
        if chosen:
            made[name] = tuple(chosen)
    every = draw(st.integers(1, 3))
    return made | ({"every": every} if every > 1 else {})


@st.composite
def shapes(draw: Callable[..., Any]) -> tuple[int, ...]:
    """B, T, S, N, G, H and the width of v; one in sixteen has rows of several fragments of 32."""
    batch, group, key_heads = draw(small((1, 2), (1, 2), (1, 2)))
    t, s, h, width = draw(small((1, 9), (1, 9), (1, 8), (0, 8)))
    s = draw(st.sampled_from((40, 70))) if draw(st.integers(0, 15)) == 15 else s
    return batch, t, s, group * key_heads, key_heads, h, width or h


def drawing(examples: int) -> settings:
    """Hypothesis's settings for a run of so many cases, which ends at its first failure."""
    return settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    """A case whose every part but plan, shape and seed may be left out."""
    shape = draw(shapes())
    text = draw(plans())
    case: Case = {"plan": text, "shape": shape, "seed": draw(st.integers(0, 2**16))}
    plan, is_many = plan_of(text, 0), shape[0] == 2 and draw(st.integers(0, 4)) == 4
    if is_many:
        case["plan"] = [text, draw(relatives(text))]
    _draw_arguments(draw, case, shape)
    if draw(st.booleans()):
        case["nan"] = "zero"
    if case.get("sinks") in FAR and has_wide_exponents(case):
        case["sinks"] = "normal"
    if draw(st.integers(0, 3)) == 3:
        case["backward"] = False
    is_backward = case.get("backward", True)
    made = draw(st.lists(injections(plan, is_backward), max_size=3)) if draw(st.booleans()) else []
    made = [text for text in made if not (is_many and ":flip=" in text)]
    if made:
        case["inject"] = made
    if draw(st.integers(0, 3)) < 3:
        case["record"] = None  # a program that records takes five times as long to compile
    elif draw(st.booleans()):
        case["record"] = draw(records(plan, is_backward))
    is_forward = all(Site[text.partition(":")[0]] not in BACKWARD for text in made)
    if is_forward and not is_many and draw(st.integers(0, 3)) == 3:
        case["attend"] = True  # which runs no backward, and refuses what touches one
    return case


def has_wide_exponents(case: Case) -> bool:
    """Whether exponentials round to a format with a larger range of exponents than binary32."""
    texts = case["plan"] if isinstance(case["plan"], list) else [case["plan"]]
    plans = [plan_of(text, 0) for text in texts]
    return any(plan[site].format.emin < -126 for plan in plans for site in (Site.EXP, Site.SE))


@st.composite
def judged_cases(draw: Callable[..., Any]) -> Case:
    """A case that the judge covers: a preset that it knows, and other formats at its events."""
    text = draw(st.sampled_from(list(ARITHMETICS)))
    plan = Plan.preset(text)
    for site in draw(st.lists(st.sampled_from(JUDGED_EVENTS), max_size=3, unique=True)):
        change = f"{site}={draw(st.sampled_from(list(JUDGED_FORMATS)))}"
        changed = accepted(plan, change)
        if changed is not None:
            plan, text = changed, f"{text} {change}"
    case: Case = {"plan": text, "shape": draw(shapes()), "seed": draw(st.integers(0, 2**16))}
    _draw_arguments(draw, case, case["shape"])
    for name in ("softcap", "sinks"):
        case.pop(name, None)
    return case | {"record": None}


def _draw_arguments(draw: Callable[..., Any], case: Case, shape: tuple[int, ...]) -> None:
    """Tiles and arguments of a call, where they are not the usual ones."""
    if draw(st.booleans()):
        case["tiles"] = draw(small((1, shape[1] + 1), (1, min(shape[2] + 1, 40))))
    if draw(st.booleans()):
        case["is_causal"] = True
    if draw(st.integers(0, 2)) == 2:
        axes = draw(small((0, 1), (0, 1), (0, 1), (0, 1)))
        case["mask"] = (draw(st.sampled_from((0.5, 0.2, 0.8, 0.0, 1.0))), axes)
    if draw(st.integers(0, 5)) == 5:
        case["window"] = draw(st.integers(1, 6))
    if draw(st.integers(0, 5)) == 5:
        case["softcap"] = draw(st.sampled_from((1.0, 50.0, 0.3, 1e-3)))
    if draw(st.integers(0, 5)) == 5:
        case["sinks"] = draw(st.sampled_from(KINDS))
    if draw(st.integers(0, 3)) == 3:
        case["scale"] = draw(st.sampled_from((1.0, 0.1, -0.7, 1e-3, 30.0, 1e-30)))
    if draw(st.integers(0, 3)) == 3:
        names = st.sampled_from(("bfloat16", "float64", "float16", "float32"))
        case["dtypes"] = (
            (draw(names),) * 4 if draw(st.booleans()) else draw(st.tuples(*[names] * 4))
        )


def tensors(case: Case, kind: str) -> list[np.ndarray]:
    """q, k, v and do of a case and of a kind of numbers."""
    b, t, s, n, g, h, width = case["shape"]
    rng = np.random.default_rng([case["seed"], KINDS.index(kind)])
    axes = (b, t, n, h), (b, s, g, h), (b, s, g, width), (b, t, n, width)
    made = [numbers(rng, shape, kind) for shape in axes]
    with np.errstate(over="ignore"):
        dtypes = case.get("dtypes", ("float32",) * 4)
        return [x.astype(DTYPES[name]) for x, name in zip(made, dtypes, strict=True)]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """An array of a kind of numbers in binary64, in the range of binary32."""
    normal = rng.standard_normal(shape)
    if kind == "large":
        return 30.0 * normal
    if kind == "few":
        return np.rint(2.0 * normal) / 2.0
    if kind == "wide":
        return normal * 10.0 ** rng.uniform(-44, 37, shape)
    if kind in SPECIAL:
        hit = rng.random(shape) < rng.choice([0.05, 0.3, 1.0], p=[0.5, 0.4, 0.1])
        return np.where(hit, rng.choice(SPECIAL[kind], shape), normal)
    return normal


def mask_of(case: Case) -> np.ndarray | None:
    """The mask of a case, broadcastable to (B, N, T, S)."""
    if case.get("mask") is None:
        return None
    share, axes = case["mask"]
    b, t, s, n = case["shape"][:4]
    whole = [1 if one else size for one, size in zip(axes, (b, n, t, s), strict=True)]
    return np.random.default_rng([case["seed"], 1000]).random(whole) < share


def sinks_of(case: Case) -> np.ndarray | None:
    """The sinks of a case, (N,)."""
    if case.get("sinks") is None:
        return None
    rng = np.random.default_rng([case["seed"], 2000])
    return numbers(rng, (case["shape"][3],), case["sinks"]).astype(np.float32)


def arguments(case: Case) -> dict[str, Any]:
    """What `attend` and `examine` are called with, but for tensors, records and engines."""
    several = isinstance(case["plan"], list)
    texts = case["plan"] if several else [case["plan"]]
    made = [with_policy(plan_of(x, case["seed"]), case.get("nan", "keep")) for x in texts]
    block_q, block_k = case.get("tiles", (128, 128))
    given = {name: case[name] for name in ("window", "softcap", "scale") if name in case}
    return given | {
        "plan": made if several else made[0],
        "block_q": block_q,
        "block_k": block_k,
        "is_causal": case.get("is_causal", False),
        "mask": mask_of(case),
        "sinks": sinks_of(case),
        "inject": list(case.get("inject", ())),
    }


def with_policy(plan: Plan, nan: str) -> Plan:
    """Return a plan with one `NanPolicy` in every rounding, steps of sums included.

    The grammar has no word for it. Tensor cores have their own NaN, and so has a block's scale.
    """

    events = tuple(
        r if plan.block(site) else rounding(r, nan=nan)
        for site, r in zip(Site, plan.roundings, strict=True)
    )
    sums = tuple(
        a if a.alignment else replace(a, step=rounding(a.step, nan=nan)) for a in plan.accumulators
    )
    return replace(plan, roundings=events, accumulators=sums)


def record_of(case: Case) -> Record | None:
    """The record of a case."""
    asked = case.get("record", {})
    return None if asked is None else Record(**asked)
