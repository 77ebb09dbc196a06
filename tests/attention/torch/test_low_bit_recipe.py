"""docs/findings/low-bit-training.md: its recipe runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch

from tests.attention.torch.biased import Gpt, loss_of, tokens

PAGE = Path(__file__).parents[3] / "docs" / "findings" / "low-bit-training.md"


@pytest.mark.thorough
def test_the_recipe_of_the_page_trains():
    """A word that no plan has any more, or a recipe that leaves the model as it was."""
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(code.strip().splitlines()) <= 10
    model = Gpt(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"model": model, "loss_of": loss_of, "batch": tokens(length=32)}
    before = loss_of(model, names["batch"]).item()
    exec(code, names | {"optimizer": optimizer})
    assert 0.0 < before - loss_of(model, names["batch"]).item() < 1.0
