"""Hostile calls of the public Python functions: each argument of a right call, replaced.

A call may refuse, in one line of a ValueError or TypeError that names the argument, or answer. What
may be answered is said by the kind of the argument; any other answer is a fault, as is a warning.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

import roundscope as rs
from roundscope import emu, testing
from roundscope.attention.plans.traced import head_plans, reseeded
from roundscope.emu.shown import shown
from roundscope.flax import attention_fn
from roundscope.jax import tap
from roundscope.jax import watch as watch_jax
from roundscope.torch import attention, attention_layers, capture, correct, intercept, use, watch
from tests.checks.hostile.verdict import ALL, Asked, Late, Verdict, fault_of_message, strictly

LIMIT = 30  # seconds of a call


class Model(torch.nn.Module):
    """Attention of two heads of four features, in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attention of x to itself."""
        return self.layer(x, x, x, need_weights=False)[0]


class Base(NamedTuple):
    """A right call: the function, its arguments, and the kind of each argument."""

    function: Callable[..., Any]
    given: dict[str, Any]
    kinds: dict[str, str]


def heads(*shape: int) -> np.ndarray:
    """Return the same random numbers at each call."""
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


Q = heads(1, 16, 2, 8)
X = heads(4, 32)
TQ = torch.from_numpy(Q.transpose(0, 2, 1, 3).copy())


def kernel(q: Any, k: Any, v: Any, *, scale: float, is_causal: bool) -> Any:
    """Return q, which no attention is."""
    return q


def loss(params: Any) -> Any:
    """Return a loss."""
    return (params**2).sum()


CALL = {
    "plan": "plan",
    "block_q": "count",
    "block_k": "count",
    "scale": "real?",
    "is_causal": "bool",
    "mask": "mask?",
    "inject": "injection",
    "engine": "word?",
    "window": "count?",
    "softcap": "real?",
    "sinks": "sinks?",
    "alignment": "word?",
}
QKV = {"q": "heads", "k": "heads", "v": "heads"}
FORMAT = {"format": "format", "mode": "word?", "overflow": "word?", "nan": "word?", "seed": "seed?"}


def bases() -> dict[str, Base]:
    """Return the calls by name."""
    qkv, tensors = {"q": Q, "k": Q, "v": Q}, {"q": TQ, "k": TQ, "v": TQ}
    plan = {"plan": "fa2-bf16"}
    blocks = emu.to_blocks(X, "mxfp8_e4m3")
    codes = emu.codes_of(blocks)
    stored = emu.pack(codes)
    model = Model()
    bf16 = rs.Plan.preset("fa2-bf16")
    return {
        "attend": Base(rs.attend, qkv | plan, QKV | CALL),
        "examine": Base(
            rs.examine, qkv | {"do": Q} | plan, QKV | {"do": "heads?"} | CALL | {"record": "other"}
        ),
        "error_budget": Base(
            rs.error_budget, qkv | plan, QKV | {"do": "heads?", "heads": "count?"} | CALL
        ),
        "row_sums": Base(rs.row_sums, qkv | {"do": Q} | plan, QKV | {"do": "heads"} | CALL),
        "rotated": Base(rs.rotated, {"q": Q, "k": Q}, {"q": "heads", "k": "heads", "seed": "seed"}),
        "head_plans": Base(head_plans, {"plans": [bf16]}, {"plans": "other"}),
        "reseeded": Base(
            reseeded,
            {"plans": head_plans([bf16]), "number": 1},
            {"plans": "other", "number": "seed"},
        ),
        "attend jax": Base(rs.attend, {n: jnp.asarray(Q) for n in "qkv"} | plan, QKV | CALL),
        "Plan.preset": Base(rs.Plan.preset, {"name": "fa2"}, {"name": "word"}),
        "Plan.at": Base(
            bf16.at,
            {"site": "P", "format": "bf16"},
            {
                "site": "word",
                "format": "format",
                "mode": "word?",
                "overflow": "word?",
                "seed": "seed?",
            },
        ),
        "Plan.changed": Base(
            lambda change, **k: bf16.changed(change, **k),
            {"change": "P=fp16"},
            {"change": "word", "seed": "seed?"},
        ),
        "Plan.seeded": Base(bf16.seeded, {"seed": 1}, {"seed": "seed"}),
        "Plan.block": Base(bf16.block, {"site": "P"}, {"site": "word"}),
        "Plan.event": Base(bf16.event, {"site": "P"}, {"site": "word"}),
        "Plan.accumulator": Base(bf16.accumulator, {"site": "S"}, {"site": "word"}),
        "Plan.first_term": Base(bf16.first_term, {"site": "S"}, {"site": "word"}),
        "Plan.product_bits": Base(bf16.product_bits, {"site": "S"}, {"site": "word"}),
        "Plan.factors": Base(bf16.factors, {"site": "S"}, {"site": "word"}),
        "Plan.adding": Base(
            bf16.adding,
            {"site": "S", "accumulator": emu.Accumulator()},
            {"site": "word", "accumulator": "other"},
        ),
        "Plan.rounded": Base(
            bf16.rounded,
            {"events": {rs.Site.P: emu.BF16}},
            {"events": "other"},
        ),
        "Injection.parse": Base(
            rs.Injection.parse, {"text": "P:exact"}, {"text": "word", "seed": "seed"}
        ),
        "Injection": Base(
            rs.Injection,
            {"site": rs.Site.P, "what": rs.Exact()},
            {"site": "word", "what": "other"}
            | dict.fromkeys(("batch", "heads", "rows", "columns", "features", "tiles"), "index?"),
        ),
        "AddUlps": Base(rs.AddUlps, {"ulps": 1.0}, {"ulps": "real"}),
        "Bias": Base(rs.Bias, {"value": 1.0}, {"value": "real"}),
        "SetTo": Base(rs.SetTo, {"value": 1.0}, {"value": "anyreal"}),
        "FlipBit": Base(rs.FlipBit, {"bit": 1}, {"bit": "index"}),
        "Noise": Base(rs.Noise, {"ulps": 1.0}, {"ulps": "real", "seed": "seed"}),
        "Record": Base(
            rs.Record,
            {},
            {
                "events": "other",
                "ones": "other",
                "steps": "other",
                "away": "bool",
                "every": "count",
            },
        ),
        "Stabilizer": Base(rs.Stabilizer, {}, {"beta": "real", "window": "real?"}),
        "round_to": Base(
            emu.round_to,
            {"x": X, "format": "bf16"},
            {"x": "array", "first": "index", "out": "out?"} | FORMAT,
        ),
        "round_with_stats": Base(
            emu.round_with_stats,
            {"x": X, "format": "bf16"},
            {"x": "array", "out": "out?"} | FORMAT,
        ),
        "error_of": Base(emu.error_of, {"x": X, "format": "bf16"}, {"x": "array"} | FORMAT),
        "ulp_of": Base(emu.ulp_of, {"x": X, "format": "bf16"}, {"x": "array", "format": "format"}),
        "stats_of": Base(
            emu.stats_of,
            {"before": X, "after": X, "format": "bf16"},
            {"before": "array", "after": "array", "format": "format"},
        ),
        "exp": Base(
            emu.exp,
            {"x": X, "format": "bf16"},
            {"x": "array", "format": "format", "mode": "word?", "seed": "seed?", "first": "index"},
        ),
        "dot": Base(
            emu.dot,
            {"a": X, "b": X.T.copy()},
            {
                "a": "array",
                "b": "array",
                "accumulator": "other",
                "init": "array?",
                "steps": "other?",
            },
        ),
        "sum": Base(emu.sum, {"x": X}, {"x": "array", "accumulator": "other", "axis": "axis"}),
        "rounding": Base(emu.rounding, {"format": "bf16"}, FORMAT),
        "explain": Base(
            emu.explain,
            {"value": 1.5, "rounding": "bf16"},
            {"value": "number", "rounding": "format"},
        ),
        "format_named": Base(emu.format_named, {"name": "bf16"}, {"name": "word"}),
        "block_format": Base(
            emu.block_format,
            {"format": "mxfp8_e4m3"},
            {
                "format": "format",
                "mode": "word?",
                "rule": "word?",
                "overflow": "word?",
                "seed": "seed?",
            },
        ),
        "round_blocks": Base(
            emu.round_blocks,
            {"x": X, "format": "mxfp8_e4m3"},
            {"x": "array", "format": "format", "axis": "axis", "out": "out?", "rule": "word?"},
        ),
        "to_blocks": Base(
            emu.to_blocks,
            {"x": X, "format": "mxfp8_e4m3"},
            {"x": "array", "format": "format", "axis": "axis", "rule": "word?"},
        ),
        "block_stats": Base(
            emu.block_stats,
            {"x": X, "format": "mxfp8_e4m3"},
            {"x": "array", "format": "format", "axis": "axis", "seed": "seed?"},
        ),
        "from_blocks": Base(emu.from_blocks, {"b": blocks}, {"b": "other"}),
        "codes_of": Base(emu.codes_of, {"b": blocks}, {"b": "other"}),
        "distinct_elements": Base(emu.distinct_elements, {"b": blocks}, {"b": "other"}),
        "blocked_of": Base(emu.blocked_of, {"c": codes}, {"c": "other"}),
        "pack": Base(emu.pack, {"c": codes}, {"c": "other"}),
        "unpack": Base(
            emu.unpack,
            {
                "elements": stored[0],
                "scales": stored[1],
                "tensor": 1.0,
                "format": codes.format,
                "shape": X.shape,
            },
            {
                "elements": "bytes",
                "scales": "bytes",
                "tensor": "real",
                "format": "format",
                "shape": "other",
                "axis": "axis",
            },
        ),
        "Accumulator": Base(
            emu.Accumulator,
            {},
            {"order": "word", "step": "other", "chunk": "count", "alignment": "other?"},
        ),
        "tensor_core": Base(
            emu.Accumulator.tensor_core,
            {"arch": "hopper", "operand": "bf16"},
            {"arch": "word", "operand": "word", "sum_format": "word"},
        ),
        "Rounding": Base(
            emu.Rounding,
            {"format": emu.format_named("bf16")},
            {"format": "other", "mode": "word", "overflow": "word?", "nan": "word", "seed": "seed"},
        ),
        "Format": Base(
            emu.Format,
            {
                "name": "mine",
                "precision": 4,
                "emin": -6,
                "max_finite": 240.0,
                "inf": True,
                "nan": True,
            },
            {
                "name": "word",
                "precision": "count",
                "emin": "axis",
                "max_finite": "real",
                "inf": "bool",
                "nan": "bool",
                "signed": "bool",
                "zero": "bool",
                "negative_zero": "bool",
                "saturates": "bool",
            },
        ),
        "BlockFormat": Base(
            emu.BlockFormat,
            {"element": emu.E4M3},
            {
                "element": "other",
                "size": "count",
                "rows": "count",
                "scale": "other",
                "rule": "word",
                "tensor": "bool",
            },
        ),
        "assert_bit_equal": Base(
            testing.assert_bit_equal,
            {"actual": X, "expected": X},
            {"actual": "any array", "expected": "any array", "nan": "word", "zeros": "word"},
        ),
        "assert_max_ulp": Base(
            testing.assert_max_ulp,
            {"actual": X, "expected": X, "ulps": 1},
            {"actual": "array", "expected": "array", "ulps": "real", "format": "format?"},
        ),
        "assert_rounds_as": Base(
            testing.assert_rounds_as,
            {"cast": lambda x: emu.round_to(x, "bf16"), "format": "bf16", "inputs": X},
            {
                "cast": "other",
                "format": "format",
                "mode": "word?",
                "overflow": "word?",
                "seed": "seed?",
                "inputs": "array?",
                "carrier": "word",
            },
        ),
        "assert_unbiased": Base(
            testing.assert_unbiased,
            {"actual": X, "exact": X, "format": "bf16"},
            {"actual": "array", "exact": "array", "format": "format", "false_alarm": "real"},
        ),
        "draw": Base(
            testing.draw,
            {"tokens": 16, "features": 8},
            {
                "family": "word",
                "seed": "seed",
                "batch": "count",
                "tokens": "count",
                "keys": "count?",
                "heads": "count",
                "key_heads": "count?",
                "features": "count",
                "scale": "real?",
                "is_causal": "bool",
                "dtype": "word",
            },
        ),
        "assert_as_good_as": Base(
            testing.assert_as_good_as,
            {"kernel": kernel, "plan": "fa2", "tokens": 16, "features": 8, "draws": 1},
            {
                "kernel": "other",
                "plan": "plan",
                "inputs": "other",
                "is_causal": "bool",
                "tokens": "count",
                "keys": "count?",
                "features": "count",
                "batch": "count",
                "heads": "count",
                "key_heads": "count?",
                "scale": "real?",
                "dtype": "word",
                "backward": "bool",
                "draws": "count",
                "seed": "seed",
                "margins": "other?",
                "false_alarm": "real",
                "strict": "bool",
                "library": "word?",
                "layout": "word?",
                "block_q": "count?",
                "block_k": "count?",
            },
        ),
        "assert_deterministic": Base(
            testing.assert_deterministic,
            {"kernel": kernel, "calls": 2, "results": ("out",)},
            {
                "kernel": "other",
                "inputs": "other?",
                "is_causal": "bool?",
                "calls": "count",
                "results": "other",
                "library": "word?",
                "layout": "word?",
                "dtype": "word",
            },
        ),
        "assert_invariant": Base(
            testing.assert_invariant,
            {"kernel": kernel, "to": "batch", "results": ("out",)},
            {
                "kernel": "other",
                "to": "word?",
                "inputs": "other?",
                "is_causal": "bool?",
                "plan": "plan?",
                "bits": "bool",
                "results": "other",
                "margins": "other?",
                "library": "word?",
                "layout": "word?",
                "dtype": "word",
            },
        ),
        "kernel_of": Base(
            testing.kernel_of,
            {"function": kernel},
            {
                "function": "other",
                "library": "word?",
                "layout": "word?",
                "dtype": "word",
                "backward": "bool",
            },
        ),
        "Margins": Base(
            testing.Margins,
            {},
            dict.fromkeys(("rms", "row", "bias", "gross_rms", "gross_row"), "real"),
        ),
        "torch.attention": Base(
            attention,
            tensors | plan,
            dict.fromkeys(QKV, "tensor") | {n: k for n, k in CALL.items() if n != "inject"},
        ),
        "torch.use": Base(
            lambda **given: use(**given).remove(),
            {"model": model, "plans": "fa2"},
            {
                "model": "other",
                "plans": "plan",
                "block_q": "count",
                "block_k": "count",
                "modules": "other?",
            },
        ),
        "torch.watch": Base(
            lambda **given: watch(**given).remove(),
            {"model": model},
            {
                "model": "other",
                "every": "count",
                "layers": "other",
                "heads": "count?",
                "log": "path?",
                "threshold": "real?",
                "on_alarm": "other?",
                "forwards": "count",
                "start": "index",
                "modules": "other?",
            },
        ),
        "torch.capture": Base(
            lambda **given: _captured(model, **given),
            {"path": str(Path(tempfile.gettempdir(), "hostile-capture.safetensors"))},
            {
                "path": "path",
                "layers": "other",
                "heads": "index?",
                "tokens": "count?",
                "batch": "index?",
                "steps": "index?",
                "modules": "other?",
            },
        ),
        "torch.correct": Base(
            lambda **given: correct(**given).remove(),
            {"model": model},
            {"model": "other", "layers": "other", "modules": "other?"},
        ),
        "torch.intercept": Base(
            lambda **given: intercept(**given).remove(),
            {"model": model, "handler": lambda call: call.run()},
            {"model": "other", "handler": "other", "layers": "other", "modules": "other?"},
        ),
        "torch.attention_layers": Base(
            attention_layers, {"model": model}, {"model": "other", "modules": "other?"}
        ),
        "jax.tap": Base(
            tap,
            {"attention": kernel},
            {
                "attention": "other",
                "name": "word?",
                "number": "index?",
                "is_causal": "bool?",
                "scale": "real?",
            },
        ),
        "jax.watch": Base(
            watch_jax,
            {"loss": loss},
            {
                "loss": "other",
                "every": "count",
                "heads": "count?",
                "threshold": "real?",
                "log": "path?",
                "on_alarm": "other?",
                "has_aux": "bool",
            },
        ),
        "flax.attention_fn": Base(
            attention_fn,
            {"plan": "fa2"},
            {
                "plan": "plan",
                "block_q": "count",
                "block_k": "count",
                "is_causal": "bool",
                "scale": "real?",
                "alignment": "word?",
            },
        ),
    }


def _captured(model: Model, **given: Any) -> None:
    with capture(model, **given):
        model(torch.zeros(1, 4, 8))


class Mine:
    """An object that is nothing that a call could mean."""

    def __repr__(self) -> str:
        return "Mine()"


class Number(float):
    """A number of a user's own type."""


def things() -> dict[str, Any]:
    """Return values that are no arrays."""
    deleted = jnp.ones(3)
    deleted.delete()
    return {
        "None": None,
        "a word": "nonsense",
        "empty": "",
        "space": " ",
        "a long word": "x" * 5000,
        "escapes": "a\x1b[2J\n",
        "NUL": "a\0b",
        "bytes": b"bf16",
        "True": True,
        "zero": 0,
        "minus one": -1,
        "10**30": 10**30,
        "10**5000": 10**5000,
        "a half": 0.5,
        "nan": float("nan"),
        "inf": float("inf"),
        "-inf": float("-inf"),
        "1e308": 1e308,
        "5e-324": 5e-324,
        "complex": 1 + 2j,
        "np.nan32": np.float32("nan"),
        "np.int8": np.int8(-3),
        "np.bool": np.True_,
        "np.str": np.str_("x"),
        "0-d": np.array(2.0),
        "1 entry": np.array([2.0]),
        "object 0-d": np.array(None),
        "list": [1, 2],
        "nested": [[1], [2, 3]],
        "tuple": (),
        "empty list": [],
        "set": {1, 2},
        "dict": {"a": 1},
        "range": range(3),
        "generator": (i for i in range(2)),
        "function": len,
        "type": int,
        "module": np,
        "mine": Mine(),
        "slice": slice(1, 2),
        "ellipsis": ...,
        "Fraction": __import__("fractions").Fraction(1, 3),
        "Decimal nan": __import__("decimal").Decimal("NaN"),
        "datetime": np.datetime64("2020-01-01"),
        "torch scalar": torch.tensor(2.0),
        "meta scalar": torch.tensor(2.0, device="meta"),
        "jax scalar": jnp.float32(2),
        "deleted": deleted,
        "user number": Number(0.5),
        "NotImplemented": NotImplemented,
    }


def arrays(x: Any) -> dict[str, Any]:
    """Return arrays that differ from x in one thing each."""
    x = np.asarray(x)
    nan, inf = x.copy(), x.copy()
    nan.flat[3], inf.flat[3] = np.nan, np.inf
    read_only = x.copy()
    read_only.flags.writeable = False
    deleted = jnp.asarray(x)
    deleted.delete()
    record = np.zeros(x.shape, [("a", "f4")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = np.asmatrix(x.reshape(-1, x.shape[-1]))
        csr = torch.ones(3, 3).to_sparse_csr()
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    return {
        "NaN": nan,
        "infinity": inf,
        "read-only": read_only,
        "reversed": x[..., ::-1],
        "Fortran": np.asfortranarray(x),
        "float16": x.astype(np.float16),
        "float8": x.astype(ml_dtypes.float8_e4m3fn),
        "float4": x.astype(ml_dtypes.float4_e2m1fn),
        "int4": x.astype(ml_dtypes.int4),
        "longdouble": x.astype(np.longdouble),
        "float64": x.astype(np.float64),
        "big-endian": x.astype(">f4"),
        "complex": x + 1j,
        "integers": x.astype(np.int32),
        "bools": x > 0,
        "objects": x.astype(object),
        "texts": x.astype(str),
        "dates": x.astype("datetime64[s]"),
        "records": record,
        "masked": np.ma.array(x, mask=x > 0),
        "matrix": matrix,
        "empty array": x[:0],
        "no axes": x.reshape(-1)[0].reshape(()),
        "one axis": x.reshape(-1),
        "an axis more": x[None],
        "broadcast": np.broadcast_to(x[..., :1], x.shape),
        "half": x[..., : x.shape[-1] // 2],
        "list of it": x.tolist(),
        "tensor": torch.from_numpy(x.copy()),
        "tensor bf16": torch.from_numpy(x.copy()).bfloat16(),
        "tensor with gradient": torch.from_numpy(x.copy()).requires_grad_(),
        "tensor sparse": torch.from_numpy(x.copy()).to_sparse(),
        "tensor csr": csr,
        "tensor nested": nested,
        "tensor meta": torch.from_numpy(x.copy()).to("meta"),
        "tensor complex": torch.from_numpy(x + 1j),
        "tensor conj": torch.from_numpy(x + 1j).conj().imag,
        "tensor quantized": _quantized(x),
        "tensor float8": torch.from_numpy(x.copy()).to(torch.float8_e4m3fn),
        "jax": jnp.asarray(x),
        "jax deleted": deleted,
        "jax key": jax.random.key(0),
        "jax shape": jax.ShapeDtypeStruct(x.shape, np.float32),
        "jax bf16": jnp.asarray(x, jnp.bfloat16),
    }


def _quantized(x: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.from_numpy(x.copy()), 0.1, 0, torch.qint8)


EMPTY = ("tuple", "empty list", "array: empty array")
FUNCTIONS = (
    "torch.use(plans",
    "torch.watch(on_alarm",
    "jax.tap(attention",
    "jax.watch(loss",
    "jax.watch(on_alarm",
    "torch.intercept(handler",
    "assert_rounds_as(cast",
)
ASSERTED = (
    *(
        f"assert_{name}({which}"
        for name in ("max_ulp", "unbiased")
        for which in ("actual", "exact")
    ),
    "assert_max_ulp(expected",
    "assert_rounds_as(inputs",
)
OF_TORCH = tuple(
    f"torch.{n}" for n in ("use", "capture", "correct", "intercept", "attention_layers")
)
NUMBERS_OK = {"a half", "1e308", "5e-324", "0-d", "user number", "Fraction", "np.int8", "10**30"}
NUMBERS_OK |= {"torch scalar", "jax scalar", "zero", "minus one", "array: no axes"}
# what one call may answer beside the kind of the argument
TAKEN = {
    *(f"Record({name}={none})" for name in ("events", "ones", "steps") for none in EMPTY),
    *(f"{call}(first=jax scalar)" for call in ("round_to", "exp")),  # it may be traced
    *(f"dot(steps={some})" for some in ("list", "nested", "empty list")),
    *(f"{call}={some})" for call in FUNCTIONS for some in ("function", "type")),
    *(f"{call}(modules=empty)" for call in OF_TORCH),
    "kernel_of(function=type)",
    *(f"{watch}.watch(heads={some})" for watch in ("torch", "jax") for some in ("list", "range")),
    *(f"{call}(layers=zero)" for call in (*OF_TORCH, "torch.watch")),
    *(f"{call}={x})" for call in ASSERTED for x in ("tensor with gradient", "range")),
    *(f"jax.tap(name={name})" for name in ("a word", "a long word", "escapes", "NUL")),
    *(f"Plan.changed(change={none})" for none in ("empty", "space")),
    *(f"rotated({x}=matrix)" for x in "qk"),
    *(f"torch.capture(steps={some})" for some in ("list", "set", "range", "generator")),
    "examine(record=None)",
    "rotated(q=an axis more)",
    "rotated(k=an axis more)",
    "explain(value=Decimal nan)",
    "Format(emin=np.int8)",
    *(f"Format(name={name})" for name in ("a word", "a long word", "escapes", "NUL")),
}
ARRAYS_OK = {"NaN", "infinity", "read-only", "reversed", "Fortran", "float16", "float8", "float4"}
ARRAYS_OK |= {"float64", "broadcast", "jax", "jax bf16", "half", "big-endian"}
TENSORS = {"tensor", "tensor bf16", "tensor float8", "tensor conj"}
# what a call may answer, by the kind of the argument
OK = {
    "heads": ARRAYS_OK,
    "tensor": TENSORS | {"tensor with gradient", "NaN", "infinity"},
    "array": ARRAYS_OK
    | TENSORS
    | NUMBERS_OK
    | {"one axis", "an axis more", "no axes", "list of it"}
    | {"nan", "inf", "-inf", "np.nan32", "1 entry", "empty array", "matrix", "list", "integers"}
    | {"empty list", "tuple"},
    "any array": None,
    "out": {"reversed", "Fortran", "NaN", "infinity"},
    "bytes": set(),
    "mask": {"bools", "True", "np.bool", "torch scalar"},  # a number is a bias of all scores
    "sinks": set(),
    "real": {*NUMBERS_OK},
    "anyreal": NUMBERS_OK | {"nan", "inf", "-inf", "np.nan32"},
    "number": NUMBERS_OK | {"nan", "inf", "-inf", "np.nan32", "10**5000"},
    "count": set(),
    "index": {"zero", "range", "list", "set", "generator", "slice", "10**30", "tuple"},
    "axis": {"zero", "minus one"},
    "seed": {"zero"},
    "bool": {"True", "np.bool"},
    "word": {"np.str"},
    "format": set(),
    "plan": set(),
    "injection": {"tuple", "empty list"},
    "path": {"a word", "escapes", "np.str"},
    "other": set(),
}


def cases(base: Base) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the argument, its kind, what is tried, and the value."""
    for name, kind in base.kinds.items():
        values = things()
        like = base.given.get(name)
        if kind.rstrip("?") in ("heads", "array", "any array", "tensor", "mask", "out", "sinks"):
            values |= arrays(Q if like is None and "x" not in base.given else _plain(like))
        elif kind in ("bytes", "other", "real", "count"):
            values |= {f"array: {n}": x for n, x in arrays(X).items()}
        for tried, value in values.items():
            if kind.endswith("?") and value is None:
                continue
            yield name, kind.rstrip("?"), tried, value


def _plain(x: Any) -> np.ndarray:
    return X if x is None else np.asarray(x)


def verdicts(asked: Asked = ALL) -> Iterator[Verdict]:
    """Yield a verdict for each call."""
    for function, base in bases().items():
        for name, kind, tried, value in cases(base):
            case = f"{function}({name}={tried})"
            if case in asked:
                yield _judged(case, name, kind, tried, base, value)


def _judged(case: str, name: str, kind: str, tried: str, base: Base, value: Any) -> Verdict:
    try:
        with strictly(LIMIT):
            answer = base.function(**(base.given | {name: value}))
    except Late:
        return Verdict(case, "slow", "")
    except AssertionError as error:
        fault = "" if case.startswith("assert_") else "AssertionError"
        return Verdict(case, fault, str(error)[:300])
    except (ValueError, TypeError) as error:
        text = str(error)
        said = name.removeprefix("is_").replace("_", " ")
        others = base.kinds if kind in ("other", "axis") else ()
        fault = fault_of_message(text, name, said, shown(value)[:20], *others, "unknown preset")
        if not fault and "\n" in text.strip():
            fault = "several lines"
        return Verdict(case, fault, f"{type(error).__name__}: {text[:300]}")
    except BaseException as error:
        if case in TAKEN:  # nothing was there to be captured
            return Verdict(case, "")
        return Verdict(case, "another error", f"{type(error).__name__}: {str(error)[:300]}")
    allowed = OK[kind]
    if allowed is None or tried in allowed or case.replace(" jax(", "(") in TAKEN:
        return Verdict(case, "", "")
    return Verdict(case, "accepted", repr(type(answer)))
