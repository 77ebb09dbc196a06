"""Rotary embeddings: transformers' bits on a CPU, and a judge in exact fractions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from tests.operations.by_torch import every_type, share, shares_of_gradients, torch_of
from tests.operations.exactly import numbers, to


@every_type
@pytest.mark.parametrize("kind", ["llama", "gptj"])
def test_every_bit_of_transformers(suffix, kind):
    """Other features that are rotated together, a product that is not rounded."""
    torch, dtype = torch_of(suffix)
    modules = pytest.importorskip(f"transformers.models.{kind}.modeling_{kind}")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 16, 4, 32, generator=generator).to(dtype)
    angles = torch.arange(16)[:, None] * 10000.0 ** (-torch.arange(16) / 16)
    cos, sin = (f(angles).to(dtype)[None].expand(2, -1, -1) for f in (torch.cos, torch.sin))
    if kind == "llama":
        cos, sin = (torch.cat([a, a], -1) for a in (cos, sin))
        wanted, _ = modules.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)
    else:
        wanted = modules.apply_rotary_pos_emb(x, sin, cos)
        cos, sin = (torch.repeat_interleave(a, 2, -1) for a in (cos, sin))
    given = {"x": x, "cos": cos[:, :, None].expand_as(x), "sin": sin[:, :, None].expand_as(x)}
    assert share("rope", f"transformers-{kind}{suffix}", given, wanted) == 1.0


@every_type
def test_every_bit_of_the_gradient(suffix):
    """A rotation that is not turned back."""
    torch, dtype = torch_of(suffix)
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    generator = torch.Generator().manual_seed(2)
    x, cos, sin = torch.randn(3, 40, 32, generator=generator).to(dtype)
    found = shares_of_gradients(
        "rope",
        f"transformers-llama{suffix}",
        lambda x, cos, sin: x * cos + llama.rotate_half(x) * sin,
        {"x": x, "cos": cos, "sin": sin},
        ("cos", "sin"),
    )
    assert found == {"x": 1.0}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_the_judge_agrees(fused, pairs):
    """A sign on the wrong half, two roundings in a multiply-add."""
    rng = np.random.default_rng(2)
    x, cos, sin = (numbers(rng, (5, 6), "bf16") for _ in range(3))
    plan = replace(plan_of(OPERATIONS["rope"], "transformers-llama"), fused=fused, pairs=pairs)
    found = run("rope", plan, {"x": x, "cos": cos, "sin": sin}).outputs["out"].astype(float)
    for r, f in np.ndindex(5, 6):
        other = (f ^ 1) if pairs else (f + 3) % 6
        is_first = f % 2 == 0 if pairs else f < 3
        turned = Fraction(x[r, other]) * (-1 if is_first else 1)
        product = Fraction(x[r, f]) * Fraction(cos[r, f])
        product = product if fused else to(product, "bf16")
        wanted = to(product + to(turned * Fraction(sin[r, f]), "bf16"), "bf16")
        assert Fraction(found[r, f]) == wanted
