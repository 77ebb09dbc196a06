"""A Triton kernel that adds FP8 products as DeepSeek-V3's inference code (`fp8_gemm`) does: each
128 features on the tensor cores, then times both scales and onto a sum in binary32.
"""

import triton
import triton.language as tl


@triton.jit
def product(a, b, sa, sb, c, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Write a (M, K) times b (N, K) transposed to c; sa has a scale for each 128 features of a
    row, sb one for each 128 x 128 numbers.
    """
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    s = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, 128)
    total = tl.zeros((BM, BN), tl.float32)
    for i in range(K // 128):
        x = tl.load(a + r[:, None] * K + i * 128 + ks[None, :])
        w = tl.load(b + s[None, :] * K + i * 128 + ks[:, None])
        p = tl.load(sa + r * (K // 128) + i)
        q = tl.load(sb + (s // 128) * (K // 128) + i)
        total += tl.dot(x, w) * p[:, None] * q[None, :]
    tl.store(c + r[:, None] * N + s[None, :], total)
