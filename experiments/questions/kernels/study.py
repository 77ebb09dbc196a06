"""`roundscope kernels`: which real kernels are biased, every one that runs here, on every family.

The measurements are kept in measured.json, so that a kernel is measured once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from os import cpu_count
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.attention.plans.twins import TWIN_OF, TWINS
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.foreign.user import in_time
from roundscope.emu.testing.foreign import check_timeout
from roundscope.experiments.catalogue import KERNELS
from roundscope.experiments.framework import command
from roundscope.experiments.framework.study import Figure, Outcome, Study, Table
from roundscope.experiments.options import KernelsOptions
from roundscope.experiments.questions.kernels.measure import (
    NAMES,
    RECORD,
    SAMPLE,
    TOKENS,
    Row,
    exact_of,
    inputs,
    measured,
    read,
    twin_outputs,
    write,
)
from roundscope.tools.errors import bad, why
from roundscope.tools.identify.adapters import ADAPTERS, OF_FILES, kernel, plain_name
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.machine import device, has_gpu
from roundscope.tools.sweep.running.executors import local

Rows = Sequence[Row]
SHORT, LONG = "#d55e00", "#0072b2"
COLOURS = LinearSegmentedColormap.from_list("gain", [SHORT, "#f7e2d0", "#f4f5f6", "#d3e4f1", LONG])
CLEAR = 4.0  # the |z| from which a gain counts as a bias
MOST = 12.0  # the |z| that has the full color
HEADS = {True: 48, False: 4}  # with a GPU, and without; with few heads kernels split keys
CAPTION = (
    "Gain: the mean over heads of <kernel - exact, exact> / |exact|^2; below 0 (orange) the result"
    f" is too short, above 0 (blue) too long. Bold: |z| of {CLEAR:g} or more, heads being"
    " independent. -: the kernel does not run on these inputs."
)
CAVEATS = (
    "Causal calls on BF16 inputs; real tensors are 24 heads of the shipped sample, without their"
    " last feature. Errors include the rounding of the result to BF16, whose relative rms is"
    " 1.7e-3. Repeated maximum and ties are made to show a bias; Gaussian is not."
)


def run(options: KernelsOptions) -> int:
    """Write report.html, kernels.json and measured.json; return the exit code.

    Raises:
        UsageError: a kernel is not known, or there is no code at a path.
    """
    released, tutorial, only = options.released, options.tutorial, options.only
    if released is not None and not (released / "attention.py").is_file():
        repair = "has no attention.py; give a checkout of ucker/why-low-precision-training-fails"
        raise bad("--released", str(released), repair)
    if tutorial is not None and not tutorial.is_file():
        repair = "no such file; give Triton's python/tutorials/06-fused-attention.py"
        raise bad("--tutorial", str(tutorial), repair)
    paths = {"released-eager": released, "released-compiled": released, "triton-tutorial": tutorial}
    names = {
        **dict.fromkeys(ADAPTERS, ""),
        **{name: f":{path}" for name, path in paths.items() if path is not None},
    }
    wanted = list(names) if only is None else [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in names and ":" not in name:
            needs = " (needs its path)" if name in OF_FILES else ""
            repair = f"must be among {', '.join(names)}, or module:function{needs}"
            raise bad("--only", name, repair)
    wanted = [name + names.get(name, "") for name in wanted]
    for name in wanted:
        if name.partition(":")[0] not in (*ADAPTERS, *OF_FILES):
            _checked(name)
    check_timeout(options.timeout)
    return command.run(
        study(wanted, timeout=options.timeout),
        out=options.out,
        command=f"roundscope {KERNELS.command}",
        as_json=options.json,
        draw=options.draw,
    )


def _checked(name: str) -> None:
    """Raise UsageError for a user's kernel that is none."""
    try:
        kernel(name)
    except (ValueError, TypeError) as error:
        raise bad("--only", name, why(error)) from None


def study(names: Sequence[str] = tuple(ADAPTERS), timeout: float | None = None) -> Study[Rows]:
    """Return the study of these kernels; timeout: the seconds that a call may take."""
    return Study(
        name=KERNELS.name,
        question=KERNELS.question,
        measure=lambda out, draw: _measure(names, out, draw, timeout),
        unit="kernels x families",
        kept=RECORD,
        answer=answer,
        figures=[
            Figure(title="Whose results are too short or too long?", draw=picture, caption=CAPTION)
        ],
        tables=[
            Table(
                name="rows",
                title="Every kernel on every family",
                heads=(
                    "family",
                    "kernel",
                    "error of out",
                    "of dq",
                    "gain of out, 1e-5 (z)",
                    "of dq",
                    "of delta",
                    "row sums of dS, rms",
                    "mean (z)",
                    "twin: bits of out",
                    "of dq, dk, dv",
                    "error / twin's",
                    "again",
                ),
                rows=table,
                records=plain,
                shown=(0, 1, 2, 4, 5, 7, 9, 12),
                grouped=True,
            )
        ],
        caveats=CAVEATS,
        about={"inputs": f"{TOKENS} tokens, 64 features (real tensors 32), causal, seed 0"},
    )


def _measure(
    names: Sequence[str], out: Path, draw: bool, timeout: float | None
) -> tuple[Outcome, Rows | None]:
    """Return what the folder's record has; unless it is only drawn, measure what it lacks first."""
    rows = [row for row in read(out / RECORD) if _is_kept(row)]
    there = {(row.kernel, row.family) for row in rows}
    todo: dict[str, list[str]] = {}
    for family in () if draw else (*NAMES, SAMPLE):
        if missing := [name for name in names if (plain_name(name), family) not in there]:
            todo[family] = missing
    total, done = sum(map(len, todo.values())), 0
    try:
        with bar("kernels", total) as progress:
            for row in _rows(todo, timeout):
                rows.append(row)
                done += 1
                progress(done)
                write(out / RECORD, [row for row in rows if _is_kept(row)])
    except KeyboardInterrupt:
        return Outcome(launches=total, there=0, ran=done, interrupted=True), rows or None
    own = [r for r in rows if r.failed and ":" in r.kernel and r.kernel in names]
    outcome = Outcome(
        launches=len(rows),
        there=len(rows),
        ran=done,
        failure=f"{own[0].kernel}: {own[0].failed}" if own else "",
        devices=[device("xla")],
    )
    return outcome, rows or None


def _is_kept(row: Row) -> bool:
    """Return whether a row is kept; a failure of a user's kernel is not, so that it runs again."""
    return not (row.failed and ":" in row.kernel)


def _rows(todo: Mapping[str, Sequence[str]], timeout: float | None) -> Iterator[Row]:
    """Yield rows family by family; twins run on the processor's cores beside the kernels."""
    with local(cpu_count() or 1) as crew:
        pool = crew.executor
        given = {family: inputs(family, HEADS[has_gpu()]) for family in todo}
        twins = {
            (family, twin): pool.submit(twin_outputs, twin, given[family][0])
            for family, missing in todo.items()
            for twin in sorted({TWIN_OF.get(plain_name(n), "") for n in missing} & set(TWINS))
        }
        exacts = {family: pool.submit(exact_of, *x) for family, x in given.items()}
        for family, missing in todo.items():
            for name in missing:
                label = plain_name(name)
                twin, exact = TWIN_OF.get(label, ""), exacts[family].result()
                beside = (twin, twins[family, twin].result()) if (family, twin) in twins else ()
                try:
                    run = in_time(kernel(name), timeout)
                except (ImportError, ValueError) as error:
                    failed = f"{type(error).__name__}: {error}"
                    yield Row(kernel=label, family=family, failed=failed)
                else:
                    yield measured(label, family, run, given[family][0], exact, *beside)


def answer(rows: Rows) -> str:
    """Return a sentence that says in how many pairs of kernel and family the output is biased."""
    there = [row for row in rows if not row.failed]
    if not there:
        first = next((f" ({row.kernel}: {row.failed})" for row in rows), "")
        return f"No kernel ran here, so that nothing was measured{first}."
    biased = [row for row in there if abs(row.gain["out"].z) >= CLEAR]
    short = sum(row.gain["out"].mean < 0 for row in biased)
    kernels = len({row.kernel for row in there})
    again = sorted({row.kernel for row in there if not row.again})
    twice = "every kernel gave the same bits twice"
    if again:
        twice = f"{', '.join(again)} did not give the same bits twice"
    return (
        f"Of {kernels} kernels on {len({row.family for row in there})} families, the output has a"
        f" clear gain (|z| of {CLEAR:g} or more) in {len(biased)} of {len(there)} pairs, {short} of"
        f" them too short; {twice}."
    )


def table(rows: Rows) -> list[list[str]]:
    """Return a line for each kernel and family, family by family."""
    order = list(dict.fromkeys(row.family for row in rows))
    return [_line(row) for row in sorted(rows, key=lambda row: order.index(row.family))]


def _line(row: Row) -> list[str]:
    if row.failed or row.signed is None or row.delta is None:
        return [row.family, row.kernel, "-", *[""] * 5, f"does not run: {row.failed}", *[""] * 4]
    gains = row.gain | {"delta": row.delta}
    gain = {name: f"{shown(x.mean)} ({x.z:+.1f})" for name, x in gains.items()}
    same = [f"{row.same[name]:.4f}" if row.same else "" for name in RESULTS]
    over = f"{max(row.over.values()):.4f}" if row.over else ""
    return [
        row.family,
        row.kernel,
        f"{row.error['out']:.2e}",
        f"{row.error['dq']:.2e}",
        gain["out"],
        gain["dq"],
        gain["delta"],
        f"{row.drift:.1e}",
        f"{row.signed.mean:+.1e} ({row.signed.z:+.1f})",
        f"{row.twin} {same[0]}".strip(),
        " ".join(same[1:]),
        over,
        "same" if row.again else "other",
    ]


def shown(gain: float) -> str:
    """Return a gain in units of 1e-5, with its sign."""
    x = gain * 1e5
    return f"{x:+.0f}" if abs(x) >= 9.5 else f"{x:+.1f}"


def picture(rows: Rows) -> Picture:
    """Draw kernels x families, colored by z."""
    ran = {row.kernel for row in rows if not row.failed}
    kernels = [name for name in dict.fromkeys(row.kernel for row in rows) if name in ran]
    families = list(dict.fromkeys(row.family for row in rows))
    by = {(row.kernel, row.family): row for row in rows}
    figure, axes = canvas(1.3 + 0.3 * len(kernels), 1, 2, sharey=True)
    for ax, result, title in zip(axes[0], ("out", "dq"), ("the output", "dQ"), strict=True):
        for y, name in enumerate(kernels):
            for x, family in enumerate(families):
                _cell(ax, x, y, by.get((name, family)), result)
        ax.set(xlim=(-0.5, len(families) - 0.5), ylim=(max(len(kernels), 1) - 0.5, -0.5))
        labels = [family.replace(" ", "\n") for family in families]
        ax.set_xticks(range(len(families)), labels, fontsize=7.5)
        ax.set_yticks(range(len(kernels)), kernels, fontsize=8.5)
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.set_title(f"gain of {title}, in 1e-5", fontsize=10, loc="left", color=INK)
        for side in ax.spines.values():
            side.set_visible(False)
    return figure


def _cell(ax: Axes, x: int, y: int, row: Row | None, result: str) -> None:
    gain = None if row is None or row.failed else row.gain[result]
    if gain is None or not math.isfinite(gain.mean):
        ax.text(x, y, "-", ha="center", va="center", fontsize=8, color=QUIET)
        return
    share = 0.5 + 0.5 * max(-1.0, min(1.0, gain.z / MOST)) if math.isfinite(gain.z) else 0.5
    ax.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=COLOURS(share), lw=0))
    clear = abs(gain.z) >= CLEAR
    style: dict[str, Any] = {"color": INK, "weight": "bold"} if clear else {"color": QUIET}
    ax.text(x, y, shown(gain.mean), ha="center", va="center", fontsize=7.5, **style)
