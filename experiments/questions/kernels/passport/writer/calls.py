"""The calls that every release is given: their inputs, drawn in integers.

So they have the same bits under every release of NumPy, without a file of them.
"""

import hashlib
from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]
Kernel = Callable[[Arrays, str], Arrays]
"""A function of inputs and the word of a type that returns results; float32 arrays by name."""

TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SINGLE, WIDE, HALF = ("fp32",), ("bf16", "fp32"), ("bf16", "fp16")
HEADS, TOKENS, FEATURES = 2, 256, 64
ROWS, WIDTH = 64, 512
SCALE = FEATURES**-0.5
SEEDS = {
    "attention": 76,
    "rms_norm": 77,
    "layer_norm": 78,
    "softmax": 79,
    "silu_mul": 80,
    "gelu": 81,
}
EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}


def inputs(operation: str) -> Arrays:
    """Return the arguments of the call of an operation by name, float32 arrays of BF16 numbers.

    Attention is causal and has q, k, v and do of shape (B, T, N, H). The last feature is 0 in q, v
    and do and 1 in k, which changes no score and no output, and makes that of dq scale times the
    row sum of dS. Other operations have rows x (gate and up), with weight and bias.
    """
    stream = np.random.RandomState(SEEDS[operation])
    if operation == "attention":
        x = {name: bell(stream, 1, TOKENS, HEADS, FEATURES) for name in ("q", "k", "v", "do")}
        for name, array in x.items():
            array[..., -1] = 1.0 if name == "k" else 0.0
        return x
    names = ("gate", "up") if operation == "silu_mul" else ("x",)
    x = {name: bell(stream, ROWS, WIDTH) for name in names}
    if operation in EPS:
        x["weight"] = to_bf16(1.0 + bell(stream, WIDTH) / 4)
    if operation == "layer_norm":
        x["bias"] = bell(stream, WIDTH)
    return x


def bell(stream: np.random.RandomState, *shape: int) -> np.ndarray:
    """Return BF16 numbers of about standard deviation 1 as float32: sums of eight bytes, scaled."""
    drawn = np.frombuffer(stream.bytes(8 * int(np.prod(shape))), np.uint8).reshape(*shape, 8)
    return to_bf16((drawn.astype(np.int64).sum(-1) - 1020) * 2.0**-8 * 1.25)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Return numbers rounded to BF16, half to even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return even.view(np.float32)


def digest(x: np.ndarray) -> str:
    """Return a hash of an array: of its shape and of its numbers as float32."""
    x = np.ascontiguousarray(x, np.float32)
    return hashlib.sha256(repr(x.shape).encode() + x.tobytes()).hexdigest()[:16]
