"""Options, tensors and files of the tests of `roundscope trace`."""

import numpy as np

from roundscope.tools.trace.options import request

PRESETS = ("exact", "fp32", "qiu-yao", "fa2-bf16", "fa3-fp8", "baseline-bf16", "all:e4m3fn")
OPTIONS = {
    "plan": "qiu-yao",
    "against": "exact",
    "sets": [],
    "inject": [],
    "record": [],
    "engine": "numpy",
    "seed": 0,
    "block_q": 16,
    "block_k": 16,
    "scale": None,
    "causal": False,
}


def asked(**changes):
    return request(**(OPTIONS | changes))


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
