"""Layers that the tests of the diagnosis share."""

from functools import cache

import ml_dtypes
import numpy as np

from roundscope.attention import Plan
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.tools.diagnose.tensors.measured import Subject, measure
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace import request as of_trace
from roundscope.tools.trace.options import TraceOptions


@cache
def layer(family="repeated-maximum", t=128, n=2, h=32, seed=0):
    """One of the sweep's input families as a layer."""
    source = Source(family=family, seed=seed, queries=t, keys=t, heads=n, features=h)
    x = {
        role: a.astype(ml_dtypes.bfloat16).astype(np.float32)[None]
        for role, a in FAMILIES[family](source).items()
    }
    return Layer(name=family, **x)


def request(plan="qiu-yao", causal=False, **changes):
    """A request; plan: a preset or a Plan."""
    from dataclasses import replace

    name = plan if isinstance(plan, str) else "fp32"
    made = replace(of_trace.request(TraceOptions(budget=False), name, "none"), causal=causal)
    return replace(made, **({} if isinstance(plan, str) else {"plan": plan}), **changes)


def measured(x, plan="qiu-yao", **more):
    """A layer under a plan and exactly."""
    return measure(Subject(layer=x, request=request(plan, **more)), lambda _: None)


def narrowed(**sites):
    """fp32 with some sites narrower: narrowed(L="bf16")."""
    plan = Plan.preset("fp32")
    for site, name in sites.items():
        plan = plan.at(site, *name.split(":"))
    return plan
