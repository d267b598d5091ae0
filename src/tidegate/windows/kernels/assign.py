"""What all assigning kernels share: finding, opening and extending panes; rates.

These functions allocate nothing, so that they compile without reference counts (`lean_kernel`):
a call that hands a dozen arrays to another function would otherwise count them up and down, which
costs more than the work.
"""

from __future__ import annotations

from tidegate.core.numba import lean_kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernels.layout import Call, Int, LaneState, Panes, Settings, Step


@lean_kernel
def floor_to(t: Int, step: Int, offset: Int) -> Int:
    """The last multiple of `step` (plus `offset`) at or before t."""
    return (t - offset) // step * step + offset


@lean_kernel
def start_of(t: Int, settings: Settings) -> Int:
    """Start of the last aligned window that begins at or before t."""
    edges = settings.edges
    if len(edges) == 0:
        return floor_to(t, settings.step, settings.offset)
    return edges[edge_at(edges, t)]


@lean_kernel
def end_of(start: Int, settings: Settings) -> Int:
    """End of the aligned window (or sub-window) that begins at `start`."""
    edges = settings.edges
    if len(edges) == 0:
        return start + settings.size
    return edges[edge_at(edges, start) + 1]


@lean_kernel
def edge_at(edges: Int64s, t: Int) -> Int:
    """The last edge at or before t, but never the last of all."""
    low, high = 0, len(edges) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if edges[middle] <= t:
            low = middle
        else:
            high = middle - 1
    return low


@lean_kernel
def hash_index(lane: Int, key: Int, size: Int) -> Int:
    """Where the search for (lane, key) starts in a hash table of `size` = 2^n entries."""
    # 31-bit factors: the product fits into 63 bits, so it is the same without the JIT.
    h = ((key ^ (key >> 31)) & 0x7FFFFFFF) * 0x5851F42D + (lane & 0xFFFFFFF) * 0x2545F491
    return (h >> 15) & (size - 1)


@lean_kernel
def lookup(table: Int64s, owner: Int64s, keys: Int64s, lane: Int, key: Int) -> Int:
    """The pane of (lane, key), or -1. A replaced pane is never found: its entry is overwritten.

    Args:
        table: the hash table.
        owner: the lane of every pane.
        keys: the key of every pane: its start, or its partition.
        lane: the lane to look for.
        key: the key to look for.
    """
    at = hash_index(lane, key, len(table))
    while table[at] >= 0:
        e = table[at]
        if owner[e] == lane and keys[e] == key:
            return e
        at = (at + 1) & (len(table) - 1)
    return -1


@lean_kernel
def insert(table: Int64s, owner: Int64s, keys: Int64s, e: Int) -> None:
    """Make `e` the pane of its (lane, key), in place of an earlier one.

    Args:
        table: the hash table, larger than the number of panes.
        owner: the lane of every pane.
        keys: the key of every pane.
        e: the pane.
    """
    lane, key = owner[e], keys[e]
    at = hash_index(lane, key, len(table))
    while table[at] >= 0:
        f = table[at]
        if owner[f] == lane and keys[f] == key:
            break
        at = (at + 1) & (len(table) - 1)
    table[at] = e


@lean_kernel
def link_panes(
    panes: Panes, order: Int64s, head: Int64s, table: Int64s, keys: Int64s, hashed: bool
) -> None:
    """Chain the panes of the state by lane, the last of `order` first, and index them by `keys`.

    Args:
        panes: the panes of the state; `next` is filled.
        order: the panes; the last one of a lane becomes the head of its chain.
        head: filled: the first pane of each lane's chain.
        table: the hash table, filled if `hashed`.
        keys: what panes are found by: their starts, or their partitions.
        hashed: false for sessions, which are found by walking the chain.
    """
    for j in range(len(order)):
        e = order[j]
        lane = panes.lane[e]
        panes.next[e] = head[lane]
        head[lane] = e
        if hashed:
            insert(table, panes.lane, keys, e)


@lean_kernel
def open_pane(
    call: Call, lanes: LaneState, lane: Int, start: Int, end: Int, t: Int, wall: Int, part: Int
) -> Int:
    """Open a window of the lane, still without rows, at the head of the lane's chain.

    Args:
        call: the panes and lists; there must be room for one more pane.
        lanes: the state per lane, which gives out the serial number.
        lane: the lane.
        start: of the window.
        end: of the window.
        t: the time of the row it is opened for.
        wall: the wall time of the call.
        part: the partition; 0 but for state windows.

    Returns:
        The number of the new pane.
    """
    panes = call.panes
    e = call.totals.panes[0]
    call.totals.panes[0] += 1
    panes.lane[e] = lane
    panes.start[e] = start
    panes.end[e] = end
    panes.serial[e] = lanes.serial[lane]
    lanes.serial[lane] += 1
    panes.pane[e] = 0
    panes.revision[e] = 0
    panes.rows[e] = 0
    panes.bytes[e] = 0
    panes.wall[e] = wall
    panes.first[e] = t
    panes.last[e] = t
    panes.late[e] = 0
    panes.fired[e] = 0
    panes.on_time[e] = 0
    panes.spent[e] = 0
    panes.emitted[e] = 0
    panes.timing[e] = 0
    panes.part[e] = part
    panes.dead[e] = 0
    panes.next[e] = call.head[lane]
    call.head[lane] = e
    return e


@lean_kernel
def next_pane(call: Call, settings: Settings, e: Int, t: Int) -> Int:
    """Open the pane after the emitted pane `e` of the same window; `e` gives way to it.

    Where panes accumulate, the new one starts as a copy of `e`, otherwise empty. The caller puts
    it where it is looked for: into the lane's chain, the hash table, or both.

    Args:
        call: the panes and lists; there must be room for one more pane and one more step.
        settings: of the stage.
        e: the emitted pane, which is dead afterwards.
        t: the time of the row the next pane is opened for.

    Returns:
        The number of the new pane.
    """
    panes = call.panes
    p = call.totals.panes[0]
    call.totals.panes[0] += 1
    panes.lane[p] = panes.lane[e]
    panes.start[p] = panes.start[e]
    panes.end[p] = panes.end[e]
    panes.serial[p] = panes.serial[e]
    panes.pane[p] = panes.pane[e] + 1
    panes.revision[p] = panes.revision[e]
    if panes.on_time[e] != 0:
        panes.revision[p] += 1
    panes.rows[p] = 0
    panes.bytes[p] = panes.bytes[e]
    panes.wall[p] = settings.wall
    panes.first[p] = panes.first[e]
    panes.last[p] = panes.last[e]
    panes.late[p] = 0
    panes.fired[p] = 0
    panes.on_time[p] = panes.on_time[e]
    panes.spent[p] = panes.spent[e]
    panes.emitted[p] = panes.bytes[e]
    panes.timing[p] = 0
    panes.part[p] = panes.part[e]
    panes.next[p] = panes.next[e]
    panes.dead[p] = 0
    panes.dead[e] = 1
    if settings.accumulate:
        add_step(call, Step.COPY, p, e, 0)
    else:
        panes.bytes[p] = 0
        panes.emitted[p] = 0
        panes.first[p] = t
        panes.last[p] = t
    return p


@lean_kernel
def add_step(call: Call, what: Int, e: Int, first: Int, last: Int) -> None:
    """Append a step to the list."""
    s = call.totals.steps[0]
    call.steps.what[s] = what
    call.steps.pane[s] = e
    call.steps.first[s] = first
    call.steps.last[s] = last
    call.totals.steps[0] += 1


@lean_kernel
def add_row(call: Call, e: Int, i: Int, t: Int, size: Int, held: Int) -> None:
    """Row i joins the pane; neighbouring rows of one pane make one step.

    Args:
        call: the panes and lists.
        e: the pane.
        i: the number of the row.
        t: its time.
        size: its bytes.
        held: what keeping it costs beyond its size, or 0 where rows are not kept.
    """
    panes, steps = call.panes, call.steps
    panes.rows[e] += 1
    panes.bytes[e] += size
    panes.first[e] = min(panes.first[e], t)
    panes.last[e] = max(panes.last[e], t)
    if held != 0:
        call.totals.used[0] += size + held
    s = call.totals.steps[0] - 1
    if s >= 0 and steps.what[s] == Step.ROWS and steps.pane[s] == e and steps.last[s] == i:
        steps.last[s] = i + 1
    else:
        add_step(call, Step.ROWS, e, i, i + 1)


@lean_kernel
def rate_changed(lanes: LaneState, lane: Int, t: Int, period: Int, change: Int) -> bool:
    """Count the row into its period. True for the first row after a period that differs from the
    one before it by more than `change` millionths.

    Periods are numbered by event time; a row of an older period counts into the current one.

    Args:
        lanes: the state per lane; the counts of the lane are moved on.
        lane: the lane of the row.
        t: its time.
        period: length of a period in ns.
        change: millionths of the rows of the earlier period; integers, so that every machine
            agrees.
    """
    number = t // period
    if lanes.rate_rows[lane] == 0:
        lanes.rate_period[lane], lanes.rate_rows[lane], lanes.rate_before[lane] = number, 1, -1
        return False
    if number <= lanes.rate_period[lane]:
        lanes.rate_rows[lane] += 1
        return False
    now: Int = lanes.rate_rows[lane]
    old: Int = lanes.rate_before[lane]
    skipped = number - lanes.rate_period[lane] - 1
    fired = False
    if old >= 0:
        fired = abs(now - old) * 1_000_000 > old * change
    if skipped > 0:  # silent periods: the fall to nothing is judged as well
        fired = fired or (change < 1_000_000)
        now = 0
    lanes.rate_period[lane], lanes.rate_rows[lane], lanes.rate_before[lane] = number, 1, now
    return fired
