"""`capture_operations`: the operations of a run of a JAX function as a file, and from a file."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention.models.capture_file import file_given
from roundscope.emu.errors import known_arguments
from roundscope.operations.models.jax.arrays import JaxArrays
from roundscope.operations.models.jax.recording import (
    WHOLE,
    put_in,
    recorded,
    run_again,
)
from roundscope.operations.models.jax.side import Side
from roundscope.operations.models.jax.written import read_steps
from roundscope.operations.models.revival import revive
from roundscope.operations.models.tape import Entry, Runner, Tape
from roundscope.operations.models.tape_file import LIMIT, save_tape


@known_arguments
@contextmanager
def capture_operations(
    path: str | os.PathLike[str],
    *,
    weights: bool = True,
    limit: int = LIMIT,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Callable[..., Any]]:
    """Capture the operations of one run of a JAX function, and write them to a file at the end.

    The file has the inputs and results of every operation; `roundscope compare` reads it. The
    function returns what it returns without the capture, but is traced and runs once more, an
    operation at a time.

    Args:
        path: The safetensors file. Its folder must exist; a file of that name is replaced.
        weights: Whether the parameters are written too, without which linear layers cannot run
            again from the file.
        limit: The largest number of bytes that is written.
        tell: Told the size of the file in words before it is written.

    Yields:
        `run(function, inputs)` or `run(function, parameters, inputs)`, with the further fields of
        `Side` by name, which returns what the function returns.

    Raises:
        TypeError: The function or the inputs are of another type.
        ValueError: A path that cannot be written, a file that would be too large, a second run, or
            a function that raised an error or cannot be traced.
        RuntimeError: Nothing ran.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> from roundscope.jax import capture, compare
        >>> p, x = {"w": jnp.ones((8, 8), "bfloat16")}, jnp.ones((4, 8), "bfloat16")
        >>> model = lambda p, x: x @ p["w"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with capture(f"{folder}/run.safetensors", what="operations") as run:
        ...         out = run(model, p, x)
        ...     compare(f"{folder}/run.safetensors", (model, p, x)).equal
        True
    """
    file = file_given(path)
    tapes: list[Tape] = []

    def run(function: Callable[..., Any], *given: Any, **fields: Any) -> Any:
        if tapes:
            raise ValueError(f"{path}: a file has one run; give a second one a capture of its own")
        if len(given) not in (1, 2):
            raise TypeError("run: must be called with (function, inputs) or with parameters too")
        *parameters, inputs = given
        tape, result = recorded(Side(function, inputs, *parameters, **fields), "capture")
        tapes.append(tape)
        return result

    yield run
    if not tapes:
        raise RuntimeError("nothing was captured, and no file was written: `run` was not called")
    save_tape(tapes[0], file, weights=weights, limit=limit, tell=tell)


def revived(tape: Tape) -> Tape:
    """Return the tape of a file with arrays of JAX, whose operations run again where they can."""
    return revive(tape, JaxArrays(), _array, _runners)


def _array(x: np.ndarray, dtype: str) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(x)) if dtype.startswith("key<") else jnp.asarray(x)


def _runners(tape: Tape, entry: Entry) -> Iterator[Runner]:
    if entry.operation == WHOLE:
        (before,) = entry.arguments[0]
        old, new = (tape.numpy(v) for v in (before.value, entry.outputs[0]))
        yield partial(put_in, old, new)
    elif isinstance(text := entry.settings.get("program"), str):
        steps, inputs, outputs, options = read_steps(text)
        yield partial(run_again, steps, options, inputs, outputs)
