"""Deltas as rows of a table, and the plain arrays kernels work on.

One schema everywhere: what users send, what chains keep, what is stored as Parquet. Lossless:
float64 as it came, never quantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import frozen
from tidegate.core.outcomes import Int64s
from tidegate.core.parallel import each, parts, whole_runs
from tidegate.deltas import kernels
from tidegate.deltas.checking import check_rows
from tidegate.errors import ContractError

__all__ = ["DELTAS", "OPS", "Block", "normalise", "reason_text", "row_bytes"]

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
"""The columns of a delta table. `first_ns` and `covers` are null but for folded deltas."""

OPS = ("create", "dense", "sparse", "add", "add_dense", "scale", "offset", "delete", "affine")
"""Op names by the kernels' codes. A table says `add` for both: the dense one has no indices."""

_NAMES = pa.array([name if name != "add_dense" else "add" for name in OPS])
_LOOKUP = pa.array([name for name in OPS if name != "add_dense"])
_CODES = np.array([OPS.index(name) for name in _LOOKUP.to_pylist()], np.int8)

MANY = 1 << 14
"""Rows that no longer fit into a processor's cache: from here on their order in memory matters."""

NO_ID, NO_OP, SELF_PARENT, NO_TIME = 1, 2, 3, 11
"""Reasons found here; the kernel `check_rows` finds the rest (4 to 10)."""

_REASONS = {
    NO_ID: "delta_id or vector_id is missing",
    NO_OP: "unknown operation",
    SELF_PARENT: "a delta cannot be its own parent",
    4: "factor or amount is missing, NaN or infinite",
    5: "factor 0",
    6: "{where} values for {dims} dims",
    7: "{where} indices do not match the number of values or factors",
    8: "index {where} out of range for {dims} dims",
    9: "duplicate index {where}",
    10: "NaN or infinity at position {where}",
    NO_TIME: "time is missing",
}


def reason_text(reason: int, where: int, dims: int) -> str:
    """Why a delta is refused, in words."""
    return _REASONS[reason].format(where=where, dims=dims)


def normalise(rows: pa.RecordBatch, time_ns: Int64s | None = None) -> pa.RecordBatch:
    """These rows in the schema DELTAS: columns that are missing are null, others are left out.

    Widening only: what does not fit (an index beyond 32 bits) becomes one that is refused later.
    """
    arrays = []
    for field in DELTAS:
        at = rows.schema.get_field_index(field.name)
        if field.name == "time_ns" and time_ns is not None:
            arrays.append(pa.array(time_ns))
        elif at < 0:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        else:
            arrays.append(_cast(rows.column(at), field))
    return pa.RecordBatch.from_arrays(arrays, schema=DELTAS)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == field.type:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if field.name == "indices" and not pa.types.is_null(array.type):
            sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
            flat = pc.fill_null(array.flatten().cast(pa.int64()), -1)
            flat = pa.array(np.clip(flat.to_numpy(), -1, 2**31 - 1).astype(np.int32))
            offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
            return pa.ListArray.from_arrays(offsets, flat, mask=array.is_null())
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ContractError(
            f"column {field.name} has type {array.type}, wants {field.type}"
        ) from error


def _ragged(column: pa.Array, dtype: Any, hole: float) -> tuple[Int64s, NDArray[Any]]:
    """Offsets and flat values of a list column; null lists are empty, null items are `hole`."""
    if column.null_count == len(column):
        return np.zeros(len(column) + 1, np.int64), np.empty(0, dtype)
    if not column.null_count:
        # Nothing is hidden under a null, so what Arrow keeps is what is wanted, as it lies there.
        ends = np.frombuffer(column.buffers()[1], np.int32)
        start = ends[column.offset : column.offset + len(column) + 1].astype(np.int64)
        flat = column.values.slice(int(start[0]), int(start[-1] - start[0]))
        start -= start[0]
        return start, _filled(flat, dtype, hole)
    sizes = column.value_lengths()
    if sizes.null_count:
        sizes = pc.fill_null(sizes, 0)
    start = np.zeros(len(column) + 1, np.int64)
    np.cumsum(sizes.to_numpy(), out=start[1:])
    return start, _filled(column.flatten(), dtype, hole)


def _filled(flat: pa.Array, dtype: Any, hole: float) -> NDArray[Any]:
    if flat.null_count:
        flat = pc.fill_null(flat, pa.scalar(hole, flat.type))
    return np.ascontiguousarray(flat.to_numpy(), dtype)


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    """Where there is a value."""
    if column.null_count in (0, len(column)):
        return np.full(len(column), not column.null_count)
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


Floats = NDArray[np.float64]
Ragged = tuple[
    NDArray[np.int8], Floats, Floats, Int64s, NDArray[np.int32], Int64s, Floats, Int64s, Floats
]


@dataclass(frozen=True)
class Block:
    """Rows of deltas as the kernels take them. The rows keep their order."""

    op: NDArray[np.int8]
    factor: NDArray[np.float64]
    amount: NDArray[np.float64]
    istart: Int64s
    indices: NDArray[np.int32]
    vstart: Int64s
    values: NDArray[np.float64]
    astart: Int64s
    factors: NDArray[np.float64]
    time_ns: Int64s
    early: NDArray[np.int8]
    """Reasons that the text columns gave (see REASONS); 0 where they are fine."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Block:
        """The arrays of these rows (schema DELTAS)."""
        place = pc.index_in(rows.column("op"), _LOOKUP)
        unknown = np.zeros(rows.num_rows, np.bool_)
        if place.null_count:
            unknown = place.is_null().to_numpy(zero_copy_only=False)
            place = pc.fill_null(place, 0)
        op = _CODES[place.to_numpy()]
        adds = op == kernels.ADD
        if adds.any():
            op[adds & ~_valid(rows.column("indices"))] = kernels.ADD_DENSE
        early = np.zeros(rows.num_rows, np.int8)
        ids, vectors = rows.column("delta_id"), rows.column("vector_id")
        parents = rows.column("parent")
        if parents.null_count < len(parents):
            same = pc.fill_null(pc.equal(parents, ids), False)
            early[same.to_numpy(zero_copy_only=False)] = SELF_PARENT
        early[unknown] = NO_OP
        if ids.null_count or vectors.null_count:
            missing = pc.or_(ids.is_null(), vectors.is_null())
            early[missing.to_numpy(zero_copy_only=False)] = NO_ID
        time_ns = rows.column("time_ns")
        if time_ns.null_count:
            early[time_ns.is_null().to_numpy(zero_copy_only=False)] = NO_TIME
            time_ns = pc.fill_null(time_ns, 0)
        istart, indices = _ragged(rows.column("indices"), np.int32, -1)
        vstart, values = _ragged(rows.column("values"), np.float64, np.nan)
        astart, factors = _ragged(rows.column("factors"), np.float64, np.nan)
        columns = (
            op,
            _floats(rows.column("factor")),
            _floats(rows.column("amount")),
            istart,
            indices,
            vstart,
            values,
            astart,
            factors,
            time_ns.to_numpy(),
            early,
        )
        return cls(*(frozen(column) for column in columns))

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def ragged(self) -> Ragged:
        """The columns in the order all kernels take them."""
        return (
            self.op,
            self.factor,
            self.amount,
            self.istart,
            self.indices,
            self.vstart,
            self.values,
            self.astart,
            self.factors,
        )

    def plus(self, more: Block) -> Block:
        """These rows, and behind them others."""
        mine = [getattr(self, name) for name in _COLUMNS]
        theirs = [getattr(more, name) for name in _COLUMNS]
        joined = [
            np.concatenate([a, b[1:] + a[-1]]) if name in _STARTS else np.concatenate([a, b])
            for name, a, b in zip(_COLUMNS, mine, theirs, strict=True)
        ]
        return Block(*(frozen(column) for column in joined))

    def take(self, which: Int64s) -> Block:
        """The rows of these numbers, in this order."""
        parts: dict[str, NDArray[Any]] = {}
        for start, flat in _RAGGED:
            parts[start], parts[flat] = kernels.gather(
                getattr(self, start), getattr(self, flat), frozen(which)
            )
        columns = [
            parts[name] if name in parts else getattr(self, name)[which] for name in _COLUMNS
        ]
        return Block(*(frozen(column) for column in columns))

    def check(self, dims: int) -> tuple[NDArray[np.int8], Int64s]:
        """Per row: the reason it cannot be used (0: it can), and the number that goes with it."""
        reason = self.early.copy()
        where = np.zeros(len(self), np.int64)

        def look(part: slice) -> None:
            ends = slice(part.start, part.stop + 1)
            check_rows(
                dims, self.op[part], self.factor[part], self.amount[part],
                self.istart[ends], self.indices, self.vstart[ends], self.values,
                self.astart[ends], self.factors, reason[part], where[part],
            )  # fmt: skip

        each(look, parts(len(self)))
        return reason, where

    def apply(
        self,
        out: NDArray[np.float64],
        dead: NDArray[np.bool_],
        rows: Int64s | None = None,
        slot: Int64s | None = None,
    ) -> None:
        """Apply rows (all) in order to `out[slot]` (row 0), those of one slot next to each other.
        They must have passed `check`."""
        if rows is None:
            rows = np.arange(len(self))
        if slot is None:
            slot = np.zeros(len(rows), np.int64)
        rows, slot = frozen(rows), frozen(slot)

        def work(part: slice) -> None:
            mine, whose = rows[part], slot[part]
            if len(rows) > MANY:
                mine, whose = kernels.as_they_lie(mine, whose, len(self))
            kernels.apply_rows(out, dead, frozen(mine), frozen(whose), *self.ragged)

        each(work, whole_runs(slot))

    def merge(self, run_start: Int64s, run_stop: Int64s, dims: int) -> Merged:
        """One folded row for each run of rows [run_start[k], run_stop[k])."""
        room = np.minimum(self.vstart[run_stop] - self.vstart[run_start], dims)
        start, stop = frozen(run_start), frozen(run_stop)
        made = kernels.merge_runs(dims, int(room.sum()), start, stop, *self.ragged)
        return Merged(*made)


_COLUMNS = tuple(Block.__dataclass_fields__)
_RAGGED = (("istart", "indices"), ("vstart", "values"), ("astart", "factors"))
_STARTS = tuple(start for start, _ in _RAGGED)


@dataclass(frozen=True)
class Merged:
    """What `merge_runs` gives back: one row per run, and whether it may be used."""

    op: NDArray[np.int8]
    factor: NDArray[np.float64]
    amount: NDArray[np.float64]
    fine: NDArray[np.bool_]
    istart: Int64s
    indices: NDArray[np.int32]
    vstart: Int64s
    values: NDArray[np.float64]
    astart: Int64s
    factors: NDArray[np.float64]

    def columns(self) -> dict[str, pa.Array]:
        """The columns that say what the operation is."""
        listed = np.isin(self.op, (kernels.SPARSE, kernels.ADD, kernels.AFFINE))
        valued = ~np.isin(self.op, (kernels.SCALE, kernels.OFFSET, kernels.DELETE))
        affine = self.op == kernels.AFFINE
        return {
            "op": _NAMES.take(pa.array(self.op)),
            "indices": _lists(self.istart, self.indices, ~listed),
            "values": _lists(self.vstart, self.values, ~valued),
            "factors": _lists(self.astart, self.factors, ~affine),
            "factor": pa.array(self.factor, mask=~(affine | (self.op == kernels.SCALE))),
            "amount": pa.array(self.amount, mask=~(affine | (self.op == kernels.OFFSET))),
        }


def _lists(start: Int64s, flat: NDArray[Any], null: NDArray[np.bool_]) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array(start.astype(np.int32)), pa.array(flat), mask=pa.array(null)
    )


def _floats(column: pa.Array) -> NDArray[np.float64]:
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    out: NDArray[np.float64] = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    return out.astype(np.float64, copy=False)


def row_bytes(rows: pa.RecordBatch) -> Int64s:
    """Measured bytes of each row: what its cells occupy in the columns, without compression."""
    total = np.zeros(rows.num_rows, np.int64)
    every = 0
    for array, field in zip(rows.columns, rows.schema, strict=True):
        if field.name == "vector_id":
            continue  # the chain's, not the delta's
        listed = pa.types.is_list(field.type)
        if not listed and not pa.types.is_string(field.type):
            if not array.null_count:
                every += 8
            elif array.null_count < len(array):
                total += np.where(array.is_valid().to_numpy(zero_copy_only=False), 8, 0)
            continue
        every += 4
        if array.null_count == len(array):
            continue
        if not listed:
            total += _lengths(array)
        elif pa.types.is_string(field.type.value_type):
            ends = np.concatenate([[0], np.cumsum(_lengths(array))])
            text = pc.fill_null(pc.binary_length(array.flatten()), 0).to_numpy() + 4
            running = np.concatenate([[0], np.cumsum(text)])
            total += running[ends[1:]] - running[ends[:-1]]
        else:
            total += _lengths(array) * np.int64(field.type.value_type.bit_width // 8)
    total += every
    return total


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    """Of each text or list; 0 for null."""
    ends = np.frombuffer(column.buffers()[1], np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1]
    lengths: NDArray[np.int32] = ends[1:] - ends[:-1]
    if column.null_count:  # what Arrow keeps under a null is anything
        lengths = np.where(_valid(column), lengths, 0)
    return lengths
