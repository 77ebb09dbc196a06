"""One sweep at a time on a results file; readers need no lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roundscope.experiments.errors import StorageError

_held: set[Path] = set()  # by this process: the system's locks are between processes


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds PATH.lock, which says the holder's process number.

    Raises StorageError if another sweep holds it.

    A POSIX record lock on a file of its own: the kernel drops it when the process ends, by kill -9
    too, and a forked child does not keep it, as it would keep a flock. A file of its own, since
    SQLite's locks on the results are of the same kind, and one process's closing of a file drops
    all of its locks on it.
    """
    file = path.with_name(path.name + ".lock")
    if file in _held:
        raise _busy(path, str(os.getpid()))
    descriptor = _take(file, path)
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)
        file.unlink(missing_ok=True)  # while we hold it: who opens a new one finds it free
        os.close(descriptor)


def _take(file: Path, path: Path) -> int:
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            if _is_locked(descriptor, file, path):
                return descriptor
            os.close(
                descriptor
            )  # its holder ended and removed it between our opening and our locking
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                f"{file}: {error.strerror}; it must be writable: make it so or choose another --out"
            ) from None


def _is_locked(descriptor: int, file: Path, path: Path) -> bool:
    """Locks the file and writes our number into it; False if the name leads to another file by
    now.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise _busy(path, holder or "unknown") from None
    if not _still(file, descriptor):
        return False
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return True


def _still(file: Path, descriptor: int) -> bool:
    """Whether the name still leads to the file that we opened."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _busy(path: Path, pid: str) -> StorageError:
    return StorageError(
        f"another sweep (pid {pid}) is writing {path}; wait for it or choose another --out"
    )
