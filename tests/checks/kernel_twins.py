"""How many bits of real kernels' outputs their twins give: of the stored outputs, or of a folder
that gpu_kernels wrote.

python -m tests.checks.kernel_twins [FOLDER]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from roundscope.attention import examine
from roundscope.attention.inputs.scales import OPERANDS
from roundscope.attention.plans.twins import TWINS, Twin
from roundscope.attention.testing.calls import Inputs
from roundscope.tools.tensors.files import open_tensors
from tests.checks.kernel_outputs import (
    FAMILIES,
    GOLDEN,
    GROUPS,
    SERVED,
    WITH_INPUTS,
    inputs,
    of_first_head,
    of_one_head,
    widened,
)

# twin -> the kernel that it is compared with in calls without a window, softcap or sinks
KERNELS = {t.name: t.outputs[0] for t in TWINS.values() if t.outputs[0] not in SERVED}
PARTS = ("out", "lse", "dq", "dk", "dv")


def stored(kernel: str) -> dict[str, np.ndarray]:
    """The stored outputs of a kernel by family/mode/part: (1, T, 1, H), lse (1, 1, T)."""
    with open_tensors(GOLDEN / f"{kernel}.safetensors") as file:
        return {name: file[name] for name in file.names}


def stored_call(name: str) -> tuple[Inputs, dict[str, np.ndarray]]:
    """A call that is stored with its inputs: `fa4-softcap`, FlashAttention-4 with a softcap of 20,
    whose inputs no family draws.
    """
    with open_tensors(GOLDEN / f"{name}.safetensors") as file:
        arrays = {part: file[part] for part in file.names}
    given = {part: arrays.pop(part) for part in ("q", "k", "v", "do")}
    width = given["q"].shape[-1]
    return Inputs(**given, scale=width**-0.5, is_causal=True, softcap=20.0), arrays


def recorded(folder: Path, kernel: str) -> dict[str, np.ndarray]:
    """Head 0 of what was recorded in a folder."""
    [group] = [g for g, names in GROUPS.items() if kernel in names]
    file = np.load(folder / f"{group}.npz")
    own = {
        key.removeprefix(f"{kernel}/"): widened(file[key])
        for key in file
        if key.startswith(f"{kernel}/")
    }
    return {key: of_first_head(kernel, key.rpartition("/")[2], x) for key, x in own.items()}


def shares(
    twin: Twin, family: str, causal: bool, outputs: dict[str, np.ndarray], kernel: str = ""
) -> dict[str, float]:
    """Return the share of equal bits of each output that a twin gives; kernel: one of `SERVED`, for
    its window, softcap, sinks or scales.
    """
    prefix = f"{family}/{'causal' if causal else 'full'}/"
    own = {n.removeprefix(prefix): a for n, a in outputs.items() if n.startswith(prefix)}
    return shares_of(twin, of_one_head(inputs(family, causal, kernel)), own)


def shares_of(twin: Twin, x: Inputs, outputs: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the share of equal bits of each output of a call that a twin gives."""
    block_q, block_k = twin.tiles(x.q.shape[-1], x.is_cut)
    scales = x.scales or {}
    got = examine(
        *(
            a / np.float32(scales.get(n, 1.0))
            for n, a in zip(OPERANDS, (x.q, x.k, x.v), strict=True)
        ),
        x.do if "dv" in outputs else None,
        plan=twin.plan,
        block_q=block_q,
        block_k=min(block_k, x.k.shape[1]),
        scale=x.scale,
        is_causal=x.is_causal,
        record=None,
        engine="numpy",
        window=x.window,
        softcap=x.softcap,
        sinks=x.sinks,
        scales=x.scales,
    )
    found = {}
    for part in PARTS:
        want = outputs.get(part)
        if want is not None:
            ours = np.asarray(getattr(got, part), np.float32)
            ours = (ours.swapaxes(1, 2) if part == "lse" else ours).reshape(want.shape)
            found[part] = float((ours.view(np.int32) == want.view(np.int32)).mean())
    return found


def compared(folder: Path | None) -> Iterator[tuple[str, str, dict[str, dict[str, float]]]]:
    """Twin, kernel, and by "family mode" the shares of the parts."""
    for name, kernel in ((t.name, kernel) for t in TWINS.values() for kernel in t.outputs):
        if folder is not None and not any(kernel in names for names in GROUPS.values()):
            continue  # its call was recorded in another way
        outputs = stored(kernel) if folder is None else recorded(folder, kernel)
        families = (*FAMILIES, *WITH_INPUTS)
        calls = [(family, causal) for family in families for causal in (False, True)]
        modes = {
            f"{family} {'causal' if causal else 'full'}": (family, causal)
            for family, causal in calls
        }
        there = {
            mode: call for mode, call in modes.items() if f"{mode.replace(' ', '/')}/out" in outputs
        }
        yield (
            name,
            kernel,
            {mode: shares(TWINS[name], *call, outputs, kernel) for mode, call in there.items()},
        )


def summary(found: dict[str, dict[str, float]]) -> Iterator[str]:
    """How many calls were compared, the least share of each part, and the calls in which one was
    below 1.
    """
    yield str(len(found))
    for part in PARTS:
        of_part = [parts[part] for parts in found.values() if part in parts]
        yield f"{min(of_part):.5f}" if of_part else ""
    yield ", ".join(mode for mode, parts in found.items() if min(parts.values()) < 1.0)


def main() -> None:
    """A table in Markdown, a row for each twin."""
    print("| twin | kernel | calls |", " | ".join(PARTS), "| below 1 in |")
    print("|---" * (4 + len(PARTS)) + "|")
    for name, kernel, found in compared(Path(sys.argv[1]) if len(sys.argv) > 1 else None):
        print("|", " | ".join((name, kernel, *summary(found))), "|", flush=True)


if __name__ == "__main__":
    main()
