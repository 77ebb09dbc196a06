"""What is measured of a kernel on a family of inputs, and the record that keeps it.

Inputs are BF16 numbers. Errors are relative to the exact result; gains are the errors along it; and
the rows of dS are summed.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention import examine
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import RESULTS, exact
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.attention.testing.foreign.user import Kernel
from roundscope.emu.plain_data import COUNT
from roundscope.emu.testing.foreign import raised
from roundscope.emu.whole_files import read_whole
from roundscope.tools.errors import StorageError, printable
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.folder import write_json
from roundscope.tools.results.machine import device, versions
from roundscope.tools.results.tables import RESTORE, json_of
from roundscope.tools.tensors.layers import read_layers, sample_path

TOKENS, FEATURES = 512, 64
SAMPLE = "real tensors"
NAMES = {  # family -> its generator in sweeps
    "Gaussian": "gaussian",
    "one-signed V": "one-signed-v",
    "sink": "sink",
    "ties": "ties",
    "wide logits": "large-logits",
    "repeated maximum": "repeated-maximum",
}
# the shipped tensors are repeated, since with few heads kernels split the keys
LAYERS = ("layer1", "layer4")
COPIES = 4


def inputs(family: str, heads: int, tokens: int = TOKENS) -> tuple[Inputs, int]:
    """Return the arguments of a causal call, (B, T, N, H), and how many heads are different.

    Those are the first ones of the B N heads. A feature makes dQ show the row sums of dS. The last
    feature is 0 in q, v and dO and 1 in k: it changes no score, no output and no other gradient,
    and the last feature of dQ is scale times the row sum of dS, which is 0 in exact arithmetic.

    Raises:
        ValueError: there is no family of that name.
    """
    if family == SAMPLE:
        layers = [read_layers(sample_path(), layer=name)[0] for name in LAYERS]
        x = {
            role: np.concatenate([getattr(layer, role)[:1, :tokens] for layer in layers])
            for role in ("q", "k", "v", "do")
        }
        different = len(LAYERS) * layers[0].q.shape[2]
        x = {role: np.concatenate([array] * COPIES) for role, array in x.items()}
    elif family in NAMES:
        name = NAMES[family]
        sizes = {"queries": tokens, "keys": tokens, "heads": heads, "features": FEATURES}
        drawn = FAMILIES[name](Source(family=name, seed=0, **sizes))
        x = {role: array[None] for role, array in drawn.items()}
        different = heads
    else:
        raise ValueError(f"family={family}: must be one of {', '.join((*NAMES, SAMPLE))}")
    x = {
        role: np.ascontiguousarray(array.astype(ml_dtypes.bfloat16).astype(np.float32))
        for role, array in x.items()
    }
    for role, array in x.items():
        array[..., -1] = 1.0 if role == "k" else 0.0
    q, k, v, do = (x[role] for role in ("q", "k", "v", "do"))
    return Inputs(q=q, k=k, v=v, do=do, scale=q.shape[-1] ** -0.5, is_causal=True), different


TWIN_HEADS = 2  # the number of heads on which a kernel is compared with its twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over heads, which are independent, and its z: the mean over its standard error.

    z is NaN where there is one head.
    """

    mean: float
    z: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kernel on a family.

    error      result -> |kernel - exact| / |exact|, Frobenius norms over all heads
    gain       result -> <kernel - exact, exact> / |exact|^2 of a head; below 0 it is too short
    delta      <delta - exact delta, exact delta> / |exact delta|^2, with delta = rowsum(dO O) of
               the kernel's own O
    drift      rms of the row sums of dS over the rms of rowsum |dS|
    signed     the mean of the row sums of dS over the rms of rowsum |dS|
    same       result -> share of numbers equal to the twin's in every bit
    over       result -> error / the twin's error
    again      whether a second call gave the same bits
    failed     why there are no numbers
    """

    kernel: str
    family: str
    heads: int = 0
    error: dict[str, float] = field(default_factory=dict)
    gain: dict[str, Mean] = field(default_factory=dict)
    delta: Mean | None = None
    drift: float = math.nan
    signed: Mean | None = None
    twin: str = ""
    same: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    again: bool = True
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The exact results of a call, float64 (heads, T, H), and rowsum |dS| (heads, T)."""

    results: dict[str, np.ndarray]
    rows: np.ndarray


def by_head(x: Any, heads: int) -> np.ndarray:
    """Return the first heads of an array (B, T, N, H) as (heads, T, H) in float64."""
    x = np.asarray(x, np.float64)
    return np.ascontiguousarray(x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])[:heads])


def first(x: Inputs, heads: int) -> Inputs:
    """Return the inputs of the first heads, as one batch entry each."""
    q, k, v, do = (by_head(a, heads).astype(np.float32)[:, :, None] for a in (x.q, x.k, x.v, x.do))
    return replace(x, q=q, k=k, v=v, do=do)


def exact_of(x: Inputs, heads: int) -> Exact:
    """Return the exact results of the first heads."""
    results = exact(first(x, heads))
    return Exact(
        rows=results.rows[:, 0],
        results={name: by_head(getattr(results, name), heads) for name in RESULTS},
    )


def mean_of(values: np.ndarray) -> Mean:
    """Return the mean over heads and its z."""
    n = values.size
    spread = values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    centre = float(values.mean())
    if centre == 0.0:
        return Mean(mean=centre, z=0.0)
    return Mean(mean=centre, z=float(centre / spread) if spread else math.inf)


def gains(own: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return <own - exact, exact> / |exact|^2 of every head; the arrays are (heads, ...)."""
    axes = tuple(range(1, own.ndim))
    along: np.ndarray = ((own - exact) * exact).sum(axes) / np.square(exact).sum(axes)
    return along


def measured(
    name: str,
    family: str,
    kernel: Kernel,
    x: Inputs,
    exact: Exact,
    twin: str = "",
    twins: Outputs | None = None,
) -> Row:
    """Return the row of a kernel; if the kernel raises an error, the row says so.

    exact gives the number of heads; twin is the kernel's plan by name, and twins its outputs.
    """
    try:
        outputs, again = kernel(x), kernel(x)
    except Exception as error:  # whatever a library raises
        return Row(kernel=name, family=family, failed=raised(error))
    if missing := [n for n in RESULTS if getattr(outputs, n) is None]:
        return Row(kernel=name, family=family, failed=f"returns no {', '.join(missing)}")
    heads = len(exact.rows)
    own = {n: by_head(getattr(outputs, n), heads) for n in RESULTS}
    # without the feature of ones
    cut = {n: (own[n][..., :-1], exact.results[n][..., :-1]) for n in RESULTS}
    do = by_head(x.do, heads)
    deltas = gains(*((do * y).sum(2) for y in (own["out"], exact.results["out"])))
    rows, size = own["dq"][..., -1] / x.scale, math.sqrt(float(np.square(exact.rows).mean()))
    row = Row(
        kernel=name,
        family=family,
        heads=heads,
        error={n: float(np.linalg.norm(a - b) / np.linalg.norm(b)) for n, (a, b) in cut.items()},
        gain={n: mean_of(gains(a, b)) for n, (a, b) in cut.items()},
        delta=mean_of(deltas),
        drift=math.sqrt(float(np.square(rows).mean())) / size,
        signed=mean_of(rows.mean(1) / size),
        twin=twin,
        again=all(np.array_equal(a, getattr(again, n), equal_nan=True) for n, a in outputs.named()),
    )
    return row if twins is None else _beside(row, own, exact, twins)


def _beside(row: Row, own: dict[str, np.ndarray], exact: Exact, twins: Outputs) -> Row:
    """Return the row with the comparison to the kernel's twin, on the heads that the twin has."""
    same, over = {}, {}
    for n in RESULTS:
        theirs = by_head(getattr(twins, n), TWIN_HEADS)
        ours, want = own[n][: len(theirs)], exact.results[n][: len(theirs), :, :-1]
        our_bits, their_bits = (a.astype(np.float32).view(np.int32) for a in (ours, theirs))
        same[n] = float((our_bits == their_bits).mean())
        our_error, their_error = (np.linalg.norm(a[..., :-1] - want) for a in (ours, theirs))
        over[n] = float(our_error / their_error)
    return replace(row, same=same, over=over)


def twin_outputs(twin: str, x: Inputs) -> Outputs:
    """Return what a twin gives on the first heads."""
    x = first(x, TWIN_HEADS)
    block_q, block_k = TWINS[twin].tiles(x.q.shape[-1])
    tiles = {"block_q": block_q, "block_k": min(block_k, x.k.shape[1])}
    call: dict[str, Any] = {"scale": x.scale, "is_causal": x.is_causal, "record": None}  # no trace
    with np.errstate(all="ignore"):
        results = examine(
            x.q, x.k, x.v, x.do, plan=TWINS[twin].plan, engine="numpy", **tiles, **call
        )
    return Outputs(**{n: np.asarray(getattr(results, n), np.float32) for n in RESULTS})


RECORD = "measured.json"
_NUMBER = (float, None, "nan", "inf", "-inf")
_MEAN = {"mean": _NUMBER, "z": _NUMBER}
_TEXTS, _PARTS = ("kernel", "family", "twin", "failed"), ("error", "same", "over")
SHAPE = {  # of the record
    "rows": [
        dict.fromkeys(_TEXTS, str)
        | {name: {str: _NUMBER} for name in _PARTS}
        | {"gain": {str: _MEAN}, "delta": (None, _MEAN), "signed": (None, _MEAN)}
        | {"heads": COUNT, "drift": _NUMBER, "again": bool}
    ]
}


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows, with the versions of what ran."""
    libraries = {}
    for name in ("torch", "triton", "transformers", "tokamax"):
        with suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    about = versions("xla") | libraries | {"device": device("xla")}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"versions": about, "rows": plain(rows)})


def read(path: Path) -> list[Row]:
    """Return the rows of a record; none if there is no such file."""
    if not path.is_file():
        return []
    rows = []
    for row in json_of(path, "the record", read_whole(path), SHAPE)["rows"]:
        full = () if row["failed"] else ("error", "gain")  # the others are of those with a twin
        if any(
            (part in full or row[part]) and {*RESULTS} - {*row[part]} for part in (*_PARTS, "gain")
        ):
            raise StorageError(f"{path}: a row lacks one of {', '.join(RESULTS)}; {RESTORE} file")
        known: dict[str, Any] = {field.name: row[field.name] for field in fields(Row)}
        known |= {name: printable(row[name]) for name in _TEXTS}
        known |= {part: {n: _number(x) for n, x in row[part].items()} for part in _PARTS}
        known |= {name: _mean(row[name]) for name in ("delta", "signed")}
        known |= {
            "gain": {name: _mean(x) for name, x in row["gain"].items()},
            "drift": _number(row["drift"]),
        }
        rows.append(Row(**known))
    return rows


def _mean(x: Mapping[str, float | str | None] | None) -> Mean | None:
    return None if x is None else Mean(mean=_number(x["mean"]), z=_number(x["z"]))


def _number(x: float | str | None) -> float:
    return math.nan if x is None else float(x)
