"""Known ways to quantize blocks, right and wrong, that may explain what a quantizer does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.blocks.api import round_blocks, to_blocks
from roundscope.emu.blocks.format import E8M0, BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import Rounding, rounding
from roundscope.emu.testing.casts.behaviors import MODES, FaultyCast, faults
from roundscope.emu.testing.casts.integer_grids import (
    full_range,
    is_grid,
    of_full_range,
    of_own_scale,
)
from roundscope.emu.testing.casts.nvfp4_arithmetic import in_float32
from roundscope.emu.testing.casts.quantized import expected_scales
from roundscope.emu.testing.casts.records import Agreement, Numbers
from roundscope.emu.testing.rounding import overflows

Quantizer = Callable[[np.ndarray], np.ndarray]
Scales = Callable[[Numbers, Numbers, BlockFormat], Numbers]
LEAST = (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4)  # floors of a maximum, against division by 0
SIZES = (16, 32, 64, 128)
LOG2 = {
    ScaleRule.FLOOR: "floor(log2(maximum))",
    ScaleRule.CEIL: "ceil(log2(maximum))",
    ScaleRule.RCEIL: "ceil(log2(maximum / largest element))",
}


def rules_of(f: BlockFormat) -> list[BlockFormat]:
    """Return the block format under every scale rule that fits it, its own rule first.

    BUMP is last, since RCEIL gives the same scales wherever BUMP fits.
    """
    found = [f]
    for rule in sorted(ScaleRule, key=lambda rule: rule is ScaleRule.BUMP):
        try:
            found.append(replace(f, rule=rule))
        except ValueError:  # the rule does not fit the formats
            continue
    fitting = [g for g in found if g.power_of_two == f.power_of_two]
    return list(dict.fromkeys(fitting))


def name_of(f: BlockFormat, asked: BlockFormat) -> str:
    """Return a block format in words: its rule, and what of its elements was not asked."""
    words = [f"rule {f.rule}"]
    if f.element.mode is not asked.element.mode:
        words.append(f"elements {f.element.mode}")
    if f.element.overflow is not asked.element.overflow:
        words.append(f"elements beyond the largest become {f.element.overflow}")
    return ", ".join(words)


class Known(NamedTuple):
    """A known way to quantize, by its name, and how it casts elements."""

    name: str
    quantizer: Quantizer
    cast: FaultyCast


def explanations(
    arrays: Sequence[tuple[np.ndarray, np.ndarray]], asked: BlockFormat, carried: float
) -> tuple[list[Agreement], FaultyCast]:
    """Return every known behavior with the number of blocks that it explains, the best first.

    The second result is how the best one casts elements.

    Args:
        arrays: pairs of an input (rows, K) and the numbers that the quantizer made of it.
        asked: the block format that was asked for.
        carried: the relative error that a product of scales and element may have.
    """
    found = []
    for known in _quantizers(asked):
        equal = [equal_blocks(known.quantizer(x), y, asked, carried) for x, y in arrays]
        agree, of = sum(int(e.sum()) for e in equal), sum(e.size for e in equal)
        found.append((Agreement(name=known.name, agree=agree, of=of), known.cast))
        if agree == of:
            break
    found.sort(key=lambda pair: -pair[0].agree)
    return [agreement for agreement, _ in found], found[0][1]


def with_narrow(
    known: list[Agreement],
    arrays: Sequence[tuple[np.ndarray, np.ndarray]],
    asked: BlockFormat,
    carried: float,
) -> tuple[list[Agreement], FaultyCast, str]:
    """Return known behaviors, first the asked one with quotients in float32, its cast and name."""
    cast = faults(asked.element.format, is_quotient=True)["divided in float32"]
    name = f"{name_of(asked, asked)}, elements divided in float32"
    quantizer = partial(_scaled, f=asked, scales=_own, cast=cast)
    equal = [equal_blocks(quantizer(x), y, asked, carried) for x, y in arrays]
    own = Agreement(
        name=name, agree=sum(int(e.sum()) for e in equal), of=sum(e.size for e in equal)
    )
    others = [a for a in known if a.name != name]
    return sorted([own, *others], key=lambda a: -a.agree), cast, name


def quantizer_named(name: str, asked: BlockFormat) -> Quantizer:
    """Return a known way to quantize by its name."""
    return next(known.quantizer for known in _quantizers(asked) if known.name == name)


def equal_blocks(a: np.ndarray, b: np.ndarray, f: BlockFormat, carried: float) -> np.ndarray:
    """Return for each block whether all its numbers are equal in two arrays (rows, K)."""
    close = (a == b) | (np.isnan(a) & np.isnan(b))
    if carried:
        close |= np.abs(a - b) <= carried * np.abs(a)
    lines: np.ndarray = to_lines(np, ~close, layout_of(a.shape, f, -1))
    equal: np.ndarray = np.logical_not(lines.any(axis=1))
    return equal


def _quantizers(asked: BlockFormat) -> Iterator[Known]:
    """Yield known quantizers with their names, the asked one and other rules first."""
    rules = rules_of(asked)
    for f in rules:
        yield Known(name_of(f, asked), partial(round_blocks, format=f), _cast_to(f.element))
    for f in rules:
        for r in _other_elements(asked.element):
            g = replace(f, element=r)
            yield Known(name_of(g, asked), partial(round_blocks, format=g), _cast_to(r))
    if is_grid(asked):
        for words, cast in of_own_scale(asked):
            quantizer = partial(_scaled, f=asked, scales=_own, cast=cast)
            yield Known(f"{name_of(asked, asked)}, {words}", quantizer, cast)
        for words, cast in of_full_range(asked):
            yield Known(words, partial(_scaled, f=asked, scales=full_range, cast=cast), cast)
    for f in rules:
        own = name_of(f, asked)
        for fault, cast in faults(f.element.format, is_quotient=True).items():
            quantizer = partial(_scaled, f=f, scales=_own, cast=cast)
            yield Known(f"{own}, elements {fault}", quantizer, cast)
        for fault, by_own_cast in _with_own_cast(f):
            yield Known(f"{own}, {fault}", by_own_cast, _cast_to(f.element))
        yield from _by_logarithm(f, asked)
        if f.tensor and f.rule is ScaleRule.NEAREST:
            divided = faults(f.element.format, is_quotient=True)["divided in float32"]
            for words, by_steps in in_float32(f):
                yield Known(f"{own}, {words}", by_steps, divided)
    for f in rules:
        for r in _other_elements(asked.element):
            yield from _by_logarithm(replace(f, element=r), asked)


def _cast_to(own: Rounding) -> FaultyCast:
    def cast(x: Numbers, r: Rounding) -> Numbers:
        y: Numbers = round_to(x, own)
        return y

    return cast


def _other_elements(r: Rounding) -> list[Rounding]:
    modes = [rounding(r, mode) for mode in MODES if mode is not r.mode]
    policies = [
        rounding(r, overflow=policy) for policy in overflows(r.format) if policy is not r.overflow
    ]
    return [*policies, *modes]


def _by_logarithm(f: BlockFormat, asked: BlockFormat) -> Iterator[Known]:
    """Yield the rule of a block format with its logarithm computed in float32, if it has one."""
    if f.power_of_two and f.rule in LOG2:
        by_log2 = partial(_scaled, f=f, scales=_by_log2, cast=round_to)
        name = f"{name_of(f, asked)}, {LOG2[f.rule]} computed in float32"
        yield Known(name, by_log2, _cast_to(f.element))


def _with_own_cast(f: BlockFormat) -> Iterator[tuple[str, Quantizer]]:
    for size in SIZES:
        if size != f.size and f.rows == 1:
            yield f"blocks of {size}", partial(round_blocks, format=replace(f, size=size))
    yield "one scale for each row", lambda x: round_blocks(x, replace(f, size=x.shape[1]))
    column = replace(f, rows=1)
    yield (
        "one scale for each column",
        lambda x: round_blocks(x, replace(column, size=x.shape[0]), axis=0),
    )
    yield (
        "one scale for the whole array",
        lambda x: round_blocks(x.reshape(1, -1), replace(column, size=x.size)).reshape(x.shape),
    )
    if f.tensor:
        name = "without the scale of the whole array"
        untold = replace(f, tensor=False, tensor_scale=None)
        yield name, partial(round_blocks, format=untold)
    yield "numbers times the reciprocal of the scale", partial(_by_reciprocal, f=f)
    for fault, used, stored in _stored_otherwise(f):
        yield fault, partial(_scaled, f=f, scales=used, cast=round_to, stored=stored)
    if not f.tensor:
        divided = faults(f.element.format, is_quotient=True)["divided in float32"]
        for least in LEAST:
            floored = partial(_scaled, f=f, scales=partial(_floored, least=least))
            yield f"maxima of at least {least:g}", partial(floored, cast=round_to)
            words = f"elements divided in float32, maxima of at least {least:g}"
            yield words, partial(floored, cast=divided)
    yield "blocks along the other axis", partial(round_blocks, format=f, axis=0)
    for name in ("bf16", "fp16"):
        yield f"inputs rounded to {name} first", partial(_twice, f=f, name=name)
    for fault, scales in _SCALES.items():
        yield fault, partial(_scaled, f=f, scales=scales, cast=round_to)
    for factor, words in ((2.0, "one too large"), (0.5, "one too small")):
        if f.power_of_two:
            yield f"stored exponents {words}", partial(_times, f=f, factor=factor)
    if f.scale == E8M0:
        yield "divided by 2^-126 where the scale is 2^-127", partial(_divided, f=f)


def _by_reciprocal(x: np.ndarray, f: BlockFormat) -> np.ndarray:
    """Return an array whose numbers are multiplied, in float32, by 1 / scale in float32."""
    at = layout_of(x.shape, f, -1)
    scales, tensor = expected_scales(x, f)
    product = (scales * tensor)[:, None]
    quotients = to_lines(np, x, at).astype(np.float32) * (1.0 / product).astype(np.float32)
    y = round_to(quotients.astype(np.float64), f.element) * product
    array: np.ndarray = from_lines(np, y.astype(np.float32), at)
    return array


def _stored_otherwise(f: BlockFormat) -> Iterator[tuple[str, Scales, Scales]]:
    """Yield quantizers that divide by one scale and store another: a name, and the two scales."""
    yield "divided by the scale before it was rounded", _unrounded, _own
    yield "scales stored before they were rounded", _own, _unrounded
    if f.power_of_two:
        yield "divided by the scale before it was clamped", _unclamped, _own
        yield "scales stored before they were clamped", _own, _unclamped
    for name in ("bf16", "fp16"):
        if f.scale.precision > format_named(name).precision:
            narrow = partial(_narrow, name=name)
            yield f"scales rounded to {name}", narrow, narrow
            yield f"scales stored in {name}", _own, narrow
    yield "scales that round to zero are zero", _zeroed, _zeroed


def _twice(x: np.ndarray, f: BlockFormat, name: str) -> np.ndarray:
    y: np.ndarray = round_blocks(round_to(x, name), f)
    return y


def _times(x: np.ndarray, f: BlockFormat, factor: float) -> np.ndarray:
    y: np.ndarray = round_blocks(x, f) * np.float32(factor)
    return y


def _scaled(
    x: np.ndarray,
    f: BlockFormat,
    scales: Scales,
    cast: Callable[[Numbers, Rounding], Numbers],
    stored: Scales | None = None,
) -> np.ndarray:
    """Return an array quantized with other scales, or with another cast of the elements.

    scales   the scales that numbers are divided by
    stored   the scales that elements are multiplied with; None for the same
    """
    at = layout_of(x.shape, f, -1)
    lines = to_lines(np, x, at).astype(np.float64)
    own, tensor = expected_scales(x, f)
    relative = lines / tensor
    divisor = scales(relative, own, f)
    factor = divisor if stored is None else stored(relative, own, f)
    quotients = lines / (divisor * tensor)[:, None]
    y = cast(quotients, f.element) * (factor * tensor)[:, None]
    y = np.where((factor == 0)[:, None], 0.0, y)
    array: np.ndarray = from_lines(np, y.astype(np.float32), at)
    return array


def _divided(x: np.ndarray, f: BlockFormat) -> np.ndarray:
    """Return an array whose numbers are divided by no scale that is subnormal in float32."""
    at = layout_of(x.shape, f, -1)
    scales = expected_scales(x, f)[0][:, None]
    quotients = to_lines(np, x, at).astype(np.float64) / np.maximum(scales, 2.0**-126)
    elements = round_to(quotients, f.element)
    array: np.ndarray = from_lines(np, (elements * scales).astype(np.float32), at)
    return array


def _own(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    return own


def _unrounded(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    """Return the largest magnitudes over the largest element, in float32, not rounded further."""
    top = np.abs(x).max(axis=1)
    exact = (top / f.element.format.max_finite).astype(np.float32).astype(np.float64)
    scales: Numbers = np.where(exact > 0, exact, own)
    return scales


def _zeroed(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    exact = np.abs(x).max(axis=1) / f.element.format.max_finite
    scales: Numbers = np.where(exact <= f.scale.min_positive / 2, 0.0, own)
    return scales


def _narrow(x: Numbers, own: Numbers, f: BlockFormat, name: str) -> Numbers:
    scales: Numbers = round_to(own, name)
    return scales


def _floored(x: Numbers, own: Numbers, f: BlockFormat, least: float) -> Numbers:
    top = np.maximum(np.abs(x).max(axis=1), least).astype(np.float32)[:, None]
    return np.asarray(to_blocks(top, replace(f, size=1, rows=1)).scales, np.float64)[:, 0]


def _without_abs(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    top = np.maximum(x.max(axis=1), 0.0).astype(np.float32)[:, None]
    if f.tensor:  # the largest magnitude of the array still decides the scale of the whole
        return own
    return np.asarray(to_blocks(top, replace(f, size=1, rows=1)).scales, np.float64)[:, 0]


def _unclamped(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    """Return scales of powers of two that go below the smallest of the scale format."""
    raised = expected_scales((x * 2.0**40).astype(np.float32), replace(f, size=x.shape[1]))[0]
    small = (own == f.scale.min_positive) & f.power_of_two
    scales: Numbers = np.where(small, raised * 2.0**-40, own)
    return scales


def _by_log2(x: Numbers, own: Numbers, f: BlockFormat) -> Numbers:
    """Return scales from a logarithm that is rounded to float32, as libraries compute them."""
    top, e = np.abs(x).max(axis=1).astype(np.float32), f.element.format
    divided = top / np.float32(e.max_finite) if f.rule is ScaleRule.RCEIL else top
    logarithm = np.log2(divided.astype(np.float64)).astype(np.float32)
    whole = np.floor(logarithm) if f.rule is ScaleRule.FLOOR else np.ceil(logarithm)
    exponent = whole - (0 if f.rule is ScaleRule.RCEIL else e.emax)
    scales = np.exp2(np.nan_to_num(exponent.astype(np.float64), neginf=-200.0))
    clipped: Numbers = np.clip(scales, f.scale.min_positive, f.scale.max_finite)
    return clipped


_SCALES: dict[str, Scales] = {
    "the scale of the block before": lambda x, own, f: np.roll(own, 1),
    "the scale of the block after": lambda x, own, f: np.roll(own, -1),
    "the maximum without its absolute value": _without_abs,
    "scales twice as large": lambda x, own, f: np.minimum(own * 2, f.scale.max_finite),
    "scales half as large": lambda x, own, f: np.maximum(own / 2, f.scale.min_positive),
    "scales not clamped at the smallest": _unclamped,
}
