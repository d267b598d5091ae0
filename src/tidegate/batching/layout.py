"""The records the batching kernel works on, by name.

State is two arrays of int64 words with a lane axis (`lane`, `stream`) and a small hash table
(`find`); kernels see them as records. Rows, lists, batches, parts and tallies are records too, but
live in memory only. Everything a kernel reads or writes is one `KernelArrays`; everything a call
brings is one `KernelCall`.

    lane     one key: the window that stands, its clocks, its counters
    stream   one stream of a lane: its measured period, its grid, its progress in the window
    row      one message that waits or has just come; linked into one of the lists of its lane
    batch    one batch that was decided; `parts` say what each of its streams contributed
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.state import Column, State

__all__ = [
    "BATCH",
    "LANE",
    "LISTS",
    "NEVER",
    "NO_SLOT",
    "PART",
    "RING",
    "ROW",
    "STREAM",
    "TALLY",
    "KernelArrays",
    "KernelCall",
    "Place",
    "Reason",
    "lane_records",
    "state_columns",
    "stream_records",
]

Records = NDArray[Any]
"""An array of one of the record types below."""

RING = 32
"""Distances between messages remembered per stream. Long enough for a steady median, short enough
to follow a new rate within 16 pulses; below about 8, two missed pulses in a row move the median."""

NO_SLOT = -(2**31)
"""The slot of a row without a grid. The lowest int32, which no real slot is clipped to."""

NEVER = 2**62
"""A time that does not come: later than any clipped time (see kernel.REACH_NS), and adding a batch
length to it still fits into int64."""


class Reason(IntEnum):
    """Why a batch closed. The names in lower case are what users see in `batch_reason`."""

    FIRST = 0
    """What came first opens the window and leaves at once."""
    GATE = 1
    """Every gating stream reached its last slot."""
    TIMEOUT = 2
    """The high-water mark passed `timeout` batch lengths from the window's start."""
    GAP = 3
    """The window had been moved over a silence."""
    STALL = 4
    """The window had been moved because nothing closed for ten batch lengths of wall time."""
    FLUSH = 5
    """The stream ended."""
    LIMIT = 6
    """More than `max_rows` rows waited."""


class Place(IntEnum):
    """Where a row is; the first three are also the lists of a lane."""

    GONE = -1
    """It has left with a batch."""
    ACTIVE = 0
    """In the window."""
    OVER = 1
    """On the grid of its stream, but behind the last slot of the window."""
    HELD = 2
    """Behind the end of the window, without a grid."""


def _record(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    """A record type whose elements have attributes, in kernels and (np.record) in plain Python."""
    return np.dtype((np.record, np.dtype(list(fields), align=True)))


def _words(*names: str) -> list[tuple[str, Any]]:
    return [(name, np.int64) for name in names]


# fmt: off
LANE = _record(*_words(
    "open",          # 1 once the first batch has left and a window stands
    "start",         # the window is [start, start + length)
    "length",
    "pending",       # a length that applies at the next close; 0 for none
    "timeout",       # ns from the window's start; NEVER for gates only
    "hwm",           # high-water mark, at most three lengths past the start
    "mark",          # the same without what implausible rows added: survives a close
    "closed_at",     # wall time of the last close or stall check
    "batches",       # batches so far = the id of the next
    "gating",        # streams with a grid
    "waiting",       # of these, the ones whose last slot was not reached yet
    "pulses",        # rows of gating streams inside the window
    "streams",       # streams known by name
    "over_min",      # earliest overflow, or NEVER
    "streak",        # implausible rows in a row: their count, earliest and newest time
    "streak_min",
    "streak_max",
    "far",           # the same for rows of gating streams in another epoch
    "far_min",
    "far_max",
    "moved",         # how far recovery moved this window (ns), and the Reason of the move or 0
    "move",
    "rows",          # rows that wait
))
"""One key."""

STREAM = _record(*_words(
    "name",          # 64-bit digest of the name
    "last",          # newest observed time
    "diffs",         # distances in the ring, and where the next one goes
    "head",
    "absent",        # closes in a row without a row
    "tracked",       # 1 while it is measured
    "origin",        # the grid: time of pulse 0, ns between pulses (0: no grid), slots per window
    "period",
    "slots",
    "first",         # pulse index of slot 0 of the window
    "reached",       # highest slot reached in this window
    "count",         # rows in this window
    "first_any",     # time of the first of them, and of the first at or after the start
    "first_after",
    "held_rows",     # rows that wait anywhere: the record may not be given to another stream
    "measured",      # measured period in whole ns; 0 for none
    "seen",          # 1 once its name was written to the state
), ("ring", np.int64, (RING,)))
"""One stream of a lane, with the distances between its newest messages."""

ROW = _record(
    ("time", np.int64),     # the time decisions go by
    ("stamp", np.int64),    # the time it came with
    ("lane", np.int32),
    ("slot", np.int32),     # in the window that stands; NO_SLOT without a grid
    ("next", np.int32),     # the row behind it in its list, or -1
    ("left", np.int32),     # children in the heap of far overflow, or -1
    ("right", np.int32),
    ("stream", np.int16),   # -1: more streams than there are records for; rides along
    ("rank", np.int8),      # of the leftist heap
    ("gated", np.int8),
    ("place", np.int8),     # a Place
)
"""One message that waits, or has come with this call."""

LISTS = _record(
    ("head", np.int32, (3,)),   # by Place: first and last row of each list, or -1
    ("tail", np.int32, (3,)),
    ("heap", np.int32),         # root of the heap of far overflow, or -1
)
"""The lists of one lane."""

BATCH = _record(*_words(
    "lane", "id", "start", "end", "reason",
    "first", "rows",            # its rows in the output: first and count
    "late", "early", "moved", "complete",
    "part", "parts",            # its parts: first and count
))
"""One batch that leaves."""

PART = _record(*_words(
    "stream", "name", "rows",
    "expected", "missing",      # slots; -1 without a grid
    "late", "early",
    "skew", "skew_known",       # ns ahead of the median clock; 1 if it was measured
), ("rate", np.float64), ("jitter", np.float64))
"""What one stream contributed to one batch. NaN: not known."""

TALLY = _record(*_words(
    "rows", "late", "early", "slot", "distinct", "on_grid",
    "had_slots", "had_first", "had_period",   # the grid while the window stood; slots -1 for none
), ("off_sum", np.float64), ("off_square", np.float64))
"""Sums over the rows of one stream while its batch is written."""

COUNTS = _record(*_words("rows", "batches", "parts", "named"))
"""What a call has written so far."""
# fmt: on


class KernelArrays(NamedTuple):
    """State of all lanes, rows that wait, and buffers for what a call decides."""

    rows: Records
    lists: Records
    lanes: Records
    streams: Records
    find: NDArray[np.int16]
    numbers: Int64s
    """Row numbers in the order they leave; behind that, scratch."""
    spare: Int64s
    out_slot: Int32s
    """Slot, lateness and original time of each row that leaves, beside `numbers`."""
    out_late: NDArray[np.bool_]
    out_stamp: Int64s
    batches: Records
    parts: Records
    named: Int64s
    """Rows that brought a name for the first time."""
    tally: Records
    counts: Records
    scratch: NDArray[np.float64]


class KernelCall(NamedTuple):
    """What a call brings: its rows as columns, and the settings."""

    lane: Int32s
    time_ns: Int64s
    code: Int32s
    """Per row: which of the names below."""
    digests: Int64s
    gated: NDArray[np.bool_]
    length: int
    """Batch length of a lane that has none yet (ns)."""
    timeout: float
    """In batch lengths; infinite for gates only."""
    limit: int
    """Rows that may wait per lane."""
    wall: int
    """Wall time (ns), for the stall check alone."""
    patient: bool
    """True: messages one at a time. False: all rows as one call, as the recorded batcher did."""


def state_columns(max_streams: int) -> dict[str, Column]:
    """The arrays of the state, for at most `max_streams` streams per lane."""
    places = 1 << (2 * max_streams - 1).bit_length()
    return {
        "lane": Column(np.int64, (LANE.itemsize // 8,)),
        "stream": Column(np.int64, (max_streams, STREAM.itemsize // 8)),
        "find": Column(np.int16, (places,), -1),
    }


def lane_records(state: State) -> Records:
    """The lanes of a state, as records that share its memory."""
    return state["lane"].view(LANE)[:, 0]


def stream_records(state: State) -> Records:
    """The streams of a state (lanes by streams), as records that share its memory."""
    return state["stream"].view(STREAM)[:, :, 0]
