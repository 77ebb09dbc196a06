"""The tables of `tests.checks.delta_price`: what each delta costs, and what it gives.

python -m tests.checks.delta_table --inputs FOLDER         before the run: inputs.npz
python -m tests.checks.delta_table --compare FOLDER FILE   after it: FOLDER's results into FILE
python -m tests.checks.delta_table FILE [--png PNG]        prints docs/runs/delta-price-h100.json
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.attention import Plan, examine
from roundscope.attention.plans.choices import (
    GradientsApart,
    Log2E,
    Logarithm,
    QueryOrder,
    Reciprocal,
    RowSum,
)
from roundscope.attention.plans.twins.twin import fused
from roundscope.attention.testing.families import draw
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.experiments.framework.estimates import Estimate, ratio, relative_error
from roundscope.experiments.framework.figures.series import legend
from roundscope.experiments.framework.figures.series import numbers as numbers_at
from roundscope.tools.report import terminal
from roundscope.tools.report.model import Table, Text
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas, png
from roundscope.tools.tensors.layers import read_layers, sample_path

FAMILIES = ("layer4", "gaussian", "one-signed-v", "repeated-maximum")
KINDS = ("out", "wide", "centered", "corrected")
WIDTH, TOKENS, HEADS = 64, 512, 2
# the plan whose bits the kernel gives, by where delta comes from; `corrected` has no plan
WORDS = {"out": "", "wide": "delta_from=O", "centered": "delta_from=CENTERED"}
Arrays = dict[str, np.ndarray]
Parts = tuple[tuple[str, str], ...]
FORWARD: Parts = (("out", "forward"),)
BACKWARD: Parts = (("out", "backward"),)


def inputs() -> Iterator[tuple[str, Arrays, float]]:
    """Yield families: q, k, v and dO (heads, T, 64), and the scale.

    The last feature is 1 in k and 0 elsewhere, so that of dQ is scale times the row sum of dS.
    """
    for family in FAMILIES:
        if family == "layer4":
            [x] = read_layers(sample_path(), layer="layer4")
            scale = float(x.scale)
        else:
            x = draw(family, tokens=TOKENS, heads=HEADS, features=WIDTH - 1, seed=1)
            scale = (WIDTH - 1) ** -0.5
        arrays = {}
        for role in ("q", "k", "v", "do"):
            own = np.asarray(getattr(x, role), np.float32)[0, :, :HEADS].swapaxes(0, 1)
            arrays[role] = np.zeros((HEADS, TOKENS, WIDTH), np.float32)
            arrays[role][..., : own.shape[2]] = own
        arrays["k"][..., -1] = 1.0
        yield family, arrays, scale


def as_bits(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).view(np.uint16)


def numbers(x: np.ndarray) -> np.ndarray:
    return x.view(ml_dtypes.bfloat16).astype(np.float64)


def plan() -> Plan:
    """Return the arithmetic of the kernel with delta from O: Triton's, in BF16."""
    return replace(
        fused(Accumulator.tensor_core("hopper", "bf16"), lanes=16),
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        row_sum=RowSum.TILES,
        unfused_if_cut=True,
        reciprocal=Reciprocal.RCP,
        gradients_apart=GradientsApart.NONE,
        lse_base2=True,
        log=Logarithm.CUDA,
        query_order=QueryOrder.MASKED_FIRST,
    )


def exact(x: Arrays, scale: float) -> Arrays:
    """Return dQ and dK of the first head in binary64, by the equations of attention."""
    q, k, v, do = (x[role][0].astype(np.float64) for role in ("q", "k", "v", "do"))
    s = np.where(np.tril(np.ones((TOKENS, TOKENS), bool)), scale * q @ k.T, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dp = do @ v.T
    ds = p * (dp - (p * dp).sum(1, keepdims=True))
    return {"dq": scale * ds @ k, "dk": scale * ds.T @ q, "ds": ds}


def compared(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each family and kind, of the first head."""
    with np.load(folder / "results.npz") as file:
        found = {name: file[name] for name in file.files}
    for family, x, scale in inputs():
        true = exact(x, scale)
        four = [x[role][:1].swapaxes(0, 1)[None] for role in ("q", "k", "v", "do")]
        for kind in KINDS:
            dq, dk = (numbers(found[f"{family}/{kind}/{name}"])[0] for name in ("dq", "dk"))
            row = {
                "family": family,
                "kind": kind,
                "not_finite": int((~np.isfinite(dq)).sum() + (~np.isfinite(dk)).sum()),
                "row_sums": float(np.sqrt(np.square(dq[:, -1] / scale).mean())),
                "of": float(np.sqrt(np.square(np.abs(true["ds"]).sum(1)).mean())),
                "dq": relative_error(dq[:, :-1], true["dq"][:, :-1]),
                "dk": relative_error(dk, true["dk"]),
            }
            if kind in WORDS:
                own = plan().changed(WORDS[kind]) if WORDS[kind] else plan()
                sizes = {"block_q": 128, "block_k": 64}
                ours = examine(*four, plan=own, is_causal=True, scale=scale, **sizes)
                pairs = {"dq": dq, "dk": dk}
                if kind == "out":
                    pairs["dv"] = numbers(found[f"{family}/out/dv"])[0]
                    pairs["out"] = numbers(found[f"{family}/out"])[0]
                row["equal"] = {
                    name: float(np.mean(np.asarray(getattr(ours, name))[0, :, 0] == got))
                    for name, got in pairs.items()
                }
            yield row


def told(e: Any) -> str:
    return f"{e.mean:.3f} [{e.low:.3f}, {e.high:.3f}]"


def over(rows: list[dict[str, Any]], d: int, t: int, own: Parts, base: Parts) -> Estimate:
    """Return the time of some parts of calls, (kind, part), over that of others, by round."""
    took = {(r["kind"], r["part"], r["round"]): r["ms"] for r in rows if (r["D"], r["T"]) == (d, t)}
    turns = {n for _, _, n in took}
    of_own, of_base = ({n: sum(took[*x, n] for x in parts) for n in turns} for parts in (own, base))
    return ratio(of_own, of_base)


def picture(rows: list[dict[str, Any]]) -> Picture:
    """Draw the time of the backward over that with delta from O in BF16, against tokens."""
    widths = list(dict.fromkeys(r["D"] for r in rows))
    figure, axes = canvas(3.4, 1, len(widths), sharey=True)
    labels = ("delta from O in FP32", "centered: a pass over the keys", "centered while dQ is made")
    for ax, d in zip(axes[0], widths, strict=True):
        lengths = list(dict.fromkeys(r["T"] for r in rows if r["D"] == d))
        for i, (kind, label) in enumerate(zip(KINDS[1:], labels, strict=True)):
            found = [over(rows, d, t, ((kind, "backward"),), BACKWARD) for t in lengths]
            ends = [[e.mean - e.low for e in found], [e.high - e.mean for e in found]]
            look = {"color": COLOURS[i], "marker": MARKERS[i], "ms": 5, "lw": 1.4, "capsize": 2.5}
            ax.errorbar(lengths, [e.mean for e in found], ends, label=label, **look)
        ax.axhline(1.0, color=INK, lw=0.8)
        numbers_at(ax, lengths, log=False)
        ax.set_xlabel("tokens")
        ax.set_title(f"time of the backward, {d} features", fontsize=10, loc="left", color=INK)
    legend(figure, axes[0, 0], 3, loc="outside lower center")
    return figure


def of_times(rows: list[dict[str, Any]]) -> Table:
    """Return the table of times: ratios within a round, geometric means over rounds."""
    places = dict.fromkeys((r["D"], r["T"]) for r in rows)
    heads = [
        "D", "T", "forward:\nwide", "out,\nagain", "backward:\nwide", "centered", "corrected",
        "both:\nwide", "centered", "corrected", "backward of out /\nSDPA's flash",
    ]  # fmt: skip
    table = []
    for d, t in places:
        wide, again = (("wide", "forward"),), (("centered", "forward"),)
        cells = [over(rows, d, t, own, FORWARD) for own in (wide, again)]
        backs: list[Parts] = [((kind, "backward"),) for kind in KINDS[1:]]
        cells += [over(rows, d, t, own, BACKWARD) for own in backs]
        for own, forward in zip(backs, (wide, FORWARD, FORWARD), strict=True):
            cells.append(over(rows, d, t, forward + own, FORWARD + BACKWARD))
        cells.append(over(rows, d, t, BACKWARD, (("sdpa-flash", "backward"),)))
        table.append([f"{d}", f"{t}", *map(told, cells)])
    return Table(heads, table)


def of_results(rows: list[dict[str, Any]]) -> Table:
    """Return the table of errors and of equal bits."""
    heads = [
        "family",
        "delta",
        "not finite",
        "error of dQ",
        "of dK",
        "row sums of dS",
        "equal bits",
    ]
    table = []
    for r in rows:
        equal = ", ".join(f"{k} {100 * v:.4g} %" for k, v in r.get("equal", {}).items())
        sums = f"{r['row_sums'] / r['of']:.2e}"
        cells = [str(r["not_finite"]), f"{r['dq']:.2e}", f"{r['dk']:.2e}", sums, equal or "-"]
        table.append([r["family"], r["kind"], *cells])
    return Table(heads, table)


def main() -> None:
    first, *rest = sys.argv[1:]
    if first == "--inputs":
        given = {f"{f}/{role}": as_bits(a) for f, x, _ in inputs() for role, a in x.items()}
        scales = {f"{family}/scale": np.float64(scale) for family, _, scale in inputs()}
        np.savez_compressed(Path(rest[0]) / "inputs.npz", **given, **scales)
        return
    if first == "--compare":
        whole = json.loads((Path(rest[0]) / "times.json").read_text())
        whole["compared"] = list(compared(Path(rest[0])))
        Path(rest[1]).write_text(json.dumps(whole, indent=0) + "\n")
        first = rest[1]
    whole = json.loads(Path(first).read_text())
    if rest[:1] == ["--png"]:
        Path(rest[1]).write_bytes(png(picture(whole["rows"])))
    about = f"{whole['gpu']}, torch {whole['torch']}, triton {whole['triton']}"
    note = "Over the time with delta from O in BF16 (out), of the same round. `out, again`: its own"
    note += " forward, timed after others of the round; what is beyond 1 there is the clock's."
    shown = [of_times(whole["rows"]), Text(note), Text(about), of_results(whole["compared"])]
    terminal.show(shown)


if __name__ == "__main__":
    main()
