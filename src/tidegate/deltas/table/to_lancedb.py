"""Vectors handed on to LanceDB, an embedded vector store: searched by nearness, gated by version.

Needs the extra `lance`. Like `VectorTable`, a replay changes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tidegate.core.checks import int_in
from tidegate.deltas.table.vectors import as_vectors, newest_only
from tidegate.errors import ConfigError

__all__ = ["LanceVectors"]


def _lancedb() -> Any:
    try:
        import lancedb
    except ImportError:
        raise ConfigError(
            "sink", "lance", 'needs the package lancedb: pip install "tidegate[lance]"'
        ) from None
    return lancedb


class LanceVectors:
    """A LanceDB table of the newest vectors.

    Args:
        uri: the database: a folder or a URL that LanceDB understands.
        dims: the length of every vector (at least 1).
        table: the name of the table in it.
        dtype: what the store keeps. `float64` is lossless; `float32` halves it and is rounded,
            which is why it has to be asked for.

    Raises:
        ConfigError: the package lancedb is missing, or the table holds vectors of another kind.
    """

    def __init__(
        self,
        uri: str,
        dims: int,
        *,
        table: str = "vectors",
        dtype: Literal["float64", "float32"] = "float64",
    ) -> None:
        int_in("dims", dims, 1)
        if dtype not in ("float64", "float32"):
            raise ConfigError("dtype", dtype, "must be float64 or float32")
        self.dims = dims
        self.dtype = dtype
        kind = pa.float64() if dtype == "float64" else pa.float32()
        self.schema = pa.schema(
            [
                pa.field("vector_id", pa.string()),
                pa.field("vector", pa.list_(kind, dims)),
                pa.field("deleted", pa.bool_()),
                pa.field("delta_count", pa.int64()),
                pa.field("time_ns", pa.int64()),
            ]
        )
        self.db = _lancedb().connect(uri)
        self.table = self.db.create_table(table, schema=self.schema, exist_ok=True)
        found = self.table.schema.field("vector").type
        if not found.equals(self.schema.field("vector").type):
            raise ConfigError("dims", dims, f"the table {table} holds {found}")

    def upsert(self, rows: pa.RecordBatch | pa.Table) -> int:
        """Take in vectors that are newer than the stored ones; gives how many were."""
        new = newest_only(as_vectors(rows, self.dims))
        if not new.num_rows:
            return 0
        table = pa.Table.from_batches([new]).cast(self.schema)
        done = (
            self.table.merge_insert("vector_id")
            .when_matched_update_all(where="target.delta_count < source.delta_count")
            .when_not_matched_insert_all()
            .execute(table)
        )
        return int(done.num_updated_rows + done.num_inserted_rows)

    def nearest(self, vector: ArrayLike, limit: int = 10) -> list[dict[str, Any]]:
        """The nearest vectors that are not deleted: `vector_id`, `_distance` and the rest."""
        query = np.asarray(vector, self.dtype)
        if query.shape != (self.dims,):
            raise ConfigError("vector", query.shape, f"must have {self.dims} dims")
        found = self.table.search(query).where("deleted = false", prefilter=True).limit(limit)
        rows: list[dict[str, Any]] = found.to_list()
        return rows

    def __len__(self) -> int:
        """Vectors that are not deleted."""
        return int(self.table.count_rows("deleted = false"))
