"""Tokens to train on: nanoGPT's files, Python's own sources, synthetic streams.

A batch depends on (data, seed, step) alone. `prepare` (`roundscope prepare`) writes any text as
bytes into the files that nanoGPT reads: train.bin and val.bin, uint16, one token per byte.
"""

import atexit
import hashlib
import json
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.backends.kept import cache_folder, writing_fails
from roundscope.emu.errors import unknown
from roundscope.emu.plain_data import COUNT, misfit, parsed
from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.results.folder import can_replace

TRAIN, VAL = 0, 1
LONGEST = 16  # of a run of 'repeat'
SINK = 4  # one token in so many of 'sink' is the sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """A source of batches.

    name, seed, size, length, vocab   the data, its seed, (batch, context + 1) and the number of
                                      tokens
    about    what the data is, for the log: two runs have identical batches if this and the fields
             above agree
    draw     makes the tokens of a batch
    """

    name: str
    seed: int
    size: int
    length: int
    vocab: int
    about: dict[str, Any]
    draw: Callable[["Batches", int, np.random.Philox], np.ndarray] = field(repr=False)

    def batch(self, step: int) -> np.ndarray:
        """Return the tokens (batch, context + 1) int32 of a step."""
        return self._drawn(TRAIN, step)

    def val(self, step: int) -> np.ndarray:
        """Return the tokens of a step from the validation part, as `batch` does."""
        return self._drawn(VAL, step)

    def _drawn(self, part: int, step: int) -> np.ndarray:
        bits = np.random.Philox(key=np.array([self.seed, 2 * step + part], np.uint64))
        tokens = self.draw(self, part, bits)
        if tokens.max() >= self.vocab:
            most = tokens.max()
            repair = f"the data has token {most}; give at least vocab={most + 1}"
            raise bad("vocab", self.vocab, repair)
        return tokens.astype(np.int32)


def batches(config: Any, seed: int | None = None) -> Batches:
    """Return the batches of a config: its data, data_seed (or `seed`), batch, context and vocab.

    The data is 'stdlib', 'repeat', 'sink', or a folder with train.bin and val.bin. Raises
    UsageError for other names and for too little data.
    """
    if config.data in _SYNTHETIC:
        draw, about = _SYNTHETIC[config.data], {"stream": config.data}
    elif config.data == "stdlib" or Path(config.data).is_dir():
        draw, about = _from_files(
            stdlib() if config.data == "stdlib" else Path(config.data), config
        )
    else:
        what = unknown("data", config.data, ("stdlib", *_SYNTHETIC))
        raise UsageError(f"{what}, or a folder with train.bin and val.bin")
    return Batches(
        name=config.data,
        seed=config.data_seed if seed is None else seed,
        size=config.batch,
        length=config.context + 1,
        vocab=config.vocab,
        about=about,
        draw=draw,
    )


def _from_files(folder: Path, config: Any) -> tuple[Callable[..., np.ndarray], dict[str, Any]]:
    parts = tuple(_tokens(folder / name, config) for name in ("train.bin", "val.bin"))
    check(folder)

    def draw(own: Batches, part: int, bits: np.random.Philox) -> np.ndarray:
        tokens = parts[part]
        first = bits.random_raw(own.size) % np.uint64(tokens.size - own.length + 1)
        return np.stack([tokens[i : i + own.length] for i in first.astype(np.int64)])

    digest = hashlib.sha256()  # of sizes and both ends: reading a large file takes minutes
    for tokens in parts:
        ends = tokens[: 1 << 19].tobytes() + tokens[-(1 << 19) :].tobytes()
        digest.update(f"{tokens.size}:".encode() + ends)
    sizes = {"train": parts[0].size, "val": parts[1].size}
    return draw, {"folder": str(folder), **sizes, "fingerprint": digest.hexdigest()}


def _tokens(path: Path, config: Any) -> np.ndarray:
    if not path.is_file():
        made = f"make it with  roundscope prepare DIR_OR_FILES --out {path.parent}"
        raise bad("data", config.data, f"has no {path.name}; {made}")
    size, least = path.stat().st_size, 2 * (config.context + 1)
    if size % 2 or size < least:
        needed = f"uint16 tokens for one context need an even number from {least} up"
        raise bad("data", config.data, f"{path.name} has {size} bytes; {needed}")
    return np.memmap(path, "<u2", "r")


def stdlib() -> Path:
    """Return the folder of the running Python's standard library as tokens, without its tests.

    It is made in the user's cache on first use and whenever it is not what was written; where
    nothing can be kept, in a folder that is removed when this process ends.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    found = sorted((f.relative_to(root).as_posix(), f) for f in root.rglob("*.py"))
    files = [(name, f) for name, f in found if not left_out & set(name.split("/"))]
    listed = "\n".join(f"{name} {f.stat().st_size}" for name, f in files).encode()
    version = platform.python_version()
    folder = cache_folder(f"data/stdlib-{version}-{hashlib.sha256(listed).hexdigest()[:12]}")
    if folder is None or (not is_whole(folder) and writing_fails(folder)):
        folder = _temporary()
    if not is_whole(folder):
        write(folder, ((name, f.read_bytes()) for name, f in files), python=version)
    return folder


@cache
def _temporary() -> Path:
    """Return a folder for tokens that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="roundscope-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _repeat(own: Batches, part: int, bits: np.random.Philox) -> np.ndarray:
    """Return runs of 1 to 16 equal tokens: several share the maximum where none has a position."""
    raw = bits.random_raw((own.size, 2, own.length))
    ends = (1 + raw[:, 0] % np.uint64(LONGEST)).cumsum(axis=1)
    tokens = raw[:, 1] % np.uint64(own.vocab)
    run = np.stack([np.searchsorted(e, np.arange(own.length), side="right") for e in ends])
    return np.take_along_axis(tokens, run, axis=1)


def _sink(own: Batches, part: int, bits: np.random.Philox) -> np.ndarray:
    """Return tokens, a quarter of them token 0; what follows each is fixed up to noise."""
    raw = bits.random_raw((2, own.size, own.length))
    tokens = np.zeros((own.size, own.length), np.uint64)
    vocab = np.uint64(own.vocab)
    for t in range(1, own.length):
        follows = (tokens[:, t - 1] * np.uint64(5) + np.uint64(7)) % vocab
        drawn = np.where(raw[0, :, t] & np.uint64(12), follows, raw[1, :, t] % vocab)
        tokens[:, t] = np.where(raw[0, :, t] % np.uint64(SINK), drawn, np.uint64(0))
    return tokens


_SYNTHETIC = {"repeat": _repeat, "sink": _sink}


SHAPE = {"train": COUNT, "val": COUNT, "sha256": str}  # of meta.json
LARGE = 1 << 28  # bytes of tokens that take a second to read
SHARE = 10  # one byte in so many, the last ones, is for validation


def prepare(paths: Sequence[Path], out: Path, as_json: bool) -> None:
    """Write OUT/train.bin, val.bin and meta.json, and print what was written.

    paths: files, and folders of which all files are taken.
    out: a folder that has no train.bin, or that of the same text, which a killed run leaves too.
    """
    from roundscope.tools.report.terminal import console, print_json

    can_replace(out, "meta.json", "val.bin", "train.bin")
    files, skipped = texts(paths)
    documents = [(str(f), f.read_bytes()) for f in files]
    if (out / "train.bin").exists() and not is_whole(out, b"".join(text for _, text in documents)):
        raise bad("--out", str(out), "holds other data, or damaged data; choose another folder")
    meta = write(out, iter(documents)) | {"skipped": [str(f) for f in skipped]}
    if as_json:
        return print_json(meta)

    def say(text: str) -> None:
        console().print(text, markup=False, soft_wrap=True)

    parts = f"{meta['train']} tokens to train on, {meta['val']} for validation"
    say(f"written: {out} ({parts}, {meta['files']} files)")
    if skipped:
        binary = f"{len(skipped)} files that contain zero bytes and so are no text"
        say(f"left out: {binary}, the first {skipped[0]}")
    say(f"train on it: roundscope train data={out} --out RUN")


def texts(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return (text files, others), in the order of names. Raises UsageError for no text."""
    files = [file for path in paths for file in _files(path)]
    is_text = {file: b"\0" not in file.read_bytes() for file in files}
    kept = [f for f in files if is_text[f]]
    if not any(f.stat().st_size for f in kept):
        repair = "holds no text; name text files or folders with some"
        raise bad("DIR_OR_FILES", " ".join(map(str, paths)), repair)
    return kept, [f for f in files if not is_text[f]]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise bad("DIR_OR_FILES", str(path), "does not exist")
    if path.is_file():
        return [path]
    inside = {f.relative_to(path): f for f in path.rglob("*") if f.is_file()}
    shown = [own for own in inside if not any(part.startswith(".") for part in own.parts)]
    return [inside[own] for own in sorted(shown, key=Path.as_posix)]


def write(out: Path, documents: Iterator[tuple[str, bytes]], **about: Any) -> dict[str, Any]:
    """Write documents, a tenth of them for validation, train.bin last; return meta.json."""
    names, parts = zip(*documents, strict=True)
    tokens = _bytes_as_tokens(b"".join(parts))
    cut = tokens.size - tokens.size // SHARE
    meta: dict[str, Any] = {"vocab": 256, "train": cut, "val": tokens.size - cut}
    digest = hashlib.sha256(tokens.tobytes()).hexdigest()
    meta |= {"files": len(names), "sha256": digest, **about}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "meta.json", (json.dumps(meta, indent=1) + "\n").encode())
    write_whole(out / "val.bin", tokens[cut:].tobytes())
    write_whole(out / "train.bin", tokens[:cut].tobytes())
    return meta


def _bytes_as_tokens(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype("<u2")


def is_whole(folder: Path, text: bytes | None = None) -> bool:
    """Return whether a folder has all that `write` wrote there, and the text, if given."""
    try:
        meta, digest = _meta(folder), _digest(folder)
    except OSError:
        return False
    if text is not None and hashlib.sha256(_bytes_as_tokens(text).tobytes()).hexdigest() != digest:
        return False
    return meta is not None and meta["sha256"] == digest


def check(folder: Path) -> None:
    """Refuse tokens of a folder that are not those that `write` wrote there.

    A folder that somebody else made says nothing of its tokens. Of many tokens the number alone is
    compared. Raises UsageError.
    """
    meta = _meta(folder)
    if meta is None:
        return
    sizes = {part: (folder / f"{part}.bin").stat().st_size for part in ("train", "val")}
    amiss = [part for part, size in sizes.items() if size != 2 * meta[part]]
    if amiss or (sum(sizes.values()) < LARGE and _digest(folder) != meta["sha256"]):
        what = f"{amiss[0]}.bin" if amiss else "train.bin or val.bin"
        repair = f"{what} is not what its meta.json says; make the folder again, or delete that"
        raise bad("data", str(folder), repair)


def _meta(folder: Path) -> dict[str, Any] | None:
    """Return what `write` said of a folder; None where it said nothing."""
    try:
        meta = parsed(read_whole(folder / "meta.json"))
    except (OSError, ValueError):
        return None
    found: dict[str, Any] | None = None if misfit(meta, SHAPE) else meta
    return found


def _digest(folder: Path) -> str:
    digest = hashlib.sha256(read_whole(folder / "train.bin"))
    digest.update(read_whole(folder / "val.bin"))
    return digest.hexdigest()
