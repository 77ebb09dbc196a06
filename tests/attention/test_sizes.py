"""The plan of a kernel by the sizes of a call: stored outputs, and splits worked out by hand."""

import numpy as np
import pytest

from roundscope.attention import examine
from roundscope.attention.plans.sizes import plan_of_call, splits_of
from roundscope.attention.plans.twins import TWIN_OF, TWINS
from tests.checks.kernel_outputs import inputs, of_one_head
from tests.checks.kernel_twins import stored

STORED = [  # file, family, and of the call on the GPU: batch entries, queries, keys, heads
    ("sdpa-flash", "layer4", (4, 512, 512, 12)),
    ("sdpa-flash-few", "layer4", (1, 512, 512, 1)),
    ("sdpa-math", "layer4", (4, 512, 512, 12)),
    ("sdpa-cudnn", "layer4", (4, 512, 512, 12)),
    ("sdpa-cudnn-one", "one-query", (1, 1, 640, 4)),
]


@pytest.mark.parametrize(("file", "family", "sizes"), STORED)
def test_it_gives_the_bits_of_the_stored_call(file, family, sizes):
    """A plan of other sizes: with all heads or one of them, and with one query."""
    x, (batch, queries, keys, heads) = of_one_head(inputs(family, False, file)), sizes
    width, kernel = x.q.shape[-1], file.removesuffix("-few").removesuffix("-one")
    call = plan_of_call(kernel, (batch, queries, heads, width), (batch, keys, heads, width))
    got = examine(x.q, x.k, x.v, scale=x.scale, record=None, **call).out
    assert np.array_equal(got, stored(file)[f"{family}/full/out"])


@pytest.mark.parametrize(
    ("rows", "blocks", "splits"),
    [
        (384, 2, 1),  # 48 heads of 512 tokens: 384 of 264 slots
        (212, 8, 1),  # more than 0.8 of the slots
        (8, 2, 2),  # one head of 512 tokens
        (96, 2, 2),  # 12 heads of 512 tokens: 96 of 264 and 192 of 264
        (4, 3, 3),  # 4 heads, one query of 640 keys
        (2, 8, 8),  # 2 heads, four queries of 2048 keys
        (132, 64, 2),  # two splits fill all slots
        (100, 64, 5),  # 2: 200 of 264; 5: 500 of 528, more than 0.85 of the best, 792 of 792 with 8
        (88, 64, 3),  # three splits fill all slots
        (48, 8, 4),  # 4: 192 of 264; 8: 384 of 528 is as full, and 4 is fewer
    ],
)
def test_splits_of_flash_attention_2(rows, blocks, splits):
    """A number of splits that is not the fewest of those that fill the GPU; 132 processors."""
    assert splits_of(rows, 264, blocks) == splits


def test_sizes_choose_plans_and_tiles():
    """A split that is not of whole tiles; heads that share keys and count as queries."""
    call = plan_of_call("sdpa-flash", (1, 1, 132, 128), (1, 8192, 132, 128))
    assert (call["plan"].split_tiles, call["block_k"]) == (32, 128)  # 2 of 64 tiles
    call = plan_of_call("sdpa-flash", (1, 1, 64, 128), (1, 1024, 2, 128))
    assert call["plan"].split_tiles == 1  # 2 rows of 32 heads each
    assert plan_of_call("sdpa-flash", (1, 64, 1, 64), (1, 256, 1, 64))["plan"].name == "fa2"
    alone = plan_of_call("sdpa-math", (1, 512, 1, 64), (1, 512, 1, 64))["plan"]
    assert str(alone.accumulator("DV")) == "chunked[64] fp32"
    two = plan_of_call("sdpa-math", (2, 512, 1, 64), (2, 512, 1, 64))["plan"]
    assert two == TWINS["sdpa-math"].plan
    for kernel, twin in TWIN_OF.items():
        call = plan_of_call(kernel, (4, 512, 48, 64), (4, 512, 48, 64))
        assert call["plan"] == TWINS[twin].plan


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("sdpa-flush", (1, 1, 1, 8), (1, 1, 1, 8)), ValueError, "kernel='sdpa-flush'.*sdpa-flash"),
        (("sdpa-flash", (1, 1, 8), (1, 1, 1, 8)), ValueError, r"q_shape=\(1, 1, 8\)"),
        (("sdpa-flash", (1, 1, 1, 8), (1, 0, 1, 8)), ValueError, r"k_shape=\(1, 0, 1, 8\)"),
    ],
)
def test_wrong_sizes(arguments, error, message):
    """A name that nearly is a kernel's; shapes without a batch."""
    with pytest.raises(error, match=message):
        plan_of_call(*arguments)
    with pytest.raises(TypeError, match=r"processors=1.5: give a whole number"):
        plan_of_call("sdpa-flash", (1, 1, 1, 8), (1, 1, 1, 8), processors=1.5)
    with pytest.raises(ValueError, match="processors=0: a GPU has one or more"):
        plan_of_call("sdpa-flash", (1, 1, 1, 8), (1, 1, 1, 8), processors=0)
