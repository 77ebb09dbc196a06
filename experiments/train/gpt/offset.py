"""A controlled error of the output as delta reads it, as data.

It is c times half a BF16 ulp of V, in rows where several P are 1:

    e[t, h] = c x sign x half an ulp of the mean |V[s, h]|,  over the keys s whose P rounds to 1 in
              BF16: a score within 1.955e-3 of the row's maximum; 0 in rows with fewer than two such
              keys, unless it is everywhere

sign    BIAS   that of sum V[s, h] over these keys: the error is biased away from zero, as the
               rounding of P V is in the paper
        NOISE  random, anew for every step, token, head and feature: the same rows and the same
               sizes, but no mean
        FIXED  BIAS times a random sign per layer, head and feature that stays the whole run: the
               error is biased, but not in the direction of V

The changes `offset=C:KIND[:all]` of a run say it per layer and head. They are no edits of a plan: a
format or a preset leaves them as they are. Where delta reads no output (P_DP, CENTRED), there is
nothing to offset.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.plans.plan import Plan
from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import format_named
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import OFFSET, changes_of, places
from roundscope.experiments.train.gpt.plans import Plans
from roundscope.tools.errors import UsageError, bad

BIAS, NOISE, FIXED = KINDS = ("bias", "noise", "fixed")
WINDOW = format_named("bf16").tie_window
EXPONENT = np.uint32(0x7F80_0000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The error of what one head's delta reads.

    c is its size (below 0: the other sign), kind one of KINDS, everywhere: whether it is in all
    rows.
    """

    c: float
    kind: str
    everywhere: bool = False


NOTHING = Wrong(c=0.0, kind=BIAS)
Wrongs = tuple[tuple[Wrong | None, ...], ...]  # of each layer, of each head


class Offset(NamedTuple):
    """The errors of arms, or of one arm without the axis A.

    c (A, L, N) float32, kind (its place in KINDS) (A, L, N) int32, everywhere (A, L, N) bool, seed
    (A,) uint32, step (A,) int32.
    """

    c: Any
    kind: Any
    everywhere: Any
    seed: Any
    step: Any


def readable(plan: Plan) -> bool:
    """Return whether delta reads the output."""
    return plan.delta_from in (DeltaFrom.OUT, DeltaFrom.WIDE_O)


def offsets(given: Sequence[Wrongs], seeds: Sequence[int]) -> Offset:
    """Return the errors of arms at step 0, with a seed each; a head without any has c = 0."""

    def field(of: Callable[[Wrong], Any], dtype: Any) -> np.ndarray:
        return np.array([[[of(w or NOTHING) for w in row] for row in arm] for arm in given], dtype)

    return Offset(
        c=field(lambda w: w.c, np.float32),
        kind=field(lambda w: KINDS.index(w.kind), np.int32),
        everywhere=field(lambda w: w.everywhere, bool),
        seed=np.array(seeds, np.uint32),
        step=np.zeros(len(given), np.int32),
    )


def error(offset: Offset, layer: Any, q: Array, k: Array, v: Array) -> Array:
    """Return e of causal attention with q, k, v (B, T, N, H) in a layer, without a derivative."""
    q, k, v = (lax.stop_gradient(x) for x in (q, k, v))
    c, kind, everywhere = (
        jnp.asarray(x)[layer][:, None] for x in (offset.c, offset.kind, offset.everywhere)
    )
    ones = ones_of(q, k)
    hit = (ones.sum(-1, keepdims=True) > 1) | everywhere[..., None]
    share = (ones & hit).astype(v.dtype)  # (B, N, T, S)
    total, size = (jnp.einsum("bnts,bsnh->btnh", share, x) for x in (v, jnp.abs(v)))
    count = jnp.maximum(share.sum(-1), jnp.float32(1.0)).swapaxes(1, 2)[..., None]
    return c * _sign(offset, kind, layer, total) * half_ulp(size / count)


def ones_of(q: Array, k: Array) -> Array:
    """Return where P rounds to 1 in BF16, (B, N, T, S): scores within 1.955e-3 of the top."""
    s = jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest") * jnp.float32(q.shape[-1] ** -0.5)
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    ones: Array = s >= s.max(-1, keepdims=True) - jnp.float32(WINDOW)
    return ones


def half_ulp(x: Array) -> Array:
    """Return half a BF16 ulp, 2^(e - 8) for 2^e <= |x| < 2^(e + 1); 0 below normal numbers."""
    exponent = lax.bitcast_convert_type(x, jnp.uint32) & EXPONENT
    power = lax.bitcast_convert_type(exponent, jnp.float32)
    half: Array = power * jnp.float32(2.0**-8)
    return half


def _sign(offset: Offset, kind: Array, layer: Any, total: Array) -> Array:
    key = jax.random.fold_in(jax.random.key(offset.seed), layer)
    fixed = jax.random.rademacher(key, total.shape[2:], total.dtype)
    anew = jax.random.fold_in(key, offset.step + 1)
    noise, of_v = jax.random.rademacher(anew, total.shape, total.dtype), jnp.sign(total)
    is_noise, is_fixed = (kind == KINDS.index(name) for name in (NOISE, FIXED))
    return jnp.where(is_noise, noise, jnp.where(is_fixed, fixed * of_v, of_v))


ALL = "all"
LARGEST = float(np.finfo(np.float32).max)


def wrongs_of(config: Config, texts: Sequence[str] = ()) -> Wrongs | None:
    """Return the offset of every layer and head, by config.changes, then texts.

    None if there is none. Raises UsageError naming the change and the repair. c = 0 is an offset
    too: it shares the executable of another c.
    """
    found: list[list[Wrong | None]] = [[None] * config.heads for _ in range(config.layers)]
    for text in (*config.changes, *texts):
        for change in changes_of(text):
            for value in change.offsets:
                try:
                    wrong = None if value == "none" else _wrong(value)
                except ValueError as error:
                    raise UsageError(f"change '{change.text}': {error}") from None
                for layer, head in places(change, config):
                    found[layer][head] = wrong
    return tuple(map(tuple, found)) if any(wrong for row in found for wrong in row) else None


def check(plans: Plans | None, wrongs: Wrongs | None, texts: Sequence[str]) -> None:
    """Raise UsageError for a layer with an offset whose delta, one for all heads, reads none."""
    for row, own in zip(plans or (), wrongs or (), strict=False):
        if any(own) and not readable(row[0]):
            why = f"delta_from={row[0].delta_from} reads no output that could be off"
            repair = f"{why}; use delta_from=OUT or O, or offset=none"
            raise bad("changes", "; ".join(texts), repair)


def described(wrongs: Wrongs | None) -> list[dict[str, Any]]:
    """Return the different offsets in words, and where each holds, as plain data."""
    where: dict[Wrong, list[list[int]]] = {}
    for layer, row in enumerate(wrongs or ()):
        for head, wrong in enumerate(row):
            if wrong is not None:
                where.setdefault(wrong, []).append([layer, head])
    return [{OFFSET: words(wrong), "layers_heads": at} for wrong, at in where.items()]


def words(wrong: Wrong) -> str:
    """Return an offset as the grammar writes it, such as 16:bias."""
    return f"{wrong.c:.9g}:{wrong.kind}" + (f":{ALL}" if wrong.everywhere else "")


def _wrong(text: str) -> Wrong:
    c, _, rest = text.partition(":")
    kind, more, rows = rest.partition(":")
    try:
        size = float(c)
    except ValueError:
        size = np.inf
    if not abs(size) <= LARGEST or not kind or (more and rows != ALL):
        form = f"write none, or C:KIND or C:KIND:{ALL} with a number C"
        raise ValueError(f"offset={text}: {form}, as in  offset=16:bias")
    if kind not in KINDS:
        raise ValueError(f"offset={text}: {unknown('kind', kind, KINDS)}")
    return Wrong(c=size, kind=kind, everywhere=bool(more))
