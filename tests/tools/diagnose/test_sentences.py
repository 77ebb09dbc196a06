"""Sentences against the numbers that they speak of, on results that are made up or small."""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.tools.diagnose.report import words
from roundscope.tools.diagnose.tensors.findings import findings
from roundscope.tools.diagnose.tensors.measured import Subject
from roundscope.tools.diagnose.tensors.origin import origin
from roundscope.tools.diagnose.tensors.verdict import Kind
from roundscope.tools.report.model import Picture
from tests.tools.diagnose.inputs import layer, measured, narrowed, request

TOWARD_ZERO = narrowed(OD="e8m1:toward-zero")


def one_sided(t=64):
    """A layer whose dO always points against O, so that an O cut toward zero biases delta."""
    x = layer("one-signed-v", t=t)
    return replace(x, name="biased", do=-np.abs(x.do))


@pytest.fixture(scope="module")
def narrowed_down():
    """Of two layers the second is biased; a search found the first to be at fault."""
    calm = Subject(
        layer=replace(layer("gaussian", t=64), name="calm"), request=request(narrowed(P="bf16"))
    )
    biased = Subject(layer=one_sided(), request=request(TOWARD_ZERO))
    return findings([calm, biased], "test", lambda step, text: None, [(0, 0), (0, 1)])


def test_no_sentence_denies_what_another_head_shows(narrowed_down):
    """Catches "in none of 4 heads" about two of them, while a third is biased."""
    f = narrowed_down
    assert f.verdict.kind is Kind.NOTHING and {name for name, _ in f.biased} == {"biased"}
    for said in (words.headline(f), words.coherence(f)):
        assert (
            "none of" not in said
            and "biased, head" in said
            and f"{len(f.biased)} of 4 heads" in said
        )
    clearest = min(f.coherences[1].p)
    assert f"p = {clearest:.1g}" in words.headline(f) and "of the 2 heads" in words.headline(f)
    assert "the furthest?" not in words.origin(f)


def test_biased_heads_are_named_with_their_layer(narrowed_down):
    """Catches "layer 1 0" for head 0 of layer 1."""
    f = narrowed_down
    said = words.coherence(f)
    assert all(f"{layer}, head {head}" in said for layer, head in f.biased[:6])


def test_the_furthest_head_is_the_furthest_of_all(narrowed_down):
    """Catches the head looked at passing for the one that stands out most."""
    f = narrowed_down
    every = [(p, i, n) for i, c in enumerate(f.coherences) for n, p in enumerate(c.p)]
    assert f.furthest == min(every)[1:] and (f.chosen, f.furthest[0]) == (0, 1)


def test_features_are_those_that_delta_reads():
    """Catches dO (O - O exact) drawn from an output that delta does not read: OD rounds it once
    more, and that is the whole error.
    """
    m = measured(one_sided(), TOWARD_ZERO)
    o = origin(m, 0)
    assert o.features.sum(1) == pytest.approx(m.drift.error[0, :, 0], rel=1e-3, abs=1e-7)
    assert [c.to_nearest for c in o.classes if c.site == "OD"] == [False]


def test_a_narrow_screen_has_figures_of_its_own(narrowed_down):
    """Letters that a telephone cannot show, or a second panel that is out of sight."""
    from roundscope.tools.diagnose.report.steps import steps

    shown = [p for s in steps(narrowed_down) for p in s.parts if isinstance(p, Picture)]
    narrow = {p.title: p.narrow() for p in shown if p.narrow is not None}
    assert [*narrow] == ["Directions", "Running sums", "Features and rows"]
    for figure in narrow.values():
        figure.draw_without_rendering()
        places = [ax.get_position() for ax in figure.axes]
        assert figure.get_figwidth() < 5.0 and places[0].y0 > places[1].y1
