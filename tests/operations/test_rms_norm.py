"""RMSNorm: torch's and transformers' bits on a CPU, and a judge in exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from roundscope.emu import round_to
from roundscope.operations import OPERATIONS, run
from roundscope.operations.functions import Root
from roundscope.operations.run import plan_of
from tests.operations.by_torch import torch_of
from tests.operations.exactly import numbers, root, to, total

RMS_NORM = OPERATIONS["rms_norm"]
FAMILIES = ("normal", "some large", "scaled")


def norm_of(torch, name, weight):
    """The module or function whose plan has the name."""
    features = weight.shape[0]
    if name == "torch-cpu":
        return lambda x: torch.nn.functional.rms_norm(x, (features,), weight, 1e-6)
    kind = name.removeprefix("transformers-")
    modules = pytest.importorskip(f"transformers.models.{kind}.modeling_{kind}")
    made = getattr(modules, f"{kind.title()}RMSNorm")(features, eps=1e-6).to(weight.dtype)
    made.weight.data = weight.detach()
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("features", [64, 1000, 4096])
@pytest.mark.parametrize("suffix", ["", "-fp16", "-fp32"])
@pytest.mark.parametrize("name", ["transformers-llama", "torch-cpu", "transformers-gemma"])
def test_every_bit_of_torch(name, suffix, features, family):
    """Another order of the sum, a root in one step, a cast on the other side of the weight."""
    torch, dtype = torch_of(suffix)
    rng = np.random.default_rng([features, FAMILIES.index(family)])
    size = {
        "normal": 1.0,
        "some large": 1.0 + 40.0 * (rng.random(features) < 0.01),
        "scaled": 2.0 ** rng.integers(-6, 3, (40, 1)),
    }[family]
    x = torch.tensor(size * rng.normal(size=(40, features))).to(dtype)
    weight = torch.tensor(1.0 + 0.3 * rng.normal(size=features)).to(dtype)
    with torch.no_grad():
        wanted = norm_of(torch, name, weight)(x).float().numpy()
    given = {"x": x.float().numpy(), "weight": weight.float().numpy()}
    got = run("rms_norm", name + suffix, given, settings={"eps": 1e-6}).outputs["out"]
    assert np.array_equal(got.astype(np.float32), wanted)


@pytest.mark.parametrize("shape", [(12, 64), (300, 1000)])
@pytest.mark.parametrize("suffix", ["", "-fp16", "-fp32"])
@pytest.mark.parametrize("name", ["transformers-llama", "torch-cpu", "transformers-gemma"])
def test_every_bit_of_the_gradients(name, suffix, shape):
    """A sum over the rows in another order, a derivative of the root that rounds elsewhere."""
    torch, dtype = torch_of(suffix)
    generator = torch.Generator().manual_seed(shape[0])
    x, dout = (3.0 * torch.randn(2, *shape, generator=generator)).to(dtype)
    weight = (1.0 + 0.3 * torch.randn(shape[1], generator=generator)).to(dtype)
    x, weight = x.clone().requires_grad_(), torch.nn.Parameter(weight)
    layer = norm_of(torch, name, weight)
    layer(x).backward(dout)
    given = {n: v.detach().float().numpy() for n, v in (("x", x), ("weight", weight))}
    after = {"out": dout.float().numpy()}
    found = run("rms_norm", name + suffix, given, gradients=after).gradients
    assert np.array_equal(found["x"], x.grad.float().numpy())
    whole = shape[1] // 32 * 32 if suffix == "-fp32" else shape[1]
    dw = (weight if weight.grad is not None else layer.weight).grad.float().numpy()
    assert np.array_equal(found["weight"][:whole], dw[:whole])


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ["transformers-llama", "torch-cpu", "transformers-gemma"])
@pytest.mark.parametrize("rooted", [Root.DIVIDED, Root.CORRECT])
def test_the_judge_agrees(name, kind, rooted):
    """Each result of the equations in fractions, with a residual; the mean is added ascending."""
    rng = np.random.default_rng(5)
    x, residual = (numbers(rng, (4, 5), kind) for _ in range(2))
    weight = numbers(rng, (5,), kind)
    plan = plan_of(RMS_NORM, name + {"bf16": ""}.get(kind, f"-{kind}"))
    plan = plan.changed(f"SS.sum=ascending root={rooted}")
    given = {"x": x, "weight": weight, "residual": residual}
    found = run(RMS_NORM, plan, given, settings={"eps": 1e-5}).outputs
    for r in range(4):
        y = [to(Fraction(a) + Fraction(b), kind) for a, b in zip(x[r], residual[r], strict=True)]
        assert list(map(Fraction, found["summed"][r].astype(float))) == y
        mean = to(total([to(v * v, "fp32") for v in y]) / 5, "fp32")
        ve = to(mean + Fraction(float(np.float32(1e-5))), "fp32")
        if rooted is Root.DIVIDED:
            rs = to(1 / to(root(ve), "fp32"), "fp32")
        else:
            rs = to(root(1 / ve), "fp32")
        for v, w, got in zip(y, weight, found["out"][r], strict=True):
            xn, w1 = to(v * rs, "fp32"), Fraction(w)
            if name == "transformers-llama":
                wanted = to(to(xn, kind) * w1, kind)
            else:
                w1 = to(w1 + 1, "fp32") if name == "transformers-gemma" else w1
                wanted = to(to(xn * w1, "fp32"), kind)
            assert Fraction(float(got)) == wanted


def test_without_a_weight_and_without_a_residual():
    """An output that is not there, or a weight of ones that is rounded."""
    x = np.array([[3.0, 4.0]], np.float32)
    found = run(RMS_NORM, "fp32", {"x": x}, settings={"eps": 0.0}).outputs
    assert list(found) == ["out"]
    assert found["out"].tolist() == [[np.float32(0.84852815), np.float32(1.1313709)]]


def test_names_of_plans():
    """A suffix that changes the events in FP32, an unknown name that is taken for another."""
    half = plan_of(RMS_NORM, "torch-cpu-fp16")
    assert str(half["X"]) == "fp16" and str(half["XN"]) == "fp32" and half.name == "torch-cpu-fp16"
    assert str(plan_of(RMS_NORM, "all:bf16").accumulator("SS")) == "ascending bf16"
    with pytest.raises(ValueError, match="torch-cpu"):
        plan_of(RMS_NORM, "torch-cup")


@pytest.mark.parametrize("weight", [True, False])
def test_a_kernel_s_formula_of_the_gradient_is_the_chain(weight):
    """A factor of the number of features, a sign, a weight that is left out or not there."""
    rng = np.random.default_rng(8)
    x, after = rng.normal(size=(2, 5, 24))
    given = {"x": x} | ({"weight": rng.normal(size=24)} if weight else {})
    plan = plan_of(OPERATIONS["rms_norm"], "exact")
    found = [
        run("rms_norm", plan.changed(f"gradient={word}"), given, gradients={"out": after}).gradients
        for word in ("chain", "kernel")
    ]
    assert list(found[0]) == list(found[1])
    for name, gradient in found[0].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-12, atol=1e-13)


def test_aiter_cuts_what_it_stores_and_normalizes_what_it_does_not():
    """A sum that is normalized after its cast, a result to nearest."""
    rng = np.random.default_rng(3)
    x, residual, weight = (
        np.asarray(round_to(rng.standard_normal(shape).astype(np.float32), "bf16"))
        for shape in ((4, 256), (4, 256), (256,))
    )
    given = {"x": x, "residual": residual, "weight": weight}
    found = run(RMS_NORM, "aiter", given).outputs
    added = x + residual  # binary32

    def cut(a):
        bits = np.asarray(a, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)

    np.testing.assert_array_equal(np.float32(found["summed"]), cut(added))

    def out(of):
        wide = of.astype(np.float64)
        root = np.sqrt(np.square(wide).mean(1, keepdims=True) + 1e-6)
        return cut(wide / root * weight)

    same = [(np.float32(found["out"]) == out(of)).mean() for of in (added, cut(added))]
    assert same[0] > 0.999 > 0.9 > same[1]
