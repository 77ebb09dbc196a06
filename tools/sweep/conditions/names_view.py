"""`roundscope sweep --axes`: every axis with its values, default and meaning.

It also lists the inputs, grammars and metrics, and gives an example.
"""

from collections.abc import Sequence
from typing import Any

from roundscope.attention.grammar.injections import WHERES
from roundscope.attention.plans.choices import DeltaFrom, Exponential, KeyOrder
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import BLOCK_AXIS, PRODUCTS, Site
from roundscope.attention.testing.families import FAMILIES
from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.formats.format import NAMED
from roundscope.emu.roundings.modes import Overflow, RoundingMode
from roundscope.emu.sums.tensor_cores import ARCHITECTURES
from roundscope.tools.report.terminal import console, print_json
from roundscope.tools.sweep.conditions.axes import ENGINES
from roundscope.tools.sweep.conditions.cell import DEFAULTS, OPTIONAL, PER_SITE, lacking
from roundscope.tools.sweep.conditions.inputs import SAMPLE
from roundscope.tools.sweep.measuring.metrics import METRICS, SITE_METRICS
from roundscope.tools.sweep.report.words import say

EXAMPLE = """backward = true
zip = [["block_q", "block_k"]]
[axes]
preset = ["qiu-yao", "fa2-bf16"]
block_q = [32, 64]
block_k = [32, 64]
O = ["bf16", "fp32"]
injection = ["none", "O:ulps=0.5:rows=0:64:heads=1,3"]  # a comma inside a value needs a file
seed = "0:10"
"""

_SIZE, _TRUTH = "a whole number from 1, or a range a:b:step", "true false"
_AXES: dict[str, dict[str, tuple[str, str]]] = {  # group -> axis -> (values, meaning)
    "plan": {
        "preset": (
            " ".join([*PRESETS, *TWINS, "all:FORMAT", "each@ARCHITECTURE"]),
            "the plan that the other axes change",
        ),
        "format": (
            " ".join([*(f.name for f in NAMED.values() if f.zero and f.signed), "e<x>m<y>"]),
            "format of every event",
        ),
        "mode": (" ".join(RoundingMode), "rounding mode of every event"),
        "accumulator": ("see below", "how every sum of products adds up"),
        "exp": (" ".join(Exponential), "the exponential"),
        "delta_from": (
            " ".join(DeltaFrom),
            "where delta takes its operands; by default as the preset says",
        ),
        "stabiliser": ("none, or beta above 1", "the shift of the maximum (arXiv 2510.04212)"),
        "key_order": (" ".join(KeyOrder), "order of the key tiles"),
        "only": ("all, or SITE+SITE.step", "every other event in binary64"),
        "but": ("none, or SITE+SITE.step", "these events in binary64"),
        "unfused": (_TRUTH, "softmax first, then P V over the whole row"),
        "injection": ("none, or see below", "a controlled error"),
    },
    "sizes": {
        "T": (_SIZE, "queries; S follows it"),
        "S": (_SIZE, "keys"),
        "N": (_SIZE, "heads"),
        "H": (_SIZE, "features per head"),
        "tile": (_SIZE, "block_q and block_k at once; by default 64"),
        "block_q": (_SIZE, "queries per tile"),
        "block_k": (_SIZE, "keys per tile"),
    },
    "run": {
        "input": ("see below", "the tensors"),
        "seed": (
            "a whole number from 0, or a:b",
            "seed of the tensors, stochastic rounding, noise and shares",
        ),
        "causal": (_TRUTH, "whether query t sees keys s <= t only; by default as a file says"),
        "scale": ("default, none, or a number", "the factor of the scores; none is 1 / sqrt(H)"),
        "alignment": (
            "default top-left bottom-right",
            "where queries stand among keys, causal or windowed",
        ),
        "window": ("default, none, or a number of keys", "how many keys a query sees"),
        "softcap": ("default, none, or a number above 0", "the bound of the scores"),
        "mask": ("default none", "whether a file's mask takes part"),
        "sinks": ("default none", "whether a file's sinks take part"),
        "batch": (
            "default, or a number from 1",
            "how many batch entries of a file; a cell has all of them together",
        ),
        "backward": (_TRUTH, "whether to compute the gradients too"),
        "engine": (" ".join(ENGINES), "what computes; all give the same bits"),
    },
}
_GRAMMARS = {
    "one event": (
        "SITE=ROUNDING, such as O=bf16:stochastic, and SITE.sum=ACCUMULATOR at"
        f" {' '.join(PRODUCTS)}; or {' '.join(f'{kind}.SITE' for kind in PER_SITE)}"
    ),
    "SITE": " ".join(Site) + "; S=bf16 is the event, S=512 the keys",
    "ROUNDING": (
        f"FORMAT[:MODE][:OVERFLOW], MODE {' '.join(RoundingMode)}, OVERFLOW {' '.join(Overflow)}"
    ),
    "blocks": (
        f"{' '.join(BLOCK_NAMED)}, at {' '.join(BLOCK_AXIS)}, along the sum of the first product:"
        f" P=mxfp8_e4m3[:RULE][:MODE], RULE {' '.join(ScaleRule)}"
    ),
    "ACCUMULATOR": (
        "ascending | pairwise | halves | chunkedN | exact, each with :FORMAT[:MODE] of its steps"
        " or without (fp32) | native | tensor cores: ARCHITECTURE:TYPE[:fp16], of"
        f" {' '.join(ARCHITECTURES)}, such as hopper:bf16"
    ),
    "only, but": "SITE+SITE, an event each; SITE.step: the steps of its sum",
    "ranges": (
        "0:64 and 0:64:2 leave the stop out, as Python's; 0-63 has both ends; lists by commas"
    ),
    "injection": (
        "SITE:WHAT[:WHERE]...; WHAT exact, ulps=X, bias=X, set=X, flip=BIT, noise=ULPS; WHERE"
        f" {' '.join(f'{name}=' for name in WHERES)} with numbers and ranges: O:ulps=0.5:rows=0:64;"
        " share=0.01 is a random part, mask=FILE.npy a boolean array"
    ),
    "more": "docs/reference/grammar.md explains the words, which trace, sweep, train, proxy and"
    " Python share",
}


def data() -> dict[str, Any]:
    """Return the axes, grammars, inputs, example and metrics as data."""
    axes = {
        name: {
            "group": group,
            "values": values,
            "default": DEFAULTS.get(
                name, lacking(name) if name in OPTIONAL else DEFAULTS["block_q"]
            ),
            "meaning": meaning,
        }
        for group, members in _AXES.items()
        for name, (values, meaning) in members.items()
    }
    return {
        "axes": axes,
        "grammars": _GRAMMARS,
        "inputs": _inputs(),
        "example": EXAMPLE,
        "metrics": METRICS,
        "site_metrics": SITE_METRICS,
    }


def _inputs() -> dict[str, str]:
    """Return each family with the first paragraph of its docstring, and how to name files."""
    drawn = {
        name: " ".join((family.__doc__ or "").split("\n\n")[0].split())
        for name, family in FAMILIES.items()
    }
    return drawn | {
        SAMPLE: "the first layer of the real tensors that come with Roundscope; sample:LAYER",
        "PATH[:LAYER]": (
            "a safetensors or npz file: each of its layers, or one, or layers.*; what the file says"
            " of causality, scale, window, softcap, mask, sinks and batch holds where the axis does"
            " not say otherwise (default: as the file says; none: without)"
        ),
    }


def show(*, as_json: bool) -> None:
    """Print everything on the terminal, or as JSON."""
    everything = data()
    if as_json:
        print_json(everything)
        return
    for group, members in _AXES.items():
        rows = [
            (name, str(everything["axes"][name]["default"]).lower(), *words)
            for name, words in members.items()
        ]
        _table(f"axes: {group}", ("axis", "default", "values", "meaning"), rows)
    for title, part in (("how to write them", "grammars"), ("inputs", "inputs")):
        _table(title, ("", ""), list(everything[part].items()))
    say("an example, axes.toml (roundscope sweep axes.toml)\n")
    say(EXAMPLE)
    _table("metrics: columns of the table cells", ("", ""), list(METRICS.items()))
    _table("metrics of an event: columns of the table sites", ("", ""), list(SITE_METRICS.items()))


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(heads))
    for i, head in enumerate(heads):
        table.add_column(head, no_wrap=i < len(heads) - 2 or i == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    say(title)
    console().print(table)
    say("")
