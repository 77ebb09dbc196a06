"""Calls of torch._scaled_mm in FP8: their inputs, made from seeds in NumPy, and the plan that gives
the bits of cuBLAS on a Hopper GPU.

`tests.checks.gpu_scaled_mm` records these calls, `tests.checks.mmaemu` compares them with mmaemu.
"""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

TYPES: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp32": np.float32,
}
SCALES = {  # of x and of the weight, or about which those of rows and blocks lie
    "plain": (0.37, 0.021),
    "huge": (3e30, 7e7),
    "tiny": (3e-30, 7e-12),
    "over": (1e30, 1e30),
    "one": (1.0, 1.0),
}


class Call(NamedTuple):
    """A call of torch._scaled_mm.

    m, k, n  rows, features and results
    a, b     formats of x and of the weight
    out      type of the result
    fast     whether use_fast_accum is True
    scales   what has a scale of its own: "tensor", "rows", "blocks" (1 x 128 of x and 128 x 128 of
             the weight) or "blocks1d" (1 x 128 of both)
    bias     type of the bias, or ""
    family   which numbers: `operand`
    size     which scales: `SCALES`
    seed     of the inputs
    group    what the call is about
    """

    m: int
    k: int
    n: int
    a: str = "e4m3"
    b: str = "e4m3"
    out: str = "bf16"
    fast: bool = True
    scales: str = "tensor"
    bias: str = ""
    family: str = "normal"
    size: str = "plain"
    seed: int = 0
    group: str = ""

    @property
    def name(self) -> str:
        """Return the call in words."""
        how = f"{self.scales}-{'fast' if self.fast else 'slow'}"
        bias = f"/bias-{self.bias}" if self.bias else ""
        return (
            f"{self.group}/{self.a}x{self.b}-{self.out}/{how}/{self.family}/{self.size}{bias}"
            f"/{self.m}x{self.k}x{self.n}"
        )


def unit(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return about N(0, 1): four 16-bit integers of a PCG64 added up."""
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape)
    total: np.ndarray = np.zeros(shape)
    for part in range(4):
        total += (words >> np.uint64(16 * part)) & np.uint64(0xFFFF)
    return (total - 2 * 65535) / (65536.0 * np.sqrt(4 / 12))


def operand(seed: int, shape: tuple[int, int], kind: str, family: str) -> np.ndarray:
    """Return FP8 numbers: normal numbers, or codes of all finite numbers, alike often ("codes"),
    nine of ten zero ("sparse"), of small exponents ("tiny"), in pairs that cancel ("cancel"), or
    with NaN and infinity in one of 2000 each ("special").
    """
    if family == "normal":
        return (2.0 * unit(seed, shape)).astype(np.float32).astype(TYPES[kind])
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape)
    codes = (words & np.uint64(0xFF)).astype(np.uint8)
    largest = 0x7E if kind == "e4m3" else 0x7B
    low = codes & 0x7F
    codes = np.where(low > largest, (codes & 0x80) | (low - 8), codes).astype(np.uint8)
    if family == "sparse":
        codes = np.where((words >> np.uint64(8)) % np.uint64(10) == 0, codes, codes & 0x80)
    if family == "tiny":
        codes = (codes & 0x8F).astype(np.uint8)
    if family == "cancel":
        last_bit = (words[..., 1::2] >> np.uint64(20)) % np.uint64(7) == 0
        codes[..., 1::2] = codes[..., ::2] ^ 0x80 ^ last_bit.astype(np.uint8)
        codes = np.where((codes & 0x7F) > largest, codes & 0xF0, codes).astype(np.uint8)
    if family == "special":
        at = (words >> np.uint64(24)) % np.uint64(2000)
        codes = np.where(at == 0, 0x7F, codes)
        if kind == "e5m2":
            codes = np.where(at == 1, 0x7C, np.where(at == 2, 0xFC, codes))
    return codes.astype(np.uint8).view(TYPES[kind])


def _scale(seed: int, shape: tuple[int, ...], about: float) -> np.ndarray:
    spread = 1.0 + 0.25 * np.clip(unit(seed, shape), -2, 2) if shape else 1.0
    return np.asarray(about * spread, np.float32)


PROMOTED = {
    f"{k}/{family}": Call(64, k, 128, out="fp32", scales="blocks", family=family, seed=11)
    for k, family in (
        (128, "codes"),
        (512, "codes"),
        (1024, "normal"),
        (4096, "codes"),
        (512, "special"),
    )
}
"""Calls of the Triton kernel in `promoted_kernel`."""


def inputs(call: Call) -> dict[str, np.ndarray]:
    """Return x (m, k), weight (n, k), their scales as `linear` reads them, and the bias."""
    m, k, n, seed = call.m, call.k, call.n, call.seed
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "tensor": ((), ()),
        "rows": ((m, 1), (n, 1)),
        "blocks": ((m, k // 128), (n // 128, k // 128)),
        "blocks1d": ((m, k // 128), (n, k // 128)),
    }
    own, about = shapes[call.scales], SCALES[call.size]
    found = {
        "x": operand(seed, (m, k), call.a, call.family),
        "weight": operand(seed + 1, (n, k), call.b, call.family),
        "x_scale": _scale(seed + 2, own[0], about[0]),
        "weight_scale": _scale(seed + 3, own[1], about[1]),
    }
    if call.bias:
        bias = (3.0 * unit(seed + 4, (n,))).astype(np.float32)
        found["bias"] = bias.astype(TYPES[call.bias])
    return found


def plan_words(call: Call, splits: int = 1) -> str:
    """Return the plan of `linear` that is this call on a Hopper GPU.

    splits  in how many parts cuBLAS splits the features
    """
    words = [f"OUT={called(call.out, saturate=True)}", f"splits={splits}"]
    words += [f"X={called(call.a)}", f"W={called(call.b)}"]
    if call.a != call.b:
        words.append(f"Y.sum=hopper:{NAMES[call.a]}*{NAMES[call.b]}")
    if not call.fast:
        words.append("promoted=128")
    if call.scales == "blocks1d" and call.k > 128:
        words.append("scales_apart=true")
    return "hopper-e4m3; " + " ".join(words)


NAMES = {"e4m3": "e4m3fn", "e5m2": "e5m2", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


def called(kind: str, saturate: bool = False) -> str:
    """Return a rounding that keeps all numbers of a type; results in FP8 saturate."""
    if kind in ("e4m3", "e5m2"):
        ending = ":saturate" if saturate else {"e4m3": "", "e5m2": ":inf"}[kind]
        return NAMES[kind] + ending
    return NAMES[kind]


def calls() -> list[Call]:
    """Return the calls, whose seeds are their places in this list: new ones go to its end."""
    found: list[Call] = []

    def add(group: str, m: int, k: int, n: int, **more: Any) -> None:
        found.append(Call(m, k, n, group=group, seed=1000 + 10 * len(found), **more))

    for fast in (True, False):
        _of_tensors(add, fast)
        for scales in ("tensor", "rows"):
            for out, bias in (
                ("bf16", "bf16"),
                ("fp16", "fp16"),
                ("fp32", "bf16"),
                ("fp32", "fp32"),
                ("fp32", "fp16"),
            ):
                for family in ("normal", "codes"):
                    how = {"out": out, "bias": bias, "scales": scales, "family": family}
                    add("bias", 64, 512, 128, fast=fast, **how)
        for out in ("fp16", "fp32", "bf16"):
            rows = {"scales": "rows", "fast": fast, "out": out}
            add("rows", 64, 1024, 64, family="codes", **rows)
            add("rows", 64, 1024, 64, family="special", **rows)
            add("rows", 32, 256, 64, family="codes", size="huge", **rows)
            add("rows", 32, 256, 64, family="codes", size="tiny", **rows)
        for m, k, n in SPLIT:
            for out in ("bf16", "fp32", "fp16"):
                family = "codes" if out == "fp32" else "normal"
                add("split", m, k, n, out=out, fast=fast, family=family)
    for m, k, n in ((64, 512, 128), (128, 1024, 256), (16, 4096, 512), (64, 128, 128)):
        for family in ("normal", "codes", "tiny"):
            for scales in ("blocks", "blocks1d"):
                for out in ("bf16", "fp32", "fp16"):
                    add("blocks", m, k, n, out=out, fast=False, scales=scales, family=family)
    add("blocks", 64, 512, 128, fast=False, scales="blocks", family="special")
    add("blocks", 64, 512, 128, fast=False, scales="blocks", bias="bf16")
    return found


SPLIT = (
    (16, 16384, 64),
    (64, 16384, 64),
    (16, 4096, 64),
    (64, 8192, 128),
    (128, 32768, 128),
    (16, 65536, 16),
    (256, 8192, 256),
    (64, 16384, 512),
    (16, 2048, 16),
    (32, 12288, 96),
    (16, 7168, 2112),
)
"""Shapes of which cuBLAS splits many."""


def _of_tensors(add: Any, fast: bool) -> None:
    """Add calls with scales of tensors and without a bias."""
    for a, b in (("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")):
        both = {"a": a, "b": b, "fast": fast}
        for out in ("bf16", "fp32", "fp16"):
            add("mixed", 64, 1024, 64, out=out, family="codes", **both)
        add("mixed", 64, 1024, 64, out="fp32", **both)
        add("mixed", 64, 512, 64, out="fp32", family="special", **both)
    for family in ("codes", "sparse", "tiny", "cancel", "special"):
        for out in ("bf16", "fp32", "fp16"):
            add("families", 64, 1024, 64, out=out, fast=fast, family=family)
    for size in ("huge", "tiny", "over"):
        for out in ("bf16", "fp32", "fp16", "e4m3"):
            add("sizes", 32, 256, 64, out=out, fast=fast, family="codes", size=size)
    for out in ("e4m3", "e5m2"):
        add("fp8 results", 64, 512, 64, out=out, fast=fast)
        add("fp8 results", 64, 512, 64, b="e5m2", out=out, fast=fast)
    for k in (16, 48, 80, 176, 240, 1008):
        add("features", 32, k, 64, out="fp32", fast=fast, family="codes")
