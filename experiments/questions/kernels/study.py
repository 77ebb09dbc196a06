"""`roundscope kernels`: which real kernels are biased, every one that runs here, on every family.

The measurements are kept in measured.json, so that a kernel is measured once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from os import cpu_count
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.attention import examine
from roundscope.attention.plans.twins import TWIN_OF, TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import RESULTS, exact
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.attention.testing.foreign.user import Kernel, in_time
from roundscope.emu.plain_data import COUNT
from roundscope.emu.testing.foreign import check_timeout, raised
from roundscope.emu.whole_files import read_whole
from roundscope.experiments.catalogue import KERNELS
from roundscope.experiments.framework import command
from roundscope.experiments.framework.study import Figure, Outcome, Study, Table
from roundscope.experiments.options import KernelsOptions
from roundscope.experiments.questions.kernels.passport import command as passport
from roundscope.tools.errors import StorageError, bad, printable, why
from roundscope.tools.identify.adapters import ADAPTERS, OF_FILES, kernel, plain_name
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.folder import write_json
from roundscope.tools.results.machine import device, has_gpu, versions
from roundscope.tools.results.tables import RESTORE, json_of
from roundscope.tools.sweep.running.executors import local
from roundscope.tools.tensors.layers import read_layers, sample_path

TOKENS, FEATURES = 512, 64
FEATURES_OF = {"cudnn-fp8": 128, "cudnn-fp8-s256": 128}  # kernels that run with others alone
SAMPLE = "real tensors"
NAMES = {  # family -> its generator in sweeps
    "Gaussian": "gaussian",
    "one-signed V": "one-signed-v",
    "sink": "sink",
    "ties": "ties",
    "wide logits": "large-logits",
    "repeated maximum": "repeated-maximum",
}
# the shipped tensors are repeated, since with few heads kernels split the keys
LAYERS = ("layer1", "layer4")
COPIES = 4


def inputs(
    family: str, heads: int, tokens: int = TOKENS, features: int = FEATURES
) -> tuple[Inputs, int]:
    """Return the arguments of a causal call, (B, T, N, H), and how many heads are different.

    Those are the first ones. The last feature is 0 in q, v and dO and 1 in k: it changes no score,
    no output and no other gradient, and that of dQ is scale times the row sum of dS, which is 0 in
    exact arithmetic. Raises ValueError for an unknown family.
    """
    if family == SAMPLE:
        layers = [read_layers(sample_path(), layer=name)[0] for name in LAYERS]
        x = {
            role: np.concatenate([getattr(layer, role)[:1, :tokens] for layer in layers])
            for role in ("q", "k", "v", "do")
        }
        different = len(LAYERS) * layers[0].q.shape[2]
        x = {role: np.concatenate([array] * COPIES) for role, array in x.items()}
    elif family in NAMES:
        name = NAMES[family]
        sizes = {"queries": tokens, "keys": tokens, "heads": heads, "features": features}
        drawn = FAMILIES[name](Source(family=name, seed=0, **sizes))
        x = {role: array[None] for role, array in drawn.items()}
        different = heads
    else:
        raise ValueError(f"family={family}: must be one of {', '.join((*NAMES, SAMPLE))}")
    x = {
        role: np.ascontiguousarray(array.astype(ml_dtypes.bfloat16).astype(np.float32))
        for role, array in x.items()
    }
    for role, array in x.items():
        array[..., -1] = 1.0 if role == "k" else 0.0
    q, k, v, do = (x[role] for role in ("q", "k", "v", "do"))
    return Inputs(q=q, k=k, v=v, do=do, scale=q.shape[-1] ** -0.5, is_causal=True), different


TWIN_HEADS = 2  # the number of heads on which a kernel is compared with its twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over heads, and its z: the mean over its standard error, NaN for one head."""

    mean: float
    z: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kernel on a family.

    error      result -> |kernel - exact| / |exact|, Frobenius norms over all heads
    gain       result -> <kernel - exact, exact> / |exact|^2 of a head; below 0 it is too short
    delta      the gain of delta = rowsum(dO O) of the kernel's own O
    drift      rms of the row sums of dS over the rms of rowsum |dS|
    signed     the mean of the row sums of dS over the rms of rowsum |dS|
    same       result -> share of numbers equal to the twin's in every bit
    over       result -> error / the twin's error
    again      whether a second call gave the same bits
    failed     why there are no numbers
    """

    kernel: str
    family: str
    heads: int = 0
    error: dict[str, float] = field(default_factory=dict)
    gain: dict[str, Mean] = field(default_factory=dict)
    delta: Mean | None = None
    drift: float = math.nan
    signed: Mean | None = None
    twin: str = ""
    same: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    again: bool = True
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The exact results of a call, float64 (heads, T, H), and rowsum |dS| (heads, T)."""

    results: dict[str, np.ndarray]
    rows: np.ndarray


def by_head(x: Any, heads: int) -> np.ndarray:
    """Return the first heads of an array (B, T, N, H) as (heads, T, H) in float64."""
    x = np.asarray(x, np.float64)
    return np.ascontiguousarray(x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])[:heads])


def first(x: Inputs, heads: int) -> Inputs:
    """Return the inputs of the first heads, as one batch entry each."""
    q, k, v, do = (by_head(a, heads).astype(np.float32)[:, :, None] for a in (x.q, x.k, x.v, x.do))
    return replace(x, q=q, k=k, v=v, do=do)


def exact_of(x: Inputs, heads: int) -> Exact:
    """Return the exact results of the first heads."""
    results = exact(first(x, heads))
    return Exact(
        rows=results.rows[:, 0],
        results={name: by_head(getattr(results, name), heads) for name in RESULTS},
    )


def mean_of(values: np.ndarray) -> Mean:
    """Return the mean over heads and its z."""
    n = values.size
    spread = values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    centre = float(values.mean())
    if centre == 0.0:
        return Mean(mean=centre, z=0.0)
    return Mean(mean=centre, z=float(centre / spread) if spread else math.inf)


def gains(own: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return <own - exact, exact> / |exact|^2 of every head; the arrays are (heads, ...)."""
    axes = tuple(range(1, own.ndim))
    along: np.ndarray = ((own - exact) * exact).sum(axes) / np.square(exact).sum(axes)
    return along


def measured(
    name: str,
    family: str,
    kernel: Kernel,
    x: Inputs,
    exact: Exact,
    twin: str = "",
    twins: Outputs | None = None,
) -> Row:
    """Return the row of a kernel beside its twin's outputs; an error is told in the row."""
    try:
        outputs, again = kernel(x), kernel(x)
    except Exception as error:  # whatever a library raises
        return Row(kernel=name, family=family, failed=raised(error))
    if missing := [n for n in RESULTS if getattr(outputs, n) is None]:
        return Row(kernel=name, family=family, failed=f"returns no {', '.join(missing)}")
    heads = len(exact.rows)
    own = {n: by_head(getattr(outputs, n), heads) for n in RESULTS}
    # without the feature of ones
    cut = {n: (own[n][..., :-1], exact.results[n][..., :-1]) for n in RESULTS}
    do = by_head(x.do, heads)
    deltas = gains(*((do * y).sum(2) for y in (own["out"], exact.results["out"])))
    rows, size = own["dq"][..., -1] / x.scale, math.sqrt(float(np.square(exact.rows).mean()))
    row = Row(
        kernel=name,
        family=family,
        heads=heads,
        error={n: float(np.linalg.norm(a - b) / np.linalg.norm(b)) for n, (a, b) in cut.items()},
        gain={n: mean_of(gains(a, b)) for n, (a, b) in cut.items()},
        delta=mean_of(deltas),
        drift=math.sqrt(float(np.square(rows).mean())) / size,
        signed=mean_of(rows.mean(1) / size),
        twin=twin,
        again=all(np.array_equal(a, getattr(again, n), equal_nan=True) for n, a in outputs.named()),
    )
    return row if twins is None else _beside(row, own, exact, twins)


def _beside(row: Row, own: dict[str, np.ndarray], exact: Exact, twins: Outputs) -> Row:
    """Return the row with the comparison to the kernel's twin, on the heads that the twin has."""
    same, over = {}, {}
    for n in RESULTS:
        theirs = by_head(getattr(twins, n), TWIN_HEADS)
        ours, want = own[n][: len(theirs)], exact.results[n][: len(theirs), :, :-1]
        our_bits, their_bits = (a.astype(np.float32).view(np.int32) for a in (ours, theirs))
        same[n] = float((our_bits == their_bits).mean())
        our_error, their_error = (np.linalg.norm(a[..., :-1] - want) for a in (ours, theirs))
        over[n] = float(our_error / their_error)
    return replace(row, same=same, over=over)


def twin_outputs(twin: str, x: Inputs) -> Outputs:
    """Return what a twin gives on the first heads."""
    x = first(x, TWIN_HEADS)
    block_q, block_k = TWINS[twin].tiles(x.q.shape[-1], x.is_cut)
    tiles = {"block_q": block_q, "block_k": min(block_k, x.k.shape[1])}
    call: dict[str, Any] = {"scale": x.scale, "is_causal": x.is_causal, "record": None}  # no trace
    with np.errstate(all="ignore"):
        results = examine(
            x.q, x.k, x.v, x.do, plan=TWINS[twin].plan, engine="numpy", **tiles, **call
        )
    return Outputs(**{n: np.asarray(getattr(results, n), np.float32) for n in RESULTS})


RECORD = "measured.json"
_NUMBER = (float, None, "nan", "inf", "-inf")
_MEAN = {"mean": _NUMBER, "z": _NUMBER}
_TEXTS, _PARTS = ("kernel", "family", "twin", "failed"), ("error", "same", "over")
SHAPE = {  # of the record
    "rows": [
        dict.fromkeys(_TEXTS, str)
        | {name: {str: _NUMBER} for name in _PARTS}
        | {"gain": {str: _MEAN}, "delta": (None, _MEAN), "signed": (None, _MEAN)}
        | {"heads": COUNT, "drift": _NUMBER, "again": bool}
    ]
}


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows, with the versions of what ran."""
    libraries = {}
    for name in ("torch", "triton", "transformers", "tokamax"):
        with suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    about = versions("xla") | libraries | {"device": device("xla")}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"versions": about, "rows": plain(rows)})


def read(path: Path) -> list[Row]:
    """Return the rows of a record; none if there is no such file."""
    if not path.is_file():
        return []
    rows = []
    for row in json_of(path, "the record", read_whole(path), SHAPE)["rows"]:
        full = () if row["failed"] else ("error", "gain")  # the others are of those with a twin
        if any(
            (part in full or row[part]) and {*RESULTS} - {*row[part]} for part in (*_PARTS, "gain")
        ):
            raise StorageError(f"{path}: a row lacks one of {', '.join(RESULTS)}; {RESTORE} file")
        known: dict[str, Any] = {field.name: row[field.name] for field in fields(Row)}
        known |= {name: printable(row[name]) for name in _TEXTS}
        known |= {part: {n: _number(x) for n, x in row[part].items()} for part in _PARTS}
        known |= {name: _mean(row[name]) for name in ("delta", "signed")}
        known |= {
            "gain": {name: _mean(x) for name, x in row["gain"].items()},
            "drift": _number(row["drift"]),
        }
        rows.append(Row(**known))
    return rows


def _mean(x: Mapping[str, float | str | None] | None) -> Mean | None:
    return None if x is None else Mean(mean=_number(x["mean"]), z=_number(x["z"]))


def _number(x: float | str | None) -> float:
    return math.nan if x is None else float(x)


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
    """Write report.html, kernels.json, measured.json; return the exit code. Raises UsageError."""
    passport.check(options)
    if options.record is not None or options.compare is not None:
        return passport.run(options)
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
    return Outcome(
        launches=len(rows),
        there=len(rows),
        ran=done,
        failure=f"{own[0].kernel}: {own[0].failed}" if own else "",
        devices=[device("xla")],
    ), rows or None


def _is_kept(row: Row) -> bool:
    """Return whether a row is kept; a failure of a user's kernel is not, so that it runs again."""
    return not (row.failed and ":" in row.kernel)


def _rows(todo: Mapping[str, Sequence[str]], timeout: float | None) -> Iterator[Row]:
    """Yield rows family by family; twins run on the processor's cores beside the kernels."""
    with local(cpu_count() or 1) as crew:
        pool = crew.executor
        wanted = {
            (family, TWIN_OF.get(plain_name(name), ""), FEATURES_OF.get(name, FEATURES))
            for family, missing in todo.items()
            for name in missing
        }
        calls = {(family, features) for family, _, features in wanted}
        given = {call: inputs(call[0], HEADS[has_gpu()], features=call[1]) for call in calls}
        twins = {
            (family, twin): pool.submit(twin_outputs, twin, given[family, features][0])
            for family, twin, features in sorted(wanted)
            if twin in TWINS
        }
        exacts = {call: pool.submit(exact_of, *x) for call, x in given.items()}
        for family, missing in todo.items():
            for name in missing:
                label = plain_name(name)
                call = family, FEATURES_OF.get(name, FEATURES)
                twin, exact = TWIN_OF.get(label, ""), exacts[call].result()
                beside = (twin, twins[family, twin].result()) if (family, twin) in twins else ()
                try:
                    run = in_time(kernel(name), timeout)
                except (ImportError, ValueError) as error:
                    failed = f"{type(error).__name__}: {error}"
                    yield Row(kernel=label, family=family, failed=failed)
                else:
                    yield measured(label, family, run, given[call][0], exact, *beside)


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
        (f"{max(row.over.values()):.4f}" if row.over else ""),
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
