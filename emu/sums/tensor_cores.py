"""The matrix units of GPUs: how `Accumulator.tensor_core` adds.

The parameters are those of arXiv 2511.10909 (MMA-Sim; the numbers are from its version 2.1.1). For
the tensor cores of NVIDIA:

* **chunk** is the size of the factors that are added at once: 8 bytes on Volta, 16 bytes from
  Turing to Ada, 32 bytes since Hopper.
* **F** is the number of fractional bits that are kept when they are added: 23 on Volta, 24 from
  Turing to Ada, 25 since Hopper. For FP8 factors on Ada and Hopper it is 13, and 35 for FP4 factors
  in blocks (mxfp4, nvfp4) since Blackwell.
* **step** is the rounding of the sum: toward zero to binary32, or to binary32 with only 13 fraction
  bits if F is 13. A sum that is kept in FP16 rounds to nearest even.

The instructions are mma.sync up to Ada and on RTX Blackwell, wgmma on Hopper, and tcgen05.mma on
Blackwell (`INSTRUCTIONS`). mma.sync with FP8 factors on Hopper computes differently and is not
modeled. The matrix cores of AMD (cdna1 to cdna3, MFMA) have algorithms of their own in
`emu.sums.matrix_cores`; their sums are kept in binary32. MFMA adds FP32 factors in ascending order
by multiply-adds, as `Accumulator()` does.
"""

from itertools import product
from typing import NamedTuple

from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import format_named
from roundscope.emu.numbers import check_text
from roundscope.emu.roundings.modes import BINARY32, FP16, Rounding, rounding
from roundscope.emu.shown import shown
from roundscope.emu.sums.aligned import Alignment, GroupAlignment, MixedAlignment
from roundscope.emu.sums.matrix_cores import CutDownward, ExactChunk, FlushedPairs, MatrixCore

BITS = {
    "fp16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3fn": 8,
    "e5m2": 8,
    "e3m2fn": 8,
    "e2m3fn": 8,
    "e2m1fn": 8,
    "e4m3fnuz": 8,
    "e5m2fnuz": 8,
    "mxfp4": 4,
    "nvfp4": 4,
}  # the width of a factor when a tensor core reads it


class _Arch(NamedTuple):
    """The parameters of one architecture's tensor core."""

    chunk: int  # the size, in bytes, of the factors that are added at once
    bits: int  # the number of fractional bits that are kept, F
    bits_fp8: int | None  # F for FP8 factors, if it differs
    zero: int  # the exponent that a term of 0 has
    zero_fp16: int  # the exponent that a term of 0 has if the sum is kept in FP16
    operands: tuple[str, ...]
    bits_fp4: int = 35  # F for FP4 factors in blocks
    zero_fp4: int = -139  # the exponent that a group of such factors has if all products are 0


class _Matrix(NamedTuple):
    """The parameters of one architecture's matrix core."""

    kind: type[MatrixCore]
    chunks: dict[str, int]  # how many products are added at once, by the type of the factors

    @property
    def operands(self) -> tuple[str, ...]:
        """The types of the factors."""
        return tuple(self.chunks)


_FP8 = ("fp16", "bf16", "tf32", "e4m3fn", "e5m2")
_BLACKWELL = _Arch(32, 25, None, -133, -21, (*_FP8, "e3m2fn", "e2m3fn", "e2m1fn", "mxfp4", "nvfp4"))
ARCHITECTURES: dict[str, _Arch | _Matrix] = {
    "volta": _Arch(8, 23, None, -131, -19, ("fp16",)),
    "turing": _Arch(16, 24, None, -132, -20, ("fp16",)),
    "ampere": _Arch(16, 24, None, -132, -20, ("fp16", "bf16", "tf32")),
    "ada": _Arch(16, 24, 13, -132, -20, _FP8),
    "hopper": _Arch(32, 25, 13, -133, -21, _FP8),
    "blackwell": _BLACKWELL,
    "rtx_blackwell": _BLACKWELL,
    "cdna1": _Matrix(ExactChunk, {"fp16": 4, "bf16": 2}),
    "cdna2": _Matrix(FlushedPairs, {"fp16": 4, "bf16": 4}),
    "cdna3": _Matrix(
        CutDownward, {"fp16": 8, "bf16": 8, "tf32": 4, "e4m3fnuz": 16, "e5m2fnuz": 16}
    ),
}


class _Instruction(NamedTuple):
    """The shapes m, n, k of one instruction."""

    name: str
    m: tuple[int, ...]
    n: tuple[int, ...]
    size: tuple[int, ...]  # the size of k factors in bytes
    bits: tuple[int, ...] = (4, 8, 16, 32)  # the widths of its factors


_MMA = _Instruction("mma.sync", (16,), (8,), (16, 32))
_WIDE_MMA = _MMA._replace(bits=(16, 32))
_WIDE = tuple(range(8, 257, 8))
INSTRUCTIONS = {
    "volta": (_Instruction("mma.sync", (8,), (8,), (8,)),),
    "turing": (_MMA._replace(size=(16,)), _Instruction("mma.sync", (8,), (8,), (8,))),
    "ampere": (_MMA,),
    "ada": (_MMA,),
    "hopper": (_Instruction("wgmma", (64,), _WIDE, (32,)), _WIDE_MMA),
    "blackwell": (_Instruction("tcgen05.mma", (64, 128), _WIDE, (32,)), _WIDE_MMA),
    "rtx_blackwell": (_MMA,),
}
"""The instructions of tensor cores. An instruction of fewer products than a tensor core adds at
once adds those.
"""
_FP8_MFMA = "16x16x32 32x32x16"
_FP16_MFMA = "32x32x4 16x16x4 4x4x4 32x32x8 16x16x16"
MFMA = {
    "cdna1": {"fp16": _FP16_MFMA, "bf16": "32x32x4 32x32x2 16x16x8 16x16x2 4x4x2"},
    "cdna2": {"fp16": _FP16_MFMA, "bf16": _FP16_MFMA},
    "cdna3": {
        "fp16": _FP16_MFMA,
        "bf16": _FP16_MFMA,
        "tf32": "16x16x8 32x32x4",
        "e4m3fnuz": _FP8_MFMA,
        "e5m2fnuz": _FP8_MFMA,
    },
}
"""The shapes of MFMA instructions, of which k is the last number. Those of CDNA2 for BF16 are the
ones whose names end in _1k; the older ones add two products at once, as cdna2-2:bf16 does.
"""


def products_of(arch: str, operand: str, shape: str) -> int:
    """Return how many products an instruction adds at once, k or all that its unit can.

    Args:
        arch: the name of an architecture.
        operand: the format of the factors.
        shape: as vendors write it: m64n256k16, or 32x32x8 for an MFMA.

    Raises:
        ValueError: for a shape that no instruction of the architecture has for these factors. The
            message lists some that it has.
    """
    first = operand.split("*")[0]
    if arch in MFMA:
        known = {each: int(each.split("x")[2]) for each in MFMA[arch][first].split()}
    else:
        known = {
            f"m{m}n{n}k{8 * size // BITS[first]}": 8 * size // BITS[first]
            for one in INSTRUCTIONS[arch]
            if BITS[first] in one.bits
            for m, n, size in product(one.m, one.n, one.size)
        }
    if shape not in known:
        raise ValueError(unknown(f"instruction of {arch} for {operand}", shape, known))
    return min(known[shape], core_of(arch, operand, "fp32")[0])


def architecture(name: str) -> _Arch | _Matrix:
    """Return the parameters of an architecture; raise ValueError for an unknown name."""
    if name not in ARCHITECTURES:
        raise ValueError(unknown("architecture", name, ARCHITECTURES))
    return ARCHITECTURES[name]


def core_of(
    arch: str, operand: str, sum_format: str
) -> tuple[int, Alignment | MatrixCore, Rounding]:
    """Return the chunk, the alignment and the step of an architecture's matrix unit.

    The arguments are those of `Accumulator.tensor_core`, and so are the errors.
    """
    check_text("arch", arch, "hopper")
    check_text("operand", operand, "bf16")
    check_text("sum_format", sum_format, "fp32")
    core, mixed = architecture(arch), operand.split("*")
    if not 1 <= len(mixed) <= 2 or not all(x in core.operands for x in mixed):
        raise ValueError(
            f"operand={shown(operand)}: the tensor core of {arch} takes {' '.join(core.operands)}"
        )
    if len(mixed) == 2 and (mixed[0] == mixed[1] or any(BITS[x] != 8 for x in mixed)):
        raise ValueError(
            f"operand={shown(operand)}: two formats are two of 8 bits, such as e4m3fn*e5m2"
        )
    in_fp32_only = isinstance(core, _Matrix) or mixed[0] in ("bf16", "tf32", "mxfp4", "nvfp4")
    sums = ("fp32",) if in_fp32_only else ("fp32", "fp16")
    if sum_format not in sums:
        raise ValueError(
            f"sum_format={shown(sum_format)}: sums of {mixed[0]} are kept in {' or '.join(sums)}"
        )
    if isinstance(core, _Matrix):
        return core.chunks[mixed[0]], _of_matrix(core, mixed), BINARY32
    chunk = core.chunk * 8 // BITS[mixed[0]]
    if BITS[mixed[0]] == 4:
        return chunk, _of_groups(core, mixed[0]), rounding("fp32", "toward-zero")
    in_fp16 = sum_format == "fp16"
    bits = core.bits_fp8 if core.bits_fp8 and BITS[mixed[0]] == 8 else core.bits
    step = FP16 if in_fp16 else rounding("e8m13" if bits == 13 else "fp32", "toward-zero")
    zero = core.zero_fp16 if in_fp16 else core.zero
    alignment = Alignment(bits=bits, zero=zero, operand=format_named(mixed[0]))
    if len(mixed) == 2:
        first, second = map(format_named, mixed)
        alignment = MixedAlignment(bits=bits, zero=zero, operand=first, second=second)
    return chunk, alignment, step


def _of_groups(core: _Arch, operand: str) -> GroupAlignment:
    """Return how FP4 factors in blocks are added: 16 products are a group."""
    return GroupAlignment(
        bits=core.bits_fp4,
        zero=core.zero_fp4,
        operand=format_named("e2m1fn"),
        scale=format_named("e4m3fn" if operand == "nvfp4" else "e8m0fnu"),
        group=16,
    )


def _of_matrix(core: _Matrix, mixed: list[str]) -> MatrixCore:
    """Return how a matrix core adds: FP8 factors in two groups, of which c may be left out."""
    first, *others = map(format_named, mixed)
    second = others[0] if others else None
    if core.kind is CutDownward and BITS[mixed[0]] == 8:
        return CutDownward(operand=first, second=second, groups=2, least=25)
    return core.kind(operand=first, second=second)
