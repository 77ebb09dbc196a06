"""The speed of rounding on a GPU under XLA, beside a copy on the same device."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from roundscope.emu.roundings.modes import rounding
from roundscope.tools.bench.rivals import ours_on_xla
from roundscope.tools.bench.round import (
    FORMATS,
    Progress,
    Row,
    differing,
    finish,
    race,
    sample,
)

DIFFERENCES_ON = 1 << 22  # how many values are compared with those of the Numba executor


def bench_device(
    size: int = 1 << 28,
    repeat: int = 20,
    formats: Iterable[str] = FORMATS,
    progress: Progress = lambda share: None,
) -> list[Row]:
    """Return rows for the copy and for ours per format, on JAX's first GPU; none if it has no GPU.

    The copy is the bits XOR a zero that XLA learns only at run time: an elementwise pass that XLA
    cannot remove.
    """
    import jax
    import jax.numpy as jnp

    from roundscope.emu.backends.numba import rounding as kernels

    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        return []
    head = sample(min(size, DIFFERENCES_ON))
    x = jnp.resize(jax.device_put(head, device), (size,))
    zero = jax.device_put(np.int32(0), device)
    flip = jax.jit(
        lambda x, z: jax.lax.bitcast_convert_type(
            jax.lax.bitcast_convert_type(x, jnp.int32) ^ z, jnp.float32
        )
    )
    field: dict[str, Any] = {"copy": (lambda: finish(flip(x, zero)), size)}
    checks = {}
    for name in formats:
        f = ours_on_xla(name)
        checks[name] = differing(
            np.asarray(f(np.asarray(x[: head.size]))), kernels.round_array(head, rounding(name))
        )
        field[name] = (partial(_finished, f, x), size)
    times = race(field, repeat, progress)
    return [
        Row(
            format="" if name == "copy" else name,
            name=f"{'copy' if name == 'copy' else 'ours, XLA'} on {device.device_kind}",
            gbps=float(8e-9 / np.median(t)),
            of_copy=float(np.median(times["copy"] / t)),
            ours=None,
            values=size,
            differing=checks.get(name),
        )
        for name, t in times.items()
    ]


def _finished(f: Any, x: Any) -> Any:
    return finish(f(x))
