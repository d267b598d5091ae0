"""Which columns could be the event time, in which unit, and how many rows would be unreadable.

The registered event-time types themselves are asked: what is suggested is what a run will read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.eventtime import EventtimeTypes
from tidegate.profile.roles import ARRIVAL_NAMES, TIME_NAMES

__all__ = ["Candidate", "candidates", "recorded"]

EARLIEST_NS = 631_152_000 * 10**9
"""1990-01-01: a number that would lie before it is taken for something else than a time."""
LATEST_NS = 4_102_444_800 * 10**9
"""2100-01-01."""


@dataclass(frozen=True)
class Candidate:
    """A column that reads as a time, and how well."""

    column: str
    type: str
    readable: float
    """The share of rows that this type reads as a time of our days."""
    first_ns: int
    last_ns: int


def candidates(sample: pa.Table, *, as_text: bool = False) -> list[Candidate]:
    """Columns that may be the event time, the likeliest first.

    `as_text`: the format has no times of its own (JSON, CSV), so a time is text in a run.

    >>> from tidegate.core.time import format_time
    >>> sample = pa.table({"n": [1, 2], "at": [1_767_225_600_000, 1_767_225_600_100]})
    >>> [(c.column, c.type, format_time(c.first_ns)) for c in candidates(sample)]
    [('at', 'unixtimestamp_ms', '2026-01-01T00:00:00.000000000Z')]
    """
    types = EventtimeTypes()
    found: list[Candidate] = []
    for field in sample.schema:
        column = sample[field.name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], field.type)
        if len(column) == 0 or not _may_be_time(field.type):
            continue
        best: Candidate | None = None
        for name in types.list():
            parsed = types.parse(name, column)
            good = parsed.ok & (parsed.time_ns >= EARLIEST_NS) & (parsed.time_ns < LATEST_NS)
            share = float(np.count_nonzero(good)) / len(column)
            if share > 0.5 and (best is None or share > best.readable):
                times = parsed.time_ns[good]
                given = "iso8601" if as_text and name == "timestamp" else name
                best = Candidate(field.name, given, share, int(times.min()), int(times.max()))
        if best is not None:
            found.append(best)
    return sorted(found, key=_likelihood)


def recorded(sample: pa.Table) -> list[Candidate]:
    """The clocks of an MCAP recording. They are nanoseconds whatever they say: simulated time may
    begin at zero."""
    found = []
    for column in ("header_stamp_ns", "publish_time_ns", "log_time_ns"):
        times = sample[column].drop_null().to_numpy()
        share = len(times) / max(sample.num_rows, 1)
        if share > 0.5:
            found.append(
                Candidate(column, "unixtimestamp_ns", share, int(times.min()), int(times.max()))
            )
    return found


def _likelihood(candidate: Candidate) -> tuple[int, int]:
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
