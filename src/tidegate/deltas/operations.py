"""What a delta says: the operations on a vector, the delta that carries one, and its row form.

    Create, Dense    x := vector          (Create also ends a tombstone)
    Sparse           x[i] := v
    Add              x += v               (all dimensions, or the named ones)
    Scale, Offset    x := factor*x, x := x + amount
    Delete           a tombstone until the next Create
    Affine           x := a*x + b         what a run of the others folds into

"set" and "add" are different operations and are never mixed silently.

One schema everywhere (`DELTAS`): what users send, what chains keep, what is stored as Parquet.
Lossless: float64 as it came, never quantised.

To add an operation, write a class like those below and add it to `OPERATIONS`. A class says which
columns hold its fields and which kernel operation they mean; nothing else in the package knows the
operations one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.deltas.kernels import KernelOp

__all__ = [
    "DELTAS",
    "OPERATIONS",
    "Add",
    "Affine",
    "Create",
    "Delete",
    "Dense",
    "Offset",
    "Operation",
    "Scale",
    "Sparse",
    "Unknown",
    "VectorDelta",
    "deltas_of",
    "rows_from",
]

Numbers = Sequence[float] | NDArray[Any]
Indices = Sequence[int] | NDArray[Any]

DELTAS = pa.schema(
    [
        pa.field("delta_id", pa.string()),
        pa.field("vector_id", pa.string()),
        pa.field("parent", pa.string()),
        pa.field("op", pa.string()),
        pa.field("time_ns", pa.int64()),
        pa.field("origin", pa.string()),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64())),
        pa.field("factors", pa.list_(pa.float64())),
        pa.field("factor", pa.float64()),
        pa.field("amount", pa.float64()),
        pa.field("metadata", pa.string()),
        pa.field("first_ns", pa.int64()),
        pa.field("covers", pa.list_(pa.string())),
    ]
)
"""The columns of a delta table. `first_ns` and `covers` are null except in merged deltas. Rows that
users send need only the columns their operations use; missing ones are read as null."""


class Operation:
    """One change of a vector. Two are equal if they say the same."""

    op: ClassVar[str]
    """The name in the column `op`."""
    kernel: ClassVar[KernelOp]
    """What it does, given its columns."""
    columns: ClassVar[Mapping[str, str]] = {}
    """Which column of `DELTAS` holds which field."""
    kernel_without_indices: ClassVar[KernelOp | None] = None
    """What it does where the column `indices` is null, if that is something else."""

    def cells(self) -> dict[str, Any]:
        """The values of its columns."""
        return {column: getattr(self, field) for field, column in self.columns.items()}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Operation:
        """The operation that a row (a dict of columns) holds; the reverse of `cells`."""
        return cls(**{field: row[column] for field, column in cls.columns.items()})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(np.asarray(mine), np.asarray(theirs))
            for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.op, *(np.asarray(part).tobytes() for part in vars(self).values())))


@dataclass(frozen=True, eq=False)
class Create(Operation):
    """x := vector; the vector exists (again)."""

    vector: Numbers
    """As many finite values as the vector has dimensions; other lengths are refused."""
    op: ClassVar[str] = "create"
    kernel: ClassVar[KernelOp] = KernelOp.CREATE
    columns: ClassVar[Mapping[str, str]] = {"vector": "values"}


@dataclass(frozen=True, eq=False)
class Dense(Operation):
    """x := vector, if the vector is not deleted."""

    vector: Numbers
    """As many finite values as the vector has dimensions; other lengths are refused."""
    op: ClassVar[str] = "dense"
    kernel: ClassVar[KernelOp] = KernelOp.DENSE
    columns: ClassVar[Mapping[str, str]] = {"vector": "values"}


@dataclass(frozen=True, eq=False)
class Sparse(Operation):
    """x[i] := v for the named dimensions; every index at most once."""

    indices: Indices
    """Dimensions, each at least 0 and below the length of the vector; else it is refused."""
    values: Numbers
    """A finite value for each index."""
    op: ClassVar[str] = "sparse"
    kernel: ClassVar[KernelOp] = KernelOp.SPARSE
    columns: ClassVar[Mapping[str, str]] = {"indices": "indices", "values": "values"}


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """x += values; only the named dimensions if there are indices."""

    values: Numbers
    """What to add: a finite value for each index, or for every dimension."""
    indices: Indices | None = None
    """The dimensions to add to, every one at most once; None: all."""
    op: ClassVar[str] = "add"
    kernel: ClassVar[KernelOp] = KernelOp.ADD
    kernel_without_indices: ClassVar[KernelOp | None] = KernelOp.ADD_DENSE
    columns: ClassVar[Mapping[str, str]] = {"indices": "indices", "values": "values"}


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """x := factor*x. A factor of 0 is refused: it would forget the vector silently."""

    factor: float
    """Finite and not 0."""
    op: ClassVar[str] = "scale"
    kernel: ClassVar[KernelOp] = KernelOp.SCALE
    columns: ClassVar[Mapping[str, str]] = {"factor": "factor"}


@dataclass(frozen=True, eq=False)
class Offset(Operation):
    """x := x + amount, in every dimension."""

    amount: float
    """Finite."""
    op: ClassVar[str] = "offset"
    kernel: ClassVar[KernelOp] = KernelOp.OFFSET
    columns: ClassVar[Mapping[str, str]] = {"amount": "amount"}


@dataclass(frozen=True, eq=False)
class Delete(Operation):
    """A tombstone: nothing but a Create brings the vector back."""

    op: ClassVar[str] = "delete"
    kernel: ClassVar[KernelOp] = KernelOp.DELETE


@dataclass(frozen=True, eq=False)
class Affine(Operation):
    """x := factor*x + amount, and factors[k]*x[i] + values[k] for the named dimensions.

    What a run of other operations folds into.
    """

    factor: float
    """For the dimensions that are not named: finite and not 0."""
    amount: float
    """For the dimensions that are not named: finite."""
    indices: Indices = ()
    """Named dimensions, every one at most once; none: all are alike."""
    factors: Numbers = ()
    """A finite factor for each index; 0 means that the dimension is set."""
    values: Numbers = ()
    """A finite value for each index."""
    op: ClassVar[str] = "affine"
    kernel: ClassVar[KernelOp] = KernelOp.AFFINE
    columns: ClassVar[Mapping[str, str]] = {
        name: name for name in ("factor", "amount", "indices", "factors", "values")
    }


@dataclass(frozen=True, eq=False)
class Unknown(Operation):
    """A name in the column `op` that is no operation: never applied, only handed back."""

    said: str | None
    """The name, as it came."""
    op: ClassVar[str] = "unknown"


OPERATIONS: dict[str, type[Operation]] = {
    kind.op: kind for kind in (Create, Dense, Sparse, Add, Scale, Offset, Delete, Affine)
}
"""Every operation by its name in the column `op`."""


@dataclass(frozen=True)
class VectorDelta:
    """One change to one vector.

    A delta that stands for several (after a compaction) bears the id and time of the last of them.

    >>> VectorDelta("d1", "vec-1", Sparse([0], [1.0]), time_ns=5).operation.op
    'sparse'
    """

    delta_id: str
    """Unique for its vector: a delta is applied once, however often it comes."""
    vector_id: str
    """The vector it changes."""
    operation: Operation
    """What it does."""
    time_ns: int = 0
    """Event time, nanoseconds since the epoch: the order of a chain."""
    parent: str | None = None
    """The id of a delta that must come before it, whatever the times say; None: none."""
    origin: str = ""
    """Who made it: decides the order of deltas of one time, before their ids."""
    metadata: str | None = None
    """Kept with the delta until it is merged or folded."""
    first_ns: int | None = None
    """Where a merged delta begins; None for others."""
    covers: tuple[str, ...] = ()
    """The ids a merged delta stands for, in order; empty for others."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all deltas this one stands for, in order."""
        return self.covers or (self.delta_id,)


def rows_from(deltas: Iterable[VectorDelta]) -> pa.RecordBatch:
    """Delta objects as rows of the schema `DELTAS`.

    Numbers become float64. An index beyond 32 bits becomes one that is refused at admission.

    Args:
        deltas: the deltas, in any order.

    Example:
        >>> rows_from([VectorDelta("a", "v", Offset(1.0))]).column("amount").to_pylist()
        [1.0]
    """
    deltas = list(deltas)
    cells = [delta.operation.cells() for delta in deltas]

    def listed(column: str, dtype: Any) -> pa.Array:
        return _list_array([cell.get(column) for cell in cells], dtype)

    def number(column: str) -> pa.Array:
        found = [cell.get(column) for cell in cells]
        return pa.array([None if x is None else float(x) for x in found], pa.float64())

    columns: dict[str, pa.Array] = {
        "delta_id": pa.array([d.delta_id for d in deltas], pa.string()),
        "vector_id": pa.array([d.vector_id for d in deltas], pa.string()),
        "parent": pa.array([d.parent for d in deltas], pa.string()),
        "op": pa.array([d.operation.op for d in deltas], pa.string()),
        "time_ns": pa.array([d.time_ns for d in deltas], pa.int64()),
        "origin": pa.array([d.origin for d in deltas], pa.string()),
        "indices": listed("indices", np.int32),
        "values": listed("values", np.float64),
        "factors": listed("factors", np.float64),
        "factor": number("factor"),
        "amount": number("amount"),
        "metadata": pa.array([d.metadata for d in deltas], pa.string()),
        "first_ns": pa.array([d.first_ns for d in deltas], pa.int64()),
        "covers": pa.array([list(d.covers) or None for d in deltas], pa.list_(pa.string())),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=DELTAS)


def _list_array(parts: Sequence[Any], dtype: Any) -> pa.Array:
    """A list column of sequences (or None), clipped to the range of indices for int32."""
    if all(part is None for part in parts):
        return pa.nulls(len(parts), pa.list_(pa.from_numpy_dtype(dtype)))
    read = np.int64 if dtype is np.int32 else dtype
    arrays = [None if part is None else np.asarray(part, read).ravel() for part in parts]
    sizes = [0 if array is None else len(array) for array in arrays]
    flat = np.concatenate([array for array in arrays if array is not None])
    if dtype is np.int32:
        flat = np.clip(flat, -1, 2**31 - 1).astype(np.int32)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets, pa.array(flat), mask=pa.array([array is None for array in arrays], pa.bool_())
    )


def deltas_of(rows: pa.RecordBatch) -> list[VectorDelta]:
    """Rows as delta objects; the reverse of `rows_from`.

    Args:
        rows: rows of the schema `DELTAS`. A name of an operation that does not exist becomes
            `Unknown`, which no chain admits.
    """
    return [
        VectorDelta(
            row["delta_id"],
            row["vector_id"],
            OPERATIONS[row["op"]].of_row(row) if row["op"] in OPERATIONS else Unknown(row["op"]),
            row["time_ns"],
            row["parent"],
            row["origin"] or "",
            row["metadata"],
            row["first_ns"],
            tuple(row["covers"] or ()),
        )
        for row in rows.to_pylist()
    ]
