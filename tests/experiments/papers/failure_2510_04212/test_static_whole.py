"""All parts of the static half together, on fewer numbers."""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.experiments.papers.failure_2510_04212 import static
from roundscope.experiments.papers.failure_2510_04212.static import bias as static_bias
from roundscope.experiments.papers.failure_2510_04212.static import clamp as static_clamp
from roundscope.experiments.papers.failure_2510_04212.static import ties as static_ties
from roundscope.tools.report.pictures import png


@pytest.mark.thorough
@pytest.mark.pictures
def test_claims_and_pictures(monkeypatch):
    """A part left out or measured twice, progress of another part, a caption under another picture,
    a verdict without a number.
    """
    some = [
        x if x.name != static_ties.SAMPLE else replace(x, q=x.q[:, :16])
        for x in static_ties.inputs()
    ]
    monkeypatch.setattr(static_bias, "DRAWS", 400)
    monkeypatch.setattr(static_ties, "inputs", lambda: some)
    monkeypatch.setattr(static_ties, "QUERIES", 8)
    monkeypatch.setattr(static_clamp, "T", 520)
    made = [static_clamp.Tied(name=name, rows=9, r_m=np.array([1.0, 5.0])) for name in ("a", "b")]
    monkeypatch.setattr(static_clamp, "tied", lambda: made)
    heard: list[int] = []
    found = static.static(heard.append)
    assert heard == list(range(static.PARTS))
    claims, pictures = found.verdicts, found.figures
    assert [v.figure for v in claims[:3]] == ["3.3, bits"] * 3 and all(
        v.claim and v.case and v.measured for v in claims
    )
    assert len({(v.claim, v.case) for v in claims}) == len(claims)
    assert [
        len(text) > 20 for question, _, caption in pictures for text in (question, caption)
    ] == [True] * 10
    labels = [figure.axes[0].get_xlabel() for _, figure, _ in pictures]
    for word, label in zip(
        ("error", "gap", "V of the small term", "shift", "rowsum(P)"), labels, strict=True
    ):
        assert word in label
    assert all(len(png(figure, dpi=40)) > 1000 for _, figure, _ in pictures)
