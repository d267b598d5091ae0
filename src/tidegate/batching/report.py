# mypy: disable-error-code="no-untyped-def, no-untyped-call, assignment"
"""What a batch says about itself and its streams: what was expected, what is missing, how steady.

- *Late* is a row from before the batch (on a grid: before its first slot), *early* one from behind
  its end, which rode along.
- *Rate* is what the distances between messages say.
- *Jitter* is how far rows lie from their slots, as a standard deviation around their common offset.
- *Skew* compares the newest time of each stream at the moment of closing with the median over all:
  a stream whose clock runs two seconds ahead shows two seconds, whether or not they were corrected.
- A stream that does not gate says why.

The first half is the kernel that measures while a batch is written; the second half makes Arrow
columns of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batching.layout import FIRST_ROWS, NO_SLOT, CloseReason, Gate, Records
from tidegate.batching.period import median
from tidegate.core.arrow import empty
from tidegate.core.numba import interpret_first, lean_inline, lean_kernel
from tidegate.core.outcomes import Int32s, Int64s

__all__ = [
    "DATA_FIELDS",
    "REASONS",
    "SUMMARY_FIELDS",
    "BatchDecision",
    "data_columns",
    "summaries",
    "why_not_gating",
]

MAX_CLOCKS = 64
"""Clocks the median of a skew is taken over; of more, the last ones stand for all. Below about 8 a
few wrong clocks would be the majority; above, the insertion sort of `median` costs more than the
batch."""

TELL_UNSEEN_AFTER = 5
"""Batches before a gated name without a row is told: streams do not all start with the same
message. Five is also when a stream that fell silent is evicted."""


@lean_inline
def report_run(a, call, n, batch):
    """`report` for a run of expected pulses, each of which has a slot of its own: slots and times
    of its rows are written already, and `tally` has the sums of their offsets."""
    for s in range(a.lanes[n].streams):
        tally = a.tally[s]
        tally.rows = a.streams[s, n].count
        tally.late = 0
        tally.early = 0
        tally.distinct = tally.rows
        tally.on_grid = tally.rows
    for i in range(batch.first, batch.first + batch.rows):
        a.out_late[i] = False
    _finish_report(a, call, n, batch, np.int64(0), np.int64(0))


@lean_inline
def report(a, call, n, batch):
    """Measure a batch while it is written, and write one part per stream.

    One pass over the rows, which are sorted by time; so the distinct slots of a stream can be
    counted by comparing neighbours. A stream has a part if it had rows, or a grid and therefore
    should have had.

    Args:
        a: The `KernelArrays`. `tally` holds the grids of the closing window (`remember_grids`).
        call: The `KernelCall`, for the names that are waited for.
        n: Number of the lane.
        batch: Record of the batch with `start`, `end`, `first` and `rows`; `late`, `early`, `part`
            and `parts` are filled in here.
    """
    known = a.lanes[n].streams
    for s in range(known):
        tally = a.tally[s]
        tally.rows = 0
        tally.late = 0
        tally.early = 0
        tally.slot = -1
        tally.distinct = 0
        tally.on_grid = 0
        tally.off_sum = 0.0
        tally.off_square = 0.0
    late = 0
    early = 0
    start, end = batch.start, batch.end
    for i in range(batch.first, batch.first + batch.rows):
        row = a.rows[a.numbers[i]]
        t, slot, s = row.time, np.int64(row.slot), np.int64(row.stream)
        # A pulse just before the start can be slot 0: on a grid the slot decides.
        is_late = t < start if slot == NO_SLOT else slot < 0
        is_early = t > end
        a.out_slot[i] = slot
        a.out_late[i] = is_late
        a.out_stamp[i] = row.stamp
        late += is_late
        early += is_early
        if s < 0:
            continue
        tally = a.tally[s]
        tally.rows += 1
        tally.late += is_late
        tally.early += is_early
        if slot >= 0:
            if slot != tally.slot:
                tally.distinct += 1
                tally.slot = slot
            off = float(t - tally.had_first - slot * tally.had_period)
            tally.on_grid += 1
            tally.off_sum += off
            tally.off_square += off * off
    _finish_report(a, call, n, batch, np.int64(late), np.int64(early))


@lean_inline
def _finish_report(a, call, n, batch, late, early):
    """Write what the rows of a batch summed up to: its own fields, and one part per stream."""
    known = a.lanes[n].streams
    batch.late = late
    batch.early = early
    batch.part = a.counts[0].parts
    _write_parts(a, n, known)
    if batch.id >= TELL_UNSEEN_AFTER:
        _write_unseen(a, call, n)
    batch.parts = a.counts[0].parts - batch.part


@lean_inline
def _write_parts(a, n, known):
    """Write one part per stream, and its skew against the median clock.

    The skew of a single clock is not known: there is nothing to compare it with. What was
    corrected already is added, so the report shows how far off the clock is, not what is left.
    """
    counts = a.counts[0]
    first = counts.parts
    clocks = 0
    base = 0
    for s in range(known):
        tally, stream = a.tally[s], a.streams[s, n]
        if tally.rows == 0 and tally.had_slots < 0:
            continue
        part = a.parts[counts.parts]
        counts.parts += 1
        part.stream = s
        part.name = stream.name
        part.rows = tally.rows
        part.expected = tally.had_slots
        part.missing = max(0, tally.had_slots - tally.distinct) if tally.had_slots >= 0 else -1
        part.late = tally.late
        part.early = tally.early
        part.skew = 0
        part.skew_known = 0
        part.corrected = stream.offset
        part.gate = stream.gate if stream.tracked != 0 else Gate.NOT_GATED.value
        part.rate = np.nan
        part.jitter = np.nan
        if tally.on_grid >= 2:
            mean = tally.off_sum / tally.on_grid
            part.jitter = np.sqrt(max(0.0, tally.off_square / tally.on_grid - mean * mean))
        if stream.tracked == 0:
            continue
        if stream.measured > 0:
            part.rate = 1e9 / stream.measured
        if tally.rows > 0:
            # Times of day as float64 are only exact to 256 ns; distances to the first clock are
            # exact.
            if clocks == 0:
                base = stream.last
            a.scratch[clocks % MAX_CLOCKS] = stream.last - base
            clocks += 1
            part.skew_known = 1
    middle = base
    if clocks >= 2:
        middle += int(median(a.scratch, min(clocks, MAX_CLOCKS)))
    for at in range(first, counts.parts):
        part = a.parts[at]
        if part.skew_known != 0:
            if clocks >= 2:
                part.skew = a.streams[part.stream, n].last - middle + part.corrected
            else:
                part.skew_known = 0


@lean_inline
def _write_unseen(a, call, n):
    """Write one part per gated name of which no row ever came: mostly a name that was misspelt."""
    for i in range(len(call.wanted)):
        name = call.wanted[i]
        seen = False
        for s in range(a.lanes[n].streams):
            seen = seen or a.streams[s, n].name == name
        if seen:
            continue
        part = a.parts[a.counts[0].parts]
        a.counts[0].parts += 1
        part.stream = -1
        part.name = name
        part.rows = 0
        part.expected = -1
        part.missing = -1
        part.late = 0
        part.early = 0
        part.skew = 0
        part.skew_known = 0
        part.corrected = 0
        part.gate = Gate.NEVER_SEEN.value
        part.rate = np.nan
        part.jitter = np.nan


class BatchDecision(NamedTuple):
    """What one call decided, row by row and batch by batch."""

    order: Int64s
    """Numbers of the rows that leave, batch by batch, by time, then arrival."""
    slot: Int32s
    """Per row that leaves: its slot in the window, NO_SLOT without a grid."""
    late: NDArray[np.bool_]
    """Per row that leaves: whether it is from before its batch."""
    stamp: Int64s
    """Per row that leaves: the time it came with, in ns, before any correction."""
    batches: Records
    """One BATCH record per batch: lane by lane, within a lane in the order they closed."""
    parts: Records
    """The PART records of all batches; a batch says which are its own."""
    named: Int64s
    """Rows of the call that brought a name for the first time."""


REASONS = tuple(reason.name.lower() for reason in CloseReason)
"""What users read for each CloseReason, by number."""

_TEXT = [text.encode() for text in REASONS]
_LENGTH = np.array([len(text) for text in _TEXT], np.int64)
_REASON_TEXTS = pa.array(REASONS, pa.string())

DATA_FIELDS = (
    pa.field("batch_id", pa.int64()),
    pa.field("batch_start_ns", pa.int64()),
    pa.field("batch_end_ns", pa.int64()),
    pa.field("batch_reason", pa.string()),
    pa.field("slot", pa.int32()),
    pa.field("batch_late", pa.bool_()),
)
"""What every row of a batch carries behind its own columns."""

_STREAM = pa.struct(
    [
        pa.field("stream", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("expected", pa.int64()),
        pa.field("missing", pa.int64()),
        pa.field("late", pa.int64()),
        pa.field("early", pa.int64()),
        pa.field("rate_hz", pa.float64()),
        pa.field("jitter_ns", pa.float64()),
        pa.field("skew_ns", pa.int64()),
        pa.field("corrected_ns", pa.int64()),
        pa.field("why_not_gating", pa.string()),
    ]
)
"""One entry per stream in the column `streams` of a summary. The fields are those of
`StreamReport`; null where it says None."""

_STREAM_FIELDS = list(_STREAM)

SUMMARY_FIELDS = (
    pa.field("batch_id", pa.int64()),
    pa.field("batch_start_ns", pa.int64()),
    pa.field("batch_end_ns", pa.int64()),
    pa.field("batch_reason", pa.string()),
    pa.field("rows", pa.int64()),
    pa.field("late", pa.int64()),
    pa.field("early", pa.int64()),
    pa.field("moved_ns", pa.int64()),
    pa.field("complete", pa.bool_()),
    pa.field("streams", pa.list_(_STREAM)),
)
"""One row per batch, behind the carried key columns."""


def data_columns(decision: BatchDecision) -> tuple[list[pa.Array], Int32s]:
    """Return the columns of DATA_FIELDS for the rows that leave, in the order of `decision.order`,
    and the lane of each row.

    The slot is null for a row without a grid.
    """
    batches = decision.batches
    count = len(decision.order)
    rows = RowColumns(
        id=empty(count, np.int64),
        start=empty(count, np.int64),
        end=empty(count, np.int64),
        lane=empty(count, np.int32),
        text_ends=empty(count + 1, np.int32),
        late=np.zeros(count // 8 + 1, np.uint8),
        on_grid=np.zeros(count // 8 + 1, np.uint8),
    )
    missing = _spread_rows(batches, decision.slot, decision.late, rows)
    bits = pa.py_buffer(rows.on_grid) if missing else None
    columns = [
        _number_column(rows.id),
        _number_column(rows.start),
        _number_column(rows.end),
        pa.StringArray.from_buffers(count, pa.py_buffer(rows.text_ends), _reason_text(batches)),
        pa.Array.from_buffers(pa.int32(), count, [bits, pa.py_buffer(decision.slot)], missing),
        pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(rows.late)], 0),
    ]
    return columns, rows.lane


def _reason_text(batches: Records) -> pa.Buffer:
    """Return the reasons of all rows as one text, run by run: neighbours mostly have the same."""
    reasons, rows = batches["reason"], batches["rows"]
    edges = np.flatnonzero(reasons[1:] != reasons[:-1]) + 1
    if not len(edges):
        return pa.py_buffer(_TEXT[reasons[0]] * int(rows.sum()))
    edges = np.concatenate([[0], edges])
    counts = np.add.reduceat(rows, edges)
    runs = zip(reasons[edges].tolist(), counts.tolist(), strict=True)
    return pa.py_buffer(b"".join([_TEXT[reason] * count for reason, count in runs]))


class RowColumns(NamedTuple):
    """Memory for the columns that `spread_rows` writes: one entry per row that leaves."""

    id: Int64s
    """Number of its batch."""
    start: Int64s
    """Start of its batch, in ns."""
    end: Int64s
    """End of its batch, in ns."""
    lane: Int32s
    """Its lane."""
    text_ends: Int32s
    """Arrow's offsets of the reasons as text; one more than rows."""
    late: NDArray[np.uint8]
    """One bit per row: whether it is late. Zeros before the call."""
    on_grid: NDArray[np.uint8]
    """One bit per row: whether it has a slot. Zeros before the call; filled in only if a row has
    none."""


@lean_kernel
def spread_rows(batches, slot, late, out):
    """Write what a batch says about itself to each of its rows, in Arrow's layout.

    Args:
        batches: BATCH records in order; their rows are those that leave, one batch after the other.
        slot: Per row: its slot, or NO_SLOT.
        late: Per row: whether it is late.
        out: The `RowColumns`.

    Returns:
        How many rows have no slot.
    """
    # Everything in names of its own: the compiler cannot know that writing a column leaves the
    # records as they are, and would read them again at every row.
    ids, starts, ends, lanes, text_ends = out.id, out.start, out.end, out.lane, out.text_ends
    at = np.int64(0)
    letters = np.int64(0)
    missing = np.int64(0)
    text_ends[0] = 0
    for b in range(len(batches)):
        batch = batches[b]
        number, start, end, lane = batch.id, batch.start, batch.end, np.int32(batch.lane)
        late_rows, length = batch.late, _LENGTH[batch.reason]
        last = at + batch.rows
        for i in range(at, last):
            ids[i] = number
        for i in range(at, last):
            starts[i] = start
        for i in range(at, last):
            ends[i] = end
        for i in range(at, last):
            lanes[i] = lane
        before = letters + (1 - at) * length
        for i in range(at, last):
            text_ends[i + 1] = before + i * length
        letters += (last - at) * length
        if late_rows > 0:
            for i in range(at, last):
                if late[i]:
                    out.late[i >> 3] |= np.uint8(1 << (i & 7))
        at = last
    for i in range(at):
        missing += slot[i] == NO_SLOT
    if missing > 0:
        for i in range(at):
            if slot[i] != NO_SLOT:
                out.on_grid[i >> 3] |= np.uint8(1 << (i & 7))
    return missing


_spread_rows = interpret_first(spread_rows, lambda batches, slot, *_: len(slot), FIRST_ROWS)


def summaries(decision: BatchDecision, labels: pa.Array) -> list[pa.Array]:
    """Return the columns of SUMMARY_FIELDS, one row per batch.

    Args:
        decision: What the kernel decided.
        labels: The name of the stream of each part, as text.
    """
    batches = _fields_as_columns(decision.batches)
    offsets = np.append(batches["part"], len(decision.parts)).astype(np.int32)
    return [
        _number_column(batches["id"]),
        _number_column(batches["start"]),
        _number_column(batches["end"]),
        _REASON_TEXTS.take(pa.array(batches["reason"])),
        _number_column(batches["rows"]),
        _number_column(batches["late"]),
        _number_column(batches["early"]),
        _number_column(batches["moved"]),
        pa.array(batches["complete"] != 0),
        pa.ListArray.from_arrays(
            pa.array(offsets),
            _streams(_fields_as_columns(decision.parts), labels),
            type=SUMMARY_FIELDS[-1].type,
        ),
    ]


def _number_column(values: NDArray[Any], null: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as an Arrow column, without a copy of its own: `pa.array` takes ten times as long for
    a short one, and these columns are as short as a call has batches."""
    values = np.ascontiguousarray(values)
    bits = None
    if null is not None and null.any():
        bits = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [bits, pa.py_buffer(values)]
    return pa.Array.from_buffers(_ARROW[values.dtype.char], len(values), buffers)


_ARROW = {
    np.dtype(np.int64).char: pa.int64(),
    np.dtype(np.int32).char: pa.int32(),
    np.dtype(np.float64).char: pa.float64(),
}
"""Arrow's type for a numpy type, by its character: cheaper to look up than a dtype."""


def _fields_as_columns(records: Records) -> dict[str, NDArray[Any]]:
    """Return the fields of BATCH or PART records as arrays of their own, by name.

    In one pass: numpy takes one per field, and each of them reads all of the memory.
    """
    names = records.dtype.names or ()
    words = records.view(np.int64).reshape(len(records), len(names))
    columns = empty(len(records) * len(names), np.int64).reshape(len(names), len(records))
    _transpose(words, columns)
    return {name: columns[i].view(records.dtype[name]) for i, name in enumerate(names)}


@lean_kernel
def transpose(words, columns):
    """Write a table of words (rows x columns) to another one, columns x rows."""
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            columns[j, i] = words[i, j]


_transpose = interpret_first(transpose, lambda words, *_: len(words), FIRST_ROWS)


def _streams(parts: dict[str, NDArray[Any]], labels: pa.Array) -> pa.StructArray:
    """Return the parts as structs of type _STREAM, in order; the caller cuts them into lists."""
    no_grid = parts["expected"] < 0
    columns = [
        labels,
        _number_column(parts["rows"]),
        _number_column(parts["expected"], no_grid),
        _number_column(parts["missing"], no_grid),
        _number_column(parts["late"]),
        _number_column(parts["early"]),
        _number_column(parts["rate"], np.isnan(parts["rate"])),
        _number_column(parts["jitter"], np.isnan(parts["jitter"])),
        _number_column(parts["skew"], parts["skew_known"] == 0),
        _number_column(parts["corrected"]),
        _why_not(parts["gate"], parts["rate"]),
    ]
    return pa.StructArray.from_arrays(columns, fields=_STREAM_FIELDS)


def why_not_gating(gate: int, rate_hz: float) -> str | None:
    """Return why a stream does not gate, in words; None if it does.

    Args:
        gate: A `Gate`.
        rate_hz: Its measured rate, for the text; ignored where the rate is not the reason.

    Example:
        >>> why_not_gating(Gate.NOT_WHOLE, 2.5)
        '2.5 Hz is not a whole rate; set rates: any'
    """
    rate = f"{rate_hz:.4g} Hz"
    return {
        Gate.GATES: None,
        Gate.NOT_GATED: "not gated, or silent for five batches",
        Gate.LEARNING: "its rate is not known yet: fewer than five messages",
        Gate.NOT_WHOLE: f"{rate} is not a whole rate; set rates: any",
        Gate.TOO_SLOW: f"{rate} is less than one message per batch; use longer batches",
        Gate.FAR: "its clock is more than 1000 batch lengths away",
        Gate.NEVER_SEEN: "gated, but no message of this name ever came",
    }[Gate(gate)]


def _why_not(gates: Int64s, rates: NDArray[np.float64]) -> pa.Array:
    """Return `why_not_gating` of every part, null for those that gate.

    Only streams that do not gate are looked at, and equal cases (same gate, same rate to the
    millihertz) are written once.
    """
    others = np.flatnonzero(gates)
    if not len(others):
        return pa.nulls(len(gates), pa.string())
    named = np.isin(gates[others], (Gate.NOT_WHOLE, Gate.TOO_SLOW))
    millihertz = np.where(named, np.nan_to_num(rates[others]) * 1000, 0).astype(np.int64)
    cases, which = np.unique(millihertz * len(Gate) + gates[others], return_inverse=True)
    texts = [why_not_gating(c % len(Gate), c // len(Gate) / 1000) for c in cases.tolist()]
    at = np.zeros(len(gates), np.int64)
    at[others] = which
    return pa.array(texts, pa.string()).take(pa.array(at, mask=gates == 0))
