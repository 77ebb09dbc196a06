"""The picture of docs/findings/kernels.md: how many numbers of each kernel's output differ from
its twin, and from the preset that bore its name.

python -m tests.checks.kernel_picture [FILE.png]
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from roundscope.attention import Plan
from roundscope.attention.plans.twins import TWINS, Twin
from tests.checks.kernel_outputs import STORED
from tests.checks.kernel_twins import KERNELS, shares, stored

# twin -> the preset that stood for the kernel, and its tiles; none did for kernels of FP16
BEFORE = {
    "fa2": ("fa2-bf16@hopper", 128),
    "fa2-split": ("fa2-bf16@hopper", 128),
    "cudnn": ("fa2-bf16@hopper", 128),
    "sdpa-efficient": ("fa2-bf16@hopper", 64),
    "flex": ("fa2-bf16@hopper", 128),
    "pallas-mha": ("fa2-bf16@hopper", 128),
    "sdpa-math": ("baseline-bf16@hopper", 512),
    "eager": ("baseline-bf16@hopper", 512),
    "jax-xla": ("baseline-bf16@hopper", 512),
    "qiu-yao-eager": ("qiu-yao@hopper", 512),
    "qiu-yao-compiled": ("qiu-yao@hopper", 512),
}
PARTS = ("out", "dq", "dk", "dv")
NONE = 2e-6  # where "no number differs" is drawn
PRESET, TWIN = "#9aa5b1", "#0b6e99"


def preset_of(name: str) -> Twin:
    """The preset that stood for a kernel, as a twin."""
    preset, size = BEFORE[name]
    return Twin(
        name=preset,
        make=lambda: Plan.preset(preset),
        tiles=lambda width, is_cut: (size, size),
        source="",
    )


def differing(name: str, twin: Twin) -> dict[str, float]:
    """The share of numbers that differ, by part, over all stored inputs, causal and full."""
    outputs = stored(KERNELS[name])
    found = [shares(twin, family, causal, outputs) for family in STORED for causal in (False, True)]
    return {part: 1 - sum(x[part] for x in found) / len(found) for part in PARTS}


def drawn() -> Figure:
    """One row for each kernel and part."""
    figure = Figure(figsize=(9, 9.6), layout="constrained")
    axes = figure.subplots()
    labels, y = [], 0.0
    for name in BEFORE:
        before, after = differing(name, preset_of(name)), differing(name, TWINS[name])
        for part in PARTS:
            a, b = max(before[part], NONE), max(after[part], NONE)
            axes.plot([a, b], [y, y], color="#d9dee3", lw=1.5, zorder=1)
            axes.scatter([a], [y], s=26, color=PRESET, zorder=2)
            axes.scatter([b], [y], s=34, color=TWIN, zorder=3)
            labels.append((y, f"{name}   {part}" if part == "out" else part))
            y -= 1
        y -= 0.7
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=9)
    ticks = [1, 0.1, 0.01, 1e-3, 1e-4, 1e-5, NONE]
    axes.set_xticks(
        ticks,
        ["all", "1 in 10", "1 in 100", "1 in 1,000", "1 in 10,000", "1 in 100,000", "none"],
        fontsize=9,
    )
    axes.minorticks_off()
    axes.set_xlim(1.5, NONE / 1.6)
    axes.grid(axis="x", color="#eef1f4")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("numbers of the real kernel's output that differ in any bit")
    axes.scatter([], [], s=26, color=PRESET, label="the preset that bore its name")
    axes.scatter([], [], s=34, color=TWIN, label="its twin")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=10)
    return figure


if __name__ == "__main__":
    path = Path(
        sys.argv[1]
        if len(sys.argv) > 1
        else Path(__file__).parents[2] / "docs" / "images" / "kernels.png"
    )
    drawn().savefig(path, dpi=110)
    print(path)
