"""Incremental aggregates: accumulators per slot, moved by the steps the window kernels wrote down.

A slot is one (pane, group). Sums are plain left folds over the rows in their order, whatever the
cuts, so that the same rows give the same floats. Nulls are skipped; NaN goes through sums and is
skipped by min and max, as in numpy's `fmin` and `fmax`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.numbers import STEP_COPY, STEP_ROWS, Int

CODES_KNOWN = 4096
"""Groups whose slots are remembered by number; beyond, each is looked up."""

Matrix = NDArray[Any]
Floats = NDArray[np.float64]


@kernel
def _place(entry: Int, code: Int, n_codes: Int, size: Int) -> Int:
    x = entry * n_codes + code
    return ((((x ^ (x >> 31)) & 0x7FFFFFFF) * 0x5851F42D) >> 15) & (size - 1)


@kernel
def _slot_of(
    table: Int64s, slots: Matrix, n_slots: Int, first_slot: Int64s, n_codes: Int, e: Int, code: Int
) -> Int:
    """The slot of (entry, group code); equal to `n_slots` when it had to be made."""
    at = _place(e, code, n_codes, len(table))
    while table[at] >= 0:
        s = table[at]
        if slots[s, 0] == e and slots[s, 1] == code:
            return s
        at = (at + 1) & (len(table) - 1)
    table[at] = n_slots
    slots[n_slots, 0] = e
    slots[n_slots, 1] = code
    slots[n_slots, 2] = first_slot[e]
    first_slot[e] = n_slots
    return n_slots


@kernel
def _larger(old: Matrix) -> Matrix:
    new = np.empty((2 * len(old), old.shape[1]), np.int64)
    new[: len(old)] = old
    return new


@kernel
def split_groups(
    steps: Matrix,
    n_steps: Int,
    codes: Int64s,
    n_codes: Int,
    held: Matrix,
    n_entries: Int,
) -> tuple[Matrix, Int, Matrix, Int]:
    """Steps on entries become steps on (entry, group) slots.

    `held` are the slots of the state, (entry, code). Returns all slots as (entry, code, next slot
    of the same entry) and the new steps, each with their number.
    """
    n_slots = len(held)
    slots = np.empty((2 * n_slots + 1024, 3), np.int64)
    first_slot = np.full(n_entries, -1, np.int64)
    size = 2048
    while size < 4 * len(slots):
        size *= 2
    table = np.full(size, -1, np.int64)
    for s in range(n_slots):
        _slot_of(table, slots, s, first_slot, n_codes, held[s, 0], held[s, 1])
    most = n_steps + 1024  # one step per row at worst; pages that are not used cost nothing
    for j in range(n_steps):
        if steps[j, 0] == STEP_ROWS:
            most += steps[j, 3] - steps[j, 2]
    out = np.empty((most, 4), np.int64)
    made = 0
    # The slots of the last step by code: groups come again and again in a stretch of rows.
    known = np.empty(min(n_codes, CODES_KNOWN), np.int64)
    known_by = np.full(len(known), -1, np.int64)
    for j in range(n_steps):
        what, e = steps[j, 0], steps[j, 1]
        by_row = what == STEP_ROWS
        i = steps[j, 2]
        f = np.int64(-1) if by_row else first_slot[steps[j, 2]]
        last_code = np.int64(-1)
        while (by_row and i < steps[j, 3]) or f >= 0:
            code = codes[i] if by_row else slots[f, 1]
            if by_row and code == last_code:
                out[made - 1, 3] = i + 1
                i += 1
                continue
            near = by_row and code < len(known)
            if near and known_by[code] == j:
                s = known[code]
            else:
                s = _slot_of(table, slots, n_slots, first_slot, n_codes, e, code)
            if near:
                known[code] = s
                known_by[code] = j
            if s == n_slots:
                n_slots += 1
                if n_slots == len(slots):
                    slots = _larger(slots)
                    table = np.full(4 * len(table), -1, np.int64)
                    for q in range(n_slots):
                        at = _place(slots[q, 0], slots[q, 1], n_codes, len(table))
                        while table[at] >= 0:
                            at = (at + 1) & (len(table) - 1)
                        table[at] = q
            if made == len(out):
                out = _larger(out)
            out[made, 0] = what
            out[made, 1] = s
            if by_row:
                out[made, 2] = i
                out[made, 3] = i + 1
                last_code = code
                i += 1
            else:
                out[made, 2] = f
                out[made, 3] = 0
                f = slots[f, 2]
            made += 1
    return slots, n_slots, out, made


@kernel
def fold_rows(
    steps: Matrix,
    n_steps: Int,
    times: Int64s,
    ordered: bool,
    shift: Int,
    count: Int64s,
    first_time: Int64s,
    last_time: Int64s,
    first_row: Int64s,
    last_row: Int64s,
) -> None:
    """Rows per slot, and which are its first and last by (time, arrival). Rows are numbered from
    `shift` on; lower numbers are the slots the state held. `ordered` skips what nobody asked for.
    """
    for j in range(n_steps):
        what, s, a, b = steps[j, 0], steps[j, 1], steps[j, 2], steps[j, 3]
        if what == STEP_ROWS:
            if count[s] == 0:
                first_time[s] = times[a]
                first_row[s] = a + shift
                last_time[s] = times[a]
                last_row[s] = a + shift
            count[s] += b - a
            if ordered:
                continue
            for i in range(a, b):
                if times[i] < first_time[s]:
                    first_time[s] = times[i]
                    first_row[s] = i + shift
                if times[i] >= last_time[s]:
                    last_time[s] = times[i]
                    last_row[s] = i + shift
        elif what == STEP_COPY or count[s] == 0:
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


@kernel
def fold_floats(
    steps: Matrix,
    n_steps: Int,
    values: Floats,
    valid: NDArray[np.bool_],
    extremes: bool,
    count: Int64s,
    total: Floats,
    low: Floats,
    high: Floats,
) -> None:
    """Count, sum, min and max of a float column. `valid` is empty when there are no nulls."""
    nulls = len(valid) > 0
    for j in range(n_steps):
        what, s, a, b = steps[j, 0], steps[j, 1], steps[j, 2], steps[j, 3]
        if what == STEP_ROWS:
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
        elif what == STEP_COPY:
            count[s] = count[a]
            total[s] = total[a]
            low[s] = low[a]
            high[s] = high[a]
        else:
            count[s] += count[a]
            total[s] += total[a]
            low[s] = min(low[s], low[a])
            high[s] = max(high[s], high[a])


@kernel
def fold_ints(
    steps: Matrix,
    n_steps: Int,
    values: Int64s,
    valid: NDArray[np.bool_],
    extremes: bool,
    count: Int64s,
    total: Int64s,
    low: Int64s,
    high: Int64s,
    overflow: NDArray[np.bool_],
) -> None:
    """The same for whole numbers, exact; a sum beyond 64 bits is marked, never wrapped."""
    nulls = len(valid) > 0
    for j in range(n_steps):
        what, s, a, b = steps[j, 0], steps[j, 1], steps[j, 2], steps[j, 3]
        if what == STEP_ROWS:
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
        elif what == STEP_COPY:
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
    """The q-quantile of each stretch by linear interpolation; NaN left out, none left: absent."""
    for k in range(len(starts)):
        n = 0
        kept = np.empty(ends[k] - starts[k], np.float64)
        for i in range(starts[k], ends[k]):
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
