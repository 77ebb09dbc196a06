"""A command's SQLite file of results: locked, opened or created, and checked to be its own."""

import fcntl
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from roundscope.tools.errors import StorageError
from roundscope.tools.results.tables import (
    Tables,
    check_columns,
    check_start,
    check_values,
    check_version,
    explained,
    is_ours,
)

# lock files that this process holds; the kernel's locks only work between processes
_held: set[Path] = set()


@contextmanager
def results_file(
    folder: Path,
    name: str,
    application: int,
    made: Sequence[str],
    tables: Tables,
    *,
    schema: int = 0,
    later: Collection[str] = (),
) -> Iterator[tuple[sqlite3.Connection, Path]]:
    """Open the results file of a folder, or create it; yield the connection and the file's path.

    folder, name   where the file is, and its name
    application    SQLite's application_id, by which the file is known to belong to this command
    made           CREATE statements, which are executed each time
    tables         what files of ours have;  later: the columns that those of older versions lack
    schema         the version of the tables, SQLite's user_version

    Raises UsageError for the file of another program or version, StorageError for a file that
    cannot be used now, or that has not the tables and the values of one of ours.
    """
    path = (folder / name).resolve()
    check_start(path, "--out")
    with locked(path), explained(path), closing(sqlite3.connect(path, timeout=30.0)) as connection:
        ours = is_ours(connection, path, application)
        if ours:
            check_version(connection, path, schema, "choose another folder")
            check_columns(connection, path, tables, later)
            check_values(connection, path, tables)
        with connection:  # all or none, so that one who is killed here leaves no file of nobody
            connection.execute("BEGIN IMMEDIATE")
            for text in made:
                connection.execute(text)
            if not ours:  # each of these is a change of the file
                connection.execute(f"PRAGMA application_id = {application}")
                connection.execute(f"PRAGMA user_version = {schema}")
        yield connection, path


@contextmanager
def locked(path: Path, what: str = "run") -> Iterator[None]:
    """Hold PATH.lock, which contains the process number of its holder, while the context is open.

    It is a POSIX record lock on a file of its own. The kernel drops it when the process ends, even
    after kill -9, and a forked child does not inherit it, as it would inherit a flock. The lock
    needs a file of its own because SQLite's locks on the results are of the same kind, and a
    process that closes a file drops all of its locks on it.

    Raises StorageError if another run holds the lock; what: what a run is called.
    """
    file = path.with_name(path.name + ".lock")
    descriptor, holder = (None, str(os.getpid())) if file in _held else _taken(file)
    if descriptor is None:
        raise StorageError(
            f"another {what} (pid {holder}) is writing {path}; wait for it or choose another --out"
        )
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)
        # removed while we hold it, so that whoever creates a new one finds that free
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _taken(file: Path) -> tuple[int | None, str]:
    """Return (the lock file, open and locked, our number); (None, its holder's) if it is taken."""
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                with os.fdopen(descriptor, encoding="utf-8", errors="replace") as taken:
                    return None, taken.read(32).strip() or "unknown"
            # unless its holder ended and removed it between our opening and our locking
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(file), os.fstat(descriptor)):
                    os.truncate(descriptor, 0)
                    os.write(descriptor, f"{os.getpid()}\n".encode())
                    return descriptor, str(os.getpid())
            os.close(descriptor)
        except OSError as error:
            raise StorageError(
                f"{file}: {error.strerror}; it must be writable: make it so or choose another --out"
            ) from None
