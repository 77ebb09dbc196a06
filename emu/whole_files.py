"""Files that are written whole or not at all, and names that are safe as parts of a path."""

import errno
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from roundscope.emu.shown import shown

LONGEST = 255  # bytes of a name that file systems take
LEFT = 3600.0  # seconds after which nobody is still writing a file that is unfinished
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield another name in the folder of `path`, for a file that then takes the place of `path`.

    The file is forced to the disk before it is renamed, so that neither a full disk nor a loss of
    power leaves half a file, or loses the one that was there. After an error nothing is left of it.
    What a process that was killed left of the same file is removed by a later one, after an hour.

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
    # a short name, since that of the file may have the greatest length that the disk takes
    begin = f".{zlib.crc32(os.fsencode(path.name)):08x}"
    unfinished = path.with_name(f"{begin}-{os.getpid()}.unfinished")
    for left in path.parent.glob(f"{begin}-*.unfinished"):
        with suppress(OSError):  # another process may remove it now
            if time.time() - left.stat().st_mtime > LEFT:
                left.unlink()
    try:
        yield unfinished
        with unfinished.open("r+b") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        unfinished.unlink(missing_ok=True)


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
