"""Files that are written whole or not at all, and names that are safe as parts of a path."""

import errno
import fcntl
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from roundscope.emu.shown import shown

LONGEST = 255  # bytes of a name that file systems take
LEFT = 3600.0  # seconds after which nobody still writes a file, where there are no locks
_UNFINISHED = re.compile(r"\.[0-9a-f]{8}-\d+\.unfinished")
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield another name in the folder of `path`, for a file that then takes the place of `path`.

    The file is forced to the disk before it is renamed, so that neither a full disk nor a loss of
    power leaves half a file, or loses the one that was there. After an error nothing is left of it.
    What killed processes left in the folder is removed: the lock of a process goes with it.

    Raises:
        OSError: the file cannot be written; its `filename` is `path`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with whole_file(Path(folder, "page.html")) as unfinished:
        ...         _ = unfinished.write_text("<p>whole</p>")
        ...     [kept.name for kept in Path(folder).iterdir()]
        ['page.html']
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(
            errno.EEXIST, "is a folder or a device, which no file replaces", str(path)
        )
    _remove_left(path.parent)
    # a short name, since that of the file may have the greatest length that the disk takes
    begin = f".{zlib.crc32(os.fsencode(path.name)):08x}"
    unfinished = path.with_name(f"{begin}-{os.getpid()}.unfinished")
    try:
        with _being_written(unfinished):
            yield unfinished
            with unfinished.open("r+b") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


def is_left(path: Path) -> bool:
    """Return whether a name is that of a file which is being written, or was when a process died.

    Example:
        >>> [is_left(Path(name)) for name in (".00c0ffee-123.unfinished", "report.html")]
        [True, False]
    """
    return _UNFINISHED.fullmatch(path.name) is not None


@contextmanager
def _being_written(unfinished: Path) -> Iterator[None]:
    """Create a file and hold its lock while it is written; after an error nothing is left of it."""
    while True:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system may have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_named(unfinished, descriptor):
            break
        os.close(descriptor)  # another process took it for one that was left
    try:
        yield
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _remove_left(folder: Path) -> None:
    """Remove the unfinished files of a folder that no process is writing."""
    for left in filter(is_left, folder.glob(".*.unfinished")):
        with suppress(OSError):  # another process may write it, or remove it now
            descriptor = os.open(left, os.O_RDWR)
            try:
                # the name may be another file's by now, which some thread writes
                if _is_free(descriptor) and _is_named(left, descriptor):
                    left.unlink()
            finally:
                os.close(descriptor)


def _is_named(path: Path, descriptor: int) -> bool:
    """Return whether an open file still has the name by which it was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_free(descriptor: int) -> bool:
    """Return whether no process writes an open file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return time.time() - os.fstat(descriptor).st_mtime > LEFT
    return True


def write_whole(path: Path, content: str | bytes) -> None:
    r"""Write a file as `whole_file` does.

    content: text is written as UTF-8, and what UTF-8 lacks (a part of a file's name that is no
             text) as an escape such as \udcff.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with whole_file(path) as unfinished:
        unfinished.write_bytes(data)


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file; of a pipe or a device, which might never end, none are read.

    Raises:
        OSError: There is no such file, it is no ordinary one, or it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is a folder, a pipe or a device, no ordinary file", str(path))
    return path.read_bytes()


def safe_names(names: Iterable[str]) -> list[str]:
    """Return a name for each name that can stand in a path and in an archive, no two alike.

    A name of up to 80 ASCII letters, digits, dots, hyphens and underscores that begins with none of
    the first two is its own. Any other becomes its number, from 0, and what is safe of it. Names
    that differ only in their case become two by their numbers, too.

    Example:
        >>> safe_names(["layers.0", "../../etc/passwd", "a/b", "LAYERS.0"])
        ['layers.0', '1-etc-passwd', '2-a-b', '3-LAYERS-0']
    """
    found: dict[str, str] = {}  # by its lower case
    for number, name in enumerate(names):
        own = name
        if not _SAFE.fullmatch(name) or name.lower() in found:
            own = f"{number}-{_OTHER.sub('-', name).strip('-')[:60]}".rstrip("-")
        while own.lower() in found:
            own += "_"
        found[own.lower()] = own
    return list(found.values())


def path_given(name: str, path: object, such: str) -> Path:
    """Return the path of a file that a user names.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty, or no file can have it.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name}={shown(path)}: give the path of a file, such as {such}")
    text = os.fspath(path)
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name}={shown(text)}: give the path of a file, such as {such}")
    if any(len(os.fsencode(part)) > LONGEST for part in Path(text).parts):
        raise ValueError(f"{name}={shown(text)}: a name of more than {LONGEST} bytes; shorten it")
    return Path(text)
