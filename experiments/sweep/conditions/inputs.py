"""The inputs of a sweep: named seeded families, each for one mechanism, and tensors from files."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from roundscope.experiments.errors import bad
from roundscope.experiments.sweep.conditions.cell import Cell
from roundscope.experiments.tensors.layers import read_layers, sample_path

Tensors = dict[str, np.ndarray]
SAMPLE = "sample"
SIZES = ("T", "S", "N", "H")
APART = 64  # keys from one repeated pair to the next
SINK, REPEATED = 10.0, 12.0  # how far the chosen keys' scores are above the mean of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One cell's tensors, float64 and read-only.

    q, do   (1, T, N, H); do is None if a file has none
    k, v    (1, S, N, H); from a file, with its key heads
    scale   of the scores, from a file's metadata; None for 1 / sqrt(H)

    Drawn values are BF16 numbers, so rounding the inputs to BF16 or wider changes none of them.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray | None
    scale: float | None = None


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


FAMILIES: dict[str, Callable[[Source], Tensors]] = {
    "gaussian": gaussian,
    "repeated-maximum": repeated_maximum,
    "sink": sink,
    "outlier-channel": outlier_channel,
    "one-signed-v": one_signed_v,
    "large-logits": large_logits,
    "ties": ties,
}


def draw(cell: Cell) -> Inputs:
    """Return the inputs of a cell.

    Drawn ones depend on family, seed, N and H; more tokens only add rows. Raises UsageError for a
    file that cannot be read, is smaller than the cell asks for, or is not the one that the cell was
    planned with.
    """
    family, (t, s, n, h) = str(cell["input"]), (int(cell[size]) for size in SIZES)
    if family not in FAMILIES:
        return _from_file(family, cell)
    source = Source(family=family, seed=int(cell["seed"]), queries=t, keys=s, heads=n, features=h)
    x = {
        role: _frozen(tensor.astype(ml_dtypes.bfloat16))
        for role, tensor in FAMILIES[family](source).items()
    }
    return Inputs(q=x["q"], k=x["k"], v=x["v"], do=x["do"])


def file_of(name: str) -> tuple[Path, str | None]:
    """Return (path, layer or None) of an input that is no family.

    It is written sample, sample:LAYER, PATH or PATH:LAYER.
    """
    path, _, layer = name.rpartition(":")
    if not path or Path(name).is_file():
        path, layer = name, ""
    return sample_path() if path == SAMPLE else Path(path), layer or None


def _from_file(name: str, cell: Cell) -> Inputs:
    """Return the first T queries, S keys and N heads of the first sequence of a layer.

    The layer is the one named, or the first; the values are float32 as in the file.
    """
    from roundscope.experiments.sweep.conditions.sources import check_fits, sizes_of

    path, layer = file_of(name)
    t, s, n, h = (int(cell[size]) for size in SIZES)
    if (sizes := sizes_of(name)) is not None:
        check_fits(name, sizes, {"T": t, "S": s, "N": n, "H": h}, bool(cell["backward"]))
    if cell.content not in ("", digest := hashlib.sha256(path.read_bytes()).hexdigest()):
        raise bad(
            "input",
            name,
            f"this file has SHA-256 {digest[:8]}, the sweep was planned with {cell.content[:8]};"
            " put that one back",
        )
    x = read_layers(path, layer=layer)[0]
    g = max(1, n * x.k.shape[2] // x.q.shape[2])
    do = None if x.do is None else _frozen(x.do[:1, :t, :n])
    return Inputs(
        q=_frozen(x.q[:1, :t, :n]),
        k=_frozen(x.k[:1, :s, :g]),
        v=_frozen(x.v[:1, :s, :g]),
        do=do,
        scale=x.scale,
    )


def _towards(source: Source, x: Tensors, score: float) -> Tensors:
    """Return x with q moved so that its score against the head's signs is about `score`.

    The part of k along the signs is removed.
    """
    signs, h = source.signs(), source.features
    along = (x["k"] * signs).sum(-1, keepdims=True) / h
    return x | {"q": x["q"] + signs * (score / math.sqrt(h)), "k": x["k"] - along * signs}


def _frozen(x: np.ndarray) -> np.ndarray:
    """Return x as read-only float64 with a batch axis in front; inputs are shared between cells."""
    x = np.ascontiguousarray(x if x.ndim == 4 else x[None], dtype=np.float64)
    x.setflags(write=False)
    return x
