"""Which deltas may join their chains, and in which order chains stand.

A delta is admitted once (by id, whether the first is still pending or long folded), after its
parent, and only behind what was already folded. One that names an unknown parent waits: until the
parent comes, or until its chain has moved on by more than the wait limit. All of it is decided row
by row in arrival order, per vector, so that no cutting of the input can change it.

Clock policy: event time only. The wait limit is measured in the times of the vector's own deltas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.deltas.rows import frozen
from tidegate.core.jit import kernel
from tidegate.core.model import Int64s
from tidegate.core.time import MIN_NS

__all__ = [
    "ACCEPTED",
    "BEHIND",
    "CROWDED",
    "DUPLICATE",
    "LATE",
    "OPEN",
    "ORPHAN",
    "REFUSED",
    "SEALED",
    "WAITING",
    "Ids",
    "admit",
    "arrange",
]

OPEN, ACCEPTED, DUPLICATE, LATE, WAITING, ORPHAN, CROWDED, REFUSED = range(8)
"""What became of a row. OPEN: its chain was full, it must be offered again."""

FREE, BEHIND, HELD, SEALED = range(4)
"""Where an id is: nowhere; in its chain behind the seal; waiting; folded, merged or before it."""

Codes = NDArray[np.int8]


@kernel
def admit(
    rows: Int64s,
    vec: Int64s,
    time_ns: Int64s,
    ident: Int64s,
    parent: Int64s,
    tied: NDArray[np.bool_],
    sealed_ns: Int64s,
    room: Int64s,
    wait_ns: int,
    max_waiting: int,
    known: Codes,
    status: Codes,
    decided: Int64s,
    accepted: Int64s,
) -> int:
    """Offer `rows` in this order; fills `status`, `decided` (the row that settled it) and
    `accepted` (row numbers in the order of admission), and gives the number accepted.

    `room[v]` is how many more chain v takes now; `known[id]` says where an id is (FREE if nowhere);
    `tied` rows have the time of the seal and stand before it. A child whose parent stands behind
    the seal comes behind it too, whatever its own clock says.
    """
    vectors = len(sealed_ns)
    first = np.full(vectors, -1, np.int64)
    last = np.full(vectors, -1, np.int64)
    held = np.zeros(vectors, np.int64)
    behind = np.full(len(vec), -1, np.int64)
    count = 0
    for k in range(len(rows)):
        r = rows[k]
        v = vec[r]
        if room[v] <= 0:
            status[r] = OPEN
            continue
        now = decided[r]
        before = -1
        w = first[v]
        while w >= 0:
            after = behind[w]
            # Never `time - wait` below the first time there is: it would wrap around.
            if time_ns[r] >= MIN_NS + wait_ns and time_ns[w] < time_ns[r] - wait_ns:
                status[w] = ORPHAN
                decided[w] = now
                known[ident[w]] = FREE
                held[v] -= 1
                if before < 0:
                    first[v] = after
                else:
                    behind[before] = after
                if after < 0:
                    last[v] = before
            else:
                before = w
            w = after
        if known[ident[r]] != FREE:
            status[r] = DUPLICATE
            continue
        if parent[r] >= 0 and (known[parent[r]] == FREE or known[parent[r]] == HELD):
            if held[v] >= max_waiting:
                status[r] = CROWDED
                continue
            status[r] = WAITING
            known[ident[r]] = HELD
            held[v] += 1
            if first[v] < 0:
                first[v] = r
            else:
                behind[last[v]] = r
            last[v] = r
            continue
        joins = r
        while joins >= 0:
            decided[joins] = now
            early = time_ns[joins] < sealed_ns[v] or tied[joins]
            if early and (parent[joins] < 0 or known[parent[joins]] != BEHIND):
                status[joins] = LATE
                known[ident[joins]] = FREE
            else:
                status[joins] = ACCEPTED
                known[ident[joins]] = BEHIND
                accepted[count] = joins
                count += 1
                room[v] -= 1
            joins = -1
            before = -1
            w = first[v]
            while w >= 0:
                if known[parent[w]] == BEHIND or known[parent[w]] == SEALED:
                    if room[v] <= 0:
                        decided[w] = now  # offered again once there is room
                        break
                    joins = w
                    held[v] -= 1
                    if before < 0:
                        first[v] = behind[w]
                    else:
                        behind[before] = behind[w]
                    if behind[w] < 0:
                        last[v] = before
                    break
                before = w
                w = behind[w]
    return count


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


def arrange(vec: Int64s, rows: pa.RecordBatch) -> Int64s:
    """Row numbers in chain order: by vector, then (time, origin, id), parents before children."""
    time_ns = rows.column("time_ns").to_numpy(zero_copy_only=False)
    order: Int64s = np.lexsort((time_ns, vec))
    v, t = vec[order], time_ns[order]
    same = (v[1:] == v[:-1]) & (t[1:] == t[:-1])
    if same.any():
        member = np.zeros(len(order), np.bool_)
        member[1:] |= same
        member[:-1] |= same
        places = np.flatnonzero(member)
        run = np.cumsum(np.concatenate([[True], ~same]))[places]
        chosen = pa.array(order[places])
        keys = pa.table(
            {
                "run": run,
                "origin": pc.fill_null(rows.column("origin"), "").take(chosen),
                "id": rows.column("delta_id").take(chosen),
            }
        )
        ranked = pc.sort_indices(
            keys, sort_keys=[("run", "ascending"), ("origin", "ascending"), ("id", "ascending")]
        ).to_numpy()
        order[places] = order[places][ranked]
    parents = rows.column("parent")
    if parents.null_count < len(parents):
        _parents_first(vec, rows, order)
    return order


def _parents_first(vec: Int64s, rows: pa.RecordBatch, order: Int64s) -> None:
    vectors = int(vec.max()) + 1 if len(vec) else 0
    ids, parents = rows.column("delta_id"), rows.column("parent")
    ident, parent, numbering = Ids.of(vec, ids, parents, vectors)
    row_of = np.full(len(numbering), -1, np.int64)
    row_of[ident] = np.arange(len(ident))
    parent_row = np.where(parent >= 0, row_of[np.maximum(parent, 0)], -1)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    wrong = (parent_row >= 0) & (place[np.maximum(parent_row, 0)] > place)
    if not wrong.any():
        return
    ordered = vec[order]
    done = np.zeros(len(order), np.bool_)
    for v in np.unique(vec[wrong]):
        start, stop = np.searchsorted(ordered, [v, v + 1])
        _causal(int(start), int(stop), frozen(parent_row), order, done)


@dataclass(frozen=True)
class Ids:
    """Small numbers for (vector, id) pairs."""

    words: pa.Array
    seats: Int64s
    """Of each word the one vector that uses it; or, if words are shared, the sorted pairs."""
    shared: bool
    vectors: int

    @classmethod
    def of(cls, vec: Int64s, ids: pa.Array, parents: pa.Array, vectors: int) -> _Numbered:
        """Numbers for these ids and parents (-1: none), and the numbering itself."""
        if parents.null_count == len(parents):
            parents = parents[:0]
        both = pa.concat_arrays([ids, parents]).dictionary_encode()
        code = pc.fill_null(both.indices, -1).to_numpy().astype(np.int64)
        owner = np.concatenate([vec, vec[: len(parents)]])
        named = code >= 0
        seats = np.full(len(both.dictionary), -1, np.int64)
        seats[code[named]] = owner[named]
        if bool((seats[code[named]] == owner[named]).all()):
            # Every id belongs to one vector (the usual case): its word number will do.
            numbering = cls(both.dictionary, seats, False, vectors)
            return code[: len(vec)], _parents(code, len(vec)), numbering
        pair = np.where(named, code * vectors + owner, -1)
        pairs, numbers = np.unique(pair, return_inverse=True)
        numbers = numbers.astype(np.int64)
        if pairs[0] == -1:
            numbers -= 1
            pairs = pairs[1:]
        numbering = cls(both.dictionary, pairs, True, vectors)
        return numbers[: len(vec)], _parents(numbers, len(vec)), numbering

    def __len__(self) -> int:
        return len(self.seats)

    def find(self, vec: Int64s, ids: pa.Array) -> Int64s:
        """The numbers of those of these pairs that have one."""
        place = pc.index_in(ids, self.words)
        hit = place.is_valid().to_numpy(zero_copy_only=False)
        code = pc.fill_null(place, 0).to_numpy().astype(np.int64)[hit]
        owner = vec[hit]
        if not self.shared:
            own: Int64s = code[self.seats[code] == owner]
            return own
        pair = code * self.vectors + owner
        at = np.minimum(np.searchsorted(self.seats, pair), len(self.seats) - 1)
        found: Int64s = at[self.seats[at] == pair].astype(np.int64)
        return found


def _parents(numbers: Int64s, rows: int) -> Int64s:
    """The second half of the numbers; nobody has a parent if it was left out."""
    return numbers[rows:] if len(numbers) > rows else np.full(rows, -1, np.int64)


_Numbered = tuple[Int64s, Int64s, Ids]
