"""Parquet files of a table: lossless, zstd, vectors as fixed-size lists, sorted by vector."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.deltas.table.log import DataFile

__all__ = ["read_rows", "remove_unnamed", "write_rows"]

ROWS_PER_GROUP = 65_536
"""Small enough that reading one vector skips most of a large file, by the ids in its footer."""


def write_rows(root: Path, kind: str, bucket: int, rows: pa.RecordBatch | pa.Table) -> DataFile:
    """Write rows to a new file. It is no part of the table until a version names it."""
    name = f"data/{kind}-{bucket:04d}-{uuid.uuid4().hex}.parquet"
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    (root / "data").mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        root / name,
        compression="zstd",
        row_group_size=ROWS_PER_GROUP,
        # Floats barely repeat: bytes of equal weight side by side compress, a dictionary does not.
        use_dictionary=[f.name for f in table.schema if pa.types.is_string(f.type)],
        use_byte_stream_split=[
            f"{f.name}.list.element"
            for f in table.schema
            if hasattr(f.type, "value_type") and pa.types.is_floating(f.type.value_type)
        ],
    )
    return DataFile(name, bucket, kind, table.num_rows, (root / name).stat().st_size)


def read_rows(root: Path, file: DataFile, schema: pa.Schema, filters: Any = None) -> pa.RecordBatch:
    """The rows of a file as one batch."""
    table = pq.read_table(root / file.path, filters=filters, partitioning=None).cast(schema)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def remove_unnamed(root: Path, named: set[str], older_than_s: float) -> list[str]:
    """Remove files that no version names and nobody has touched since. Gives their names."""
    gone = []
    for path in sorted((root / "data").glob("*.parquet")):
        name = f"data/{path.name}"
        if name not in named and path.stat().st_mtime < older_than_s:
            os.unlink(path)
            gone.append(name)
    return gone
