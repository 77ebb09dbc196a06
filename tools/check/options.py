"""The options of `roundscope check`: the kernel, the plan it claims, and the sizes of calls."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from roundscope.tools.errors import UsageError, bad, why
from roundscope.tools.options import (
    CallOptions,
    Json,
    JUnit,
    Source,
    Timeout,
    to_folder,
)

if TYPE_CHECKING:
    from roundscope.attention.testing.reference import Reference
    from roundscope.tools.tensors.overrides import Overrides

DEFAULT = "fa2"  # what a kernel claims that is not listed
TESTS = ("envelope", "bias", "explanation", "invariance", "edges")
OPTIONS = (  # those that a command is written with as --name value
    "tokens",
    "features",
    "batch",
    "heads",
    "draws",
    "seed",
    "dtype",
    "library",
    "layout",
    "block_q",
    "block_k",
    "layer",
    "head",
    "false_alarm",
    "budget",
    "timeout",
)


@dataclass(frozen=True, kw_only=True)
class CheckedCalls(CallOptions):
    """What is said of the calls that are made, or of those in a file."""

    causal: Annotated[
        bool | None,
        typer.Option("--causal/--full", help="Causal calls alone, or full ones; by default both."),
    ] = None
    window: Annotated[
        str | None,
        typer.Option(
            metavar="KEYS|none",
            help="Number of nearest keys that a query sees; by default the file's, else all. A"
            " function is told of it by the keyword window.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What `roundscope check` can be told; see the texts of the fields."""

    source: Source
    claims: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="The plan that the kernel is meant to have: {presets}. By default the twin of a"
            " kernel that has one, else fa2.",
        ),
    ] = None
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="CHANGE", help="A change of that plan, such as P=bf16."),
    ] = field(default_factory=list)
    call: CheckedCalls = field(default_factory=CheckedCalls)
    tokens: Annotated[int, typer.Option(help="Queries and keys of a head.")] = 192
    features: Annotated[int, typer.Option(help="Features of a head.")] = 64
    heads: Annotated[int, typer.Option(help="Heads of a call.")] = 8
    batch: Annotated[int, typer.Option(help="Batch entries of a call.")] = 5
    draws: Annotated[
        int, typer.Option(help="How many draws of each kind of inputs, while a question is open.")
    ] = 3
    seed: Annotated[int, typer.Option(help="Seed of the first draw.")] = 0
    dtype: Annotated[
        str, typer.Option(help="Type of the inputs: bfloat16, float16 or float32.")
    ] = "bfloat16"
    forward: Annotated[
        bool, typer.Option("--forward", help="Check the output alone, without gradients.")
    ] = False
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TEST,...",
            help="Run some of the tests: envelope, bias, explanation, invariance, edges.",
        ),
    ] = None
    is_strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Other bits of a second call, or of another batch, are a failure, and so are rows"
            " that see no key and are not 0.",
        ),
    ] = False
    false_alarm: Annotated[
        float,
        typer.Option(help="Probability that a kernel as good as its plan fails envelope or bias."),
    ] = 1e-4
    budget: Annotated[
        int,
        typer.Option(metavar="PLANS", help="Plans that the search for the plan of its bits tries."),
    ] = 3000
    library: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The arrays of module:function: numpy, torch or jax; by default those of the"
            " library that its module has imported.",
        ),
    ] = None
    layout: Annotated[
        str | None,
        typer.Option(help="Axes of its arrays, or of a file: BNTH or BTNH."),
    ] = None
    layer: Annotated[str | None, typer.Option(help="Layer of a file; by default all.")] = None
    head: Annotated[
        int, typer.Option(help="Key head whose arithmetic is looked for, from 0 on.")
    ] = 0
    block_q: Annotated[
        int | None, typer.Option(help="Queries of the plan's tiles; by default the twin's.")
    ] = None
    block_k: Annotated[
        int | None, typer.Option(help="Keys of the plan's tiles; by default the twin's.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            metavar="DIR",
            help="Folder for report.html and check.json; by default check-<name>-<plan>, with -2"
            " added if that holds another request.",
        ),
    ] = None
    junit: JUnit = None
    timeout: Timeout = None
    json: Json = False

    @property
    def claimed(self) -> str:
        """The name of the plan that the kernel is meant to have."""
        return claims_of(self.source) if self.claims is None else self.claims

    @property
    def plan(self) -> str:
        """The claimed plan in words."""
        return " ".join((self.claimed, *(f"--set {word}" for word in self.changes)))

    @property
    def is_causal(self) -> bool | None:
        """Whether calls are causal; None for both."""
        return self.call.causal

    @property
    def backward(self) -> bool:
        """Whether the gradients are checked."""
        return not self.forward

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that are run, of `TESTS`."""
        return TESTS if self.only is None else tuple(n.strip() for n in self.only.split(","))

    @property
    def overrides(self) -> "Overrides":
        """What is said of the calls of a file in place of what it says."""
        from roundscope.tools.tensors.overrides import overrides_of

        return overrides_of(self.call)

    def reference(self) -> "Reference":
        """Return the claimed plan on its tiles. Raises ValueError for one that is not known."""
        from roundscope.attention.testing.reference import reference

        return reference(self.claimed, self.dtype, self.block_q, self.block_k, tuple(self.changes))


def checked(asked: CheckOptions) -> None:
    """Raise UsageError, which names option, value and repair, for what makes no sense."""
    from roundscope.attention.testing.errors import UNITS
    from roundscope.tools.identify.search import check_budget

    sizes, tiles = ("tokens", "features", "batch", "heads", "draws"), ("block_q", "block_k")
    limits = {
        **dict.fromkeys(sizes, (1, "give 1 or more")),
        **dict.fromkeys(tiles, (1, "give 1 or more; leave it out for the plan's")),
        **dict.fromkeys(("seed", "head"), (0, "give 0 or more")),
    }
    for name, (least, repair) in limits.items():
        if (value := getattr(asked, name)) is not None and value < least:
            raise bad(f"--{name.replace('_', '-')}", value, repair)
    if not 0.0 < asked.false_alarm < 1.0:
        raise bad("--false-alarm", asked.false_alarm, "give a probability, such as 1e-4")
    check_budget(asked.budget)
    if asked.dtype not in UNITS:
        raise bad("--dtype", asked.dtype, f"must be one of {', '.join(UNITS)}")
    for name in asked.tests:
        if name not in TESTS:
            from roundscope.emu.errors import unknown  # not for a help, which needs no NumPy

            raise UsageError(f"--only: {unknown('test', name, TESTS)}")
    try:
        asked.reference()
    except ValueError as error:
        if asked.claims is None or not why(error).startswith("unknown preset"):
            raise
        raise UsageError(f"--claims {quote(asked.claims)}: {why(error)}") from None


def command_of(asked: CheckOptions, only: tuple[str, ...] | None = None) -> str:
    """Return the command that asks the same again; only: the tests that it runs, None for all."""
    words = ["roundscope check", quote(asked.source), f"--claims {asked.plan}", *call_of(asked)]
    if not asked.backward:
        words.append("--forward")
    if asked.is_strict:
        words.append("--strict")
    usual = CheckOptions(source=asked.source)
    for name in OPTIONS:
        value = getattr(asked, name)
        if value != getattr(usual, name):
            words.append(f"--{name.replace('_', '-')} {quote(str(value))}")
    tests = asked.tests if only is None else only
    if tests != TESTS:
        words.append(f"--only {','.join(tests)}")
    return " ".join(words)


def call_of(asked: CheckOptions) -> list[str]:
    """Return what was said of the calls, as options of every command that takes a kernel."""
    mode = {None: [], True: ["--causal"], False: ["--full"]}[asked.is_causal]
    said = ((f.name, getattr(asked.call, f.name)) for f in fields(asked.call))
    given = [(name, value) for name, value in said if name != "causal" and value is not None]
    return mode + [f"--{name} {quote(value)}" for name, value in given]


def claims_of(source: str) -> str:
    """Return the plan that a kernel claims if nobody says which."""
    from roundscope.attention.plans.twins import TWIN_OF
    from roundscope.tools.identify.adapters import plain_name

    return TWIN_OF.get(plain_name(source), DEFAULT)
