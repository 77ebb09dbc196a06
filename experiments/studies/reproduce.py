"""`roundscope reproduce PAPER`: which papers there are."""

from pathlib import Path

from roundscope.emu.formats.format import unknown
from roundscope.experiments.errors import UsageError, bad
from roundscope.experiments.report.wording import listed

PAPERS = {
    "golden": "arXiv 2405.02803, Is Flash Attention Stable?",
    "qiu-yao": "arXiv 2510.04212, Why Low-Precision Transformer Training Fails",
    "su": "arXiv 2506.20752, Characterization and Mitigation of Training Instabilities in Microscaling Formats",
    "mxfp8": "arXiv 2506.08027, Recipes for Pre-training LLMs with MXFP8",
}


DRAWN = ("qiu-yao", "su", "mxfp8")  # papers whose results can be drawn without going on


def run(
    paper: str,
    *,
    quick: bool,
    out: Path | None,
    engine: str,
    jobs: int | None,
    as_json: bool,
    draw: bool = False,
) -> int:
    """Reproduces a paper; the exit code of its command.

    Raises UsageError for a paper that is not known, or that cannot be drawn without going on.
    """
    if paper not in PAPERS:
        raise UsageError(unknown("paper", paper, PAPERS))
    if draw and paper not in DRAWN:
        raise bad("--draw", paper, f"only {listed(DRAWN)} can be drawn alone; leave --draw out")
    folder = out or Path(paper)
    if paper == "qiu-yao":
        from roundscope.experiments.studies.failure import study as qiu_yao
        from roundscope.experiments.studies.failure.conditions import scale
        from roundscope.experiments.studies.framework import command

        study = qiu_yao.study(scale.QUICK if quick else scale.FULL)
        said = _said(paper, quick=quick, draw=draw)
        return command.run(study, out=folder, command=said, as_json=as_json, draw=draw)
    if paper == "su":
        from roundscope.experiments.studies.microscaling import study as su

        return su.run(quick=quick, out=folder, as_json=as_json, draw=draw)
    if paper == "mxfp8":
        from roundscope.experiments.studies.mxfp8 import study as mxfp8

        return mxfp8.run(quick=quick, out=folder, as_json=as_json, draw=draw)
    from roundscope.experiments.studies.stability import command as golden

    return golden.run(quick=quick, out=folder, engine=engine, jobs=jobs, as_json=as_json)


def _said(paper: str, **options: bool) -> str:
    """The command, for the page."""
    chosen = [f"--{name}" for name, given in options.items() if given]
    return " ".join(["roundscope reproduce", paper, *chosen])
