"""`roundscope reproduce PAPER`: which papers there are."""

from pathlib import Path

from roundscope.emu.formats.format import unknown
from roundscope.experiments.errors import UsageError

PAPERS = {
    "golden": "arXiv 2405.02803, Is Flash Attention Stable?",
    "qiu-yao": "arXiv 2510.04212, Why Low-Precision Transformer Training Fails",
    "su": "arXiv 2506.20752, Characterization and Mitigation of Training Instabilities in Microscaling Formats",
    "mxfp8": "arXiv 2506.08027, Recipes for Pre-training LLMs with MXFP8",
}


def run(paper: str, *, quick: bool, out: Path | None, engine: str, jobs: int | None, as_json: bool, draw: bool = False) -> int:
    """Reproduces a paper; the exit code of its command. draw: train nothing. Raises UsageError for one that is not known."""
    if paper not in PAPERS:
        raise UsageError(unknown("paper", paper, PAPERS))
    if paper == "qiu-yao":
        from roundscope.experiments.studies.failure import command as qiu_yao

        return qiu_yao.run(quick=quick, out=out or Path(paper), as_json=as_json)
    if paper == "su":
        from roundscope.experiments.studies.microscaling import study as su

        return su.run(quick=quick, out=out or Path(paper), as_json=as_json, draw=draw)
    if paper == "mxfp8":
        from roundscope.experiments.studies.mxfp8 import study as mxfp8

        return mxfp8.run(quick=quick, out=out or Path(paper), as_json=as_json, draw=draw)
    from roundscope.experiments.studies.stability import command

    return command.run(quick=quick, out=out or Path(paper), engine=engine, jobs=jobs, as_json=as_json)
