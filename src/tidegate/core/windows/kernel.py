"""The sequential decisions of windows: entries, triggers, firing, closing.

An *entry* is one pane of one open window: a row of an int64 matrix. A kernel walks the rows of all
lanes in order, finds or opens the entries each row belongs to, evaluates the triggers and writes
down two lists: *steps* (which rows to add to which entry, which entry starts as a copy of which,
which are merged) and *fires* (the entries to emit, in order). Aggregates follow the steps
(`accumulate.py`); payloads follow the row numbers. No kernel sees a payload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.jit import kernel
from tidegate.core.model import Int64s
from tidegate.core.windows.triggers import (
    OP_AND,
    OP_COUNT,
    OP_MEMORY,
    OP_NEVER,
    OP_OR,
    OP_PREDICATE,
    OP_RATE,
    OP_SIZE,
    OP_TIME,
)

Matrix = NDArray[Any]
Int = Any
"""A whole number inside a kernel: Python's or numpy's."""

# -- the columns of an entry; those up to PART are kept in the state ------------------------------
(
    E_LANE,
    E_START,
    E_END,
    E_SERIAL,  # the number of the window within its lane, in the order of opening
    E_PANE,
    E_REVISION,
    E_COUNT,  # rows of this pane
    E_BYTES,
    E_WALL,  # wall time of the pane's first row
    E_FIRST,
    E_LAST,
    E_LATE,  # late rows of this pane
    E_FIRED,  # 0, or the mask of reasons: the pane has been emitted
    E_ONTIME,  # the watermark has passed the end
    E_PART,
    E_NEXT,  # the next entry of the same lane
    E_DEAD,  # closed for good, or replaced by its next pane
) = range(17)
FIELDS = 17
KEPT = (
    "start",
    "end",
    "serial",
    "pane",
    "revision",
    "count",
    "bytes",
    "wall",
    "first",
    "last",
    "late",
    "fired",
    "ontime",
)
"""The names of the state columns of an entry, from E_START to E_ONTIME."""

# -- settings of a call ---------------------------------------------------------------------------
(
    C_SIZE,
    C_STEP,
    C_OFFSET,
    C_SPAN,  # when sub-windows are combined: the size of the real window, else 0
    C_STRIDE,  # and its step
    C_LATENESS,
    C_POLICY,
    C_ACCUMULATE,
    C_IN_ORDER,
    C_WALL,
    C_BUFFERED,  # rows are kept until they are emitted
    C_LIMIT,  # bytes at which rows are flushed (0: no budget)
    C_BUDGET,
    C_PERIOD,
    C_CHANGE,  # the threshold of RateChange, in millionths
    C_KIND,
    C_TARGET,
    C_MIN,
    C_MAX,
    C_OVERHEAD,  # bytes that the state adds to every buffered row
    C_REJECT,  # refuse rows beyond the limit instead of flushing for them
    C_EARLIEST,  # times outside these two are too near to the ends of int64
    C_LATEST,
) = range(23)
SETTINGS = 23

POLICY_DISCARD, POLICY_ASIDE, POLICY_NEXT = range(3)
KIND_ALIGNED, KIND_SESSION, KIND_EVERYTHING, KIND_COUNT, KIND_STATE, KIND_ADAPTIVE = range(6)

# -- what became of a row -------------------------------------------------------------------------
PLACED, PLACED_LATE, DISCARDED, ASIDE, TOO_LARGE, REFUSED, OUTSIDE, OUT_OF_RANGE = range(8)

# -- reasons of our own, in the mask of a fired entry ---------------------------------------------
FIRED_WATERMARK = np.int64(1) << 40
FIRED_SHUTDOWN = np.int64(1) << 41
FIRED_MEMORY = np.int64(1) << 42
FIRED_DURATION = np.int64(1) << 43
FIRED_COUNT = np.int64(1) << 44
FIRED_STATE = np.int64(1) << 45
FIRED_LATE = np.int64(1) << 46
REASONS = {
    40: "watermark",
    41: "shutdown",
    42: "memory_pressure",
    43: "duration",
    44: "count",
    45: "state",
    46: "late",
    47: "row",
}

# -- counters of a call ---------------------------------------------------------------------------
N_ENTRIES, N_STEPS, N_FIRES, N_USED = range(4)

STEP_ROWS, STEP_COPY, STEP_MERGE = range(3)
"""Steps are (what, entry, from, to): rows [from, to), or the entry to copy or merge in `from`."""


STACK = 64
"""Room for the intermediate masks of a trigger: it has at most 32 parts."""


@kernel
def floor_to(t: Int, step: Int, offset: Int) -> Int:
    """The last multiple of `step` (plus `offset`) at or before t."""
    return (t - offset) // step * step + offset


@kernel
def slot_of(lane: Int, key: Int, size: Int) -> Int:
    """Where the search for (lane, key) starts in a hash table of 2^n places."""
    # 31-bit factors: the product fits into 63 bits, so it is the same without the JIT.
    h = ((key ^ (key >> 31)) & 0x7FFFFFFF) * 0x5851F42D + (lane & 0xFFFFFFF) * 0x2545F491
    return (h >> 15) & (size - 1)


@kernel
def lookup(table: Int64s, entries: Matrix, column: Int, lane: Int, key: Int) -> Int:
    """The entry of (lane, key), or -1. Replaced panes are never found: their place is retaken."""
    at = slot_of(lane, key, len(table))
    while table[at] >= 0:
        e = table[at]
        if entries[e, E_LANE] == lane and entries[e, column] == key:
            return e
        at = (at + 1) & (len(table) - 1)
    return -1


@kernel
def enter(table: Int64s, entries: Matrix, column: Int, e: Int) -> None:
    """Make `e` the entry of its (lane, key)."""
    lane, key = entries[e, E_LANE], entries[e, column]
    at = slot_of(lane, key, len(table))
    while table[at] >= 0:
        f = table[at]
        if entries[f, E_LANE] == lane and entries[f, column] == key:
            break
        at = (at + 1) & (len(table) - 1)
    table[at] = e


@kernel
def link_all(entries: Matrix, order: Int64s, head: Int64s, table: Int64s, column: Int) -> None:
    """Chain and index the entries the state held: the last of a lane becomes its head."""
    for j in range(len(order)):
        e = order[j]
        lane = entries[e, E_LANE]
        entries[e, E_NEXT] = head[lane]
        head[lane] = e
        if column >= 0:
            enter(table, entries, column, e)


@kernel
def evaluate(
    stack: Int64s,
    program: Int64s,
    count: Int,
    size: Int,
    age: Int,
    changed: bool,
    used: Int,
    predicates: Matrix,
    row: Int,
) -> Int:
    """The mask of the triggers that fire, or 0: a postfix program on a stack of masks."""
    top = 0
    for j in range(len(program)):
        op, argument = program[j, 0], program[j, 1]
        if op == OP_OR:
            top -= 1
            if stack[top - 1] == 0:
                stack[top - 1] = stack[top]
        elif op == OP_AND:
            top -= 1
            if stack[top - 1] != 0 and stack[top] != 0:
                stack[top - 1] |= stack[top]
            else:
                stack[top - 1] = 0
        else:
            holds = False
            if op == OP_COUNT:
                holds = count >= argument
            elif op == OP_TIME:
                holds = age >= argument
            elif op == OP_SIZE:
                holds = size >= argument
            elif op == OP_RATE:
                holds = changed
            elif op == OP_MEMORY:
                holds = used >= argument
            elif op == OP_PREDICATE:
                holds = row >= 0 and predicates[argument, row]
            elif op == OP_NEVER:
                holds = False
            stack[top] = np.int64(1) << program[j, 2] if holds else 0
            top += 1
    return stack[0]


@kernel
def open_entry(
    entries: Matrix,
    counts: Int64s,
    serial: Int64s,
    head: Int64s,
    lane: Int,
    start: Int,
    end: Int,
    t: Int,
    wall: Int,
    part: Int,
) -> Int:
    """A new window of the lane, still without rows, at the head of the lane's chain."""
    e = counts[N_ENTRIES]
    counts[N_ENTRIES] += 1
    entries[e, :] = 0
    entries[e, E_LANE] = lane
    entries[e, E_START] = start
    entries[e, E_END] = end
    entries[e, E_SERIAL] = serial[lane]
    serial[lane] += 1
    entries[e, E_WALL] = wall
    entries[e, E_FIRST] = t
    entries[e, E_LAST] = t
    entries[e, E_PART] = part
    entries[e, E_NEXT] = head[lane]
    head[lane] = e
    return e


@kernel
def next_pane(entries: Matrix, counts: Int64s, steps: Matrix, cfg: Int64s, e: Int, t: Int) -> Int:
    """The pane after the emitted pane `e` of the same window; `e` gives way to it."""
    p = counts[N_ENTRIES]
    counts[N_ENTRIES] += 1
    entries[p] = entries[e]
    entries[e, E_DEAD] = 1
    entries[p, E_PANE] += 1
    if entries[e, E_ONTIME] != 0:
        entries[p, E_REVISION] += 1
    entries[p, E_COUNT] = 0
    entries[p, E_LATE] = 0
    entries[p, E_FIRED] = 0
    entries[p, E_WALL] = cfg[C_WALL]
    if cfg[C_ACCUMULATE] != 0:
        add_step(steps, counts, STEP_COPY, p, e, 0)
    else:
        entries[p, E_BYTES] = 0
        entries[p, E_FIRST] = t
        entries[p, E_LAST] = t
    return p


@kernel
def add_step(steps: Matrix, counts: Int64s, what: Int, e: Int, first: Int, last: Int) -> None:
    s = counts[N_STEPS]
    steps[s, 0] = what
    steps[s, 1] = e
    steps[s, 2] = first
    steps[s, 3] = last
    counts[N_STEPS] += 1


@kernel
def add_row(
    entries: Matrix, counts: Int64s, steps: Matrix, e: Int, i: Int, t: Int, size: Int, held: Int
) -> None:
    """Row i joins the pane; neighbouring rows of one pane make one step. `held` is what keeping it
    costs beyond its size, or 0 where it is not kept."""
    entries[e, E_COUNT] += 1
    entries[e, E_BYTES] += size
    entries[e, E_FIRST] = min(entries[e, E_FIRST], t)
    entries[e, E_LAST] = max(entries[e, E_LAST], t)
    if held != 0:
        counts[N_USED] += size + held
    s = counts[N_STEPS] - 1
    if s >= 0 and steps[s, 0] == STEP_ROWS and steps[s, 1] == e and steps[s, 3] == i:
        steps[s, 3] = i + 1
    else:
        add_step(steps, counts, STEP_ROWS, e, i, i + 1)


@kernel
def fire(entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, e: Int, mask: Int) -> None:
    """Emit the pane. Where the next pane starts empty, its rows are no longer held."""
    entries[e, E_FIRED] = mask
    fires[counts[N_FIRES]] = e
    counts[N_FIRES] += 1
    if cfg[C_BUFFERED] != 0 and cfg[C_ACCUMULATE] == 0:
        counts[N_USED] -= entries[e, E_BYTES] + entries[e, E_COUNT] * cfg[C_OVERHEAD]
    if cfg[C_KIND] >= KIND_EVERYTHING:
        entries[e, E_DEAD] = 1
        if cfg[C_KIND] == KIND_ADAPTIVE:
            if mask != FIRED_DURATION:
                entries[e, E_END] = entries[e, E_LAST] + 1
        else:
            entries[e, E_END] = entries[e, E_LAST]


@kernel
def complete_at(entries: Matrix, e: Int, kind: Int) -> Int:
    """The watermark at which no further row can belong to the window: end - 1, as spans are
    half-open; for sessions the end itself, as a row exactly one gap later still belongs."""
    if kind == KIND_SESSION:
        return entries[e, E_END]
    return entries[e, E_END] - 1


@kernel
def settle(
    entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, e: Int, watermark: Int
) -> None:
    """The watermark has passed the end of this window: emit what it still holds, then keep it for
    late rows, or close it for good."""
    done = complete_at(entries, e, cfg[C_KIND])
    if entries[e, E_ONTIME] == 0:
        entries[e, E_ONTIME] = 1
        if entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
            mask = FIRED_DURATION if cfg[C_KIND] == KIND_ADAPTIVE else FIRED_WATERMARK
            fire(entries, counts, fires, cfg, e, mask)
    if cfg[C_LATENESS] == 0 or watermark - cfg[C_LATENESS] > done:
        if entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
            fire(entries, counts, fires, cfg, e, FIRED_LATE)
        entries[e, E_DEAD] = 1


@kernel
def settle_all(
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    order: Int64s,
    watermark: Int64s,
) -> None:
    """`settle` for entries in the order given."""
    for j in range(len(order)):
        e = order[j]
        settle(entries, counts, fires, cfg, e, watermark[entries[e, E_LANE]])


@kernel
def settle_lane(
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    head: Int64s,
    due_at: Int64s,
    lane: Int,
    watermark: Int,
) -> None:
    """Close what is complete in one lane, by end then start; drop what is dead from its chain."""
    order = np.empty(16, np.int64)
    n = 0
    before = -1
    e = head[lane]
    soonest = np.int64(2**63 - 1)
    while e >= 0:
        after = entries[e, E_NEXT]
        gone = entries[e, E_DEAD] != 0
        if not gone:
            done = complete_at(entries, e, cfg[C_KIND])
            expires = done
            if entries[e, E_ONTIME] != 0:
                expires = done + cfg[C_LATENESS] + 1
            if expires <= watermark:
                if n == len(order):
                    larger = np.empty(2 * n, np.int64)
                    larger[:n] = order
                    order = larger
                at = n
                while at > 0 and (
                    entries[order[at - 1], E_END] > entries[e, E_END]
                    or (
                        entries[order[at - 1], E_END] == entries[e, E_END]
                        and entries[order[at - 1], E_START] > entries[e, E_START]
                    )
                ):
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = e
                n += 1
                gone = cfg[C_LATENESS] == 0 or watermark - cfg[C_LATENESS] > done
                if not gone:
                    soonest = min(soonest, done + cfg[C_LATENESS] + 1)
            else:
                soonest = min(soonest, expires)
        if gone:
            if before < 0:
                head[lane] = after
            else:
                entries[before, E_NEXT] = after
        else:
            before = e
        e = after
    due_at[lane] = soonest
    for j in range(n):
        settle(entries, counts, fires, cfg, order[j], watermark)


@kernel
def fire_due(
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    order: Int64s,
    program: Int64s,
    late_program: Int64s,
    longest: Int,
) -> None:
    """Evaluate the triggers of these entries at wall time `cfg[C_WALL]`, without a row.

    `longest`: wall time after which an adaptive window is emitted in any case (0: never)."""
    nothing = np.zeros((1, 1), np.bool_)
    stack = np.zeros(STACK, np.int64)
    for j in range(len(order)):
        e = order[j]
        if entries[e, E_FIRED] != 0 or entries[e, E_COUNT] == 0 or entries[e, E_DEAD] != 0:
            continue
        age = cfg[C_WALL] - entries[e, E_WALL]
        chosen = late_program if entries[e, E_ONTIME] != 0 else program
        mask = np.int64(0)
        if len(chosen) > 0:
            mask = evaluate(
                stack,
                chosen,
                entries[e, E_COUNT],
                entries[e, E_BYTES],
                age,
                False,
                counts[N_USED],
                nothing,
                -1,
            )
        if mask == 0 and longest > 0 and age >= longest:
            mask = FIRED_DURATION
            entries[e, E_END] = entries[e, E_LAST] + 1
        if mask != 0:
            fire(entries, counts, fires, cfg, e, mask)


@kernel
def rate_changed(rates: Int64s, t: Int, period: Int, change: Int) -> bool:
    """Count the row into its period; true for the first row after a period that differs from the
    one before it. `rates` is (period number, rows in it, rows in the one before or -1)."""
    number = t // period
    if rates[1] == 0:
        rates[0], rates[1], rates[2] = number, 1, -1
        return False
    if number <= rates[0]:
        rates[1] += 1
        return False
    now, old = rates[1], rates[2]
    skipped = number - rates[0] - 1
    fired = False
    if old >= 0:
        fired = abs(now - old) * 1_000_000 > old * change
    if skipped > 0:  # silent periods: the fall to nothing is judged as well
        fired = fired or (change < 1_000_000)
        now = 0
    rates[0], rates[1], rates[2] = number, 1, now
    return fired


@kernel
def admit(
    entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, size: Int, copies: Int
) -> Int:
    """May a row of this size be held? Flushes every open pane before it refuses."""
    if cfg[C_LIMIT] == 0 or cfg[C_BUFFERED] == 0:
        return PLACED
    wanted = (size + cfg[C_OVERHEAD]) * copies
    if wanted > cfg[C_BUDGET]:
        return TOO_LARGE
    if counts[N_USED] + wanted > cfg[C_LIMIT]:
        if cfg[C_REJECT] != 0:
            return REFUSED
        for e in range(counts[N_ENTRIES]):
            if entries[e, E_DEAD] == 0 and entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
                fire(entries, counts, fires, cfg, e, FIRED_MEMORY)
        if counts[N_USED] > 0 and counts[N_USED] + wanted > cfg[C_LIMIT]:
            return REFUSED
    return PLACED


@kernel
def fire_all(
    entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, order: Int64s, mask: Int
) -> None:
    """The end: emit these entries as they are, and close them for good."""
    for j in range(len(order)):
        e = order[j]
        if entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
            fire(entries, counts, fires, cfg, e, mask)
        entries[e, E_DEAD] = 1
