"""Rows that do not fit into memory, on disk, first in first out."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from tidegate.errors import StateError
from tidegate.windows.durable.database import open_database

__all__ = ["SpillStore"]

_TABLES = "CREATE TABLE IF NOT EXISTS spilled (number INTEGER PRIMARY KEY, body BLOB NOT NULL)"


class SpillStore:
    """A queue of collections in one SQLite file. Give it to `Windows(spill=...)`.

    >>> import tempfile, pathlib
    >>> store = SpillStore(pathlib.Path(tempfile.mkdtemp()) / "spill.db")
    >>> store.put(b"rows"); len(store), store.first()
    (1, b'rows')
    >>> store.drop_first(); len(store), store.first()
    (0, None)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._db = open_database(path, "spill store", _TABLES)
        self._count = int(self._db.execute("SELECT count(*) FROM spilled").fetchone()[0])

    def put(self, body: bytes) -> None:
        """Add a collection at the end."""
        with self._lock:
            try:
                self._db.execute("INSERT INTO spilled (body) VALUES (?)", (body,))
            except sqlite3.Error as error:
                raise StateError(f"{self.path}: cannot be written: {error}") from error
            self._count += 1

    def first(self) -> bytes | None:
        """The oldest collection, which stays until `drop_first`."""
        with self._lock:
            found = self._db.execute("SELECT body FROM spilled ORDER BY number LIMIT 1").fetchone()
        return None if found is None else bytes(found[0])

    def drop_first(self) -> None:
        with self._lock:
            self._db.execute("DELETE FROM spilled WHERE number = (SELECT min(number) FROM spilled)")
            self._count = max(0, self._count - 1)

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        with self._lock:
            self._db.close()
