"""Splash attention in Pallas' interpreter on a CPU against the plan `tpu-splash`: shares of equal
bits, in Markdown. The kernel is JAX's own; interpreted, its products and sums are XLA's for a CPU.

python -m tests.checks.splash [--tokens N] [--seeds N]
"""

from argparse import ArgumentParser
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention import examine

RESULTS = ("out", "dq", "dk", "dv")
HEADS, TILE = 2, 128


def interpreted(x: list[np.ndarray], *, is_causal: bool) -> list[np.ndarray]:
    """Return out, dq, dk and dv of the kernel, (N, T, H) as q, k, v and do, in BF16."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    heads, tokens, _ = x[0].shape
    one = (masks.CausalMask if is_causal else masks.FullMask)((tokens, tokens))
    forward = dict.fromkeys(("block_q", "block_kv", "block_kv_compute"), TILE)
    backward = dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), TILE)
    sizes = splash.BlockSizes(**forward, **backward, block_q_dq=TILE, block_kv_dq=TILE)
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([one] * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sizes,
        interpret=True,
    )
    q, k, v, do = (jnp.asarray(a, jnp.bfloat16) for a in x)
    with jax.numpy_dtype_promotion("standard"):
        out, backwards = jax.vjp(lambda *given: kernel(*given), q, k, v)
        return [np.asarray(a, np.float32) for a in (out, *backwards(do))]


def equal(width: int, tokens: int, seed: int, *, is_causal: bool) -> dict[str, float]:
    """Return the shares of equal bits of each result on normal numbers."""
    rng = np.random.default_rng(seed)
    x = [rng.standard_normal((HEADS, tokens, width)).astype(np.float32) for _ in range(4)]
    x[0] *= np.float32(width**-0.5)  # the kernel multiplies by no scale
    x = [np.asarray(jnp.asarray(a, jnp.bfloat16), np.float32) for a in x]
    wanted = interpreted(x, is_causal=is_causal)
    q, k, v, do = (a.swapaxes(0, 1)[None] for a in x)
    found = examine(
        *(q, k, v, do), plan="tpu-splash", scale=1.0, is_causal=is_causal, block_q=TILE,
        block_k=TILE, record=None, engine="numpy",
    )  # fmt: skip
    return {
        name: float((np.asarray(getattr(found, name))[0].swapaxes(0, 1) == want).mean())
        for name, want in zip(RESULTS, wanted, strict=True)
    }


def cases(tokens: int, seeds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each case in words with its shares."""
    for width in (64, 128):
        for is_causal in (True, False):
            each = [equal(width, tokens, seed, is_causal=is_causal) for seed in range(seeds)]
            least = {name: min(own[name] for own in each) for name in RESULTS}
            yield f"{width} features, {'causal' if is_causal else 'full'}", least


def main() -> None:
    """Print the table."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--tokens", type=int, default=512)
    ask.add_argument("--seeds", type=int, default=2)
    asked = ask.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, {asked.tokens} tokens, least of"
          f" {asked.seeds} seeds\n")  # fmt: skip
    print(f"| case | {' | '.join(RESULTS)} |\n|---|{'---|' * len(RESULTS)}")
    for title, least in cases(asked.tokens, asked.seeds):
        print(f"| {title} | {' | '.join(f'{least[name]:.5f}' for name in RESULTS)} |", flush=True)


if __name__ == "__main__":
    main()
