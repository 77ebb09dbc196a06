"""`roundscope prepare`: writes any text as bytes into the files that nanoGPT reads.

These are train.bin and val.bin, uint16, one token per byte.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu.plain_data import COUNT, misfit, parsed
from roundscope.emu.whole_files import read_whole, write_whole
from roundscope.tools.errors import bad
from roundscope.tools.results.folder import can_replace

SHAPE = {"train": COUNT, "val": COUNT, "sha256": str}  # of meta.json
LARGE = 1 << 28  # bytes of tokens that take a second to read
SHARE = 10  # one byte in so many, the last ones, is for validation


def run(paths: Sequence[Path], out: Path, as_json: bool) -> None:
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

    say(
        f"written: {out} ({meta['train']} tokens to train on, {meta['val']} for validation,"
        f" {meta['files']} files)"
    )
    if skipped:
        say(
            f"left out: {len(skipped)} files that contain zero bytes and so are no text, the first"
            f" {skipped[0]}"
        )
    say(f"train on it: roundscope train data={out} --out RUN")


def texts(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return (text files, others).

    Folders are searched in the order of names, without hidden files. Raises UsageError if there is
    no text.
    """
    files = [file for path in paths for file in _files(path)]
    is_text = {file: b"\0" not in file.read_bytes() for file in files}
    kept = [f for f in files if is_text[f]]
    if not any(f.stat().st_size for f in kept):
        raise bad(
            "DIR_OR_FILES",
            " ".join(map(str, paths)),
            "holds no text; name text files or folders with some",
        )
    return kept, [f for f in files if not is_text[f]]


def _files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise bad("DIR_OR_FILES", str(path), "does not exist")
    if path.is_file():
        yield path
        return
    inside = (
        f
        for f in path.rglob("*")
        if f.is_file() and not any(part.startswith(".") for part in f.relative_to(path).parts)
    )
    yield from sorted(inside, key=lambda f: f.relative_to(path).as_posix())


def write(out: Path, documents: Iterator[tuple[str, bytes]], **about: Any) -> dict[str, Any]:
    """Write the documents end to end, the last tenth for validation; return what meta.json says.

    train.bin is renamed into place last, so a folder that has it is complete.
    """
    names, parts = zip(*documents, strict=True)
    tokens = _tokens(b"".join(parts))
    cut = tokens.size - tokens.size // SHARE
    meta = {
        "vocab": 256,
        "train": cut,
        "val": tokens.size - cut,
        "files": len(names),
        "sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
        **about,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "meta.json", (json.dumps(meta, indent=1) + "\n").encode())
    write_whole(out / "val.bin", tokens[cut:].tobytes())
    write_whole(out / "train.bin", tokens[:cut].tobytes())
    return meta


def _tokens(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype("<u2")


def is_whole(folder: Path, text: bytes | None = None) -> bool:
    """Return whether a folder has the tokens that `write` wrote there, every byte.

    text: if given, they also have to be those of this text.
    """
    try:
        meta, digest = _meta(folder), _digest(folder)
    except OSError:
        return False
    if text is not None and hashlib.sha256(_tokens(text).tobytes()).hexdigest() != digest:
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
