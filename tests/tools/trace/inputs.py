"""Options, tensors and files of the tests of `roundscope trace`."""

from dataclasses import replace

import numpy as np

from roundscope.tools.trace.options import TraceOptions
from roundscope.tools.trace.request import request

PRESETS = ("exact", "fp32", "qiu-yao", "fa2-bf16", "fa3-fp8", "baseline-bf16", "all:e4m3fn")


def asked(causal=False, scale=None, plan="qiu-yao", beside="none", **changes):
    options = TraceOptions(**({"budget": False, "block_q": 16, "block_k": 16} | changes))
    return replace(request(options, plan, beside), causal=causal, scale=scale)


def tensors(layers=("a",), b=2, t=24, s=40, n=4, g=2, h=8, hv=4, do=True):
    random = np.random.default_rng(3)
    shapes = {"q": (b, t, n, h), "k": (b, s, g, h), "v": (b, s, g, hv)} | (
        {"do": (b, t, n, hv)} if do else {}
    )
    return {
        f"{x}.{role}": random.standard_normal(shape).astype(np.float32)
        for x in layers
        for role, shape in shapes.items()
    }


def change(path, **arrays):
    with np.load(path) as file:
        kept = {n: file[n] for n in file.files}
    np.savez(path, **(kept | arrays))
    return path
