"""What each planted fault does to the reference kernel's results, measured against float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.families import FAMILIES, Source
from tests.checks.mutants.kernel_fault import Fault, kernel_of
from tests.checks.mutants.reference import attention

NAMES = ("out", "dq", "dk", "dv")
BATCH, HEADS, FEATURES = 2, 4, 64
GROSS, MODERATE, LONGER = 10, 1.5, 2**-10  # the limits of the levels (`Fault.level`)

Results = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How far one fault is seen in one case, in the tensor where it is seen most.

    Attributes:
        ratio: The relative rms error over that of the kernel without the fault.
        worst: The name of that tensor.
        gain: The largest difference of gains, <x, exact> / <exact, exact> - 1, by magnitude.
        longest: The name of the tensor with that gain.
    """

    ratio: float
    worst: str
    gain: float
    longest: str


def inputs(family: str, tokens: int = 256, groups: int = HEADS, is_causal: bool = False) -> Inputs:
    """Return BF16 tensors of a named family, with another seed for each batch entry."""
    entries = [
        FAMILIES[family](
            Source(
                family=family,
                seed=seed,
                queries=tokens,
                keys=tokens,
                heads=HEADS,
                features=FEATURES,
            )
        )
        for seed in range(BATCH)
    ]
    q, k, v, do = (
        np.stack([x[role] for x in entries]).astype(ml_dtypes.bfloat16).astype(np.float32)
        for role in ("q", "k", "v", "do")
    )
    k, v = k[:, :, :groups], v[:, :, :groups]
    return Inputs(q=q, k=k, v=v, do=do, scale=FEATURES**-0.5, is_causal=is_causal)


def masked() -> Inputs:
    """Return Gaussian tensors with a random mask, in which one row sees no key and others few."""
    x = inputs("gaussian")
    tokens = x.q.shape[1]
    mask = np.random.default_rng(0).random((BATCH, HEADS, tokens, tokens)) < 0.5
    mask[:, :, 7] = False
    mask[:, :, 100:140, :70] = False  # no key in the first tile
    return replace(x, mask=mask)


def extreme() -> Inputs:
    """Return Gaussian tensors with scores up to hundreds and gradients beyond FP16's range."""
    x = inputs("gaussian")
    return replace(x, q=x.q * 64, v=x.v * 2.0**12, do=x.do * 2.0**-20)


CASES: dict[str, Callable[[], Inputs]] = {
    "gaussian": lambda: inputs("gaussian"),
    "causal": lambda: inputs("gaussian", is_causal=True),
    "ragged-grouped": lambda: inputs("gaussian", tokens=200, groups=2),
    "masked": masked,
    "extreme": extreme,
    **{family: lambda family=family: inputs(family) for family in FAMILIES if family != "gaussian"},
}


def called(kernel: Callable[..., Results], x: Inputs) -> Results:
    """Return out, dq, dk and dv of a kernel."""
    return kernel(x.q, x.k, x.v, x.do, scale=x.scale, is_causal=x.is_causal, mask=x.mask)


def exact(x: Inputs) -> Results:
    """Return out, dq, dk and dv of unfused attention in float64, from the definition."""
    q, k, v, do = (np.moveaxis(y.astype(np.float64), 2, 1) for y in (x.q, x.k, x.v, x.do))
    shared = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    s = np.einsum("bnth,bnsh->bnts", q, k) * float(np.float32(x.scale))
    seen = np.ones(s.shape, bool) if x.mask is None else x.mask
    if x.is_causal:
        seen = seen & np.tri(*s.shape[2:], dtype=bool)
    s = np.where(seen, s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(m), 0, m))
    p /= np.maximum(p.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    dp = np.einsum("bnth,bnsh->bnts", do, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * float(np.float32(x.scale))
    dq, dk = ds @ k, np.swapaxes(ds, 2, 3) @ q
    dv = np.swapaxes(p, 2, 3) @ do
    dk, dv = (y.reshape(BATCH, -1, shared, *y.shape[2:]).sum(2) for y in (dk, dv))
    return tuple(np.moveaxis(y, 1, 2) for y in (p @ v, dq, dk, dv))


def error(x: np.ndarray, truth: np.ndarray) -> float:
    """Return the rms of x - truth over that of truth; infinity if x is not finite."""
    if not np.isfinite(x).all():
        return math.inf
    return float(np.linalg.norm(x - truth) / np.linalg.norm(truth))


def gain(x: np.ndarray, truth: np.ndarray) -> float:
    """Return <x, truth> / <truth, truth> - 1: by how much x is too long along the truth."""
    with np.errstate(invalid="ignore"):
        return float((x * truth).sum() / (truth**2).sum() - 1)


def size(gain: float) -> float:
    """Return the magnitude of a gain, infinity for that of a result with NaN."""
    return math.inf if math.isnan(gain) else abs(gain)


def measured(faulty: Results, clean: Results, truth: Results) -> Measured:
    """Return how far the results of a kernel are worse than those of the clean one."""
    ratios = [
        error(f, t) / error(c, t) if not np.array_equal(f, c) else 1.0
        for f, c, t in zip(faulty, clean, truth, strict=True)
    ]
    gains = [gain(f, t) - gain(c, t) for f, c, t in zip(faulty, clean, truth, strict=True)]
    worst, longest = int(np.argmax(ratios)), int(np.argmax([size(g) for g in gains]))
    return Measured(
        ratio=ratios[worst], worst=NAMES[worst], gain=gains[longest], longest=NAMES[longest]
    )


def level(m: Measured) -> str:
    """Return the level of a fault that was measured where it shows."""
    if m.ratio > GROSS:
        return "gross"
    return "moderate" if m.ratio > MODERATE or size(m.gain) > LONGER else "subtle"


def is_repeatable(kernel: Callable[..., Results], x: Inputs) -> bool:
    """Return whether two calls give the same bits (NaN for NaN)."""
    return _same(called(kernel, x), called(kernel, x))


def is_batch_invariant(kernel: Callable[..., Results], x: Inputs) -> bool:
    """Return whether the first batch entry has the same bits when it is called alone."""
    mask = None if x.mask is None else x.mask[:1]
    alone = replace(x, q=x.q[:1], k=x.k[:1], v=x.v[:1], do=x.do[:1], mask=mask)
    return _same(called(kernel, alone), tuple(y[:1] for y in called(kernel, x)))


def _same(a: Results, b: Results) -> bool:
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def measurements(faults: tuple[Fault, ...], names: tuple[str, ...] = tuple(CASES)):
    """Yield each fault with a dict from the case to what was `Measured` there."""
    cases = {name: CASES[name]() for name in names}
    known = {name: (called(attention, x), exact(x)) for name, x in cases.items()}
    for fault in faults:
        kernel = kernel_of(fault)
        yield fault, {name: measured(called(kernel, x), *known[name]) for name, x in cases.items()}
