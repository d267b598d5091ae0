"""The order in which deltas stand in their chains: by time, then origin and id, but never before
their parents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import frozen, kernel
from tidegate.core.outcomes import Int64s
from tidegate.deltas.numbering import Ids

__all__ = ["arrange"]


@kernel
def _by_vector(
    vec: Int64s, time_ns: Int64s, place: Int64s, vectors: int
) -> tuple[Int64s, Int64s, Int64s, bool]:
    """All three by vector, otherwise as they came; and whether times grow within every vector."""
    seat = np.zeros(vectors + 1, np.int64)
    for r in range(len(vec)):
        seat[vec[r] + 1] += 1
    for v in range(vectors):
        seat[v + 1] += seat[v]
    new_vec = np.empty(len(vec), np.int64)
    for v in range(vectors):
        for k in range(seat[v], seat[v + 1]):
            new_vec[k] = v
    first = seat[:-1].copy()
    new_time, new_place = np.empty(len(vec), np.int64), np.empty(len(vec), np.int64)
    grows = True
    for r in range(len(vec)):
        v = vec[r]
        k = seat[v]
        seat[v] += 1
        new_place[k] = place[r]
        new_time[k] = time_ns[r]
        grows = grows and (k == first[v] or new_time[k] > new_time[k - 1])
    return new_vec, new_time, new_place, grows


@kernel
def _causal(start: int, stop: int, parent: Int64s, order: Int64s, done: NDArray[np.bool_]) -> None:
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
    for j in range(waiting):  # a cycle: only in rows nobody admitted
        out[n] = aside[j]
        n += 1
    order[start:stop] = out


def arrange(
    vec: Int64s, time_ns: Int64s, rows: pa.RecordBatch, place: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """The rows of these places in chain order: by vector, then (time, origin, id), parents before
    children. Gives vector, time and place of each."""
    vectors = int(vec.max()) + 1 if len(vec) else 0
    parents = rows.column("parent")
    named = parents.null_count < len(parents)
    new_vec, new_time, new_place, grows = _by_vector(
        frozen(vec), frozen(time_ns), frozen(place), vectors
    )
    if grows and not named:
        return new_vec, new_time, new_place
    order = np.lexsort((time_ns, vec))
    if not grows:
        _ties(vec, time_ns, rows, place, order)
    if named:
        _parents_first(vec, rows, place, order)
    return new_vec, time_ns[order], place[order]


def _ties(vec: Int64s, time_ns: Int64s, rows: pa.RecordBatch, place: Int64s, order: Int64s) -> None:
    """Put rows of one vector and time in the order of (origin, id)."""
    v, t = vec[order], time_ns[order]
    same = (v[1:] == v[:-1]) & (t[1:] == t[:-1])
    if not same.any():
        return
    member = np.zeros(len(order), np.bool_)
    member[1:] |= same
    member[:-1] |= same
    places = np.flatnonzero(member)
    run = np.cumsum(np.concatenate([[True], ~same]))[places]
    chosen = pa.array(place[order[places]])
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
    order[places] = order[places][ranked]


def _parents_first(vec: Int64s, rows: pa.RecordBatch, place: Int64s, order: Int64s) -> None:
    chosen = pa.array(place)
    ids, parents = rows.column("delta_id").take(chosen), rows.column("parent").take(chosen)
    if parents.null_count == len(parents):
        return
    ident, parent, numbering = Ids.of(vec, ids, parents)
    row_of = np.full(len(numbering), -1, np.int64)
    named = np.flatnonzero(ident >= 0)
    row_of[ident[named]] = named
    parent_row = np.where(parent >= 0, row_of[np.maximum(parent, 0)], -1)
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    wrong = (parent_row >= 0) & (place_of[np.maximum(parent_row, 0)] > place_of)
    if not wrong.any():
        return
    ordered = vec[order]
    done = np.zeros(len(order), np.bool_)
    for v in np.unique(vec[wrong]):
        start, stop = np.searchsorted(ordered, [v, v + 1])
        _causal(int(start), int(stop), frozen(parent_row), order, done)
