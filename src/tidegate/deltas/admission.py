"""Which deltas may join their chains.

A delta is admitted once (by id, whether the first is still pending or long folded), after its
parent, and only behind what was already folded. One that names an unknown parent waits: until the
parent comes, or until its chain has moved on by more than the wait limit. All of it is decided row
by row in arrival order, per vector, so that no cutting of the input can change it.

Clock policy: event time only. The wait limit is measured in the times of the vector's own deltas.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
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
    "admit",
]

OPEN, ACCEPTED, DUPLICATE, LATE, WAITING, ORPHAN, CROWDED, REFUSED = range(8)
"""What became of a row. OPEN: its chain was full, it must be offered again."""

FREE, BEHIND, HELD, SEALED = range(4)
"""Where an id is: nowhere; in its chain behind the seal; waiting; folded, merged or before it."""

Codes = NDArray[np.int8]
Numbers = NDArray[np.int32]


@kernel
def admit(
    rows: Int64s,
    vec: Int64s,
    time_ns: Int64s,
    ident: Numbers,
    parent: Numbers,
    tied: NDArray[np.bool_],
    sealed_ns: Int64s,
    room: Int64s,
    wait_ns: int,
    max_waiting: int,
    known: Codes,
    status: Codes,
    decided: Int64s,
    behind_ns: Int64s,
    accepted: Int64s,
) -> int:
    """Offer `rows` in this order; fills `status`, `decided` (the row that settled it),
    `behind_ns` (how late a late one is) and `accepted` (row numbers in the order of admission),
    and gives the number accepted. `parent` is empty if nobody has one.

    `room[v]` is how many more chain v takes now; `known[id]` says where an id is (FREE if nowhere);
    `tied` rows have the time of the seal and stand before it. A child whose parent stands behind
    the seal comes behind it too, whatever its own clock says.
    """
    vectors = len(sealed_ns)
    first = np.full(vectors, -1, np.int64)
    last = np.full(vectors, -1, np.int64)
    held = np.zeros(vectors, np.int64)
    behind = np.full(len(parent), -1, np.int64)
    named = len(parent) > 0
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
        if named and parent[r] >= 0 and (known[parent[r]] == FREE or known[parent[r]] == HELD):
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
            if early and (not named or parent[joins] < 0 or known[parent[joins]] != BEHIND):
                status[joins] = LATE
                behind_ns[joins] = sealed_ns[v] - time_ns[joins]
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
                        # Its parent is here: it waits for room only, and is offered again.
                        decided[w] = now
                        status[w] = OPEN
                        known[ident[w]] = FREE
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
