"""`linear`'s MXFP8 and MXFP4 plans and torchao's training of a linear layer, on a CPU.

    python -m tests.checks.against_torchao

needs torchao (0.18.0). Its `mx_mm` quantizes x, weight and gradient for the three products; in the
emulated mode it multiplies in binary32, which `Y.sum=chunked192` is on a CPU with AVX-512. The
command prints how many numbers of the result and of both gradients are equal in every bit.
"""

from typing import Any

import numpy as np

from roundscope.operations import run

SUMS = "Y.sum=chunked192 DX.sum=chunked192 DW.sum=chunked192 OUT=fp32 DXO=fp32 DWO=fp32"
OPERANDS = ("X", "W", "GX", "WX", "GW", "XW")


def theirs(x: Any, w: Any, g: Any, kind: str, rule: str) -> tuple[np.ndarray, ...]:
    """Return the result and the gradients of x and of the weight by torchao."""
    import torch
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm
    from torchao.prototype.mx_formats import ScaleCalculationMode
    from torchao.prototype.mx_formats.config import (
        MXFP8Dim0CastKernelChoice,
        MXFP8Dim1CastKernelChoice,
    )
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    element = getattr(torch, kind)
    x, w = (v.clone().requires_grad_() for v in (x, w))
    out = mx_mm.apply(
        x,
        w,
        *(element,) * 3,
        32,
        KernelPreference.EMULATED,
        MXFP8Dim0CastKernelChoice.TORCH,
        MXFP8Dim1CastKernelChoice.TORCH,
        ScaleCalculationMode(rule),
        False,
    )
    out.backward(g)
    return out.detach().numpy(), x.grad.numpy(), w.grad.numpy()


def main() -> None:
    """Compare."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for kind, block in (
        ("float8_e4m3fn", "mxfp8_e4m3"),
        ("float8_e5m2", "mxfp8_e5m2"),
        ("float4_e2m1fn_x2", "mxfp4"),
    ):
        for rule in ("rceil", "floor"):
            x, w, g = (
                torch.randn(*shape, generator=generator)
                * 2.0 ** (3 * torch.randn(*shape, generator=generator))
                for shape in ((192, 160), (128, 160), (192, 128))
            )
            x, w, g = (v.bfloat16().float() for v in (x, w, g))
            plan = "mxfp8; " + SUMS
            plan += "".join(f" {site}={block}:{rule}" for site in OPERANDS)
            own = run("linear", plan, {"x": x, "weight": w}, gradients={"out": g.numpy()})
            mine = own.outputs["out"], own.gradients["x"], own.gradients["weight"]
            pairs = zip(mine, theirs(x, w, g, kind, rule), strict=True)
            told = [f"{int((a == b).sum())} of {a.size}" for a, b in pairs]
            print(f"{block} {rule:5}  out {told[0]}  dx {told[1]}  dw {told[2]}", flush=True)


if __name__ == "__main__":
    main()
