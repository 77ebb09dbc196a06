"""What real kernels return on strange calls: a negative scale, infinite and NaN inputs, scores
beyond FP32, and a causal mask of fewer queries than keys.

    python -m tests.checks.gpu_strange --out FOLDER    on a machine with a GPU: runs and records
    python -m tests.checks.gpu_strange FOLDER          compares what was recorded with the twins

One head of 48 is kept. Of results that are not finite the places are compared, of others the bits.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from roundscope.attention import examine
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs
from roundscope.tools.identify.adapters import kernel
from tests.checks.gpu_kernels import packed
from tests.checks.kernel_outputs import inputs, of_one_head, widened
from tests.checks.kernel_twins import KERNELS

NAMES = ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math", "flex", "eager", "jax-xla")
ROW, KEY = 40, 100  # the query and the key that get a strange number
TOKENS = 256


def cases() -> Iterator[tuple[str, Inputs]]:
    """Yield the calls by name, each causal and full where both make sense."""
    for causal in (False, True):
        x = inputs("gaussian64", causal)
        x = replace(x, **{n: getattr(x, n)[:, :TOKENS] for n in ("q", "k", "v", "do")})
        mode = "causal" if causal else "full"
        yield f"negative/{mode}", replace(x, scale=-0.125)
        for name, at, value in (
            ("q", ROW, np.inf),
            ("q", ROW, np.nan),
            ("k", KEY, np.inf),
            ("k", KEY, np.nan),
            ("v", KEY, np.inf),
            ("v", KEY, np.nan),
        ):
            changed = getattr(x, name).copy()
            changed[:, at, :, 0] = value
            yield f"{name}={value}/{mode}", replace(x, **{name: changed})
        huge = {n: getattr(x, n) * np.float32(2.0**62) for n in ("q", "k")}
        yield f"huge/{mode}", replace(x, **huge)
    few = {n: getattr(x, n)[:, :64] for n in ("q", "do")}
    yield "few-queries/causal", replace(x, **few)


def record(folder: Path) -> None:
    """Run every kernel on every call, and write one file for each kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        arrays = {}
        for case, x in cases():
            try:
                outputs = kernel(name)(x)
            except Exception as error:  # what a kernel refuses is an answer too
                print(f"{name}: {case}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            for part, array in packed(outputs.heads(slice(0, 1))).items():
                arrays[f"{case}/{part}"] = array
        np.savez_compressed(folder / f"{name}.npz", **arrays)
        print(f"{name}: {len(arrays)} arrays", flush=True)


def compared(folder: Path) -> Iterator[str]:
    """Yield a line for each call: of out, dq, dk and dv, the share of equal numbers."""
    calls = dict(cases())
    for twin, name in KERNELS.items():
        path = folder / f"{name}.npz"
        if not path.exists():
            continue
        file = np.load(path)
        for case in sorted({key.rpartition("/")[0] for key in file}):
            x, own = of_one_head(calls[case]), TWINS[twin]
            block_q, block_k = own.tiles(x.q.shape[-1], x.is_cut)
            options = {n: o for n, o in x.options.items() if o is not None}
            try:
                got = examine(
                    x.q, x.k, x.v, x.do, plan=own.plan, block_q=block_q, block_k=block_k,
                    record=None, **options,
                )  # fmt: skip
            except ValueError as error:
                yield f"{twin:18} {case:22} refused: {error}"
                continue
            parts = []
            for part in ("out", "dq", "dk", "dv"):
                if f"{case}/{part}" not in file:
                    continue
                want = widened(file[f"{case}/{part}"])[:1, :, :1]
                mine = np.asarray(getattr(got, part))
                same = (mine == want) | (np.isnan(mine) & np.isnan(want))
                parts.append(
                    f"{part} {same.mean():.5f} (not finite: {(~np.isfinite(mine)).sum()},"
                    f" kernel {(~np.isfinite(want)).sum()})"
                )
            yield f"{twin:18} {case:22} {'; '.join(parts)}"


def main() -> None:
    """Record with --out, else compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out is not None:
        record(options.out)
    else:
        print("\n".join(compared(options.folder)))


if __name__ == "__main__":
    main()
