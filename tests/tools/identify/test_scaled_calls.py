"""`identify` of calls in FP8 with scales: a cache that is dequantized, and operands in FP8."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.attention import Plan, attend
from roundscope.attention.plans.choices import Descales
from roundscope.attention.plans.twins import TWINS
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.reading import whole_of_file
from roundscope.tools.tensors.layers import read_layers
from tests.checks.engines import normal

FP8, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
T, S, H = 16, 160, 128
Q, K, V = (
    normal(20 + n, 1, tokens, heads, H).astype(FP8)
    for n, (tokens, heads) in enumerate(((T, 4), (S, 2), (S, 2)))
)
DESCALES = {
    "descale_q": np.array([1.3], np.float32),
    "descale_k": np.array([[0.61, 1.9]], np.float32),
    "descale_v": np.array([0.77, 3.1], np.float32),
}


def written(path, q, out, scales, **metadata):
    arrays = {"q": q, "k": K, "v": V, "out": out, **scales}
    about = {"layout": "BTNH", "is_causal": "false"} | metadata
    save_file({n: np.ascontiguousarray(x) for n, x in arrays.items()}, path, about)
    return path


def identified(roundscope, path, tmp_path, *options):
    words = ("identify", path, "--json", "--budget", "0", *options)
    code, out, err = roundscope(*words, "--out", tmp_path / "i")
    assert code == 0, err
    return json.loads(out)


def test_a_cache_that_is_dequantized(roundscope, tmp_path):
    """A call whose keys are read without their scales: vLLM's `k_scale` and `v_scale`."""
    q = np.asarray(Q, np.float32).astype(BF16)
    k, v = (
        (np.asarray(x, np.float32) * np.float32(scale)).astype(BF16)
        for x, scale in ((K, 0.37), (V, 1.71))
    )
    out = attend(q, k, v, plan="fa2", block_q=128, block_k=64).astype(BF16)
    path = written(tmp_path / "x.safetensors", q, out, {}, k_scale="0.37", v_scale="1.71")
    found = identified(roundscope, path, tmp_path)
    assert (found["verdict"], found["base"], found["words"]) == ("same", "fa2", [])
    assert any("k is its float8_e4m3fn numbers times k_scale" in x for x in found["notes"])


@pytest.mark.thorough
def test_operands_in_fp8(roundscope, tmp_path):
    """Operands that are multiplied by their scales before an FP8 tensor core reads them; scales of
    the first head for both; an output whose scale is not said.
    """
    scales = DESCALES | {
        "scale_s": np.array(256.0, np.float32),
        "scale_o": np.array(4.0, np.float32),
    }
    call = {"block_q": 64, "block_k": 256}
    out = attend(Q, K, V, plan="cudnn-fp8", scales=scales | {"scale_s": 256}, **call).astype(FP8)
    path = written(tmp_path / "x.safetensors", Q, out, scales)
    found = identified(roundscope, path, tmp_path, "--head", "1")
    assert (found["verdict"], found["base"], found["words"]) == ("same", "cudnn-fp8", [])
    assert found["numbers"]["out"]["differ"] == 0 and found["errors"]["ratio"] < 1.0
    plain = written(tmp_path / "y.safetensors", Q, out, DESCALES | {"scale_o": scales["scale_o"]})
    assert identified(roundscope, plain, tmp_path)["plan"] == "cudnn-fp8-s256"


def test_an_fp8_kernel_that_no_twin_is(roundscope, tmp_path):
    """Scales in the products that are looked for in the twins alone: FlashAttention-2 in FP8, whose
    tiles are not those of cuDNN.
    """
    plan = Plan.preset("fa2").changed("Q=e4m3fn K=e4m3fn V=e4m3fn P=e4m3fn")
    plan = plan.changed("S.sum=hopper:e4m3fn PV.sum=hopper:e4m3fn descales=products")
    out = attend(Q, K, V, plan=plan, scales=DESCALES, block_q=128, block_k=128).astype(BF16)
    path = written(tmp_path / "x.safetensors", Q, out, DESCALES)
    found = identified(roundscope, path, tmp_path)
    assert found["verdict"] == "same"
    assert found["base"] not in TWINS or found["words"]
    near = Plan.preset(found["base"]).changed(*found["words"])
    assert (near.descales, near.offset) == (Descales.PRODUCTS, 0)


def test_scales_of_a_layer(tmp_path):
    """Scales that the numbers contain and that a reader does not see; scales of channels."""
    out = np.zeros((1, T, 4, H), FP8)
    path = written(tmp_path / "x.safetensors", Q, out, DESCALES, scale_s="256", scale_o="4")
    (layer,) = read_layers(path)
    assert {n: x.tolist() for n, x in layer.scales.items() if n.startswith("scale")} == {
        "scale_s": 256.0,
        "scale_o": [[4.0, 4.0]],
    }
    assert np.array_equal(layer.scales["descale_q"], np.full((1, 2), 1.3, np.float32))
    assert np.array_equal(layer.scales["descale_v"], DESCALES["descale_v"][None])
    assert "scale_s 256 of P is offset=8 of a plan" in layer.notes
    assert whole_of_file(path)[2].scales is layer.scales or layer.scales is not None
    channels = DESCALES | {"descale_k": np.ones((1, 1, 1, H), np.float32)}
    (layer,) = read_layers(written(tmp_path / "y.safetensors", Q, out, channels))
    assert layer.scales is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"scale_s": "3"}, "scale scale_s 3.0: a power of two from 1"),
        ({"scale_o": "-1"}, "scale 'scale_o': must be one positive number"),
        ({"scale_p": "2"}, "metadata 'scale_p': a scale that is not read.*scale_s and scale_o"),
    ],
)
def test_wrong_scales(tmp_path, metadata, message):
    """A scale that is ignored."""
    out = np.zeros((1, T, 4, H), FP8)
    with pytest.raises(UsageError, match=message):
        read_layers(written(tmp_path / "x.safetensors", Q, out, {}, **metadata))


@pytest.mark.parametrize("verb", ["trace", "diagnose"])
def test_a_plan_that_has_the_scales_in_its_products(roundscope, tmp_path, verb):
    """Numbers times their scale that are rounded as if they were stored."""
    out = np.zeros((1, T, 4, H), FP8)
    path = written(tmp_path / "x.safetensors", Q, out, DESCALES)
    code, _, err = roundscope(verb, path, "--plan", "cudnn-fp8", "--out", tmp_path / "t")
    assert code == 2 and "--plan 'cudnn-fp8" in err
    assert "add --scales none for the stored numbers, or in trace --set descales=operands" in err


def test_check_compares_no_scaled_output(roundscope, tmp_path):
    """An output that is four times too large."""
    out = np.zeros((1, T, 4, H), FP8)
    path = written(tmp_path / "x.safetensors", Q, out, DESCALES, scale_o="4")
    code, _, err = roundscope("check", path, "--out", tmp_path / "c")
    assert code == 2 and "scale_o: outputs are compared without it" in err
