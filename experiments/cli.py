"""The command line: one thin function per verb. Data to stdout, progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 bad usage, always with one line and never a traceback.
Nothing heavy is imported before a verb runs.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from experiments.errors import ExecutorError, StorageError, one_line

app = typer.Typer(
    name="roundscope",
    help="A microscope for low-precision arithmetic in attention.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class NumberCommand(TyperCommand):
    """A command whose argument may be a negative number, before or behind its options, with or without '--'.

    It has long options only, so a word with a single dash is the number: it goes last, behind '--'.
    """

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """As the parent, with the numbers out of the options' way."""
        words = [a for a in args if a != "--"]
        taking = {name for p in self.params if not getattr(p, "is_flag", True) for name in p.opts}
        numbers = [i for i, a in enumerate(words) if _single_dash(a) and not (i and words[i - 1] in taking)]
        rest = [a for i, a in enumerate(words) if i not in numbers]
        return super().parse_args(ctx, [*rest, "--", *(words[i] for i in numbers)] if numbers else rest)


class TrainCommand(TyperCommand):
    """A command whose --at takes two words, STEP and CHANGE: here one, STEP:CHANGE, since typer knows no repeated option of two."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """As the parent, with the two words joined."""
        words = list(args)
        for i in range(len(words) - 2, 0, -1):
            if words[i - 1] == "--at" and ":" not in words[i]:
                words[i : i + 2] = [f"{words[i]}:{words[i + 1]}"]
        return super().parse_args(ctx, words)


def _single_dash(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and len(word) > 1


@app.command()
def formats(
    names: Annotated[list[str] | None, typer.Argument(help="Any, e<x>m<y> too; all if left out.")] = None,
    json: Json = False,
) -> None:
    """Table of number formats: range, epsilon, tie window."""
    from experiments import formats_view

    formats_view.show(names or (), as_json=json)


@app.command(cls=NumberCommand)
def explain(
    value: Annotated[str, typer.Argument(help="-4.7, 1/3, 0x1.8p3, inf or nan.", metavar="VALUE")],
    to: Annotated[str, typer.Option("--to", help="Target format, such as bf16 or e4m3fn.", metavar="FORMAT")],
    mode: Annotated[str, typer.Option(help="Rounding mode, such as toward-zero.")] = "ties-to-even",
    overflow: Annotated[str | None, typer.Option(help="inf, nan or saturate; the format's own if left out.")] = None,
    seed: Annotated[int, typer.Option(help="Of the stochastic mode.")] = 0,
    plus: Annotated[str | None, typer.Option(help="Round VALUE + this, and draw the addition.", metavar="B")] = None,
    json: Json = False,
) -> None:
    """Draw one rounding in bits: what is kept and why."""
    from experiments import explain_command

    explain_command.run(value, to, mode=mode, overflow=overflow, seed=seed, plus=plus, as_json=json)


@app.command()
def sites(json: Json = False) -> None:
    """List every rounding event with its formula."""
    from experiments import sites_view

    sites_view.show(as_json=json)


@app.command()
def trace(
    file: Annotated[Path | None, typer.Argument(help="safetensors or npz with q, k, v and optionally do, per layer.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="The real tensors that come with Roundscope.")] = False,
    layer: Annotated[str | None, typer.Option(help="This layer only.")] = None,
    plan: Annotated[
        str,
        typer.Option(
            help="exact, fp32, qiu-yao, fa2-bf16, fa3-fp8, fa3-fp8-scaled, mxfp8-attention, baseline-bf16 or all:<format>; "
            "with @hopper: on its tensor cores."
        ),
    ] = "qiu-yao",
    block_q: Annotated[int, typer.Option(help="Queries per tile.")] = 128,
    block_k: Annotated[int, typer.Option(help="Keys per tile.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="Query t sees keys s <= t.")] = False,
    scale: Annotated[float | None, typer.Option(help="Of the scores; the file's, else 1 / sqrt(H).")] = None,
    layout: Annotated[str | None, typer.Option(help="BNTH or BTNH; the file's metadata if left out.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="SITE=FORMAT[:MODE]", help="O=bf16:stochastic; repeatable.")] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE:WHAT[:WHERE]...",
            help="O:ulps=0.5:rows=0-63:heads=3, PV:exact, P:flip=3:rows=5,9; repeatable. WHAT: exact, ulps=X, bias=X, set=X, "
            "flip=BIT, noise=ULPS. WHERE: batch=, heads=, rows=, columns=, features=, tiles= with numbers and ranges, ends included.",
        ),
    ] = None,
    record: Annotated[
        list[str] | None, typer.Option(metavar="WHAT", help="rows, events:SITE,SITE (to records.npz) or steps:SITE; repeatable.")
    ] = None,
    against: Annotated[str, typer.Option(help="The plan to compare results with; exact is binary64.")] = "exact",
    engine: Annotated[str, typer.Option(help="numpy or xla; the same bits.")] = "numpy",
    seed: Annotated[int, typer.Option(help="Of stochastic rounding and noise.")] = 0,
    allow_nan: Annotated[bool, typer.Option("--allow-nan", help="Go on with NaN and infinities in the file.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and trace.json; trace-<file>-<plan> if left out.")] = None,
    json: Json = False,
) -> None:
    """Run attention on tensors and report which rounding events lean."""
    from experiments import trace_command

    trace_command.run(
        file, sample=sample, layer=layer, layout=layout, allow_nan=allow_nan, out=out, as_json=json, plan=plan, against=against,
        sets=set_ or [], inject=inject or [], record=record or [], engine=engine, seed=seed, block_q=block_q, block_k=block_k,
        scale=scale, causal=causal,
    )  # fmt: skip


@app.command()
def diagnose(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_OR_TENSORS", help="The folder of a training run; or safetensors or npz with q, k, v, do per layer."),
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="The real tensors that come with Roundscope.")] = False,
    layer: Annotated[str | None, typer.Option(help="This layer only.")] = None,
    plan: Annotated[str | None, typer.Option(help="As in trace; qiu-yao if left out.")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Query t sees keys s <= t.")] = False,
    arm: Annotated[str | None, typer.Option(help="Of a run: the arm; the one that failed first if left out.", metavar="NAME")] = None,
    from_: Annotated[
        int | None, typer.Option("--from", help="Of a run: replay from this step; the last checkpoint before the failure.", metavar="STEP")
    ] = None,
    until: Annotated[int | None, typer.Option(help="Of a run: replay up to this step; 100 behind the alarm.", metavar="STEP")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and diagnosis.json; diagnose-<source> if left out.")] = None,
    json: Json = False,
) -> None:
    """Find out why a run failed, or whether rounding adds up in tensors: where it comes from and what repairs it."""
    from experiments.diagnose import command

    command.run(
        source, sample=sample, layer=layer, plan=plan, causal=causal, arm=arm, first=from_, until=until, out=out, as_json=json
    )  # fmt: skip


@app.command()
def sweep(
    axes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="AXES",
            help="preset=qiu-yao,fa2-bf16 T=128,256 seed=0:10 format.O=bf16,fp32, or an axes.toml; a:b:step leaves b out. "
            "Also format, mode, accumulator (each also .SITE), exp, stabiliser, key_order, only, but, injection, unfused, "
            "tile, block_q, block_k, S, N, H, causal, input, engine, backward. Left out: T=256 N=4 H=64, tile 64, qiu-yao, gaussian; "
            "--axes says what all of them may be.",
        ),
    ] = None,
    zip_: Annotated[
        list[str] | None, typer.Option("--zip", metavar="AXIS,AXIS", help="These advance together instead of crossing; repeatable.")
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Gradients too.")] = False,
    out: Annotated[Path, typer.Option(help="The results file; cells that it holds are not computed again.")] = Path("sweep.sqlite"),
    jobs: Annotated[int | None, typer.Option(help="Worker processes; as many as cores if left out.")] = None,
    executor: Annotated[str | None, typer.Option(metavar="WHERE", help="dask:tcp://host:port or module:factory.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Compute cells again that failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many cells, which and how long; measures one small cell.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what the results file holds.")] = False,
    names: Annotated[bool, typer.Option("--axes", help="Print every axis, its values and default, a TOML example, the metrics.")] = False,
    json: Json = False,
) -> None:
    """Compute attention under many conditions, each once, into an SQLite file."""
    if names:
        from experiments.sweep import names_view

        names_view.show(as_json=json)
        return
    from experiments.sweep import command

    code = command.run(
        axes or [], zips=zip_ or [], backward=backward, out=out, jobs=jobs, executor=executor, retry_failed=retry_failed,
        dry_run=dry_run, fresh=fresh, as_json=json,
    )  # fmt: skip
    if code:
        raise typer.Exit(code)


@app.command()
def reproduce(
    paper: Annotated[
        str, typer.Argument(help="golden, qiu-yao, su or mxfp8: arXiv 2405.02803, 2510.04212, 2506.20752, 2506.08027.", metavar="PAPER")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on a CPU; in full it is made for a GPU.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the results and report.html; the paper's name if left out.")] = None,
    engine: Annotated[str, typer.Option(help="Of golden: numpy or xla; the same bits.")] = "numpy",
    jobs: Annotated[int | None, typer.Option(help="Of golden: worker processes; as many as cores if left out.")] = None,
    json: Json = False,
) -> None:
    """Measure the claims of a paper, each with a verdict."""
    from experiments import reproduce as papers

    code = papers.run(paper, quick=quick, out=out, engine=engine, jobs=jobs, as_json=json)
    if code:
        raise typer.Exit(code)


@app.command()
def accumulators(
    out: Annotated[Path, typer.Option(help="Folder for report.html and accumulators.json.")] = Path("accumulators"),
    order: Annotated[bool, typer.Option("--order", help="Find the order in which this machine's own products add instead.")] = False,
    json: Json = False,
) -> None:
    """Measure which way the sums of tensor cores lean, against K."""
    from experiments.tensor_cores import command

    if order:
        command.run_order(as_json=json)
    else:
        command.run(out=out, as_json=json)


@app.command()
def prepare(
    paths: Annotated[list[Path], typer.Argument(help="Text files, and folders with some.", metavar="DIR_OR_FILES")],
    out: Annotated[Path, typer.Option(help="Folder for train.bin and val.bin.")],
    json: Json = False,
) -> None:
    """Make training data of any text, a token per byte, in nanoGPT's files."""
    from experiments.train import prepare as preparing

    preparing.run(paths, out, as_json=json)


@app.command(cls=TrainCommand)
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG.toml|KEY=VALUE",
            help="layers heads width context vocab batch steps lr min_lr warmup decay_steps beta1 beta2 weight_decay clip position "
            "qk_norm tied mlp_ratio matmul plan changes sums block data data_seed init_seed checkpoint_every keep monitor_every; "
            "the file has the same keys, and seeds = [..], [arms], [at].",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", metavar="DIR")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run; with --out, a branch of it goes there.", metavar="DIR")] = None,
    from_: Annotated[
        int | None, typer.Option("--from", help="The branch's first step; the last checkpoint's if left out.", metavar="STEP")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP CHANGE",
            help="Change attention or the linear layers from a step on, in all arms: --at 300 'layer=1 head=7 site=O -> fp32'. Left of the "
            "arrow layer=, head= (0-2,5) and site= (O,PV; or inputs, forward, backward), all if left out; right of it FORMAT[:MODE], "
            "accumulator=ORDER, plan=PRESET, stabiliser=BETA, delta_from=OUT|O|P_DP|CENTRED; or offset=C:bias|noise|fixed[:all]|none: the "
            "output that delta reads is off by C x half a BF16 ulp of V in rows with several P = 1, or in all. Linear layers: "
            "-> mx=FORMAT[:RULE], or layer=0-1 matrix=qkv,fc1 site=operands -> mxfp8_e4m3:rceil, of matrices qkv, proj, fc1, fc2 or all. "
            "Repeatable.",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=CHANGE[;CHANGE]", help="One run of several, on the same batches; lr=1e-2 is a change too. Repeatable."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="N-M,N", help="Every arm once per seed, of weights and of batches.")] = None,
    json: Json = False,
) -> None:
    """Train a small GPT with emulated attention, go on with a run, or replay it with other arithmetic."""
    from experiments.train import command

    code = command.run(words or [], out=out, resume=resume, first=from_, at=at or [], arms=arm or [], seeds=seeds, as_json=json)
    if code:
        raise typer.Exit(code)


@app.command()
def dose(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="site=OD,O mode=toward-zero,stochastic p=2-8 lr=1e-2,1e-3 steps=2000, and the model's: layers heads width context batch "
            "warmup data ...",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on two cores; in full it is made for a GPU.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results and report.html.", metavar="DIR")] = Path("dose"),
    seeds: Annotated[str | None, typer.Option(help="Of weights and batches; 0-4 if left out.", metavar="N-M,N")] = None,
    study: Annotated[str | None, typer.Option(help="Another question: bias, scaling, conditions or identity.", metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Time to divergence of training against the rounding of one event: its bits, its mode, the learning rate."""
    from experiments.dose import command

    code = command.run(words or [], quick=quick, out=out, seeds=seeds, study=study, as_json=json)
    if code:
        raise typer.Exit(code)


@app.command(cls=TrainCommand)
def proxy(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="depth width ratio phi norm batch steps noise lr min_lr warmup beta1 beta2 block seed measure_every; "
            "mx=FORMAT of the interventions' base.",
        ),
    ] = None,
    study: Annotated[
        str, typer.Option(help="formats, from the first step; or interventions, from the step --from.", metavar="NAME")
    ] = "formats",
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CHANGE[;CHANGE]",
            help="In place of the study's arms: --arm 'e4m3=-> mx=mxfp8_e4m3; site=norm -> fp32'. Left of the arrow layer=, matrix= "
            "and site= events or groups, all if left out; right of it FORMAT[:RULE][:MODE], mx=FORMAT, beta=0|1; lr=1e-2 is a change too. "
            "Repeatable.",
        ),
    ] = None,
    from_: Annotated[int | None, typer.Option("--from", help="The step at which the arms of interventions part.", metavar="STEP")] = None,
    at: Annotated[list[str] | None, typer.Option(metavar="STEP CHANGE", help="Change all arms from a step on. Repeatable.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on two cores; in full it is made for a GPU.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results and the report.", metavar="DIR")] = Path("proxy"),
    seeds: Annotated[str | None, typer.Option(help="Of weights, teacher and rows; 0-4 if left out.", metavar="N-M,N")] = None,
    json: Json = False,
) -> None:
    """Train a student MLP in block-scaled formats, and change the arithmetic in mid-training."""
    from experiments.proxy import command

    code = command.run(
        words or [], name=study, own=arm or [], first=from_, at=at or [], seeds=seeds, quick=quick, out=out, as_json=json
    )  # fmt: skip
    if code:
        raise typer.Exit(code)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="The results of a sweep.", metavar="SWEEP.sqlite")],
    out: Annotated[Path, typer.Argument(help="The ending chooses.", metavar="OUT.csv|OUT.parquet")],
    table: Annotated[str, typer.Option(help="cells or sites.")] = "cells",
) -> None:
    """Write a sweep's results as CSV or Parquet."""
    from experiments.sweep import export as export_results

    rows = export_results.export(file, out, table)
    print(f"written: {out} ({rows} rows)")


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="The results of a sweep.", metavar="SWEEP.sqlite")],
    out: Annotated[Path | None, typer.Option(help="The file to write; SWEEP.html beside it if left out.")] = None,
) -> None:
    """Draw a sweep's results: one HTML file that opens offline."""
    from experiments.sweep import report as sweep_report

    print(f"written: {sweep_report.write(file, out)}")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="round, mx, dot, attention, sweep or step.", metavar="WHAT")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for bench-WHAT.json and a picture, bench-WHAT.png; not of sweep and step.", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Measure our speed against what one would use instead."""
    from experiments import bench as bench_command

    bench_command.run(what, as_json=json, out=out)


@app.command()
def doctor(json: Json = False) -> None:
    """Versions, devices, known traps here, and a self-check."""
    from experiments import doctor as doctor_command

    if not doctor_command.run(as_json=json):
        raise typer.Exit(1)


def main(args: list[str] | None = None) -> None:
    """Run the command line; every error that we raise ends as one line on stderr."""
    try:
        app(args=args, prog_name="roundscope")
    except (ArithmeticError, StorageError, ExecutorError) as error:  # a check of ours failed, or what we write to or compute on
        _fail(error, 1)
    except (ValueError, OSError) as error:
        _fail(error, 2)


def _fail(error: Exception, code: int) -> None:
    print(f"roundscope: {one_line(error)}", file=sys.stderr)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()
