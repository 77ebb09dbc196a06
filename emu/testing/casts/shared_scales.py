"""Quantizers with one scale for a tensor, a token or a channel, asked as quantizers to blocks are.

A block of `examine_cast` is then a row, a column, or the whole of an array that the function is
given, so that all questions about blocks are asked about these.
"""

import re
from enum import StrEnum
from typing import Any

import numpy as np

from roundscope.emu.tensors import is_tensor
from roundscope.emu.testing.casts.records import Function

SIZE = 128  # numbers of a row, of a column, or of an array


class Scope(StrEnum):
    """What has one scale.

    Attributes:
        TENSOR: the whole array; the function is given arrays of one row, one after the other.
        TOKEN: a row of an array (rows, features).
        CHANNEL: a column of it.
    """

    TENSOR = "tensor"
    TOKEN = "token"
    CHANNEL = "channel"


_WORDS = re.compile(rf"\[({'|'.join(Scope)})\]")


def parted(words: str) -> tuple[str, Scope | None]:
    """Return a block format in words that `block_format` reads, and what has one scale in it.

    Example:
        >>> parted("int8[token]:ties-to-away")
        ('int8[128]:ties-to-away', <Scope.TOKEN: 'token'>)
        >>> parted("int8[64]")
        ('int8[64]', None)
    """
    found = _WORDS.search(words)
    return (_WORDS.sub(f"[{SIZE}]", words), Scope(found[1])) if found else (words, None)


def of_scope(function: Function, scope: Scope) -> Function:
    """Return a quantizer of whole blocks of `SIZE` that calls one whose scales are shared so."""

    def blocks(x: np.ndarray) -> Any:
        rows = np.ascontiguousarray(x.reshape(-1, SIZE))
        if scope is Scope.TOKEN:
            return function(rows)
        if scope is Scope.CHANNEL:
            found = function(np.ascontiguousarray(rows.T))
            if isinstance(found, (tuple, list)):
                return (found[0].T, *found[1:])
            return found.T
        return _stacked([function(row) for row in rows[:, None]])

    return blocks


def _stacked(parts: list[Any]) -> Any:
    """Return what a function returned of each row as one result."""
    first = parts[0]
    if isinstance(first, (tuple, list)):
        return tuple(_stacked([part[i] for part in parts]) for i in range(len(first)))
    if is_tensor(first):
        import torch

        narrow = first.element_size() == 1  # some of whose types do not stack
        found = torch.stack([p.view(torch.uint8) if narrow else p for p in parts])
        return found.view(first.dtype) if narrow else found
    return np.stack([np.asarray(part) for part in parts])
