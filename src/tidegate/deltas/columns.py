"""Many chains at once, as columns: the engine behind everything that has to do with deltas.

A `DeltaChain`, a shard in a Spark state and a bucket of a stored table are all `Chains`. In reading
order:

    DeltaRows     deltas as Arrow rows, and the plain arrays the kernels take, read off once
    chain order   by vector, then (time, origin, id), parents before children
    FoldedIds     the ids that went into checkpoints, to recognise duplicates
    Chains        checkpoints and pending deltas of many vectors; `compose` gives the vectors
    tables        chains as Arrow tables and back
    CompactionPlan, compact
                  what to fold and merge, and the function that does it

Rules. Everything here is a value: admitting or compacting gives new chains that share what did not
change, so a compaction works on a snapshot while deltas go on arriving, and one that fails has
changed nothing. Chains name their deltas by index into a `DeltaRows`: to admit, compact, split or
join chains, only indices move. A row is copied when it is stored, not before.

The *seal* of a chain is the position of its newest folded or merged delta. Nothing may be put in
before it any more: its history is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.arrow import ranges, take
from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.parallel import MANY, each, parts, whole_runs
from tidegate.core.time import UNSET, format_time
from tidegate.deltas.id_table import IdTable
from tidegate.deltas.kernels import (
    DeltaArrays,
    DeltaVerdict,
    KernelOp,
    apply_rows,
    check_rows,
    finite_rows,
    in_memory_order,
    merge_runs,
)
from tidegate.deltas.operations import DELTAS, OPERATIONS
from tidegate.errors import ConfigError, StateError

__all__ = [
    "Chains",
    "Compacted",
    "CompactionPlan",
    "Composed",
    "DeltaRows",
    "FoldedIds",
    "chains_from_tables",
    "check_delta_types",
    "checkpoint_schema",
    "checkpoint_table",
    "compact",
    "find_vectors",
    "in_chain_order",
    "join_chains",
    "normalise",
    "seal_keys",
    "vector_column",
]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Int8s = NDArray[np.int8]

OUT_OF_CACHE = 1 << 14
"""Rows that no longer fit into a processor's cache: from here on they are applied in the order of
memory. Below, finding that order costs more than it saves."""

CHECKPOINT_BYTES = 8 + 8 + 1 + 4
"""Bytes of a checkpoint besides vector and ids: time, count, tombstone, offset of its id."""


def _readonly(*arrays: NDArray[Any]) -> None:
    """Mark arrays read-only, in place.

    Arrow hands out read-only arrays and numpy writable ones; numba compiles a kernel anew for every
    mixture of the two, which takes seconds. With all of them read-only there is one compilation.
    """
    for array in arrays:
        array.setflags(write=False)


# -- deltas as rows -------------------------------------------------------------------------------


def normalise(rows: pa.RecordBatch, time_ns: Int64s | None = None) -> pa.RecordBatch:
    """Bring rows into the schema `DELTAS`: missing columns become null, unknown ones are left out.

    Args:
        rows: deltas as users send them, columns in any order. Types are only widened; an index
            beyond 32 bits is clipped to one that admission refuses.
        time_ns: the time of each row, which then replaces the column `time_ns`; None: the column is
            used.

    Returns:
        One batch of the schema `DELTAS`, with as many rows.

    Raises:
        ConfigError: a column has a type that no delta can be read from, see `check_delta_types`.

    Example:
        >>> rows = pa.record_batch({"delta_id": ["a"], "note": ["left out"]})
        >>> normalise(rows, np.array([7])).select(["delta_id", "time_ns", "op"]).to_pylist()
        [{'delta_id': 'a', 'time_ns': 7, 'op': None}]
    """
    check_delta_types(rows.schema, given_time=time_ns is not None)
    arrays = []
    for wanted in DELTAS:
        at = rows.schema.get_field_index(wanted.name)
        if wanted.name == "time_ns" and time_ns is not None:
            arrays.append(pa.array(time_ns))
        elif at < 0:
            arrays.append(pa.nulls(rows.num_rows, wanted.type))
        else:
            arrays.append(_cast(rows.column(at), wanted))
    return pa.RecordBatch.from_arrays(arrays, schema=DELTAS)


def check_delta_types(rows: pa.Schema, *, given_time: bool = False) -> None:
    """Raise a ConfigError for the first column of a delta whose type cannot be read as such.

    Types alone decide, so a plan can be checked before there are rows; what is wrong with a single
    value is found by admission, and refuses that row.

    Args:
        rows: the schema of deltas as users send them. Columns may be missing.
        given_time: whether the column `time_ns` is not looked at.

    Example:
        >>> check_delta_types(pa.schema({"values": pa.string()}))
        Traceback (most recent call last):
            ...
        tidegate.errors.ConfigError: values: got a column of type string, must be a list of numbers
    """
    for wanted in DELTAS:
        at = rows.get_field_index(wanted.name)
        if at < 0 or (given_time and wanted.name == "time_ns"):
            continue
        found = rows.field(at).type
        plain = found.value_type if pa.types.is_dictionary(found) else found
        if not (pa.types.is_null(plain) or _reads(plain, wanted.type)):
            what = f"a column of type {found}"
            expected = f"must be {_EXPECTED[wanted.type]}"
            text = f"{wanted.name}: got {what}, {expected}"
            raise ConfigError(wanted.name, what, expected, message=text)


_EXPECTED = {
    pa.string(): "text or numbers",
    pa.int64(): "whole numbers (int64 nanoseconds)",
    pa.float64(): "numbers",
    pa.list_(pa.int32()): "a list of whole numbers",
    pa.list_(pa.float64()): "a list of numbers",
    pa.list_(pa.string()): "a list of texts",
}
"""What a column of each type of `DELTAS` must be, for errors."""


def _reads(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be read as the other without guessing: text is not parsed,
    and a timestamp is not a number of nanoseconds."""
    if pa.types.is_list(wanted):
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        inside = found.value_type if any(is_kind(found) for is_kind in lists) else None
        return inside is not None and (
            pa.types.is_null(inside) or _reads(inside, wanted.value_type)
        )
    whole = pa.types.is_integer(found)
    if pa.types.is_integer(wanted):
        return bool(whole)
    if pa.types.is_floating(wanted):
        return bool(whole or pa.types.is_floating(found) or pa.types.is_decimal(found))
    binary = pa.types.is_binary(found) or pa.types.is_large_binary(found)
    return not (pa.types.is_nested(found) or binary or pa.types.is_fixed_size_binary(found))


def _cast(array: pa.Array, wanted: pa.Field) -> pa.Array:
    """Cast one column to the type of the field `wanted`; dictionaries are decoded first.

    A value that does not fit becomes one that admission refuses, so that the one bad row does not
    take its neighbours with it: an index beyond 32 bits is out of range for every vector, and a
    whole number that a float64 cannot hold is NaN.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == wanted.type:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_list(wanted.type) and not pa.types.is_null(array.type):
        if not pa.types.is_list(array.type):
            array = array.cast(pa.list_(array.type.value_type))
        sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        flat = _cast_plain(array.flatten(), wanted.type.value_type)
        return pa.ListArray.from_arrays(offsets, flat, mask=array.is_null())
    return _cast_plain(array, wanted.type)


def _cast_plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast numbers or texts; see `_cast`."""
    if array.type == wanted or not pa.types.is_integer(array.type):
        return array.cast(wanted)
    if pa.types.is_floating(wanted):
        made = array.cast(wanted, safe=False)
        kept = pc.equal(made.cast(array.type, safe=False), array)
        return pc.if_else(kept, made, pa.scalar(np.nan, wanted))
    if wanted == pa.int32():  # indices: unsigned 64 bits wrap to negative ones
        wide = pc.fill_null(array.cast(pa.int64(), safe=False), -1).to_numpy()
        return pa.array(np.clip(wide, -1, 2**31 - 1).astype(np.int32))
    if wanted == pa.int64():  # times: beyond 64 bits there is none
        made = array.cast(wanted, safe=False)
        return pc.if_else(pc.equal(made.cast(array.type, safe=False), array), made, None)
    return array.cast(wanted)


_KINDS = list(OPERATIONS.values())
"""Every operation. Its position is the code that `index_in` gives, and the index into the arrays
below."""
_OP_NAMES = pa.array([kind.op for kind in _KINDS])
"""The name in the column `op` of each kind, for `index_in`."""
_KERNEL_OPS = np.array([kind.kernel for kind in _KINDS], np.int8)
"""The kernel operation of each kind where the column `indices` has a value."""
_WITHOUT_INDICES = np.array(
    [kind.kernel if (k := kind.kernel_without_indices) is None else k for kind in _KINDS], np.int8
)
"""The kernel operation of each kind where `indices` is null: Add, for one, then means every
dimension."""
_NAME_OF = pa.array(
    [
        next(kind.op for kind in _KINDS if code in (kind.kernel, kind.kernel_without_indices))
        for code in KernelOp
    ]
)
"""The name in the column `op` of each kernel operation, indexed by `KernelOp`: the way back, for
merged rows."""


class DeltaRows:
    """Deltas (rows of the schema `DELTAS`, in any order) and the plain arrays read from them.

    Every derived array is computed on first use and kept, so that admission, composing and
    compaction of one call read each Arrow column once. Instances are values: rows never change.

    Args:
        rows: the deltas, in the schema `DELTAS`.
        usable_for: a number of dimensions for which all rows are known to be usable, because they
            passed the check before; they are then not checked again. None: nothing is known.
    """

    def __init__(self, rows: pa.RecordBatch, usable_for: int | None = None) -> None:
        """Wrap rows without reading them."""
        self.rows = rows
        self.size: int = rows.num_rows
        self._verdicts: dict[int, tuple[Int8s, Int64s, bool]] = {}
        if usable_for is not None:
            nothing_wrong = np.zeros(self.size, np.int8), np.zeros(self.size, np.int64), True
            self._verdicts[usable_for] = nothing_wrong

    @classmethod
    def none(cls) -> DeltaRows:
        """No deltas."""
        return cls(pa.RecordBatch.from_pylist([], schema=DELTAS))

    @cached_property
    def _read(self) -> tuple[DeltaArrays, Int64s, Int8s]:
        """Read the columns once: the arrays for the kernels, the times (0 where null), and
        verdicts.
        The verdicts are those that only the Arrow columns show: a missing id or time, an unknown
        operation, a delta that names itself as parent. `check_rows` adds those that depend on
        numbers. Where several apply, the last one written wins: a missing time before a missing id
        before an unknown operation."""
        rows = self.rows
        kind = pc.index_in(rows.column("op"), _OP_NAMES)
        verdict = np.zeros(self.size, np.int8)
        ids, vectors, parents = (rows.column(n) for n in ("delta_id", "vector_id", "parent"))
        if parents.null_count < self.size:
            own = pc.fill_null(pc.equal(parents, ids), False)
            verdict[own.to_numpy(zero_copy_only=False)] = DeltaVerdict.OWN_PARENT
        if kind.null_count:
            verdict[kind.is_null().to_numpy(zero_copy_only=False)] = DeltaVerdict.UNKNOWN_OPERATION
            kind = pc.fill_null(kind, 0)
        if ids.null_count or vectors.null_count:
            missing = pc.or_(ids.is_null(), vectors.is_null())
            verdict[missing.to_numpy(zero_copy_only=False)] = DeltaVerdict.NO_ID
        time_ns = rows.column("time_ns")
        if time_ns.null_count:
            verdict[time_ns.is_null().to_numpy(zero_copy_only=False)] = DeltaVerdict.NO_TIME
            time_ns = pc.fill_null(time_ns, 0)
        kinds = kind.to_numpy()
        op = _KERNEL_OPS[kinds]
        if rows.column("indices").null_count:
            op = np.where(_valid(rows.column("indices")), op, _WITHOUT_INDICES[kinds])
        index_start, indices = _ragged(rows.column("indices"), np.int32, -1)
        value_start, values = _ragged(rows.column("values"), np.float64, np.nan)
        factor_start, factors = _ragged(rows.column("factors"), np.float64, np.nan)
        arrays = DeltaArrays(
            op=op,
            factor=_float_column(rows.column("factor")),
            amount=_float_column(rows.column("amount")),
            index_start=index_start,
            indices=indices,
            value_start=value_start,
            values=values,
            factor_start=factor_start,
            factors=factors,
        )
        _readonly(*arrays, verdict)
        return arrays, time_ns.to_numpy(), verdict

    @property
    def arrays(self) -> DeltaArrays:
        """The rows as the kernels take them."""
        return self._read[0]

    @property
    def time_ns(self) -> Int64s:
        """The time of each row; 0 where it is missing."""
        return self._read[1]

    @cached_property
    def nbytes(self) -> Int64s:
        """Measured bytes of each row: what its cells occupy in the columns, uncompressed."""
        return _row_bytes(self.rows)

    @cached_property
    def merged(self) -> bool:
        """Whether some row stands for several deltas."""
        return bool(self.rows.column("covers").null_count < self.size)

    @cached_property
    def sizes(self) -> Int64s:
        """How many deltas each row stands for."""
        if not self.merged:
            return np.ones(self.size, np.int64)
        covers = self.rows.column("covers")
        sizes: Int64s = pc.fill_null(covers.value_lengths(), 1).to_numpy().astype(np.int64)
        return sizes

    @cached_property
    def ids(self) -> tuple[pa.Array, Int64s]:
        """All ids the rows stand for, flat, and the offset at which those of each row begin.

        A plain row stands for its own id, a merged one for the ids in `covers`. Without merged rows
        the first part is the column itself, not a copy.

        Returns:
            The ids, and offsets with one entry more than there are rows.
        """
        ids, covers = self.rows.column("delta_id"), self.rows.column("covers")
        ends = np.zeros(self.size + 1, np.int64)
        np.cumsum(self.sizes, out=ends[1:])
        if not self.merged:
            return ids, ends
        listed = covers.is_valid().to_numpy(zero_copy_only=False)
        both = pa.concat_arrays([ids, covers.flatten()])
        from_list = np.repeat(listed, self.sizes)
        index = np.empty(ends[-1], np.int64)
        index[~from_list] = np.flatnonzero(~listed)
        index[from_list] = len(ids) + np.arange(int(from_list.sum()))
        return both.take(pa.array(index)), ends

    def verdicts(self, dims: int) -> tuple[Int8s, Int64s]:
        """Say for each row why it cannot be used.

        Args:
            dims: the length of the vectors; the result is kept per value.

        Returns:
            A `DeltaVerdict` per row (OPEN: it can be used), and the offending index, length or
            position (0 where there is none).
        """
        return self._checked(dims)[:2]

    def usable(self, dims: int) -> bool:
        """Whether every row can be applied to vectors of length `dims`."""
        return self._checked(dims)[2]

    def _checked(self, dims: int) -> tuple[Int8s, Int64s, bool]:
        """Check all rows for `dims` once, in parallel from `MANY` rows on; the answer is kept."""
        if dims not in self._verdicts:
            arrays, _, known = self._read
            verdict, where = known.copy(), np.zeros(self.size, np.int64)

            def check(part: slice) -> None:
                check_rows(arrays, part.start, part.stop, dims, verdict, where)

            if self.size < MANY:
                check(slice(0, self.size))
            else:
                each(check, parts(self.size))
            self._verdicts[dims] = verdict, where, not verdict.any()
        return self._verdicts[dims]

    def apply(self, vectors: Floats, deleted: Bools, index: Int64s, slot: Int64s) -> None:
        """Apply rows to vectors, in place.

        Args:
            vectors: a matrix with one vector per slot.
            deleted: the tombstone of each slot; rows behind a tombstone have no effect until a
                create.
            index: rows to apply, in this order. Only usable ones: kernels do not check bounds.
            slot: the row of `vectors` for each entry of `index`. Entries of one slot must be
                neighbours, so that threads can be given whole slots.
        """
        arrays = self.arrays

        def work(part: slice) -> None:
            rows, owner = index[part], slot[part]
            if len(index) > OUT_OF_CACHE:
                rows, owner = in_memory_order(rows, owner, self.size)
                _readonly(rows, owner)
            apply_rows(arrays, rows, owner, vectors, deleted)

        _readonly(index, slot)
        if len(index) < MANY:
            work(slice(0, len(index)))
        else:
            each(work, whole_runs(slot))

    def plus(self, more: DeltaRows) -> DeltaRows:
        """These rows with `more` behind them.

        Arrays that both have read already are concatenated, not read again: otherwise the first
        compose after an append would take several times as long as the one after it. Offsets of
        ragged columns are shifted by the length of the first part.
        """
        joined = DeltaRows(pa.concat_batches([self.rows, more.rows]))
        mine, theirs = self.__dict__, more.__dict__
        if "_read" in mine and "_read" in theirs:
            (a, a_time, a_verdict), (b, b_time, b_verdict) = mine["_read"], theirs["_read"]
            arrays = DeltaArrays(
                *(
                    np.concatenate([x, y[1:] + x[-1]] if name.endswith("_start") else [x, y])
                    for name, x, y in zip(DeltaArrays._fields, a, b, strict=True)
                )
            )
            time_ns, verdict = (
                np.concatenate([a_time, b_time]),
                np.concatenate([a_verdict, b_verdict]),
            )
            _readonly(*arrays, time_ns, verdict)
            joined.__dict__["_read"] = arrays, time_ns, verdict
            for dims in self._verdicts.keys() & more._verdicts.keys():
                (v, w, fine), (v2, w2, fine2) = self._verdicts[dims], more._verdicts[dims]
                both = np.concatenate([v, v2]), np.concatenate([w, w2])
                joined._verdicts[dims] = *both, fine and fine2
        if "nbytes" in mine and "nbytes" in theirs:
            joined.__dict__["nbytes"] = np.concatenate([self.nbytes, more.nbytes])
        return joined


def _valid(column: pa.Array) -> Bools:
    """A mask of the rows that are not null."""
    if column.null_count in (0, len(column)):
        return np.full(len(column), not column.null_count)
    valid: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _float_column(column: pa.Array) -> Floats:
    """A number column as contiguous float64, NaN where it is null."""
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    out: Floats = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    return out.astype(np.float64, copy=False)


def _ragged(column: pa.Array, dtype: Any, hole: float) -> tuple[Int64s, NDArray[Any]]:
    """Split a list column into offsets and flat values.

    Args:
        column: a list column; it may be a slice of a larger one.
        dtype: the numpy type of the values.
        hole: what stands for a null item: a value that the check of the rows refuses.

    Returns:
        int64 offsets starting at 0, one more than rows, and the values. A null list is empty.
    """
    if column.null_count == len(column):
        return np.zeros(len(column) + 1, np.int64), np.empty(0, dtype)
    if not column.null_count:
        # Nothing is hidden under a null, so Arrow's own buffers are what is wanted.
        ends = np.frombuffer(column.buffers()[1], np.int32)
        start = ends[column.offset : column.offset + len(column) + 1].astype(np.int64)
        flat = column.values.slice(int(start[0]), int(start[-1] - start[0]))
        start -= start[0]
    else:
        start = np.zeros(len(column) + 1, np.int64)
        np.cumsum(pc.fill_null(column.value_lengths(), 0).to_numpy(), out=start[1:])
        flat = column.flatten()
    if flat.null_count:
        flat = pc.fill_null(flat, pa.scalar(hole, flat.type))
    return start, np.ascontiguousarray(flat.to_numpy(), dtype)


def _row_bytes(rows: pa.RecordBatch) -> Int64s:
    """Bytes of each row in Arrow's layout: 8 per number, 4 per offset plus the content for texts
    and lists.
    `vector_id` is left out: it is stored once per chain, not per delta. Null numbers count as
    nothing."""
    total = np.zeros(rows.num_rows, np.int64)
    every = 0
    for array, column in zip(rows.columns, rows.schema, strict=True):
        if column.name == "vector_id":
            continue  # the chain's, not the delta's
        listed = pa.types.is_list(column.type)
        if not listed and not pa.types.is_string(column.type):
            if not array.null_count:
                every += 8
            elif array.null_count < len(array):
                total += np.where(_valid(array), 8, 0)
            continue
        every += 4
        if array.null_count == len(array):
            continue
        if not listed:
            total += _lengths(array)
        elif pa.types.is_string(column.type.value_type):
            ends = np.concatenate([[0], np.cumsum(_lengths(array))])
            text = pc.fill_null(pc.binary_length(array.flatten()), 0).to_numpy() + 4
            running = np.concatenate([[0], np.cumsum(text)])
            total += running[ends[1:]] - running[ends[:-1]]
        else:
            total += _lengths(array) * np.int64(column.type.value_type.bit_width // 8)
    total += every
    return total


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    """The length of each text or list; 0 for null."""
    ends = np.frombuffer(column.buffers()[1], np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1]
    lengths: NDArray[np.int32] = ends[1:] - ends[:-1]
    if column.null_count:  # what Arrow keeps under a null is anything
        lengths = np.where(_valid(column), lengths, 0)
    return lengths


# -- chain order ----------------------------------------------------------------------------------


@kernel
def _by_vector(
    vec: Int64s, time_ns: Int64s, index: Int64s, vectors: int
) -> tuple[Int64s, Int64s, Int64s, bool]:
    """Group rows by vector with a counting sort.

    Args:
        vec: the vector of each row, in [0, vectors).
        time_ns: the time of each row.
        index: the row number to carry along.
        vectors: how many vectors there are.

    Returns:
        The three arrays by vector, stable, and whether times grow strictly within every vector:
        then chain order is reached without a comparison sort, which is the usual case.
    """
    next_slot = np.zeros(vectors + 1, np.int64)
    for r in range(len(vec)):
        next_slot[vec[r] + 1] += 1
    for v in range(vectors):
        next_slot[v + 1] += next_slot[v]
    new_vec = np.empty(len(vec), np.int64)
    for v in range(vectors):
        for k in range(next_slot[v], next_slot[v + 1]):
            new_vec[k] = v
    first = next_slot[:-1].copy()
    new_time, new_index = np.empty(len(vec), np.int64), np.empty(len(vec), np.int64)
    grows = True
    for r in range(len(vec)):
        v = vec[r]
        k = next_slot[v]
        next_slot[v] += 1
        new_index[k] = index[r]
        new_time[k] = time_ns[r]
        grows = grows and (k == first[v] or new_time[k] > new_time[k - 1])
    return new_vec, new_time, new_index, grows


@kernel
def _parents_before(start: int, stop: int, parent: Int64s, order: Int64s, done: Bools) -> None:
    """Rearrange order[start:stop], the rows of one vector, so that no row stands before its parent.

    A row whose parent has not been written yet is set aside and follows directly behind it; all
    others keep their order. Quadratic in the rows set aside, which are few. `done` marks rows
    written so far.
    """
    size = stop - start
    out = np.empty(size, np.int64)
    aside = np.empty(size, np.int64)
    n = 0
    waiting = 0
    for k in range(start, stop):
        r = order[k]
        if parent[r] >= 0 and not done[parent[r]]:
            aside[waiting] = r
            waiting += 1
            continue
        out[n] = r
        n += 1
        done[r] = True
        again = waiting > 0
        while again:
            again = False
            for j in range(waiting):
                c = aside[j]
                if done[parent[c]]:
                    out[n] = c
                    n += 1
                    done[c] = True
                    for m in range(j, waiting - 1):
                        aside[m] = aside[m + 1]
                    waiting -= 1
                    again = waiting > 0
                    break
    for j in range(waiting):  # a cycle: only in rows that nobody admitted
        out[n] = aside[j]
        n += 1
    order[start:stop] = out


def in_chain_order(
    vec: Int64s, time_ns: Int64s, rows: pa.RecordBatch, index: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Sort deltas: by vector, then (time, origin, id), parents before children.

    Args:
        vec: the vector of each delta.
        time_ns: the time of each delta.
        rows: the batch that holds them, for origins, ids and parents.
        index: the row of each delta in `rows`.

    Returns:
        `vec`, `time_ns` and `index`, all sorted alike.
    """
    vectors = int(vec.max()) + 1 if len(vec) else 0
    parents = rows.column("parent")
    named = parents.null_count < len(parents)
    _readonly(vec, time_ns, index)
    new_vec, new_time, new_index, grows = _by_vector(vec, time_ns, index, vectors)
    if grows and not named:
        return new_vec, new_time, new_index
    order = np.lexsort((time_ns, vec))
    if not grows:
        _sort_ties(vec, time_ns, rows, index, order)
    if named:
        _sort_parents(vec, rows, index, order)
    return new_vec, time_ns[order], index[order]


def _sort_ties(
    vec: Int64s, time_ns: Int64s, rows: pa.RecordBatch, index: Int64s, order: Int64s
) -> None:
    """Put rows of one vector and time in the order of (origin, id), by rearranging `order` in
    place.
    Only tied rows are read as text: comparing strings costs more than the whole numeric sort."""
    v, t = vec[order], time_ns[order]
    same = (v[1:] == v[:-1]) & (t[1:] == t[:-1])
    if not same.any():
        return
    member = np.zeros(len(order), np.bool_)
    member[1:] |= same
    member[:-1] |= same
    tied = np.flatnonzero(member)
    run = np.cumsum(np.concatenate([[True], ~same]))[tied]
    chosen = pa.array(index[order[tied]])
    keys = pa.table(
        {
            "run": run,
            "origin": pc.fill_null(rows.column("origin").take(chosen), ""),
            "id": rows.column("delta_id").take(chosen),
        }
    )
    ranked = pc.sort_indices(
        keys, sort_keys=[("run", "ascending"), ("origin", "ascending"), ("id", "ascending")]
    ).to_numpy()
    order[tied] = order[tied][ranked]


def _sort_parents(vec: Int64s, rows: pa.RecordBatch, index: Int64s, order: Int64s) -> None:
    """Put children behind their parents, by rearranging `order` in place.

    Only vectors in which some child actually stands before its parent are touched.
    """
    chosen = pa.array(index)
    ids, parents = rows.column("delta_id").take(chosen), rows.column("parent").take(chosen)
    if parents.null_count == len(parents):
        return
    table = IdTable(vec, ids, parents)
    row_of = np.full(table.size, -1, np.int64)
    there = np.flatnonzero(table.numbers >= 0)
    row_of[table.numbers[there]] = there
    parent = table.parent_numbers
    parent_row = np.where(parent >= 0, row_of[np.maximum(parent, 0)], -1)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    wrong = (parent_row >= 0) & (rank[np.maximum(parent_row, 0)] > rank)
    if not wrong.any():
        return
    ordered = vec[order]
    done = np.zeros(len(order), np.bool_)
    _readonly(parent_row)
    for v in np.unique(vec[wrong]):
        start, stop = np.searchsorted(ordered, [v, v + 1])
        _parents_before(int(start), int(stop), parent_row, order, done)


def seal_keys(rows: pa.RecordBatch, which: Int64s) -> pa.Array:
    """The text that orders deltas of equal time: origin, a NUL, then the id.

    NUL sorts before every other character, so that comparing the joined text is comparing the pair.

    Args:
        rows: a batch of the schema `DELTAS`.
        which: the rows to make keys for.
    """
    chosen = pa.array(which)
    origin = pc.fill_null(rows.column("origin").take(chosen), "")
    return pc.binary_join_element_wise(origin, rows.column("delta_id").take(chosen), "\x00")


# -- ids that went into checkpoints ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FoldedIds:
    """Ids that chains have folded, with their vector and time: they are never applied again."""

    texts: pa.Array
    """A text column that holds the ids, and maybe others: ids are copied only when stored."""
    index: Int64s | None
    """Rows of `texts`; None: all of them, in order."""
    vec: Int64s
    """The vector of each id."""
    time_ns: Int64s
    """The time of the delta with that id; decides when the id is forgotten."""

    @classmethod
    def none(cls) -> FoldedIds:
        """No ids."""
        return cls(pa.array([], pa.string()), None, np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def ids(self) -> pa.Array:
        """The ids themselves."""
        return self.texts if self.index is None else self.texts.take(pa.array(self.index))

    @property
    def _indices(self) -> Int64s:
        """Rows of `texts`, written out where `index` is None."""
        return np.arange(len(self.vec)) if self.index is None else self.index

    @property
    def nbytes(self) -> Int64s:
        """Measured bytes of each id: its text and its offset."""
        if not len(self.vec):
            return np.empty(0, np.int64)
        lengths = _lengths(self.texts)
        return (lengths if self.index is None else lengths[self.index]).astype(np.int64) + 4

    def plus(self, more: FoldedIds) -> FoldedIds:
        """These ids with `more` behind them; no text is copied if both share one column."""
        if not len(more.vec):
            return self
        if not len(self.vec):
            return more
        texts, mine, theirs = self.texts, self._indices, more._indices
        if more.texts is not texts:
            texts, theirs = pa.concat_arrays([texts, more.texts]), theirs + len(texts)
        return FoldedIds(
            texts,
            np.concatenate([mine, theirs]),
            np.concatenate([self.vec, more.vec]),
            np.concatenate([self.time_ns, more.time_ns]),
        )

    def where(self, keep: Bools) -> FoldedIds:
        """Those for which `keep` is true."""
        return FoldedIds(self.texts, self._indices[keep], self.vec[keep], self.time_ns[keep])

    def of_vectors(self, vectors: Int64s, total: int) -> FoldedIds:
        """Keep the ids of some vectors and renumber those.

        Args:
            vectors: the vectors to keep; the first becomes 0, and so on.
            total: how many vectors there were.
        """
        if not len(self.vec):
            return self
        new = np.full(total, -1, np.int64)
        new[vectors] = np.arange(len(vectors))
        vec = new[self.vec]
        keep = vec >= 0
        if keep.all():
            return replace(self, vec=vec)
        return FoldedIds(self.texts, self._indices[keep], vec[keep], self.time_ns[keep])

    def by_vector(self, vectors: int) -> tuple[pa.Array, Int64s, NDArray[np.int32]]:
        """Ids and times by vector, stable, and the offset at which those of each vector begin.

        Args:
            vectors: how many vectors there are, those without an id included.
        """
        ends = np.zeros(vectors + 1, np.int32)
        np.cumsum(np.bincount(self.vec, minlength=vectors), out=ends[1:])
        if (self.vec[1:] >= self.vec[:-1]).all():
            return self.ids, self.time_ns, ends
        order = np.argsort(self.vec, kind="stable")
        return self.texts.take(pa.array(self._indices[order])), self.time_ns[order], ends

    def owned(self) -> FoldedIds:
        """The same with nothing but their own texts kept alive."""
        return self if self.index is None else replace(self, texts=self.ids, index=None)


# -- chains ---------------------------------------------------------------------------------------


@kernel
def _running_max(vec: Int64s, time_ns: Int64s) -> Int64s:
    """The newest time up to and including each row, within its vector."""
    out = time_ns.copy()
    for k in range(1, len(out)):
        if vec[k] == vec[k - 1] and out[k] < out[k - 1]:
            out[k] = out[k - 1]
    return out


@kernel
def _raise(top: Int64s, vec: Int64s, time_ns: Int64s) -> None:
    """Raise top[v] to the newest time of the rows of vector v, in place."""
    for k in range(len(vec)):
        top[vec[k]] = max(top[vec[k]], time_ns[k])


@dataclass(frozen=True)
class Composed:
    """Composed vectors, one entry each. One that was never made neither exists nor is deleted."""

    vectors: Floats
    """A matrix of float64, one vector per row; meaningless where `exists` is false."""
    exists: Bools
    """Whether there is a vector: some delta was applied, and no tombstone holds."""
    deleted: Bools
    """Whether a tombstone holds."""


@dataclass(frozen=True, eq=False)
class Chains:
    """Checkpoints and pending deltas of many vectors; one entry per vector unless said otherwise.

    Pending are the deltas `source.rows[index]`, by vector (`vec`), then in chain order.
    """

    dims: int
    """The length of every vector."""
    ids: pa.Array
    """The id of each vector (text)."""
    lane: Int32s
    """The lane each vector belongs to: one id may occur once per lane."""
    vectors: Floats
    """The checkpoints, one row each; zeros where there is none."""
    has_checkpoint: Bools
    """Whether anything was folded; false: the chain starts from zeros."""
    deleted: Bools
    """The tombstone of the checkpoint."""
    folded_count: Int64s
    """Deltas folded into the checkpoint, ever."""
    last_folded: pa.Array
    """The id of the last folded delta."""
    folded_ns: Int64s
    """The time of the checkpoint: that of the last folded delta, never the time of folding."""
    sealed_ns: Int64s
    """The time of the seal: a delta before it is late. UNSET: nothing is sealed."""
    sealed_key: pa.Array
    """The key (`seal_keys`) of the seal, which decides among deltas of its time; null: none."""
    source: DeltaRows
    """The rows that `index` points into. May hold rows that belong to no chain any more."""
    index: Int64s
    """Rows of `source`, one entry per pending delta."""
    vec: Int64s
    """The vector of each pending delta."""
    folded_ids: FoldedIds
    """Ids of folded deltas that are still remembered, to recognise duplicates."""

    def __post_init__(self) -> None:
        _readonly(self.index, self.vec, self.sealed_ns)

    @classmethod
    def empty(cls, dims: int, ids: pa.Array, lane: Int32s | None = None) -> Chains:
        """Chains without checkpoints and deltas.

        Args:
            dims: the length of every vector.
            ids: the vector ids.
            lane: the lane of each; None: lane 0 for all.

        Raises:
            ConfigError: `dims` is not an int of at least 1.
        """
        if not isinstance(dims, int) or isinstance(dims, bool) or dims < 1:
            raise ConfigError("dims", dims, "must be an int of at least 1")
        n = len(ids)
        return cls(
            dims=dims,
            ids=ids,
            lane=np.zeros(n, np.int32) if lane is None else lane,
            vectors=np.zeros((n, dims)),
            has_checkpoint=np.zeros(n, np.bool_),
            deleted=np.zeros(n, np.bool_),
            folded_count=np.zeros(n, np.int64),
            last_folded=pa.nulls(n, pa.string()),
            folded_ns=np.full(n, UNSET, np.int64),
            sealed_ns=np.full(n, UNSET, np.int64),
            sealed_key=pa.nulls(n, pa.string()),
            source=DeltaRows.none(),
            index=np.empty(0, np.int64),
            vec=np.empty(0, np.int64),
            folded_ids=FoldedIds.none(),
        )

    def __len__(self) -> int:
        """The number of vectors, not of deltas."""
        return len(self.ids)

    # what can be read off

    @cached_property
    def _owns_source(self) -> bool:
        """Whether the source is exactly the pending rows, in this order."""
        n = len(self.index)
        return n == self.source.size and bool((self.index == np.arange(n)).all())

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The pending rows themselves, in chain order."""
        return self.source.rows if self._owns_source else take(self.source.rows, self.index)

    @cached_property
    def time_ns(self) -> Int64s:
        """The time of each pending delta."""
        times = self.source.time_ns
        if not self._owns_source:
            times = times[self.index]
            _readonly(times)
        return times

    @cached_property
    def start(self) -> Int64s:
        """Offsets into the pending deltas: those of vector v are [start[v], start[v + 1])."""
        edges: Int64s = np.searchsorted(self.vec, np.arange(len(self.ids) + 1)).astype(np.int64)
        return edges

    @cached_property
    def pending(self) -> Int64s:
        """Pending rows per vector."""
        lengths: Int64s = np.diff(self.start)
        return lengths

    @cached_property
    def total(self) -> Int64s:
        """Deltas per vector that were ever admitted: folded and pending. The vector's version."""
        if not self.source.merged:
            return self.folded_count + self.pending
        running = np.concatenate([[0], np.cumsum(self.source.sizes[self.index])])
        total: Int64s = self.folded_count + running[self.start[1:]] - running[self.start[:-1]]
        return total

    @cached_property
    def effective_ns(self) -> Int64s:
        """When each pending delta takes effect: its time, or the newest time before it in its
        chain.
        The two differ only where a child was put behind a parent that is newer than the child says.
        """
        return _running_max(self.vec, self.time_ns)

    @cached_property
    def newest_ns(self) -> Int64s:
        """The newest time per vector, folded or pending."""
        newest = np.maximum(self.folded_ns, self.sealed_ns)
        _raise(newest, self.vec, self.time_ns)
        return newest

    @cached_property
    def usable(self) -> bool:
        """Whether every pending delta can be applied."""
        return self.source.usable(self.dims) or not self.errors

    @cached_property
    def errors(self) -> dict[int, str]:
        """Vectors with a pending delta that cannot be applied, and the reason of the first such
        delta.
        Admission lets none in, so these come from outside: `DeltaChain.stored`, or a table on disk.
        """
        if self.source.usable(self.dims):
            return {}
        verdict, where = (part[self.index] for part in self.source.verdicts(self.dims))
        bad = np.flatnonzero(verdict)[::-1]  # the first of a vector wins
        return {
            int(self.vec[r]): DeltaVerdict(verdict[r]).sentence(where=int(where[r]), dims=self.dims)
            for r in bad
        }

    @cached_property
    def nbytes(self) -> Int64s:
        """Measured bytes per vector: checkpoint, folded ids, pending rows; uncompressed."""
        return self.measured(np.arange(len(self.ids)))

    def measured(self, which: Int64s) -> Int64s:
        """Measured bytes of some vectors: checkpoint, folded ids and pending rows, uncompressed.

        Args:
            which: the vectors.
        """
        rows, owner = ranges(self.start[which], self.start[which + 1])
        out: Int64s = np.bincount(owner, self.source.nbytes[self.index[rows]], len(which)).astype(
            np.int64
        )
        last = pc.fill_null(pc.binary_length(self.last_folded.take(pa.array(which))), 0).to_numpy()
        out += np.where(self.has_checkpoint[which], 8 * self.dims + CHECKPOINT_BYTES + last, 0)
        if len(self.folded_ids.vec):
            texts = np.bincount(self.folded_ids.vec, self.folded_ids.nbytes, len(self.ids))
            out += texts.astype(np.int64)[which]
        return out

    def bases(self, which: Int64s) -> Floats:
        """A copy of what these chains start from: the checkpoint, or zeros."""
        if not self.has_checkpoint.any():
            return np.zeros((len(which), self.dims))
        return self.vectors[which]

    # composing

    def compose(self, which: Int64s | None = None, at_ns: int | None = None) -> Composed:
        """Compose vectors: the checkpoint, or zeros, with the pending deltas applied in order.

        Args:
            which: the vectors; None: all of them.
            at_ns: an event time: only deltas that take effect at or before it are applied. None:
                all.

        Returns:
            One entry per vector, in the order of `which`.

        Raises:
            ConfigError: `at_ns` lies before a checkpoint or inside a merged delta. That history is
                gone, and no other vector is given in its place.
            StateError: a pending delta cannot be applied.
        """
        if which is not None and np.array_equal(which, np.arange(len(self.ids))):
            which = None
        if which is None:
            rows, slot = None, self.vec
            vectors, deleted = self.bases(np.arange(len(self.ids))), self.deleted.copy()
            there, pending = self.has_checkpoint, self.pending
        else:
            pending = self.pending[which]
            rows, slot = ranges(self.start[which], self.start[which + 1])
            vectors, deleted = self.bases(which), self.deleted[which]
            there = self.has_checkpoint[which]
        if not self.usable:
            for vector in np.unique(self.vec if rows is None else self.vec[rows]):
                if int(vector) in self.errors:
                    name = self.ids[int(vector)].as_py()
                    raise StateError(f"chain {name}: {self.errors[int(vector)]}")
        if at_ns is not None:
            if rows is None:
                rows = np.arange(len(self.vec))
            folded = self.folded_ns if which is None else self.folded_ns[which]
            keep = self._until(at_ns, rows, folded)
            rows, slot = rows[keep], slot[keep]
            pending = np.bincount(slot, minlength=len(vectors))
        index = self.index if rows is None else self.index[rows]
        self.source.apply(vectors, deleted, index, slot)
        there = there | (pending > 0)
        return Composed(vectors, there & ~deleted, there & deleted)

    def _until(self, at_ns: int, rows: Int64s, folded_ns: Int64s) -> Bools:
        """Which of the pending rows `rows` take effect at or before `at_ns`; checks that this can
        be told.
        Args:
            at_ns: the event time.
            rows: pending rows.
            folded_ns: the checkpoint times of the vectors to be composed.

        Raises:
            ConfigError: the time lies before a checkpoint, or a merged delta begins at or before it
                and ends behind it.
        """
        if len(folded_ns) and int(folded_ns.max()) > at_ns:
            raise ConfigError(
                "at_ns",
                at_ns,
                f"must be at or after the checkpoint at {int(folded_ns.max())} "
                f"({format_time(int(folded_ns.max()))})",
            )
        keep: Bools = self.effective_ns[rows] <= at_ns
        first = self.source.rows.column("first_ns")
        begins = pc.fill_null(first, at_ns + 1 if at_ns < 2**63 - 1 else at_ns).to_numpy()
        if bool((begins[self.index[rows]][~keep] <= at_ns).any()):
            raise ConfigError("at_ns", at_ns, "lies inside deltas that were merged into one")
        return keep

    def history(self) -> pa.RecordBatch:
        """What the chains consist of, one row per entry: checkpoints first, then pending deltas.

        For pictures and for people: `vector_id`, `kind` (`checkpoint`, `merged` or `delta`),
        `delta_id` (the last one it stands for), `op`, `first_ns` and `time_ns` (the times it spans;
        a checkpoint has no first), `deltas` (how many it stands for) and `bytes`.
        """
        some = np.flatnonzero(self.has_checkpoint)
        chosen, n, m = pa.array(some), len(some), len(self.vec)
        rows, sizes = self.rows, self.source.sizes[self.index]
        kinds = np.where(_valid(rows.column("covers")), "merged", "delta").tolist()
        empty = replace(
            self, source=DeltaRows.none(), index=np.empty(0, np.int64), vec=np.empty(0, np.int64)
        )
        first = pc.coalesce(rows.column("first_ns"), rows.column("time_ns"))
        columns = {
            "vector_id": [self.ids.take(chosen), rows.column("vector_id")],
            "kind": [
                pa.array(["checkpoint"] * n, pa.string()),
                pa.array(kinds, pa.string()),
            ],
            "delta_id": [self.last_folded.take(chosen), rows.column("delta_id")],
            "op": [pa.nulls(n, pa.string()), rows.column("op")],
            "first_ns": [pa.nulls(n, pa.int64()), first],
            "time_ns": [pa.array(self.folded_ns[some]), rows.column("time_ns")],
            "deltas": [pa.array(self.folded_count[some]), pa.array(sizes)],
            "bytes": [pa.array(empty.measured(some)), pa.array(self.source.nbytes[self.index])],
        }
        owner = np.concatenate([some, self.vec])
        behind = np.concatenate([np.zeros(n, np.int64), 1 + np.arange(m)])
        order = pa.array(np.lexsort((behind, owner)))
        return pa.RecordBatch.from_pydict(
            {name: pa.concat_arrays(parts).take(order) for name, parts in columns.items()}
        )

    # other sets of chains

    def plus(self, more: Chains) -> Chains:
        """These chains with `more` behind them, whose vectors are renumbered. `dims` must agree.

        Rows are copied only if the two name different sources and both have pending deltas.
        """
        n = len(self.ids)
        if not len(more.index):
            source, index = self.source, self.index
        elif not len(self.index):
            source, index = more.source, more.index
        elif self.source is more.source:
            source, index = self.source, np.concatenate([self.index, more.index])
        else:
            source = DeltaRows(pa.concat_batches([self.rows, more.rows]))
            index = np.arange(source.size)
        return Chains(
            dims=self.dims,
            ids=pa.concat_arrays([self.ids, more.ids]),
            lane=np.concatenate([self.lane, more.lane]),
            vectors=np.concatenate([self.vectors, more.vectors]),
            has_checkpoint=np.concatenate([self.has_checkpoint, more.has_checkpoint]),
            deleted=np.concatenate([self.deleted, more.deleted]),
            folded_count=np.concatenate([self.folded_count, more.folded_count]),
            last_folded=pa.concat_arrays([self.last_folded, more.last_folded]),
            folded_ns=np.concatenate([self.folded_ns, more.folded_ns]),
            sealed_ns=np.concatenate([self.sealed_ns, more.sealed_ns]),
            sealed_key=pa.concat_arrays([self.sealed_key, more.sealed_key]),
            source=source,
            index=index,
            vec=np.concatenate([self.vec, more.vec + n]),
            folded_ids=self.folded_ids.plus(replace(more.folded_ids, vec=more.folded_ids.vec + n)),
        )

    def take(self, which: Int64s) -> Chains:
        """The chains of some vectors, in the order given.

        The source is shared, not copied: see `owned` for chains that are kept for long.
        """
        rows, vec = ranges(self.start[which], self.start[which + 1])
        chosen = pa.array(which)
        new = Chains(
            dims=self.dims,
            ids=self.ids.take(chosen),
            lane=self.lane[which],
            vectors=self.vectors[which],
            has_checkpoint=self.has_checkpoint[which],
            deleted=self.deleted[which],
            folded_count=self.folded_count[which],
            last_folded=self.last_folded.take(chosen),
            folded_ns=self.folded_ns[which],
            sealed_ns=self.sealed_ns[which],
            sealed_key=self.sealed_key.take(chosen),
            source=self.source,
            index=self.index[rows],
            vec=vec,
            folded_ids=self.folded_ids.of_vectors(which, len(self.ids)),
        )
        if "time_ns" in self.__dict__:
            new._know_times(self.time_ns[rows])
        return new

    def with_pending(
        self, source: DeltaRows, index: Int64s, vec: Int64s, time_ns: Int64s | None = None
    ) -> Chains:
        """The same chains with other pending deltas.

        Args:
            source: the rows.
            index: the pending ones among them, in chain order.
            vec: the vector of each.
            time_ns: their times, if known, so that they are not looked up again.
        """
        new = replace(self, source=source, index=index, vec=vec)
        if time_ns is not None:
            new._know_times(time_ns)
        return new

    def _know_times(self, time_ns: Int64s) -> None:
        """Fill the cache of `time_ns`."""
        _readonly(time_ns)
        self.__dict__["time_ns"] = time_ns

    def owned(self) -> Chains:
        """The same chains with a source of their own, so that nothing but their own rows is kept
        alive.

        Called where chains outlive the call: otherwise a single delta would hold the whole batch it
        came in.
        """
        folded_ids = self.folded_ids.owned()
        if self._owns_source:
            return self if folded_ids is self.folded_ids else replace(self, folded_ids=folded_ids)
        source = DeltaRows(self.rows)
        return replace(self, source=source, index=np.arange(source.size), folded_ids=folded_ids)

    def rows_in_memory_order(self, which: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """Copy pending rows in the order of the source, which is several times as fast as chain
        order.
        Args:
            which: the pending rows to copy, ascending.

        Returns:
            The rows and the vector of each. Those of one vector are in chain order; vectors may be
            mixed.
        """
        index, vec = self.index, self.vec
        if len(which) < len(index):
            index, vec = index[which], vec[which]
            _readonly(index, vec)
        elif self._owns_source:
            return self.source.rows, vec
        index, vec = in_memory_order(index, vec, self.source.size)
        return take(self.source.rows, index), vec


def join_chains(parts: list[tuple[Int64s, Chains]]) -> Chains:
    """Join several sets of chains into one.

    Args:
        parts: positions and chains; vector k of a part goes to position `where[k]` of the result.
            Together the positions are 0, 1, 2, ... without a gap.
    """
    parts = [(where, chains) for where, chains in parts if len(where)]
    if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(len(parts[0][0]))):
        return parts[0][1]
    joined = parts[0][1]
    for _, more in parts[1:]:
        joined = joined.plus(more)
    return joined.take(np.argsort(np.concatenate([where for where, _ in parts])))


# -- chains as tables -----------------------------------------------------------------------------


def checkpoint_schema(dims: int) -> pa.Schema:
    """The schema of a table of chains, one row per vector.

    The columns: the checkpoint (`vector`, valid if `has_checkpoint`; `deleted`, `at_delta`,
    `time_ns`, `delta_count`), the seal (`sealed_ns`, `sealed_key`), and the folded ids that are
    remembered with their times (`covered`, `covered_ns`).

    Args:
        dims: the length of every vector; part of the type of `vector`.
    """
    return pa.schema(
        [
            pa.field("vector_id", pa.string()),
            pa.field("vector", pa.list_(pa.float64(), dims)),
            pa.field("has_checkpoint", pa.bool_()),
            pa.field("deleted", pa.bool_()),
            pa.field("at_delta", pa.string()),
            pa.field("time_ns", pa.int64()),
            pa.field("delta_count", pa.int64()),
            pa.field("sealed_ns", pa.int64()),
            pa.field("sealed_key", pa.string()),
            pa.field("covered", pa.list_(pa.string())),
            pa.field("covered_ns", pa.list_(pa.int64())),
        ]
    )


def vector_column(vectors: Floats) -> pa.Array:
    """A matrix as a column of fixed-size lists."""
    flat = pa.array(np.ascontiguousarray(vectors, np.float64).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def checkpoint_table(chains: Chains) -> pa.RecordBatch:
    """The checkpoints of chains as a table (`checkpoint_schema`), one row per vector.

    The pending rows (`chains.rows`) are the other half. Lossless: float64 and int64 nanoseconds are
    stored unchanged.
    """
    ids, time_ns, offsets = chains.folded_ids.by_vector(len(chains.ids))
    return pa.RecordBatch.from_arrays(
        [
            chains.ids,
            vector_column(chains.vectors),
            pa.array(chains.has_checkpoint),
            pa.array(chains.deleted),
            chains.last_folded,
            pa.array(chains.folded_ns),
            pa.array(chains.folded_count),
            pa.array(chains.sealed_ns),
            chains.sealed_key,
            pa.ListArray.from_arrays(pa.array(offsets), ids),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(time_ns)),
        ],
        schema=checkpoint_schema(chains.dims),
    )


def chains_from_tables(
    checkpoints: pa.RecordBatch,
    pending: pa.RecordBatch,
    index: Int64s,
    vec: Int64s,
    lane: Int32s | None = None,
    *,
    checked: bool = False,
) -> Chains:
    """Build chains from a table of checkpoints and a table of deltas: the reverse of
    `checkpoint_table`.

    Args:
        checkpoints: one row per vector (`checkpoint_schema`).
        pending: deltas (`DELTAS`).
        index: the rows of `pending` that belong to these vectors, by vector and in chain order.
        vec: the row in `checkpoints` for each entry of `index`.
        lane: the lane of each vector; None: lane 0.
        checked: True skips checking the deltas. Only for rows that passed the check before: kernels
            use their indices without looking.
    """
    vector = checkpoints.column("vector")
    dims, n = vector.type.list_size, checkpoints.num_rows
    lists = checkpoints.column("covered")
    sizes = pc.fill_null(lists.value_lengths(), 0).to_numpy()
    times = checkpoints.column("covered_ns").flatten().to_numpy()
    return Chains(
        dims=dims,
        ids=checkpoints.column("vector_id"),
        lane=np.zeros(n, np.int32) if lane is None else lane,
        vectors=vector.flatten().to_numpy().reshape(n, dims),
        has_checkpoint=checkpoints.column("has_checkpoint").to_numpy(zero_copy_only=False),
        deleted=checkpoints.column("deleted").to_numpy(zero_copy_only=False),
        folded_count=checkpoints.column("delta_count").to_numpy(),
        last_folded=checkpoints.column("at_delta"),
        folded_ns=checkpoints.column("time_ns").to_numpy(),
        sealed_ns=checkpoints.column("sealed_ns").to_numpy(),
        sealed_key=checkpoints.column("sealed_key"),
        source=DeltaRows(pending, dims if checked else None),
        index=index,
        vec=vec,
        folded_ids=FoldedIds(lists.flatten(), None, np.repeat(np.arange(n), sizes), times),
    )


def find_vectors(ids: pa.Array, lane: Int32s, wanted: pa.Array, wanted_lane: Int32s) -> Int64s:
    """Look up (id, lane) pairs.

    Args:
        ids: the known vector ids.
        lane: the lane of each.
        wanted: the ids to look up; null is never found.
        wanted_lane: the lane of each.

    Returns:
        The position of each wanted pair among the known ones, -1 where it is none of them.

    Example:
        >>> ids, lane = pa.array(["a", "b", "a"]), np.array([0, 0, 1], np.int32)
        >>> find_vectors(ids, lane, pa.array(["a", "b"]), np.array([1, 1], np.int32)).tolist()
        [2, -1]
    """
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    words = ids.unique()
    place = pc.fill_null(pc.index_in(wanted, words), -1).to_numpy().astype(np.int64)
    if len(words) == len(ids):
        return np.where((place >= 0) & (lane[place] == wanted_lane), place, -1)
    lanes = int(max(lane.max(), wanted_lane.max() if len(wanted_lane) else 0)) + 1
    own = pc.index_in(ids, words).to_numpy().astype(np.int64) * lanes + lane
    order = np.argsort(own, kind="stable")
    asked = place * lanes + wanted_lane
    at = np.minimum(np.searchsorted(own[order], asked), len(own) - 1)
    found = (own[order][at] == asked) & (place >= 0)
    return np.where(found, order[at], -1)


# -- compaction -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompactionPlan:
    """What to do with each chain: fold its first deltas, merge runs of the rest."""

    fold: Int64s
    """Per vector: how many of its first pending rows go into the checkpoint."""
    run: Int64s | None = None
    """Per pending row: the number of the run it is merged into, -1 for a row that stays. Rows of a
    run must be neighbours. None: nothing is merged."""

    def changes(self, chains: Chains) -> Bools:
        """Per vector: whether carrying the plan out would change anything.

        A run of a single row changes nothing, since there is nothing to merge it with.
        """
        out: Bools = self.fold > 0
        if self.run is not None and len(self.run):
            pair = (self.run[1:] >= 0) & (self.run[1:] == self.run[:-1])
            out[chains.vec[1:][pair]] = True
        return out

    def only(self, chains: Chains, which: Bools) -> CompactionPlan:
        """The same plan restricted to the vectors where the mask `which` is true; the others are
        left alone."""
        run = None if self.run is None else np.where(which[chains.vec], self.run, -1)
        return CompactionPlan(np.where(which, self.fold, 0), run)

    def among(self, which: Int64s, chains: Chains) -> CompactionPlan:
        """Turn a plan for some vectors into a plan for all.

        Args:
            which: the vectors of `chains` this plan was made for, in its order.
            chains: all chains; those not in `which` are left alone.
        """
        if len(which) == len(chains.ids):
            return self
        rows = np.zeros(len(chains.ids), np.int64)
        rows[which] = self.fold
        run = None
        if self.run is not None:
            run = np.full(len(chains.vec), -1, np.int64)
            run[ranges(chains.start[which], chains.start[which + 1])[0]] = self.run
        return CompactionPlan(rows, run)


@dataclass(frozen=True)
class Compacted:
    """The chains after a compaction, and per vector what it did."""

    chains: Chains
    """The chains after the compaction."""
    merged: Int64s
    """Per vector: how many pending rows fewer."""
    changed: Bools
    """Per vector: whether it has fewer pending rows."""
    folded_rows: Int64s
    """Rows of the source that went into checkpoints."""
    forgotten: FoldedIds
    """Ids of folded deltas that are no longer remembered."""
    errors: dict[int, str] = field(default_factory=dict)
    """Vectors that were left unchanged, and why."""


def compact(chains: Chains, plan: CompactionPlan, remember_ns: int | None = None) -> Compacted:
    """Carry out a plan: fold prefixes into checkpoints, merge runs into one delta each.

    Build, validate, then return: a chain with a delta that cannot be applied, or whose result would
    not be finite, stays exactly as it was, and its error is reported beside the results of the
    others.

    Args:
        chains: the chains; they are not changed.
        plan: what to fold and merge.
        remember_ns: ids of folded deltas older than this (event time, before the newest delta of
            the chain) are forgotten; None: never.

    Returns:
        The new chains, which share with the old ones whatever did not change, and what was done.
    """
    wanted = plan.changes(chains)
    errors = {v: text for v, text in chains.errors.items() if wanted[v]}
    if errors:
        wanted[list(errors)] = False
        plan = plan.only(chains, wanted)
    # 1. The checkpoints.
    touched = np.flatnonzero(plan.fold > 0)
    slot_of = np.full(len(chains.ids), -1, np.int64)
    slot_of[touched] = np.arange(len(touched))
    vectors, deleted = chains.bases(touched), chains.deleted[touched]
    folded, rows = _folded_rows(chains, plan)
    every = len(rows) == len(folded)
    index, vec = (chains.index, chains.vec) if every else (chains.index[rows], chains.vec[rows])
    chains.source.apply(vectors, deleted, index, slot_of[vec])
    good = finite_rows(vectors) | deleted
    if not good.all():
        for v in touched[~good].tolist():
            errors[v] = "the composed vector is not finite"
        wanted[touched[~good]] = False
        plan = plan.only(chains, wanted)
        vectors, deleted, touched = vectors[good], deleted[good], touched[good]
        folded, rows = _folded_rows(chains, plan)
    # 2. What is pending now.
    if plan.run is None:
        gone = folded
        keep = np.flatnonzero(~gone)
        new = replace(chains, index=chains.index[keep], vec=chains.vec[keep])
    else:
        new, gone = _merge(chains, plan.run, folded)
    fewer = chains.pending - np.bincount(new.vec, minlength=len(chains.ids))
    new = _sealed(new, chains, gone)
    forgotten = FoldedIds.none()
    if len(touched):
        new = _with_checkpoints(new, chains, touched, vectors, deleted)
        last = chains.start[touched] + plan.fold[touched] - 1
        new, forgotten = _with_folded_ids(new, chains, touched, last, rows, remember_ns)
    return Compacted(new, fewer, fewer > 0, chains.index[rows], forgotten, errors)


def _folded_rows(chains: Chains, plan: CompactionPlan) -> tuple[Bools, Int64s]:
    """The pending rows that go into checkpoints: as a mask over all pending rows, and by number."""
    n = len(chains.vec)
    if bool((plan.fold == chains.pending).all()):
        return np.ones(n, np.bool_), np.arange(n)
    inside = np.arange(n) - chains.start[:-1][chains.vec]
    folded = inside < plan.fold[chains.vec]
    return folded, np.flatnonzero(folded)


def _merge(chains: Chains, run: Int64s, folded: Bools) -> tuple[Chains, Bools]:
    """Merge the runs among the rows that are not folded.

    Args:
        chains: the chains before.
        run: the run of each pending row, -1 for none.
        folded: rows that go into checkpoints, and so into no run.

    Returns:
        The chains without folded rows and with each merged row where its run began, and a mask of
        the rows that went into a checkpoint or a merged row. Runs that cannot be merged without
        losing range (`merge_runs`) stay as they are.
    """
    n = len(folded)
    run = np.where(folded, -1, run)
    member = np.flatnonzero(run >= 0)
    first = np.ones(len(member), np.bool_)
    first[1:] = (run[member[1:]] != run[member[:-1]]) | (member[1:] != member[:-1] + 1)
    start = member[first]
    stop = np.concatenate([member[np.flatnonzero(first)[1:] - 1] + 1, member[-1:] + 1])
    several = stop - start > 1
    start, stop = start[several].astype(np.int64), stop[several].astype(np.int64)
    arrays, index = chains.source.arrays, chains.index
    # A run names at most as many dimensions as its deltas have values, and never more than all.
    wide = np.concatenate([[0], np.cumsum(np.diff(arrays.value_start)[index])])
    room = int(np.minimum(wide[stop] - wide[start], chains.dims).sum())
    _readonly(start, stop)
    merged, fine = merge_runs(arrays, index, start, stop, chains.dims, room)
    edges = np.zeros(n + 1, np.int64)
    edges[start[fine]] += 1
    edges[stop[fine]] -= 1
    gone = folded | (np.cumsum(edges[:-1]) > 0)
    keep = np.flatnonzero(~gone)
    if not fine.any():
        return replace(chains, index=index[keep], vec=chains.vec[keep]), gone
    order = np.argsort(np.concatenate([keep, start[fine]]), kind="stable")
    made = _merged_rows(chains, start[fine], stop[fine], _operation_columns(merged, fine))
    pending = DeltaRows(pa.concat_batches([take(chains.source.rows, index[keep]), made]))
    vec = np.concatenate([chains.vec[keep], chains.vec[start[fine]]])[order]
    return replace(chains, source=pending, index=order, vec=vec), gone


def _operation_columns(merged: DeltaArrays, fine: Bools) -> dict[str, pa.Array]:
    """The columns that say what merged deltas do.

    Args:
        merged: one delta per run, from `merge_runs`.
        fine: which of them may be used; only those are returned.
    """
    op = merged.op
    listed = np.isin(op, (KernelOp.SPARSE, KernelOp.ADD, KernelOp.AFFINE))
    valued = ~np.isin(op, (KernelOp.SCALE, KernelOp.OFFSET, KernelOp.DELETE))
    affine = op == KernelOp.AFFINE

    def lists(start: Int64s, flat: NDArray[Any], there: Bools) -> pa.Array:
        offsets = pa.array(start.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=pa.array(~there))

    columns = {
        "op": _NAME_OF.take(pa.array(op)),
        "indices": lists(merged.index_start, merged.indices, listed),
        "values": lists(merged.value_start, merged.values, valued),
        "factors": lists(merged.factor_start, merged.factors, affine),
        "factor": pa.array(merged.factor, mask=~(affine | (op == KernelOp.SCALE))),
        "amount": pa.array(merged.amount, mask=~(affine | (op == KernelOp.OFFSET))),
    }
    return {name: column.filter(pa.array(fine)) for name, column in columns.items()}


def _merged_rows(
    chains: Chains, start: Int64s, stop: Int64s, operation: dict[str, pa.Array]
) -> pa.RecordBatch:
    """Build the rows that stand for runs. A merged row has the id of its last delta, the newest
    time, and all ids it covers.
    Args:
        chains: the chains before merging.
        start: the first pending row of each run.
        stop: one behind the last.
        operation: the columns from `_operation_columns`."""
    source, index = chains.source, chains.index
    last = source.rows.take(pa.array(index[stop - 1]))
    times = source.time_ns
    since = pc.fill_null(source.rows.column("first_ns"), pa.scalar(2**63 - 1)).to_numpy()
    size = stop - start
    member = index[ranges(start, stop)[0]]
    cut = np.cumsum(size) - size
    texts, begin = source.ids
    ids = source.sizes[member]
    offsets = np.concatenate([[0], np.cumsum(np.add.reduceat(ids, cut))])
    made = {
        **operation,
        "time_ns": pa.array(np.maximum.reduceat(times[member], cut)),
        "first_ns": pa.array(np.minimum.reduceat(np.minimum(times, since)[member], cut)),
        "parent": pa.nulls(len(start), pa.string()),
        "metadata": pa.nulls(len(start), pa.string()),
        "covers": pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)),
            texts.take(pa.array(ranges(begin[member], begin[member + 1])[0])),
        ),
    }
    return pa.RecordBatch.from_arrays(
        [made.get(column.name, last.column(column.name)) for column in DELTAS], schema=DELTAS
    )


@kernel
def _newest_gone(vec: Int64s, time_ns: Int64s, gone: Bools, top: Int64s, last: Int64s) -> int:
    """Find per vector the newest time among rows that are gone, and the last row that has it.

    Args:
        vec: the vector of each pending row.
        time_ns: its time.
        gone: whether it went into a checkpoint or a merged row.
        top: written: the newest time per vector.
        last: written: that row; must start as -1, which stays where nothing is gone.

    Returns:
        How many rows were met that have the same time as the newest one before them.
    """
    tied = 0
    for k in range(len(vec)):
        v = vec[k]
        if gone[k] and (last[v] < 0 or time_ns[k] >= top[v]):
            tied += last[v] >= 0 and time_ns[k] == top[v]
            top[v] = time_ns[k]
            last[v] = k
    return tied


def _sealed(new: Chains, old: Chains, gone: Bools) -> Chains:
    """`new` with the seal of each chain moved behind the newest row that went into another (`gone`,
    over the rows of `old`). A seal never moves back."""
    top = np.full(len(old.ids), np.iinfo(np.int64).min, np.int64)
    last = np.full(len(old.ids), -1, np.int64)
    _readonly(gone)
    if _newest_gone(old.vec, old.time_ns, gone, top, last):
        # The last of them in the chain need not have the greatest key: it may be a child that its
        # parent holds back. A delta between the two belongs before the parent, so it is late.
        tied = np.flatnonzero(gone & (old.time_ns == top[old.vec]))
        tied = tied[pc.sort_indices(seal_keys(old.source.rows, old.index[tied])).to_numpy()]
        last[old.vec[tied]] = tied
    moved = np.flatnonzero((last >= 0) & (top >= old.sealed_ns))
    if not len(moved):
        return new
    sealed_ns = old.sealed_ns.copy()
    sealed_ns[moved] = top[moved]
    keys = seal_keys(old.source.rows, old.index[last[moved]])
    before = old.sealed_key.take(pa.array(moved, mask=top[moved] > old.sealed_ns[moved]))
    keys = pc.max_element_wise(keys, before)  # nulls are skipped: no seal, or one of an older time
    return replace(new, sealed_ns=sealed_ns, sealed_key=_put(old.sealed_key, moved, keys))


def _put(texts: pa.Array, where: Int64s, values: pa.Array) -> pa.Array:
    """A copy of `texts` with the entries at `where` replaced by `values`."""
    index = np.arange(len(texts))
    index[where] = len(texts) + np.arange(len(where))
    return pa.concat_arrays([texts, values]).take(pa.array(index))


def _with_checkpoints(
    new: Chains, old: Chains, touched: Int64s, vectors: Floats, deleted: Bools
) -> Chains:
    """`new` with the checkpoints of some chains replaced.

    Args:
        new: the chains after folding and merging.
        old: the chains before.
        touched: the vectors that were folded.
        vectors: their new checkpoints; zeroed here where deleted, so that equal states have equal
            bytes.
        deleted: their tombstones.
    """
    vectors[deleted] = 0.0
    tombstones, has_checkpoint = old.deleted.copy(), old.has_checkpoint.copy()
    tombstones[touched] = deleted
    has_checkpoint[touched] = True
    if len(touched) < len(old.ids):
        every = old.bases(np.arange(len(old.ids)))
        every[touched] = vectors
        vectors = every
    return replace(new, vectors=vectors, deleted=tombstones, has_checkpoint=has_checkpoint)


def _with_folded_ids(
    new: Chains,
    old: Chains,
    touched: Int64s,
    last: Int64s,
    rows: Int64s,
    remember_ns: int | None,
) -> tuple[Chains, FoldedIds]:
    """`new` with counts, times and remembered ids brought up to date.

    Args:
        new: the chains after folding and merging.
        old: the chains before.
        touched: the vectors that were folded.
        last: the last folded row of each of them.
        rows: all folded rows.
        remember_ns: the age (event time) beyond which ids are forgotten; None: never.

    Returns:
        The chains, and the ids that were forgotten.
    """
    folded_ns = old.folded_ns.copy()
    folded_ns[touched] = np.maximum(folded_ns[touched], old.effective_ns[last])
    fresh = _ids_of_rows(old, rows)
    folded_ids, forgotten = old.folded_ids.plus(fresh), FoldedIds.none()
    if remember_ns is not None:
        # Only chains that fold forget, and by their own newest delta: so the moment is in the data.
        newest = old.newest_ns
        forgets = np.zeros(len(old.ids), np.bool_)
        forgets[touched] = newest[touched] >= remember_ns - 2**63 + 1
        limit = np.where(forgets, np.where(forgets, newest, 0) - remember_ns, -(2**63))
        if bool(folded_ids.time_ns.min() < limit.max()):
            keep = folded_ids.time_ns >= limit[folded_ids.vec]
            if not keep.all():
                folded_ids, forgotten = folded_ids.where(keep), folded_ids.where(~keep)
    newest_ids = old.source.rows.column("delta_id").take(pa.array(old.index[last]))
    new = replace(
        new,
        folded_count=old.folded_count + np.bincount(fresh.vec, minlength=len(old.ids)),
        last_folded=_put(old.last_folded, touched, newest_ids),
        folded_ns=folded_ns,
        folded_ids=folded_ids,
    )
    return new, forgotten


def _ids_of_rows(chains: Chains, rows: Int64s) -> FoldedIds:
    """The ids that some pending rows stand for, with vectors and times; texts are shared, not
    copied."""
    index, vec, time_ns = chains.index, chains.vec, chains.time_ns
    if len(rows) < len(vec):
        index, vec, time_ns = index[rows], vec[rows], time_ns[rows]
    texts, begin = chains.source.ids
    if not chains.source.merged:
        return FoldedIds(texts, index, vec, time_ns)
    flat, owner = ranges(begin[index], begin[index + 1])
    return FoldedIds(texts, flat, vec[owner], time_ns[owner])
