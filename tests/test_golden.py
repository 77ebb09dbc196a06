"""The stored digests against the NumPy engine: a change of any output bit shows here, and says
which golden moved.
"""

import hashlib
import json

import pytest

from roundscope.emu.numerics import NUMERICS
from tests.checks import gpu_check

GOLDEN = json.loads(gpu_check.GOLDEN.read_text())


# the two cells of a preset that differ in both, causal and tile; then the other two
HALVES = {
    preset: [
        [c for n, c in enumerate(gpu_check.CELLS) if c[0] == preset and (n + n // 2) % 2 == half]
        for half in (0, 1)
    ]
    for preset in gpu_check.PRESETS
}


def test_each_half_has_every_tile_and_is_causal_and_not():
    for half in (cells for halves in HALVES.values() for cells in halves):
        assert {tile for _, _, tile in half} == {tile for _, _, tile in gpu_check.CELLS}
        assert sorted(causal for _, causal, _ in half) == [False, True]


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("preset", gpu_check.PRESETS)
def test_attention_bits_are_the_stored_ones(preset, half):
    """Any changed bit of a result or changed count of a preset, on purpose or not."""
    for cell in HALVES[preset][half]:
        found = gpu_check.attention_digests("numpy", cell)
        assert gpu_check.differing(found, {name: GOLDEN[name] for name in found}) == []


def test_rounded_bits_are_the_stored_ones():
    """Any changed bit of the rule, in any format and mode."""
    rounder = gpu_check.numpy_rounder()
    for name in gpu_check.roundings():
        for run, digests in gpu_check.rounding_digests(rounder, name, short=True).items():
            assert digests == {part: GOLDEN[run][part] for part in digests}, run


def test_function_bits_are_the_stored_ones():
    """Any changed bit of exp or log."""
    assert (
        gpu_check.differing(gpu_check.function_digests("numpy"), {"functions": GOLDEN["functions"]})
        == []
    )


def test_a_changed_bit_changes_a_digest():
    """A check that compares nothing."""
    name = gpu_check.cell_name("qiu-yao", True, (64, 64), "real")
    hurt = GOLDEN | {name: GOLDEN[name] | {"out": "0"}}
    assert gpu_check.differing(GOLDEN, hurt) == [f"{name}: out"]
    assert (
        len(GOLDEN)
        == len(gpu_check.CELLS) * len(gpu_check.FAMILIES) + len(gpu_check.roundings()) + 1
    )


def test_the_version_of_the_numbers_goes_with_the_digests():
    """Golden digests that moved while stored sweeps still pass for comparable.

    Moved on purpose: raise NUMERICS, note the new digest; digests that were only added, or moved by
    what no sweep stores (the place of an error), need the note alone.
    """
    assert (NUMERICS, hashlib.sha256(gpu_check.GOLDEN.read_bytes()).hexdigest()[:16]) == (
        6,
        "f89b9bb841f6cee3",
    )
