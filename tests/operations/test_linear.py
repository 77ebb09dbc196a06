"""Linear layers: a judge in exact fractions, split-K, blocks, and what is equal to torch."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.roundings.modes import BF16
from roundscope.operations import OPERATIONS, run
from roundscope.operations.definitions.linear import Site
from roundscope.operations.run import plan_of
from tests.operations.by_torch import every_type, share, shares_of_gradients, torch_of
from tests.operations.exactly import numbers, to, total

LINEAR = OPERATIONS["linear"]


@every_type
@pytest.mark.parametrize("features", [64, 176, 1000, 2048])
def test_how_much_is_equal_to_torch(suffix, features):
    """All bits in FP32; in BF16 and FP16 nearly all, since the sum is cast."""
    torch, dtype = torch_of(suffix, "AVX512")
    generator = torch.Generator().manual_seed(features)
    x, w, b = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((64, features), (96, features), (96,))
    )
    w = (w.float() / features**0.5).to(dtype)
    least = {"-fp32": 1.0, "": 0.999, "-fp16": 0.995}[suffix]
    wanted = torch.nn.functional.linear(x, w)
    assert share(LINEAR, f"torch-cpu{suffix}", {"x": x, "weight": w}, wanted) >= least
    wanted = torch.nn.functional.linear(x, w, b)
    assert share(LINEAR, f"torch-cpu{suffix}", {"x": x, "weight": w, "bias": b}, wanted) >= least


@every_type
@pytest.mark.parametrize("features", [64, 1024])
def test_how_much_of_the_gradients_is_equal_to_torch(suffix, features):
    """A sum over other features or rows, a bias whose gradient is added in another order."""
    torch, dtype = torch_of(suffix, "AVX512")
    generator = torch.Generator().manual_seed(features)
    shapes = {"x": (384, features), "weight": (96, features), "bias": (96,)}
    given = {n: torch.randn(*s, generator=generator).to(dtype) for n, s in shapes.items()}
    found = shares_of_gradients("linear", f"torch-cpu{suffix}", torch.nn.functional.linear, given)
    least = {"-fp32": 1.0, "": 0.999, "-fp16": 0.995}[suffix]
    assert min(found.values()) >= least and found["bias"] == 1.0


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("partials", ["bf16", "fp32"])
@pytest.mark.parametrize("first", [False, True])
def test_the_judge_agrees(splits, partials, first):
    """Parts of another size, a part that is not rounded, a bias that is added on the other side."""
    rng = np.random.default_rng(splits)
    x, w, b = (numbers(rng, shape, "bf16") for shape in ((3, 7), (2, 7), (2,)))
    plan = replace(plan_of(LINEAR, "torch-cpu"), splits=splits, bias_first=first)
    plan = plan.at("YP", partials)
    found = run(LINEAR, plan, {"x": x, "weight": w, "bias": b}).outputs["out"].astype(float)
    size = -(-7 // splits)
    for r, g in np.ndindex(3, 2):
        terms = [Fraction(a) * Fraction(c) for a, c in zip(x[r], w[g], strict=True)]
        parts = []
        for lo in range(0, 7, size):
            start = [Fraction(b[g])] if first and not lo else []
            parts.append(total([*start, *terms[lo : lo + size]]))
        y = parts[0] if splits == 1 else total([to(part, partials) for part in parts])
        y = y if first else to(y + Fraction(b[g]), "fp32")
        assert Fraction(found[r, g]) == to(y, "bf16")


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("partials", ["bf16", "fp32"])
def test_the_judge_of_split_gradients_agrees(parts, partials):
    """Parts of another axis or of the other gradient, a part that is not rounded."""
    rng = np.random.default_rng(parts)
    x, w, dout = (numbers(rng, shape, "bf16") for shape in ((7, 2), (7, 2), (7, 7)))
    plan = plan_of(LINEAR, "fp32").changed(f"splits_dx={parts} splits_dw={parts}")
    plan = plan.at("DXP", partials).at("DWP", partials)
    found = run(LINEAR, plan, {"x": x, "weight": w}, gradients={"out": dout}).gradients
    size = -(-7 // parts)
    for r, f in np.ndindex(7, 2):
        for name, terms in (
            ("x", [Fraction(a) * Fraction(c) for a, c in zip(dout[r], w[:, f], strict=True)]),
            (
                "weight",
                [Fraction(a) * Fraction(c) for a, c in zip(dout[:, r], x[:, f], strict=True)],
            ),
        ):
            own = [to(total(terms[lo : lo + size]), partials) for lo in range(0, 7, size)]
            assert Fraction(float(found[name][r, f])) == total(own)


def test_splits_are_refused_below_one():
    """A split into nothing."""
    for name in ("splits", "splits_dx", "splits_dw", "split_unit"):
        with pytest.raises(ValueError, match=f"{name}=0: give 1 or more"):
            replace(plan_of(LINEAR, "fp32"), **{name: 0})


@pytest.mark.parametrize("block", ["mxfp8_e4m3", "fp8_1x128", "nvfp4"])
@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_operands_in_blocks_lie_along_the_features(block, engine):
    """Blocks of rows of the weight, which no sum passes over."""
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(4, 256)), rng.normal(size=(6, 256))
    plan = plan_of(LINEAR, "exact").at("X", block).at("W", block)
    found = run(LINEAR, plan, {"x": x, "weight": w}, engine=engine).outputs["out"]
    a, b = (emu.from_blocks(emu.to_blocks(v, block, axis=1)).astype(np.float64) for v in (x, w))
    np.testing.assert_allclose(found, a @ b.T, rtol=1e-5, atol=1e-5)  # from_blocks is in FP32


def test_tensor_cores_add_as_emu_does():
    """Factors in the wrong place, and FP16 on tensor cores of BF16."""
    rng = np.random.default_rng(4)
    for suffix, kind in (("", "bf16"), ("-fp16", "fp16")):
        x, w = (emu.round_to(rng.normal(size=(n, 64)).astype(np.float32), kind) for n in (4, 6))
        core = emu.Accumulator.tensor_core("hopper", kind)
        found = run(LINEAR, f"hopper{suffix}", {"x": x, "weight": w}).outputs["out"]
        wanted = emu.round_to(emu.dot(x, w.T, core), kind)
        assert np.array_equal(found.astype(np.float64), wanted)


def test_partials_have_a_format_of_their_own():
    """A split whose partial sums the plan cannot round."""
    plan = plan_of(LINEAR, "torch-cpu").rounded({Site.YP: BF16})
    assert plan["YP"] == BF16 and plan["YS"] != BF16
