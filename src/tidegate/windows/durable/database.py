"""Opening an SQLite file the one way both stores need it, with errors of our own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tidegate.errors import StateError


def open_database(path: str | Path, purpose: str, tables: str) -> sqlite3.Connection:
    """A connection in WAL mode; a file that is something else is a StateError, and untouched."""
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
