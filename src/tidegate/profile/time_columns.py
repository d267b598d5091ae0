"""Which columns can be read as event time, in which unit, and how many rows would be unreadable.

Every registered event-time type is tried on every column that may hold a time, so a suggested type
reads exactly what a run will read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.eventtime import EventtimeTypes
from tidegate.profile.roles import ARRIVAL_NAMES, TIME_NAMES

__all__ = ["TimeCandidate", "recording_clocks", "time_candidates"]

EARLIEST_NS = 631_152_000 * 10**9
"""1990-01-01. A number that would be a time before this is a counter or another unit."""
LATEST_NS = 4_102_444_800 * 10**9
"""2100-01-01. A number that would be a time after this is in another unit."""


@dataclass(frozen=True)
class TimeCandidate:
    """A column that can be read as a time.

    Attributes:
        column, type: The column, and the event-time type that reads most of its rows.
        readable: Share of the rows that this type reads as a time between 1990 and 2100.
        first_ns, last_ns: The earliest and latest of these times.
    """

    column: str
    type: str
    readable: float
    first_ns: int
    last_ns: int


def time_candidates(sample: pa.Table, *, as_text: bool = False) -> list[TimeCandidate]:
    """Return the columns that may be the event time, the most likely first.

    Args:
        sample: The first rows of the data.
        as_text: Set for formats without a type for times (JSON, CSV), where a run gets text.

    >>> from tidegate.core.time import format_time
    >>> sample = pa.table({"n": [1, 2], "at": [1_767_225_600_000, 1_767_225_600_100]})
    >>> [(c.column, c.type, format_time(c.first_ns)) for c in time_candidates(sample)]
    [('at', 'unixtimestamp_ms', '2026-01-01T00:00:00.000000000Z')]
    """
    types = EventtimeTypes()
    found: list[TimeCandidate] = []
    for field in sample.schema:
        column = sample[field.name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], field.type)
        if len(column) == 0 or not _may_be_time(field.type):
            continue
        best: TimeCandidate | None = None
        for name in types.list():
            if name == "date_time":  # needs a format, which nobody has given
                continue
            parsed = types.parse(name, column)
            good = parsed.ok & (parsed.time_ns >= EARLIEST_NS) & (parsed.time_ns < LATEST_NS)
            share = float(np.count_nonzero(good)) / len(column)
            if share > 0.5 and (best is None or share > best.readable):
                times = parsed.time_ns[good]
                given = "iso8601" if as_text and name == "timestamp" else name
                best = TimeCandidate(field.name, given, share, int(times.min()), int(times.max()))
        if best is not None:
            found.append(best)
    return sorted(found, key=_likelihood)


def recording_clocks(sample: pa.Table) -> list[TimeCandidate]:
    """Return the clocks of an MCAP recording, best first. They are always nanoseconds; their values
    are not checked, because simulated time may begin at zero."""
    found = []
    for column in ("header_stamp_ns", "publish_time_ns", "log_time_ns"):
        times = sample[column].drop_null().to_numpy()
        share = len(times) / max(sample.num_rows, 1)
        if share > 0.5:
            found.append(
                TimeCandidate(column, "unixtimestamp_ns", share, int(times.min()), int(times.max()))
            )
    return found


def _likelihood(candidate: TimeCandidate) -> tuple[int, int]:
    """Columns named like an event time first, those named like an arrival last."""
    name = candidate.column.lower()
    if name in TIME_NAMES:
        return (0, TIME_NAMES.index(name))
    return (2 if name in ARRIVAL_NAMES else 1, 0)


def _may_be_time(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
    )
