"""The Pallas engine: tiles in fused kernels, on a GPU through Triton; elsewhere interpreted, for tests.

Same bits as the other engines. What is done once for a head (inputs, delta, gradients as they leave) runs under XLA.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention import head, pallas_kernels
from attention.head import Setup
from attention.plan import Plan
from attention.sites import Axes, Site
from attention.xla_engine import enter, leave, moved, prepare, round_inputs
from emu.accumulate import Accumulator, Order
from emu.xla_ops import opaque_zero, xla_ops

__all__ = ["backward", "check", "check_plan", "enter", "forward", "leave", "moved", "prepare", "round_inputs"]
READ = ("bf16", "fp16", "tf32")  # FP8 sums of a fused kernel are added in pieces, which no accumulator here describes
FUSED = (Site.S, Site.ROWSUM, Site.PV, Site.S_B, Site.DV, Site.DP, Site.DQ, Site.DK)
ELSEWHERE = "; use engine='xla', which gives the same bits"


def forward(setup: Setup, q: Array, k: Array, v: Array, mask: None = None, each: None = None) -> Any:
    """q: (heads, T, H); k, v: (key heads, S, H), rounded. As `xla_engine.forward`, nothing seen."""
    with jax.enable_x64(True):
        return _forward(setup, q, k, v), {"tiles": {}, "whole": {}}


@partial(jax.jit, static_argnums=0)
def _forward(setup: Setup, q: Array, k: Array, v: Array) -> Any:
    return pallas_kernels.forward(setup, q, k, v, jax.default_backend() == "gpu")


def backward(
    setup: Setup, q: Array, k: Array, v: Array, mask: None, out: Array, wide: Array, lse: Array, do: Array, each: None = None
) -> Any:
    """As `xla_engine.backward`, nothing seen."""
    with jax.enable_x64(True):
        return _backward(setup, q, k, v, out, wide, lse, do), {"tiles": {}, "whole": {}, "keys": {}}


@partial(jax.jit, static_argnums=0)
def _backward(setup: Setup, q: Array, k: Array, v: Array, out: Array, wide: Array, lse: Array, do: Array) -> Any:
    ops, (heads, keys) = xla_ops(opaque_zero(q), setup.plan.has_wide_operands or bool(setup.inject)), (q.shape[0], k.shape[0])
    group = heads // keys

    def deltas(h: Array, *x: Array) -> Array:
        q, k, v, *rest = x
        return head.deltas(ops, setup, h, head.whole_events(ops, setup, h, None), q, k, v, None, *rest)

    def finished(h: Array, dq: Array) -> Array:
        return head.round_query_gradients(head.whole_events(ops, setup, h, None), setup, dq)

    def added(g: Array, dk: Array, dv: Array) -> Any:
        return head.round_key_gradients(ops, setup, g, dk, dv)[0]

    number = jnp.arange(heads)
    delta = jax.vmap(deltas)(number, q, *(jnp.repeat(x, group, axis=0) for x in (k, v)), out, wide, lse, do)
    dq, dk, dv = pallas_kernels.backward(setup, q, k, v, do, lse, delta, jax.default_backend() == "gpu")
    dk, dv = jax.vmap(added)(jnp.arange(keys), *(x.reshape(keys, group, *x.shape[1:]) for x in (dk, dv)))
    return jax.vmap(finished)(number, dq), dk, dv, delta


def check(setup: Setup, sizes: tuple[int, ...], mask: Any, traced: bool) -> None:
    """Raises ValueError for what the kernel does not do, with what does. sizes: features of q and of v; traced: inside jit or grad."""
    if setup.record is not None:
        raise ValueError("record: the fused kernel keeps none; pass record=None" + ELSEWHERE)
    if mask is not None:
        raise ValueError(f"mask: the fused kernel takes none but is_causal{ELSEWHERE}")
    check_plan(setup.plan)
    if traced and jax.default_backend() != "gpu" and not jax.config.read("jax_enable_x64"):
        raise ValueError("engine=pallas: interpreted inside jit or grad it needs 64-bit types; call it with jax.enable_x64(True)")
    named = {"block_q": setup.block_q, "block_k": setup.block_k, "features of q and k": sizes[0], "features of v": sizes[1]}
    for name, size in named.items():
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name}: {size}, a kernel's tiles are powers of two from 16 on{ELSEWHERE}")


def check_plan(plan: Plan) -> None:
    """Raises ValueError for a plan that the kernels do not run, with what does."""
    if plan.normalise_first:
        raise ValueError(f"plan={plan.name}: softmax before P V needs whole rows, which a fused kernel does not have{ELSEWHERE}")
    for site, block in plan.blocks:
        if site.axes is Axes.TS:
            raise ValueError(f"plan={plan.name}: {site} in blocks of {block}, which the fused kernel does not make{ELSEWHERE}")
    for site in FUSED:
        if problem := _unfit(plan.accumulator(site)):
            raise ValueError(f"accumulator of {site}: {problem}{ELSEWHERE}")


def _unfit(acc: Accumulator) -> str:
    """Why the kernel does not have an accumulator; empty if it has."""
    if acc.order is Order.ASCENDING:
        return "" if acc.step.mode != "stochastic" else "a stochastic step needs random bits for every addition"
    if acc.alignment is None:
        return f"the fused kernel adds in ascending order or on tensor cores, not {acc.order}"
    operand = acc.alignment.operand.name
    if operand not in READ:
        return f"sums of {operand} run in pieces in a fused kernel"
    if jax.default_backend() == "gpu" and acc != _device_core(operand, acc):
        return f"this device's tensor cores are not {acc}"
    return ""


def _device_core(operand: str, acc: Accumulator) -> Accumulator | None:
    """The accumulator of this GPU's tensor cores; None if there is no model that was compared with it."""
    is_hopper = jax.devices()[0].compute_capability == "9.0"
    return Accumulator.tensor_core("hopper", operand, acc.step.format.name) if is_hopper else None
