"""How sums of products are biased on tensor cores: their error against K.

They stand beside sums in binary32 rounded to nearest even. The error of a sum is (|c| - |exact|) /
sum |a_k b_k| in units of u = 2^-24, half an ulp of binary32 at 1; below 0 it is toward zero. For
products of one sign it is the relative error; for others it is what a backward error analysis
bounds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from roundscope.emu import Accumulator, dot, round_to
from roundscope.experiments.framework.estimates import Estimate, mean

LENGTHS = (16, 64, 256, 1024, 4096, 16384)
SEEDS = range(8)
SIDE = 24  # rows and columns of a result, which has SIDE^2 sums for each seed
PROMOTED = 128  # after how many products DeepSeek-V3 adds the sum up in binary32
UNIT = 2.0**-24
POSITIVE, SIGNED = "products above 0", "products of either sign"
Sum = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A way to add: its name, the format of its factors, and the sum."""

    name: str
    operand: str
    add: Sum


def _core(arch: str, operand: str) -> Sum:
    return partial(dot, accumulator=Accumulator.tensor_core(arch, operand))


def promoted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Hopper's FP8 sums of 128 products, added in binary32 (arXiv 2412.19437, 3.3.2)."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for lo in range(0, a.shape[1], PROMOTED):
        total += _core("hopper", "e4m3fn")(a[:, lo : lo + PROMOTED], b[lo : lo + PROMOTED]).astype(
            np.float32
        )
    return total.astype(np.float64)


NEAREST = "BF16, binary32 to nearest"
HOPPER = "BF16, Hopper: 25 bits"
HOPPER_FP8 = "E4M3, Hopper: 13 bits"
MODELS = (
    Model(name=NEAREST, operand="bf16", add=dot),
    Model(name="BF16, Ampere: 24 bits", operand="bf16", add=_core("ampere", "bf16")),
    Model(name=HOPPER, operand="bf16", add=_core("hopper", "bf16")),
    Model(name="E4M3, Blackwell: 25 bits", operand="e4m3fn", add=_core("blackwell", "e4m3fn")),
    Model(name=HOPPER_FP8, operand="e4m3fn", add=_core("hopper", "e4m3fn")),
    Model(name="E4M3, Hopper, FP32 every 128", operand="e4m3fn", add=promoted),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A model on inputs of one kind at one K: the mean error over seeds and its rms, both in u."""

    model: str
    inputs: str
    k: int
    lean: Estimate
    rms: float


def factors(seed: int, k: int, operand: str, inputs: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (SIDE, K) and (K, SIDE): normal numbers or their magnitudes, in the format."""
    rng = np.random.default_rng((seed, k))
    made = (rng.standard_normal(shape).astype(np.float32) for shape in ((SIDE, k), (k, SIDE)))
    a, b = (round_to(np.abs(x) if inputs == POSITIVE else x, operand) for x in made)
    return a, b


def errors(model: Model, seed: int, k: int, inputs: str) -> np.ndarray:
    """Return the errors of SIDE^2 sums, in u."""
    a, b = factors(seed, k, model.operand, inputs)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    found: np.ndarray = (
        (np.abs(model.add(a, b)) - np.abs(wide_a @ wide_b))
        / (np.abs(wide_a) @ np.abs(wide_b))
        / UNIT
    )
    return found


def measured(lengths: Sequence[int]) -> Iterator[Point]:
    """Yield every point, one by one."""
    for inputs in (POSITIVE, SIGNED):
        for model in MODELS:
            for k in lengths:
                found = {seed: errors(model, seed, k, inputs) for seed in SEEDS}
                rms = float(np.sqrt(np.mean([np.square(e).mean() for e in found.values()])))
                yield Point(
                    model=model.name,
                    inputs=inputs,
                    k=k,
                    lean=mean({s: float(e.mean()) for s, e in found.items()}),
                    rms=rms,
                )
