"""The arrays and numbers that the window kernels share, each declared once and used by name.

Vocabulary. A *lane* is one key. A *window* belongs to a lane and has a serial number there. A
*pane* is one emission of a window: its first rows make pane 0, and rows that come after an emission
make the next pane of the same window. Kernels see panes, row numbers, times and sizes, never a
payload.

A kernel walks the rows of all lanes in order, finds or opens the panes each row belongs to,
evaluates the triggers and writes two lists: *steps* (which rows join which pane, which pane starts
as a copy of another, which two are merged) and *fires* (the panes to emit, in order). Aggregates
follow the steps; payloads follow the row numbers.

Everything a kernel reads or writes comes in a few named tuples:

    KernelRows    the collection: lane, time, size of every row; what conditions said of it
    Settings      the configuration of the stage as whole numbers, and the wall time of the call
    Programs      the compiled triggers
    LaneState     the state per lane: watermark, next serial number, rates
    Call          the panes, and the lists the kernel writes
    Verdicts      what became of each row

Numba sees a named tuple as a struct, so a field costs nothing. Its type must not vary, or every
variant is compiled by itself: whole numbers are `int`, flags are `bool`, absent arrays are empty
ones of the same type, and what a kernel only reads is read-only (`as_readonly`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int32s, Int64s

Int = Any
"""A whole number inside a kernel: Python's or numpy's."""

Flags = NDArray[np.bool_]


class Family(IntEnum):
    """Which kernel assigns rows to windows."""

    ALIGNED = 0
    """Starts are multiples of a step: tumbling, sliding, fixed."""
    SESSION = 1
    """Windows grow with their rows and merge."""
    EVERYTHING = 2
    """From here on one open window per lane, in the order of arrival: until a trigger fires,"""
    COUNT = 3
    """until it has enough rows,"""
    STATE = 4
    """until a condition holds,"""
    ADAPTIVE = 5
    """or for a time that follows the load."""
    LOOK_BACK = 6
    """A window per row; `look_back.py` does that without a kernel of its own."""


class LateRows(IntEnum):
    """What becomes of a row whose windows are all closed."""

    DISCARD = 0
    """It is dropped, with its reason."""
    ASIDE = 1
    """It is delivered beside the data."""
    NEXT = 2
    """It joins the next window to close."""


class RowVerdict(IntEnum):
    """What became of a row."""

    PLACED = 0
    """It joined a window. 0, so that kernels write only the exceptions."""
    PLACED_LATE = 1
    """It joined a window that was complete, or was put into the next one to close."""
    DISCARDED = 2
    """Late, and the policy is to drop late rows."""
    ASIDE = 3
    """Late: delivered beside the data."""
    TOO_LARGE = 4
    """Larger than the whole memory budget."""
    REFUSED = 5
    """No memory, even after flushing."""
    OUTSIDE = 6
    """Outside any state window."""
    OUT_OF_RANGE = 7
    """Its time is too near to the ends of int64 for a window to fit around it."""


class FiringReason(IntEnum):
    """Why a pane was emitted, as a bit of its `fired` mask. Bits 0 to 31 are the stage's
    triggers, by their place in `TriggerProgram.names`; these reasons are not triggers."""

    WATERMARK = 1 << 40
    """The watermark completed the window."""
    SHUTDOWN = 1 << 41
    """The stream ended."""
    MEMORY_PRESSURE = 1 << 42
    """Open windows were flushed to make room for a row."""
    DURATION = 1 << 43
    """An adaptive window has reached its length."""
    COUNT = 1 << 44
    """A count window has all its rows."""
    STATE = 1 << 45
    """The `emit` condition of a state window held."""
    LATE = 1 << 46
    """Late rows changed a window that was complete."""
    ROW = 1 << 47
    """A row's own window (`LookBack`)."""
    FORGOTTEN = 1 << 48
    """The key was forgotten after a long silence."""
    FIRE = 1 << 49
    """A control signal asked for it."""
    FORMER_TRIGGER = 1 << 50
    """A trigger that the stage had before its settings changed."""


MAX_LEAVES = 32
"""Triggers of one stage: bits of a mask below `FiringReason`. More is a ConfigError."""

STACK = 64
"""Room for the intermediate masks of a trigger program; it never needs more than MAX_LEAVES."""


class Step(IntEnum):
    """What a step does."""

    ROWS = 0
    """Rows [first, last) join the pane."""
    COPY = 1
    """The pane starts as a copy of pane `first`."""
    MERGE = 2
    """Pane `first` becomes part of the pane."""


class Op(IntEnum):
    """What a step of a trigger program does: compare a measure of the pane, or combine."""

    TIME = 0
    """Wall time since the first row of the pane, in ns, reaches the argument."""
    COUNT = 1
    """Rows of the pane reach the argument."""
    SIZE = 2
    """Bytes of the rows since the last pane reach the argument."""
    RATE = 3
    """The rate has changed."""
    MEMORY = 4
    """Bytes of all buffered rows reach the argument."""
    PREDICATE = 5
    """The condition of this number holds for the row."""
    NEVER = 6
    """Never holds."""
    OR = 7
    """The mask of the left operand, or of the right one if the left does not hold."""
    AND = 8
    """The bits of both, if both hold."""


class PostfixProgram(NamedTuple):
    """A trigger as postfix steps: `Op`, its argument, and the bit that names it."""

    op: Int64s
    argument: Int64s
    bit: Int64s


class Programs(NamedTuple):
    """The triggers of a stage: before the watermark passes the end of a window, and after."""

    early: PostfixProgram
    late: PostfixProgram


_NO_EDGES: Int64s = np.zeros(0, np.int64)
_NO_EDGES.flags.writeable = False


class Settings(NamedTuple):
    """The configuration of a stage as the kernels read it. Times and lengths in ns."""

    family: int = Family.ALIGNED.value
    """A `Family`: which kernel assigns rows."""
    size: int = 0
    """Length of a window (aligned, of a sub-window where these are combined); gap of a session."""
    step: int = 0
    """Distance from one aligned window to the next; equal to `size` for tumbling ones."""
    offset: int = 0
    """Shift of the starts of aligned windows against 1970."""
    span: int = 0
    """Where sub-windows are combined: the length of the real window, else 0."""
    stride: int = 0
    """And its step."""
    target: int = 0
    """Rows of a count window; target rows of an adaptive one."""
    shortest: int = 0
    """Least length of an adaptive window."""
    longest: int = 0
    """Its greatest length."""
    lateness: int = 0
    """How long after its completion a window still takes late rows; 0: not at all."""
    policy: int = LateRows.ASIDE.value
    """A `LateRows`: what becomes of rows whose windows are closed."""
    accumulate: bool = False
    """A pane contains the rows of the panes before it."""
    in_order: bool = False
    """A row at t closes what ends before t."""
    buffered: bool = False
    """Rows are kept until they are emitted."""
    overhead: int = 0
    """Bytes the state adds to every buffered row."""
    limit: int = 0
    """Bytes at which panes are flushed (0: no budget)."""
    budget: int = 0
    """Bytes that a single row must not exceed."""
    reject: bool = False
    """Refuse rows beyond the limit instead of flushing for them."""
    once: int = 0
    """The bits of triggers that fire at most once per window."""
    period: int = 0
    """Period of the rate trigger (0: none)."""
    change: int = 0
    """Its threshold, in millionths."""
    earliest: int = 0
    latest: int = 0
    """Times outside these two are too near to the ends of int64."""
    wall: int = 0
    """Wall time of the call."""
    cumulate: bool = False
    """Where sub-windows are combined: windows of one `span` share its start, and end one sub-window
    after the other."""
    tracked: bool = False
    """The first and last row time of a pane matter: rows are buffered, or give emissions theirs."""
    complete: bool = False
    """Completions are written to `Call.marks`."""
    edges: Int64s = _NO_EDGES
    """Aligned windows of different lengths: where they begin, ascending; every window that a row of
    the call falls into lies between two neighbours. Empty where `size` and `step` say it."""


class KernelRows(NamedTuple):
    """A collection, as the kernels read it."""

    lane: Int32s
    time: Int64s
    size: Int64s
    """Bytes of each row; empty where no setting needs them."""
    holds: Flags
    """One line per predicate of the triggers, one entry per row."""
    mark: Int64s
    """Late rows: the watermark each was late for. Empty for others."""
    part: Int64s
    """State windows: the partition of each row. Empty where there is only one."""
    opens: Flags
    emits: Flags
    """State windows: the conditions. Empty for others."""


class LaneState(NamedTuple):
    """State per lane. Arrays a stage has no use for are empty."""

    watermark: Int64s
    serial: Int64s
    """The number of the lane's next window."""
    rate_period: Int64s
    """`RateChange`: the number of the current period,"""
    rate_rows: Int64s
    """the rows in it,"""
    rate_before: Int64s
    """and those in the period before, or -1."""
    recent_start: Int64s
    """`Adaptive`: start and rows of the open window,"""
    recent_rows: Int64s
    before_start: Int64s
    """of the window before,"""
    before_rows: Int64s
    duration: NDArray[np.float64]
    """and the present length of a window, in ns."""


class Panes(NamedTuple):
    """One entry per pane, in columns. Those up to `emitted` are kept in the state."""

    lane: Int64s
    start: Int64s
    end: Int64s
    serial: Int64s
    """The number of the window within its lane, in the order of opening."""
    pane: Int64s
    revision: Int64s
    rows: Int64s
    """How many rows this pane has."""
    bytes: Int64s
    wall: Int64s
    """Wall time of its first row."""
    first: Int64s
    last: Int64s
    """Least and greatest row time."""
    late: Int64s
    """Late rows of this pane."""
    fired: Int64s
    """0, or the mask of reasons: the pane has been emitted."""
    on_time: Int64s
    """1: the watermark has passed the end."""
    spent: Int64s
    """Once-only triggers of this window that have fired."""
    emitted: Int64s
    """Bytes of its rows that an earlier pane had already, where panes accumulate."""
    timing: Int64s
    """`Timing` of the emission."""
    part: Int64s
    next: Int64s
    """The next pane of the same lane, or -1."""
    dead: Int64s
    """1: closed for good, or replaced by its next pane."""


KEPT = Panes._fields[: Panes._fields.index("timing")]
"""The columns of the state's table of open windows."""


class Timing(IntEnum):
    """When a pane was emitted, against the watermark and the end of its window."""

    EARLY = 0
    """Before the window was complete."""
    ON_TIME = 1
    """By its completion."""
    LATE = 2
    """After it."""


class Steps(NamedTuple):
    """The list of steps: `Step`, the pane (or slot) it changes, and rows [first, last) or the pane
    to copy or merge in `first`."""

    what: Int64s
    pane: Int64s
    first: Int64s
    last: Int64s


class Totals(NamedTuple):
    """How much of a call's lists is in use, in arrays of one number."""

    panes: Int64s
    steps: Int64s
    fires: Int64s
    used: Int64s
    """Bytes of all rows that are buffered."""
    marks: Int64s


class Call(NamedTuple):
    """The panes of the state with room for new ones, and the lists a kernel writes."""

    panes: Panes
    totals: Totals
    steps: Steps
    fires: Int64s
    """Emitted panes, in order."""
    head: Int64s
    """Per lane: its newest pane (sessions: the one that starts last), or -1."""
    due_at: Int64s
    """Per lane: no pane is complete before the watermark reaches this."""
    table: Int64s
    """Hash table of panes, by lane and start or partition."""
    order: Int64s
    """Scratch: panes of a lane in the order in which they close."""
    stack: Int64s
    """Scratch: masks of a trigger program."""
    marks: Int64s
    """With `Settings.complete`: panes whose windows became complete, and as -1 - pane those that
    were closed for good after lateness, in order."""


class Verdicts(NamedTuple):
    """What became of each row: a `RowVerdict`, and for late ones by how many ns they were late."""

    status: NDArray[np.int8]
    behind: Int64s


def empty_steps(n: int) -> Steps:
    """Room for `n` steps."""
    return Steps(*np.empty((len(Steps._fields), n), np.int64))


def no_program() -> PostfixProgram:
    """A trigger that never fires."""
    none = np.zeros(0, np.int64)
    none.flags.writeable = False
    return PostfixProgram(none, none, none)
