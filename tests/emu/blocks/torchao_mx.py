"""Ours against torchao itself, number for number: `python -m tests.emu.blocks.torchao_mx`, with
torchao and PyTorch installed.

float32 -> block -> float32 by `MXTensor`, E4M3, E5M2 and E2M1 under the four scale rules, against
`emu.round_blocks`: normal numbers, a wide range of exponents, ties, numbers about the smallest
normal one, blocks with zeros, infinities and NaN, and blocks whose maximum is just above the
element's largest number times a power of two. Prints the kinds of input whose blocks differ, with
an example. Exit code 1 where a kind differs that docs/findings/block-formats.md does not name.
"""

import sys

import numpy as np

from roundscope.emu import round_blocks

BLOCKS = 4096
FORMATS = {"mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp4": "float4_e2m1fn_x2"}
RULES = ("floor", "ceil", "even", "rceil")
KNOWN = {
    "infinite",
    "smallest",
    "boundary",
}  # kinds of input in which torchao leaves the standard: docs/findings/block-formats.md


def inputs() -> dict[str, np.ndarray]:
    """Float32 arrays of shape (BLOCKS, 32), by kind."""
    rng = np.random.Generator(np.random.PCG64(8))
    normal = rng.standard_normal((BLOCKS, 32), dtype=np.float32)
    place = rng.integers(0, 32, BLOCKS)
    found = {
        "normal": normal,
        "wide": normal * np.ldexp(np.float32(1.0), rng.integers(-40, 41, (BLOCKS, 32))),
        "ties": np.ldexp(
            (rng.integers(-64, 65, (BLOCKS, 32)) * 0.5).astype(np.float32),
            rng.integers(-6, 7, (BLOCKS, 1)),
        ),
        "powers": np.ldexp(np.sign(normal), rng.integers(-12, 1, (BLOCKS, 32))),
        "smallest": normal * np.ldexp(np.float32(1.0), rng.integers(-149, -110, (BLOCKS, 1))),
        "zeros": np.where(
            rng.random((BLOCKS, 1)) < 0.5,
            np.float32(0.0),
            np.where(normal > 0.0, normal, np.float32(-0.0)),
        ),
    }
    boundary = np.ldexp(
        rng.choice(np.array([448.0, 57344.0, 6.0]), (BLOCKS, 1)), rng.integers(-30, 60, (BLOCKS, 1))
    ).astype(np.float32)
    above = (boundary.view(np.int32) + rng.integers(0, 40, (BLOCKS, 1), dtype=np.int32)).view(
        np.float32
    )
    found["boundary"] = np.concatenate(
        [above, normal[:, 1:] / np.abs(normal).max(axis=1, keepdims=True) * boundary], axis=1
    )
    for name, value in (("infinite", np.inf), ("NaN", np.nan)):
        x = normal.copy()
        x[np.arange(BLOCKS), place] = value
        found[name] = x
    return found


def theirs(x: np.ndarray, format: str, rule: str) -> np.ndarray:
    """There and back by torchao."""
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    there = MXTensor.to_mx(
        torch.from_numpy(x), getattr(torch, FORMATS[format]), 32, ScaleCalculationMode(rule)
    )
    back: np.ndarray = there.dequantize(torch.float32).numpy()
    return back


def main() -> int:
    unknown = 0
    for format in FORMATS:
        for rule in RULES:
            for kind, x in inputs().items():
                with np.errstate(all="ignore"):
                    ours, other = round_blocks(x, format, rule=rule), theirs(x, format, rule)
                same = (ours.view(np.int32) == other.view(np.int32)) | (
                    np.isnan(ours) & np.isnan(other)
                )
                if blocks := int((~same).any(axis=1).sum()):
                    unknown += kind not in KNOWN
                    i, j = np.argwhere(~same)[0]
                    example = (
                        f"{x[i, j]!s} with largest {np.abs(x[i]).max()!s}: ours {ours[i, j]!s},"
                        f" torchao {other[i, j]!s}"
                    )
                    print(
                        f"{format:11} {rule:6} {kind:9} {blocks:5} of {BLOCKS} blocks,"
                        f" {int((~same).sum())} numbers; {example}"
                    )
    print(
        f"{len(FORMATS) * len(RULES) * len(inputs()) * BLOCKS * 32} numbers; kinds that differ"
        f" without being known: {unknown}"
    )
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
