"""Hostile results: one small result of each kind, damaged in every way, and read by every command.

A command may refuse, in one line that names the file, and then leaves every byte as it was; or go
on, where what was damaged is nothing that it reads. A table is made anew without its constraints,
so that every column takes every value.
"""

import contextlib
import gc
import hashlib
import io
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roundscope.attention.models import log
from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.selection import Layer
from roundscope.experiments.questions.kernels import study as measure
from tests.checks.hostile.scene import run, scene
from tests.checks.hostile.verdict import ALL, Asked, Verdict, fault_of_message

POOL = """
from concurrent.futures import ThreadPoolExecutor

def pool():
    return ThreadPoolExecutor(1)
"""
DEEP = "[" * 100_000
ODD_SQL = {
    "text": "'x'",
    "NULL": "NULL",
    "bytes": "x'00ff'",
    "2^62": str(1 << 62),
    "-1": "-1",
    "infinite": "9e999",
    "no UTF-8": "CAST(x'ff' AS TEXT)",
    "escapes": "char(27) || ']0;title' || char(7)",
    "deep": f"'{DEEP}'",
    "empty object": "'{}'",
}
USUAL_SQL = ("text", "bytes", "NULL")  # for columns that are like many others
ODD_JSON = {
    "null": None,
    "text": "x",
    "bool": True,
    "number": 1.5,
    "-1": -1,
    "huge": 10**400,
    "NaN": float("nan"),
    "list": [],
    "list of null": [None],
    "object": {},
    "escapes": "\x1b]0;title\x07",
}
CUTS = (0, 1, 15, 16, 99, 100, 0.3, 0.5, 0.9, -1)


class Kind(NamedTuple):
    """A kind of result: what makes it, the files that are damaged, and the lines that read it.

    deciding: columns that are tried with every odd value; code: that of the lines where nothing is
    damaged
    """

    made: Callable[[], None]
    files: tuple[str, ...]
    lines: tuple[str, ...]
    deciding: tuple[str, ...] = ()
    code: int = 0


def _lines(*lines: str) -> Callable[[], None]:
    def make() -> None:
        for line in lines:
            answer = run(line.split(), 300.0)
            assert answer.code in (0, 1), (line, answer)

    return make


def _watched() -> None:
    numbers = HeadNumbers(*(np.array([0.5, 0.25]) for _ in HeadNumbers._fields))
    layer = log.LayerLook(
        layer=Layer(name="blocks.0", number=0), share=0.1, heads=(0, 1), numbers=numbers
    )
    for step in range(3):
        look = log.Look(step=step, share=0.1, threshold=0.2, alarm=None, layers=(layer,))
        log.append("w.jsonl", look)


def _measured() -> None:
    mean = measure.Mean(mean=0.1, z=2.0)
    one = dict.fromkeys(("out", "dq", "dk", "dv"), 0.1)
    row = measure.Row(
        kernel="sdpa-flash",
        family="Gaussian",
        heads=4,
        error=one,
        gain=dict.fromkeys(one, mean),
        delta=mean,
        drift=0.1,
        signed=mean,
        same=one,
        over=one,
    )
    measure.write(Path("kern/measured.json"), [row])


SWEEP = "sweep T=16,32 N=1 H=8 seed=0:2 --out s.sqlite --executor threads:pool"
TRAIN = (
    "train --out run data=repeat steps=6 layers=1 width=16 heads=1 context=16 batch=2"
    " checkpoint_every=2 monitor_every=2"
)
DOSE = (
    "dose --quick layers=1 heads=1 width=16 context=16 batch=2 data=repeat steps=4"
    " mode=toward-zero,stochastic site=O p=4 lr=1e-2 --seeds 0:2 --out ds"
)
CHECK = (
    "check km:good --tokens 16 --features 16 --heads 1 --batch 2 --draws 1 --claims fp32 --full"
    " --only envelope --forward --out ck"
)
DIAGNOSE = "diagnose t.safetensors --out dg"
PROXY = "proxy --out px depth=1 width=32 batch=32 steps=6 --seeds 0:1 --arm a=mx=mxfp8_e4m3"
KINDS = {
    "sweep": Kind(
        _lines(SWEEP),
        ("s.sqlite",),
        (
            "report s.sqlite --out new.html",
            "export s.sqlite new.csv",
            "export s.sqlite new.csv --table sites",
            SWEEP,
            f"{SWEEP} --dry-run",
            "watch s.sqlite",
        ),
        ("key", "status", "T", "seed", "format", "rel_rms", "versions", "plan", "site", "n"),
    ),
    "train": Kind(
        _lines(TRAIN),
        ("run/run.sqlite", "run/checkpoints/00000006.json", "run/checkpoints/00000006.safetensors"),
        (
            "report run --out new.html",
            "train --resume run steps=7",
            "train --resume run --from 4 --out new steps=7",
            "diagnose run --out new",
            "report run/run.sqlite --out new.html",
            "export run/run.sqlite new.csv",
        ),
        ("arm", "step", "config", "arms", "loss", "layer", "kind"),
    ),
    "watch": Kind(_watched, ("w.jsonl",), ("watch w.jsonl --out new.png",)),
    "trace": Kind(
        _lines("trace t.safetensors --no-budget --out tr"),
        ("tr/trace.json", "tr/report.html"),
        ("trace t.safetensors --no-budget --out tr",),
    ),
    "kernels": Kind(
        _measured,
        ("kern/measured.json",),
        ("kernels --draw --out kern",),
    ),
    "proxy": Kind(
        _lines(PROXY),
        ("px/proxy.sqlite",),
        (PROXY, f"{PROXY} --draw", "diagnose px --out new"),
        ("key", "steps", "diverged", "loss", "curve", "extra", "config", "condition"),
    ),
    "check": Kind(_lines(CHECK), ("ck/check.json", "ck/report.html"), (CHECK,), code=1),
    "diagnose": Kind(_lines(DIAGNOSE), ("dg/diagnosis.json", "dg/report.html"), (DIAGNOSE,)),
    "dose": Kind(
        _lines(DOSE),
        ("ds/dose.sqlite", "ds/dose.json"),
        (DOSE, f"{DOSE} --draw"),
        ("key", "steps", "diverged", "loss", "curve", "extra", "config", "condition"),
    ),
    "prepared": Kind(
        _lines("prepare text.txt --out data"),
        ("data/meta.json", "data/train.bin", "data/val.bin"),
        ("train --out new data=data steps=2 layers=1 width=16 heads=1 context=16 batch=2",),
    ),
}


def damages(path: Path, kind: Kind) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what is done to a file, and the function that does it."""
    content = path.read_bytes()
    for cut in CUTS:
        end = int(len(content) * cut) if isinstance(cut, float) else cut
        yield f"cut at {cut}", lambda end=end: _write(path, content[:end])
    middle = len(content) // 2
    zeros = content[:middle] + bytes(64) + content[middle + 64 :]
    yield "zeros inside", lambda: _write(path, zeros)
    yield "longer", lambda: _write(path, content + b"\0" * 100)
    yield "a text", lambda: _write(path, b"no result at all, but a text of mine\n" * 9)
    yield "gone", path.unlink
    yield "a folder", lambda: (path.unlink(), path.mkdir())
    yield "a pipe", lambda: (path.unlink(), os.mkfifo(path))
    yield "a link to nothing", lambda: (path.unlink(), path.symlink_to("nothing"))
    if content.startswith(b"SQLite format 3"):
        yield from _of_tables(path, kind)
    if path.suffix in (".json", ".jsonl"):
        yield from _of_json(path)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _of_tables(path: Path, kind: Kind) -> Iterator[tuple[str, Callable[[], None]]]:
    def sql(*texts: str) -> Callable[[], None]:
        def change() -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                for text in texts:
                    connection.execute(text)
                connection.commit()
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        return change

    for number in (0, 1, 99, -1):
        yield f"user_version {number}", sql(f"PRAGMA user_version = {number + (number == 1)}")
    for number in (0, 1):
        yield f"application_id {number}", sql(f"PRAGMA application_id = {number}")
    with closing(sqlite3.connect(path)) as connection:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        tables = {
            table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for (table,) in connection.execute(names).fetchall()
        }
    for table, columns in tables.items():
        free = (f"CREATE TABLE free AS SELECT * FROM {table}", f"DROP TABLE {table}")
        back = f"ALTER TABLE free RENAME TO {table}"
        yield f"no table {table}", sql(f"DROP TABLE {table}")
        yield f"no row in {table}", sql(f"DELETE FROM {table}")
        yield f"a view {table}", sql(free[0], free[1], f"CREATE VIEW {table} AS SELECT * FROM free")
        yield (
            f"a trigger on {table}",
            sql(
                f"CREATE TRIGGER odd BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
            ),
        )
        yield f"twice in {table}", sql(*free, "INSERT INTO free SELECT * FROM free", back)
        for column in columns:
            yield f"no {table}.{column}", sql(*free, f'ALTER TABLE free DROP "{column}"', back)
            odd = ODD_SQL if column in kind.deciding else USUAL_SQL
            for name in odd:
                change = f'UPDATE free SET "{column}" = {ODD_SQL[name]}'
                yield f"{table}.{column} = {name}", sql(*free, change, back)


def _of_json(path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    lines = path.read_text().splitlines()
    whole = path.suffix == ".json"
    data = json.loads(path.read_text() if whole else lines[1])

    def write(found: Any) -> None:
        text = found if isinstance(found, str) else json.dumps(found)
        path.write_text(text if whole else "\n".join([lines[0], text, *lines[2:], ""]))

    for name, text in (("deep", DEEP), ("huge", "1" * 10_000), ("twice", json.dumps(data) * 2)):
        yield f"JSON {name}", lambda text=text: write(text)
    for place in _places(data):
        yield f"no {_named(place)}", lambda place=place: write(_with(data, place))
        for name, odd in ODD_JSON.items():
            new = _with(data, place, odd)
            yield f"{_named(place)} = {name}", lambda new=new: write(new)


def _named(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place)) or "all"


def _places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of JSON data, of a list the first alone."""
    yield place
    if isinstance(data, dict):
        for name, each in data.items():
            yield from _places(each, (*place, name))
    elif isinstance(data, list) and data:
        yield from _places(data[0], (*place, 0))


def _with(data: Any, place: tuple[Any, ...], *new: Any) -> Any:
    """Return JSON data with something else at a place, or without it."""
    if not place:
        return new[0] if new else {}
    copy = data.copy()
    first, *rest = place
    if rest or new:
        copy[first] = _with(data[first], tuple(rest), *new)
    else:
        del copy[first]
    return copy


class Damage(NamedTuple):
    """What is done to a file, and the line that then reads it."""

    case: str
    file: str
    do: Callable[[], None]
    line: str
    code: int


def cases(folder: Path, kinds: dict[str, Kind]) -> list[Damage]:
    """Return each damage to the files of a folder with each line, in the order of their digests:
    so that the first of them are a sample of all.
    """
    found = [
        Damage(f"{kind_name}: {file}: {name}: {line}", file, damage, line, kind.code)
        for kind_name, kind in kinds.items()
        for file in kind.files
        for name, damage in damages(folder / file, kind)
        for line in kind.lines
    ]
    return sorted(found, key=lambda each: hashlib.sha256(each.case.encode()).digest())


def verdicts(asked: Asked = ALL) -> Iterator[Verdict]:
    """Yield a verdict for each damage and line."""
    named = {name: kind for name, kind in KINDS.items() if asked.only.startswith(name)}
    kinds = named or KINDS
    with scene() as folder:
        (folder / "threads.py").write_text(POOL)
        for kind in kinds.values():
            kind.made()
        shutil.copytree(folder, folder.parent / "kept")
        for each in cases(folder, kinds):
            if each.case in asked:
                yield _judged(each, folder)


def _judged(asked: Damage, folder: Path) -> Verdict:
    case, file, damage, line, usual = asked
    _restore(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        damage()
    before = _content(folder)
    answer = run(line.split(), 120.0)
    gc.collect()  # a traceback keeps a database open, as no process of its own does
    after = _content(folder)
    text = f"{answer.code} {answer.err.strip()[:400]}"
    _restore(folder)
    if answer.code is None:
        return Verdict(case, "slow", text)
    if answer.code not in (0, 1, 2, 130):
        return Verdict(case, f"code {answer.code}", text)
    if "\x1b]" in answer.out + answer.err:
        return Verdict(case, "control characters", text)
    if answer.code in (0, usual):
        return Verdict(case, "", f"{answer.code} {case}")
    if fault := fault_of_message(answer.err):
        return Verdict(case, fault, text)
    if not any(name in answer.err for name in (file, *file.split("/"), "unknown data")):
        return Verdict(case, "names no file", text)
    if changed := [n for n in before | after if before.get(n) != after.get(n)]:
        return Verdict(case, "changed", f"{changed} {text}")
    return Verdict(case, "", text)


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _restore(folder: Path) -> None:
    """Put every file back that was damaged, and remove what was written."""
    kept = folder.parent / "kept"
    wanted = {path.relative_to(kept): path for path in kept.rglob("*")}
    for path in sorted(folder.rglob("*"), reverse=True):
        own = wanted.get(path.relative_to(folder))
        if own is None or path.is_symlink() or own.is_dir() != path.is_dir():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, path in sorted(wanted.items()):
        target = folder / name
        if path.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.is_file() or target.read_bytes() != path.read_bytes():
            target.unlink(missing_ok=True)
            shutil.copy2(path, target)
