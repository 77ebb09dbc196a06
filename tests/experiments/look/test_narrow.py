"""Tables on a terminal of 80 columns, and the names of block formats where one number rounds."""

import sys

import numpy as np
import pytest
from rich.console import Console

from roundscope import emu
from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.experiments.bench import command as bench
from roundscope.experiments.bench.round import Row
from roundscope.experiments.look import formats


@pytest.fixture
def lines(monkeypatch, capsys):
    """Returns a function that calls `show` on a terminal of `width` columns, as lines."""

    def of(module, width, show):
        monkeypatch.setattr(
            module, "console", lambda: Console(file=sys.stdout, width=width, _environ={})
        )
        show()
        return capsys.readouterr().out.splitlines()

    return of


@pytest.mark.parametrize("width", [80, 100])
def test_formats_are_read_whole_on_a_narrow_terminal(lines, width):
    """Numbers that are cut off, as in 1.175e-…."""
    shown = lines(formats, width, formats.show)
    assert all(len(line) <= width and "…" not in line for line in shown)
    (bf16,) = (line for line in shown if line.split()[:1] == ["bf16"])
    assert {"16", "3.39e+38", "0.007812", "0.001955"} < set(bf16.split())
    assert ("1.175e-38" in bf16) == (width == 100)


@pytest.mark.parametrize("width", [80, 100])
def test_benchmarks_are_read_whole_on_a_narrow_terminal(lines, width):
    rows = [
        Row(format="bf16", name="copy", gbps=12.345, of_copy=1.0, values=1 << 26),
        Row(
            format="e4m3fn",
            name="ml_dtypes, there and back, one thread",
            gbps=0.4567,
            of_copy=0.037,
            ours=26.7,
            values=1 << 26,
            differing=123456,
            note="overflow gives NaN, ours saturates; see the table of what is exact",
        ),
    ]
    shown = lines(bench, width, lambda: bench._print(rows))
    assert all("…" not in line for line in shown)
    text = " ".join(" ".join(shown).split())
    for number in ("12.3", "0.457", "0.037", "26.7x", "123456", str(1 << 26), "of values"):
        assert number in text


@pytest.mark.parametrize("name", BLOCK_NAMED)
def test_block_formats_are_known_where_one_number_rounds(roundscope, name):
    """A name of the README that is unknown, with fp64 as the nearest."""
    for words in (("formats", name), ("explain", "0.3", "--to", name)):
        code, out, err = roundscope(*words)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert f"'{name}': a block format" in err and "did you mean" not in err


def test_formats_lists_the_block_formats(roundscope):
    out = roundscope("formats")[1]
    assert all(any(line.split()[:1] == [n] for line in out.splitlines()) for n in BLOCK_NAMED)
    assert "a scale in e8m0fnu for 32 numbers" in out


@pytest.mark.parametrize("name", BLOCK_NAMED)
def test_python_names_the_function_that_rounds_in_blocks(name):
    """A block format that is unknown to `emu.round_to`, with fp64 as the nearest name."""
    with pytest.raises(ValueError, match=f"'{name}': a block format of .* emu.round_blocks"):
        emu.round_to(np.ones(2), name)
