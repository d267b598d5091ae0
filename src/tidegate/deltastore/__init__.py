"""Deltas and vectors on disk: Parquet tables, their compaction, and what they are handed on to."""

from tidegate.deltastore.background import BackgroundCompactor
from tidegate.deltastore.job import JobReport, compact_table
from tidegate.deltastore.lake import DeltaLakeVectors
from tidegate.deltastore.lance import LanceVectors
from tidegate.deltastore.picture import compaction_picture
from tidegate.deltastore.table import DeltaTable
from tidegate.deltastore.vectors import VectorTable

__all__ = [
    "BackgroundCompactor",
    "DeltaLakeVectors",
    "DeltaTable",
    "JobReport",
    "LanceVectors",
    "VectorTable",
    "compact_table",
    "compaction_picture",
]
