"""`compare`: two runs of JAX functions, or of two files, one against the other."""

from collections.abc import Callable
from typing import Any, TypeAlias

from roundscope.emu.shown import shown
from roundscope.operations.models.comparison import Comparison, compare_tapes
from roundscope.operations.models.jax.recording import WHOLE, Side, record
from roundscope.operations.models.tape import Tape

Given: TypeAlias = "Side | tuple[Any, ...] | Tape"


def compare(a: Given, b: Given, *, tell: Callable[[str], None] = lambda text: None) -> Comparison:
    """Say which operation makes two runs of JAX functions differ, and its share of the gap.

    It answers as `roundscope.torch.compare` does. A function that is not jitted runs operation by
    operation, to the bit as JAX runs it. In a jitted one each operation is compiled as a program of
    its own; what the whole program computes otherwise is one more operation, `whole_program`, whose
    difference is put in. XLA mostly makes it by leaving out roundings between operations, which
    compiler_options={"xla_allow_excess_precision": False} of a `Side` forbids.

    Args:
        a: A run: (function, inputs), (function, parameters, inputs), where a function may be a
            module of flax, a `Side`, or a tape.
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
    return compare_tapes(*tapes(_side(a, "a"), _side(b, "b"), ("a", "b"), tell), tell=tell)


def tapes(
    a: Side | Tape,
    b: Side | Tape,
    names: tuple[str, str],
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Tape, Tape]:
    """Return the tapes of two runs, with `whole_program` in both or in none.

    Args:
        a: A run.
        b: The other one.
        names: What they are called in error messages.
        tell: Told what is done, in words.
    """

    def recorded(given: Side | Tape, name: str, with_whole: bool = False) -> Tape:
        if isinstance(given, Tape):
            return given
        tell(f"running {getattr(given.function, '__name__', type(given.function).__name__)}")
        return record(given, name, with_whole=with_whole)

    found = recorded(a, names[0]), recorded(b, names[1])
    whole = [any(e.operation == WHOLE for e in tape.entries) for tape in found]
    if whole == [True, False]:
        return found[0], recorded(b, names[1], True)
    if whole == [False, True]:
        return recorded(a, names[0], True), found[1]
    return found


def _side(given: Given, name: str) -> Side | Tape:
    if isinstance(given, tuple) and (side := side_of(given)):
        return side
    if not isinstance(given, Side | Tape):
        raise TypeError(
            f"{name}: {shown(given)}, must be (function, inputs), (function, parameters, inputs) or"
            " a Side"
        )
    return given


def side_of(given: tuple[Any, ...]) -> Side | None:
    """Return the run that a tuple is, None for another one."""
    if len(given) not in (2, 3) or not (callable(given[0]) or hasattr(given[0], "apply")):
        return None
    function, *parameters, inputs = given
    return Side(function, inputs, *parameters)
