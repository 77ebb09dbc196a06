"""The inputs on which kernels are measured: BF16 numbers.

A feature of them makes dQ show the row sums of dS. The last feature is 0 in q, v and dO and 1 in k:
it changes no score, no output and no other gradient, and the last feature of dQ is scale times the
row sum of dS, which is 0 in exact arithmetic.
"""

import ml_dtypes
import numpy as np

from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.tools.tensors.layers import read_layers, sample_path

TOKENS, FEATURES = 512, 64
SAMPLE = "real tensors"
NAMES = {  # family -> its generator in sweeps
    "Gaussian": "gaussian",
    "one-signed V": "one-signed-v",
    "sink": "sink",
    "ties": "ties",
    "wide logits": "large-logits",
    "repeated maximum": "repeated-maximum",
}
# the shipped tensors are repeated, since with few heads kernels split the keys
LAYERS = ("layer1", "layer4")
COPIES = 4


def inputs(family: str, heads: int, tokens: int = TOKENS) -> tuple[Inputs, int]:
    """Return the arguments of a causal call, (B, T, N, H), and how many heads are different.

    Those are the first ones of the B N heads.

    Raises:
        ValueError: there is no family of that name.
    """
    if family == SAMPLE:
        layers = [read_layers(sample_path(), layer=name)[0] for name in LAYERS]
        x = {
            role: np.concatenate([getattr(layer, role)[:1, :tokens] for layer in layers])
            for role in ("q", "k", "v", "do")
        }
        different = len(LAYERS) * layers[0].q.shape[2]
        x = {role: np.concatenate([array] * COPIES) for role, array in x.items()}
    elif family in NAMES:
        source = Source(
            family=NAMES[family],
            seed=0,
            queries=tokens,
            keys=tokens,
            heads=heads,
            features=FEATURES,
        )
        x = {role: array[None] for role, array in FAMILIES[NAMES[family]](source).items()}
        different = heads
    else:
        raise ValueError(f"family={family}: must be one of {', '.join((*NAMES, SAMPLE))}")
    x = {
        role: np.ascontiguousarray(array.astype(ml_dtypes.bfloat16).astype(np.float32))
        for role, array in x.items()
    }
    for role, array in x.items():
        array[..., -1] = 1.0 if role == "k" else 0.0
    q, k, v, do = (x[role] for role in ("q", "k", "v", "do"))
    return Inputs(q=q, k=k, v=v, do=do, scale=q.shape[-1] ** -0.5, is_causal=True), different
