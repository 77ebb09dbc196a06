"""What a rule does to tensors and to their products, in numbers.

Of numbers V that a rule makes Q, and Q* with unrounded scales amax / m (`rules.Rounded`):

    not_finite  the numbers of Q that are infinite or NaN; all others are of finite numbers alone
    gain        <Q - V, V> / |V|^2: below 0, Q is too short along V; the expected value of 0 is what
                "unbiased" says
    dead        the share of numbers other than 0 that become 0
    error       |Q - V| / |V|
    scale, dead_zone, grid    the lengths, over |V|, of three parts whose sum is Q - V, exactly
                (arXiv 2605.20402): what rounding the scale does, Q - Q*; where Q* is 0, Q* - V; and
                elsewhere Q* - V
    cross       the cosine of the first and the last; the second is orthogonal to the last

and of a product of two such matrices, in binary64, its not_finite, gain and error. A random rule is
drawn several times, and a number is the mean over draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from roundscope.experiments.framework.estimates import gain, relative_error
from roundscope.experiments.questions.fp4_rules.rules import RULES, Rounded, Rule, rounded, turned

Array = np.ndarray
Numbers = dict[str, float]
OF_TENSORS = ("not_finite", "gain", "dead", "error", "scale", "dead_zone", "grid", "cross")
OF_PRODUCTS = ("not_finite", "gain", "error")
Row = dict[str, Any]


def _length(x: Array) -> float:
    return float(np.sqrt(np.square(x).sum()))


def of_tensor(x: Rounded) -> Numbers:
    """Return OF_TENSORS of a rounded matrix."""
    kept = np.isfinite(x.q) & np.isfinite(x.v)
    v, q, ideal = (np.where(kept, each, 0.0) for each in x)
    size = _length(v)
    zone = (ideal == 0.0) & kept
    parts = {
        "scale": q - ideal,
        "dead_zone": np.where(zone, ideal - v, 0.0),
        "grid": np.where(zone, 0.0, ideal - v),
    }
    length = {name: _length(part) for name, part in parts.items()}
    both = length["scale"] * length["grid"]
    return {
        "not_finite": float((~kept).sum()),
        "gain": gain(q, v),
        "dead": float(((q == 0.0) & (v != 0.0)).sum() / max(1, (v != 0.0).sum())),
        "error": relative_error(q, v),
        **{name: each / size for name, each in length.items()},
        "cross": float((parts["scale"] * parts["grid"]).sum() / both) if both else 0.0,
    }


def of_product(exact: Array, a: Rounded, b: Rounded) -> Numbers:
    """Return OF_PRODUCTS of two rounded factors (n, K) and (m, K), against the exact product."""
    y = a.q @ b.q.T
    kept = np.isfinite(y)
    y, exact = np.where(kept, y, 0.0), np.where(kept, exact, 0.0)
    # two factors of a turned pair may have their lengths changed by powers of two that cancel
    return {
        "not_finite": float((~kept).sum()),
        "gain": gain(y, exact),
        "error": relative_error(y, exact),
    }


def measured(
    products: Mapping[str, Sequence[tuple[tuple[str, str], Array, Array]]],
    seed: int,
    draws: int,
    rules: Sequence[Rule] = RULES,
) -> Iterator[Row]:
    """Yield a row for each rule and each kind of tensor or product, the mean over all of a kind.

    Args:
        products: For each kind of product its cases: the kinds of its two factors ("" to leave a
            factor out of the tensors' rows), and the factors (n, K) and (m, K).
        seed: Decides random bits and signs.
        draws: How often a random rule is drawn.
        rules: The rules.
    """
    for rule in rules:
        found: dict[str, list[Numbers]] = {}
        for kind, cases in products.items():
            for number, (names, left, right) in enumerate(cases):
                exact = np.asarray(left, np.float64) @ np.asarray(right, np.float64).T
                for draw in range(draws if rule.is_random else 1):
                    own = (seed * 1009 + draw) * 64 + number
                    a, b = (
                        rounded(rule, x, 2 * own + side)
                        for side, x in enumerate(turned(rule, (left, right), own))
                    )
                    found.setdefault(kind, []).append(of_product(exact, a, b))
                    for name, x in zip(names, (a, b), strict=True):
                        if name:
                            found.setdefault(name, []).append(of_tensor(x))
        for kind, each in found.items():
            mean = {name: float(np.mean([own[name] for own in each])) for name in each[0]}
            mean["not_finite"] = float(np.sum([own["not_finite"] for own in each]))
            yield {"rule": rule.name, "of": kind, "cases": len(each), **mean}
