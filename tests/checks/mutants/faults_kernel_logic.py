"""Faults of a kernel's logic: tiles, masks, heads, memory, factors and the online softmax."""

from tests.checks.mutants.kernel_fault import Fault

_ROW_MAXIMUM = "m_new = np.maximum(m, s.max(-1, keepdims=True))"
_KEY_TILES = "in tiles(0, last_key(rows, k.shape[2], is_causal), BLOCK_K):"
_LSE = "np.where(np.isneginf(m), 0, m) + np.log(l)"
_SCALED_GRADIENTS = "return dq * scale, dk * scale, dv"
_HEADS_SUMMED = "-1, *x.shape[2:]).sum(2)"
_DQ = "dq[:, :, rows] += ds @ k_tile"

SOFTMAX = (
    Fault(
        name="row-sum-not-rescaled",
        level="gross",
        shows="gaussian",
        imitates="When the maximum grows, alpha is applied to O but not to the row sum.",
        old="l = l * alpha + p.sum",
        new="l = l + p.sum",
    ),
    Fault(
        name="output-not-rescaled",
        level="gross",
        shows="large-logits",
        imitates="When the maximum grows, alpha is applied to the row sum but not to O, as where a"
        " guard skips the rescaling of the first masked tile (hao-ai-lab/FastVideo #1506).",
        old="o = o * alpha + bf16(p)",
        new="o = o + bf16(p)",
    ),
    Fault(
        name="stale-maximum",
        level="gross",
        shows="large-logits",
        imitates="P is computed with the maximum of the tiles before, alpha with the new one.",
        old="p = np.exp(s - base)",
        new="p = np.exp(s - np.where(np.isneginf(m), base, m))",
    ),
    Fault(
        name="last-tile-maximum-ignored",
        level="gross",
        shows="extreme",
        imitates="The last key tile does not raise the maximum, so that its exp overflows where its"
        " scores are far above those of the tiles before. It shows at scores of thousands alone.",
        old=_ROW_MAXIMUM,
        new="m_new = m if 0 < columns.start and columns.stop == k.shape[2] else np.maximum(m,"
        " s.max(-1, keepdims=True))",
    ),
    Fault(
        name="no-maximum",
        level="gross",
        shows="extreme",
        imitates="No maximum is subtracted, so that scores above 88 overflow exp.",
        old=_ROW_MAXIMUM,
        new="m_new = np.zeros_like(m)",
    ),
    Fault(
        name="scores-clamped",
        level="gross",
        shows="extreme",
        imitates="Scores are clamped to [-30, 30], a guard against overflow that changes results.",
        old="return q @ turned(k) * scale",
        new="return np.clip(q @ turned(k) * scale, -30, 30)",
    ),
    Fault(
        name="row-sum-missing-in-lse",
        level="gross",
        shows="gaussian",
        imitates="The backward gets the row maximum where it expects the logarithm of the row sum.",
        old=_LSE,
        new="np.where(np.isneginf(m), 0, m)",
    ),
    Fault(
        name="lse-in-base-2",
        level="gross",
        shows="gaussian",
        imitates="The forward saves a logarithm to base 2 and the backward takes it for one to e.",
        old=_LSE,
        new="np.where(np.isneginf(m), 0, m) + np.log2(l)",
    ),
    Fault(
        name="scale-of-head-size",
        level="gross",
        shows="gaussian",
        imitates="The kernel ignores the scale it is given and multiplies by 1 / H.",
        old="scale = np.float32(scale)",
        new="scale = np.float32(1 / q.shape[-1])",
    ),
)

MASKS = (
    Fault(
        name="causal-strict",
        level="gross",
        shows="causal",
        imitates="The causal mask compares with < for <=: a query does not see its own key.",
        old="(column <= row)",
        new="(column < row)",
    ),
    Fault(
        name="causal-one-too-many",
        level="gross",
        shows="causal",
        imitates="The causal mask is off by one: a query sees the next key.",
        old="(column <= row)",
        new="(column <= row + 1)",
    ),
    Fault(
        name="causal-tiles-too-few",
        level="gross",
        shows="causal",
        imitates="The last tile of a causal row is computed from the tile's first query, which is"
        " wrong where a tile has more queries than keys (jax-ml/jax #17314).",
        old="math.ceil(rows.stop / BLOCK_K) * BLOCK_K",
        new="(rows.start // BLOCK_K + 1) * BLOCK_K",
    ),
    Fault(
        name="mask-forgotten-in-backward",
        level="gross",
        shows="causal",
        imitates="The backward does not mask the scores it recomputes. (A backward that took no"
        " notice of `causal` is triton-lang/triton #4541.)",
        old="p = np.where(seen(rows, columns), np.exp(s - lse[:, :, rows]), 0)",
        new="p = np.exp(s - lse[:, :, rows])",
    ),
    Fault(
        name="padding-keys-counted",
        level="gross",
        shows="ragged-grouped",
        imitates="Keys beyond the end of the sequence, which are zeros, take part in the softmax.",
        old="exists = column < keys",
        new="exists = column >= 0",
    ),
    Fault(
        name="ragged-tile-skipped",
        level="gross",
        shows="ragged-grouped",
        imitates="The number of key tiles is rounded down, so the last keys are left out.",
        old="exists = column < keys",
        new="exists = column < keys // BLOCK_K * BLOCK_K",
    ),
    Fault(
        name="mask-transposed",
        level="gross",
        shows="masked",
        imitates="The mask is read with its axes of queries and keys exchanged.",
        old="exists & mask[:, :, rows, columns]",
        new="exists & np.swapaxes(mask, 2, 3)[:, :, rows, columns]",
    ),
    Fault(
        name="masked-row-nan",
        level="gross",
        shows="masked",
        imitates="A row that sees no key in a tile computes exp(-inf + inf), which is NaN.",
        old="base = np.where(np.isneginf(m_new), 0, m_new)",
        new="base = m_new",
    ),
    Fault(
        name="finite-mask-value",
        level="gross",
        shows="masked",
        imitates="Masked scores are -10000, so a row that sees no key returns a mean of V.",
        old="s = np.where(seen(rows, columns), s, -np.inf)",
        new="s = np.where(seen(rows, columns), s, np.float32(-1e4))",
    ),
)

HEADS_AND_MEMORY = (
    Fault(
        name="groups-interleaved",
        level="gross",
        shows="ragged-grouped",
        imitates="Head n of q reads key head n mod G where it is n // (N / G).",
        old="np.repeat(x, heads // x.shape[1], axis=1)",
        new="np.tile(x, (1, heads // x.shape[1], 1, 1))",
    ),
    Fault(
        name="group-gradient-lost",
        level="gross",
        shows="ragged-grouped",
        imitates="dK and dV of a shared head come from the first head of its group only.",
        old=_HEADS_SUMMED,
        new="-1, *x.shape[2:])[:, :, 0]",
    ),
    Fault(
        name="heads-of-dv-reversed",
        level="gross",
        shows="gaussian",
        imitates="dV is stored with the strides of another layout, so its heads change places.",
        old="gathered(dk, heads), gathered(dv, heads)",
        new="gathered(dk, heads), gathered(dv, heads)[:, ::-1]",
    ),
    Fault(
        name="keys-of-first-entry",
        level="gross",
        shows="gaussian",
        imitates="The batch stride of K is zero: every batch entry reads the keys of the first.",
        old="    q = padded(heads_first(q), BLOCK_Q)\n",
        new="    k = np.broadcast_to(k[:1], k.shape)\n    q = padded(heads_first(q), BLOCK_Q)\n",
    ),
    Fault(
        name="first-row-of-tile",
        level="gross",
        shows="gaussian",
        imitates="An index is off by one: the first row of a tile is divided by the second's sum.",
        old="bf16(o / l)",
        new="bf16(o / np.concatenate([l[:, :, 1:2], l[:, :, 1:]], axis=2))",
    ),
    Fault(
        name="uninitialized-dq",
        level="gross",
        shows="gaussian",
        imitates="The accumulator of dQ is not set to zero, so results differ at every call (as"
        " those of jax-ml/jax #23819 do).",
        old="dq, dk, dv = np.zeros_like(q),",
        new="dq, dk, dv = garbage(q),",
    ),
    Fault(
        name="lost-updates",
        level="gross",
        shows="gaussian",
        imitates="Two blocks add to the same row of dQ without atomics, and one update is lost.",
        old=_DQ,
        new="dq[:, :, rows] += losing_last_row(ds @ k_tile)",
    ),
    Fault(
        name="order-depends-on-batch",
        level="subtle",
        shows="gaussian",
        imitates="The order of key tiles depends on the batch size, so a row's bits do too"
        " (flashinfer-ai/flashinfer #696).",
        old=_KEY_TILES,
        new="in in_order(tiles(0, last_key(rows, k.shape[2], is_causal), BLOCK_K), batch):",
    ),
)

GRADIENTS = (
    Fault(
        name="dq-not-scaled",
        level="gross",
        shows="gaussian",
        imitates="dQ lacks the factor of the scores.",
        old=_SCALED_GRADIENTS,
        new="return dq, dk * scale, dv",
    ),
    Fault(
        name="dk-not-scaled",
        level="gross",
        shows="gaussian",
        imitates="dK lacks the factor of the scores.",
        old=_SCALED_GRADIENTS,
        new="return dq * scale, dk, dv",
    ),
    Fault(
        name="delta-zero",
        level="gross",
        shows="gaussian",
        imitates="delta is read before the kernel that computes it has run, and is zero.",
        old="delta = (do * out).sum(-1, keepdims=True)",
        new="delta = np.zeros_like(lse)",
    ),
    Fault(
        name="delta-of-last-row",
        level="gross",
        shows="gaussian",
        imitates="delta is read one row off.",
        old="dp - delta[:, :, rows]",
        new="dp - np.roll(delta, 1, axis=2)[:, :, rows]",
    ),
)

LOGIC = SOFTMAX + MASKS + HEADS_AND_MEMORY + GRADIENTS
