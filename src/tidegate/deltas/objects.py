"""Delta objects as rows of a table, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.deltas.operations import (
    Add,
    Affine,
    Create,
    Delete,
    Dense,
    Offset,
    Operation,
    Scale,
    Sparse,
    Unknown,
    VectorDelta,
)
from tidegate.deltas.rows import DELTAS

__all__ = ["deltas_of", "rows_from"]


def rows_from(deltas: Iterable[VectorDelta]) -> pa.RecordBatch:
    """Delta objects as rows. What has no place in a column (a text as index) is refused later."""
    deltas = list(deltas)
    said = [_said(delta.operation) for delta in deltas]
    columns: dict[str, pa.Array] = {
        "delta_id": pa.array([d.delta_id for d in deltas], pa.string()),
        "vector_id": pa.array([d.vector_id for d in deltas], pa.string()),
        "parent": pa.array([d.parent for d in deltas], pa.string()),
        "op": pa.array([d.operation.op for d in deltas], pa.string()),
        "time_ns": pa.array([d.time_ns for d in deltas], pa.int64()),
        "origin": pa.array([d.origin for d in deltas], pa.string()),
        "indices": _listed([s[0] for s in said], np.int64, np.int32),
        "values": _listed([s[1] for s in said], np.float64, np.float64),
        "factors": _listed([s[2] for s in said], np.float64, np.float64),
        "factor": pa.array([s[3] for s in said], pa.float64()),
        "amount": pa.array([s[4] for s in said], pa.float64()),
        "metadata": pa.array([d.metadata for d in deltas], pa.string()),
        "first_ns": pa.array([d.first_ns for d in deltas], pa.int64()),
        "covers": pa.array([list(d.covers) or None for d in deltas], pa.list_(pa.string())),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=DELTAS)


def _said(operation: Operation) -> tuple[Any, Any, Any, float | None, float | None]:
    match operation:
        case Create(vector) | Dense(vector):
            return None, vector, None, None, None
        case Sparse(indices, values):
            return indices, values, None, None, None
        case Add(values, indices):
            return indices, values, None, None, None
        case Scale(factor):
            return None, None, None, float(factor), None
        case Offset(amount):
            return None, None, None, None, float(amount)
        case Affine(factor, amount, indices, factors, values):
            return indices, values, factors, float(factor), float(amount)
        case _:
            return None, None, None, None, None


def _listed(parts: Sequence[Any], read: Any, dtype: Any) -> pa.Array:
    if all(part is None for part in parts):
        return pa.nulls(len(parts), pa.list_(pa.from_numpy_dtype(dtype)))
    arrays = [None if part is None else np.asarray(part, read).ravel() for part in parts]
    sizes = [0 if array is None else len(array) for array in arrays]
    present = [array for array in arrays if array is not None]
    flat = np.concatenate(present) if present else np.empty(0, read)
    if dtype is np.int32:
        flat = np.clip(flat, -1, 2**31 - 1).astype(np.int32)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets, pa.array(flat), mask=pa.array([array is None for array in arrays], pa.bool_())
    )


def deltas_of(rows: pa.RecordBatch) -> list[VectorDelta]:
    """Rows as delta objects; the reverse of `rows_from`."""
    return [
        VectorDelta(
            row["delta_id"],
            row["vector_id"],
            _operation(row),
            row["time_ns"],
            row["parent"],
            row["origin"] or "",
            row["metadata"],
            row["first_ns"],
            tuple(row["covers"] or ()),
        )
        for row in rows.to_pylist()
    ]


def _operation(row: dict[str, Any]) -> Operation:
    match row["op"]:
        case "create":
            return Create(row["values"])
        case "dense":
            return Dense(row["values"])
        case "sparse":
            return Sparse(row["indices"], row["values"])
        case "add":
            return Add(row["values"], row["indices"])
        case "scale":
            return Scale(row["factor"])
        case "offset":
            return Offset(row["amount"])
        case "delete":
            return Delete()
        case "affine":
            return Affine(
                row["factor"], row["amount"], row["indices"], row["factors"], row["values"]
            )
        case other:
            return Unknown(other)
