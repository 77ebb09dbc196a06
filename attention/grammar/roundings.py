"""Roundings and accumulators in words.

A rounding is FORMAT[:MODE][:OVERFLOW], such as bf16:stochastic or e4m3fn:toward-zero:inf, or in
blocks FORMAT[:RULE][:MODE], such as mxfp8_e4m3:rceil or int8[128x64]:ties-to-away.

An accumulator is one of ascending, pairwise, halves, chunkedN, stridedN, octetsN, octet-pairsN,
warpsN, quad-warpsN, octet-warpsN, quad-stridesN, octet-stridesN, blockN, cascadeN, levels and
exact, followed by :FORMAT[:MODE], the rounding of its steps, which is fp32 by default. It can also
be native, or a tensor core, ARCHITECTURE[-N]:TYPE[:FORMAT], such as hopper:bf16, or with factors of
two types hopper:e4m3fn*e5m2. With -N, the tensor core takes N products at a time.
"""

import re
from dataclasses import replace
from typing import Any

from roundscope.attention.plans.plan import Plan
from roundscope.emu.blocks.format import BLOCK_NAMED, INTEGERS, BlockFormat, block_format, in_words
from roundscope.emu.blocks.names import is_of_blocks
from roundscope.emu.errors import unknown
from roundscope.emu.roundings.modes import BINARY32, Rounding, parted
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import ARCHITECTURES, products_of
from roundscope.events.event import Event, event_to
from roundscope.events.plan import BasePlan

ORDERS = ("ascending", "pairwise", "halves", "levels", "exact", "native")
Place = tuple[Any, bool]  # an event, or (True) the steps of the sum at that event


def event_of(text: str) -> Event:
    """Return the rounding of FORMAT[:MODE][:OVERFLOW], or the block format of NAME[:RULE][:MODE].

    The words after the first may stand in any order. Without an overflow word, the format decides
    what overflow becomes (`Format.saturates`).

    Raises:
        ValueError: A word is unknown (the message has the nearest one), two words are of one kind,
            or the format has no zero or no sign.
    """
    name, words = parted(text)
    mode, overflow = words.get("mode"), words.get("overflow")
    if name in INTEGERS:
        raise ValueError(
            f"'{text}': {name} needs a scale, so say what has one: {name}[64] for each 64 numbers,"
            f" {name}[128x64] for a tile; in check-cast also {name}[token] for each row,"
            f" {name}[channel] for each column, and {name}[tensor]"
        )
    if is_of_blocks(name):
        return block_format(name, mode, rule=words.get("rule"), overflow=overflow)
    event = event_to(name, mode, overflow=overflow)
    assert isinstance(event, Rounding)
    f = event.format
    if "rule" in words:
        raise ValueError(
            f"'{text}': {f.name} has no scale, so no rule; in blocks: {' '.join(BLOCK_NAMED)}"
        )
    if not (f.zero and f.signed):
        raise ValueError(f"{f.name} is a scale format without zero or sign; no event fits it")
    return event


def event_words(text: str) -> str:
    """Return the one spelling of a rounding: its words in the order FORMAT:RULE:MODE:OVERFLOW.

    Raises:
        ValueError: As `event_of`.
    """
    event = event_of(text)
    name, words = parted(text)
    name = event.format.name if isinstance(event, Rounding) else name
    return ":".join(
        [name, *(words[kind] for kind in ("rule", "mode", "overflow") if kind in words)]
    )


def without_mode(text: str) -> tuple[str, str | None]:
    """Return the words of a rounding without its mode, and the mode, or None where it has none."""
    name, words = parted(text)
    mode = words.pop("mode", None)
    return ":".join([name, *words.values()]), mode


def spelled(event: Event) -> str:
    """Return a rounding or block format in words that `event_of` reads, without its seed."""
    if isinstance(event, Rounding):
        return str(event)
    return in_words(event)


def accumulator_of(text: str) -> Accumulator:
    """Return the accumulator that a text describes.

    Raises:
        ValueError: A word is unknown (the message has the nearest one) or does not fit the others.
    """
    order, given, step = text.partition(":")
    arch, shorter, products = order.partition("-")
    if arch in ARCHITECTURES:
        types = ARCHITECTURES[arch].operands
        if not given:
            each = " ".join(f"{order}:{name}" for name in types)
            raise ValueError(f"accumulator '{order}': say the type of the factors too: {each}")
        core = Accumulator.tensor_core(arch, *step.split(":", 1))
        if re.fullmatch("m[0-9]+n[0-9]+k[0-9]+|[0-9]+x[0-9]+x[0-9]+", products):
            try:
                return replace(core, chunk=products_of(arch, step.split(":")[0], products))
            except ValueError as error:
                raise ValueError(f"accumulator '{text}': {error}") from None
        return _of_products(core, text, products) if shorter else core
    chunk = re.fullmatch(
        r"(chunked|strided|octets|octet-pairs|warps|(?:quad|octet)-(?:warps|strides)|block|cascade)([0-9]+)",
        "warps4" if order == "warps" else order,
    )
    if chunk is None and order not in ORDERS:
        known = (
            "ascending",
            "pairwise",
            "halves",
            "chunked16",
            "strided32",
            "octets8",
            "octet-pairs16",
            "warps4",
            "quad-warps128",
            "octet-warps256",
            "quad-strides1024",
            "octet-strides1024",
            "block32",
            "cascade8",
            "levels",
            "exact",
            "native",
            *ARCHITECTURES,
        )
        raise ValueError(
            unknown("accumulator", order, known, "with :FORMAT[:MODE], tensor cores with :TYPE")
        )
    if order == "native" and given:
        raise ValueError("native adds as the device does, in binary32; leave the format out")
    rounded = event_of(step) if given else BINARY32
    if isinstance(rounded, BlockFormat):
        raise ValueError(
            f"accumulator '{text}': a step of a sum is one number; {step} is of blocks"
        )
    if chunk:
        return Accumulator(order=Order(chunk[1]), chunk=int(chunk[2]), step=rounded)
    return Accumulator(order=Order(order), step=rounded)


def _of_products(core: Accumulator, text: str, products: str) -> Accumulator:
    """Return a tensor core under an instruction that takes fewer products at a time."""
    if not re.fullmatch("[0-9]+", products) or not 1 <= int(products) <= core.chunk:
        raise ValueError(
            f"accumulator '{text}': this tensor core takes 1 to {core.chunk} products at a time,"
            " as -8"
        )
    return replace(core, chunk=int(products))


def accumulator_words(accumulator: Accumulator) -> str:
    """Return an accumulator in words that `accumulator_of` reads.

    A tensor core that no architecture has is described by its `str` instead.
    """
    order, step, chunk = accumulator.order, accumulator.step, accumulator.chunk
    if accumulator.alignment is None:
        has_step = order is not Order.NATIVE and step != BINARY32
        return f"{order}{chunk if order.has_chunk else ''}{f':{step}' if has_step else ''}"
    operand = accumulator.alignment.factors
    known = [
        (a, f)
        for a, c in ARCHITECTURES.items()
        if set(operand.split("*")) <= {*c.operands}
        for f in ("", ":fp16")
    ]
    cores = (f"{arch}{shorter}:{operand}{f}" for shorter in ("", f"-{chunk}") for arch, f in known)
    return next((text for text in cores if _is(text, accumulator)), str(accumulator))


def _is(text: str, accumulator: Accumulator) -> bool:
    """Return whether a text describes the accumulator."""
    try:
        return accumulator_of(text) == accumulator
    except ValueError:
        return False


def places_of(text: str, of: type[BasePlan] = Plan) -> tuple[Place, ...]:
    """Return the events and steps of a text SITE+SITE.step, each once, in the order of the sites.

    of: the class of plans whose sites are meant

    Raises:
        ValueError: A site is unknown, or steps are named of a site that is not a sum of products.
    """
    named = {_place(of, word) for word in text.split("+")}
    every = ((site, step) for site in of.SITES for step in (False, True))
    return tuple(place for place in every if place in named)


def place_words(places: tuple[Place, ...]) -> str:
    """Return events and steps in words that `places_of` reads, as O+PV.step."""
    return "+".join(f"{site}.step" if step else site for site, step in places)


def _place(of: type[BasePlan], word: str) -> Place:
    """Return the event of SITE, or the steps of SITE.step."""
    name, dot, step = word.partition(".")
    if dot and step.lower() != "step":
        raise ValueError(f"'{word}': write SITE for an event, SITE.step for the steps of its sum")
    site = of.SITES.named(name)
    if dot and site not in of.PRODUCTS:
        raise ValueError(
            f"{site} is no sum of products and has no steps; those are {' '.join(of.PRODUCTS)}"
        )
    return site, bool(dot)
