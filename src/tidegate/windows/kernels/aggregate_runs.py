"""Incremental aggregates, moved by steps: runs of rows join a slot.

A slot is one (pane, group) with its accumulators. Sums are plain left folds over the rows in their
order, whatever the cuts, so that the same rows give the same floats. Nulls are skipped; NaN goes
through sums and is skipped by min and max, as in numpy's `fmin` and `fmax`.

`aggregate_rows.py` does the same where every row names its slot. Both are needed: that one takes 3
to 5 times as long on long runs, this one 5 to 30 times as long on runs of one or two rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel, lean_kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernels.any_order import Slots
from tidegate.windows.kernels.layout import Flags, Int, Step, Steps

CODES_KNOWN = 4096
"""Groups whose slots are remembered by number within a step (64 kB, so that they stay in the
cache); beyond, each is looked up."""

LONG_RUN = 16
"""Shortest run, in rows, of which four rows are added side by side: in shorter ones, finding the
four costs more than it saves."""

Floats = NDArray[np.float64]


class SlotRows(NamedTuple):
    """Per slot: how many rows it has, and which are its first and last by (time, arrival)."""

    n: Int64s
    """Rows of the slot; 0: the other fields mean nothing yet."""
    first_time: Int64s
    """Least row time of the slot."""
    last_time: Int64s
    """Greatest row time."""
    first_row: Int64s
    """The number of the row at `first_time`; of several, the first to arrive."""
    last_row: Int64s
    """The number of the row at `last_time`; of several, the last to arrive."""


class Sums(NamedTuple):
    """Per slot: the accumulators of one column."""

    n: Int64s
    """Values that are not null."""
    total: NDArray[Any]
    """Sum of the values."""
    low: NDArray[Any]
    """Least value; above every number (largest int64, infinity) before the first one."""
    high: NDArray[Any]
    """Greatest value; below every number before the first one."""
    overflow: Flags
    """Whole numbers: the sum has left 64 bits. Empty for floats."""


class Values(NamedTuple):
    """One column of the rows."""

    values: NDArray[Any]
    """One entry per row, int64 or float64; 0 where a value is null."""
    valid: Flags
    """Which are not null; empty where all are."""


@kernel
def _probe(pane: Int, code: Int, n_codes: Int, size: Int) -> Int:
    """Where the search for (pane, group) starts in a hash table of `size` = 2^n entries."""
    x = pane * n_codes + code
    return ((((x ^ (x >> 31)) & 0x7FFFFFFF) * 0x5851F42D) >> 15) & (size - 1)


@kernel
def _find_slot(
    table: Int64s, slots: Slots, n_slots: Int, newest: Int64s, n_codes: Int, e: Int, code: Int
) -> Int:
    """The slot of (pane, group); equal to `n_slots` when it had to be made.

    Args:
        table: hash table of slot numbers, -1 where free; never full.
        slots: pane, group and chain of every slot; a new one is written at `n_slots`.
        n_slots: how many slots there are. The caller counts a new one.
        newest: the newest slot of each pane, from which its slots are chained.
        n_codes: how many groups there may be.
        e: the pane.
        code: the group.
    """
    at = _probe(e, code, n_codes, len(table))
    while table[at] >= 0:
        s = table[at]
        if slots.pane[s] == e and slots.code[s] == code:
            return s
        at = (at + 1) & (len(table) - 1)
    table[at] = n_slots
    slots.pane[n_slots] = e
    slots.code[n_slots] = code
    slots.next[n_slots] = newest[e]
    newest[e] = n_slots
    return n_slots


@kernel
def _doubled(old: Int64s) -> Int64s:
    """A copy of the array with twice the room; the new half is not initialised."""
    new = np.empty(2 * len(old), np.int64)
    new[: len(old)] = old
    return new


@kernel
def split_groups(
    steps: Steps, codes: Int64s, n_codes: Int, held: Slots, n_panes: Int
) -> tuple[Slots, Steps]:
    """Turn steps on panes into steps on (pane, group) slots.

    Args:
        steps: the steps on panes.
        codes: the group of each row, below `n_codes`.
        n_codes: how many groups there may be.
        held: the slots of the state, which keep their numbers.
        n_panes: how many panes there are.

    Returns:
        All slots, and the new steps.
    """
    n_slots, n_steps = len(held.pane), len(steps.what)
    room = 2 * n_slots + 1024
    slots = Slots(np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64))
    newest = np.full(n_panes, -1, np.int64)
    size = 2048
    # At most a quarter full, so that a search meets few other slots.
    while size < 4 * room:
        size *= 2
    table = np.full(size, -1, np.int64)
    for s in range(n_slots):
        _find_slot(table, slots, s, newest, n_codes, held.pane[s], held.code[s])
    most = n_steps + 1024  # one step per row at worst; pages that are not used cost nothing
    for j in range(n_steps):
        if steps.what[j] == Step.ROWS:
            most += steps.last[j] - steps.first[j]
    # A copy or merge makes a step per slot of its pane: then the lists may have to grow.
    out_what, out_slot = np.empty(most, np.int64), np.empty(most, np.int64)
    out_first, out_last = np.empty(most, np.int64), np.empty(most, np.int64)
    made = 0
    # The slots of the last step by code: groups come again and again in a run of rows.
    known = np.empty(min(n_codes, CODES_KNOWN), np.int64)
    known_by = np.full(len(known), -1, np.int64)
    for j in range(n_steps):
        what, e = steps.what[j], steps.pane[j]
        by_row = what == Step.ROWS
        i = steps.first[j]
        f = np.int64(-1) if by_row else newest[steps.first[j]]
        last_code = np.int64(-1)
        while (by_row and i < steps.last[j]) or f >= 0:
            code = codes[i] if by_row else slots.code[f]
            # The run of this group goes on: extend its step instead of adding one.
            if by_row and code == last_code:
                out_last[made - 1] = i + 1
                i += 1
                continue
            near = by_row and code < len(known)
            if near and known_by[code] == j:
                s = known[code]
            else:
                s = _find_slot(table, slots, n_slots, newest, n_codes, e, code)
            if near:
                known[code] = s
                known_by[code] = j
            if s == n_slots:
                n_slots += 1
                if n_slots == len(slots.pane):
                    slots = Slots(_doubled(slots.pane), _doubled(slots.code), _doubled(slots.next))
                    # Slots keep their numbers and chains; only the hash table is built again.
                    table = np.full(4 * len(table), -1, np.int64)
                    for q in range(n_slots):
                        at = _probe(slots.pane[q], slots.code[q], n_codes, len(table))
                        while table[at] >= 0:
                            at = (at + 1) & (len(table) - 1)
                        table[at] = q
            if made == len(out_what):
                out_what, out_slot = _doubled(out_what), _doubled(out_slot)
                out_first, out_last = _doubled(out_first), _doubled(out_last)
            out_what[made] = what
            out_slot[made] = s
            if by_row:
                out_first[made] = i
                out_last[made] = i + 1
                last_code = code
                i += 1
            else:
                out_first[made] = f
                out_last[made] = 0
                f = slots.next[f]
            made += 1
    made_slots = Slots(slots.pane[:n_slots], slots.code[:n_slots], slots.next[:n_slots])
    return made_slots, Steps(out_what[:made], out_slot[:made], out_first[:made], out_last[:made])


@kernel
def fold_rows(steps: Steps, times: Int64s, counted: bool, shift: Int, slots: SlotRows) -> None:
    """Count rows per slot and find its first and last one.

    Args:
        steps: on slots.
        times: of the rows.
        counted: only counts matter; times are not compared.
        shift: the number of the first row; lower numbers are the slots the state held.
        slots: what to update.
    """
    count, first_time, last_time = slots.n, slots.first_time, slots.last_time
    first_row, last_row = slots.first_row, slots.last_row
    for j in range(len(steps.what)):
        what, s, a, b = steps.what[j], steps.pane[j], steps.first[j], steps.last[j]
        if what == Step.ROWS:
            if count[s] == 0:
                first_time[s] = times[a]
                first_row[s] = a + shift
                last_time[s] = times[a]
                last_row[s] = a + shift
            count[s] += b - a
            if counted:
                continue
            for i in range(a, b):
                if times[i] < first_time[s]:
                    first_time[s] = times[i]
                    first_row[s] = i + shift
                if times[i] >= last_time[s]:
                    last_time[s] = times[i]
                    last_row[s] = i + shift
        elif what == Step.COPY or count[s] == 0:
            count[s] = count[a]
            first_time[s] = first_time[a]
            last_time[s] = last_time[a]
            first_row[s] = first_row[a]
            last_row[s] = last_row[a]
        elif count[a] > 0:
            count[s] += count[a]
            if first_time[a] < first_time[s]:
                first_time[s] = first_time[a]
                first_row[s] = first_row[a]
            if last_time[a] >= last_time[s]:
                last_time[s] = last_time[a]
                last_row[s] = last_row[a]


@lean_kernel
def fold_floats(steps: Steps, column: Values, extremes: bool, sums: Sums) -> None:
    """Count, sum and, with `extremes`, min and max of a float column.

    There is a loop for columns with nulls, one with extremes and one for sums only, so that the
    usual cases have no branch per row. All of them add in the order of the rows.

    Args:
        steps: on slots.
        column: the values; empty where no step joins rows.
        extremes: whether min and max are wanted.
        sums: what to update.
    """
    values, valid = column.values, column.valid
    count, total, low, high = sums.n, sums.total, sums.low, sums.high
    nulls = len(valid) > 0
    j = -1
    while j + 1 < len(steps.what):
        j += 1
        what, s, a, b = steps.what[j], steps.pane[j], steps.first[j], steps.last[j]
        if what == Step.ROWS:
            if b - a >= LONG_RUN and not nulls and four_long_runs(steps, j):
                fold_four_runs(steps, j, values, extremes, sums)
                j += 3
                continue
            sum_ = total[s]
            lo, hi = low[s], high[s]
            if nulls:
                for i in range(a, b):
                    if valid[i]:
                        v = values[i]
                        sum_ += v
                        count[s] += 1
                        lo = v if v < lo else lo  # never true for NaN
                        hi = v if v > hi else hi
            elif extremes:
                part = values[a:b]  # counted from 0: no index can be negative
                for i in range(len(part)):
                    v = part[i]
                    sum_ += v
                    lo = v if v < lo else lo
                    hi = v if v > hi else hi
                count[s] += b - a
            else:
                part = values[a:b]
                for i in range(len(part)):
                    sum_ += part[i]
                count[s] += b - a
            low[s], high[s] = lo, hi
            total[s] = sum_
        elif what == Step.COPY:
            count[s] = count[a]
            total[s] = total[a]
            low[s] = low[a]
            high[s] = high[a]
        else:
            count[s] += count[a]
            total[s] += total[a]
            low[s] = min(low[s], low[a])
            high[s] = max(high[s], high[a])


@lean_kernel
def four_long_runs(steps: Steps, j: Int) -> bool:
    """Whether step j and the three behind it join long runs of rows to four different slots.

    Args:
        steps: on slots.
        j: the first of them.
    """
    if j + 4 > len(steps.what):
        return False
    for k in range(j, j + 4):
        if steps.what[k] != Step.ROWS or steps.last[k] - steps.first[k] < LONG_RUN:
            return False
    p, q, r, s = steps.pane[j], steps.pane[j + 1], steps.pane[j + 2], steps.pane[j + 3]
    return bool(p != q and p != r and p != s and q != r and q != s and r != s)


@lean_kernel
def fold_four_runs(steps: Steps, j: Int, values: Floats, extremes: bool, sums: Sums) -> None:
    """`fold_floats` of four runs side by side.

    A sum in the order of the rows waits for each addition before it begins the next. Four slots do
    not wait for each other: it takes little more than half the time, and gives the same floats.

    Args:
        steps: on slots.
        j: the first of four steps for which `four_long_runs` holds.
        values: of the column, none of them null.
        extremes: whether min and max are wanted.
        sums: what to update.
    """
    n = steps.last[j] - steps.first[j]
    for k in range(j + 1, j + 4):
        n = min(n, steps.last[k] - steps.first[k])
    p, q, r, s = steps.pane[j], steps.pane[j + 1], steps.pane[j + 2], steps.pane[j + 3]
    a, b, c, d = steps.first[j], steps.first[j + 1], steps.first[j + 2], steps.first[j + 3]
    rows_p, rows_q, rows_r, rows_s = (
        values[a : a + n], values[b : b + n], values[c : c + n], values[d : d + n]
    )  # fmt: skip
    sum_p, sum_q, sum_r, sum_s = sums.total[p], sums.total[q], sums.total[r], sums.total[s]
    low_p, low_q, low_r, low_s = sums.low[p], sums.low[q], sums.low[r], sums.low[s]
    high_p, high_q, high_r, high_s = sums.high[p], sums.high[q], sums.high[r], sums.high[s]
    for i in range(n):
        v, w, x, y = rows_p[i], rows_q[i], rows_r[i], rows_s[i]
        sum_p += v
        sum_q += w
        sum_r += x
        sum_s += y
        low_p = v if v < low_p else low_p
        low_q = w if w < low_q else low_q
        low_r = x if x < low_r else low_r
        low_s = y if y < low_s else low_s
        high_p = v if v > high_p else high_p
        high_q = w if w > high_q else high_q
        high_r = x if x > high_r else high_r
        high_s = y if y > high_s else high_s
    sums.total[p], sums.total[q], sums.total[r], sums.total[s] = sum_p, sum_q, sum_r, sum_s
    if extremes:
        sums.low[p], sums.low[q], sums.low[r], sums.low[s] = low_p, low_q, low_r, low_s
        sums.high[p], sums.high[q], sums.high[r], sums.high[s] = high_p, high_q, high_r, high_s
    for k in range(j, j + 4):  # what is longer than the shortest
        s, a, b = steps.pane[k], steps.first[k], steps.last[k]
        sum_, lo, hi = sums.total[s], sums.low[s], sums.high[s]
        part = values[a + n : b]
        for i in range(len(part)):
            v = part[i]
            sum_ += v
            lo = v if v < lo else lo
            hi = v if v > hi else hi
        sums.n[s] += b - a
        sums.total[s] = sum_
        if extremes:
            sums.low[s], sums.high[s] = lo, hi


@kernel
def fold_ints(steps: Steps, column: Values, extremes: bool, sums: Sums) -> None:
    """The same for whole numbers, exact; a sum beyond 64 bits is marked, never wrapped.

    Overflow is collected in the sign bit of `wrapped` and looked at once per run: a branch per row
    would slow the loop down.

    Args:
        steps: on slots.
        column: the values; empty where no step joins rows.
        extremes: whether min and max are wanted.
        sums: what to update; `overflow` marks the slots whose total is no longer valid.
    """
    values, valid = column.values, column.valid
    count, total, low, high = sums.n, sums.total, sums.low, sums.high
    overflow = sums.overflow
    nulls = len(valid) > 0
    for j in range(len(steps.what)):
        what, s, a, b = steps.what[j], steps.pane[j], steps.first[j], steps.last[j]
        if what == Step.ROWS:
            sum_ = total[s]
            wrapped = np.int64(0)
            if not nulls:
                part = values[a:b]
                for i in range(len(part)):
                    v = part[i]
                    next_ = sum_ + v
                    wrapped |= (sum_ ^ next_) & (v ^ next_)
                    sum_ = next_
                count[s] += b - a
                if extremes:
                    lo, hi = low[s], high[s]
                    for i in range(len(part)):
                        lo = min(lo, part[i])
                        hi = max(hi, part[i])
                    low[s], high[s] = lo, hi
            else:
                for i in range(a, b):
                    if valid[i]:
                        v = values[i]
                        next_ = sum_ + v
                        wrapped |= (sum_ ^ next_) & (v ^ next_)
                        sum_ = next_
                        count[s] += 1
                        low[s] = min(low[s], v)
                        high[s] = max(high[s], v)
            total[s] = sum_
            if wrapped < 0:
                overflow[s] = True
        elif what == Step.COPY:
            count[s] = count[a]
            total[s] = total[a]
            low[s] = low[a]
            high[s] = high[a]
            overflow[s] = overflow[a]
        else:
            next_ = total[s] + total[a]
            if (total[s] ^ next_) & (total[a] ^ next_) < 0 or overflow[a]:
                overflow[s] = True
            count[s] += count[a]
            total[s] = next_
            low[s] = min(low[s], low[a])
            high[s] = max(high[s], high[a])


@kernel
def quantiles(
    values: Floats, starts: Int64s, ends: Int64s, q: float, out: Floats, present: NDArray[np.bool_]
) -> None:
    """The q-quantile of each slot by linear interpolation; NaN left out, none left: absent.

    Args:
        values: of all rows, those of a slot next to each other.
        starts: first row of each slot.
        ends: the row behind its last one.
        q: from 0 (least) to 1 (greatest).
        out: filled: the quantile of each slot; 0 where it is absent.
        present: filled: whether the slot has a value.
    """
    for k in range(len(starts)):
        n = 0
        kept = np.empty(ends[k] - starts[k], np.float64)
        for i in range(starts[k], ends[k]):
            # False for NaN only, which is how nulls come as well.
            if values[i] == values[i]:
                kept[n] = values[i]
                n += 1
        present[k] = n > 0
        if n == 0:
            out[k] = 0.0
            continue
        kept = np.sort(kept[:n])
        at = q * (n - 1)
        lower = int(at)
        upper = min(lower + 1, n - 1)
        out[k] = kept[lower] + (kept[upper] - kept[lower]) * (at - lower)
