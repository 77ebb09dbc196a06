"""Folders and pages that commands write, and never those of another request without a word.

A place is tried before the work, by writing: permissions alone do not tell whether a disk is full,
is read-only or takes no files. The trial leaves nothing.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from roundscope.emu.plain_data import parsed
from roundscope.emu.whole_files import LONGEST, is_left, read_whole, write_whole
from roundscope.tools.errors import StorageError, UsageError, bad
from roundscope.tools.report.terminal import console, plain

OPENING = 400  # characters of a page, in which its title is
PAGE = "report.html"


def request_of(*whole: Any) -> str:
    """Return a digest of all that decides what a command writes: its request."""
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def as_word(text: str) -> str:
    """Return a text as part of a folder's name: what shells or file systems dislike becomes -."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", text)


def free_folder(name: str, request: str, record: str, kept: str = "") -> Path:
    """Return the folder of that name, or name-2, name-3 and so on where it holds another request.

    record: the name of the JSON file in it that tells its request; kept: that of a file with which
    a command that was interrupted goes on.
    """
    folders = (Path(name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(folder for folder in folders if _is_free(folder, request, record, kept))


def _is_free(folder: Path, request: str, record: str, kept: str) -> bool:
    """Return whether a folder does not exist, holds nothing finished, or holds the same request."""
    if not folder.is_dir():
        return not folder.exists()
    if (folder / record).exists():
        return bool(_held(folder / record) == request)
    is_empty = all(is_left(path) for path in folder.iterdir())
    return is_empty or (bool(kept) and (folder / kept).exists())


def _held(record: Path) -> Any:
    """Return the request that a record tells; None for a file that tells none."""
    try:
        return parsed(read_whole(record)).get("request")
    except (OSError, ValueError, AttributeError):
        return None


def checked_folder(out: Path | None, record: str, page: str = PAGE) -> None:
    """Refuse a folder of --out that cannot be written, or holds the page of another command, or
    something else in place of a file that this command writes.

    out: None for one that the command will choose in the current folder.
    record: the name of the JSON file that this command writes beside its page.
    """
    can_write_folder("--out", Path() if out is None else out)
    if out is None:
        return
    can_replace(out, record, page)
    if (out / page).exists() and not (out / record).exists():
        raise bad("--out", str(out), f"its {page} is of another command; choose another folder")


def tell_replaced(out: Path, request: str, record: str) -> None:
    """Say on stderr that the results of another request in a folder are replaced, if they are."""
    if (out / record).exists() and _held(out / record) != request:
        console(stderr=True).print(
            f"{out}: the results of another request, in {record}, are replaced",
            markup=False,
            soft_wrap=True,
        )


def write_json(path: Path, data: Any) -> None:
    """Write one JSON document, whole or not at all; numbers that JSON lacks become texts."""
    text = json.dumps(plain(data), indent=1, allow_nan=False)
    write_whole(path, text + "\n")


def write_results(folder: Path, record: str, data: Any, page: str, name: str = PAGE) -> None:
    """Write the page and the record of a command into its folder, which is made.

    The record is written first: a page without one is taken for that of another command, so a
    command that is killed between the two could not write into its own folder again.

    Raises:
        UsageError: In place of one of them is a folder or a device; neither is written.
    """
    can_replace(folder, record, name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / record, data)
    write_whole(folder / name, page)


@contextmanager
def storing(out: Path) -> Iterator[None]:
    """Raise StorageError, which names the file, where the system cannot write it."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{out}: {error.strerror or error}; see its folder, or choose another file"
        ) from error


def write_page(out: Path, page: str, title: str) -> None:
    """Write a page into a file that does not exist, or that is such a page.

    title: how the title of such a page begins.

    Raises:
        UsageError: the file is a folder, or something else than such a page.
        StorageError: it cannot be written.
    """
    can_write_file("--out", out)
    if out.exists():
        with out.open(encoding="utf-8", errors="replace") as file:
            if f"<title>{title}" not in file.read(OPENING):
                raise bad("--out", str(out), "exists and is another file; name a new one")
    with storing(out):
        write_whole(out, page)


def can_write_folder(option: str, out: Path) -> None:
    """Raise UsageError if no files can be written into a folder, which need not exist yet."""
    _check_names(option, out)
    if os.path.lexists(out) and not out.is_dir():
        is_file = out.is_file()
        raise bad(option, str(out), f"is {'a file' if is_file else 'no folder'}; name a folder")
    _try(option, out, out)


def can_replace(out: Path, *names: str) -> None:
    """Raise UsageError if a file of such a name in a folder of --out could not be replaced.

    A command that writes several files asks for all of them first, so that it writes all or none.
    """
    for path in (out / name for name in names):
        if path.exists() and not path.is_file():
            problem = f"its {path.name} is a folder or a device, which no file replaces"
            raise bad("--out", str(out), f"{problem}; choose another folder")


def can_write_file(option: str, out: Path) -> None:
    """Raise UsageError if a file cannot be written, or is one that must not be replaced."""
    _check_names(option, out)
    if out.is_dir():
        raise bad(option, str(out), "is a folder; name a file")
    if out.exists() and not out.is_file():
        raise bad(option, str(out), "is a device and no file; name a file")
    _try(option, out, out.parent)


def _check_names(option: str, out: Path) -> None:
    """Raise UsageError for a name that no file system takes."""
    if long := [part for part in out.parts if len(os.fsencode(part)) > LONGEST]:
        size = len(os.fsencode(long[0]))
        raise bad(option, str(out), f"a name of {size} bytes; give at most {LONGEST}")


def _try(option: str, out: Path, folder: Path) -> None:
    """Write a file without a name into a folder, or into the nearest one above it that exists."""
    try:
        there = next(f for f in (folder, *folder.absolute().parents) if os.path.lexists(f))
        if not there.is_dir():
            raise bad(option, str(out), f"{there} is not a directory; choose another folder")
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 512)
            file.flush()
    except UsageError:
        raise
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        repair = f"cannot be written ({why}); choose a folder that you may write"
        raise bad(option, str(out), repair) from None
