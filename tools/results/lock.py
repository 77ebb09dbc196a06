"""A lock on a results file, so that one process at a time writes it; readers need no lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roundscope.tools.errors import StorageError

# lock files that this process holds; the kernel's locks only work between processes
_held: set[Path] = set()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold PATH.lock, which contains the process number of its holder, while the context is open.

    It is a POSIX record lock on a file of its own. The kernel drops it when the process ends, even
    after kill -9, and a forked child does not inherit it, as it would inherit a flock. The lock
    needs a file of its own because SQLite's locks on the results are of the same kind, and a
    process that closes a file drops all of its locks on it.

    Raises StorageError if another sweep holds the lock.
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
        # removed while we hold it, so that whoever creates a new one finds that free
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _take(file: Path, path: Path) -> int:
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            if _is_locked(descriptor, file, path):
                return descriptor
            # its holder ended and removed the file between our opening and our locking
            os.close(descriptor)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                f"{file}: {error.strerror}; it must be writable: make it so or choose another --out"
            ) from None


def _is_locked(descriptor: int, file: Path, path: Path) -> bool:
    """Lock the open file and write our process number into it.

    Return False if the name leads to another file by now. Raises StorageError if another process
    has the lock.
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
    """Return whether the name still leads to the file that we opened."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _busy(path: Path, pid: str) -> StorageError:
    return StorageError(
        f"another sweep (pid {pid}) is writing {path}; wait for it or choose another --out"
    )
