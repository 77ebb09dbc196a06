"""Faults of a kernel's arithmetic: casts, formats of accumulators, exp and reciprocals."""

from tests.checks.mutants.kernel_fault import Fault

_CAST = "return x.astype(ml_dtypes.bfloat16).astype(np.float32)"
_SCORES = "return q @ turned(k) * scale"
_O = "o = o * alpha + bf16(p) @ v[:, :, columns]"
_L = "l = l * alpha + p.sum(-1, keepdims=True)"
_OUT = "out[:, :, rows] = bf16(o / l)"
_DELTA = "delta = (do * out).sum(-1, keepdims=True)"
_EXP_AGAIN = "np.exp(s - lse[:, :, rows]), 0)"
_DQ = "dq[:, :, rows] += ds @ k_tile"

CASTS = (
    Fault(
        name="ties-away",
        level="subtle",
        shows="ties",
        imitates="Every cast adds half an ulp and cuts, which rounds ties away from zero.",
        old=_CAST,
        new="return ties_away(x)",
    ),
    Fault(
        name="cast-through-fp16",
        level="moderate",
        shows="extreme",
        imitates="Every cast goes through FP16: it rounds twice and has FP16's range.",
        old=_CAST,
        new="return through_fp16(x)",
    ),
    Fault(
        name="p-truncated",
        level="moderate",
        shows="one-signed-v",
        imitates="P is cast by dropping bits, so the output is too short.",
        old=_O,
        new=_O.replace("bf16", "truncated"),
    ),
    Fault(
        name="out-truncated",
        level="moderate",
        shows="gaussian",
        imitates="The output is cast by dropping bits.",
        old=_OUT,
        new=_OUT.replace("bf16", "truncated"),
    ),
    Fault(
        name="ds-truncated",
        level="moderate",
        shows="gaussian",
        imitates="dS is cast by dropping bits.",
        old="ds = bf16(p",
        new="ds = truncated(p",
    ),
    Fault(
        name="p-truncated-in-backward",
        level="moderate",
        shows="gaussian",
        imitates="The backward casts the P of dV by dropping bits, so dV is too short.",
        old="turned(bf16(p)) @ do_tile",
        new="turned(truncated(p)) @ do_tile",
    ),
    Fault(
        name="gradients-truncated",
        level="moderate",
        shows="gaussian",
        imitates="The epilogue of the backward casts by dropping bits.",
        old="heads_last(bf16(x)) for x",
        new="heads_last(truncated(x)) for x",
    ),
    Fault(
        name="p-in-e4m3",
        level="gross",
        shows="gaussian",
        imitates="P is cast to E4M3 without a scale: a kernel for FP8 is chosen for BF16.",
        old=_O,
        new=_O.replace("bf16", "unscaled_e4m3"),
    ),
    Fault(
        name="small-p-flushed",
        level="moderate",
        shows="sink",
        imitates="Weights below 2^-14 are flushed to zero before P V, but not in the row sum.",
        old=_O,
        new=_O.replace("bf16(p)", "bf16(flushed(p))"),
    ),
    Fault(
        name="q-scaled-in-bf16",
        level="moderate",
        shows="large-logits",
        imitates="Q is multiplied by scale log2(e) and rounded to BF16 before the scores, as an"
        " early Triton tutorial does in FP16 (the kernel in ROCm/triton #514).",
        old=_SCORES,
        new="return bf16(q * (scale * np.float32(1.4426950))) @ turned(k) * np.float32(0.6931472)",
    ),
    Fault(
        name="scores-in-bf16",
        level="moderate",
        shows="large-logits",
        imitates="The scores are stored in BF16 before the softmax.",
        old=_SCORES,
        new="return bf16(q @ turned(k) * scale)",
    ),
    Fault(
        name="dp-in-bf16",
        level="moderate",
        shows="repeated-maximum",
        imitates="dP is stored in BF16 before delta is subtracted, which cancels digits.",
        old="dp = do_tile @ turned(v_tile)",
        new="dp = bf16(do_tile @ turned(v_tile))",
    ),
)

ACCUMULATORS = (
    Fault(
        name="output-accumulated-in-bf16",
        level="moderate",
        shows="gaussian",
        imitates="The running O is kept in BF16 between key tiles.",
        old=_O,
        new="o = bf16(o * alpha + bf16(p) @ v[:, :, columns])",
    ),
    Fault(
        name="row-sum-in-bf16",
        level="moderate",
        shows="sink",
        imitates="The running row sum is kept in BF16 between key tiles.",
        old=_L,
        new="l = bf16(l * alpha + p.sum(-1, keepdims=True))",
    ),
    Fault(
        name="alpha-in-bf16",
        level="subtle",
        shows="masked",
        imitates="The factor that rescales O and the row sum is BF16.",
        old="alpha = np.exp(m - base)",
        new="alpha = bf16(np.exp(m - base))",
    ),
    Fault(
        name="split-partial-in-bf16",
        level="moderate",
        shows="repeated-maximum",
        imitates="The output of the first half of the keys is normalized and rounded to BF16"
        " before the halves are merged (flashinfer-ai/flashinfer #5107).",
        old="            m = m_new\n",
        new="            m = m_new\n"
        "            if columns.stop == k.shape[2] // (2 * BLOCK_K) * BLOCK_K:\n"
        "                o = bf16(o / np.where(l == 0, 1, l)) * l\n",
    ),
    Fault(
        name="dq-accumulated-in-bf16",
        level="subtle",
        shows="ragged-grouped",
        imitates="Blocks add to dQ by atomics in BF16.",
        old=_DQ,
        new="dq[:, :, rows] = bf16(dq[:, :, rows] + ds @ k_tile)",
    ),
    Fault(
        name="dk-accumulated-in-bf16",
        level="subtle",
        shows="ragged-grouped",
        imitates="The running dK is kept in BF16 between query tiles.",
        old="dk[:, :, columns] += turned(ds) @ q_tile",
        new="dk[:, :, columns] = bf16(dk[:, :, columns] + turned(ds) @ q_tile)",
    ),
    Fault(
        name="group-summed-in-bf16",
        level="subtle",
        shows="ragged-grouped",
        imitates="dK and dV of each head are rounded to BF16 before a group's heads are summed.",
        old="return x.reshape(x.shape[0], heads,",
        new="return bf16(x).reshape(x.shape[0], heads,",
    ),
    Fault(
        name="lse-in-bf16",
        level="gross",
        shows="large-logits",
        imitates="The logarithm of the row sum is saved for the backward in BF16.",
        old="lse[:, :, rows] = np.where(np.isneginf(m), 0, m) + np.log(l)",
        new="lse[:, :, rows] = bf16(np.where(np.isneginf(m), 0, m) + np.log(l))",
    ),
    Fault(
        name="delta-in-bf16",
        level="moderate",
        shows="repeated-maximum",
        imitates="delta is stored in BF16.",
        old=_DELTA,
        new="delta = bf16((do * out).sum(-1, keepdims=True))",
    ),
)

FUNCTIONS = (
    Fault(
        name="exp-too-short",
        level="moderate",
        shows="outlier-channel",
        imitates="exp of the forward is a polynomial with a term too few, always too small.",
        old="p = np.exp(s - base)",
        new="p = short_exp(s - base)",
    ),
    Fault(
        name="exp-biased-in-backward",
        level="moderate",
        shows="gaussian",
        imitates="exp of the backward is too large by 2^-9, as a coarse table is on one side.",
        old=_EXP_AGAIN,
        new="np.exp(s - lse[:, :, rows]) * np.float32(1 + 2**-9), 0)",
    ),
    Fault(
        name="reciprocal-in-bf16",
        level="moderate",
        shows="repeated-maximum",
        imitates="The output is multiplied by a reciprocal of the row sum that is BF16.",
        old=_OUT,
        new="out[:, :, rows] = bf16(o * bf16(1 / l))",
    ),
    Fault(
        name="reciprocal-truncated",
        level="moderate",
        shows="gaussian",
        imitates="The reciprocal of the row sum is an approximation from below.",
        old=_OUT,
        new="out[:, :, rows] = bf16(o * truncated(1 / l))",
    ),
    Fault(
        name="p-clipped",
        level="gross",
        shows="outlier-channel",
        imitates="The maximum may lag by a factor 2^4 of P, and P is clipped at 1.75 while the row"
        " sum is not (Dao-AILab/flash-attention #2577).",
        old="m_new = np.maximum(m, s.max(-1, keepdims=True))\n"
        "            base = np.where(np.isneginf(m_new), 0, m_new)"
        "  # a row without keys: exp(-inf - 0) = 0\n"
        "            p = np.exp(s - base)\n"
        "            alpha = np.exp(m - base)\n"
        "            l = l * alpha + p.sum(-1, keepdims=True)\n"
        "            o = o * alpha + bf16(p) @ v[:, :, columns]\n",
        new="m_new = lazy_maximum(m, s)\n"
        "            base = np.where(np.isneginf(m_new), 0, m_new)\n"
        "            p = np.exp(s - base)\n"
        "            alpha = np.exp(m - base)\n"
        "            l = l * alpha + p.sum(-1, keepdims=True)\n"
        "            o = o * alpha + bf16(clipped(p)) @ v[:, :, columns]\n",
    ),
)

ROUNDING = CASTS + ACCUMULATORS + FUNCTIONS
