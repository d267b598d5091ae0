"""What windows in process keep on disk: a write-ahead log and spilled rows, in SQLite files.

This is the only code of the windows that touches a disk. Both stores are small embedded databases
in WAL mode with `synchronous = FULL`: what a call has written is on disk when it returns.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from tidegate.errors import StateError

__all__ = ["SpillStore", "WriteAheadLog"]


def open_database(path: str | Path, purpose: str, tables: str) -> sqlite3.Connection:
    """Open an SQLite file in WAL mode.

    Args:
        path: the file; made if it does not exist.
        purpose: what it is for, written into it.
        tables: SQL that makes its tables if they do not exist.

    Raises:
        StateError: the file is something else, and is left untouched.
    """
    try:
        # Any thread may use it: the callers hold one lock around every use.
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        # A commit must have reached the disk when the caller is told so.
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE IF NOT EXISTS tidegate (purpose TEXT NOT NULL)")
        found = db.execute("SELECT purpose FROM tidegate").fetchone()
        if found is None:
            db.execute("INSERT INTO tidegate VALUES (?)", (purpose,))
        elif found[0] != purpose:
            raise StateError(f"{path} is a {found[0]}, not a {purpose}")
        db.executescript(tables)
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be used as a {purpose}: {error}") from error
    return db


class _Store:
    """An SQLite file with a lock around every use."""

    purpose: str
    tables: str

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it.

        Args:
            path: where it is.

        Raises:
            StateError: it is something else, or cannot be used.
        """
        self.path = Path(path)
        self._lock = threading.Lock()
        self._db = open_database(path, self.purpose, self.tables)

    def close(self) -> None:
        """Close the file. Nothing is lost: every call was on disk when it returned."""
        with self._lock:
            self._db.close()

    def _run(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """Write in one transaction, or raise StateError and change nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for sql, values in statements:
                    self._db.execute(sql, values)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise StateError(f"{self.path}: cannot be written: {error}") from error

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql).fetchall()
            except sqlite3.Error as error:
                raise StateError(f"{self.path} is unreadable: {error}") from error


class SpillStore(_Store):
    """Rows that do not fit into memory, on disk, first in first out. Give it to `Windows(spill=)`.

    >>> import tempfile, pathlib
    >>> store = SpillStore(pathlib.Path(tempfile.mkdtemp()) / "spill.db")
    >>> store.put(b"rows"); len(store), store.first()
    (1, b'rows')
    >>> store.drop_first(); len(store), store.first()
    (0, None)
    """

    purpose = "spill store"
    tables = "CREATE TABLE IF NOT EXISTS spilled (number INTEGER PRIMARY KEY, body BLOB NOT NULL)"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._count = int(self._read("SELECT count(*) FROM spilled")[0][0])

    def put(self, body: bytes) -> None:
        """Add a collection at the end.

        Args:
            body: the collection as bytes.
        """
        self._run(("INSERT INTO spilled (body) VALUES (?)", (body,)))
        self._count += 1

    def first(self) -> bytes | None:
        """The oldest collection, which stays until `drop_first`; None: there is none."""
        found = self._read("SELECT body FROM spilled ORDER BY number LIMIT 1")
        return bytes(found[0][0]) if found else None

    def drop_first(self) -> None:
        """Remove the oldest collection."""
        self._run(("DELETE FROM spilled WHERE number = (SELECT min(number) FROM spilled)", ()))
        self._count = max(0, self._count - 1)

    def __len__(self) -> int:
        return self._count


class WriteAheadLog(_Store):
    """A write-ahead log: what was acknowledged to the caller survives a crash.

    Give it to `Windows(log=...)`; opening it again replays it. The log is the last checkpoint, the
    calls since then in order, and how many deliveries of those calls were accepted. All three
    change in transactions, so after a crash they agree.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "windows.db"
    >>> log = WriteAheadLog(path)
    >>> log.append("watermark", b"1000 0"); log.close()
    >>> WriteAheadLog(path).load()
    (None, [('watermark', b'1000 0')], 0)
    """

    purpose = "write-ahead log"
    tables = """
    CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB);
    CREATE TABLE IF NOT EXISTS progress (
        one INTEGER PRIMARY KEY CHECK (one = 1), accepted INTEGER NOT NULL, snapshot BLOB
    );
    INSERT OR IGNORE INTO progress VALUES (1, 0, NULL);
    """

    def append(self, kind: str, body: bytes) -> None:
        """Write a call down; it is on disk when this returns.

        Args:
            kind: which call.
            body: its arguments.
        """
        self._run(("INSERT INTO calls (kind, body) VALUES (?, ?)", (kind, body)))

    def acknowledge(self, deliveries: int) -> None:
        """Note that further deliveries were accepted.

        Args:
            deliveries: how many.
        """
        self._run(("UPDATE progress SET accepted = accepted + ?", (deliveries,)))

    def checkpoint(self, snapshot: bytes) -> None:
        """Start over from a snapshot that contains everything so far, all deliveries accepted.

        Args:
            snapshot: the state as bytes.
        """
        self._run(
            ("DELETE FROM calls", ()),
            ("UPDATE progress SET accepted = 0, snapshot = ?", (snapshot,)),
        )

    def load(self) -> tuple[bytes | None, list[tuple[str, bytes]], int]:
        """The last snapshot, the calls since then, how many of their deliveries were accepted."""
        ((accepted, snapshot),) = self._read("SELECT accepted, snapshot FROM progress")
        calls = self._read("SELECT kind, body FROM calls ORDER BY number")
        return snapshot, [(kind, bytes(body)) for kind, body in calls], int(accepted)

    def __len__(self) -> int:
        """Calls that a crash now would carry out again."""
        return int(self._read("SELECT count(*) FROM calls")[0][0])
