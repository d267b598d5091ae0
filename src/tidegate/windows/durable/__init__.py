"""Small embedded stores on SQLite: the only windows code that touches a disk."""

from tidegate.windows.durable.spill import SpillStore
from tidegate.windows.durable.write_ahead import WriteAheadLog

__all__ = ["SpillStore", "WriteAheadLog"]
