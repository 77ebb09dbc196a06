"""Attention over several devices, here parts of one processor: in a program of its own, which must
say so before it meets JAX.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from roundscope.attention.sharded import attend_sharded

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from roundscope.attention import attend
from roundscope.attention.sharded import attend_sharded

mesh = jax.make_mesh((2, 2), ("batch", "heads"))
rng = np.random.default_rng(3)
q, k, v, do = (jnp.asarray(rng.normal(size=(2, 24, n, 16)), jnp.float32) for n in (4, 2, 2, 4))
options = dict(plan="qiu-yao", block_q=16, block_k=8, is_causal=True)
one, many = lambda *x: attend(*x, **options), lambda *x: attend_sharded(*x, mesh=mesh, **options)
results = []
for f in (one, many):
    out, pull = jax.vjp(jax.jit(f), q, k, v)
    results.append((out, *pull(jax.device_put(do, out.sharding))))
bits = lambda x: np.asarray(x).view(np.int32)
same = [np.array_equal(bits(a), bits(b)) for a, b in zip(*results)]
print(same, len(results[1][0].sharding.device_set))
"""


def test_four_devices_give_the_bits_of_one():
    """A head that lands elsewhere, a key head of another query head, a gradient summed over
    devices.
    """
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "[True, True, True, True] 4\n", done.stderr[-2000:]


def mesh_of_one(*names):
    return jax.make_mesh((1,) * len(names), names)


def test_what_it_refuses():
    """Axes with other names; random bits that would not be those of one device."""
    q = jnp.zeros((1, 16, 2, 16))
    with pytest.raises(ValueError, match=r"mesh: axes .*data.* must be named"):
        attend_sharded(q, q, q, mesh=mesh_of_one("data", "heads"), plan="fp32")
    from roundscope.attention import Plan

    with pytest.raises(ValueError, match="plan=fp32; O=bf16:stochastic: random bits depend"):
        attend_sharded(
            q,
            q,
            q,
            mesh=mesh_of_one("batch", "heads"),
            plan=Plan.preset("fp32").at("O", "bf16", "stochastic"),
        )
