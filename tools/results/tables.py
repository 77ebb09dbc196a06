"""SQLite files of results: locked, opened or created, whose a file is, and what is wrong with it.

What a table has is told by the declarations it is made of, {table: {column: declaration}}, such as
"INTEGER NOT NULL".
"""

import fcntl
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from roundscope.emu.plain_data import misfit, parsed
from roundscope.tools.errors import StorageError, UsageError, bad, one_line

Tables = Mapping[str, Mapping[str, str]]

RESTORE = "restore it from a copy, or choose another"
_TYPES = {  # the start of a declaration -> SQLite's types of its values, and what they are
    "INTEGER": (("integer",), "a whole number"),
    "REAL": (("real", "integer"), "a number"),
    "TEXT": (("text",), "text"),
    "BLOB": (("blob",), "bytes"),
}
_SAID = {"null": "nothing", "blob": "bytes", "text": "text"}
_AMISS = {  # the start of SQLite's name of an error -> what it means here
    "SQLITE_FULL": (
        "the disk is full; what was saved before is intact: free some space and run again"
    ),
    "SQLITE_IOERR": "the disk cannot be read or written ({}); is it full or gone?",
    "SQLITE_CORRUPT": (
        "the file is damaged ({}); recover what is left with  sqlite3 FILE .recover  or choose"
        " another file"
    ),
    "SQLITE_NOTADB": "is no SQLite file, or a damaged one; choose another file",
    "SQLITE_READONLY": "cannot be written; change its permissions or choose another --out",
    "SQLITE_CANTOPEN": "cannot be opened ({}); see its permissions and its folder's",
    "SQLITE_PERM": "cannot be opened ({}); see its permissions and its folder's",
    "SQLITE_BUSY": "another program is writing to it; close that one and run again",
    "": f"its tables are not those that roundscope makes ({{}}); {RESTORE} file",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, but for faults of our calls, into a StorageError that names a file."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        text = next(text for start, text in _AMISS.items() if name.startswith(start))
        raise StorageError(f"{path}: {text.format(one_line(error))}") from error


def check_start(path: Path, argument: str) -> None:
    """Refuse a file that is no ordinary one, no SQLite database, or shorter than its header says.

    SQLite itself would put other files beside such a database. An empty file is none yet.
    """
    if path.exists() and not path.is_file():
        raise bad(argument, str(path), "is no ordinary file; choose another")
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        head = file.read(100)
    if not head.startswith(b"SQLite format 3\0"):
        raise bad(argument, str(path), "is no SQLite file, or a damaged one; choose another file")
    size, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    size = 1 << 16 if size == 1 else size
    known = head[24:28] == head[92:96]  # else the number of pages is of another version of it
    whole = max(100, size * pages if known else 0)
    if path.stat().st_size < whole:
        raise StorageError(
            f"{path}: the file is damaged: {path.stat().st_size} of {whole} bytes; recover"
            " what is left with  sqlite3 FILE .recover  or choose another file"
        )


def is_ours(
    connection: sqlite3.Connection, path: Path, application: int, argument: str = "--out"
) -> bool:
    """Return whether the file has our tables; False for an empty one.

    application: SQLite's application_id of our files. Raises UsageError for another program's file.
    """
    [(owner,)] = connection.execute("PRAGMA application_id")
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
    if owner != application and (owner or tables):
        raise bad(argument, str(path), "is an SQLite file of another program; choose another file")
    return bool(owner == application)


def check_version(connection: sqlite3.Connection, path: Path, schema: int, repair: str) -> None:
    """Raise UsageError for a file of another schema (SQLite's user_version); repair: the advice."""
    [(version,)] = connection.execute("PRAGMA user_version")
    if version == schema:
        return
    said = f"roundscope (schema {version}, here {schema})"
    if version > schema:
        raise UsageError(f"{path}: written by a newer {said}; update roundscope, or {repair}")
    raise UsageError(f"{path}: written by an older {said}; {repair}")


def check_columns(
    connection: sqlite3.Connection, path: Path, tables: Tables, later: Collection[str] = ()
) -> None:
    """Raise StorageError for a missing table or column, unless it is `later` than the file."""
    kinds = dict(_rows(connection, "SELECT name, type FROM sqlite_master"))
    names = {name for name, kind in kinds.items() if kind == "table"}
    if "trigger" in kinds.values():
        raise StorageError(f"{path}: has a trigger, which roundscope makes none of; {RESTORE} file")
    for table, columns in tables.items():
        held = columns_of(connection, table) if table in names else {}
        lost = [name for name in columns if name not in held and name not in later]
        if not held:
            raise StorageError(f"{path}: the table {table} is missing; {RESTORE} file")
        if lost:
            raise StorageError(
                f"{path}: its table {table} lacks {', '.join(lost[:5])}; {RESTORE} file"
            )


def check_values(connection: sqlite3.Connection, path: Path, tables: Tables) -> None:
    """Raise StorageError for a value of another type than its column's; whole tables are read.

    Text that is no UTF-8 raises sqlite3.OperationalError (`explained` makes a StorageError of it).
    """
    for table, columns in tables.items():
        held, odd = columns_of(connection, table), {}
        for name, kind in columns.items():
            if name in held and "TEXT" in kind:
                for _ in _rows(connection, f"SELECT DISTINCT {quoted(name)} FROM {table}"):
                    pass
            if name in held:  # SQL that is true for a value that the declaration does not have
                null = () if "NOT NULL" in kind or "PRIMARY KEY" in kind else ("null",)
                types = ", ".join(map(repr, (*_TYPES[kind.split()[0]][0], *null)))
                odd[name] = f"typeof({quoted(name)}) NOT IN ({types})"
        query = f"SELECT 1 FROM {table} WHERE {' OR '.join(odd.values())} LIMIT 1"
        if not any(_rows(connection, query)):
            continue
        for name, condition in odd.items():
            query = f"SELECT typeof({quoted(name)}) FROM {table} WHERE {condition} LIMIT 1"
            for (kind,) in _rows(connection, query):
                wanted, has = _TYPES[columns[name].split()[0]][1], f"a number ({kind})"
                raise StorageError(
                    f"{path}: {name} of its table {table} has {_SAID.get(kind, has)} for {wanted};"
                    f" {RESTORE} file"
                )


def _rows(connection: sqlite3.Connection, query: str) -> Iterable[Any]:
    """Return rows as tuples, whatever the connection makes of rows."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(query)


def json_of(path: Path, place: str, text: Any, shape: Any) -> Any:
    """Return the data of a JSON text in a file's column, which have a shape (`plain_data`).

    place: what the text is of, in words. Raises StorageError where they have not.
    """
    try:
        if not isinstance(text, str | bytes):
            raise ValueError(f"it is {'nothing' if text is None else 'a number'}")
        found = parsed(text)
        amiss = misfit(found, shape)
    except ValueError as error:
        amiss = f"no JSON: {one_line(error)}"
    if amiss:
        raise StorageError(f"{path}: {place} is not what roundscope writes ({amiss}); {RESTORE}")
    return found


def quoted(name: str) -> str:
    """Return a column's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the columns that a table has, and their types, in order."""
    return {name: kind for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")}


def add_columns(connection: sqlite3.Connection, table: str, wanted: Mapping[str, str]) -> None:
    """Add the columns that a table lacks; earlier rows have NULL there."""
    there = columns_of(connection, table)
    for name, kind in wanted.items():
        if name not in there:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {kind}")


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
