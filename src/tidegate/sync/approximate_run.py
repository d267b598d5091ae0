"""Messages into the approximate-time search: one, many, time passing, and the end.

Clock policy: event time only. A lane's clock is the newest stamp among its own messages (`NOW`),
so the outcome depends on the messages and their order, never on when or how they were handed over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64 as u  # an index that numba need not look at for being negative

from tidegate.core.numba import lean_inline as inline
from tidegate.core.numba import lean_kernel as kernel
from tidegate.sync.approximate_kernel import (
    _HIGHEST,
    _LOWEST,
    ABSENT,
    BOUND,
    C_JUMP_ALL,
    C_LEARN,
    C_QUEUE,
    C_RING,
    C_SIZE,
    C_TIMEOUT,
    C_TOPICS,
    C_VIRTUAL,
    DEADLINE,
    DISORDER,
    FIRST,
    FLAG,
    FLUSH,
    FRONT,
    GAP,
    GAP_BEFORE,
    GAPS,
    HEAD,
    INVERTED,
    JUMPED,
    JUMPS,
    LANE_SIZE,
    LAST,
    LEARN_GAPS,
    LOW,
    MOMENT,
    NEWEST,
    NEXT,
    NOW,
    OPEN,
    OVERFLOW,
    PIVOT,
    PIVOT_TIME,
    PRESENT,
    REACH,
    RECEIVED,
    SEEN,
    STARTED,
    STREAK,
    TAIL,
    TAKES_PART,
    TIME_JUMP,
    TOO_CLOSE,
    WAIT,
    _drop,
    _publish,
    search,
)  # fmt: skip
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
    SET_SIZE,
)

__all__ = ["finish", "push_one", "run"]


@kernel
def _learn(c: Any, at: Any, n: Any, gap: Any) -> None:
    """The smallest gap of the last one to two blocks, less an eighth for what was not seen yet."""
    current = gap if c[u(at + GAPS * n)] % LEARN_GAPS == 0 else min(c[u(at + GAP * n)], gap)
    c[u(at + GAPS * n)] += 1
    c[u(at + GAP * n)] = current
    if c[u(at + GAPS * n)] < LEARN_GAPS:
        return
    if c[u(at + GAPS * n)] % LEARN_GAPS == 0:
        c[u(at + GAP_BEFORE * n)] = current
    smallest = min(current, c[u(at + GAP_BEFORE * n)])
    c[u(at + BOUND * n)] = smallest - smallest // 8


@kernel
def _clear(
    cfg: Any, c: Any, g: Any, r: Any, drops: Any, cur: Any, j: Any, index: Any, amount: Any
) -> None:
    n = cfg[C_TOPICS]
    while c[u(LANE_SIZE + HEAD * n + j)] < c[u(LANE_SIZE + TAIL * n + j)]:
        _drop(cfg, c, g, r, drops, cur, j, np.int64(TIME_JUMP), index, amount)
    c[u(LANE_SIZE + FLAG * n + j)] = 0


@kernel
def _jump(
    cfg: Any, c: Any, g: Any, r: Any, drops: Any, cur: Any, i: Any, t: Any, row: Any, index: Any
) -> None:
    """The clock of topic `i` went back to `t`: what lies on the far side can match nothing more.

    With "all", so goes every topic whose newest held message lies too far ahead of `t`; one that
    has jumped already holds near stamps and keeps them.
    """
    n = cfg[C_TOPICS]
    at = LANE_SIZE + i
    distance = apart(c[u(at + NEWEST * n)], t)
    amount = np.int64(min(distance, np.uint64(_HIGHEST)))
    k = cur[1]
    drops[k, D_ROW] = row
    drops[k, D_REASON] = JUMPED
    drops[k, D_TOPIC] = i
    drops[k, D_INDEX] = index
    drops[k, D_AMOUNT] = amount
    drops[k, D_TIME] = t
    cur[1] = k + 1
    c[u(at + JUMPS * n)] += 1
    c[PIVOT] = 0  # the candidate, if any, holds a message of this topic
    _clear(cfg, c, g, r, drops, cur, i, index, amount)
    if cfg[C_JUMP_ALL] != 0:
        bound = np.uint64(cfg[C_SIZE + n + i])
        for j in range(n):
            last = c[u(LANE_SIZE + LAST * n + j)]
            held = c[u(LANE_SIZE + HEAD * n + j)] < c[u(LANE_SIZE + TAIL * n + j)]
            if held and last > t and apart(last, t) > bound:
                _clear(cfg, c, g, r, drops, cur, j, index, amount)
    c[u(at + NEWEST * n)] = t
    c[NOW] = t
    c[FIRST] = t
    if cfg[C_TIMEOUT] >= 0:
        for j in range(n):  # silence is measured anew on this side of the jump
            if c[u(LANE_SIZE + ABSENT * n + j)] != 0:
                c[u(LANE_SIZE + ABSENT * n + j)] = 0
                if c[u(LANE_SIZE + HEAD * n + j)] == c[u(LANE_SIZE + TAIL * n + j)]:
                    c[PRESENT] -= 1
        c[DEADLINE] = _LOWEST


@kernel
def _silences(cfg: Any, c: Any) -> None:
    """Mark the optional topics that have been silent for longer than the timeout."""
    n = cfg[C_TOPICS]
    deadline = np.int64(_HIGHEST)
    for j in range(n):
        at = LANE_SIZE + j
        if cfg[C_SIZE + 2 * n + j] == 0 or c[u(at + ABSENT * n)] != 0:
            continue
        since = c[FIRST]
        if c[u(at + STARTED * n)] != 0:
            since = max(since, c[u(at + LAST * n)])
        due = since + cfg[C_TIMEOUT] if since <= _HIGHEST - cfg[C_TIMEOUT] else np.int64(_HIGHEST)
        if c[NOW] > due:
            c[u(at + ABSENT * n)] = 1
            if c[u(at + HEAD * n)] == c[u(at + TAIL * n)]:
                c[PRESENT] += 1
        else:
            deadline = min(deadline, due)
    c[DEADLINE] = deadline


@kernel
def _search_again(
    cfg: Any, c: Any, g: Any, r: Any, sets: Any, drops: Any, cur: Any, lane: Any, index: Any
) -> None:
    search(cfg, c, g, r, sets, drops, cur, lane, index)


@kernel
def _pass_time(
    cfg: Any, c: Any, g: Any, r: Any, sets: Any, drops: Any, cur: Any, lane: Any, index: Any
) -> None:
    """Let go of waiting for optional topics whose time is up."""
    n = cfg[C_TOPICS]
    if c[NOW] > c[DEADLINE] or c[DEADLINE] == _LOWEST:
        _silences(cfg, c)
    waiting_for = c[WAIT] - 1
    if c[PIVOT] == 0:
        if c[PRESENT] == n:
            _search_again(cfg, c, g, r, sets, drops, cur, lane, index)
    elif c[u(LANE_SIZE + ABSENT * n + waiting_for)] != 0:
        _search_again(cfg, c, g, r, sets, drops, cur, lane, index)


@inline
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
    """One message comes. Returns where its row number is kept."""
    n = cfg[C_TOPICS]
    at = LANE_SIZE + i
    tail = c[u(at + TAIL * n)]
    if c[OPEN] == 0:
        c[OPEN] = 1
        c[NOW] = t
        c[FIRST] = t
        c[DEADLINE] = _LOWEST
    c[SEEN] += 1
    c[MOMENT] = t
    if c[u(at + STARTED * n)] != 0:
        last = c[u(at + LAST * n)]
        gap = np.int64(0)
        if t < last:
            c[u(at + DISORDER * n)] += 1
            c[u(at + INVERTED * n)] = tail
            far = c[u(at + NEWEST * n)]
            bound = cfg[C_SIZE + n + i]
            if bound >= 0 and far > t and apart(far, t) > np.uint64(bound):
                _jump(cfg, c, g, r, drops, cur, i, t, row, index)
        elif cfg[C_VIRTUAL] != 0:
            gap = np.int64(min(apart(t, last), np.uint64(_HIGHEST)))
            if gap < max(cfg[C_SIZE + i], c[u(at + BOUND * n)]):
                c[u(at + TOO_CLOSE * n)] += 1
        if cfg[C_LEARN] != 0:
            _learn(c, at, n, gap)
        c[u(at + NEWEST * n)] = max(c[u(at + NEWEST * n)], t)
    else:
        c[u(at + STARTED * n)] = 1
        if cfg[C_TIMEOUT] < 0:  # else the search says who takes part, each time anew
            c[u(at + TAKES_PART * n)] = 1
        c[u(at + NEWEST * n)] = t
    c[u(at + RECEIVED * n)] += 1
    c[NOW] = max(c[NOW], t)
    if cfg[C_TIMEOUT] >= 0:
        _pass_time(cfg, c, g, r, sets, drops, cur, lane, index)
    c[u(at + LAST * n)] = t
    place = i * cfg[C_RING] + (tail & (cfg[C_RING] - 1))
    g[u(place)] = t
    r[u(place)] = row
    c[u(at + TAIL * n)] = tail + 1
    was_empty = c[u(at + HEAD * n)] == tail
    if was_empty:
        c[u(at + FRONT * n)] = t
        if c[u(at + ABSENT * n)] == 0:
            c[PRESENT] += 1
    if c[u(at + ABSENT * n)] != 0:
        c[u(at + ABSENT * n)] = 0
        c[DEADLINE] = _LOWEST
    ready = False
    if c[PIVOT] != 0:
        if c[u(at + TAKES_PART * n)] == 0:  # back after a silence: search again with it
            c[PIVOT] = 0
            ready = True
        else:
            if c[u(at + NEXT * n)] == _LOWEST:
                if t < c[PIVOT_TIME]:
                    c[u(at + LOW * n)] = max(c[u(at + LOW * n)], t)
                else:
                    c[u(at + NEXT * n)] = t
            waited = c[WAIT] - 1
            if waited == i and t >= c[PIVOT_TIME]:
                c[REACH] = max(c[REACH], t)  # all before it was passed: it stands at the front
            ready = waited == i or c[u(LANE_SIZE + ABSENT * n + waited)] != 0
    elif was_empty:
        ready = c[PRESENT] == n
    while True:
        if ready:
            search(cfg, c, g, r, sets, drops, cur, lane, index)
        if tail + 1 - c[u(at + HEAD * n)] <= cfg[C_QUEUE]:
            break
        ready = c[PIVOT] != 0
        if ready:  # the candidate is undone, and what is left searched again
            c[PIVOT] = 0
            c[STREAK] += 1
        _drop(cfg, c, g, r, drops, cur, i, np.int64(OVERFLOW), index, np.int64(0))
        c[u(at + FLAG * n)] = 1
    return place


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
    known = np.int64(0)
    c, g, r = core[known], ring[known], rows[known]
    for k in range(len(topics)):
        lane, row = lanes[k], first_row + k
        if lane != known:
            known = lane
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
def finish(
    cfg: Any, core: Any, ring: Any, rows: Any, lanes: Any, sets: Any, drops: Any, cur: Any
) -> None:
    """Nothing more comes: publish what can be, then let go of the rest. The lanes are then empty.

    What has no successor cannot be beaten, so a candidate is published as it stands; an optional
    topic without a message is not waited for.
    """
    n = cfg[C_TOPICS]
    for lane in lanes:
        c, g, r = core[lane], ring[lane], rows[lane]
        c[MOMENT] = c[NOW]
        while True:
            if c[PIVOT] != 0:
                _publish(cfg, c, g, r, sets, cur, lane, np.int64(-1))
            for j in range(n):
                at = LANE_SIZE + j
                if cfg[C_SIZE + 2 * n + j] != 0 and c[u(at + ABSENT * n)] == 0:
                    c[u(at + ABSENT * n)] = 1
                    if c[u(at + HEAD * n)] == c[u(at + TAIL * n)]:
                        c[PRESENT] += 1
            _search_again(cfg, c, g, r, sets, drops, cur, lane, np.int64(-1))
            if c[PIVOT] == 0:
                break
        for j in range(n):
            while c[u(LANE_SIZE + HEAD * n + j)] < c[u(LANE_SIZE + TAIL * n + j)]:
                _drop(cfg, c, g, r, drops, cur, j, np.int64(FLUSH), np.int64(-1), np.int64(0))
        _forget(c, n)


@kernel
def _forget(c: Any, n: Any) -> None:
    """Back to an empty lane; counters, and the running numbers of messages, stay."""
    c[:SEEN] = 0
    c[LANE_SIZE + FRONT * n : LANE_SIZE + RECEIVED * n] = 0
