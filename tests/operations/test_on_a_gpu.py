"""Published plans give every bit of torch, transformers, Liger and Inductor on an H100."""

import numpy as np
import pytest

from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.operations.definitions.rms_norm import liger_llama, triton_sum
from tests.checks.gpu_operations import inputs
from tests.operations.gpu_cases import digest, golden, outputs_of, splits_of

CASES = golden()
QUICK = [
    name
    for name in CASES
    if not any(long in name for long in ("8192", "2048", "32000", "128256"))
    and (not name.startswith("linear") or "64x64x64" in name)
]


def check(name):
    note = CASES[name]
    found = outputs_of(name, note, inputs(note))
    if "sha256" in note:
        assert str(found["out"].dtype) == note["type"]
        assert digest(found["out"]) == note["sha256"]
    for key, wanted in note.get("gradients", {}).items():
        assert digest(found[key]) == wanted, key


@pytest.mark.parametrize("name", QUICK)
def test_every_bit(name):
    """Another order of a sum, a root or a mean that is rounded correctly, a cast elsewhere."""
    check(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(set(CASES) - set(QUICK)))
def test_every_bit_of_the_long_ones(name):
    """A sum over all features where cuBLAS splits them, or parts of other lengths."""
    check(name)


def test_the_eager_and_the_compiled_norm_differ():
    """The cast before the weight, which Inductor leaves out: a twin that could be either."""
    digests = [
        CASES[f"rms_norm/{n}/bf16/4096"]["sha256"] for n in ("llama", "gemma", "compiled-llama")
    ]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("features", "threads", "bits", "wanted"),
    [
        (4096, 256, 16, (Order.OCTET_WARPS, 256)),
        (4096, 256, 32, (Order.QUAD_WARPS, 256)),
        (1000, 128, 16, (Order.OCTET_WARPS, 128)),
        (512, 128, 16, (Order.QUAD_WARPS, 128)),
        (512, 128, 32, (Order.QUAD_WARPS, 128)),
        (64, 128, 16, (Order.WARPS, 1)),
    ],
)
def test_threads_of_triton(features, threads, bits, wanted):
    """A thread that reads more than 16 bytes, or a row that has fewer numbers than threads."""
    order, chunk = wanted
    assert triton_sum(features, threads, bits) == Accumulator(order=order, chunk=chunk)


def test_threads_of_liger():
    """The warps of calculate_settings, which grow with the row."""
    found = [liger_llama(n).accumulator("SS").chunk for n in (1024, 2048, 8191, 8192, 32768)]
    assert found == [128, 256, 512, 512, 1024]


def test_parts_of_a_split():
    """16 tiles in 48 blocks are three parts; a kernel without split-K has one."""
    assert splits_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", [4, 12, 1], 1, 1024) == 3
    assert splits_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", [4, 4, 1], 1, 1024) == 1


def test_a_case_s_inputs_are_those_recorded():
    """A seed that another version of NumPy takes otherwise."""
    note = CASES["rms_norm/torch/fp32/64"]
    assert inputs(note)["x"].dtype == np.float32
