"""A small transformer of flax nnx, its loss, and a step of its training."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

WIDTH, VOCABULARY = 32, 32


class Block(nnx.Module):
    """A layer: attention and two matrices."""

    def __init__(self, rngs, **options):
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=WIDTH, decode=False, rngs=rngs, **options
        )
        self.mlp = nnx.Sequential(
            nnx.Linear(WIDTH, 64, rngs=rngs), jax.nn.gelu, nnx.Linear(64, WIDTH, rngs=rngs)
        )

    def __call__(self, x, mask=None):
        x = x + self.attention(self.norm(x), mask=mask, is_causal=True)
        return x + self.mlp(x)


class Transformer(nnx.Module):
    """A language model."""

    def __init__(self, layers=2, seed=0, **options):
        rngs = nnx.Rngs(seed)
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.List([Block(rngs, **options) for _ in range(layers)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens, mask=None):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def loss(model, tokens):
    """Return the mean cross-entropy of the next tokens; tokens (B, T + 1)."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@nnx.jit
def step(model, optimizer, tokens):
    """Update the model by one step, and return the loss before it."""
    value, gradient = nnx.value_and_grad(loss)(model, tokens)
    optimizer.update(model, gradient)
    return value


def tokens(entries=2, length=17):
    return jax.random.randint(jax.random.key(1), (entries, length), 0, VOCABULARY, jnp.int32)
