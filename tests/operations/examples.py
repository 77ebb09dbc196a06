"""Inputs of every operation, and what it computes, in plain NumPy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

FEATURES = 20


def inputs_of(name: str, rows: tuple[int, ...] = (2, 3), seed: int = 0) -> dict[str, Any]:
    """Return all inputs of a call, the optional ones too."""
    rng = np.random.default_rng([seed, len(name)])

    def drawn(*shape: int) -> np.ndarray:
        return (2.0 * rng.normal(size=shape)).astype(np.float32)

    x, features = drawn(*rows, FEATURES), FEATURES
    drawers: dict[str, Callable[[], dict[str, Any]]] = {  # each draws its own numbers alone
        "embedding": lambda: {"weight": drawn(7, features), "tokens": rng.integers(0, 7, rows)},
        "rms_norm": lambda: {"x": x, "weight": drawn(features), "residual": drawn(*rows, features)},
        "layer_norm": lambda: {"x": x, "weight": drawn(features), "bias": drawn(features)},
        "linear": lambda: {"x": x, "weight": drawn(5, features), "bias": drawn(5)},
        "rope": lambda: {"x": x, "cos": np.cos(x + 1.0), "sin": np.sin(x + 1.0)},
        "silu": lambda: {"x": x},
        "gelu": lambda: {"x": x},
        "gelu_tanh": lambda: {"x": x},
        "silu_mul": lambda: {"gate": x, "up": drawn(*rows, features)},
        "add": lambda: {"a": x, "b": drawn(*rows, features)},
        "softmax": lambda: {"x": x},
        "log_softmax": lambda: {"x": x},
        "cross_entropy": lambda: {"x": x, "target": rng.integers(0, features, rows)},
        "adamw": lambda: {
            "parameter": x,
            "gradient": drawn(*rows, features),
            "exp_avg": drawn(*rows, features),
            "exp_avg_sq": drawn(*rows, features) ** 2,
        },
        "rope_table": lambda: {
            "positions": rng.integers(0, 9, rows).astype(np.float32),
            "frequencies": abs(drawn(FEATURES)) / 8,
        },
    }
    found = drawers[name]()
    if name == "cross_entropy":
        found["target"].flat[1] = -100
    return found


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def cross_entropy(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    lp = log_softmax(x).reshape(-1, x.shape[-1])
    return np.mean([-lp[n, t] for n, t in enumerate(target.flat) if t != -100])


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    turned = [a * cos[..., :half] - b * sin[..., :half], b * cos[..., half:] + a * sin[..., half:]]
    return np.concatenate(turned, axis=-1)


def rope_table(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    half = np.cos(positions[..., None] * frequencies)
    return np.concatenate([half, half], axis=-1)


def rms_norm(x: np.ndarray, weight: np.ndarray, residual: np.ndarray) -> np.ndarray:
    y = x + residual
    return y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6) * weight


def adamw(
    parameter: np.ndarray, gradient: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray
) -> np.ndarray:
    """The first step with the default settings, as algorithm 2 of the paper has it."""
    m = (0.9 * exp_avg + 0.1 * gradient) / (1 - 0.9)
    v = (0.999 * exp_avg_sq + 0.001 * gradient**2) / (1 - 0.999)
    return parameter - 1e-3 * m / (np.sqrt(v) + 1e-8) - 1e-3 * 0.01 * parameter


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


FORMULAS: dict[str, Any] = {
    "embedding": lambda weight, tokens: weight[tokens],
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "linear": lambda x, weight, bias: np.einsum("...f,gf->...g", x, weight) + bias,
    "rope": rope,
    "rope_table": rope_table,
    "silu": silu,
    "gelu": np.vectorize(lambda x: x * math.erfc(-x / math.sqrt(2.0)) / 2.0),
    "gelu_tanh": gelu_tanh,
    "silu_mul": lambda gate, up: silu(gate) * up,
    "add": lambda a, b: a + b,
    "softmax": lambda x: np.exp(log_softmax(x)),
    "log_softmax": log_softmax,
    "cross_entropy": cross_entropy,
    "adamw": adamw,
}
"""The formula of each operation, as a function of its inputs in binary64."""
