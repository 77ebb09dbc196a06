"""The table of a rotary embedding: cos and sin of position times frequency (arXiv 2104.09864).

Implementations differ in the type of the positions, of the frequencies and of their product. An
angle of 1000 is off by up to 2 in BF16, which is a third of a turn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.functions import cos64, exp64, sin64
from roundscope.emu.roundings.modes import BF16
from roundscope.events.choice import choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.functions import constant
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published


class Site(SiteBase):
    """The events of a table; F is the number of features of a head, of which each two have a
    frequency.
    """

    POS = "POS", "position", Axes.R, "inputs", 0
    EX = "EX", "2 i / F", Axes.F, "inputs", 1
    PW = "PW", "theta^EX", Axes.F, "forward", 2
    FQ = "FQ", "1 / PW, or the frequencies that are given", Axes.F, "forward", 3
    FB = "FB", "FQ as it is kept", Axes.F, "forward", 4
    ANG = "ANG", "POS FB", Axes.RF, "forward", 5
    CA = "CA", "cos(ANG)", Axes.RF, "forward", 6
    SA = "SA", "sin(ANG)", Axes.RF, "forward", 7
    CS = "CS", "CA scaling", Axes.RF, "forward", 8
    SS = "SS", "SA scaling", Axes.RF, "forward", 9
    COS = "COS", "CS as it is stored", Axes.RF, "forward", 10
    SIN = "SIN", "SS as it is stored", Axes.RF, "forward", 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of a table."""

    SITES: ClassVar = Site

    pairs: bool = choice(
        False,
        number=0,
        doc="True has a frequency for features 0 and 1, 2 and 3 and so on; False (default) for the"
        " first half and the second. It is what is computed, and not how.",
        source="GPT-J",
    )


def forward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    positions: Array,
    frequencies: Array | None,
) -> tuple[Array, ...]:
    """Return (cos, sin), (R, F), for positions (R,) and frequencies (F / 2,), or None for those of
    theta. Beyond an angle of 1.5 million the results are NaN.

    settings: theta; features, F; and scaling, which multiplies both.
    """
    xp, mul, call = at.ops.xp, at.ops.multiply, at.ops.call
    if frequencies is None:
        features = int(settings["features"])
        ex = at(Site.EX, at.ops.hidden(xp.arange(0, features, 2) / float(features)))
        pw = at(Site.PW, call(exp64, mul(ex, math.log(settings["theta"]))))
        frequencies = at.ops.divide(xp.ones_like(pw), pw)
    fb = at(Site.FB, at(Site.FQ, frequencies))
    ang = at(Site.ANG, mul(at(Site.POS, positions)[:, None], fb[None, :]))
    found = []
    sites = (Site.CA, Site.CS, Site.COS), (Site.SA, Site.SS, Site.SIN)
    for f, (a, s, stored) in zip((cos64, sin64), sites, strict=True):
        y = at(s, mul(at(a, call(f, ang)), constant(at.plan, s, settings["scaling"])))
        y = xp.repeat(y, 2, axis=1) if at.plan.pairs else xp.concatenate([y, y], axis=1)
        found.append(at(stored, y))
    return tuple(found)


def transformers_llama() -> Plan:
    """Return transformers' LlamaRotaryEmbedding: frequencies and angles in binary32, cast at the
    end (models/llama/modeling_llama.py; 5.24).

    In BF16 and FP16 at least 99.9 % of the numbers are equal on a CPU (tests/operations/
    test_rope.py), and in BF16 all on an H100 with torch 2.11 (test_gradients_on_a_gpu.py). In FP32
    94 % are equal on a CPU and 80 % on an H100, since MKL's and CUDA's cos and sin are not
    correctly rounded; and for some numbers of features torch's power on a CPU is not either, so
    that a frequency differs.
    """
    return in_bf16(Plan, "transformers-llama", Site.COS, Site.SIN)


def transformers_llama_cast() -> Plan:
    """Return the same table of a model whose buffers were cast with its weights: the frequencies
    have the type of the model, a known bug. In BF16 the angle of position 1000 is then off by up to
    2, as that of an angle in BF16.

    As `transformers_llama`, on a CPU (tests/operations/test_rope.py).
    """
    plan = transformers_llama().rounded({Site.FB: BF16})
    return replace(plan, name="transformers-llama-cast")


ROPE_TABLE = Operation(
    name="rope_table",
    number=64,
    plan=Plan,
    inputs=(
        Value("positions", Site.POS, Shape.NUMBERS),
        Value("frequencies", Site.FQ, Shape.SHARED, optional=True),
    ),
    outputs=(Value("cos", Site.COS), Value("sin", Site.SIN)),
    forward=forward,
    settings={"theta": 10000.0, "features": 64, "scaling": 1.0},
    published=published(Plan, transformers_llama, transformers_llama_cast),
)
