"""`with_written`: a layer's trace with a note on the output that the file itself has."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from roundscope.emu.stats.comparison import relative_rms
from roundscope.tools.tensors.files import open_tensors
from roundscope.tools.tensors.layers import layout_of
from roundscope.tools.trace.run import Observed


def with_written(seen: Observed, path: Path, layout: str | None) -> Observed:
    """Return what was observed, with a note on the error of the output that the file has.

    There is none where the file has no such output, where a part of its heads or tokens is traced,
    or where the trace is not compared with exact attention.
    """
    layer, want = seen.layer, np.asarray(seen.reference["out"], np.float64)
    if seen.request.against.name != "exact" or layer.tokens is not None:
        return seen
    with open_tensors(path) as file:
        name = f"{layer.prefix}.out" if layer.prefix else "out"
        if name not in file.names:
            return seen
        out = np.asarray(file.array(name), np.float64)
        is_turned = layout_of(layout, file) == "BNTH"
    if out.ndim == 4 and is_turned:
        out = out.transpose(0, 2, 1, 3)
    if out.shape != want.shape:
        return seen
    own = relative_rms(np.asarray(seen.results["out"], np.float64), want)
    note = (
        f"relative rms error of the output in the file, against exact attention:"
        f" {relative_rms(out, want):.2e}; of that of the plan {seen.request.plan.name}: {own:.2e}"
    )
    return replace(seen, layer=replace(layer, notes=(*layer.notes, note)))
