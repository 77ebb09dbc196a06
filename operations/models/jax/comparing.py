"""`compare`: two runs of JAX functions, or of two files, one against the other."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown
from roundscope.operations.models.comparing.comparison import Comparison
from roundscope.operations.models.comparing.tapes import compare_tapes
from roundscope.operations.models.jax.capturing import revived
from roundscope.operations.models.jax.recording import WHOLE, record, with_whole
from roundscope.operations.models.jax.side import Side
from roundscope.operations.models.tape import Tape
from roundscope.operations.models.tape_file import load_tape

Given: TypeAlias = "Side | tuple[Any, ...] | str | os.PathLike[str] | Tape"


@known_arguments
def compare(a: Given, b: Given, *, tell: Callable[[str], None] = lambda text: None) -> Comparison:
    """Say which operation makes two runs of JAX functions differ, and its share of the gap.

    It answers as `roundscope.torch.compare` does. A function that is not jitted runs operation by
    operation, to the bit as JAX runs it. In a jitted one each operation is compiled as a program of
    its own; what the whole program computes otherwise is one more operation, `whole_program`, whose
    difference is put in. XLA mostly makes it by leaving out roundings between operations, which
    compiler_options={"xla_allow_excess_precision": False} of a `Side` forbids.

    Args:
        a: A run: (function, inputs), (function, parameters, inputs), where a function may be a
            module of flax, a `Side`, the path of a file that `capture(path, what="operations")`
            wrote, or a tape.
        b: The other one, on the same tokens and weights.
        tell: Told what is done, in words.

    Raises:
        TypeError: a or b is none of these.
        ValueError: A function of a side raised an error, cannot be traced, or returned something
            else; or the runs are of other tokens or weights, or have no operations in common
            (`Incomparable`).
        RuntimeError: A run, run again, gives other bits (`ReplayError`).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from roundscope.jax import compare
        >>> def model(p, x):
        ...     return jax.nn.silu(x @ p["w"])
        >>> p, x = {"w": jnp.ones((8, 8), "bfloat16")}, jnp.ones((4, 8), "bfloat16")
        >>> print(compare((model, p, x), (model, p, x)).sentence)
        The two runs are equal: 2 operations, 32 numbers of the output, every bit.
    """
    return compared(tape_of(a, "a", tell), tape_of(b, "b", tell), tell)


def compared(a: Tape, b: Tape, tell: Callable[[str], None]) -> Comparison:
    """Compare two tapes; where one has `whole_program` the other one gets it too."""
    whole = [any(e.operation == WHOLE for e in tape.entries) for tape in (a, b)]
    if any(whole):
        a, b = (x if own else with_whole(x) for x, own in zip((a, b), whole, strict=True))
    return compare_tapes(a, b, tell=tell)


def tape_of(given: Given, name: str, tell: Callable[[str], None]) -> Tape:
    """Return the tape of a run; name: what it is called in error messages."""
    if isinstance(given, str | os.PathLike):
        tell(f"reading {os.fspath(given)}")
        given = load_tape(Path(given))
    if isinstance(given, Tape):
        return given if given.runners else revived(given)
    side = side_of(given) if isinstance(given, tuple) else given
    if not isinstance(side, Side):
        raise TypeError(
            f"{name}: {shown(given)}, must be (function, inputs), (function, parameters, inputs), a"
            " Side, or the path of a file"
        )
    tell(f"running {getattr(side.function, '__name__', type(side.function).__name__)}")
    return record(side, name)


def side_of(given: tuple[Any, ...]) -> Side | None:
    """Return the run that a tuple is, None for another one."""
    if len(given) not in (2, 3) or not (callable(given[0]) or hasattr(given[0], "apply")):
        return None
    function, *parameters, inputs = given
    return Side(function, inputs, *parameters)
