"""Named families of seeded inputs of attention, each made for one mechanism of rounding errors.

They are the inputs of sweeps, of `roundscope check` and of `roundscope.testing`.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from roundscope.attention.testing.calls import Inputs
from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.numbers import check_count, check_real, check_truth

Tensors = dict[str, np.ndarray]
TYPES = ("bfloat16", "float16", "float32")
APART = 64  # keys from one repeated pair to the next
SINK, REPEATED = 10.0, 12.0  # how far the chosen keys' scores are above the mean of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The random numbers of one family and seed, one stream per role.

    A longer draw begins with the shorter one.
    """

    family: str
    seed: int
    queries: int
    keys: int
    heads: int
    features: int

    def stream(self, role: str) -> np.random.Generator:
        """Return a Philox stream whose 128-bit key is a hash of family, seed and role."""
        digest = hashlib.sha256(f"{self.family}:{self.seed}:{role}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))

    def normals(self) -> Tensors:
        """Return q, k, v, do ~ N(0, 1), each (tokens, heads, features)."""
        rows = {"q": self.queries, "k": self.keys, "v": self.keys, "do": self.queries}
        return {
            role: self.stream(role).standard_normal((n, self.heads, self.features))
            for role, n in rows.items()
        }

    def signs(self) -> np.ndarray:
        """Return a random sign per feature of each head, (heads, features).

        Signs are exact in every signed format.
        """
        return self.stream("signs").integers(0, 2, (self.heads, self.features)) * 2.0 - 1.0


def gaussian(source: Source) -> Tensors:
    """q, k, v, do ~ N(0, 1): scores of variance 1, diffuse softmax.

    The random tensors of arXiv 2405.02803, phase 1.
    """
    return source.normals()


def repeated_maximum(source: Source) -> Tensors:
    """Pairs of equal keys with scores about 12 above all others, so P = 1 several times in a row.

    The pairs are 64 keys apart: in one tile and across tiles. Their V lies in (-4, -2], all others
    are negative and weigh little, so that a sum of V ends on a tie or just beyond it and BF16
    rounds it away from zero: the bias of arXiv 2510.04212, Claim 3. dO is negative too (its Fig.
    5b, c), so that errors of delta add up.
    """
    x, chosen = _towards(source, source.normals(), REPEATED), np.arange(source.keys) % APART < 2
    steps = source.stream("chosen").integers(0, 128, (source.keys, source.heads, source.features))
    x["k"][chosen] = source.signs()
    x["v"] = np.where(chosen[:, None, None], -2.0 - steps / 64.0, -np.abs(x["v"]))
    x["do"] = -np.abs(x["do"])
    return x


def sink(source: Source) -> Tensors:
    """The first key's score is about 10 above the others, so it takes most of the mass.

    The maximum does not change after the first tile. All other P are small: in FP8 they underflow
    (arXiv 2606.06521), and P = 1 is frequent (arXiv 2510.04212, App. D).
    """
    x = _towards(source, source.normals(), SINK)
    x["k"][0] = source.signs()
    return x


def outlier_channel(source: Source) -> Tensors:
    """One feature of each head is large: k is about 20 with one sign, and q 10 times as wide.

    Scores then share an offset of about 25 that softmax does not depend on but a rounding of S
    does: their differences lose bits. Trained models have such large channels, which also set the
    scale of FP8 operands (arXiv 2208.07339).
    """
    x = source.normals()
    heads = np.arange(source.heads)
    channel = source.stream("channel").integers(0, source.features, source.heads)
    x["q"][:, heads, channel] *= 10.0
    x["k"][:, heads, channel] += 20.0
    return x


def one_signed_v(source: Source) -> Tensors:
    """v < 0 throughout, so sums of P V never cancel and a bias of their roundings stays.

    This is Fig. 6a of arXiv 2510.04212.
    """
    x = source.normals()
    return x | {"v": -np.abs(x["v"])}


def large_logits(source: Source) -> Tensors:
    """q is 12 times as wide, so scores have a standard deviation of 12 and softmax is near one-hot.

    An absolute error of a score is a relative error of P, so a coarse S shows most here; and later
    tiles often raise the maximum by much (the rescalings of arXiv 2405.02803).
    """
    x = source.normals()
    return x | {"q": x["q"] * 12.0}


def ties(source: Source) -> Tensors:
    """Values on coarse binary grids, so scores and sums of V often lie halfway between BF16 values.

    The rule for ties then decides. q is a multiple of 1/4, k of 1/8, so q k is one of 1/32, half an
    ulp of BF16 from 8 to 16; for every other query q is 0, all its P are 1 and its sums of V
    (multiples of 1/32) tie. These are the ties of arXiv 2510.04212, section 3.3.
    """
    x = source.normals()
    x["q"][1::2] = 0.0
    return {
        role: np.rint(x[role] * grid) / grid
        for role, grid in {"q": 4.0, "k": 8.0, "v": 32.0, "do": 32.0}.items()
    }


def _towards(source: Source, x: Tensors, score: float) -> Tensors:
    """Return x with q moved so that its score against the head's signs is about `score`.

    The part of k along the signs is removed.
    """
    signs, h = source.signs(), source.features
    along = (x["k"] * signs).sum(-1, keepdims=True) / h
    return x | {"q": x["q"] + signs * (score / math.sqrt(h)), "k": x["k"] - along * signs}


FAMILIES: dict[str, Callable[[Source], Tensors]] = {
    "gaussian": gaussian,
    "repeated-maximum": repeated_maximum,
    "sink": sink,
    "outlier-channel": outlier_channel,
    "one-signed-v": one_signed_v,
    "large-logits": large_logits,
    "ties": ties,
}


@known_arguments
def draw(
    family: str = "gaussian",
    *,
    seed: int = 0,
    batch: int = 2,
    tokens: int = 128,
    keys: int | None = None,
    heads: int = 4,
    key_heads: int | None = None,
    features: int = 64,
    scale: float | None = None,
    is_causal: bool = False,
    dtype: str = "bfloat16",
) -> Inputs:
    """Return the inputs of one call of attention, drawn from a named family.

    Every head of every batch entry is drawn independently. The same arguments give the same
    numbers on every machine.

    Args:
        family: A name of `FAMILIES`: "gaussian", "repeated-maximum", "sink", "outlier-channel",
            "one-signed-v", "large-logits" or "ties".
        seed: The seed, 0 or more.
        batch: The number of batch entries, B.
        tokens: The number of queries of a head, T.
        keys: The number of keys of a head, S; by default T.
        heads: The number of heads of q, N.
        key_heads: The number of heads of k and v, G, which divides N; by default N.
        features: The number of features of a head, H.
        scale: The factor of the scores; by default 1 / sqrt(H).
        is_causal: Whether a query sees only the keys up to its own position.
        dtype: "bfloat16", "float16" or "float32": the numbers are rounded to this type.

    Returns:
        An `Inputs` with float32 arrays q and do (B, T, N, H), k and v (B, S, G, H).

    Raises:
        ValueError: There is no family of this name, or a size does not fit.

    Example:
        >>> from roundscope.testing import draw
        >>> x = draw("sink", batch=1, tokens=32, heads=4, key_heads=2, features=16)
        >>> x.q.shape, x.k.shape
        ((1, 32, 4, 16), (1, 32, 2, 16))
    """
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(unknown("family", family, FAMILIES))
    groups = heads if key_heads is None else key_heads
    sizes = {"batch": batch, "tokens": tokens, "heads": heads, "features": features}
    sizes |= {"key_heads": groups, "keys": tokens if keys is None else keys}
    for name, size in sizes.items():
        check_count(name, size)
    check_count("seed", seed, 0, most=2**63)
    check_truth("is_causal", is_causal)
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise ValueError(unknown("dtype", dtype, TYPES))
    if scale is not None:
        words = "it is the factor of the scores, and finite"
        check_real("scale", scale, -math.inf, math.inf, words)
    if heads % groups:
        raise ValueError(f"key_heads={groups}: must divide heads={heads}")
    share = heads // groups
    rows = {"queries": share * tokens, "keys": sizes["keys"], "heads": batch * groups}
    drawn = FAMILIES[family](Source(family=family, seed=seed, features=features, **rows))

    def of_queries(x: np.ndarray) -> np.ndarray:
        apart = x.reshape(tokens, share, batch, groups, features)
        return apart.transpose(2, 0, 3, 1, 4).reshape(batch, tokens, heads, features)

    def of_keys(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, batch, groups, features).swapaxes(0, 1)

    return Inputs(
        q=rounded(of_queries(drawn["q"]), dtype),
        k=rounded(of_keys(drawn["k"]), dtype),
        v=rounded(of_keys(drawn["v"]), dtype),
        do=rounded(of_queries(drawn["do"]), dtype),
        scale=features**-0.5 if scale is None else float(scale),
        is_causal=is_causal,
    )


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array rounded to "bfloat16", "float16" or "float32", as contiguous float32."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.ascontiguousarray(x.astype(kind).astype(np.float32))
