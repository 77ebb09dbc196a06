"""Random bits: the generator against its published answers and JAX's own, and the bits of an event
against what `emu.roundings.random` says of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from roundscope.emu.roundings.random import event_bits, random31, threefry2x32

KNOWN_ANSWERS = [  # Random123 1.14, kat_vectors, "threefry2x32 20": counter, key, result
    ("00000000 00000000", "00000000 00000000", "6b200159 99ba4efe"),
    ("ffffffff ffffffff", "ffffffff ffffffff", "1cb996fc bb002be7"),
    ("243f6a88 85a308d3", "13198a2e 03707344", "c4923a9c 483df7a0"),
]


def parsed(text: str) -> list[np.ndarray]:
    return [np.array([int(word, 16)], np.uint32) for word in text.split()]


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_threefry_known_answers(
    array: Callable[..., object], counter: str, key: str, result: str
) -> None:
    got = threefry2x32(*map(array, parsed(key)), *map(array, parsed(counter)))
    assert [f"{int(word[0]):08x}" for word in got] == result.split()


def test_threefry_is_jaxs_own() -> None:
    key = np.array([7, 0xDEAD_BEEF], np.uint32)
    counter = np.random.default_rng(6).integers(0, 1 << 32, 2000, dtype=np.uint32)
    ours = threefry2x32(key[:1], key[1:], counter[:1000], counter[1000:])
    assert np.array_equal(np.concatenate(ours), np.asarray(threefry_2x32(key, counter)))
    words31 = random31((key[:1], key[1:]), (counter[:1000], counter[1000:]))
    assert np.array_equal(words31, ours[0] >> 1) and words31.max() < 1 << 31


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize(("seed", "stream", "step"), [(0, 0, 0), (7, 75, 1), (2**32 - 1, 3, 1000)])
def test_the_bits_of_an_event_are_those_of_its_key_and_coordinates(
    xp: object, seed: int, stream: int, step: int
) -> None:
    """Additions, streams, rows or columns that share random bits."""
    rows, columns = np.arange(5, 9, dtype=np.uint32), np.arange(65534, 65539, dtype=np.uint32)
    key = np.array([seed ^ (step * 0x9E3779B9) % 2**32, stream], np.uint32)
    pairs = np.stack(np.meshgrid(rows, columns, indexing="ij")).reshape(-1)
    first, _ = np.split(np.asarray(threefry_2x32(key, pairs)), 2)
    with jax.enable_x64(True):  # as every engine has it
        found = event_bits(xp, seed, stream, rows[:, None], columns, step)
    assert np.array_equal(np.asarray(found), (first >> 1).reshape(4, 5))
