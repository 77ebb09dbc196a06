"""Where Roundscope keeps what it made once, and files that are read back only as they were written.

Nothing that is kept decides anything: whatever is missing, damaged, another user's or cannot be
written is made anew, and the log `roundscope` says so once in a process.
"""

import errno
import hashlib
import logging
import multiprocessing
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from roundscope.emu.whole_files import write_whole

_unwritten: dict[str, bytes] = {}  # by file name, where there is no folder that can be written
_SHA256 = hashlib.sha256().digest_size  # bytes of the digest that a kept file begins with


def cache_base() -> Path | None:
    """Return the folder of all of this user's caches, which may not exist yet.

    It is `$XDG_CACHE_HOME`, or `~/.cache` where that is not an absolute path (as the XDG Base
    Directory Specification has it). None if this user has no home folder.

    Example:
        >>> cache_base().is_absolute()
        True
    """
    if os.path.isabs(named := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(named)
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry in the password file
        return None
    return home / ".cache" if home.is_absolute() else None


def cache_folder(name: str) -> Path | None:
    """Return the folder `roundscope/name` of this user's caches, which it makes; name may have
    slashes.

    None, and a note, if it cannot be made or belongs to another user: then nothing is kept. The
    folder may be read-only.

    Example:
        >>> cache_folder("data").name
        'data'
    """
    base = cache_base()
    if base is None:
        _note("this user has no home folder; set XDG_CACHE_HOME to a folder that can be written")
        return None
    folder = base
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in ("roundscope", *name.split("/")):
            folder /= part
            folder.mkdir(mode=0o700, exist_ok=True)
            if whose := foreign(folder.stat()):
                _note(f"{str(folder)!r} belongs to {whose}; remove it or set XDG_CACHE_HOME")
                return None
    except OSError as error:
        _note_error(folder, error)
        return None
    return folder


def foreign(status: os.stat_result) -> str:
    """Return whose a file is, in words, if it is neither this user's nor root's, and '' otherwise.

    Code in files of other users is not run.

    Example:
        >>> foreign(Path(__file__).stat())
        ''
    """
    own = hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid())
    return f"user {status.st_uid}" if own else ""


def writing_fails(folder: Path) -> str:
    """Return why a folder cannot be written, in words, or '' if 64 KiB could be.

    Example:
        >>> writing_fails(Path("/nowhere"))
        'no such file or directory'
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def writable_folder(name: str) -> Path | None:
    """Return `cache_folder(name)` for a library that writes there itself.

    None, and a note, if it cannot be written.
    """
    folder = cache_folder(name)
    if folder is not None and (why := writing_fails(folder)):
        _note(f"{str(folder)!r}: {why}; free some space, or set XDG_CACHE_HOME to another folder")
        return None
    return folder


def read_kept(folder: Path | None, name: str) -> bytes | None:
    """Return what `keep` was given under this name, or None if exactly that is not there.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     keep(Path(folder), "one", b"code")
        ...     read_kept(Path(folder), "one"), read_kept(Path(folder), "two")
        (b'code', None)
    """
    whole = b"" if folder is None else _read(folder / name)
    data = whole[_SHA256:]
    return data if whole[:_SHA256] == _digest(name, data) else _unwritten.get(name)


def _read(file: Path) -> bytes:
    """Return what a file contains; nothing if it is no file, or one of another user."""
    try:
        status = file.stat()
        return file.read_bytes() if stat.S_ISREG(status.st_mode) and not foreign(status) else b""
    except OSError:
        return b""


def keep(folder: Path | None, name: str, data: bytes) -> None:
    """Write data to a file, all at once and with a digest, which contains the file's name.

    What cannot be written is noted, without an error, and kept in memory until the process ends, as
    is all data if the folder is None.
    """
    try:
        if folder is not None:
            place = folder / name
            if place.exists() and not place.is_file() and not place.is_dir():
                place.unlink()  # a pipe or a device in a folder of ours is no code
            write_whole(place, _digest(name, data) + data)
            return
    except OSError as error:
        _note_error(folder, error)
    _unwritten[name] = data


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


def _note_error(folder: Path | None, error: OSError) -> None:
    why = (error.strerror or str(error)).lower()
    is_taken = error.errno in (errno.EISDIR, errno.EEXIST)  # the name is that of a folder
    place = error.filename if is_taken else folder
    _note(f"{str(place)!r}: {why}; repair that, or set XDG_CACHE_HOME to another folder")


@cache
def notes() -> list[str]:
    """Return why things were not kept in this process: what is so, '; ', and what to do.

    Example:
        >>> isinstance(notes(), list)
        True
    """
    return []


def _note(what: str) -> None:
    """Log why nothing is kept, once in a process; a worker's parent has said it already."""
    if not notes() and multiprocessing.parent_process() is None:
        logging.getLogger("roundscope").warning(
            "roundscope: nothing is kept on disk, so every run compiles anew: %s", what
        )
    notes().append(what)
