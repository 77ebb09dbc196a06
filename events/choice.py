"""`choice`: what is said of one field of a plan, in the one place where the field is declared.

A field of `Plan` that is neither its name nor a rounding is a choice in which kernels differ. The
modules `forward`, `backward`, `served` and `tiles` declare all of them, in groups, and everything
else that has to know of a field follows from its declaration: the docstring of `Plan`, its checks
and the form in which it is stored, the words of the grammar and those that tests draw, what the
fused kernels refuse, what `roundscope identify` tries, and the table of docs/reference/grammar.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """How a search for the plan of given bits changes a field (`tools.identify`).

    Args:
        forward: Its turn among the fields that the search of a forward changes, from 1 on. Of two
            changes that give the same bits the first is the answer, so a new field has the last
            turn. With 0 (default) that search leaves it alone.
        backward: The same in the search of a backward.
        values: The values that are tried; () (default) means True and False, or all members of an
            enumeration.
        follows: Whether the field goes along where the backward of another plan is tried: no output
            depends on it, but gradients do. Default False.
    """

    forward: int = 0
    backward: int = 0
    values: tuple[Any, ...] = ()
    follows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A field of a plan; `choice` explains what is not said here.

    Args:
        name: The name of the field.
        kind: Its type: bool, int, float, an enumeration, or a record that may be None.
        default: Its default.
        group: The title of the group in which it is declared.
    """

    name: str = ""
    kind: Any = bool
    default: Any = None
    group: str = ""
    number: int
    doc: str
    source: str
    called: str
    refused: Callable[[Any], str] | None
    kernels: tuple[Any, ...] | None
    programs: tuple[Any, ...] | None
    moves: Moves
    words: tuple[str, ...]
    example: str

    @property
    def values(self) -> tuple[Any, ...]:
        """All values, of a field that has few, and () for numbers and records."""
        if self.kind is bool:
            return (True, False)
        is_named = isinstance(self.kind, type) and issubclass(self.kind, StrEnum)
        return tuple(self.kind) if is_named else ()


def choice(
    default: T,
    *,
    number: int,
    doc: str,
    source: str = "",
    called: str = "",
    refused: Callable[[Any], str] | None = None,
    kernels: tuple[Any, ...] | None = None,
    programs: tuple[Any, ...] | None = None,
    moves: Moves | None = None,
    words: tuple[str, ...] | None = (),
    example: str = "",
) -> T:
    """Return the declaration of a field of a plan.

    Args:
        default: The default of the field.
        number: Its place in the text of which the keys of stored results are made. The numbers
            never change; a new field takes the next free one.
        doc: What it means, in sentences, with its values and its default.
        source: The kernels or papers that have it, unless `doc` says so.
        called: What the values of an enumeration are called in the message about an unknown one.
        refused: A function from a plan in which the field may differ from its default to the reason
            why the rest of the plan does not allow its value, or "". `check_plan` raises it behind
            NAME=VALUE; a function whose message begins in another way raises ValueError itself.
        kernels: The values that the fused kernels run (engine="pallas"); None (default): all.
        programs: The values that compiled programs of the NumPy engine run; None (default): all.
        moves: How a search for a plan changes it; None (default): not at all.
        words: Some values in the words of the grammar, for a number or a record; an enumeration and
            a bool have all of theirs. None means that the grammar has no word of this name.
        example: Words that a plan such as fa2-bf16 accepts, of which the last sets the field and
            those before it what the field needs. Default: the first word that is not the default.
    """
    said = Choice(
        number=number,
        doc=doc,
        source=source,
        called=called,
        refused=refused,
        kernels=kernels,
        programs=programs,
        moves=moves or Moves(),
        words=cast(tuple[str, ...], words),
        example=example,
    )
    return field(default=default, metadata={"choice": said})


def choices_of(cls: type) -> dict[str, Choice]:
    """Return the choices of a class by name, in the order in which they are declared."""
    groups = {name: base for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
    found = {}
    for f in fields(cls):
        if "choice" not in f.metadata:
            continue
        title = (groups[f.name].__doc__ or "").partition("\n")[0].rstrip(".")
        own = replace(
            f.metadata["choice"], name=f.name, kind=f.type, default=f.default, group=title
        )
        found[f.name] = _worded(own)
    return found


def _worded(own: Choice) -> Choice:
    """Return a choice with its words and its example written out."""
    if own.words is None:
        return replace(own, words=(), example="")
    words = own.words or tuple(str(x).lower() if own.kind is bool else str(x) for x in own.values)
    default = f"{own.default:g}" if own.kind is float else str(own.default).lower()
    first = next(w for w in words if w.lower() != default)
    return replace(own, words=words, example=own.example or f"{own.name}={first}")
