"""Kill -9 at random moments of commands that write: what is left, and do they then work again?

python -m tests.checks.killed --times 20 --seed 0

Half of the moments lie in the last fifth of a command, where most files are written. A command that
ends before its kill does not count, and another moment is drawn. After each kill, every file that
is there must be whole; then the command runs again in the same folder and must succeed.
"""

import argparse
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.selection import Layer
from roundscope.attention.models.watcher import Watcher

KERNEL = (
    "import numpy as np\n\n\ndef cast(x):\n    return x.astype(np.float16).astype(np.float32)\n"
)
SAMPLE = ("--sample", "--layer", "layer4", "--no-budget", "--png", "--record", "rows")
CALLS = ("--tokens", "16", "--features", "16", "--heads", "1", "--batch", "1", "--draws", "1")
SHORT = ("--forward", "--only", "envelope", "--full")
TINY = ("layers=1", "width=16", "heads=1", "context=16", "batch=2", "data=repeat")
DOSE = ("steps=4", "site=OD", "mode=toward-zero", "p=4", "lr=1e-2", *TINY, "--seeds", "0:1")
ARM = ("--arm", "a=-> mx=mxfp8_e4m3", "--seeds", "0:1")
SWEEP = ("sweep", "preset=fa2-bf16", "T=64", "N=1", "H=16", "seed=0:40", "--out", "s.sqlite")
COMMANDS = {
    "trace": ("trace", *SAMPLE, "--out", "out"),
    "check-cast": ("check-cast", "mine:cast", "--format", "fp16", "--out", "out"),
    "sweep": SWEEP,
    "export-csv": ("export", "s.sqlite", "s.csv"),
    "export-parquet": ("export", "s.sqlite", "s.parquet"),
    "report": ("report", "s.sqlite", "--out", "s.html"),
    "watch": ("watch", "log.jsonl"),
    "prepare": ("prepare", "mine.py", "--out", "out"),
    "train": ("train", "steps=6", *TINY, "--out", "out"),
    "check": ("check", "jax-xla", *CALLS, *SHORT, "--out", "out", "--junit", "c.xml"),
    "proxy": ("proxy", "depth=1", "width=32", "steps=3", "batch=32", *ARM, "--out", "out"),
    "dose": ("dose", *DOSE, "--out", "out"),
    "diagnose": ("diagnose", "--sample", "--layer", "layer4", "--out", "out"),
    "reproduce": ("reproduce", "two-level", "--quick", "--out", "out"),
}
BEFORE = dict.fromkeys(("export-csv", "export-parquet", "report"), SWEEP)  # what has to run first
AGAIN = {"train": ("train", "--resume", "out")}  # where the same words are refused


def main() -> int:
    """Run the checks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    asked = parser.parse_args()
    failed = 0
    for verb in asked.only:
        with tempfile.TemporaryDirectory() as folder:
            begin(verb, Path(folder))
            alone = timed(verb, Path(folder))
            counts = kills(verb, Path(folder), alone, asked.times, random.Random(asked.seed))
        failed += sum(n for what, n in counts.items() if what.startswith("FAULT"))
        print(f"{verb}: {alone:.1f} s alone; {dict(counts)}", flush=True)
    return int(failed > 0)


def begin(verb: str, folder: Path) -> None:
    """Write into a folder what a command reads."""
    (folder / "mine.py").write_text(KERNEL)
    watcher, one = Watcher(log=folder / "log.jsonl", threshold=None), np.array([0.5])
    for step in range(3):
        watcher.look(step, {Layer(name="a", number=0): ([0], HeadNumbers(*[one] * 6))})
    if verb in BEFORE:
        finished(started(BEFORE[verb], folder))


def started(words: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """Start the command line in a folder."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "roundscope", *words]
    return subprocess.Popen(command, cwd=folder, text=True, **pipes)  # type: ignore[call-overload]


def finished(process: subprocess.Popen[str]) -> None:
    """Wait for a command, which must succeed."""
    _, said = process.communicate()
    if process.returncode:
        raise RuntimeError(said.strip().splitlines()[-1][:200] if said else process.returncode)


def timed(verb: str, inputs: Path) -> float:
    """Return the seconds that a command takes here, its second time."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(shutil.copytree(inputs, name, dirs_exist_ok=True))
            began = time.perf_counter()
            finished(started(COMMANDS[verb], folder))
    return time.perf_counter() - began


def kills(verb: str, inputs: Path, alone: float, times: int, rng: random.Random) -> Counter[str]:
    """Kill a command some times; return how often what became of it."""
    counts: Counter[str] = Counter()
    while (done := counts.total() - counts["too late"]) < times:
        what = killed(verb, inputs, rng.uniform(0.8 * (done % 2), 1.0) * alone)
        counts[what] += 1
        if what == "too late":  # the machine is less busy than it was
            alone *= 0.98
    return counts


def killed(verb: str, inputs: Path, after: float) -> str:
    """Kill a command after some seconds; return what became of its files and of the next run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(inputs, name, dirs_exist_ok=True))
        process = started(COMMANDS[verb], folder)
        time.sleep(after)
        process.kill()
        process.communicate()
        if process.returncode >= 0:
            return "too late"
        left = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
        if broken := [str(p) for p in left if not is_whole(folder / p)]:
            return f"FAULT: half of {', '.join(broken)}"
        is_begun = any((folder / "out" / "checkpoints").glob("*.json"))
        words = COMMANDS[verb]
        try:
            finished(started(AGAIN.get(verb, words) if is_begun else words, folder))
        except RuntimeError as error:
            return f"FAULT: then {error}"
        new = {p for p in left if not (inputs / p).exists()}
        return "resumed" if any(p.suffix == ".sqlite" for p in new) else "redone"


def is_whole(path: Path) -> bool:
    """Return whether a file of ours is whole; unfinished ones have another name."""
    if path.name.endswith((".unfinished", "-wal", "-shm", "-journal", ".lock")):
        return True
    data = path.read_bytes()
    match path.suffix:
        case ".json":
            return isinstance(json.loads(data or b"[]"), dict)
        case ".html":
            return data.rstrip().endswith(b"</html>")
        case ".png":
            return data.endswith(b"IEND\xaeB`\x82")
        case ".npz":
            return zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is None
        case ".xml":
            return data.endswith(b"</testsuites>") and ElementTree.fromstring(data) is not None
        case ".csv":
            return data.endswith(b"\n")
        case ".parquet":
            return data.startswith(b"PAR1") and data.endswith(b"PAR1")
        case ".sqlite":
            return is_sound(path)
    return True


def is_sound(path: Path) -> bool:
    """Return whether SQLite finds a file whole, in a copy, since it mends what it opens."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(shutil.copytree(path.parent, name, dirs_exist_ok=True)) / path.name
        with closing(sqlite3.connect(copy)) as connection:
            return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


if __name__ == "__main__":
    sys.exit(main())
