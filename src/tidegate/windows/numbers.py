"""The numbers the window kernels speak in: columns of an entry, settings, verdicts, reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]
Int = Any
"""A whole number inside a kernel: Python's or numpy's."""

# -- the columns of an entry; those up to PART are kept in the state ------------------------------
(
    E_LANE,
    E_START,
    E_END,
    E_SERIAL,  # the number of the window within its lane, in the order of opening
    E_PANE,
    E_REVISION,
    E_COUNT,  # rows of this pane
    E_BYTES,
    E_WALL,  # wall time of the pane's first row
    E_FIRST,
    E_LAST,
    E_LATE,  # late rows of this pane
    E_FIRED,  # 0, or the mask of reasons: the pane has been emitted
    E_ONTIME,  # the watermark has passed the end
    E_PART,
    E_NEXT,  # the next entry of the same lane
    E_DEAD,  # closed for good, or replaced by its next pane
) = range(17)
FIELDS = 17
KEPT = (
    "start",
    "end",
    "serial",
    "pane",
    "revision",
    "count",
    "bytes",
    "wall",
    "first",
    "last",
    "late",
    "fired",
    "ontime",
)
"""The names of the state columns of an entry, from E_START to E_ONTIME."""

# -- settings of a call ---------------------------------------------------------------------------
(
    C_SIZE,
    C_STEP,
    C_OFFSET,
    C_SPAN,  # when sub-windows are combined: the size of the real window, else 0
    C_STRIDE,  # and its step
    C_LATENESS,
    C_POLICY,
    C_ACCUMULATE,
    C_IN_ORDER,
    C_WALL,
    C_BUFFERED,  # rows are kept until they are emitted
    C_LIMIT,  # bytes at which rows are flushed (0: no budget)
    C_BUDGET,
    C_PERIOD,
    C_CHANGE,  # the threshold of RateChange, in millionths
    C_KIND,
    C_TARGET,
    C_MIN,
    C_MAX,
    C_OVERHEAD,  # bytes that the state adds to every buffered row
    C_REJECT,  # refuse rows beyond the limit instead of flushing for them
    C_EARLIEST,  # times outside these two are too near to the ends of int64
    C_LATEST,
    C_SORTED,  # one lane, whose times are known to ascend
) = range(24)
SETTINGS = 24

POLICY_DISCARD, POLICY_ASIDE, POLICY_NEXT = range(3)
KIND_ALIGNED, KIND_SESSION, KIND_EVERYTHING, KIND_COUNT, KIND_STATE, KIND_ADAPTIVE = range(6)

# -- what became of a row -------------------------------------------------------------------------
PLACED, PLACED_LATE, DISCARDED, ASIDE, TOO_LARGE, REFUSED, OUTSIDE, OUT_OF_RANGE = range(8)

# -- reasons of our own, in the mask of a fired entry ---------------------------------------------
FIRED_WATERMARK = np.int64(1) << 40
FIRED_SHUTDOWN = np.int64(1) << 41
FIRED_MEMORY = np.int64(1) << 42
FIRED_DURATION = np.int64(1) << 43
FIRED_COUNT = np.int64(1) << 44
FIRED_STATE = np.int64(1) << 45
FIRED_LATE = np.int64(1) << 46
REASONS = {
    40: "watermark",
    41: "shutdown",
    42: "memory_pressure",
    43: "duration",
    44: "count",
    45: "state",
    46: "late",
    47: "row",
}

# -- counters of a call ---------------------------------------------------------------------------
N_ENTRIES, N_STEPS, N_FIRES, N_USED = range(4)

STEP_ROWS, STEP_COPY, STEP_MERGE = range(3)
"""Steps are (what, entry, from, to): rows [from, to), or the entry to copy or merge in `from`."""


STACK = 64
"""Room for the intermediate masks of a trigger: it has at most 32 parts."""
