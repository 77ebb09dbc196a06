"""`roundscope kernels` as a `Study`: every kernel that runs here, on every family.

The measurements are kept in measured.json.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from os import cpu_count
from pathlib import Path
from typing import Any

from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.foreign.user import in_time
from roundscope.emu.plain_data import COUNT
from roundscope.emu.testing.foreign import check_timeout
from roundscope.emu.whole_files import read_whole
from roundscope.experiments.catalogue import KERNELS
from roundscope.experiments.framework import command
from roundscope.experiments.framework.study import Figure, Outcome, Study, Table
from roundscope.experiments.options import KernelsOptions
from roundscope.experiments.questions.kernels.families import NAMES, SAMPLE, TOKENS, inputs
from roundscope.experiments.questions.kernels.figure import CLEAR, picture, shown
from roundscope.experiments.questions.kernels.measure import (
    Mean,
    Row,
    exact_of,
    measured,
    twin_outputs,
)
from roundscope.tools.errors import StorageError, bad, printable, why
from roundscope.tools.identify.adapters import ADAPTERS, OF_FILES, kernel, plain_name
from roundscope.tools.identify.claims import CLAIMS
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.folder import write_json
from roundscope.tools.results.machine import device, has_gpu, versions
from roundscope.tools.results.tables import RESTORE, json_of
from roundscope.tools.sweep.running.pool import local

Rows = Sequence[Row]
RECORD = "measured.json"
_NUMBER = (float, None, "nan", "inf", "-inf")
_MEAN = {"mean": _NUMBER, "z": _NUMBER}
SHAPE = {  # of the record
    "rows": [
        dict.fromkeys(("kernel", "family", "twin", "failed"), str)
        | {name: {str: _NUMBER} for name in ("error", "same", "over")}
        | {"gain": {str: _MEAN}, "delta": (None, _MEAN), "signed": (None, _MEAN)}
        | {"heads": COUNT, "drift": _NUMBER, "again": bool}
    ]
}
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
        raise bad(
            "--released",
            str(released),
            "has no attention.py; give a checkout of ucker/why-low-precision-training-fails",
        )
    if tutorial is not None and not tutorial.is_file():
        raise bad(
            "--tutorial",
            str(tutorial),
            "no such file; give Triton's python/tutorials/06-fused-attention.py",
        )
    paths = {"released-eager": released, "released-compiled": released, "triton-tutorial": tutorial}
    names = {
        **dict.fromkeys(ADAPTERS, ""),
        **{name: f":{path}" for name, path in paths.items() if path is not None},
    }
    wanted = list(names) if only is None else [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in names and ":" not in name:
            needs = " (needs its path)" if name in OF_FILES else ""
            raise bad(
                "--only", name, f"must be among {', '.join(names)}, or module:function{needs}"
            )
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


def study(names: Sequence[str] = tuple(ADAPTERS), **sizes: Any) -> Study[Rows]:
    """Return the study of these kernels."""
    return Study(
        name=KERNELS.name,
        question=KERNELS.question,
        measure=lambda out, draw: _measure(names, out, draw, **sizes),
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
    names: Sequence[str],
    out: Path,
    draw: bool,
    heads: int | None = None,
    families: Sequence[str] = (*NAMES, SAMPLE),
    tokens: int = TOKENS,
    timeout: float | None = None,
) -> tuple[Outcome, Rows | None]:
    """Return what the folder's record has; unless it is only drawn, measure what it lacks first."""
    rows = [row for row in read(out / RECORD) if _is_kept(row)]
    there = {(row.kernel, row.family) for row in rows}
    todo: list[tuple[str, list[str]]] = []
    if not draw:
        todo = [(f, [n for n in names if (plain_name(n), f) not in there]) for f in families]
    total = sum(len(missing) for _, missing in todo)
    done = 0
    try:
        with bar("kernels", total) as progress:
            for row in _rows(todo, heads or HEADS[has_gpu()], tokens, timeout):
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


def _rows(
    todo: Sequence[tuple[str, list[str]]], heads: int, tokens: int, timeout: float | None
) -> Iterator[Row]:
    """Yield rows family by family; twins run on the processor's cores beside the kernels."""
    with local(cpu_count() or 1) as crew:
        pool = crew.executor
        given = {family: inputs(family, heads, tokens) for family, missing in todo if missing}
        twins = {
            (family, twin): pool.submit(twin_outputs, twin, given[family][0])
            for family, missing in todo
            for twin in sorted({CLAIMS.get(plain_name(n), "") for n in missing} & set(TWINS))
        }
        exacts = {family: pool.submit(exact_of, *x) for family, x in given.items()}
        for family, missing in todo:
            for name in missing:
                twin = CLAIMS.get(plain_name(name), "")
                wanted = twins.get((family, twin))
                yield _row(
                    name,
                    timeout,
                    family,
                    *given[family],
                    exacts[family].result(),
                    twin,
                    wanted.result() if wanted else None,
                )


def _row(
    name: str,
    timeout: float | None,
    family: str,
    x: Inputs,
    heads: int,
    exact: Any,
    twin: str,
    twins: Outputs | None,
) -> Row:
    label = plain_name(name)
    try:
        run = in_time(kernel(name), timeout)
    except (ImportError, ValueError) as error:
        return Row(kernel=label, family=family, failed=f"{type(error).__name__}: {error}")
    return measured(label, family, run, x, heads, exact, twin if twins else "", twins)


def write(path: Path, rows: Rows) -> None:
    """Write the rows, with the versions of what ran."""
    import importlib.metadata as metadata

    import jax
    import jaxlib.version

    libraries = {
        name: metadata.version(name)
        for name in ("torch", "triton", "transformers", "tokamax")
        if _is_there(metadata, name)
    }
    about = (
        versions("xla")
        | {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__}
        | libraries
        | {"device": device("xla")}
    )
    record = {"versions": about, "rows": plain([asdict(row) for row in rows])}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def _is_there(metadata: Any, name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def read(path: Path) -> list[Row]:
    """Return the rows of a record; none if there is no such file."""
    if not path.is_file():
        return []

    def mean(x: dict[str, float | str | None] | None) -> Mean | None:
        return None if x is None else Mean(**{k: _number(v) for k, v in x.items()})

    rows = []
    for row in json_of(path, "the record", read_whole(path), SHAPE)["rows"]:
        parts = ("error", "gain", "same", "over")
        full = () if row["failed"] else parts[:2]  # the others are of kernels that have a twin
        if any((part in full or row[part]) and {*RESULTS} - {*row[part]} for part in parts):
            raise StorageError(f"{path}: a row lacks one of {', '.join(RESULTS)}; {RESTORE} file")
        texts = {name: printable(x) for name, x in row.items() if isinstance(x, str)}
        plain_parts = {
            part: {name: _number(x) for name, x in row[part].items()}
            for part in parts
            if part != "gain"
        }
        numbers = {
            "gain": {name: mean(x) for name, x in row["gain"].items()},
            "delta": mean(row["delta"]),
            "signed": mean(row["signed"]),
            "drift": _number(row["drift"]),
        }
        known = {field.name: row[field.name] for field in fields(Row)}
        rows.append(Row(**known | texts | plain_parts | numbers))
    return rows


def _number(x: float | str | None) -> float:
    return math.nan if x is None else float(x)


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
    gain = {
        name: f"{shown(x.mean)} ({x.z:+.1f})"
        for name, x in [*row.gain.items(), ("delta", row.delta)]
    }
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
