"""Roundings in words: FORMAT[:MODE][:OVERFLOW], or for blocks FORMAT[:RULE][:MODE][:OVERFLOW].

The words after the first may stand in any order. Functions of `emu`, plans, commands and files all
read them here.
"""

from collections.abc import Mapping

from roundscope.emu.blocks.format import ScaleRule, is_of_blocks
from roundscope.emu.errors import unknown
from roundscope.emu.roundings.modes import Overflow, RoundingMode

_WORDS = {"mode": tuple(RoundingMode), "overflow": tuple(Overflow), "rule": tuple(ScaleRule)}


def parted(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of a format and the further words by kind: mode, overflow or rule.

    Raises ValueError for an unknown word, and for two words of one kind.
    """
    name, *rest = text.strip().split(":")
    known = _WORDS if is_of_blocks(name) else {k: v for k, v in _WORDS.items() if k != "rule"}
    found: dict[str, str] = {}
    for word in rest:
        kind, plain = _kind(word, known)
        if kind in found:
            raise ValueError(f"'{text}': {found[kind]} and {plain} are both a {kind}; give one")
        found[kind] = plain
    return name, found


def _kind(word: str, known: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """Return the kind of a word and its one spelling; `known` has the words for the message."""
    plain = word.strip().lower().replace("_", "-")
    for kind, names in _WORDS.items():
        if plain in list(names):
            return kind, plain
    raise ValueError(
        unknown(", ".join(known), word, [name for names in known.values() for name in names])
    )
