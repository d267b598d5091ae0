"""The sequential decisions of windows: entries, triggers, firing, closing.

An *entry* is one pane of one open window: a row of an int64 matrix. A kernel walks the rows of all
lanes in order, finds or opens the entries each row belongs to, evaluates the triggers and writes
down two lists: *steps* (which rows to add to which entry, which entry starts as a copy of which,
which are merged) and *fires* (the entries to emit, in order). Aggregates follow the steps
(`accumulate.py`); payloads follow the row numbers. No kernel sees a payload.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.numbers import (
    C_ACCUMULATE,
    C_WALL,
    E_BYTES,
    E_COUNT,
    E_DEAD,
    E_END,
    E_FIRED,
    E_FIRST,
    E_LANE,
    E_LAST,
    E_LATE,
    E_NEXT,
    E_ONTIME,
    E_PANE,
    E_PART,
    E_REVISION,
    E_SERIAL,
    E_START,
    E_WALL,
    N_ENTRIES,
    N_STEPS,
    N_USED,
    STEP_COPY,
    STEP_ROWS,
    Int,
    Matrix,
)
from tidegate.windows.triggers import (
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
