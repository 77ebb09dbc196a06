"""Calls of torch on a CPU, whose bits the published plans have."""

from typing import Any

import numpy as np
import pytest

from roundscope.operations import run

SUFFIXES = {"": "bfloat16", "-fp16": "float16", "-fp32": "float32"}
every_type = pytest.mark.parametrize("suffix", SUFFIXES)


def torch_of(suffix: str, *capabilities: str) -> tuple[Any, Any]:
    """Return torch and the type of a plan's suffix, or skip the test where its kernels differ."""
    torch = pytest.importorskip("torch")
    found = torch.backends.cpu.get_cpu_capability()
    if found not in (capabilities or ("AVX2", "AVX512")):
        pytest.skip(f"torch computes with the vectors of {found}, which the plan has not")
    return torch, getattr(torch, SUFFIXES[suffix])


def numbers(x: Any) -> np.ndarray:
    """Return a tensor as an array, numbers of 16 bits as float32."""
    return (x.float() if x.dtype.is_floating_point else x).detach().numpy()


def share(operation: str, plan: str, inputs: dict[str, Any], wanted: Any, **settings: Any) -> float:
    """Return the share of torch's numbers that a plan gives in every bit."""
    given = {name: numbers(x) for name, x in inputs.items()}
    found = next(iter(run(operation, plan, given, settings=settings).outputs.values()))
    assert found.shape == tuple(wanted.shape)
    return float((found.astype(np.float32) == numbers(wanted)).mean())


def shares_of_gradients(
    operation: str,
    plan: str,
    function: Any,
    inputs: dict[str, Any],
    constants: tuple[str, ...] = (),
) -> dict[str, float]:
    """Return the share of autograd's numbers that a plan gives in every bit, by input."""
    import torch

    given = {n: x.clone().requires_grad_(n not in constants) for n, x in inputs.items()}
    out = function(*given.values())
    after = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    out.backward(after)
    arrays = {n: numbers(x) for n, x in given.items()}
    found = run(operation, plan, arrays, gradients={"out": numbers(after)}).gradients
    return {
        n: float((found[n] == numbers(x.grad)).mean())
        for n, x in given.items()
        if n not in constants
    }
