"""Columns of what a decision lets out: the rows with their batch, and one summary per batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batching import layout as c
from tidegate.batching.call import Decision
from tidegate.core.outcomes import Int64s

__all__ = ["DATA_FIELDS", "SUMMARY_FIELDS", "data_columns", "summaries", "take_rows"]

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
    ]
)

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

_REASONS = pa.array(c.REASONS)


def take_rows(rows: pa.RecordBatch, numbers: NDArray[Any]) -> pa.RecordBatch:
    """`rows.take`, without copying where the numbers are one stretch, as in ordered input."""
    n = len(numbers)
    if n == 0:
        return rows.slice(0, 0)
    if numbers[-1] - numbers[0] == n - 1 and (n == 1 or bool((np.diff(numbers) == 1).all())):
        return rows.slice(int(numbers[0]), n)
    return rows.take(pa.array(numbers))


def data_columns(decision: Decision, time_ns: Int64s) -> list[pa.Array]:
    """The columns of DATA_FIELDS for the rows that leave, in order."""
    batches = decision.batches
    of = np.repeat(np.arange(len(batches)), batches[:, c.B_ROWS])
    start = batches[of, c.B_START]
    slot = decision.rows[decision.order, c.SLOT]
    late = (time_ns < start) | ((slot < 0) & (slot != c.NO_SLOT))
    return [
        pa.array(batches[of, c.B_ID]),
        pa.array(start),
        pa.array(batches[of, c.B_END]),
        _reason(batches[of, c.B_REASON]),
        pa.array(slot.astype(np.int32), mask=slot == c.NO_SLOT),
        pa.array(late),
    ]


def summaries(decision: Decision, names: Mapping[int, str]) -> list[pa.Array]:
    """The columns of SUMMARY_FIELDS, one row per batch."""
    batches = decision.batches
    offsets = np.append(batches[:, c.B_PART], len(decision.parts)).astype(np.int32)
    return [
        pa.array(batches[:, c.B_ID]),
        pa.array(batches[:, c.B_START]),
        pa.array(batches[:, c.B_END]),
        _reason(batches[:, c.B_REASON]),
        pa.array(batches[:, c.B_ROWS]),
        pa.array(batches[:, c.B_LATE]),
        pa.array(batches[:, c.B_EARLY]),
        pa.array(batches[:, c.B_MOVED]),
        pa.array(batches[:, c.B_COMPLETE] != 0),
        pa.ListArray.from_arrays(pa.array(offsets), _parts(decision, names)).cast(
            SUMMARY_FIELDS[-1].type
        ),
    ]


def _reason(numbers: NDArray[Any]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(numbers.astype(np.int8)), _REASONS
    ).dictionary_decode()


def _parts(decision: Decision, names: Mapping[int, str]) -> pa.StructArray:
    parts, floats = decision.parts, decision.part_floats
    digests, which = np.unique(parts[:, c.P_NAME], return_inverse=True)
    labels = pa.array([names.get(name) for name in digests.tolist()], pa.string())
    no_grid = parts[:, c.P_EXPECTED] < 0
    columns = [
        pa.DictionaryArray.from_arrays(
            pa.array(which.astype(np.int32)), labels
        ).dictionary_decode(),
        pa.array(parts[:, c.P_ROWS]),
        pa.array(parts[:, c.P_EXPECTED], mask=no_grid),
        pa.array(parts[:, c.P_MISSING], mask=no_grid),
        pa.array(parts[:, c.P_LATE]),
        pa.array(parts[:, c.P_EARLY]),
        pa.array(floats[:, c.F_RATE], mask=np.isnan(floats[:, c.F_RATE])),
        pa.array(floats[:, c.F_JITTER], mask=np.isnan(floats[:, c.F_JITTER])),
        pa.array(parts[:, c.P_SKEW], mask=parts[:, c.P_KNOWN] == 0),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_STREAM))
