"""What a value of each axis may be: words, or what TOML has, to the one form in which it is a parameter."""

import functools
import math
import re
from collections.abc import Callable

from roundscope.attention.plan import Event, Exponential, KeyOrder, Plan, event_to, site_named
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.formats.format import Format, format_named, unknown
from roundscope.emu.rounding.modes import BINARY32, Rounding, mode_named, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import ARCHITECTURES
from roundscope.experiments.errors import UsageError
from roundscope.experiments.sweep.conditions.cell import DEFAULTS, PER_SITE, Value

WHOLE = ("T", "S", "N", "H", "block_q", "block_k", "tile", "seed")
ENGINES = ("numpy", "xla")
LARGEST = 2**31 - 1  # of a size
Place = tuple[Site, bool]  # an event, or (True) the steps of the sum at that event


def axis_named(name: str) -> str:
    """The axis of that name, a site in capitals. Raises UsageError with the nearest name."""
    kind, dot, site = name.partition(".")
    if name in DEFAULTS or name == "tile":
        return name
    if kind not in PER_SITE or not dot:
        raise UsageError(unknown("axis", name, (*DEFAULTS, "tile", *(f"{kind}.SITE" for kind in PER_SITE))))
    try:
        found = site_named(site)
    except ValueError as error:
        raise UsageError(f"axis '{name}': {error}") from None
    if kind == "accumulator" and found not in PRODUCTS:
        raise UsageError(f"axis '{name}': {found} is no sum of products; those are {' '.join(PRODUCTS)}")
    return f"{kind}.{found}"


@functools.lru_cache(maxsize=1 << 16, typed=True)
def typed(name: str, value: Value) -> Value:
    """A value of the axis `name` as the type of its default, in one spelling. Raises UsageError naming both and the repair."""
    kind = name.partition(".")[0]
    try:
        if value == "preset" and DEFAULTS.get(kind) == "preset":
            return "preset"
        return _READERS[kind](value)
    except ValueError as error:
        shown = f"'{value}'" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
        before = name if f"unknown {name} {shown}" in str(error) else f"{name} {shown}"  # which the message says itself
        raise UsageError(str(error) if before == name else f"{before}: {error}") from None


def rounding_to(name: str, mode: str | None = None) -> Rounding:
    """The rounding of an event to a format that fits one. Overflow is the format's own."""
    return rounding(_format(name), mode)


def event_of(name: str, mode: str | None = None) -> Event:
    """As `rounding_to`; or blocks, where the name is of a block format."""
    return event_to(name, mode) if name in BLOCK_NAMED else rounding_to(name, mode)


def accumulator_of(text: str) -> Accumulator:
    """ascending | pairwise | halves | chunkedN | exact | native, each but native with an optional :FORMAT[:MODE] of its steps; or a tensor
    core, ARCHITECTURE:TYPE[:FORMAT], with the type of its factors and the format of its sums.
    """
    order, given, step = text.partition(":")
    if order in ARCHITECTURES:
        types = ARCHITECTURES[order].operands
        if not given:
            raise ValueError(f"accumulator '{order}': say the type of the factors too: {' '.join(f'{order}:{name}' for name in types)}")
        return Accumulator.tensor_core(*text.split(":", 2))
    chunk = re.fullmatch(r"chunked([0-9]+)", order)
    if chunk is None and order not in ("ascending", "pairwise", "halves", "exact", "native"):
        raise ValueError(
            unknown(
                "accumulator",
                order,
                ("ascending", "pairwise", "halves", "chunked16", "exact", "native", *ARCHITECTURES),
                "with :FORMAT[:MODE], tensor cores with :TYPE",
            )
        )
    if order == "native" and given:
        raise ValueError("native adds as the device does, in binary32; leave the format out")
    name, _, mode = step.partition(":")
    r = rounding_to(name, mode or None) if given else BINARY32
    return Accumulator(order=Order.CHUNKED, chunk=int(chunk[1]), step=r) if chunk else Accumulator(order=Order(order), step=r)


def places_of(text: str) -> tuple[Place, ...]:
    """The events and steps of SITE+SITE.step, each once, in the order of the algorithm."""
    found = {_place(word) for word in text.split("+")}
    return tuple((site, step) for site in Site for step in (False, True) if (site, step) in found)


def _place(word: str) -> Place:
    name, dot, step = word.partition(".")
    if dot and step.lower() != "step":
        raise ValueError(f"'{word}': write SITE for an event, SITE.step for the steps of its sum")
    site = site_named(name)
    if dot and site not in PRODUCTS:
        raise ValueError(f"{site} is no sum of products and has no steps; those are {' '.join(PRODUCTS)}")
    return site, bool(dot)


def _format(name: str) -> Format:
    f = format_named(name)
    if not (f.zero and f.signed):
        raise ValueError(f"{f.name} is a scale format without zero or sign; no event fits it")
    return f


def _format_name(text: str) -> str:
    return text if text in BLOCK_NAMED else _format(text).name


def _whole(lowest: int, largest: int) -> Callable[[Value], Value]:
    def read(value: Value) -> Value:
        number = int(value) if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,20}", value) else value
        if type(number) is not int or not lowest <= number <= largest:
            raise ValueError(f"give a whole number from {lowest} to {largest}")
        return number

    return read


def _truth(value: Value) -> Value:
    if str(value).lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return str(value).lower() == "true"


def _text(read: Callable[[str], object]) -> Callable[[Value], Value]:
    """A value that is text: `read` checks it, and returns its one spelling."""

    def checked(value: Value) -> Value:
        if not isinstance(value, str):
            raise ValueError("give text, in TOML between quotation marks")
        return str(read(value.strip()))

    return checked


def _one_of(what: str, names: tuple[str, ...]) -> Callable[[Value], Value]:
    def read(name: str) -> str:
        if name not in names:
            raise ValueError(unknown(what, name, names))
        return name

    return _text(read)


def _stabiliser(value: Value) -> Value:
    """none, or beta as the shortest text, so that 2, 2.0 and "2" are one condition."""
    if value == "none":
        return value
    try:
        beta = math.nan if isinstance(value, bool) else float(value)
    except ValueError:
        beta = math.nan
    if not 1.0 < beta < math.inf:
        raise ValueError("give none, or the factor beta of the shift, a number above 1 (the paper uses 2 to 8)")
    return repr(beta).removesuffix(".0")


def _places(default: str) -> Callable[[Value], Value]:
    spell = lambda text: "+".join(f"{site}.step" if step else site for site, step in places_of(text))  # noqa: E731
    return _text(lambda text: text if text == default else spell(text))


def _known(build: Callable[[str], object]) -> Callable[[Value], Value]:
    """Text that `build` takes; kept as it is."""

    def read(text: str) -> str:
        build(text)
        return text

    return _text(read)


_READERS: dict[str, Callable[[Value], Value]] = {
    **{name: _whole(1, LARGEST) for name in WHOLE}, "seed": _whole(0, 2**32 - 1),
    "causal": _truth, "backward": _truth, "unfused": _truth,
    "preset": _known(Plan.preset), "format": _text(_format_name), "mode": _text(mode_named),
    "accumulator": _known(accumulator_of), "stabiliser": _stabiliser, "only": _places("all"), "but": _places("none"),
    "exp": _one_of("exponential", tuple(Exponential)), "key_order": _one_of("order of keys", tuple(KeyOrder)),
    "engine": _one_of("engine", ENGINES), "injection": _text(str), "input": _text(str),
}  # fmt: skip
