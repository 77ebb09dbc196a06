"""What the three deltas that keep the rows of dS at zero cost in a fused backward.

    python tests/checks/delta_price.py --out FOLDER

It runs on a GPU, needs torch and triton and nothing of Roundscope, and reads the inputs and writes
times.json and results.npz in FOLDER; `tests.checks.delta_table` makes the inputs and the tables.
All kinds take turns, so that ratios within a round have the same clock.
"""

import argparse
import json
import os
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("out", "wide", "centered", "corrected")
WIDTHS, LENGTHS, TOKENS, FEATURES = (64, 128), (1024, 2048, 4096, 8192), 16384, 2048
ROUNDS, MILLISECONDS = 7, 12
# tiles of queries and keys, warps and stages, of which the fastest is taken
TILES = {
    "forward": ((128, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3)),
    "delta_over_keys": ((128, 64, 4, 2), (128, 64, 8, 2), (64, 64, 4, 3), (128, 128, 8, 2)),
    "of_queries": ((128, 64, 8, 2), (64, 64, 4, 3), (128, 32, 4, 3)),
    "corrects": ((128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 2), (64, 32, 4, 3)),
    "of_keys": ((64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 8, 3), (32, 64, 4, 3)),
}


class Call:
    """The arrays of one call on the GPU, and its kernels."""

    def __init__(self, q: Any, k: Any, v: Any, do: Any, scale: float) -> None:
        import torch

        self.n, self.t, self.d = q.shape
        self.q, self.k, self.v, self.do = q, k, v, do
        self.scale, self.c = scale, scale * 1.4426950408889634
        self.o, self.dq, self.dk, self.dv = (torch.empty_like(q) for _ in range(4))
        self.wide = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        self.lse, self.delta = (
            torch.empty((self.n, self.t), dtype=torch.float32, device=q.device) for _ in range(2)
        )

    def run(self, name: str, tiles: tuple[int, ...], **more: bool) -> None:
        """Run a kernel."""
        import delta_kernel as of  # beside this file

        bm, bn, warps, stages = tiles
        how: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "D": self.d, "BM": bm}
        if name == "delta_of_output":
            o = self.wide if more.get("wide") else self.o
            of.delta_of_output[(self.t // bm, self.n)](o, self.do, self.delta, self.t, **how)
            return
        how["BN"] = bn
        q, k, v = self.q, self.k, self.v
        grid = (self.t // (bn if name == "of_keys" else bm), self.n)
        if name == "forward":
            args = (q, k, v, self.o, self.wide, self.lse, self.c, self.t)
            of.forward[grid](*args, **how, KEEPS=more.get("keeps", False))
        elif name == "delta_over_keys":
            args = (q, k, v, self.do, self.lse, self.delta, self.c, self.t)
            of.delta_over_keys[grid](*args, **how)
        elif name == "of_queries":
            args = (q, k, v, self.do, self.lse, self.delta, self.dq, self.scale, self.c, self.t)
            of.of_queries[grid](*args, **how, CORRECTS=more.get("corrects", False))
        else:
            args = (q, k, v, self.do, self.lse, self.delta, self.dk, self.dv)
            of.of_keys[grid](*args, self.scale, self.c, self.t, **how)

    def step(self, kind: str, part: str, best: dict[str, tuple[int, ...]]) -> None:
        """Run the forward or the backward with one kind of delta."""
        if part == "forward":
            self.run("forward", best["forward"], keeps=kind == "wide")
            return
        if kind == "centered":
            self.run("delta_over_keys", best["delta_over_keys"])
        else:
            self.run("delta_of_output", (64, 0, 4, 1), wide=kind == "wide")
        corrects = kind == "corrected"
        self.run("of_queries", best["corrects" if corrects else "of_queries"], corrects=corrects)
        self.run("of_keys", best["of_keys"])


def drawn(n: int, t: int, d: int, seed: int = 0) -> Call:
    import torch

    g = torch.Generator(device="cuda").manual_seed(seed)
    four = (torch.randn((n, t, d), generator=g, device="cuda") for _ in range(4))
    return Call(*(x.to(torch.bfloat16) for x in four), scale=d**-0.5)


def jobs() -> list[tuple[str, int, tuple[int, ...]]]:
    return [(name, d, tiles) for d in WIDTHS for name, own in TILES.items() for tiles in own]


def _run(call: Call, name: str, tiles: tuple[int, ...]) -> None:
    real, more = ("of_queries", {"corrects": True}) if name == "corrects" else (name, {})
    call.run(real, tiles, **more)


def compile_some(part: int, parts: int) -> None:
    """Compile every `parts`-th kernel into the cache that all processes share."""
    for name, d, tiles in jobs()[part::parts]:
        try:
            _run(drawn(1, 256, d), name, tiles)
        except Exception as error:
            print(f"{name} {d} {tiles}: {type(error).__name__}: {str(error)[:120]}", flush=True)


def time_of(f: Any, ms: float = MILLISECONDS) -> float:
    """Return milliseconds of f, the median of several runs."""
    import triton

    return float(triton.testing.do_bench(f, warmup=3, rep=ms, return_mode="median"))


def tuned(d: int) -> dict[str, tuple[int, ...]]:
    call, best = drawn(4 * FEATURES // d, 4096, d), {}
    call.run("forward", TILES["forward"][0], keeps=True)
    call.run("delta_of_output", (64, 0, 4, 1))
    for name, own in TILES.items():
        found = {}
        for tiles in own:
            try:
                found[tiles] = time_of(partial(_run, call, name, tiles))
            except Exception as error:
                print(f"{name} {d} {tiles}: {type(error).__name__}: {str(error)[:120]}")
        best[name] = min(found, key=found.get)
        print(d, name, {str(k): round(v, 3) for k, v in found.items()}, flush=True)
    return best


def round_of(call: Call, best: dict[str, tuple[int, ...]], theirs: dict[str, Any]) -> Any:
    """Return (kind, part) -> milliseconds, once around all kinds."""
    own = {}
    for part in ("forward", "backward"):
        for kind in KINDS:
            own[kind, part] = time_of(partial(call.step, kind, part, best))
        own["sdpa-flash", part] = time_of(theirs[part])
    own["out", "delta"] = time_of(partial(call.run, "delta_of_output", (64, 0, 4, 1)))
    over = partial(call.run, "delta_over_keys", best["delta_over_keys"])
    own["centered", "delta"] = time_of(over)
    return own


def times(d: int, best: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """Return a row for each length, kind and round; all kinds take turns in a round."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    rows = []
    for t in LENGTHS:
        call = drawn(TOKENS // t * (FEATURES // d), t, d)
        four = [x.view(TOKENS // t, -1, t, d) for x in (call.q, call.k, call.v, call.do)]
        given = [x.clone().requires_grad_() for x in four[:3]]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = attend(*given)
            theirs = {
                "forward": partial(attend, *given),
                "backward": partial(torch.autograd.grad, out, given, four[3], retain_graph=True),
            }
            for turn in range(ROUNDS):
                own = round_of(call, best, theirs)
                rows += [
                    {"D": d, "T": t, "round": turn, "kind": kind, "part": part, "ms": round(ms, 5)}
                    for (kind, part), ms in own.items()
                ]
        print(d, t, {f"{k} {p}": round(x, 3) for (k, p), x in own.items()}, flush=True)
    return rows


def results(folder: Path, best: dict[int, dict[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """Return what the kernels give of first heads of a file, BF16 as 16-bit integers."""
    import torch

    found: dict[str, np.ndarray] = {}
    with np.load(folder / "inputs.npz") as file:
        given = {name: file[name] for name in file.files}
    for family in sorted({name.split("/")[0] for name in given}):
        own = [given[f"{family}/{x}"].view(np.int16) for x in ("q", "k", "v", "do")]
        call = Call(
            *(torch.from_numpy(x).view(torch.bfloat16).cuda() for x in own),
            float(given[f"{family}/scale"]),
        )
        for kind in KINDS:
            call.step(kind, "forward", best[call.d])
            call.step(kind, "backward", best[call.d])
            for name in ("dq", "dk", "dv") if kind == "out" else ("dq", "dk"):
                bits = getattr(call, name)[:1].view(torch.int16).cpu().numpy()
                found[f"{family}/{kind}/{name}"] = bits.view(np.uint16)
            found[f"{family}/{kind}/delta"] = call.delta[:1].cpu().numpy()
        found[f"{family}/out"] = call.o[:1].view(torch.int16).cpu().numpy().view(np.uint16)
        found[f"{family}/lse"] = call.lse[:1].cpu().numpy()
    return found


def measure(out: Path) -> None:
    import torch
    import triton

    card = torch.cuda.get_device_name()
    about = {"torch": torch.__version__, "triton": triton.__version__, "gpu": card}
    print(about, flush=True)
    parts = min(14, os.cpu_count() or 1)
    runs = [
        subprocess.Popen([sys.executable, __file__, "--compile", str(i), str(parts)])
        for i in range(parts)
    ]
    for run in runs:
        run.wait()
    rows, best = [], {}
    for d in WIDTHS:
        try:
            best[d] = tuned(d)
        except Exception:
            traceback.print_exc()
    try:
        np.savez_compressed(out / "results.npz", **results(out, best))
    except Exception:
        traceback.print_exc()
    for d in best:
        try:
            rows += times(d, best[d])
        except Exception:
            traceback.print_exc()
        tiles = {str(d): own for d, own in best.items()}
        whole = about | {"tiles": tiles, "rows": rows}
        (out / "times.json").write_text(json.dumps(whole))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path)
    p.add_argument("--compile", nargs=2, type=int)
    args = p.parse_args()
    if args.out is None and not args.compile:
        p.error("--out: name a folder with inputs.npz, which delta_table --inputs writes")
    if args.compile:
        compile_some(*args.compile)
    else:
        measure(args.out)


if __name__ == "__main__":
    main()
