"""The options of `roundscope check`: the kernel, the plan it claims, and the sizes of calls."""

from dataclasses import dataclass, field
from shlex import quote

from roundscope.attention.testing.comparison import FALSE_ALARM
from roundscope.attention.testing.gross import UNITS
from roundscope.attention.testing.margins import Margins
from roundscope.attention.testing.reference import Reference, reference
from roundscope.tools.errors import bad
from roundscope.tools.identify.adapters import plain_name
from roundscope.tools.identify.claims import CLAIMS
from roundscope.tools.identify.search import check_budget
from roundscope.tools.tensors.overrides import AS_THE_FILE, Overrides

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked.

    source       a kernel's name, module:function, or a file
    claims       the plan that the kernel is meant to have, by name
    changes      changes of that plan in words
    is_causal    whether calls are causal; None for both
    tokens, features, batch, heads   sizes of the calls
    draws, seed  how many draws of each family at the most, and the first seed
    dtype        the type of the inputs
    library, layout, block_q, block_k   as `assert_as_good_as` has them
    backward     whether the gradients are checked
    only         the tests that are run, of `TESTS`
    false_alarm  the probability that a kernel as good as its plan fails envelope or bias
    margins      how much worse than the plan the kernel may be
    budget       plans that the search for the plan of the kernel's bits tries
    is_strict    whether other bits of a second call, or of another batch, and rows without keys
                 that are not 0 are a failure
    layer        the layer of a file with several; None for all
    overrides    what is said of the calls of a file in place of what it says
    head         the key head whose arithmetic is looked for
    timeout      seconds after which a call of a kernel fails; None for any time
    """

    source: str
    claims: str
    changes: tuple[str, ...] = ()
    is_causal: bool | None = None
    tokens: int = 192
    features: int = 64
    batch: int = 5
    heads: int = 8
    draws: int = 3
    seed: int = 0
    dtype: str = "bfloat16"
    library: str | None = None
    layout: str | None = None
    block_q: int | None = None
    block_k: int | None = None
    backward: bool = True
    only: tuple[str, ...] = TESTS
    false_alarm: float = FALSE_ALARM
    margins: Margins = field(default_factory=Margins)
    budget: int = 3000
    is_strict: bool = False
    layer: str | None = None
    overrides: Overrides = AS_THE_FILE
    head: int = 0
    timeout: float | None = None

    def reference(self, features: int) -> Reference:
        """Return the claimed plan on its tiles.

        Raises:
            ValueError: there is no such plan, or a change of it is not known.
        """
        return reference(
            self.claims, features, self.dtype, self.block_q, self.block_k, self.changes
        )

    @property
    def plan(self) -> str:
        """The claimed plan in words."""
        return " ".join((self.claims, *(f"--set {word}" for word in self.changes)))


def checked(asked: Asked) -> Asked:
    """Return what was asked, once it is known to make sense.

    Raises:
        UsageError: one line that names the option, its value and the repair.
    """
    sizes = ("tokens", "features", "batch", "heads", "draws")
    for name in sizes:
        if getattr(asked, name) < 1:
            raise bad(f"--{name}", getattr(asked, name), "give 1 or more")
    for name in ("block_q", "block_k"):
        if getattr(asked, name) is not None and getattr(asked, name) < 1:
            option = f"--{name.replace('_', '-')}"
            raise bad(option, getattr(asked, name), "give 1 or more; leave it out for the plan's")
    for name in ("seed", "head"):
        if getattr(asked, name) < 0:
            raise bad(f"--{name}", getattr(asked, name), "give 0 or more")
    if not 0.0 < asked.false_alarm < 1.0:
        raise bad("--false-alarm", asked.false_alarm, "give a probability, such as 1e-4")
    check_budget(asked.budget)
    if asked.dtype not in UNITS:
        raise bad("--dtype", asked.dtype, f"must be one of {', '.join(UNITS)}")
    for name in asked.only:
        if name not in TESTS:
            raise bad("--only", name, f"must be among {', '.join(TESTS)}")
    asked.reference(asked.features)
    return asked


def command_of(asked: Asked, only: tuple[str, ...] | None = None) -> str:
    """Return the command that asks the same again, with all that differs from the defaults.

    only    the tests that it runs; None for those that were asked for
    """
    words = ["roundscope check", quote(asked.source), f"--claims {asked.plan}"]
    if asked.is_causal is not None:
        words.append("--causal" if asked.is_causal else "--full")
    if not asked.backward:
        words.append("--forward")
    if asked.is_strict:
        words.append("--strict")
    usual = Asked(source="", claims="")
    for name in OPTIONS:
        value = getattr(asked, name)
        if value != getattr(usual, name):
            words.append(f"--{name.replace('_', '-')} {quote(str(value))}")
    tests = asked.only if only is None else only
    if tests != TESTS:
        words.append(f"--only {','.join(tests)}")
    return " ".join(words)


def claims_of(source: str) -> str:
    """Return the plan that a kernel claims if nobody says which."""
    return CLAIMS.get(plain_name(source), DEFAULT)
