"""The reference kernel that faults are planted in is good, and every planted fault is one."""

from dataclasses import replace

import numpy as np
import pytest

from roundscope import examine
from tests.checks.mutants.faults_kernel import CHANGES, FAULTS, HARMLESS, kernel_of
from tests.checks.mutants.measured_kernel import (
    CASES,
    NAMES,
    called,
    error,
    exact,
    gain,
    is_batch_invariant,
    is_repeatable,
    level,
    measured,
)
from tests.checks.mutants.reference import attention
from tests.checks.public_bugs import causal_tiles, fp8_clipping, split_kv

ONLY_BITS = {"order-depends-on-batch"}  # no result is worse, only different


@pytest.fixture(scope="module")
def known():
    """A function from a case to its inputs, the reference kernel's results and the exact ones."""
    found = {}

    def of(case):
        if case not in found:
            x = CASES[case]()
            found[case] = x, called(attention, x), exact(x)
        return found[case]

    return of


@pytest.mark.parametrize("case", ["gaussian", "causal", "ragged-grouped", "masked"])
def test_the_reference_is_as_good_as_its_plan(known, case):
    """A reference that is worse than fa2-bf16, in which no small fault could be seen."""
    x, results, truth = known(case)
    plan = examine(x.q, x.k, x.v, x.do, plan="fa2-bf16", record=None, **x.options)
    for name, result, t in zip(NAMES, results, truth, strict=True):
        planned = getattr(plan, name)
        assert error(result, t) < 1.03 * error(planned, t), name
        assert abs(gain(result, t) - gain(planned, t)) < 1e-4, name


def test_the_reference_gives_the_same_bits_again_and_alone(known):
    """A reference whose own bits change, so that faults of this kind could not be told."""
    x, *_ = known("ragged-grouped")
    assert is_repeatable(attention, x)
    assert is_batch_invariant(attention, x)


def test_the_reference_has_what_a_row_without_keys_gives(known):
    """NaN, or a mean of V, in a row that sees no key."""
    x, results, _ = known("masked")
    assert not x.mask[:, :, 7].any()
    assert all((results[n][:, 7] == 0).all() for n in (0, 1))


def test_names_are_unique():
    """Two faults with one name, of which the dictionary would hold only one."""
    assert len(CHANGES) == len(FAULTS) + len(HARMLESS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_shows_where_it_says(known, fault):
    """A fault whose text is gone from the kernel, that changes nothing, or of another level."""
    x, clean, truth = known(fault.shows)
    kernel = kernel_of(fault)
    if fault.name in ONLY_BITS:
        assert not is_batch_invariant(kernel, x)
        return
    results = called(kernel, x)
    assert any(not np.array_equal(a, b) for a, b in zip(results, clean, strict=True))
    assert level(measured(results, clean, truth)) == fault.level


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.name)
@pytest.mark.parametrize("case", ["gaussian", "causal", "one-signed-v"])
def test_a_harmless_change_is_as_good(known, change, case):
    """A change that is called harmless and makes results worse or too long."""
    x, clean, truth = known(case)
    m = measured(called(kernel_of(change), x), clean, truth)
    assert m.ratio < 1.05
    assert abs(m.gain) < 5e-4


@pytest.mark.parametrize("repair", ["always_rescaled", "bounded_threshold", "smaller_offset"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_fp8_clips_until_it_is_repaired(is_causal, repair):
    """A rebuilt kernel that does not clip where the maximum lags, or a repair that still does."""
    x = CASES["gaussian"]()
    q, k, v = (fp8_clipping.e4m3(y) for y in (x.q, x.k, x.v))
    x = replace(x, q=q, k=k, v=v, scale=2 * x.scale, is_causal=is_causal)
    assert _error(fp8_clipping, "clipping", x) > 2 * _error(fp8_clipping, repair, x)


def test_partials_in_bf16_are_worse(monkeypatch):
    """A rebuilt kernel whose partial outputs are not rounded, or a repair that rounds them."""
    monkeypatch.setattr(split_kv, "CHUNK", 64)  # several chunks in these few keys
    x = CASES["gaussian"]()
    assert _error(split_kv, "bf16_partials", x) > 1.1 * _error(split_kv, "float32_partials", x)


@pytest.mark.parametrize("kernel", ["triton_tutorial", "jax_pallas"])
def test_causal_tiles_are_wrong_until_they_are_repaired(kernel):
    """A rebuilt kernel that masks the right keys, or a repair that does not."""
    x = CASES["causal"]()
    assert _error(causal_tiles, kernel, x) > 50 * _error(causal_tiles, f"{kernel}_repaired", x)
    full = replace(x, is_causal=False)
    assert _error(causal_tiles, kernel, full) < 0.003


def _error(module, kernel, x):
    """Return the relative error of the output of a public kernel."""
    out = module.KERNELS[kernel](x.q, x.k, x.v, scale=x.scale, is_causal=x.is_causal)
    return error(out, exact(x)[0])
