"""A write-ahead log: what was acknowledged to the caller survives a crash.

The log is the last checkpoint, the calls since then in order, and how many deliveries of those
calls were accepted. All three change in transactions, so after a crash they agree.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from tidegate.errors import StateError
from tidegate.windows.durable.database import open_database

__all__ = ["WriteAheadLog"]

_TABLES = """
CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB);
CREATE TABLE IF NOT EXISTS progress (
    one INTEGER PRIMARY KEY CHECK (one = 1), accepted INTEGER NOT NULL, snapshot BLOB
);
INSERT OR IGNORE INTO progress VALUES (1, 0, NULL);
"""


class WriteAheadLog:
    """A log in one SQLite file. Give it to `Windows(log=...)`; opening it again replays it.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "windows.db"
    >>> log = WriteAheadLog(path)
    >>> log.append("watermark", b"1000 0"); log.close()
    >>> WriteAheadLog(path).load()
    (None, [('watermark', b'1000 0')], 0)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._db = open_database(path, "write-ahead log", _TABLES)

    def append(self, kind: str, body: bytes) -> None:
        """Write a call down; it is on disk when this returns."""
        self._run("INSERT INTO calls (kind, body) VALUES (?, ?)", (kind, body))

    def acknowledge(self, deliveries: int) -> None:
        """So many further deliveries were accepted."""
        self._run("UPDATE progress SET accepted = accepted + ?", (deliveries,))

    def checkpoint(self, snapshot: bytes) -> None:
        """Everything so far is in this snapshot, and every delivery was accepted: start over."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute("DELETE FROM calls")
                self._db.execute("UPDATE progress SET accepted = 0, snapshot = ?", (snapshot,))
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise StateError(f"{self.path}: checkpoint failed: {error}") from error

    def load(self) -> tuple[bytes | None, list[tuple[str, bytes]], int]:
        """The last snapshot, the calls since then, how many of their deliveries were accepted."""
        with self._lock:
            try:
                accepted, snapshot = self._db.execute(
                    "SELECT accepted, snapshot FROM progress"
                ).fetchone()
                calls = self._db.execute("SELECT kind, body FROM calls ORDER BY number").fetchall()
            except sqlite3.Error as error:
                raise StateError(f"{self.path} is unreadable: {error}") from error
        return snapshot, [(kind, bytes(body)) for kind, body in calls], int(accepted)

    def __len__(self) -> int:
        """Calls that a crash now would carry out again."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM calls").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _run(self, sql: str, values: tuple[object, ...]) -> None:
        with self._lock:
            try:
                self._db.execute(sql, values)
            except sqlite3.Error as error:
                raise StateError(f"{self.path}: cannot be written: {error}") from error
