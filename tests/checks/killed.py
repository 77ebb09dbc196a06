"""Signals at random moments for every command that writes: what is left, and does it then go on?

python -m tests.checks.killed --times 20 --seed 0

A command runs twice undisturbed, which measures its time and tells which of its data are the same
each time. Then it is killed: half of the moments are drawn from its last fifth, in which files are
written. With --writes it is killed before every single operation on a file in place of that.
After each kill no process may be left, every file must be whole, and the same command, run again in
the same folder, must end as the undisturbed one: with its exit code, its files and its data. A
command that refuses to do so must name the words that go on, which then have to.

With --signals it gets SIGINT and SIGTERM in place of SIGKILL, the first two of each in the tenth of
a second after Python's own start: it must end by that signal's exit code, without a traceback. One
of Python's own start, before a line of ours is run, does not count, and is drawn again.

--minutes begins no stop after so long; the table has those that were made.
"""

import argparse
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "roundscope"
KERNELS = """import numpy as np


def cast(x):
    return x.astype(np.float16).astype(np.float32)


def kernel(q, k, v, scale, causal):
    s = scale * q @ k.swapaxes(-1, -2)
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def model():
    import torch
    from torch import nn

    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).bfloat16()
    return block, {"input": torch.ones(2, 8).bfloat16()}
"""
CAPTURE = """
import numpy as np
from roundscope.attention.models.capture_file import Captured, write_captures
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 8, 2048, 64), "f4")
calls = [Captured(number=n, name=f"a{n}", q=q, k=k, v=v, scale=0.125, is_causal=True)
         for n in range(8)]
write_captures("qkv.safetensors", calls, {"source": "a check"})
"""
LOG = """
import numpy as np
from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.selection import Layer
from roundscope.attention.models.watcher import Watcher
watcher = Watcher(log="log.jsonl", threshold=0.05, on_alarm=lambda alarm: None)
for n in range(6):
    one = np.array([0.1, 0.03 * n])
    numbers = dict(drift=one, gradient=one, row_sums=one, bias=one, several_ones=one, gain=one)
    watcher.look(n, {Layer(name="block", number=0): ([0, 1], HeadNumbers(**numbers))})
"""
TENSORS = """
import numpy as np
q, k, v, do = np.random.default_rng(0).standard_normal((4, 1, 2, 16, 8), "f4")
np.savez("in.npz", q=q, k=k, v=v, do=do, layout="BNTH")
s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(8))
p = np.exp(s - s.max(-1, keepdims=True))
np.savez("call.npz", q=q, k=k, v=v, out=p / p.sum(-1, keepdims=True) @ v, layout="BNTH")
"""
RUN = """
import torch
from torch import nn
from roundscope.torch import capture
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
with torch.no_grad(), capture(model, "a.safetensors", what="operations"):
    model(torch.ones(2, 8))
"""
# kills its own process before its Nth operation on a file of the folder, or counts them
AT_WRITE = """
import os, sys
number, report, done = int(sys.argv[1]), sys.argv[2], 0
here = os.getcwd()
def hook(event, args):
    global done
    if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect"):
        return
    if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    paths = args[:2] if event == "os.rename" else args[:1]
    names = [os.path.realpath(os.fsdecode(p)) for p in paths if not isinstance(p, int)]
    if not any(name.startswith(here) for name in names):
        return
    done += 1
    if done == number:
        os.kill(os.getpid(), 9)
    if not number:
        with os.fdopen(os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
            file.write(event + "\\n")
sys.addaudithook(hook)
"""
AS_MODULE = """
import runpy
sys.argv = ["roundscope", *sys.argv[3:]]
runpy.run_module("roundscope", run_name="__main__")
"""
TINY = ("steps=6", "layers=1", "width=16", "heads=1", "context=16", "batch=2", "data=repeat")
DOSE = (
    *("layers=1", "heads=1", "width=16", "context=16", "batch=2", "data=repeat", "steps=4"),
    *("mode=toward-zero,stochastic", "site=O", "p=4", "lr=1e-2"),
)
PROXY = ("depth=1", "width=32", "ratio=1", "batch=32", "steps=6", "lr=1e-4", "--seeds", "0:1")
SMALL = ("--tokens", "64", "--features", "16", "--heads", "2", "--batch", "2", "--draws", "1")


@dataclass(frozen=True, slots=True)
class Verb:
    """A command of which a run writes something.

    words   what stands behind `roundscope`; one of Python itself begins with -c
    before  the commands that make what it reads
    timed   keys of its documents that tell how much one run did, or depend on how long that took
    """

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    timed: tuple[str, ...] = ()


SWEPT = ("sweep", "preset=fa2-bf16", "T=16", "N=1", "H=16", "seed=0:4", "--out", "s.sqlite")
TRAINED = ("train", *TINY, "--out", "run")
FAILED = ("train", *TINY, "lr=1e20", "checkpoint_every=2", "--out", "run")
VERBS = {
    "trace": Verb(
        ("trace", "in.npz", "--no-budget", "--png", "--record", "rows", "--out", "out"),
        (("-c", TENSORS),),
    ),
    "trace-own-folder": Verb(
        ("trace", "in.npz", "--no-budget", "--record", "rows"), (("-c", TENSORS),)
    ),
    "diagnose": Verb(
        ("diagnose", "in.npz", "--out", "out"), (("-c", TENSORS),)
    ),
    "diagnose-run": Verb(
        ("diagnose", "run", "--until", "6", "--out", "out"), (FAILED,), timed=("arm_steps",)
    ),
    "identify": Verb(("identify", "call.npz", "--full", "--budget", "200"), (("-c", TENSORS),)),
    "check": Verb(
        ("check", "mine:kernel", "--only", "envelope", "--forward", "--claims", "fp32", "--full",
         *SMALL, "--out", "out", "--junit", "check.xml"),
    ),
    "sweep": Verb(
        ("sweep", "preset=fa2-bf16", "T=64", "N=1", "H=16", "seed=0:40", "--out", "s.sqlite")
    ),
    "reproduce": Verb(("reproduce", "two-level", "--quick", "--out", "out")),
    "accumulators": Verb(("accumulators", "--out", "out")),
    "kernels": Verb(("kernels", "--only", "jax-xla", "--out", "out")),
    "watch": Verb(("watch", "log.jsonl"), (("-c", LOG),)),
    "compare": Verb(
        ("compare", "a.safetensors", "a.safetensors", "--out", "out"), (("-c", RUN),)
    ),
    "budget": Verb(("budget", "mine:model", "--no-gradients", "--out", "out")),
    "check-cast": Verb(
        ("check-cast", "mine:cast", "--format", "fp16", "--out", "out", "--junit", "cast.xml")
    ),
    "prepare": Verb(("prepare", "mine.py", "--out", "out")),
    "train": Verb(("train", *TINY, "--out", "out")),
    "dose": Verb(("dose", "--quick", *DOSE, "--seeds", "0:2", "--out", "out")),
    "proxy": Verb(("proxy", *PROXY, "--out", "out")),
    "export-csv": Verb(("export", "s.sqlite", "out.csv"), (SWEPT,)),
    "export-parquet": Verb(("export", "s.sqlite", "out.parquet"), (SWEPT,)),
    "report": Verb(("report", "s.sqlite"), (SWEPT,)),
    "report-run": Verb(("report", "run"), (TRAINED,)),
    "bench": Verb(("bench", "round", "--out", "out"), timed=("values", "differing")),
    "capture": Verb(("-c", CAPTURE)),
}  # fmt: skip
HELD = ("cells.rows", "runs.rows", "replayed.rows")
STARTS = ("run.sqlite", "runs")  # a row each time that a training begins or goes on
TIMES = ("seconds", "ran")  # keys of what this run did, and not of data
SILENT = ("doctor", "explain", "formats", "plans", "sites", "studies")  # verbs that write no file
LONG = ("accumulators", "kernels", "bench")  # only where they are named
ORPHAN = 10.0  # seconds in which a worker must notice that its parent is gone


@dataclass(frozen=True, slots=True)
class Alone:
    """A run that nobody disturbs: its seconds, its exit code, and the data it always writes."""

    seconds: float
    code: int
    files: frozenset[str]
    facts: dict[str, str]


def main() -> int:
    """Run the checks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0)
    usual = [name for name in VERBS if name not in LONG]
    parser.add_argument("--only", nargs="+", default=usual, choices=list(VERBS), metavar="VERB")
    parser.add_argument("--writes", action="store_true", help="kill before every file operation")
    parser.add_argument("--signals", action="store_true", help="SIGINT and SIGTERM, TIMES of each")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no stop begins after them")
    asked = parser.parse_args()
    rng, faults = random.Random(asked.seed), 0
    end = time.monotonic() + 60.0 * asked.minutes
    print("| command | seconds alone | stopped | resumed | redone | faults |\n" + 6 * "|---" + "|")
    for name in asked.only:
        with tempfile.TemporaryDirectory() as made:
            verb, begin = VERBS[name], Path(made)
            alone = undisturbed(verb, prepared(verb, begin))
            if asked.signals:
                found = signalled(verb, begin, alone, asked.times, rng, end)
            elif asked.writes:
                found = at_writes(verb, begin, alone, end)
            else:
                found = at_moments(verb, begin, alone, asked.times, rng, end)
        told = Counter(what for what in found if not what.startswith("FAULT"))
        wrong = [what for what in found if what.startswith("FAULT")]
        faults += len(wrong)
        counts = f"{len(found)} | {told['resumed']} | {told['redone']} | {len(wrong)}"
        print(f"| {name} | {alone.seconds:.1f} | {counts} |", flush=True)
        for what, times in Counter(wrong).items():
            print(f"    {times} x {what}", flush=True)
    return int(faults > 0)


def at_moments(
    verb: Verb, begin: Path, alone: Alone, times: int, rng: random.Random, end: float
) -> list[str]:
    """Kill at random moments, every second one in the last fifth; draw again if that was late."""
    found: list[str] = []
    for _ in range(4 * times):
        if len(found) < times and time.monotonic() < end:
            first = 0.8 if len(found) % 2 else 0.0
            after = alone.seconds * rng.uniform(first, 1.0)
            if what := stopped(verb, begin, alone, signal.SIGKILL, after):
                found.append(what)
    return found


def at_writes(verb: Verb, begin: Path, alone: Alone, end: float) -> list[str]:
    """Kill before every operation on a file."""
    with tempfile.TemporaryDirectory() as name:
        report = Path(name, "operations")
        counted = Path(shutil.copytree(begin, Path(name, "counted")))
        started(verb.words, counted, (0, report)).communicate()
        operations = report.read_text().split()
    found = []
    for number in range(1, len(operations) + 1):
        if time.monotonic() >= end:
            break
        what = stopped(verb, begin, alone, None, number)
        found.append(what if what in ("resumed", "redone") else f"{what} (at {number})")
    return found


def signalled(
    verb: Verb, begin: Path, alone: Alone, times: int, rng: random.Random, end: float
) -> list[str]:
    """Send SIGINT and SIGTERM at random moments, the first two as soon as Python has started."""
    found: list[str] = []
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    start = time.perf_counter() - start
    for number in (signal.SIGINT, signal.SIGTERM):
        there = 0
        for drawn in range(4 * times):
            if there < times and time.monotonic() < end:
                is_early = there < 2 and drawn < times
                after = start + rng.uniform(0.0, 0.1) if is_early else alone.seconds * rng.random()
                if what := stopped(verb, begin, alone, number, after):
                    found.append(what)
                    there += 1
    return found


def stopped(
    verb: Verb, begin: Path, alone: Alone, number: signal.Signals | None, after: float
) -> str:
    """Stop a command; return what became of it and of the next run, "" if it had ended before.

    number  the signal; None for SIGKILL before the operation `after` on a file
    after   seconds
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(begin, Path(name, "case")))
        if number is None:
            process = started(verb.words, folder, (int(after), Path(name, "-")))
        else:
            process = started(verb.words, folder)
            time.sleep(after)
            if process.poll() is not None:
                process.communicate()
                return ""
            process.send_signal(number)
        _, said = process.communicate()
        if number in (None, signal.SIGKILL):
            if process.returncode != -signal.SIGKILL:
                return ""
        elif process.returncode == alone.code and process.returncode not in (130, 143):
            return ""  # it was as good as done
        elif "Traceback" in said and str(PACKAGE) not in said and "ignored in" not in said:
            return ""  # Python had not begun to run it
        elif fault := _ended(process.returncode, number, said):
            return fault
        if left := orphans(folder):
            return f"FAULT: orphans {left}"
        if broken := [p.name for p in files(folder) if not is_whole(p)]:
            return f"FAULT: half of {', '.join(broken)}"
        return went_on(verb, folder, begin, alone)


def _ended(code: int, number: signal.Signals, said: str) -> str:
    if "Traceback" in said or "Error:" in said:
        return f"FAULT: {number.name}: {' / '.join(said.strip().splitlines()[-3:])[:300]}"
    if code not in (-number, 128 + number):
        return f"FAULT: {number.name} gives exit code {code}: {said.strip()[-200:]}"
    return ""


def went_on(verb: Verb, folder: Path, begin: Path, alone: Alone) -> str:
    """Run a command again where one was stopped; return whether that resumed or began anew."""
    held = has_progress(folder, begin)
    again = started(verb.words, folder)
    _, said = again.communicate()
    if again.returncode == 2 and "--resume" in said:
        held = True
        again = started((verb.words[0], "--resume", "out"), folder)
        _, said = again.communicate()
    names = {p.relative_to(folder).as_posix() for p in files(folder)}
    more, less = names - alone.files, alone.files - names
    # a training that stops between two steps makes a checkpoint there
    more = {name for name in more if Path(name).parent.name != "checkpoints"}
    now = facts(folder, verb.timed)
    other = [where for where, what in alone.facts.items() if now.get(where) != what]
    if again.returncode != alone.code:
        last = (said.strip().splitlines() or [""])[-1][-300:]
        return f"FAULT: the next run ends with {again.returncode}: {last}"
    if more or less:
        others = [re.sub("[0-9]{3,}", "N", name) for name in sorted(more)]
        return f"FAULT: files more {others}, less {sorted(less)}"
    if other:
        return f"FAULT: other data: {', '.join(other[:12])} ({len(other)})"
    return "resumed" if held else "redone"


def has_progress(folder: Path, begin: Path) -> bool:
    """Return whether a results file or a checkpoint was made with which a command can go on."""
    made = [p for p in files(folder) if not (begin / p.relative_to(folder)).exists()]
    return any(
        path.name == "measured.json"
        or (path.parent.name == "checkpoints" and path.suffix == ".json")
        or (path.suffix == ".sqlite" and any(of_database(path).get(rows) for rows in HELD))
        for path in made
    )


def prepared(verb: Verb, folder: Path) -> Path:
    """Make what a command reads, in a folder."""
    (folder / "mine.py").write_text(KERNELS)
    for words in verb.before:
        process = started(words, folder)
        _, said = process.communicate()
        if process.returncode:
            print(f"{' '.join(words)[:80]} ends with {process.returncode}: {said[-200:]}")
    return folder


def undisturbed(verb: Verb, begin: Path) -> Alone:
    """Run a command twice alone; its data are those that were the same both times."""
    both, seconds, code = [], 0.0, 0
    names: frozenset[str] = frozenset()
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(shutil.copytree(begin, Path(name, "case")))
            began = time.perf_counter()
            process = started(verb.words, folder)
            _, said = process.communicate()
            seconds, code = time.perf_counter() - began, process.returncode
            if code not in (0, 1) or "Traceback" in said:
                raise RuntimeError(f"{verb.words[0]} ends with {code}: {said}")
            both.append(facts(folder, verb.timed))
            names = frozenset(p.relative_to(folder).as_posix() for p in files(folder))
    first, second = both
    return Alone(seconds, code, names, {k: v for k, v in first.items() if second.get(k) == v})


def started(
    words: Sequence[str], folder: Path, at: tuple[int, Path] | None = None
) -> subprocess.Popen[str]:
    """Start a command in a folder; at: the operation on a file before which it kills itself."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    if at is None:
        command = list(words) if words[0] == "-c" else ["-m", "roundscope", *words]
    else:
        is_python = words[0] == "-c"
        program = AT_WRITE + (words[1] if is_python else AS_MODULE)
        command = ["-c", program, str(at[0]), str(at[1]), *([] if is_python else words)]
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    paths = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, *command], cwd=folder, text=True, env=os.environ | paths, **pipes
    )


def orphans(folder: Path) -> list[str]:
    """Return the commands of the processes that are still at work in a folder after some seconds,
    and end them.
    """
    end = time.monotonic() + ORPHAN
    while (left := _at_work(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    return list(left.values())


def _at_work(folder: Path) -> dict[str, str]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder.resolve():
                found[process.name] = (process / "cmdline").read_text().replace("\0", " ")[-120:]
        except OSError:
            continue
    return found


def files(folder: Path) -> list[Path]:
    """Return the files below a folder, and what is left where temporary files lie."""
    left = [p for p in (folder.parent / "tmp").rglob("*") if p.is_file()]
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts] + [
        Path(shutil.copy(p, folder / f"temporary-{p.name}")) for p in left
    ]


def is_whole(path: Path) -> bool:
    """Return whether a file of ours is whole; unfinished ones have another name."""
    if path.name.endswith(".unfinished"):
        return True
    data = path.read_bytes()
    match path.suffix:
        case ".json":
            return isinstance(json.loads(data or b"[]"), dict)
        case ".html":
            return data.rstrip().endswith(b"</html>")
        case ".xml":
            return data.rstrip().endswith(b"</testsuites>")
        case ".png":
            return data.endswith(b"IEND\xaeB`\x82")
        case ".npz":
            return zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is None
    return True


def facts(folder: Path, timed: tuple[str, ...]) -> dict[str, str]:
    """Return the data in the files below a folder, by place: so that what is the same each time
    can be told from dates and times. Of documents the keys that are timed are left out.
    """
    readers: dict[str, Callable[[Path], dict[str, str]]] = {
        ".json": lambda path: of_json(json.loads(path.read_text()), (*TIMES, *timed)),
        ".sqlite": of_database,
        ".html": of_lines,
        ".csv": of_lines,
        ".xml": of_lines,
    }
    found = {}
    for path in files(folder):
        name = path.relative_to(folder).as_posix()
        read = readers.get(path.suffix, lambda path: {"": digest(path.read_bytes())})
        found |= {f"{name}:{where}": what for where, what in read(path).items()}
    return found


def of_json(data: object, left_out: tuple[str, ...], where: str = "") -> dict[str, str]:
    """Return the numbers and texts of a document by their places, without some of its keys."""
    if isinstance(data, dict):
        named = [(key, x) for key, x in data.items() if key not in left_out]
        parts = [of_json(x, left_out, f"{where}.{key}") for key, x in named]
    elif isinstance(data, list):
        parts = [of_json(each, left_out, f"{where}[{n}]") for n, each in enumerate(data)]
    else:
        return {where: repr(data)}
    return {where: f"{len(parts)} parts"} | {k: v for part in parts for k, v in part.items()}


def of_database(path: Path) -> dict[str, str]:
    """Return the columns of every table, each as its sorted values."""
    found = {}
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            if (path.name, table) == STARTS:
                continue
            rows = connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            all_rows = rows.fetchall()
            found[f"{table}.rows"] = str(len(all_rows) or "")
            for name, column in zip(names, zip(*all_rows, strict=True), strict=False):
                found[f"{table}.{name}"] = digest(repr(sorted(map(repr, column))).encode())
    return found


def of_lines(path: Path) -> dict[str, str]:
    """Return the lines of a text, without times."""
    text = path.read_text(encoding="utf-8")
    of_this_run = r' time="[0-9.]+"|\b[0-9.]+ s\b|\b[0-9]+ of them run by the last'
    of_this_run += r"|<td>[0-9.]+(?=<tr|</table>)"  # a check's column of seconds
    of_this_run += r"|(?m:^seconds +[0-9.]+$)"  # in what a page tells of its run
    lines = re.sub(of_this_run, "", text).splitlines()
    return {str(n): digest(line.encode()) for n, line in enumerate(lines)}


def digest(data: bytes) -> str:
    """Return a digest of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
