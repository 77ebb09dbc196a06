"""The tensor cores of NVIDIA's architectures: how `Accumulator.tensor_core` adds.

The parameters are those of arXiv 2511.10909 (MMA-Sim; the numbers are from its version 2.1.1).

* **chunk** is the size of the factors that are added at once: 8 bytes on Volta, 16 bytes from
  Turing to Ada, 32 bytes since Hopper.
* **F** is the number of fractional bits that are kept when they are added: 23 on Volta, 24 from
  Turing to Ada, 25 since Hopper. For FP8 factors on Ada and Hopper it is 13.
* **step** is the rounding of the sum: toward zero to binary32, or to binary32 with only 13 fraction
  bits if F is 13. A sum that is kept in FP16 rounds to nearest even.

The instructions are mma.sync up to Ada and on consumer Blackwell, wgmma on Hopper, and tcgen05.mma
on Blackwell. mma.sync with FP8 factors on Hopper computes differently and is not modeled.
"""

from typing import NamedTuple

from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import format_named
from roundscope.emu.numbers import check_text
from roundscope.emu.roundings.modes import FP16, Rounding, rounding
from roundscope.emu.shown import shown
from roundscope.emu.sums.aligned import Alignment, MixedAlignment

BITS = {
    "fp16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3fn": 8,
    "e5m2": 8,
    "e3m2fn": 8,
    "e2m3fn": 8,
    "e2m1fn": 8,
}  # the width of a factor when a tensor core reads it


class _Arch(NamedTuple):
    """The parameters of one architecture's tensor core."""

    chunk: int  # the size, in bytes, of the factors that are added at once
    bits: int  # the number of fractional bits that are kept, F
    bits_fp8: int | None  # F for FP8 factors, if it differs
    zero: int  # the exponent that a term of 0 has
    zero_fp16: int  # the exponent that a term of 0 has if the sum is kept in FP16
    operands: tuple[str, ...]


_FP8 = ("fp16", "bf16", "tf32", "e4m3fn", "e5m2")
ARCHITECTURES = {
    "volta": _Arch(8, 23, None, -131, -19, ("fp16",)),
    "turing": _Arch(16, 24, None, -132, -20, ("fp16",)),
    "ampere": _Arch(16, 24, None, -132, -20, ("fp16", "bf16", "tf32")),
    "ada": _Arch(16, 24, 13, -132, -20, _FP8),
    "hopper": _Arch(32, 25, 13, -133, -21, _FP8),
    "blackwell": _Arch(32, 25, None, -133, -21, (*_FP8, "e3m2fn", "e2m3fn", "e2m1fn")),
}


def architecture(name: str) -> _Arch:
    """Return the parameters of an architecture; raise ValueError for an unknown name."""
    if name not in ARCHITECTURES:
        raise ValueError(unknown("architecture", name, ARCHITECTURES))
    return ARCHITECTURES[name]


def core_of(arch: str, operand: str, sum_format: str) -> tuple[int, Alignment, Rounding]:
    """Return the chunk, the alignment and the step of an architecture's tensor core.

    The arguments are those of `Accumulator.tensor_core`, and so are the errors.
    """
    check_text("arch", arch, "hopper")
    check_text("operand", operand, "bf16")
    check_text("sum_format", sum_format, "fp32")
    core, sums = architecture(arch), ("fp32",) if operand in ("bf16", "tf32") else ("fp32", "fp16")
    both, mixed = operand, operand.split("*")
    operand = mixed[0]
    if not 1 <= len(mixed) <= 2 or not all(x in core.operands for x in mixed):
        raise ValueError(
            f"operand={shown(both)}: the tensor core of {arch} takes {' '.join(core.operands)}"
        )
    if len(mixed) == 2 and (mixed[0] == mixed[1] or any(BITS[x] != 8 for x in mixed)):
        raise ValueError(
            f"operand={shown(both)}: two formats are two of 8 bits, such as e4m3fn*e5m2"
        )
    if sum_format not in sums:
        raise ValueError(
            f"sum_format={shown(sum_format)}: sums of {operand} are kept in {' or '.join(sums)}"
        )
    in_fp16 = sum_format == "fp16"
    bits = core.bits_fp8 if core.bits_fp8 and BITS[operand] == 8 else core.bits
    step = FP16 if in_fp16 else rounding("e8m13" if bits == 13 else "fp32", "toward-zero")
    zero = core.zero_fp16 if in_fp16 else core.zero
    alignment = Alignment(bits=bits, zero=zero, operand=format_named(operand))
    if len(mixed) == 2:
        first, second = map(format_named, mixed)
        alignment = MixedAlignment(bits=bits, zero=zero, operand=first, second=second)
    return core.chunk * 8 // BITS[operand], alignment, step
