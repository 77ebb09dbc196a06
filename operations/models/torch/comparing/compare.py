"""`compare`: two runs of models of PyTorch, or of two files, one against the other."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown
from roundscope.operations.models.comparing.comparison import Comparison
from roundscope.operations.models.comparing.tapes import compare_tapes
from roundscope.operations.models.tape import Tape
from roundscope.operations.models.tape_file import is_tape, load_tape
from roundscope.operations.models.torch.arrays import TensorArrays
from roundscope.operations.models.torch.comparing.candidates import is_plan
from roundscope.operations.models.torch.comparing.dumps import read_results
from roundscope.operations.models.torch.comparing.emulated import (
    Emulated,
    with_plans,
    words_by_plan,
)
from roundscope.operations.models.torch.comparing.partial import compare_results
from roundscope.operations.models.torch.comparing.reviving import revived, words_of
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side

Given: TypeAlias = "Side | tuple[Any, ...] | str | os.PathLike[str] | Tape"
Other: TypeAlias = "Given | Mapping[str, Any]"


@known_arguments
def compare(a: Given, b: Other, *, tell: Callable[[str], None] = lambda text: None) -> Comparison:
    """Say which operation makes two runs of a model differ, and how much of the gap it is worth.

    Both runs are recorded and run again. An operation makes a difference itself where the first
    run's arithmetic gives other results on the inputs that it had in the second run; else it has
    inherited it. The shares of the gap of the log-probabilities are exact: the first run is
    repeated with every set of the groups of operations put in (Shapley's value; of more than four
    groups the mean over two orders), and with all of them it is the second one.

    Args:
        a: A run: (model, inputs), (model, inputs, run, logprobs), a `Side`, the path of a file that
            `capture(model, path, what="operations")` wrote, or a tape.
        b: The other one, on the same tokens and weights. Of a program that cannot run here, such
            as an engine for serving, it is a dictionary of tensors by the names of modules, or a
            .pt or .safetensors file of one, or a folder of SGLang's tensor dump: see `partial`.
        tell: Told what is done, in words.

    Raises:
        TypeError: a or b is none of these.
        ValueError: A model or a function of a side raised an error, or returned something else; or
            the runs are of other tokens or weights, or have no operations in common
            (`Incomparable`).
        RuntimeError: A run, run again, gives other bits (`ReplayError`).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from roundscope.torch import compare
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).bfloat16()
        >>> x = {"input": torch.randn(4, 64).bfloat16()}
        >>> print(compare((model, x), (model, x)).sentence)
        The two runs are equal: 2 operations, 256 numbers of the output, every bit.
    """
    if _is_of_another_program(a):
        raise ValueError(
            f"a: {shown(a)}: results of another program cannot run again; give them as b, and as a"
            " (model, tokens) or a file of capture(model, path, what='operations')"
        )
    own = tape_of(a, "a", tell)
    if not _is_of_another_program(b):
        return compared(own, tape_of(b, "b", tell), tell)
    if own.tokens is None:
        raise ValueError("a: read no tokens; results of another program are those of tokens")
    return compare_results(own, read_results(b, own.tokens[0]), tell=tell)


def _is_of_another_program(given: Any) -> bool:
    """Return whether results of modules are given, and no run."""
    if isinstance(given, str | os.PathLike):
        return not is_tape(Path(given))
    return isinstance(given, Mapping)


def compared(a: Tape, b: Tape, tell: Callable[[str], None]) -> Comparison:
    """Compare two tapes."""
    if all(isinstance(tape.arrays, TensorArrays) for tape in (a, b)):
        a, b = with_plans(a, b, tell)
    found = compare_tapes(a, b, identify=_words, tell=tell)
    return replace(found, notes=(*found.notes, *_notes((a, b))))


def _notes(tapes: tuple[Tape, Tape]) -> list[str]:
    """Return what is to be known of operations that run by plans."""
    own = [r for tape in tapes for r in tape.runners.values() if isinstance(r, Emulated)]
    if not own:
        return []
    text = (
        f"{len(own)} operations run again by plans that give all of their numbers, since no"
        " function of PyTorch gives them here"
    )
    if common := sum(r.is_common for r in own):
        text += f"; {common} of them by a plan of both runs, which these numbers do not tell apart"
    return [text]


def _words(tape: Tape, number: int) -> str:
    """Return the arithmetic of an entry: functions of PyTorch that give it, else plans that do."""
    words = words_of(tape, number)
    if words and not is_plan(words):
        return words
    return words_by_plan(tape, number) or words  # with the plans that tie


def tape_of(given: Other, name: str, tell: Callable[[str], None]) -> Tape:
    """Return the tape of a run; name: what it is called in error messages."""
    if isinstance(given, str | os.PathLike):
        tell(f"reading {os.fspath(given)}")
        if not Path(given).exists():
            raise ValueError(f"{name}={shown(os.fspath(given))}: there is no such file")
        given = load_tape(Path(given))
    if isinstance(given, Tape):
        return given if given.runners else revived(given)
    if isinstance(given, tuple) and 2 <= len(given) <= 4:
        given = Side(*given)
    if not isinstance(given, Side):
        raise TypeError(
            f"{name}: {shown(given)}, must be (model, inputs), a Side, or the path of a file"
        )
    tell(f"running {type(given.model).__name__}")
    return record(given, name)
