"""Linear layers in MXFP8, MXFP4 and NVFP4: which numbers share a scale in each of the three
products, how products are added, and what is refused.
"""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from roundscope import emu
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.events.recorder import RecordBase
from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from tests.checks.against_mma_sim import GOLDEN, KINDS, SPREADS, numbers, ours
from tests.operations.exactly import to, total

LINEAR = OPERATIONS["linear"]
R, F, G = 64, 64, 32


def arrays(seed, spread=3.0):
    """x (R, F), weight (G, F) and the gradient (R, G), of BF16 numbers of many sizes."""
    rng = np.random.default_rng(seed)
    return tuple(
        (rng.normal(size=shape) * 2.0 ** rng.normal(0, spread, shape))
        .astype(ml_dtypes.bfloat16)
        .astype(np.float64)
        for shape in ((R, F), (G, F), (R, G))
    )


def nearest(x, kind, codes):
    """Numbers of a type with so many positive codes, to nearest and even, clipped: ml_dtypes itself
    casts binary64 by way of binary32.
    """
    grid = np.arange(codes, dtype=np.uint8).view(kind).astype(np.float64)
    below = np.searchsorted(grid, np.minimum(abs(x), grid[-1]), side="right") - 1
    above = np.minimum(below + 1, codes - 1)
    middle = (grid[below] + grid[above]) / 2
    up = (abs(x) > middle) | ((abs(x) == middle) & (below % 2 == 1))
    return np.copysign(np.where(up, grid[above], grid[below]), x)


def quantized(name, x, axis):
    """Numbers after blocks along an axis, from the papers' formulas in NumPy and ml_dtypes; and the
    scale of the tensor, which they do not have.
    """
    x = np.moveaxis(x, axis, -1)
    size = 16 if name == "nvfp4" else 32
    blocks = x.reshape(x.shape[0], -1, size)
    top, scale = abs(blocks).max(axis=-1, keepdims=True), 1.0
    if name == "nvfp4":
        scale = float(np.float32(abs(x).max() / (448.0 * 6.0)))
        unit = np.maximum(nearest(top / (6.0 * scale), ml_dtypes.float8_e4m3fn, 127), 2.0**-9)
    elif name == "mxfp4":
        unit = 2.0 ** (np.floor(np.log2(top)) - 2)
    else:
        unit = 2.0 ** np.ceil(np.log2(top / 448.0))
    kind = (ml_dtypes.float8_e4m3fn, 127) if name == "mxfp8" else (ml_dtypes.float4_e2m1fn, 8)
    values = nearest(blocks / (unit * scale), *kind) * unit
    return np.moveaxis(values.reshape(x.shape), -1, axis), scale


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_each_product_has_blocks_along_its_own_axis(name):
    """A transposed block, a gradient that reads the forward's operand, a tensor's scale left out or
    taken twice.
    """
    x, w, g = arrays(1)
    sums = "Y.sum=exact DX.sum=exact DW.sum=exact OUT=fp64 DXO=fp64 DWO=fp64"
    wide = "Y=fp64 SA=fp64 YA=fp64 DX=fp64 SDX=fp64 DXA=fp64 DW=fp64 SDW=fp64 DWA=fp64"
    found = run("linear", f"{name}; {sums} {wide}", {"x": x, "weight": w}, gradients={"out": g})
    products = {
        "out": (found.outputs["out"], (x, 1), (w, 1), "rf,gf->rg"),
        "x": (found.gradients["x"], (g, 1), (w, 0), "rg,gf->rf"),
        "weight": (found.gradients["weight"], (g, 0), (x, 0), "rg,rf->gf"),
    }
    for own, one, two, words in products.values():
        (a, by_a), (b, by_b) = quantized(name, *one), quantized(name, *two)
        wanted = np.einsum(words, a, b) * (by_a * by_b)
        scale = np.einsum(words, abs(a), abs(b)) * (by_a * by_b)
        assert (abs(own - wanted) <= 2.0**-23 * scale).all()  # sums round to FP32 once


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_mxfp8_adds_as_emu_s_sums_of_blocks_do(engine):
    """A subnormal element whose exponent is that of the product, a block on the wrong side."""
    x, w, _ = arrays(2, 6.0)
    core = emu.Accumulator.tensor_core("blackwell", "e4m3fn")
    a = emu.to_blocks(x.astype(np.float32), "mxfp8_e4m3", axis=1, rule="rceil")
    b = emu.to_blocks(w.T.astype(np.float32), "mxfp8_e4m3", axis=0, rule="rceil")
    wanted = emu.dot(a, b, core)
    found = run("linear", "mxfp8; OUT=fp32", {"x": x, "weight": w}, engine=engine)
    assert np.array_equal(found.outputs["out"], wanted.astype(np.float32))
    plain = run("linear", "mxfp8; OUT=fp32 Y.sum=ascending", {"x": x, "weight": w}).outputs["out"]
    assert not np.array_equal(plain, wanted.astype(np.float32))


def test_nvfp4_multiplies_by_the_scales_of_the_tensors_at_the_end():
    """A scale inside the sum, two products of scales."""
    x, w, _ = arrays(3)
    x, w = x[:3], w[:2]
    plan = "nvfp4; OUT=fp32 Y.sum=chunked16"
    found = run("linear", plan, {"x": x, "weight": w}).outputs["out"]
    (a, by_x), (b, by_w) = quantized("nvfp4", x, 1), quantized("nvfp4", w, 1)
    alpha = to(Fraction(by_x) * Fraction(by_w), "fp32")
    for r, g in np.ndindex(3, 2):
        terms = [Fraction(p) * Fraction(q) for p, q in zip(a[r], b[g], strict=True)]
        blocks = [sum(terms[lo : lo + 16], Fraction(0)) for lo in range(0, F, 16)]
        assert all(to(block, "fp32") == block for block in blocks)
        assert Fraction(float(found[r, g])) == to(total(blocks) * alpha, "fp32")


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name", KINDS)
def test_sums_are_those_of_mma_sim(name, spread):
    """A cut of other bits, a scale that is no part of the exponent, a chunk of another size."""
    x, w = numbers(6, 1024, 5, spread)
    wanted = np.load(GOLDEN)[f"{name} {spread:g}"]
    assert np.array_equal(ours(name, x, w), wanted)


def test_weights_in_tiles_are_the_same_both_ways():
    """A tile that is not square, a weight quantized anew along the outputs."""
    plan = plan_of(LINEAR, "nvfp4-training")
    assert plan.block("W") == plan.block("WX") and plan.block("W").rows == 16
    assert {s for s in plan.SITES if plan[s].mode is RoundingMode.STOCHASTIC} == {"GX", "GW"}


@pytest.mark.parametrize("rows", [64, 37])
def test_a_hadamard_matrix_leaves_the_exact_gradient(rows):
    """A matrix that is not orthogonal, a row of one operand in another group."""
    x, w, g = (v[:rows] if len(v) == R else v for v in arrays(4, 1.0))
    own = {"x": x, "weight": w}
    plan, record = "exact; requantized=true hadamard=16", RecordBase(events=("HX",))
    found = run("linear", plan, own, gradients={"out": g}, record=record)
    np.testing.assert_allclose(found.gradients["weight"], g.T @ x, rtol=1e-11, atol=1e-9)
    signs = [[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
    padded = np.concatenate([x, np.zeros((-rows % 16, F))]).reshape(-1, 16, F)
    wanted = np.einsum("ij,njf->nif", np.array(signs) / 4.0, padded).reshape(-1, F)
    np.testing.assert_allclose(found.events["HX"][1], wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("plan", "more", "told"),
    [
        ("nvfp4", {"x_scale": np.float32(2)}, "x_scale: nvfp4 has a scale of its own"),
        ("hopper-e4m3", {"x_scale": np.ones((R, 2), "f4")}, "x_scale: scales of blocks need prom"),
        (
            "hopper-e4m3; promoted=16",
            {"x_scale": np.ones((R, 2), "f4"), "weight_scale": np.ones((G, 2), "f4")},
            "x_scale: scales of blocks",
        ),
        ("hopper; X=mxfp8_e4m3", {}, "a tensor core of bf16 cannot read X in mxfp8_e4m3"),
        ("mxfp8; requantized=false", {}, "accumulator of DX: a tensor core of e4m3fn cannot read"),
        ("hopper-e4m3; hadamard=8", {}, "hadamard=8: give 0, or a power of 4"),
    ],
)
def test_what_is_refused(plan, more, told):
    """A scale that nothing reads, a tensor core that gets numbers which it cannot hold."""
    x, w, _ = arrays(5)
    with pytest.raises(ValueError, match=told):
        run("linear", plan, {"x": x, "weight": w, **more})


def test_scales_have_no_gradients():
    """A gradient that forgets a factor."""
    x, w, g = arrays(6)
    given = {"x": x, "weight": w, "x_scale": np.float32(0.5)}
    with pytest.raises(ValueError, match="gradients: of a call with x_scale"):
        run("linear", "fp32", given, gradients={"out": g})
