"""The search of the approximate-time synchroniser, over int64 arrays, for all lanes in one call.

The rules (spec/sync.md) move one front message at a time from a queue into a past buffer and back.
This kernel gives the same sets at the same input without moving anything. Why that is allowed:

- While a candidate lives, only messages older than the pivot's leave their queue, oldest front
  first. So a topic's part in the search is two numbers: `LOW`, the newest stamp it has to pass,
  and `NEXT`, its first message at or after the pivot (if it came already). Once `LOW` is passed,
  `NEXT` stands at the front, and the end of the current interval (`REACH`) is the largest of those.
- Fronts up to `limit = candidate start + (reach - candidate end) * (1 + age penalty)` are not
  better than the candidate. Passing a topic can only raise the reach and so the limit: passing all
  topics with `LOW <= limit` until nothing changes gives what single moves would have given.
- If a topic has nothing beyond the limit, its queue runs empty: of these the one with the smallest
  (LOW, topic) first. That topic is waited for (`WAIT`); a message of any other one starts nothing.
- If every topic has something beyond the limit, those messages are the better candidate. What lies
  before them is gone, so each message is stepped over once in its life.
- A queue is a ring; its head is the candidate's member, so "restore the past" is doing nothing.

The cost per message is one scan over the topics (times the rounds in which the reach grows),
whatever the queue size. `STEPS` counts them, and the tests hold it to that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64 as u  # an index that numba need not look at for being negative

from tidegate.core.numba import lean_inline as inline
from tidegate.core.numba import lean_kernel as kernel
from tidegate.sync.arithmetic import apart, later, scaled
from tidegate.sync.layout import (
    D_AMOUNT,
    D_INDEX,
    D_REASON,
    D_ROW,
    D_TIME,
    D_TOPIC,
    S_DECIDED,
    S_INDEX,
    S_LANE,
    S_SPREAD,
    S_TIME,
)

_LOWEST = -(2**63)
_HIGHEST = 2**63 - 1

# Settings: scalars, then per topic the lower bound, the jump bound (-1: off), optional (0 or 1).
(C_TOPICS, C_QUEUE, C_RING, C_NUMERATOR, C_SHIFT, C_INTERVAL, C_JUMP_ALL) = range(7)
(C_TIMEOUT, C_LEARN, C_PATIENCE, C_VIRTUAL, C_SIZE) = range(7, 12)

# Per lane. Topic numbers are stored plus one, so that a lane of zeros is an empty lane.
(PIVOT, WAIT, START, END, PIVOT_TIME, REACH, PRESENT, OPEN, NOW, MOMENT, FIRST) = range(11)
(DEADLINE, REJECTED, REJECT_START, REJECT_END, REJECT_GAP) = range(11, 16)
(EQUAL_STAMP, EQUAL_STREAK, STREAK, HURRY, SEEN, SETS, STEPS, LANE_SIZE) = range(16, 24)
# An emptied lane keeps what is counted: SEEN and behind, RECEIVED and behind; and its ring's place.

# Per lane and topic: field f of topic j lies at LANE_SIZE + f * topics + j.
(HEAD, TAIL, FRONT, LOW, NEXT, LAST, NEWEST, FLAG, TAKES_PART, ABSENT) = range(10)
(INVERTED, STARTED, BOUND, GAP, GAP_BEFORE, GAPS, RECEIVED, MATCHED) = range(10, 18)
(DISORDER, TOO_CLOSE, JUMPS, DROPS) = range(18, 22)

# Why a message leaves without a set; the counter of reason r is field DROPS + r.
(TOO_OLD, OVERFLOW, UNPROVEN, SUPERSEDED, TIME_JUMP, FLUSH, REASONS) = range(7)
TOPIC_SIZE = DROPS + REASONS
JUMPED = REASONS
"""Not a drop: the row in `drops` that tells of a backward jump itself."""

EQUAL_PATIENCE = 64
"""How many sets of one and the same stamp an overflow may veto. No lost message could have been
closer than that, and with a clock that stands still the veto would otherwise never end."""

LEARN_GAPS = 32
"""Gaps per block when learning bounds: the bound holds for the last one to two blocks."""


@inline
def _spread(end: Any, start: Any) -> Any:
    distance = apart(end, start)
    return np.int64(_HIGHEST) if distance > np.uint64(_HIGHEST) else np.int64(distance)


@kernel
def _drop(
    cfg: Any,
    c: Any,
    g: Any,
    r: Any,
    drops: Any,
    cur: Any,
    j: Any,
    why: Any,
    index: Any,
    amount: Any,
) -> None:
    """The oldest message of topic `j` leaves without a set."""
    n = cfg[C_TOPICS]
    at = LANE_SIZE + j
    head = c[u(at + HEAD * n)]
    base = j * cfg[C_RING]
    mask = cfg[C_RING] - 1
    k = cur[1]
    drops[k, D_ROW] = r[u(base + (head & mask))]
    drops[k, D_REASON] = why
    drops[k, D_TOPIC] = j
    drops[k, D_INDEX] = index
    drops[k, D_AMOUNT] = amount
    drops[k, D_TIME] = c[u(at + FRONT * n)]
    cur[1] = k + 1
    c[u(at + (DROPS + why) * n)] += 1
    _behead(c, g, n, at, head, base, mask)


@inline
def _behead(c: Any, g: Any, n: Any, at: Any, head: Any, base: Any, mask: Any) -> None:
    head += 1
    c[u(at + HEAD * n)] = head
    if head < c[u(at + TAIL * n)]:
        c[u(at + FRONT * n)] = g[u(base + (head & mask))]
    elif c[u(at + ABSENT * n)] == 0:
        c[PRESENT] -= 1


@inline
def _publish(cfg: Any, c: Any, g: Any, r: Any, sets: Any, cur: Any, lane: Any, index: Any) -> None:
    n = cfg[C_TOPICS]
    mask = cfg[C_RING] - 1
    k = cur[0]
    for j in range(n):
        at = LANE_SIZE + j
        if c[u(at + TAKES_PART * n)] == 0:
            sets[k, j] = -1
            sets[k, n + j] = _LOWEST
            continue
        head = c[u(at + HEAD * n)]
        base = j * cfg[C_RING]
        sets[k, j] = r[u(base + (head & mask))]
        sets[k, n + j] = c[u(at + FRONT * n)]
        c[u(at + MATCHED * n)] += 1
        _behead(c, g, n, at, head, base, mask)
    sets[k, 2 * n + S_INDEX] = index
    sets[k, 2 * n + S_SPREAD] = _spread(c[END], c[START])
    sets[k, 2 * n + S_TIME] = c[END]
    sets[k, 2 * n + S_LANE] = lane
    sets[k, 2 * n + S_DECIDED] = c[MOMENT]
    cur[0] = k + 1
    c[PIVOT] = 0
    c[SETS] += 1
    c[REJECTED] = 0
    c[STREAK] = 0
    c[STEPS] += n


@kernel
def _look_ahead(cfg: Any, c: Any, g: Any, j: Any, pivot_time: Any) -> None:
    """LOW and NEXT of topic `j`, whose front lies before the new pivot."""
    n = cfg[C_TOPICS]
    at = LANE_SIZE + j
    front = c[u(at + FRONT * n)]
    head = c[u(at + HEAD * n)]
    tail = c[u(at + TAIL * n)]
    base = j * cfg[C_RING]
    mask = cfg[C_RING] - 1
    if c[u(at + INVERTED * n)] > head:  # out of order: nothing better than looking at each
        low = front
        seq = head + 1
        while seq < tail and g[u(base + (seq & mask))] < pivot_time:
            low = max(low, g[u(base + (seq & mask))])
            seq += 1
        c[STEPS] += seq - head
        c[u(at + LOW * n)] = low
        c[u(at + NEXT * n)] = g[u(base + (seq & mask))] if seq < tail else _LOWEST
        return
    last = c[u(at + LAST * n)]
    if last < pivot_time:
        c[u(at + LOW * n)] = last
        c[u(at + NEXT * n)] = _LOWEST
        return
    below, step = head, 1
    while below + step < tail and g[u(base + ((below + step) & mask))] < pivot_time:
        below += step
        step *= 2
        c[STEPS] += 1
    above = min(below + step, tail - 1)
    while above - below > 1:
        middle = (above + below) // 2
        if g[u(base + (middle & mask))] < pivot_time:
            below = middle
        else:
            above = middle
        c[STEPS] += 1
    c[u(at + LOW * n)] = g[u(base + (below & mask))]
    c[u(at + NEXT * n)] = g[u(base + (above & mask))]


@inline
def _form(cfg: Any, c: Any, g: Any, r: Any, drops: Any, cur: Any, index: Any) -> bool:
    """Make the fronts a candidate, after letting go of what cannot start one."""
    n = cfg[C_TOPICS]
    fronts = LANE_SIZE + FRONT * n
    flags = LANE_SIZE + FLAG * n
    partial = cfg[C_TIMEOUT] >= 0
    while c[PRESENT] == n:
        c[STEPS] += n
        start, end = np.int64(_HIGHEST), np.int64(_LOWEST)
        first, last = -1, -1
        for j in range(n):
            if partial:
                here = c[u(LANE_SIZE + HEAD * n + j)] < c[u(LANE_SIZE + TAIL * n + j)]
                c[u(LANE_SIZE + TAKES_PART * n + j)] = 1 if here else 0
                if not here:
                    continue
            t = c[u(fronts + j)]
            if first < 0 or t < start:
                start, first = t, j
            if t >= end:
                end, last = t, j
        if first < 0:
            return False
        flagged = c[u(flags + last)]
        for j in range(n):
            c[u(flags + j)] = 0
        c[u(flags + last)] = flagged
        gap = apart(end, start)
        if cfg[C_INTERVAL] >= 0 and gap > np.uint64(cfg[C_INTERVAL]):
            _reject(c, first, last, _spread(end, start))
            _drop(cfg, c, g, r, drops, cur, first, np.int64(TOO_OLD), index, c[REJECT_GAP])
            continue
        hurry = cfg[C_PATIENCE] > 0 and c[STREAK] >= cfg[C_PATIENCE]
        if flagged != 0 and not hurry and not _forgiven(c, start, end):
            c[STREAK] += 1
            _reject(c, first, last, _spread(end, start))
            _drop(cfg, c, g, r, drops, cur, first, np.int64(UNPROVEN), index, c[REJECT_GAP])
            continue
        c[PIVOT] = last + 1
        c[PIVOT_TIME] = end
        c[START], c[END], c[REACH] = start, end, end
        c[HURRY] = 1 if hurry else 0
        for j in range(n):
            at = LANE_SIZE + j
            if c[u(at + TAKES_PART * n)] == 0:
                c[u(at + LOW * n)] = _HIGHEST  # never passed: no part in the search
                c[u(at + NEXT * n)] = _LOWEST
            elif c[u(at + FRONT * n)] >= end:
                c[u(at + LOW * n)] = _LOWEST
                c[u(at + NEXT * n)] = end
            elif c[u(at + TAIL * n)] - c[u(at + HEAD * n)] == 1:
                c[u(at + LOW * n)] = c[u(at + FRONT * n)]
                c[u(at + NEXT * n)] = _LOWEST
            else:
                _look_ahead(cfg, c, g, j, end)
        return True
    return False


@kernel
def _reject(c: Any, first: Any, last: Any, gap: Any) -> None:
    c[REJECTED] += 1
    c[REJECT_START] = first
    c[REJECT_END] = last
    c[REJECT_GAP] = gap


@kernel
def _forgiven(c: Any, start: Any, end: Any) -> bool:
    """Whether the latest topic may be the pivot although it lost a message to overflow."""
    if start != end:
        c[EQUAL_STREAK] = 0
        return False
    if c[EQUAL_STREAK] > 0 and c[EQUAL_STAMP] == start:
        c[EQUAL_STREAK] += 1
    else:
        c[EQUAL_STAMP], c[EQUAL_STREAK] = start, 1
    return bool(c[EQUAL_STREAK] > EQUAL_PATIENCE)


@kernel
def _proven_ahead(cfg: Any, c: Any, limit: Any, goal: Any) -> bool:
    """Whether the earliest messages that can still come prove the candidate optimal."""
    n = cfg[C_TOPICS]
    low, nxt = LANE_SIZE + LOW * n, LANE_SIZE + NEXT * n
    reach = c[REACH]
    while True:
        c[STEPS] += n
        best = reach
        for j in range(n):
            if c[u(low + j)] > limit:
                continue
            t = c[u(nxt + j)]
            if t == _LOWEST:
                bound = max(cfg[C_SIZE + j], c[u(LANE_SIZE + BOUND * n + j)])
                last = c[u(LANE_SIZE + LAST * n + j)]
                t = last + bound if last <= _HIGHEST - bound else np.int64(_HIGHEST)
                if c[u(LANE_SIZE + ABSENT * n + j)] != 0:
                    t = max(t, c[NOW])
            best = max(best, t)
        if best == reach:
            return False
        reach = best
        distance = scaled(apart(reach, c[END]), cfg[C_NUMERATOR], cfg[C_SHIFT])
        if distance >= goal:
            return True
        limit = later(c[START], distance)


@kernel
def _improve(
    cfg: Any, c: Any, g: Any, r: Any, drops: Any, cur: Any, limit: Any, index: Any
) -> None:
    """The first message beyond the limit of every topic is the new candidate."""
    n = cfg[C_TOPICS]
    start = np.int64(_HIGHEST)
    for j in range(n):
        if c[u(LANE_SIZE + TAKES_PART * n + j)] == 0:
            continue
        while c[u(LANE_SIZE + FRONT * n + j)] <= limit:
            _drop(cfg, c, g, r, drops, cur, j, np.int64(SUPERSEDED), index, np.int64(0))
            c[STEPS] += 1
        start = min(start, c[u(LANE_SIZE + FRONT * n + j)])
    c[START] = start
    c[END] = c[REACH]
    c[STEPS] += n


@inline
def search(
    cfg: Any, c: Any, g: Any, r: Any, sets: Any, drops: Any, cur: Any, lane: Any, index: Any
) -> None:
    """Decide all that can be decided now."""
    n = cfg[C_TOPICS]
    low, nxt = LANE_SIZE + LOW * n, LANE_SIZE + NEXT * n
    while True:
        if c[PIVOT] == 0 and not _form(cfg, c, g, r, drops, cur, index):
            return
        goal = apart(c[PIVOT_TIME], c[START])
        distance = scaled(apart(c[REACH], c[END]), cfg[C_NUMERATOR], cfg[C_SHIFT])
        if distance >= goal or c[HURRY] != 0:
            _publish(cfg, c, g, r, sets, cur, lane, index)
            continue
        limit = later(c[START], distance)
        c[STEPS] += n
        reach = c[REACH]
        wait, wait_low = -1, np.int64(_HIGHEST)
        for j in range(n):
            t = c[u(low + j)]
            if t <= limit:
                if c[u(nxt + j)] != _LOWEST:
                    reach = max(reach, c[u(nxt + j)])
                elif t < wait_low:
                    wait, wait_low = j, t
        if reach > c[REACH]:
            c[REACH] = reach
        elif wait < 0:
            _improve(cfg, c, g, r, drops, cur, limit, index)
        elif cfg[C_VIRTUAL] != 0 and _proven_ahead(cfg, c, limit, goal):
            c[HURRY] = 1
        else:
            c[WAIT] = wait + 1
            return
