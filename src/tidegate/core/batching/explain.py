"""What a batch says about its streams: what was expected, what is missing, how steady, how skewed.

Late is a row from before the batch, early one from behind its end (it rode along). Rate is what the
distances between messages say; jitter is how far rows lie from their slots, as a standard deviation
around their common offset. Skew compares the newest time of each stream at the moment of closing
with the median over all: a stream whose clock runs two seconds ahead shows two seconds.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.batching.columns import (
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
)
from tidegate.core.batching.period import median
from tidegate.core.jit import kernel

# Columns of the tally of one stream; `was` (see closing) has the window's grid beside it.
_ROWS, _DISTINCT, _LATE, _EARLY, _SLOT, _ON_GRID = range(6)
TALLY_COLUMNS = 8


@kernel
def explain(rows, first, last, start, end, lane, streams, batch, out):  # type: ignore[no-untyped-def]
    """Write one part per stream that had rows, or should have had."""
    numbers, _, _, parts, floats, counters, scratch, was, tally = out
    known = lane[STREAMS]
    for s in range(known):
        tally[s, _ROWS] = 0
        tally[s, _DISTINCT] = 0
        tally[s, _LATE] = 0
        tally[s, _EARLY] = 0
        tally[s, _SLOT] = -1
        tally[s, _ON_GRID] = 0
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
        tally[s, _ROWS] += 1
        tally[s, _LATE] += is_late
        tally[s, _EARLY] += is_early
        if slot != NO_SLOT and slot >= 0:
            if slot != tally[s, _SLOT]:
                tally[s, _DISTINCT] += 1
                tally[s, _SLOT] = slot
            off = float(t - was[s, 1] - slot * was[s, 2])
            tally[s, _ON_GRID] += 1
            scratch[64 + 2 * s] += off
            scratch[65 + 2 * s] += off * off
    batch[B_LATE] = late
    batch[B_EARLY] = early
    batch[B_PART] = counters[N_PARTS]
    at = counters[N_PARTS]
    clocks = 0
    for s in range(known):
        expected = was[s, 0]
        if tally[s, _ROWS] == 0 and expected < 0:
            continue
        part = parts[at]
        part[P_STREAM] = s
        part[P_NAME] = streams[s, NAME]
        part[P_ROWS] = tally[s, _ROWS]
        part[P_EXPECTED] = expected
        part[P_MISSING] = max(0, expected - tally[s, _DISTINCT]) if expected >= 0 else -1
        part[P_LATE] = tally[s, _LATE]
        part[P_EARLY] = tally[s, _EARLY]
        part[P_SKEW] = 0
        part[P_KNOWN] = 1 if streams[s, TRACKED] != 0 and tally[s, _ROWS] > 0 else 0
        clocks += part[P_KNOWN]
        n = tally[s, _ON_GRID]
        floats[at, F_JITTER] = np.nan
        if n >= 2:
            mean = scratch[64 + 2 * s] / n
            floats[at, F_JITTER] = np.sqrt(max(0.0, scratch[65 + 2 * s] / n - mean * mean))
        at += 1
    _measure(parts, floats, counters[N_PARTS], at, clocks, streams, out)
    batch[B_PARTS] = at - counters[N_PARTS]
    counters[N_PARTS] = at


@kernel
def _measure(parts, floats, first, last, clocks, streams, out):  # type: ignore[no-untyped-def]
    """Rate of each part, and skew against the median clock."""
    _, _, _, _, _, _, scratch, _, _ = out
    middle = 0
    if clocks >= 2:
        # Times of day as float64 are only exact to 256 ns; distances to the first clock are exact.
        base = 0
        n = 0
        for at in range(first, last):
            if parts[at, P_KNOWN] != 0:
                newest = streams[parts[at, P_STREAM], LAST]
                if n == 0:
                    base = newest
                scratch[n % 64] = newest - base  # more than 64 clocks: the last 64 stand for all
                n += 1
        middle = base + int(median(scratch, min(n, 64)))
    for at in range(first, last):
        s = parts[at, P_STREAM]
        if clocks >= 2 and parts[at, P_KNOWN] != 0:
            parts[at, P_SKEW] = streams[s, LAST] - middle
        else:
            parts[at, P_KNOWN] = 0
        measured = streams[s, MEASURED] if streams[s, TRACKED] != 0 else 0
        floats[at, F_RATE] = 1e9 / measured if measured > 0 else np.nan
