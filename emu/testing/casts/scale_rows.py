"""The rows on the scales of blocks: which rule gives them, and where it does not."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.testing.casts.block_behaviors import rules_of
from roundscope.emu.testing.casts.quantized import Quantized, expected_scales, fits
from roundscope.emu.testing.casts.records import Agreement, Example, Numbers, Row, Status, row_of

LISTED = 20  # blocks that the best rule does not explain
Pair = tuple[np.ndarray, Quantized]  # an input (rows, K), and what the quantizer made of it


class _Scales(NamedTuple):
    """The scales of all blocks: whether they fit, what was got, the maxima, what was asked.

    `fit` says which blocks fit a scale at all.
    """

    good: np.ndarray
    got: Numbers
    top: Numbers
    expected: Numbers
    fit: np.ndarray


def scale_agreements(
    pairs: list[Pair], asked: BlockFormat
) -> tuple[tuple[Agreement, ...], tuple[Example, ...]]:
    """Return on how many blocks each rule agrees, and blocks on which the best one does not.

    The rules are sorted from the best to the worst; the asked one comes first among equals.
    """
    found = [(f.rule, _pooled(pairs, f, asked)) for f in rules_of(asked)]
    found.sort(key=lambda rule: -int(rule[1].good.sum()))
    best = found[0][1]
    wrong = np.flatnonzero(~best.good)
    wrong = wrong[np.unique(np.linspace(0, wrong.size - 1, min(wrong.size, LISTED)).astype(int))]
    return (
        tuple(
            Agreement(name=f"rule {rule}", agree=int(p.good.sum()), of=p.good.size)
            for rule, p in found
        ),
        tuple(_example(int(i), best) for i in wrong),
    )


def scale_rows(pairs: list[Pair], asked: BlockFormat) -> list[Row]:
    """Return the rows on scales within the range of the scale format, and at its small end."""
    found = _pooled(pairs, asked, asked)
    smallest = found.expected == asked.scale.min_positive
    return [
        _row(
            "scales",
            f"Do blocks get the scale that rule {asked.rule} gives?",
            ~smallest,
            found,
            asked,
        ),
        _row(
            "smallest blocks",
            f"Do the smallest blocks get the smallest scale, {asked.scale.min_positive:g}?",
            smallest,
            found,
            asked,
        ),
        *([_tensor_row(pairs, asked)] if asked.tensor else []),
    ]


def _row(name: str, question: str, kept: np.ndarray, found: _Scales, f: BlockFormat) -> Row:
    without = int((kept & ~found.fit).sum())
    kept = kept & found.fit
    good, got, top, expected, _ = (a[kept] for a in found)
    places = np.flatnonzero(kept)
    note = f"{without:,} blocks fit no scale that was tried, so theirs are not known" * bool(
        without
    )
    row = row_of(
        name,
        question,
        good,
        top,
        got,
        expected,
        f=f.scale,
        scale=expected,
        where=lambda i: f"scale of block {places[i]}",
        note=note,
    )
    is_unknown = without and row.status is Status.PASS
    return replace(row, status=Status.SKIPPED) if is_unknown else row


def _tensor_row(pairs: list[Pair], f: BlockFormat) -> Row:
    got = np.array([found.tensor for _, found in pairs])
    expected = np.array([expected_scales(x, f)[1] for x, _ in pairs])
    top = np.array([np.abs(x).max() for x, _ in pairs], np.float64)
    inferred = "" if all(p.given for _, p in pairs) else "not returned, so taken as asked"
    return row_of(
        "tensor scale",
        "Is the scale of the whole array its largest magnitude over that of the format?",
        got == expected,
        top,
        got,
        expected,
        f=f.element.format,
        scale=expected,
        note=inferred,
    )


def _pooled(pairs: list[Pair], f: BlockFormat, asked: BlockFormat) -> _Scales:
    """Return the scales of all blocks, compared with those of a block format."""
    expected = [expected_scales(x, f)[0] for x, _ in pairs]
    good = [fits(found, scales, asked) for (_, found), scales in zip(pairs, expected, strict=True)]
    return _Scales(
        good=np.concatenate(good),
        got=np.concatenate([found.scales for _, found in pairs]),
        top=np.concatenate([np.abs(found.x).max(axis=1) for _, found in pairs]),
        expected=np.concatenate(expected),
        fit=np.concatenate([found.fit for _, found in pairs]),
    )


def _example(i: int, p: _Scales) -> Example:
    given, got, expected = (float(a[i]) for a in (p.top, p.got, p.expected))
    return Example(given=given, got=got, expected=expected, where=f"scale of block {i}")
