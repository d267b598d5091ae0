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
from tidegate.errors import StateError

__all__ = [
    "BATCH",
    "COUNTS",
    "FIRST_ROWS",
    "LANE",
    "LISTS",
    "MAX_CHANGES",
    "MAX_LENGTH_NS",
    "NEVER",
    "NO_SLOT",
    "PART",
    "REACH_NS",
    "RING",
    "ROW",
    "STREAM",
    "TALLY",
    "UNTIMED",
    "CloseReason",
    "Gate",
    "KernelArrays",
    "KernelCall",
    "Place",
    "Records",
    "check_state_values",
    "lane_records",
    "state_columns",
    "stream_memory",
    "stream_records",
]

Records = NDArray[Any]
"""An array of one of the record types below."""

RING = 32
"""Distances between messages remembered per stream. Long enough for a steady median, short enough
to follow a new rate within 16 pulses; below about 8, two missed pulses in a row move the median."""

REACH_NS = 2**62 - 2**58
"""Decisions are made as if times lay within about 137 years of 1970, so that the distance between
any two of them, and a thousand batch lengths more, fits into int64. Rows keep the time they came
with."""

MAX_LENGTH_NS = 86_400 * 10**9
"""The longest batch: one day. A thousand lengths must still fit into int64, and no one waits longer
for a batch."""

MOST_AHEAD = 1_000_000
"""The most windows between a window's start and the high-water mark of a state that is read. It is
three, and more only for a while after the length was changed to a small part of what it was. Each
of them closes at the next row, and a forged mark would stand for more than memory holds."""

FIRST_ROWS = 20_000
"""Rows that the kernels of batching handle in plain Python on a new machine (`interpret_first`).
Compiling them takes as long as 200,000 rows in plain Python, so a first collection of usual size
(10,000) leaves within two seconds of CPU instead of waiting half a minute."""

NO_SLOT = -(2**31)
"""The slot of a row without a grid. The lowest int32, which no real slot is clipped to."""

NEVER = 2**62
"""A time that does not come: later than any clipped time (REACH_NS), and adding a batch
length to it still fits into int64."""


MAX_CHANGES = 8
"""New batch lengths that may wait for their effective time, per lane. More are refused with an
error row; a schedule longer than that belongs into the rows, not into control."""

UNTIMED = -NEVER
"""The effective time of a new length that has none: it applies at the next close."""


class CloseReason(IntEnum):
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
    IDLE = 7
    """No row came for `idle_close` of wall time."""


class Gate(IntEnum):
    """Whether a stream gates, and why not. The texts users see are in report.py."""

    GATES = 0
    """It has a grid, and batches wait for its last slot."""
    NOT_GATED = 1
    """It is not one of the gated streams, or it was evicted after five batches without a row."""
    LEARNING = 2
    """Fewer than five messages were seen."""
    NOT_WHOLE = 3
    """Its rate is no whole number of Hz, and `rates` asks for one."""
    TOO_SLOW = 4
    """Fewer than one pulse per batch."""
    FAR = 5
    """Its clock is more than a thousand batch lengths away."""
    NEVER_SEEN = 6
    """A gated name of which no row ever came."""


class Place(IntEnum):
    """Where a row is; the first three are also the lists of a lane."""

    ACTIVE = 0
    """In the window."""
    OVER = 1
    """On the grid of its stream, but behind the last slot of the window."""
    HELD = 2
    """Behind the end of the window, without a grid."""


def _record_type(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    """A record type whose elements have attributes, in kernels and (np.record) in plain Python."""
    return np.dtype((np.record, np.dtype(list(fields), align=True)))


def _int64_fields(*names: str) -> list[tuple[str, Any]]:
    """Return int64 fields of these names, for `_record_type`."""
    return [(name, np.int64) for name in names]


# fmt: off
LANE = _record_type(*_int64_fields(
    "open",          # 1 once the first batch has left and a window stands
    "start",         # the window is [start, start + length)
    "length",
    "changes",       # new lengths that wait for their time: how many of the two arrays at the end
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
    "moved",         # how far recovery moved this window (ns), and the CloseReason of the move or 0
    "move",
    "rows",          # rows that wait
    "arrived_at",    # wall time of the last row
    "before",        # start of the window that closed last; UNTIMED before the second
), ("change_at", np.int64, (MAX_CHANGES,)), ("change_length", np.int64, (MAX_CHANGES,)))
"""One key."""

STREAM = _record_type(*_int64_fields(
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
    "gate",          # a Gate
    "follows",       # rates "any": 1 while `first` and `slots` are those of the window before
    "locked",        # rates "any": messages the phase was followed through; 0: not followed
    "phase",         # rates "any": time of the newest pulse, smoothed
    "offset",        # skew correction (ns): what is subtracted from every time of the stream
), ("fine", np.float64), ("ring", np.int64, (RING,)))
"""One stream of a lane, with its smoothed period (`fine`, in ns, rates "any") and the distances
between its newest messages."""

ROW = _record_type(
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

LISTS = _record_type(
    ("head", np.int32, (3,)),   # by Place: first and last row of each list, or -1
    ("tail", np.int32, (3,)),
    ("heap", np.int32),         # root of the heap of far overflow, or -1
)
"""The lists of one lane."""

BATCH = _record_type(*_int64_fields(
    "lane", "id", "start", "end", "reason",
    "first", "rows",            # its rows in the output: first and count
    "late", "early", "moved", "complete",
    "part", "parts",            # its parts: first and count
))
"""One batch that leaves."""

PART = _record_type(*_int64_fields(
    "stream", "name", "rows",
    "expected", "missing",      # slots; -1 without a grid
    "late", "early",
    "skew", "skew_known",       # ns ahead of the median clock; 1 if it was measured
    "corrected",                # ns that were subtracted from its times
    "gate",                     # a Gate
), ("rate", np.float64), ("jitter", np.float64))
"""What one stream contributed to one batch. NaN: not known."""

TALLY = _record_type(*_int64_fields(
    "rows", "late", "early", "slot", "distinct", "on_grid",
    "had_slots", "had_first", "had_period",   # the grid while the window stood; slots -1 for none
), ("off_sum", np.float64), ("off_square", np.float64))
"""Sums over the rows of one stream while its batch is written."""

COUNTS = _record_type(*_int64_fields("rows", "batches", "parts", "named"))
"""What a call has written so far."""
# fmt: on


class KernelArrays(NamedTuple):
    """State of all lanes, rows that wait, and buffers for what a call decides."""

    rows: Records
    """ROW per row number: rows that wait, rows of the call, and rows that have left since the last
    compaction."""
    lists: Records
    """LISTS per lane."""
    lanes: Records
    """LANE per lane; the memory of the state."""
    streams: Records
    """STREAM per stream number and lane (`stream_memory`); the memory of the state."""
    find: NDArray[np.int16]
    """Per lane a hash table from the digest of a name to its stream number; -1 for an empty slot.
    """
    numbers: Int64s
    """Row numbers in the order they leave; behind that, scratch."""
    spare: Int64s
    """Scratch of the same length, for sorting."""
    out_slot: Int32s
    """Slot, lateness and original time of each row that leaves, beside `numbers`."""
    out_late: NDArray[np.bool_]
    out_stamp: Int64s
    batches: Records
    """BATCH per batch that leaves; `counts.batches` are filled."""
    parts: Records
    """PART per batch and stream; `counts.parts` are filled."""
    named: Int64s
    """Rows that brought a name for the first time."""
    tally: Records
    """TALLY per stream number, for the batch that is being written."""
    counts: Records
    """One COUNTS record: how far the buffers are filled."""
    known: NDArray[np.uint16]
    """Per name of the call: the number of its stream in the lane it was last seen in. A guess: the
    stream's record says whether it is right."""
    scratch: NDArray[np.float64]
    """Scratch for medians of periods and clocks; at least RING and MAX_CLOCKS long."""


class BatchFrame(NamedTuple):
    """What is known of a batch before its report."""

    last: Any
    """End of its rows in `numbers`."""
    start: Any
    """Start of the batch, in ns."""
    end: Any
    """End of the batch, in ns."""
    reason: Any
    """A CloseReason."""
    complete: Any
    """1 if every gating stream reached its last slot, else 0."""


class KernelCall(NamedTuple):
    """What a call brings: its rows as columns, and the settings. Indices are unsigned: those of
    signed ones that are below zero count from the end, and the compiled code would look for them.
    """

    lane: Int32s
    """Per row: the number of its lane."""
    time_ns: Int64s
    """Per row: its event time in ns, as it came."""
    order: NDArray[np.uint32]
    """Indices of the rows in the order they are handled: lane by lane, within a lane as they came.
    Empty: as they came."""
    ends: Int32s
    """Per lane: where its rows end in `order`. Empty: not known."""
    code: NDArray[np.uint32]
    """Per row: which of the names below."""
    digests: Int64s
    """Per name: its 64-bit digest."""
    gated: NDArray[np.bool_]
    """Per name: whether batches may wait for its stream."""
    wanted: Int64s
    """Digests of the gated names, where they were listed."""
    length: int
    """Batch length of a lane that has none yet (ns)."""
    timeout: float
    """In batch lengths; infinite for gates only."""
    limit: int
    """Rows that may wait per lane."""
    wall: int
    """Wall time (ns), for the stall check and `idle` alone."""
    idle: int
    """Wall time (ns) without a row after which everything leaves; NEVER for not at all."""
    any_rate: bool
    """True: periods and phases are real numbers. False: rates are whole numbers of Hz."""
    correct_skew: bool
    """Whether the measured clock offset of a stream is subtracted from its times."""
    patient: bool
    """True: messages one at a time. False: all rows as one call, as the recorded batcher did."""


def state_columns(max_streams: int) -> dict[str, Column]:
    """Return the arrays of the state, for at most `max_streams` streams per lane.

    All but the hash table are int64, so that a snapshot need not know the records. The hash table
    has a power of two of slots, at least twice `max_streams`, so that a mask finds a slot and a
    search ends soon.
    """
    places = 1 << (2 * max_streams - 1).bit_length()
    return {
        "lane": Column(np.int64, (LANE.itemsize // 8,)),
        "stream": Column(np.int64, (max_streams, STREAM.itemsize // 8), apart=True),
        "find": Column(np.int16, (places,), -1),
    }


def lane_records(state: State) -> Records:
    """The lanes of a state, as records that share its memory."""
    return state["lane"].view(LANE)[:, 0]


def stream_records(state: State) -> Records:
    """The streams of a state (lanes by streams), as records that share its memory."""
    return state["stream"].view(STREAM)[:, :, 0]


def stream_memory(state: State) -> Records:
    """The streams of a state (streams by lanes) as records, for kernels: always contiguous, so that
    they are compiled once.

    Most lanes have few streams. Kept stream by stream, memory for the others is never touched, and
    the first streams of neighbouring lanes are neighbours.
    """
    array = state["stream"].swapaxes(0, 1)
    if not array.flags.c_contiguous:  # a state that was read
        array = np.ascontiguousarray(array)
        state.arrays["stream"] = array.swapaxes(0, 1)
    return array.view(STREAM)[:, :, 0]


def check_state_values(state: State, rows: Records) -> None:
    """Check everything the kernels index by, or loop over, in a state that was read.

    The kernels run without bounds checks: a wrong number in a damaged or forged snapshot would
    read and write memory that is not ours. What is only computed with is not checked.

    Args:
        state: The state, with the arrays of `state_columns`.
        rows: The records of the rows that wait.

    Raises:
        StateError: if a value is out of range, or counts do not agree with the rows.
    """
    lanes, streams, find = lane_records(state), stream_records(state), state["find"]
    width = streams.shape[1]
    used = np.arange(width) < lanes["streams"][:, None]
    known = np.take_along_axis(
        np.concatenate([used, np.zeros((len(used), 1), np.bool_)], axis=1),
        np.clip(find, -1, width).astype(np.int64) % (width + 1),
        axis=1,
    )
    far = REACH_NS + NEVER // 2
    rules = {
        "number of streams": _all_between(lanes["streams"], 0, width),
        "number of changes": _all_between(lanes["changes"], 0, MAX_CHANGES),
        "number of rows": bool((lanes["rows"] >= 0).all()),
        "batch length": _all_between(lanes["length"], 0, MAX_LENGTH_NS)
        and bool((lanes["length"][lanes["open"] != 0] > 0).all())
        and _all_between(_scheduled(lanes), 1, MAX_LENGTH_NS),
        "window": _all_between(lanes["start"], -far, far)
        and _all_between(lanes["mark"], -far, far),
        "high-water mark": bool((_ahead(lanes) <= MOST_AHEAD).all()),
        "recovery": _all_between(lanes["move"], 0, len(CloseReason) - 1),
        "hash table of streams": _all_between(find, -1, width - 1)
        and bool((known | (find < 0)).all())
        and bool((find < 0).any(axis=1).all()),
        "ring of distances": _all_between(streams["diffs"], 0, RING)
        and _all_between(streams["head"], 0, RING - 1)
        and bool((streams["ring"] >= 0).all()),
        "grid": _all_between(streams["period"], 0, NEVER)
        and _all_between(streams["origin"], -far, far)
        and _all_between(streams["last"], -far, far)
        and bool(np.isfinite(streams["fine"]).all())
        and bool((streams["fine"][streams["locked"] != 0] >= 1.0).all())
        and _all_between(streams["locked"], 0, NEVER),
        "gate": _all_between(streams["gate"], 0, len(Gate) - 1)
        and bool((lanes["waiting"] <= lanes["gating"]).all()),
        "rows that wait": len(rows) < 2**31
        and _all_between(rows["lane"], 0, len(lanes) - 1)
        and _all_between(rows["place"], Place.ACTIVE, Place.HELD)
        and _all_between(rows["stream"], -1, width - 1)
        and _all_between(rows["time"], -far, far)
        and bool(((rows["gated"] == 0) | (rows["stream"] >= 0)).all()),
    }
    for what, holds in rules.items():
        if not holds:
            raise StateError(f"state of batching is corrupt: {what} out of range")
    count = np.bincount(rows["lane"], minlength=len(lanes))
    if (count != lanes["rows"]).any() or (lanes["open"][count > 0] == 0).any():
        raise StateError("state of batching is corrupt: its counts of rows do not agree")
    if (rows["stream"] >= lanes["streams"][rows["lane"]]).any():
        raise StateError("state of batching is corrupt: a row has an unknown stream")
    held = np.zeros(streams.shape, np.int64)
    own = rows["stream"] >= 0
    np.add.at(held, (rows["lane"][own], rows["stream"][own].astype(np.int64)), 1)
    if (held[used] != streams["held_rows"][used]).any():
        raise StateError("state of batching is corrupt: its counts of rows do not agree")


def _all_between(values: NDArray[Any], low: int, high: int) -> bool:
    """Return whether all values lie in `low` to `high`, both included."""
    return bool(((values >= low) & (values <= high)).all())


def _ahead(lanes: Records) -> Int64s:
    """How many windows of each lane lie below its high-water mark, and close at the next row."""
    ahead = np.maximum(lanes["mark"].astype(np.float64) - lanes["start"], 0.0)
    return np.where(lanes["open"] != 0, ahead // np.maximum(lanes["length"], 1), 0).astype(np.int64)


def _scheduled(lanes: Records) -> Int64s:
    """The batch lengths that wait for their time."""
    taken = np.arange(MAX_CHANGES) < np.clip(lanes["changes"], 0, MAX_CHANGES)[:, None]
    return np.asarray(lanes["change_length"][taken], np.int64)
