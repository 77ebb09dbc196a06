"""The KEY=VALUE words and the seeds of a study's command; and what of a training it decides."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from roundscope.attention.grammar.ranges import numbers
from roundscope.emu.errors import unknown
from roundscope.experiments.train.config import Config
from roundscope.tools.errors import UsageError, bad

NAMED = (  # fields of a GPT's Config that a condition names, or that decide no result
    "steps",
    "lr",
    "min_lr",
    "decay_steps",
    "changes",
    "checkpoint_every",
    "keep",
    "monitor_every",
)


def in_words(c: Config) -> str:
    """Return the sizes and the data of a GPT in words."""
    return (
        f"{c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch"
        f" {c.batch}, byte-level, {c.data}"
    )


def unnamed(c: Config) -> dict[str, Any]:
    """Return the fields of a GPT's Config that no condition names and that decide a result."""
    return {name: value for name, value in asdict(c).items() if name not in NAMED}


def pairs(words: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE words as a dict. Raises UsageError for a key that is not known."""
    settings: dict[str, str] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given or not value:
            raise bad("KEY=VALUE", word, "write a setting as steps=500")
        if name not in known:
            raise UsageError(unknown("setting", name, known))
        settings[name] = value
    return settings


def seeds_of(text: str | None) -> tuple[int, ...] | None:
    """Return the seeds of --seeds, None if it was left out. Raises UsageError."""
    if text is None:
        return None
    try:
        return tuple(dict.fromkeys(numbers(text)))
    except ValueError as error:
        raise UsageError(f"--seeds: {error}") from None
