"""Every plan computes attention: `make every-plan`.

    python -m tests.checks.every_plan [--plans 5000] [--seed 0]

A random plan is a preset or a twin with random words of `attention.testing.strategies` that it
accepts. It is put into binary64 at every event, and met by a call with random arguments: a
scale of either sign, a causal mask, another mask, a window, a softcap, sinks, a bias, groups of
heads, ragged tiles, other numbers of keys than of queries. Its out, L, dq, dk, dv, delta, dsinks
and dbias are then those of exact attention, or the plan or the call is refused in words.

The reference is a textbook's attention in binary64, with its gradients by hand (`reference`); it
shares nothing with `attention`. In binary64 a plan still has constants in binary32, such as log2 e,
so results agree to 1e-5 and no further. Functions of a GPU, which are wrong by more, are replaced
by correct ones; a factor that is missing is an error of 1e-2 and more.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention import Plan, examine
from roundscope.attention.budget.parts import exactly
from roundscope.attention.plans.choices import (
    Exponential,
    Logarithm,
    Reciprocal,
    ScoreGradient,
    Tanh,
)
from roundscope.attention.testing.words import BASES, CHOICES, TOGETHER
from roundscope.events.plan import check_factors

RESULTS = ("out", "lse", "dq", "dk", "dv", "delta", "dsinks", "dbias")
TOLERANCE = 1e-5
CORRECT = {Exponential.EX2: Exponential.BASE2, Exponential.CUDA: Exponential.CORRECT}
NUMBERS = ("mode", "polynomial")  # words that change numbers, which binary64 has not
WORDS = tuple(name for name in CHOICES if name not in NUMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of one call: arrays as for `attend`, and the tiles."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray
    tiles: tuple[int, int] = (4, 4)
    scale: float | None = None
    is_causal: bool = False
    mask: np.ndarray | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: np.ndarray | None = None
    bias: np.ndarray | None = None

    def __str__(self) -> str:
        """Return the shapes and arguments."""
        b, t, n, h = self.q.shape
        s, g, hv = self.v.shape[1:]
        told = f"B={b} T={t} S={s} N={n} G={g} H={h} Hv={hv} tiles={self.tiles}"
        given = {name: getattr(self, name) for name in ("scale", "is_causal", "window", "softcap")}
        given |= {name: getattr(self, name) is not None for name in ("mask", "sinks", "bias")}
        return " ".join([told, *(f"{name}={x}" for name, x in given.items() if x)])


def tensors(
    draw: np.random.Generator,
    queries: int = 9,
    keys: int = 9,
    heads: tuple[int, int] = (2, 1),
    features: tuple[int, int] = (4, 3),
) -> dict[str, np.ndarray]:
    """Return q, k, v and do of normal numbers; heads: of q and of k; features: of q and of v."""
    of_q, of_k = (2, queries, heads[0]), (2, keys, heads[1])
    shapes = {"q": (*of_q, features[0]), "k": (*of_k, features[0])}
    shapes |= {"v": (*of_k, features[1]), "do": (*of_q, features[1])}
    return {name: draw.standard_normal(shape) for name, shape in shapes.items()}


def random_call(draw: np.random.Generator) -> Call:
    """Return a call with random sizes and arguments."""

    def one(*values: Any) -> Any:
        return values[draw.integers(len(values))]

    t, s = int(draw.integers(1, 14)), int(draw.integers(1, 14))
    heads = one((1, 1), (2, 1), (2, 2), (4, 2))
    heads = one((1, 1), (2, 1), (2, 2), (4, 2))
    s = one(t, s)
    return Call(
        **tensors(draw, t, s, heads, one((4, 4), (4, 3), (3, 5))),
        tiles=(one(3, 4, 8, 16), one(3, 4, 8, 16)),
        scale=one(None, None, 1.7, 0.3, -0.4, -1.1),
        is_causal=one(False, True),
        mask=one(None, None, draw.random((t, s)) < 0.7, draw.random((2, heads[0], t, s)) < 0.5),
        window=one(None, None, None, 1, 4),
        softcap=one(None, None, 0.9, 3.0),
        sinks=one(None, draw.standard_normal(heads[0])),
        bias=one(None, None, draw.standard_normal((t, s)), draw.standard_normal((heads[0], 1, s))),
    )


def random_words(draw: np.random.Generator) -> Iterator[str]:
    """Yield the name of a plan and some changes of it, which it may refuse."""
    yield str(draw.choice(BASES))
    for _ in range(draw.integers(0, 7)):
        if draw.random() < 0.2:
            yield str(draw.choice(TOGETHER))
        else:
            name = str(draw.choice(WORDS))
            yield f"{name}={draw.choice(CHOICES[name])}"


def plan_of(words: Iterator[str]) -> tuple[Plan, str]:
    """Return the plan of a name and of those changes that it accepts, and its words."""
    name = next(words)
    plan, told = Plan.preset(name), [name]
    for word in words:
        try:
            plan = plan.changed(word)
        except ValueError:
            continue
        told.append(word)
    return plan, " ".join(told)


def correct(plan: Plan) -> Plan:
    """Return the plan in binary64, with correct functions in place of a GPU's."""
    return replace(
        exactly(plan),
        exp=CORRECT.get(plan.exp, plan.exp),
        reciprocal=Reciprocal.CORRECT,
        log=Logarithm.CORRECT,
        tanh=Tanh.CORRECT,
        polynomial=None,
    )


def reference(x: Call, plan: Plan) -> dict[str, np.ndarray]:
    """Return the results of exact attention in binary64, by hand; L is in the plan's base.

    plan: its window, softcap and base of L are read, and whether its keys lose their mean and its
    delta is a quotient.
    """
    (b, t, n, h), (s, g) = x.q.shape, x.k.shape[1:3]
    scale = 1.0 / np.sqrt(h) if x.scale is None else x.scale
    cap, window = x.softcap or plan.softcap, x.window or plan.window
    k, v = (np.repeat(a, n // g, axis=2) for a in (x.k, x.v))
    if plan.smoothed_keys:  # gradients stay, since dS adds up to 0
        k = k - k.mean(axis=1, keepdims=True)
    logits = scale * np.einsum("btnh,bsnh->bnts", x.q, k)
    slope = np.ones_like(logits)
    if cap:
        tanh = np.tanh(logits / cap)
        logits, slope = cap * tanh, 1.0 - tanh**2
    logits = logits if x.bias is None else logits + x.bias
    apart = np.arange(t)[:, None] - np.arange(s)
    sees = np.broadcast_to(True if x.mask is None else x.mask, (b, n, t, s)).copy()
    sees &= (apart >= 0) | (not x.is_causal)
    if window:
        sees &= np.abs(apart) < window
    e = np.where(sees, np.exp(logits), 0.0)  # small numbers: no maximum is needed
    of_sink = np.zeros((n, 1, 1)) if x.sinks is None else np.exp(x.sinks)[:, None, None]
    total = e.sum(-1, keepdims=True) + of_sink
    safe = np.where(total > 0.0, total, 1.0)
    p = e / safe
    out = np.einsum("bnts,bsnh->btnh", p, v)
    dp = np.einsum("btnh,bsnh->bnts", x.do, v)
    delta = (p * dp).sum(-1, keepdims=True)
    of_scores = p * (dp - delta)
    ds = of_scores * slope * scale
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0]) * (1.0 / np.log(2.0) if plan.lse_base2 else 1.0)

    def of_keys(pattern: str, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the sum over the query heads of each key head."""
        return np.einsum(pattern, a, y).reshape(b, s, g, n // g, -1).sum(3)

    found = {
        "out": out,
        "lse": lse.swapaxes(1, 2),
        "dq": np.einsum("bnts,bsnh->btnh", ds, k),
        "dk": of_keys("bnts,btnh->bsnh", ds, x.q),
        "dv": of_keys("bnts,btnh->bsnh", p, x.do),
    }
    if plan.score_gradient is not ScoreGradient.QUOTIENT:  # whose delta is rowsum(P dP) / l
        found["delta"] = delta[..., 0].swapaxes(1, 2)
    if x.sinks is not None:
        found["dsinks"] = -(of_sink / safe * delta).sum((0, 2, 3))
    if x.bias is not None:
        axes = tuple(
            n for n, size in enumerate(np.broadcast_shapes(x.bias.shape, (1,) * 4)) if size == 1
        )
        found["dbias"] = of_scores.sum(axes, keepdims=True).reshape(x.bias.shape)
    return found


def wrong(plan: Plan, x: Call, engine: str = "numpy") -> list[str]:
    """Return the results of a plan in binary64 that are not those of exact attention, in words.

    Raises ValueError if the plan or the call is refused.
    """
    check_factors(plan)
    named = ("scale", "is_causal", "mask", "window", "softcap", "sinks", "bias")
    asked = {n: getattr(x, n) for n in named}
    found = examine(
        x.q, x.k, x.v, x.do, plan=correct(plan), block_q=x.tiles[0], block_k=x.tiles[1],
        record=None, engine=engine, **asked,
    )  # fmt: skip
    told = []
    for name, want in reference(x, plan).items():
        ours = np.asarray(getattr(found, name), np.float64)
        with np.errstate(invalid="ignore"):
            off = np.where(ours == want, 0.0, np.abs(ours - want))
        size = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
        if not (off <= TOLERANCE * size).all():
            told.append(f"{name} by {off.max() / size:.2g}")
    return told


def tried(draws: int, seed: int, counts: Counter[str], accepted: int = 0) -> Iterator[str]:
    """Yield every failure among random plans in words; `counts` counts what was tried.

    Ends after so many `draws`, or after so many `accepted` plans if that is given.
    """
    for n in range(draws):
        draw = np.random.Generator(np.random.PCG64((seed, n)))
        plan, words = plan_of(random_words(draw))
        x = random_call(draw)
        try:
            told = wrong(plan, x)
        except ValueError as error:
            counts["refused"] += 1
            counts[f"  {str(error).partition(':')[0].partition('=')[0]}"] += 1
            continue
        counts["accepted"] += 1
        if told:
            counts["failed"] += 1
            yield f"{n}: {words} | {x}: wrong {', '.join(told)}"
        if counts["accepted"] == accepted:
            return


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.every_plan", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--plans", type=int, default=5000, help="accepted plans")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    counts: Counter[str] = Counter(accepted=0, refused=0, failed=0)
    for told in tried(100 * asked.plans, asked.seed, counts, asked.plans):
        print(told, flush=True)
    for name, count in counts.items():
        print(f"{count:6} {name}")
    return 1 if counts["failed"] or counts["accepted"] < asked.plans else 0


if __name__ == "__main__":
    sys.exit(main())
