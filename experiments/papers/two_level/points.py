"""Errors of O in FP8 on Hopper's tensor cores.

They depend on the number of keys, on the values, and on how often the accumulator of O is flushed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from roundscope.attention.api import attend
from roundscope.attention.plans.plan import Plan
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import E4M3
from roundscope.experiments.framework.errors import gain, relative_error
from roundscope.tools.tensors.layers import read_layers, sample_path

KEYS = (1024, 4096, 16384)
QUERIES, WIDTH = 64, 128
TILE = 192  # the keys of a tile of vLLM's FlashAttention-3 in FP8 with 128 features
FLUSHED = (0, 1, 4, 16)  # after how many tiles the accumulator is flushed; 0: never
FP32 = "sums in FP32"
ONE_SIGNED, NORMAL, REAL = "one-signed V", "normal V", "rows of real tensors"
VALUES = (NORMAL, REAL, ONE_SIGNED)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An order of sums on one number of keys; numbers by seed.

    sums   FP32, or "never" and "every N tiles" for Hopper's tensor cores
    error  |O - exact| / |exact| of root mean squares
    gain   <O - exact, exact> / |exact|^2; below 0, O is too short
    """

    values: str
    keys: int
    sums: str
    error: dict[int, float] = field(default_factory=dict)
    gain: dict[int, float] = field(default_factory=dict)


def plans() -> dict[str, Plan]:
    """Return the plans by the name of their sums.

    Sums in FP32 come first, then those of the tensor core by how often O is flushed.
    """
    cores = Plan.preset("fa3-fp8@hopper")
    return {FP32: Plan.preset("fa3-fp8")} | {
        sums(n): cores.changed(f"flushed_tiles={n}") for n in FLUSHED
    }


def sums(tiles: int) -> str:
    """Return the name of sums flushed every `tiles` tiles ("every 4 tiles"; 0 is "never")."""
    return {0: "never", 1: "every tile"}.get(tiles, f"every {tiles} tiles")


def inputs(values: str, keys: int, seed: int) -> Arrays:
    """Return q, k, v of one head, (1, T, 1, 128), rounded to E4M3.

    Those of real tensors are rows of the shipped layer 4, drawn with replacement, with its four
    heads of 32 features side by side.
    """
    rng = np.random.default_rng((seed, keys))
    if values == REAL:
        [layer] = read_layers(sample_path(), layer="layer4")

        def four(x: np.ndarray) -> np.ndarray:
            return np.concatenate([x[0, :, head] for head in range(4)], axis=1)

        arrays = [
            four(x)[rng.integers(0, x.shape[1], size)]
            for x, size in ((layer.q, QUERIES), (layer.k, keys), (layer.v, keys))
        ]
    else:
        arrays = [rng.standard_normal((size, WIDTH)) for size in (QUERIES, keys, keys)]
        arrays[2] = np.abs(arrays[2]) if values == ONE_SIGNED else arrays[2]
    q, k, v = (np.asarray(round_to(x, E4M3), np.float64)[None, :, None] for x in arrays)
    return q, k, v


def _out(plan: Plan | str, x: Arrays) -> np.ndarray:
    return np.asarray(
        attend(*x, plan=plan, engine="numpy", block_q=QUERIES, block_k=TILE), np.float64
    )


def measured(seeds: Sequence[int]) -> Iterator[Point]:
    """Yield a point for each kind of values, number of keys and order of sums."""
    for values in VALUES:
        for keys in KEYS:
            given = {seed: inputs(values, keys, seed) for seed in seeds}
            exact = {seed: _out("exact", x) for seed, x in given.items()}
            for name, plan in plans().items():
                point = Point(values=values, keys=keys, sums=name)
                for seed, x in given.items():
                    out = _out(plan, x)
                    point.error[seed] = relative_error(out, exact[seed])
                    point.gain[seed] = gain(out, exact[seed])
                yield point
