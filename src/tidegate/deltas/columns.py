"""Many chains at once, as columns: the engine behind everything that has to do with deltas.

A `DeltaChain`, a shard in a Spark state and a bucket of a stored table are all `Chains`. In reading
order:

    DeltaRows     deltas as Arrow rows, and the plain arrays the kernels take, read off once
    chain order   by vector, then (time, origin, id), parents before children
    FoldedIds     the ids that went into checkpoints, to recognise duplicates
    Chains        checkpoints and pending deltas of many vectors; `compose` gives the vectors
    tables        chains as Arrow tables and back
    CompactionPlan, compact carry out a compaction plan

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
from tidegate.core.time import UNSET
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
from tidegate.errors import ConfigError, ContractError, StateError

__all__ = [
    "Chains",
    "Compacted",
    "CompactionPlan",
    "Composed",
    "DeltaRows",
    "FoldedIds",
    "chains_from_tables",
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
    """Mark arrays of ours read-only. Arrow's are, and a kernel would be compiled once for every
    mixture of the two."""
    for array in arrays:
        array.setflags(write=False)


# -- deltas as rows -------------------------------------------------------------------------------


def normalise(rows: pa.RecordBatch, time_ns: Int64s | None = None) -> pa.RecordBatch:
    """Rows in the schema `DELTAS`: missing columns are null, others are left out.

    Widening only: an index beyond 32 bits becomes one that is refused at admission. A column of a
    type that cannot be widened (a text as `values`) is a ContractError. With `time_ns`, that is the
    time of the deltas, whatever the rows say.
    """
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


def _cast(array: pa.Array, wanted: pa.Field) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == wanted.type:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if wanted.name == "indices" and not pa.types.is_null(array.type):
            sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
            flat = pc.fill_null(array.flatten().cast(pa.int64()), -1)
            flat = pa.array(np.clip(flat.to_numpy(), -1, 2**31 - 1).astype(np.int32))
            offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
            return pa.ListArray.from_arrays(offsets, flat, mask=array.is_null())
        return array.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ContractError(
            f"column {wanted.name} has type {array.type}, wants {wanted.type}"
        ) from error


_KINDS = list(OPERATIONS.values())
_OP_NAMES = pa.array([kind.op for kind in _KINDS])
_KERNEL_OPS = np.array([kind.kernel for kind in _KINDS], np.int8)
_WITHOUT_INDICES = np.array(
    [kind.kernel if (k := kind.kernel_without_indices) is None else k for kind in _KINDS], np.int8
)
_NAME_OF = pa.array(
    [
        next(kind.op for kind in _KINDS if code in (kind.kernel, kind.kernel_without_indices))
        for code in KernelOp
    ]
)
"""The name in a table of each kernel operation."""


class DeltaRows:
    """Deltas (rows of the schema `DELTAS`, in no order that matters) and what was read off them.

    Everything is read at most once, when first asked for.
    """

    def __init__(self, rows: pa.RecordBatch, usable_for: int | None = None) -> None:
        """`usable_for` says that all rows passed the check for so many dimensions before."""
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
        """The kernels' arrays, the times (0 where null), and verdicts that the texts imply."""
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
        """All ids the rows stand for, flat, and where each row's begin."""
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
        """Per row why it cannot be used (`DeltaVerdict`, OPEN if it can), and the offending number."""
        return self._checked(dims)[:2]

    def usable(self, dims: int) -> bool:
        """Whether every row can be used."""
        return self._checked(dims)[2]

    def _checked(self, dims: int) -> tuple[Int8s, Int64s, bool]:
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
        """Apply the rows `index` in order to `vectors[slot]`, in place; rows of one slot must be
        neighbours, and usable."""
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
        """These rows, and behind them others.

        What was read off them is joined, not read again: otherwise the first compose after an
        append would take several times as long as the one after it.
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
    """Where there is a value."""
    if column.null_count in (0, len(column)):
        return np.full(len(column), not column.null_count)
    valid: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _float_column(column: pa.Array) -> Floats:
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    out: Floats = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    return out.astype(np.float64, copy=False)


def _ragged(column: pa.Array, dtype: Any, hole: float) -> tuple[Int64s, NDArray[Any]]:
    """Offsets and flat values of a list column; null lists are empty, null items are `hole`."""
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
    """All three by vector, stable; and whether times grow strictly within every vector."""
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
    """Rearrange order[start:stop] so that no row stands before its parent; else as it was."""
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

    `index` are the rows meant; `vec` and `time_ns` the vector and time of each. Returns all three,
    sorted: vector, time, index.
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
    """Put rows of one vector and time in the order of (origin, id)."""
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
    """What orders deltas of one time, as one text: origin, then id. Of these rows."""
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
    time_ns: Int64s

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
        return np.arange(len(self.vec)) if self.index is None else self.index

    @property
    def nbytes(self) -> Int64s:
        """Measured bytes of each id: its text and its offset."""
        if not len(self.vec):
            return np.empty(0, np.int64)
        lengths = _lengths(self.texts)
        return (lengths if self.index is None else lengths[self.index]).astype(np.int64) + 4

    def plus(self, more: FoldedIds) -> FoldedIds:
        """These, and behind them others."""
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
        """Those of some of `total` vectors, which are renumbered in the order given."""
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
        """Ids and times by vector, stable; and where each vector's begin."""
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
    out = time_ns.copy()
    for k in range(1, len(out)):
        if vec[k] == vec[k - 1] and out[k] < out[k - 1]:
            out[k] = out[k - 1]
    return out


@kernel
def _raise(top: Int64s, vec: Int64s, time_ns: Int64s) -> None:
    for k in range(len(vec)):
        top[vec[k]] = max(top[vec[k]], time_ns[k])


@dataclass(frozen=True)
class Composed:
    """Vectors, one row each: `exists` is false where there is none (never made, or deleted)."""

    vectors: Floats
    exists: Bools
    deleted: Bools


@dataclass(frozen=True, eq=False)
class Chains:
    """Checkpoints and pending deltas of many vectors; one entry per vector unless said otherwise.

    Pending are the deltas `source.rows[index]`, by vector (`vec`), then in chain order.
    """

    dims: int
    ids: pa.Array
    lane: Int32s
    vectors: Floats
    """The checkpoints, one row each; zeros where there is none."""
    has_checkpoint: Bools
    deleted: Bools
    """The tombstone of the checkpoint."""
    folded_count: Int64s
    """Deltas folded into the checkpoint, ever."""
    last_folded: pa.Array
    """The id of the last folded delta."""
    folded_ns: Int64s
    """The time of the checkpoint: that of the last folded delta, never the time of folding."""
    sealed_ns: Int64s
    sealed_key: pa.Array
    source: DeltaRows
    index: Int64s
    """Rows of `source`, one entry per pending delta."""
    vec: Int64s
    """The vector of each pending delta."""
    folded_ids: FoldedIds

    def __post_init__(self) -> None:
        _readonly(self.index, self.vec, self.sealed_ns)

    @classmethod
    def empty(cls, dims: int, ids: pa.Array, lane: Int32s | None = None) -> Chains:
        """Empty chains for these vector ids."""
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
        """The first pending delta of each vector, and one more entry at the end."""
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
        """When a pending delta takes effect: its time, or that of the one it had to wait for."""
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
        """Vectors with a pending delta that cannot be applied, and why. DeltaAdmission lets none in, so
        these come from outside."""
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
        """`nbytes` of these vectors."""
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
        """The vectors of these chains (all), now or as they were at a time.

        A time before the checkpoint, or inside a merged delta, is a ConfigError: that history is
        gone, and no other vector is given in its place. A pending delta that cannot be applied is
        a StateError.
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
        """Which of these pending rows count at a time."""
        if len(folded_ns) and int(folded_ns.max()) > at_ns:
            raise ConfigError(
                "at_ns", at_ns, f"must be at or after the checkpoint at {int(folded_ns.max())} ns"
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
        """These chains, and behind them others."""
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
        """The chains of these vectors, in this order."""
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
        """The same chains with other pending deltas, which must be in chain order."""
        new = replace(self, source=source, index=index, vec=vec)
        if time_ns is not None:
            new._know_times(time_ns)
        return new

    def _know_times(self, time_ns: Int64s) -> None:
        _readonly(time_ns)
        self.__dict__["time_ns"] = time_ns

    def owned(self) -> Chains:
        """The same with a source of their own: nothing but their own rows is kept alive."""
        folded_ids = self.folded_ids.owned()
        if self._owns_source:
            return self if folded_ids is self.folded_ids else replace(self, folded_ids=folded_ids)
        source = DeltaRows(self.rows)
        return replace(self, source=source, index=np.arange(source.size), folded_ids=folded_ids)

    def rows_in_memory_order(self, which: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """These pending rows (ascending) and the vector of each. Those of a vector are in chain
        order; otherwise in the order of the source, from which they are copied several times as
        fast."""
        index, vec = self.index, self.vec
        if len(which) < len(index):
            index, vec = index[which], vec[which]
            _readonly(index, vec)
        elif self._owns_source:
            return self.source.rows, vec
        index, vec = in_memory_order(index, vec, self.source.size)
        return take(self.source.rows, index), vec


def join_chains(parts: list[tuple[Int64s, Chains]]) -> Chains:
    """Chains of several sets as one, each vector at the position named beside it."""
    parts = [(where, chains) for where, chains in parts if len(where)]
    if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(len(parts[0][0]))):
        return parts[0][1]
    joined = parts[0][1]
    for _, more in parts[1:]:
        joined = joined.plus(more)
    return joined.take(np.argsort(np.concatenate([where for where, _ in parts])))


# -- chains as tables -----------------------------------------------------------------------------


def checkpoint_schema(dims: int) -> pa.Schema:
    """One row per vector: its checkpoint (if `has_checkpoint`), its seal and the ids it covers."""
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
    """The checkpoints of these chains (`checkpoint_schema`). Their pending rows are the other half:
    `chains.rows`. Lossless: float64 and int64 nanoseconds as they are."""
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
    """The reverse of `checkpoint_table`. The rows `index` of `pending` must be by vector and in
    chain order; `vec` is the row in `checkpoints` of the vector of each. `checked` says that they
    can all be applied."""
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
    """The position of each wanted (id, lane) among these, -1 where it is not one of them.

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
    """What to do with each chain: fold its first deltas, merge runs of the rest.

    `fold[v]` is how many of its first rows go into the checkpoint. `run[r]` numbers the run that
    pending row r is merged into (rows of a run are neighbours), -1 for a row that stays.
    """

    fold: Int64s
    run: Int64s | None = None

    def changes(self, chains: Chains) -> Bools:
        """Per vector: would this change anything?"""
        out: Bools = self.fold > 0
        if self.run is not None and len(self.run):
            pair = (self.run[1:] >= 0) & (self.run[1:] == self.run[:-1])
            out[chains.vec[1:][pair]] = True
        return out

    def only(self, chains: Chains, which: Bools) -> CompactionPlan:
        """The same for these vectors alone; nothing happens to the others."""
        run = None if self.run is None else np.where(which[chains.vec], self.run, -1)
        return CompactionPlan(np.where(which, self.fold, 0), run)

    def among(self, which: Int64s, chains: Chains) -> CompactionPlan:
        """This plan for the vectors `which` of more chains, as a plan for all of those."""
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
    merged: Int64s
    """How many pending rows fewer."""
    changed: Bools
    folded_rows: Int64s
    """Rows of the source that went into checkpoints."""
    forgotten: FoldedIds
    """Ids of folded deltas that are no longer remembered."""
    errors: dict[int, str] = field(default_factory=dict)
    """Vectors that were left as they are, and why."""


def compact(chains: Chains, plan: CompactionPlan, remember_ns: int | None = None) -> Compacted:
    """Carry out a plan: fold prefixes into checkpoints, merge runs into one delta each.

    Build, validate, then hand over: a chain with a delta that cannot be applied, or whose result
    would not be finite, stays exactly as it was and its error is reported beside the others'
    results. The ids of folded deltas older than `remember_ns` are forgotten (None: never).
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
    """The pending rows that go into checkpoints: as a mask, and by number."""
    n = len(chains.vec)
    if bool((plan.fold == chains.pending).all()):
        return np.ones(n, np.bool_), np.arange(n)
    inside = np.arange(n) - chains.start[:-1][chains.vec]
    folded = inside < plan.fold[chains.vec]
    return folded, np.flatnonzero(folded)


def _merge(chains: Chains, run: Int64s, folded: Bools) -> tuple[Chains, Bools]:
    """Merge the runs of what is not folded. Returns the chains, with each merged row where its run
    began, and which rows went into something."""
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
    """The columns of merged deltas that say what the operation is, of those that may be used."""
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
    """The rows that stand for the runs: named and dated after their last delta."""
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
def _newest_gone(vec: Int64s, time_ns: Int64s, gone: Bools, top: Int64s, last: Int64s) -> None:
    """Per vector the newest time of the rows that are gone, and the last row that has it."""
    for k in range(len(vec)):
        if gone[k] and (last[vec[k]] < 0 or time_ns[k] >= top[vec[k]]):
            top[vec[k]] = time_ns[k]
            last[vec[k]] = k


def _sealed(new: Chains, old: Chains, gone: Bools) -> Chains:
    """Move the seal behind the newest row that went into another."""
    top = np.full(len(old.ids), np.iinfo(np.int64).min, np.int64)
    last = np.full(len(old.ids), -1, np.int64)
    _readonly(gone)
    _newest_gone(old.vec, old.time_ns, gone, top, last)
    moved = np.flatnonzero((last >= 0) & (top >= old.sealed_ns))
    if not len(moved):
        return new
    sealed_ns = old.sealed_ns.copy()
    sealed_ns[moved] = top[moved]
    keys = seal_keys(old.source.rows, old.index[last[moved]])
    return replace(new, sealed_ns=sealed_ns, sealed_key=_put(old.sealed_key, moved, keys))


def _put(texts: pa.Array, where: Int64s, values: pa.Array) -> pa.Array:
    """The texts, with those at `where` replaced."""
    index = np.arange(len(texts))
    index[where] = len(texts) + np.arange(len(where))
    return pa.concat_arrays([texts, values]).take(pa.array(index))


def _with_checkpoints(
    new: Chains, old: Chains, touched: Int64s, vectors: Floats, deleted: Bools
) -> Chains:
    """`new` with the checkpoints of the touched chains replaced."""
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
    """`new` with what the folded rows add to its bookkeeping, and the ids it forgets. `last` is the
    last folded row of each touched chain."""
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
    """The ids these pending rows stand for."""
    index, vec, time_ns = chains.index, chains.vec, chains.time_ns
    if len(rows) < len(vec):
        index, vec, time_ns = index[rows], vec[rows], time_ns[rows]
    texts, begin = chains.source.ids
    if not chains.source.merged:
        return FoldedIds(texts, index, vec, time_ns)
    flat, owner = ranges(begin[index], begin[index + 1])
    return FoldedIds(texts, flat, vec[owner], time_ns[owner])
