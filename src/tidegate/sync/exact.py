"""Sets of equal stamps, over int64 arrays, for all lanes in one call.

The open stamps of a lane stand in a ring, oldest first; each has a place (`slot`) with one row per
topic. A full stamp is a set, and what is older than it goes; more open stamps than the queue holds
and the oldest goes. Stamps in order cost O(topics) per message; one out of order is slid into its
place from the young end.

Clock policy: event time only, as in the approximate-time search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.core.numba import lean_kernel as kernel
from tidegate.sync.arithmetic import apart
from tidegate.sync.layout import (
    D_AMOUNT,
    D_INDEX,
    D_REASON,
    D_ROW,
    D_TIME,
    D_TOPIC,
    DROP_SIZE,
    M_CORE,
    M_COUNT,
    M_DROPS,
    M_END,
    M_RING,
    M_ROWS,
    M_SETS,
    M_SETTINGS,
    S_DECIDED,
    S_INDEX,
    S_LANE,
    S_SPREAD,
    S_TIME,
    SET_SIZE,
)

_LOWEST = -(2**63)
_HIGHEST = 2**63 - 1

# Settings: as far as they apply, the same places as for the approximate-time kernel.
(C_TOPICS, C_QUEUE, C_RING) = range(3)
C_SIZE = 11

(HEAD, COUNT, OPEN, NOW, MOMENT, SEEN, SETS, STEPS, LANE_SIZE) = range(9)
(NEWEST, STARTED, HELD, RECEIVED, MATCHED, DISORDER, TOO_CLOSE, JUMPS, DROPS) = range(9)
(TOO_OLD, OVERFLOW, REPLACED, TIME_JUMP, FLUSH, REASONS) = range(6)
TOPIC_SIZE = DROPS + REASONS
JUMPED = REASONS


@kernel
def _note(drops: Any, cur: Any, row: Any, why: Any, j: Any, index: Any, amount: Any,
          t: Any) -> None:  # fmt: skip
    k = cur[1]
    drops[k, D_ROW] = row
    drops[k, D_REASON] = why
    drops[k, D_TOPIC] = j
    drops[k, D_INDEX] = index
    drops[k, D_AMOUNT] = amount
    drops[k, D_TIME] = t
    cur[1] = k + 1


@kernel
def _let_go(cfg: Any, c: Any, g: Any, r: Any, drops: Any, cur: Any, why: Any, index: Any,
            amount: Any) -> None:  # fmt: skip
    """The oldest open stamp goes, with all its messages."""
    n, size = cfg[C_TOPICS], cfg[C_RING]
    place = c[HEAD] & (size - 1)
    slot = g[size + place]
    for j in range(n):
        row = r[slot * n + j]
        if row >= 0:
            _note(drops, cur, row, why, j, index, amount, g[place])
            c[LANE_SIZE + (DROPS + why) * n + j] += 1
            c[LANE_SIZE + HELD * n + j] -= 1
    c[HEAD] += 1
    c[COUNT] -= 1
    c[STEPS] += n


@kernel
def _find(cfg: Any, c: Any, g: Any, r: Any, t: Any) -> Any:
    """The slot of stamp `t`; opened in its place among the others if it is new."""
    n, size = cfg[C_TOPICS], cfg[C_RING]
    mask = size - 1
    behind = c[HEAD] + c[COUNT]
    at = behind
    while at > c[HEAD] and g[(at - 1) & mask] > t:
        at -= 1
    c[STEPS] += behind - at + 1
    if at > c[HEAD] and g[(at - 1) & mask] == t:
        return g[size + ((at - 1) & mask)]
    slot = g[size + (behind & mask)]  # the place behind the last one holds a free slot
    k = behind
    while k > at:
        g[k & mask] = g[(k - 1) & mask]
        g[size + (k & mask)] = g[size + ((k - 1) & mask)]
        k -= 1
    g[at & mask] = t
    g[size + (at & mask)] = slot
    for j in range(n):
        r[slot * n + j] = -1
    c[COUNT] += 1
    return slot


@kernel
def _jump(cfg: Any, c: Any, g: Any, r: Any, drops: Any, cur: Any, i: Any, t: Any, row: Any,
          index: Any) -> None:  # fmt: skip
    """The clock of topic `i` went back to `t`: open stamps on the far side will not fill."""
    n, mask = cfg[C_TOPICS], cfg[C_RING] - 1
    bound = np.uint64(cfg[C_SIZE + n + i])
    at = LANE_SIZE + i
    amount = np.int64(min(apart(c[at + NEWEST * n], t), np.uint64(_HIGHEST)))
    _note(drops, cur, row, np.int64(JUMPED), i, index, amount, t)
    c[at + JUMPS * n] += 1
    near = 0  # those before it are near: they are kept, in front
    while near < c[COUNT]:
        stamp = g[(c[HEAD] + near) & mask]
        if stamp > t and apart(stamp, t) > bound:
            break
        near += 1
    size = cfg[C_RING]
    for k in range(near, c[COUNT]):
        place = (c[HEAD] + k) & mask
        for j in range(n):
            held = r[g[size + place] * n + j]
            if held >= 0:
                _note(drops, cur, held, np.int64(TIME_JUMP), j, index, amount, g[place])
                c[LANE_SIZE + (DROPS + TIME_JUMP) * n + j] += 1
                c[LANE_SIZE + HELD * n + j] -= 1
    c[COUNT] = near
    c[at + NEWEST * n] = t
    c[NOW] = t


@kernel
def _arrive(
    cfg: Any,
    c: Any,
    g: Any,
    r: Any,
    sets: Any,
    drops: Any,
    cur: Any,
    lane: Any,
    i: Any,
    t: Any,
    row: Any,
    index: Any,
) -> Any:
    """One message comes. Returns where its row number is kept."""  # fmt: skip
    n, size = cfg[C_TOPICS], cfg[C_RING]
    at = LANE_SIZE + i
    if c[OPEN] == 0:
        c[OPEN] = 1
        c[NOW] = t
        c[HEAD] = 0
        for k in range(size):
            g[size + k] = k
    c[SEEN] += 1
    c[MOMENT] = t
    c[at + RECEIVED * n] += 1
    if c[at + STARTED * n] == 0:
        c[at + STARTED * n] = 1
        c[at + NEWEST * n] = t
    elif t < c[at + NEWEST * n]:
        c[at + DISORDER * n] += 1
        bound = cfg[C_SIZE + n + i]
        if bound >= 0 and apart(c[at + NEWEST * n], t) > np.uint64(bound):
            _jump(cfg, c, g, r, drops, cur, i, t, row, index)
    c[at + NEWEST * n] = max(c[at + NEWEST * n], t)
    c[NOW] = max(c[NOW], t)
    slot = _find(cfg, c, g, r, t)
    before = r[slot * n + i]
    if before >= 0:
        _note(drops, cur, before, np.int64(REPLACED), i, index, np.int64(0), t)
        c[at + (DROPS + REPLACED) * n] += 1
        c[at + HELD * n] -= 1
    r[slot * n + i] = row
    c[at + HELD * n] += 1
    c[STEPS] += n
    full = True
    for j in range(n):
        if r[slot * n + j] < 0:
            full = False
            break
    if full:
        k = cur[0]
        for j in range(n):
            sets[k, j] = r[slot * n + j]
            sets[k, n + j] = t
            r[slot * n + j] = -1
            c[LANE_SIZE + MATCHED * n + j] += 1
            c[LANE_SIZE + HELD * n + j] -= 1
        sets[k, 2 * n + S_INDEX] = index
        sets[k, 2 * n + S_SPREAD] = 0
        sets[k, 2 * n + S_TIME] = t
        sets[k, 2 * n + S_LANE] = lane
        sets[k, 2 * n + S_DECIDED] = t
        cur[0] = k + 1
        c[SETS] += 1
        while c[COUNT] > 0 and g[c[HEAD] & (size - 1)] <= t:  # the set's own place is empty by now
            _let_go(cfg, c, g, r, drops, cur, np.int64(TOO_OLD), index, np.int64(0))
    if c[COUNT] > cfg[C_QUEUE]:
        _let_go(cfg, c, g, r, drops, cur, np.int64(OVERFLOW), index, np.int64(0))
    return slot * n + i


@kernel
def run(
    cfg: Any,
    core: Any,
    ring: Any,
    rows: Any,
    lanes: Any,
    topics: Any,
    times: Any,
    first_row: Any,
    places: Any,
    sets: Any,
    drops: Any,
    cur: Any,
) -> None:
    """Messages in arrival order; message k is row `first_row + k`.

    Results go to `sets` and `drops`, counted by `cur`; `places` says where each row number is kept.
    """
    for k in range(len(topics)):
        lane, row = lanes[k], first_row + k
        c, g, r = core[lane], ring[lane], rows[lane]
        places[k] = _arrive(cfg, c, g, r, sets, drops, cur, lane, topics[k], times[k], row, row)


@kernel
def push_one(memory: Any, i: Any, t: Any) -> Any:
    """One message for the only lane, whose arrays lie in one (`Memory`): handing over eight of them
    costs more than the search. Returns sets + 2**32 * drops, mostly 0."""
    cfg = memory[memory[M_SETTINGS] : memory[M_CORE]]
    c = memory[memory[M_CORE] : memory[M_RING]]
    g = memory[memory[M_RING] : memory[M_ROWS]]
    r = memory[memory[M_ROWS] : memory[M_COUNT]]
    cur = memory[memory[M_COUNT] : memory[M_SETS]]
    sets = memory[memory[M_SETS] : memory[M_DROPS]].reshape(-1, 2 * cfg[C_TOPICS] + SET_SIZE)
    drops = memory[memory[M_DROPS] : memory[M_END]].reshape(-1, DROP_SIZE)
    cur[0] = 0
    cur[1] = 0
    row = c[SEEN]
    _arrive(cfg, c, g, r, sets, drops, cur, 0, i, t, row, row)
    return cur[0] + (cur[1] << 32)


@kernel
def finish(cfg: Any, core: Any, ring: Any, rows: Any, lanes: Any, sets: Any, drops: Any,
           cur: Any) -> None:  # fmt: skip
    """Nothing more comes: open stamps will not fill. The lanes are then empty; counters stay."""
    n = cfg[C_TOPICS]
    for lane in lanes:
        c = core[lane]
        while c[COUNT] > 0:
            _let_go(cfg, c, ring[lane], rows[lane], drops, cur, np.int64(FLUSH), np.int64(-1),
                    np.int64(0))  # fmt: skip
        c[:SEEN] = 0
        c[LANE_SIZE : LANE_SIZE + RECEIVED * n] = 0
