"""Small embedded stores on SQLite: the only windows code that touches a disk."""

from tidegate.store.spill import SpillStore
from tidegate.store.write_ahead import WriteAheadLog

__all__ = ["SpillStore", "WriteAheadLog"]
