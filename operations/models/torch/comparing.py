"""`compare`: two runs of models of PyTorch, or of two files, one against the other."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from roundscope.emu.shown import shown
from roundscope.operations.models.comparison import Comparison, compare_tapes
from roundscope.operations.models.tape import Tape
from roundscope.operations.models.tape_file import is_tape, load_tape
from roundscope.operations.models.torch.candidates import revived, words_of
from roundscope.operations.models.torch.dumps import read_results
from roundscope.operations.models.torch.partial import compare_results
from roundscope.operations.models.torch.recording import Side, record

Given: TypeAlias = "Side | tuple[Any, ...] | str | os.PathLike[str] | Tape"
Other: TypeAlias = "Given | Mapping[str, Any]"


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
    if isinstance(a, Mapping) or (isinstance(a, str | os.PathLike) and not is_tape(Path(a))):
        raise ValueError(
            f"a: {shown(a)}: results of another program cannot run again; give them as b, and as a"
            " (model, tokens) or a file of capture(model, path, what='operations')"
        )
    if isinstance(b, Mapping) or (isinstance(b, str | os.PathLike) and not is_tape(Path(b))):
        own = _tape(a, "a", tell)
        if own.tokens is None:
            raise ValueError("a: read no tokens; results of another program are those of tokens")
        return compare_results(own, read_results(b, own.tokens[0]), tell=tell)
    return compare_tapes(_tape(a, "a", tell), _tape(b, "b", tell), identify=words_of, tell=tell)


def _tape(given: Given, name: str, tell: Callable[[str], None]) -> Tape:
    if isinstance(given, Tape):
        return given
    if isinstance(given, str | os.PathLike):
        tell(f"reading {os.fspath(given)}")
        return revived(load_tape(Path(given)))
    if isinstance(given, tuple) and 2 <= len(given) <= 4:
        given = Side(*given)
    if not isinstance(given, Side):
        raise TypeError(
            f"{name}: {shown(given)}, must be (model, inputs), a Side, or the path of a file"
        )
    tell(f"running {type(given.model).__name__}")
    return record(given, name)
