"""docs/howto/operations.md: its code runs as it stands there, and does what the page says."""

import re
from pathlib import Path

import numpy as np

from roundscope.operations import run

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "operations.md").read_text("utf-8")


def test_the_page_runs(capsys):
    """A name that was changed; two plans that the page calls different and that are not."""
    names = {}
    for cell in re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", PAGE, re.M | re.S):
        exec(cell, names)
        assert capsys.readouterr().out
    assert names["y"].dtype == "bfloat16" and names["exact"].dtype == np.float64
    assert (names["changed"][:2] > 0).all() and not names["changed"][2:].any()
    assert 0 < names["apart"].mean() < 1
    forward = run("rms_norm", "transformers-llama; XC=fp32 XW=fp32", names["given"])
    assert np.array_equal(forward.outputs["out"].astype("f4"), names["torch_cpu"])
