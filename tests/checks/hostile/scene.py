"""A folder with small valid files, and the running of a line in it."""

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from roundscope.experiments.cli import main as cli

MODULE = """
import numpy as np

def good(q, k, v, *, scale, is_causal):
    s = np.einsum("bnth,bnsh->bnts", q.astype("f4"), k.astype("f4")) * scale
    if is_causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return np.einsum("bnts,bnsh->bnth", p, v.astype("f4")).astype(q.dtype)

def cast(x):
    import ml_dtypes
    return x.astype(ml_dtypes.bfloat16).astype("float32")

def model():
    import torch
    return torch.nn.Linear(4, 4).bfloat16(), {"input": torch.ones(2, 4).bfloat16()}

notfn = 3
"""


class Answer(NamedTuple):
    """How a line ended: its code (None if it was stopped), what it printed, its time."""

    code: int | None
    out: str
    err: str
    seconds: float


class _Stopped(BaseException):
    """The line works longer than a refusal takes."""


@contextlib.contextmanager
def scene() -> Iterator[Path]:
    """Yield the current folder, with small files of every kind that the commands read."""

    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "cwd")
        folder.mkdir()
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        try:
            _fill(folder)
            yield folder
        finally:
            sys.path.remove(str(folder))
            os.chdir(before)


def _fill(folder: Path) -> None:
    (folder / "km.py").write_text(MODULE)
    (folder / "text.txt").write_text("all the words " * 2000)
    (folder / "afile").write_text("no tensors")
    (folder / "afolder").mkdir()
    random = np.random.default_rng(0)
    q, k, v, do = (random.standard_normal((1, 1, 16, 16), np.float32) for _ in range(4))
    save_file({"q": q, "k": k, "v": v, "do": do}, folder / "t.safetensors", {"layout": "BNTH"})
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        import torch

        import roundscope as rs
        from roundscope.torch import capture

        made = rs.attend(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), plan="fa2-bf16")
        model = torch.nn.Linear(8, 8)
        with torch.no_grad(), capture(model, folder / "a.safetensors", what="operations"):
            model(torch.ones(2, 8))
    made = np.ascontiguousarray(np.asarray(made, np.float32).transpose(0, 2, 1, 3))
    save_file(
        {"q": q, "k": k, "v": v, "out": made},
        folder / "o.safetensors",
        {"layout": "BNTH", "is_causal": "false"},
    )


def run(line: list[str], limit: float = 20.0) -> Answer:
    """Run a command line in this process, and stop it after `limit` seconds."""

    def stop(number: int, frame: Any) -> None:
        if runs:
            raise _Stopped

    runs = [True]
    out, err = io.StringIO(), io.StringIO()
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit, 5.0)
    start = time.monotonic()
    code: int | None = 0
    try:
        quiet = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with quiet[0], quiet[1], warnings.catch_warnings():
            warnings.simplefilter("default")
            cli.main(line)
    except SystemExit as end:
        runs.clear()
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except _Stopped:
        runs.clear()
        code = None
    except BaseException as error:
        code = 99
        err.write(f"{type(error).__name__}: {error}")
    finally:
        runs.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
    return Answer(code, out.getvalue(), err.getvalue(), time.monotonic() - start)


def tidy(folder: Path, kept: set[str]) -> list[str]:
    """Remove what a line has written; return what it wrote outside the current folder."""
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    strange = [p for p in folder.parent.iterdir() if p != folder]
    for path in strange:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [path.name for path in strange]
