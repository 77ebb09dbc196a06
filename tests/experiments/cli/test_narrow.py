"""Tables on a terminal of 80 columns, and the names of block formats where one number rounds."""

import sys

import numpy as np
import pytest
from rich.console import Console

from roundscope import emu
from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.experiments.framework.command import verdict_table
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.train import bench_step as step
from roundscope.tools.bench import attention, dot, sweep
from roundscope.tools.bench import round as bench
from roundscope.tools.bench.round import Row
from roundscope.tools.look import formats
from roundscope.tools.report import terminal


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
    shown = lines(terminal, width, formats.show)
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
    shown = lines(terminal, width, lambda: bench._print(rows))
    assert all(len(line) <= width and "…" not in line for line in shown)
    assert "ml_dtypes, there and back, one thread: overflow gives NaN, ours saturates" in " ".join(
        " ".join(shown).split()
    )
    text = " ".join(" ".join(shown).split())
    for number in ("12.3", "0.457", "0.037", "26.7x", "123456", str(1 << 26), "values"):
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


TABLES = {
    "attention": (
        lambda: attention._print(
            [
                attention.Row(
                    size="4 12 4096 128 causal",
                    what="torch SDPA, BF16, FlashAttention-2",
                    forward=0.12345,
                    both=1.23456,
                    tflops=123.456,
                    times=1188.0,
                    times_both=1163.0,
                    is_ours=False,
                )
            ]
        ),
        ("FlashAttention-2", "1,235", "1,188", "1,163", "TFLOP/s"),
    ),
    "dot": (
        lambda: dot._print(
            [dot.Row(operand="bf16", name=dot.RIVAL, of_matmul=0.00012, ours=4000.0, values=512)]
        ),
        ("bf16 factors", dot.RIVAL, "0.00012", "4e+03x", "matmul"),
    ),
    "step": (
        lambda: step._print(
            [
                step.Row(
                    size="4 layers of 256, 8 heads, 12 arms",
                    what="fa2-bf16@hopper, engine pallas",
                    compiling=123.4,
                    step=0.12345,
                    monitored=0.2,
                    against_jax=12.34,
                    monitored_against_jax=3.0,
                    same_bits=True,
                )
            ]
        ),
        ("123.4", "123.45", "200.00", "12.34", "3.00", "yes", "compiling", "watched"),
    ),
    "sweep": (
        lambda: sweep._show(
            [sweep.Row(what="one compilation per cell", cells=1000, start=100.0, seconds=2.0)]
        ),
        ("one compilation per cell", "1000", "100.0", "500", "workers"),
    ),
}


@pytest.mark.parametrize("what", TABLES)
def test_every_benchmark_is_whole_on_80_columns(lines, what):
    """Headings such as "forward…" and numbers such as "1.…"."""
    show, texts = TABLES[what]
    shown = lines(terminal, 80, show)
    assert all(len(line) <= 80 and "…" not in line for line in shown)
    assert not [text for text in texts if text not in " ".join(" ".join(shown).split())]


@pytest.mark.parametrize("width", [80, 100])
def test_verdicts_fill_the_terminal_and_no_more(capsys, width):
    verdict = Verdict(
        figure="Table 1",
        claim="the arithmetic diverges where FP32 does not, on the same rows",
        case="three times the rate, 10 seeds",
        sizes="T = 128",
        word=Word.NOT_TESTABLE,
        measured="10 of 10 diverge, at step 183 [135, 647]; FP32: 0 of 10 [0%, 31%]",
    )
    screen = Console(file=sys.stdout, width=width, _environ={})
    terminal.show([verdict_table([verdict])], screen)
    shown = capsys.readouterr().out
    assert all(len(line) <= width for line in shown.splitlines()) and "…" not in shown
    assert "not testable" in shown and "Table 1" in shown
