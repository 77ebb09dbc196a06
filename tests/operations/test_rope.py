"""Rotary embeddings and their tables: transformers' bits on a CPU, and a judge."""

from dataclasses import replace
from fractions import Fraction

import mpmath
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


@every_type
@pytest.mark.parametrize("cast", ["", "-cast"])
def test_how_much_of_a_table_is_equal_to_transformers(suffix, cast):
    """A cast before the angle, positions in the type of the model; in FP32 another cos."""
    torch, dtype = torch_of(suffix, "AVX512")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )
    table = llama.LlamaRotaryEmbedding(config)
    given = {"positions": torch.arange(7000, 7100)[None], "frequencies": table.inv_freq}
    table = table.to(dtype) if cast else table
    wanted = table(torch.zeros(1, dtype=dtype), given["positions"])
    plan, told = f"transformers-llama{cast}{suffix}", {"theta": 5e5, "features": 64}
    arrays = {n: x.float().numpy() for n, x in given.items()}
    found = run("rope_table", plan, arrays, settings=told).outputs
    alone = run("rope_table", plan, {"positions": arrays["positions"]}, settings=told).outputs
    for name, x in zip(("cos", "sin"), wanted, strict=True):
        equal = (found[name].astype(np.float32) == x.float().numpy()).mean()
        assert equal >= (0.9 if suffix == "-fp32" else 0.999)
        assert np.array_equal(alone[name], found[name])  # its 64 features have torch's power


@pytest.mark.parametrize("pairs", [False, True])
def test_the_judge_of_a_table_agrees(pairs):
    """A frequency at other features, a cast at another step."""
    positions = np.array([0.0, 3.0, 257.0, 100000.0])
    plan = replace(plan_of(OPERATIONS["rope_table"], "transformers-llama-cast"), pairs=pairs)
    told = {"theta": 10000.0, "features": 8, "scaling": 1.25}
    found = run("rope_table", plan, {"positions": positions}, settings=told).outputs
    for r, f in np.ndindex(4, 8):
        i = f // 2 if pairs else f % 4
        with mpmath.workdps(60):
            power = to(Fraction(float(mpmath.mpf(10000) ** (mpmath.mpf(2 * i) / 8))), "fp32")
            frequency = to(to(1 / power, "fp32"), "bf16")
            angle = to(Fraction(positions[r]) * frequency, "fp32")
            for name in ("cos", "sin"):
                y = getattr(mpmath, name)(mpmath.mpf(angle.numerator) / angle.denominator)
                exact = Fraction(int(mpmath.floor(mpmath.ldexp(y, 150)))) / 2**150
                wanted = to(to(to(exact, "fp32") * Fraction(5, 4), "fp32"), "bf16")
                assert Fraction(float(found[name][r, f])) == wanted
