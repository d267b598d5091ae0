"""The tables of a stage's state: some vectors out of them, and the rest as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import first_rows
from tidegate.core.numba import frozen, kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.state import LANE
from tidegate.deltas.codec import chains_from, checkpoint_schema, locate
from tidegate.deltas.columns import Chains
from tidegate.deltas.pool import Pool
from tidegate.deltas.rows import DELTAS
from tidegate.deltas.taking import take_rows

__all__ = [
    "by_appearance",
    "distinct",
    "latest",
    "named",
    "taken_out",
    "together",
    "without_covered",
]

Bools = NDArray[np.bool_]
Tables = dict[str, pa.RecordBatch | None]


@kernel
def _appearing(code: Int64s, codes: int) -> Int64s:
    number = np.full(codes, -1, np.int64)
    out = np.empty(len(code), np.int64)
    count = 0
    for r in range(len(code)):
        if number[code[r]] < 0:
            number[code[r]] = count
            count += 1
        out[r] = number[code[r]]
    return out


def by_appearance(code: Int64s, codes: int) -> Int64s:
    """The codes numbered anew, in the order in which they first appear."""
    return _appearing(frozen(code), codes)


def distinct(code: Int64s, codes: int) -> tuple[Int64s, Int64s]:
    """Of each code that occurs, in order, the first row; and of each row the place of its code."""
    if codes > 4 * len(code):  # a table of all of them would be mostly empty
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        return first, place.astype(np.int64)
    first = first_rows(code, codes)
    there = first >= 0
    if there.all():
        return first, code
    return first[there], (np.cumsum(there) - 1)[code]


def named(vec: Int64s, vectors: int) -> Int64s:
    """The vectors that occur, each once."""
    there = np.zeros(vectors, np.bool_)
    there[vec] = True
    return np.flatnonzero(there)


@kernel
def latest(vec: Int64s, decided: Int64s, rows: Int64s, vectors: int) -> Int64s:
    """Per vector when the last of these rows was decided; -1 if none is of it."""
    out = np.full(vectors, -1, np.int64)
    for r in rows:
        out[vec[r]] = max(out[vec[r]], decided[r])
    return out


@kernel
def _grouped(vec: Int64s, vectors: int) -> tuple[Int64s, Int64s]:
    """Row numbers by vector, otherwise as they came, and the vector of each."""
    seat = np.zeros(vectors + 1, np.int64)
    for v in vec:
        seat[v + 1] += 1
    for v in range(vectors):
        seat[v + 1] += seat[v]
    order, owner = np.empty(len(vec), np.int64), np.empty(len(vec), np.int64)
    for r in range(len(vec)):
        k = seat[vec[r]]
        seat[vec[r]] += 1
        order[k] = r
        owner[k] = vec[r]
    return order, owner


def without_covered(table: pa.RecordBatch) -> pa.RecordBatch:
    """The table of chains as if they had folded nothing that could come again."""
    for name in ("covered", "covered_ns"):
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.nulls(table.num_rows, field.type))
    return table


def taken_out(
    dims: int,
    table: pa.RecordBatch,
    pending: pa.RecordBatch | None,
    ids: pa.Array,
    lane: Int32s,
) -> tuple[Chains, Int64s, Tables]:
    """Split the state into the wanted vectors (in that order, new ones empty) and the rest. Gives
    the place of each wanted vector in the table, too (-1: it is new)."""
    at = locate(table.column("vector_id"), table.column(LANE).to_numpy(), ids, lane)
    found = np.flatnonzero(at >= 0)
    mine = np.zeros(table.num_rows, np.bool_)
    mine[at[found]] = True
    chosen = table.select(checkpoint_schema(dims).names)
    if not (len(found) == len(at) == len(mine) and (at == np.arange(len(at))).all()):
        chosen = chosen.take(pa.array(at[found]))
    rest: Tables = {"chains": _others(table, mine), "pending": pending}
    none = pa.RecordBatch.from_pylist([], schema=DELTAS)
    old = chains_from(chosen, none, np.empty(0, np.int64), lane[found])
    if pending is not None and pending.num_rows:
        whose = locate(
            ids.take(pa.array(found)), lane[found],
            pending.column("vector_id"), pending.column(LANE).to_numpy(),
        )  # fmt: skip
        wanted = whose >= 0
        rows = pending.select(DELTAS.names)
        if not wanted.all():
            rows, whose = take_rows(rows, np.flatnonzero(wanted)), whose[wanted]
        # Within a vector they stand in chain order; the vectors themselves may be mixed.
        place, vec = _grouped(frozen(whose), len(found))
        old = replace(old, pool=Pool(rows), place=place, vec=vec)
        rest["pending"] = _others(pending, wanted)
    new = np.flatnonzero(at < 0)
    fresh = Chains.of(dims, ids.take(pa.array(new)), lane[new])
    return together([(found, old), (new, fresh)]), at, rest


def _others(table: pa.RecordBatch, mine: Bools) -> pa.RecordBatch:
    return table.slice(0, 0) if mine.all() else take_rows(table, np.flatnonzero(~mine))


def together(parts: list[tuple[Int64s, Chains]]) -> Chains:
    """Chains of several sets as one, each vector at the place named beside it."""
    parts = [(where, chains) for where, chains in parts if len(where)]
    if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(len(parts[0][0]))):
        return parts[0][1]
    joined = parts[0][1]
    for _, more in parts[1:]:
        joined = joined.plus(more)
    return joined.take(np.argsort(np.concatenate([where for where, _ in parts])))
