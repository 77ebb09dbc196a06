"""A trace as text."""

import re

from roundscope.attention import Record, Site, examine
from tests.attention.small import INPUTS


def test_print_shows_a_line_for_each_event_and_its_bias():
    """A wall of arrays; an event that never occurred; an injected bias whose z is small."""
    words = {"plan": "fa2-bf16", "record": Record(steps=(Site.S,)), "inject": "OUT:ulps=0.25"}
    trace = examine(*INPUTS[:3], block_q=5, block_k=7, **words).trace
    head, *lines = str(trace).splitlines()
    assert head.split() == ["event", "count", "inexact", "mean", "error,", "ulps", "z"]
    occurred = [name for name, stats in trace.stats.items() if stats.n.sum()]
    assert [line.split()[0] for line in lines] == occurred and "S.step" in occurred
    (out,) = (line for line in lines if line.startswith("OUT "))
    found = re.fullmatch(r"OUT +(\d+) +([\d.]+) % +([-+.\de]+) +([-+.\d]+)", out)
    total = trace.stats["OUT"].total()
    assert found is not None and int(found[1]) == int(total.n)
    assert abs(float(found[3]) - float(total.mean_ulps)) < 1e-4 and float(found[4]) > 3
