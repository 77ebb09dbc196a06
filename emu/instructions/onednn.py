"""Functions of the library oneDNN, which PyTorch's gelu on a CPU calls, bit for bit.

They are those of processors with AVX-512 (src/cpu/x64/injectors/jit_uni_eltwise_injector.cpp).
"""

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.instructions.steps import Steps


def binary32(words: str) -> np.ndarray:
    """Return binary32 numbers that are given by their bits."""
    bits = np.array([int(word, 16) for word in words.split()], np.uint32)
    return bits.view(np.float32).astype(np.float64)


# erf(x / sqrt 2) for x > 0 by polynomials of degree 5: for each power, the highest first, the
# coefficients of all intervals, which are quarters of a binade that end at 5/4 2^-3, 6/4 2^-3, ...;
# the last but one is the number 1, and the last one is x, for NaN
INTERVALS = binary32("""
3cb7d80c 3c9b6050 3c978d11 3c92e850 3c8d058b 3c848454 3c6cd623 3c4c824b 3c2a7935 3be0b390 3b0651ac
bb232f53 bbd42fa0 bc2c5366 bc492c9e bc2a7aa6 bbd55d04 ba823a76 3b102aa8 3ae25a7e 3a31f792 38b84375
3689bb5a 0 0
ba3d61db 39f097a3 3a5845dc 3ab1fa35 3b0cefb8 3b653ab6 3bcae527 3c221712 3c6c5840 3cc0a703 3d1dcc19
3d63656d 3d955907 3dbf9910 3dd53f69 3db7dcef 3d639ebe ba6ede48 bd22be69 bd041cf1 bc64f5ab bb097a32
b8ebf380 0 0
be081a19 be084570 be08639b be089837 be08f409 be09ab95 be0b66d0 be0e400a be124df8 be1bde02 be2f19c9
be4931bf be685fbc be89c95f be96cbca be8044aa be0550f2 3dcfd6a1 3e94c826 3e79345f 3decec91 3ca46568
3aa1e00a 0 0
b62173f4 3735e4cf 37f2ff89 388c23be 3917535c 39ab2ab0 3a60fadb 3af9b960 3b6e5491 3c0a4ec5 3ca5aa8c
3d2138d9 3d8737d4 3ddfb660 3e0f27ab 3d94004b be0efdeb bf1d96c3 bf89db58 bf6d9897 bef69fb8 bdc4f8a8
bbde6422 0 0
3f4c422a 3f4c421f 3f4c4207 3f4c41cb 3f4c413b 3f4c3fad 3f4c3a2f 3f4c2d40 3f4c146a 3f4bc341 3f4ad08c
3f48f8cf 3f45fac7 3f404e07 3f3b980f 3f48dff3 3f78b21b 3fbb0704 40019c32 3fe536d6 3f81331e 3e6c8684
3c98f936 0 3f800000
a6f2cb94 32827792 3381cc0c 34523d4a 351ac44d 35f36d88 36ee8229 37b8a3bb 3867a213 3940033b 3a2a5a1d
3ae35863 3b7828f2 3c08b14b 3c515ed3 bb503236 bd8d8e5e be8abcd9 bf0c19a2 beccb328 3e176ced 3f470d99
3f7abb28 3f800000 0
""").reshape(6, 25)
ONE_FROM = float(binary32("40b15cee")[0])
BEGIN = 0x3DE00001  # the bits of the binary32 number before which the first interval would begin
ERF = binary32("3f87dc22 bfba00e3 3fb5f0e3 be91a98e 3e827906")  # of t, the highest power first
ERF_P = float(binary32("3ea7ba05")[0])
EXP = binary32("3c07cfce 3d2b9d0d 3e2aad40 3efffee3 3f7ffffb 3f800000")
LOG2_E, LN_2 = (float(x) for x in binary32("3fb8aa3b 3f317218"))
LEAST, LARGEST = (float(x) for x in binary32("c2aeac50 42b17218"))


def exp_of_5(ops: Ops, x: Array) -> Array:
    """Return e^x as oneDNN has it, for a float64 array of binary32 numbers.

    The method is e^x = 2^n p(x - n ln 2) with a polynomial p of degree 5; it is 0 below ln 2^-126.
    """
    do, xp = Steps(ops), ops.xp
    z = xp.fmax(xp.fmin(x, LARGEST), LEAST)  # a number for NaN too
    n = xp.floor(do.add(do.multiply(z, LOG2_E), 0.5))
    p = do.polynomial(do.fma(n, -LN_2, z), EXP)
    power = ops.from_bits((n.astype(np.int64) + 1023) << 52)
    y = do.multiply(p, power)
    return xp.where(xp.isnan(x), x, xp.where(x < LEAST, 0.0, y))


def erf_by_intervals(ops: Ops, x: Array) -> Array:
    """Return erf(x / sqrt 2) as oneDNN's gelu has it, for a float64 array of binary32 numbers.

    For |x| it is a polynomial of degree 5, by quarters of a binade; NaN gives NaN.
    """
    xp, size = ops.xp, ops.xp.abs(x)
    word = (ops.bits(xp.where(xp.isnan(x), 8.0, xp.fmin(size, 8.0))) >> 29) - ((1023 - 127) << 23)
    interval = xp.clip((word - BEGIN) >> 21, 1, 24)
    interval = xp.where(size > ONE_FROM, 23, interval)
    found = Steps(ops).polynomial(size, [xp.asarray(c)[interval] for c in INTERVALS])
    return xp.where(x < 0.0, -found, found)
