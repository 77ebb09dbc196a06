"""A command's SQLite file of results: opened or made, held against other processes, and told from
another program's by its id.
"""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from roundscope.experiments.errors import StorageError, bad
from roundscope.experiments.results.lock import locked
from roundscope.experiments.sweep.storage.schema import explained


@contextmanager
def results_file(
    folder: Path, name: str, application: int, made: Sequence[str]
) -> Iterator[tuple[sqlite3.Connection, Path]]:
    """A connection to the file of a folder, new or old, and its path. application: SQLite's
    application_id, whose file it is; made: its CREATE texts.

    Raises UsageError for a file of another program, StorageError for one that cannot be used now.
    """
    path = (folder / name).resolve()
    with held(path), explained(path), closing(sqlite3.connect(path, timeout=30.0)) as connection:
        [(found,)] = connection.execute("PRAGMA application_id")
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
        if found != application and (found or tables):
            raise bad(
                "--out", str(folder), f"its {name} is of another program; choose another folder"
            )
        for text in made:
            connection.execute(text)
        connection.execute(f"PRAGMA application_id = {application}")
        connection.commit()
        yield connection, path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """The file's lock, in the words of runs. Raises StorageError if another process has it."""
    try:
        with locked(path):
            yield
    except StorageError as error:
        raise StorageError(str(error).replace("another sweep", "another run")) from None


def number(x: Any) -> Any:
    """A stored number: NaN for NULL."""
    return math.nan if x is None else x
