# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""What a batch says about its streams: what was expected, what is missing, how steady, how skewed.

Late is a row from before the batch, early one from behind its end (it rode along). Rate is what the
distances between messages say; jitter is how far rows lie from their slots, as a standard deviation
around their common offset. Skew compares the newest time of each stream at the moment of closing
with the median over all: a stream whose clock runs two seconds ahead shows two seconds.
"""

from __future__ import annotations

import numpy as np

from tidegate.batching.layout import (
    B_EARLY,
    B_LATE,
    B_PART,
    B_PARTS,
    F_JITTER,
    F_RATE,
    LAST,
    MEASURED,
    N_PARTS,
    NAME,
    NO_SLOT,
    P_EARLY,
    P_EXPECTED,
    P_KNOWN,
    P_LATE,
    P_MISSING,
    P_NAME,
    P_ROWS,
    P_SKEW,
    P_STREAM,
    SLOT,
    STREAM,
    STREAMS,
    TIME,
    TRACKED,
    WAS_FIRST,
    WAS_PERIOD,
    WAS_SLOTS,
)
from tidegate.batching.period import median
from tidegate.core.numba import lean_kernel

# The tally of one stream, in its row of `work`, beside the grid the window had.
_ROWS, _DISTINCT, _LATE, _EARLY, _SLOT, _ON_GRID = range(6)


@lean_kernel
def explain(w, first, last, start, end, n, b):
    """Write one part per stream that had rows, or should have had."""
    rows, lanes, streams, numbers, batches, parts, floats, work, scratch = (
        w.rows,
        w.lanes,
        w.streams,
        w.numbers,
        w.batches,
        w.parts,
        w.floats,
        w.work,
        w.scratch,
    )
    known = lanes[n, STREAMS]
    for s in range(known):
        work[1 + s, _ROWS] = 0
        work[1 + s, _DISTINCT] = 0
        work[1 + s, _LATE] = 0
        work[1 + s, _EARLY] = 0
        work[1 + s, _SLOT] = -1
        work[1 + s, _ON_GRID] = 0
        scratch[64 + 2 * s] = 0.0
        scratch[65 + 2 * s] = 0.0
    late = 0
    early = 0
    for i in range(first, last):
        row = numbers[i]
        t = rows[row, TIME]
        slot = rows[row, SLOT]
        s = rows[row, STREAM]
        is_late = t < start or (slot < 0 and slot != NO_SLOT)
        is_early = t > end
        late += is_late
        early += is_early
        if s < 0:
            continue
        work[1 + s, _ROWS] += 1
        work[1 + s, _LATE] += is_late
        work[1 + s, _EARLY] += is_early
        if slot != NO_SLOT and slot >= 0:
            if slot != work[1 + s, _SLOT]:
                work[1 + s, _DISTINCT] += 1
                work[1 + s, _SLOT] = slot
            off = float(t - work[1 + s, WAS_FIRST] - slot * work[1 + s, WAS_PERIOD])
            work[1 + s, _ON_GRID] += 1
            scratch[64 + 2 * s] += off
            scratch[65 + 2 * s] += off * off
    batches[b, B_LATE] = late
    batches[b, B_EARLY] = early
    batches[b, B_PART] = work[0, N_PARTS]
    at = work[0, N_PARTS]
    clocks = 0
    for s in range(known):
        expected = work[1 + s, WAS_SLOTS]
        if work[1 + s, _ROWS] == 0 and expected < 0:
            continue
        parts[at, P_STREAM] = s
        parts[at, P_NAME] = streams[n, s, NAME]
        parts[at, P_ROWS] = work[1 + s, _ROWS]
        parts[at, P_EXPECTED] = expected
        parts[at, P_MISSING] = max(0, expected - work[1 + s, _DISTINCT]) if expected >= 0 else -1
        parts[at, P_LATE] = work[1 + s, _LATE]
        parts[at, P_EARLY] = work[1 + s, _EARLY]
        parts[at, P_SKEW] = 0
        parts[at, P_KNOWN] = 1 if streams[n, s, TRACKED] != 0 and work[1 + s, _ROWS] > 0 else 0
        clocks += parts[at, P_KNOWN]
        hits = work[1 + s, _ON_GRID]
        floats[at, F_JITTER] = np.nan
        if hits >= 2:
            mean = scratch[64 + 2 * s] / hits
            floats[at, F_JITTER] = np.sqrt(max(0.0, scratch[65 + 2 * s] / hits - mean * mean))
        at += 1
    _measure(parts, floats, work[0, N_PARTS], at, clocks, streams, n, scratch)
    batches[b, B_PARTS] = at - work[0, N_PARTS]
    work[0, N_PARTS] = at


@lean_kernel
def _measure(parts, floats, first, last, clocks, streams, n, scratch):
    """Rate of each part, and skew against the median clock."""
    middle = 0
    if clocks >= 2:
        # Times of day as float64 are only exact to 256 ns; distances to the first clock are exact.
        base = 0
        k = 0
        for at in range(first, last):
            if parts[at, P_KNOWN] != 0:
                newest = streams[n, parts[at, P_STREAM], LAST]
                if k == 0:
                    base = newest
                scratch[k % 64] = newest - base  # more than 64 clocks: the last 64 stand for all
                k += 1
        middle = base + int(median(scratch, min(k, 64)))
    for at in range(first, last):
        s = parts[at, P_STREAM]
        if clocks >= 2 and parts[at, P_KNOWN] != 0:
            parts[at, P_SKEW] = streams[n, s, LAST] - middle
        else:
            parts[at, P_KNOWN] = 0
        measured = streams[n, s, MEASURED] if streams[n, s, TRACKED] != 0 else 0
        floats[at, F_RATE] = 1e9 / measured if measured > 0 else np.nan
