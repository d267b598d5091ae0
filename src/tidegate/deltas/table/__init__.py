"""Deltas and vectors on disk: Parquet tables, their compaction, and what they are handed on to."""

from tidegate.deltas.table.background import BackgroundCompactor
from tidegate.deltas.table.job import JobReport, compact_table
from tidegate.deltas.table.table import DeltaTable
from tidegate.deltas.table.to_delta import DeltaLakeVectors
from tidegate.deltas.table.to_lancedb import LanceVectors
from tidegate.deltas.table.vectors import VectorTable

__all__ = [
    "BackgroundCompactor",
    "DeltaLakeVectors",
    "DeltaTable",
    "JobReport",
    "LanceVectors",
    "VectorTable",
    "compact_table",
]
