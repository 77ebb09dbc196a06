"""Tensors of PyTorch in the functions of `emu`: the bits of NumPy, on the device of the tensor."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from roundscope import emu

NUMBERS = np.concatenate(
    [
        np.random.default_rng(0).standard_normal(500, np.float32) * 2.0 ** np.arange(-25, 25, 0.1),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-39, 448.0, 464.0, 65504.0, 65520.0, 3e38],
    ]
).astype(np.float32)[:512]
MATRIX = NUMBERS.reshape(16, 32)


def bits(x):
    """The bits of an array or a tensor in float32 or float64."""
    x = np.asarray(x)
    return x.view({4: np.uint32, 8: np.uint64}[x.itemsize])


def same(ours, theirs):
    """Return whether a tensor has the type, shape and bits of an array."""
    assert isinstance(ours, torch.Tensor) and ours.device.type == "cpu"
    array = ours.numpy()
    return array.dtype == theirs.dtype and np.array_equal(bits(array), bits(theirs))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("format", "more"),
    [
        ("bf16", {}),
        ("e4m3fn", {"mode": "toward-zero", "overflow": "nan"}),
        ("fp16", {"mode": "stochastic", "seed": 3, "first": 5}),
    ],
)
def test_rounding_has_the_bits_of_numpy(dtype, format, more):
    """A cast by PyTorch, a seed or an index that is lost, a subnormal number that is flushed."""
    x = NUMBERS.astype(dtype)
    assert same(emu.round_to(torch.from_numpy(x), format, **more), emu.round_to(x, format, **more))


@pytest.mark.parametrize(
    ("narrow", "name"),
    [
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("float8_e4m3fn", torch.float8_e4m3fn),
    ],
)
def test_narrow_tensors_become_float32(narrow, name):
    """16-bit integers in the place of numbers; a result in the type of the tensor."""
    with np.errstate(over="ignore", invalid="ignore"):
        array = NUMBERS.astype(getattr(ml_dtypes, narrow, narrow))
    raw = torch.from_numpy(array.view(f"u{array.itemsize}").copy()).view(name)
    assert same(emu.round_to(raw, "e5m2"), emu.round_to(array, "e5m2"))


def test_strides_and_shapes():
    """The numbers of a view in the order of memory."""
    x = torch.from_numpy(MATRIX.copy())
    assert same(emu.round_to(x.T[::3], "bf16"), emu.round_to(MATRIX.T[::3], "bf16"))
    assert same(emu.round_to(x[0].expand(4, 32), "bf16"), emu.round_to(MATRIX[[0] * 4], "bf16"))
    assert emu.round_to(torch.tensor(1.01), "bf16").shape == ()
    assert emu.round_to(torch.empty(0, 3), "bf16").shape == (0, 3)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "nvfp4", "fp8_128x128"])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_have_the_bits_of_numpy(format, axis):
    """Blocks along another axis."""
    x = np.nan_to_num(MATRIX, posinf=1.0, neginf=1.0)
    ours = emu.round_blocks(torch.from_numpy(x.copy()), format, axis, rule=None)
    assert same(ours, emu.round_blocks(x, format, axis, rule=None))
    assert same(
        emu.round_blocks(torch.from_numpy(x.copy()).bfloat16(), format, axis=axis),
        emu.round_blocks(x.astype(ml_dtypes.bfloat16), format, axis=axis),
    )


def test_the_other_functions_of_arrays():
    """One that returns an array for a tensor, or other numbers."""
    x, t = NUMBERS[:500], torch.from_numpy(NUMBERS[:500].copy())
    a, u = MATRIX[:8], torch.from_numpy(MATRIX[:8].copy())
    assert same(emu.error_of(t, "bf16"), emu.error_of(x, "bf16"))
    assert same(emu.ulp_of(t, "bf16"), emu.ulp_of(x, "bf16"))
    assert same(emu.exp(-t.abs(), "bf16"), emu.exp(-np.abs(x), "bf16"))
    assert same(emu.dot(u, u.T), emu.dot(a, a.T)) and same(emu.sum(u), emu.sum(a))
    assert same(emu.dot(u, a.T), emu.dot(a, a.T))  # a tensor and an array
    y, stats = emu.round_with_stats(t, "bf16")
    expected, other = emu.round_with_stats(x, "bf16")
    assert same(y, expected) and stats == other and emu.stats_of(t, y, "bf16").n == 500
    assert emu.block_stats(u, "mxfp4") == emu.block_stats(a, "mxfp4")


def test_the_tensor_stays_as_it_was():
    """Memory that is shared, and written."""
    t = torch.from_numpy(NUMBERS.copy())
    rounded = emu.round_to(t, "bf16")
    assert np.array_equal(bits(t), bits(NUMBERS)) and rounded.data_ptr() != t.data_ptr()
    rounded.add_(1.0)  # the result is writable


def test_a_gradient_is_refused_and_not_lost():
    """A training that rounds and whose gradient silently ends there."""
    t = torch.ones(4, requires_grad=True)
    for call in (lambda: emu.round_to(t, "bf16"), lambda: emu.round_blocks(t, "mxfp4")):
        with pytest.raises(ValueError, match=r"x: requires a gradient.*x\.detach\(\)"):
            call()
    with torch.no_grad():
        assert emu.round_to(t, "bf16").tolist() == [1.0] * 4
    assert not emu.round_to(t.detach(), "bf16").requires_grad


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: emu.round_to(torch.arange(3), "bf16"), TypeError, r"torch.int64.*x\.float\(\)"),
        (lambda: emu.round_to(torch.ones(3), "bf61"), ValueError, "bf61"),
        (lambda: emu.round_to(torch.ones(3), "bf16", out=np.ones(3)), ValueError, "out: of NumPy"),
        (lambda: emu.round_to(torch.ones(3, device="meta"), "bf16"), ValueError, "on meta"),
        (
            lambda: emu.stats_of(torch.ones(3), torch.ones(3, device="meta"), "bf16"),
            ValueError,
            "cpu and meta",
        ),
        (
            lambda: emu.to_blocks(torch.ones(3), "mxfp4"),
            TypeError,
            r"x: a PyTorch tensor.*numpy\(\)",
        ),
    ],
)
def test_refusals(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_torch_is_not_imported_for_arrays():
    """An import of PyTorch, seconds long, for who has none of its tensors."""
    code = (
        "import sys; from roundscope import emu; emu.round_to([1.0], 'bf16');"
        " emu.round_blocks([1.0], 'mxfp4'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
