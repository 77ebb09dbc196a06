"""What verbs share: the option --json, and commands whose words typer would take for others."""

from typing import Annotated

import typer
from typer.core import TyperCommand

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class NumberCommand(TyperCommand):
    """A command whose argument may be a negative number, before or behind its options, with or without '--'.

    It has long options only, so a word with a single dash is the number: it goes last, behind '--'.
    """

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """As the parent, with the numbers out of the options' way."""
        words = [a for a in args if a != "--"]
        taking = {name for p in self.params if not getattr(p, "is_flag", True) for name in p.opts}
        numbers = [i for i, a in enumerate(words) if _single_dash(a) and not (i and words[i - 1] in taking)]
        rest = [a for i, a in enumerate(words) if i not in numbers]
        return super().parse_args(ctx, [*rest, "--", *(words[i] for i in numbers)] if numbers else rest)


class TrainCommand(TyperCommand):
    """A command whose --at takes two words, STEP and CHANGE: here one, STEP:CHANGE, since typer knows no repeated option of two."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """As the parent, with the two words joined."""
        words = list(args)
        for i in range(len(words) - 2, 0, -1):
            if words[i - 1] == "--at" and ":" not in words[i]:
                words[i : i + 2] = [f"{words[i]}:{words[i + 1]}"]
        return super().parse_args(ctx, words)


def _single_dash(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and len(word) > 1
