"""Does a sum that is cut downward whatever its sign, as on AMD's CDNA3, show in attention?

    python -m tests.checks.downward [--heads 12]

Attention on the shipped tensors and on normal numbers, with sums of products as CDNA3 and as Hopper
add them and everything else alike. **The even part**: out is odd in v, and dq, dk and dv are odd
in dO, so the mean of a result and of the one for -v or -dO is 0 in every arithmetic that treats
both signs alike; a cut downward leaves what it lowers the result by. **The gain** of a result is
its length along the exact one, less 1. Intervals are of 95 %, over heads.
"""

import argparse
from collections.abc import Iterator

import numpy as np

from roundscope.attention import attend, examine
from roundscope.emu import round_to
from roundscope.experiments.framework.estimates import Estimate, gain, mean
from roundscope.tools.tensors.layers import read_layers, sample_path

WIDE = "OUT=fp32 DQ_OUT=fp32 DK_OUT=fp32 DV_OUT=fp32"
E4M3 = "e4m3fnuz:saturate"  # the FP8 type that CDNA3 has
FP8 = f"{' '.join(f'{n}={E4M3}' for n in 'QKVP')} S.sum=cdna3:e4m3fnuz PV.sum=cdna3:e4m3fnuz"
RESULTS, ARCHS = ("out", "dq", "dk", "dv"), ("cdna3", "hopper")
UNIT = 2.0**-24  # half an ulp of binary32 at 1
Arrays = dict[str, np.ndarray]


def inputs(heads: int) -> Iterator[tuple[str, Arrays, float]]:
    """Yield names, q, k, v and dO of shape (1, T, heads, H), and the scale."""
    for layer in ("layer1", "layer4"):
        [x] = read_layers(sample_path(), layer=layer)
        own = {
            n: np.asarray(getattr(x, n), np.float32)[:, :, :heads] for n in ("q", "k", "v", "do")
        }
        yield layer, own, float(x.scale)
    rng = np.random.default_rng(124)
    drawn = {
        n: rng.standard_normal((1, 512, heads, 32)).astype("f4") for n in ("q", "k", "v", "do")
    }
    yield "normal", drawn, 32**-0.5


def results(x: Arrays, plan: str, scale: float) -> Arrays:
    """Return out and the gradients in binary64, (heads, T, H)."""
    found = examine(*(x[n] for n in ("q", "k", "v", "do")), plan=plan, scale=scale, record=None)
    return {n: np.asarray(getattr(found, n), np.float64)[0].swapaxes(0, 1) for n in RESULTS}


def fp8(x: Arrays, scale: float) -> np.ndarray:
    """Return the even part of out in FP8 on CDNA3, in u of each head's rms number."""
    plan = f"fa2-bf16; {FP8} OUT=fp32"
    one, flipped = (
        np.asarray(attend(x["q"], x["k"], v, plan=plan, scale=scale), np.float64)[0].swapaxes(0, 1)
        for v in (x["v"], -x["v"])
    )
    size = np.sqrt(np.square(one).mean((1, 2)))
    return ((one + flipped) / 2).mean((1, 2)) / size / UNIT


def of_heads(values: np.ndarray) -> Estimate:
    return mean(dict(enumerate(map(float, values))))


def shown(e: Estimate) -> str:
    return f"{e.mean:+.2g} [{e.low:+.2g}, {e.high:+.2g}]"


def main() -> None:
    """Print a line for each input, type, architecture and result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=12)
    for name, x, scale in inputs(parser.parse_args().heads):
        print(f"{name} e4m3fnuz cdna3 out: even part {shown(of_heads(fp8(x, scale)))} u")
        exact = results(x, "exact", scale)
        for kind in ("bf16", "fp16"):
            gains: dict[tuple[str, str], np.ndarray] = {}
            for arch in ARCHS:
                base = f"fa2-bf16{'-fp16' if kind == 'fp16' else ''}@{arch}"
                one = results(x, f"{base}; {WIDE}", scale)
                flipped = results(x | {"v": -x["v"]}, f"{base}; {WIDE}", scale)
                flipped |= {
                    n: v
                    for n, v in results(x | {"do": -x["do"]}, f"{base}; {WIDE}", scale).items()
                    if n != "out"
                }
                for n in RESULTS:
                    even = (one[n] + flipped[n]) / 2
                    size = np.sqrt(np.square(one[n]).mean((1, 2)))
                    bias = of_heads(even.mean((1, 2)) / size / UNIT)
                    narrow = int((round_to(one[n], kind) != -round_to(flipped[n], kind)).sum())
                    gains[arch, n] = np.array(list(map(gain, one[n], exact[n])))
                    print(
                        f"{name} {kind} {arch} {n}: even part {shown(bias)} u of the rms number,"
                        f" {(even != 0).mean():.2%} of {even.size} moved, {narrow} in {kind}; gain"
                        f" {shown(of_heads(gains[arch, n]))}",
                        flush=True,
                    )
            for n in ("out", "dq"):
                less = of_heads(gains["cdna3", n] - gains["hopper", n])
                print(f"{name} {kind} {n}: gain on cdna3 less that on hopper {shown(less)}")


if __name__ == "__main__":
    main()
