"""A file of results as a test opens it: closed at the end, whatever happens, and with what was
changed written.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection; `with sqlite3.connect` alone would leave it open."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection
