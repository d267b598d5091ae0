"""Profile a recording: topics, disorder, delays, and the settings that follow from them.

Disorder is what the event-time stage itself reports with a tolerance of 0, so that a suggested late
tolerance means the same here as in a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Int64s, Late, Outcome, StreamError
from tidegate.core.time import format_duration, format_time
from tidegate.errors import ConfigError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.profile.files import RecordingFiles, find_recording
from tidegate.profile.roles import Roles, guess_roles
from tidegate.profile.statistics import Spread, TopicStatistics, histogram, topic_statistics
from tidegate.profile.time_columns import TimeCandidate, recording_clocks, time_candidates

__all__ = ["Profile", "TopicDelay", "inspect"]

SAMPLE_ROWS = 20_000
"""Rows from which columns, roles and time types are guessed. Fewer may all come from one topic;
more make `inspect` slow on wide tables."""
CHUNK_ROWS = 500_000
"""Rows given to the event-time stage at once. It bounds memory; results do not depend on it."""
MAX_FUTURE_SKEW = "1 h"
"""A row further ahead than this has a wrong clock. Without a limit, one such row makes all rows
after it late."""
KEEP_SHARE = 0.999
"""Share of the rows that a suggested late tolerance keeps in order where disorder has no clear
end."""
JUMP_FLOOR_NS = 1_000_000
"""Jumps below a millisecond are ignored: tolerating that much costs nothing."""
MAX_TOPICS = 200
"""With more, the topic column was guessed wrongly, and the statistics would fill many screens."""


@dataclass(frozen=True)
class TopicDelay:
    """The delay of a topic from event time to arrival, compared with the other topics.

    Args:
        topic: Its name.
        delay: Quantiles of arrival less event time, in ns.
        skew_ns: Its median delay minus that of the topic with the smallest.
    """

    topic: str
    delay: Spread
    skew_ns: int


@dataclass(frozen=True)
class Profile:
    """What a recording contains, and the settings that follow from it.

    Attributes:
        source: The files.
        rows, rows_read: Rows there are, and rows the statistics come from.
        columns: Name, type, nulls and distinct values of every column, in the sample.
        times: Columns that can be read as a time, the most likely first.
        roles, time_type: The columns used, and the event-time type of the time column.
        keys: Number of keys.
        streams: Statistics per topic.
        delays: Delay per topic; empty without an arrival column that is a time.
        errors: Rows that cannot be used, by reason.
        first_ns, last_ns: The earliest and the latest event time.
        disorder, disordered: How far rows arrive after a newer one of their key, and how many do.
        histogram: Edges and counts of that distance.
        late_tolerance_ns: The suggested late tolerance; None without a time column.
        late_share: For some tolerances, the share of rows that would be late.
        lower_bounds_ns: Per topic the smallest step between two messages, rounded down.
    """

    source: RecordingFiles
    rows: int
    rows_read: int
    columns: list[dict[str, Any]]
    times: list[TimeCandidate]
    roles: Roles
    time_type: str | None
    keys: int
    streams: list[TopicStatistics]
    delays: list[TopicDelay]
    errors: dict[str, int]
    first_ns: int | None
    last_ns: int | None
    disorder: Spread
    disordered: int
    histogram: tuple[list[int], list[int]]
    late_tolerance_ns: int | None
    late_share: list[tuple[int, float]]
    lower_bounds_ns: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `tidegate inspect --json`."""
        return {
            "path": self.source.path,
            "format": self.source.format,
            "rows": self.rows,
            "rows_read": self.rows_read,
            "columns": self.columns,
            "time_candidates": [c.__dict__ for c in self.times],
            "roles": {**self.roles.__dict__, "time_type": self.time_type},
            "keys": self.keys,
            "streams": [s.to_json() for s in self.streams],
            "delays": [{**d.__dict__, "delay": d.delay.__dict__} for d in self.delays],
            "errors": self.errors,
            "first": format_time(self.first_ns),
            "last": format_time(self.last_ns),
            "disorder": {**self.disorder.__dict__, "rows": self.disordered},
            "disorder_histogram": {"edges_ns": self.histogram[0], "rows": self.histogram[1]},
            "late_share": [{"tolerance_ns": t, "share": s} for t, s in self.late_share],
            "suggested": {
                "late_tolerance": None if self.late_tolerance_ns is None
                else format_duration(self.late_tolerance_ns),
                "lower_bounds": {t: format_duration(b) for t, b in self.lower_bounds_ns.items()},
            },
        }  # fmt: skip


def inspect(
    path: str, roles: Roles | None = None, *, time_type: str | None = None, limit: int = 5_000_000
) -> Profile:
    """Profile a file or a folder of files.

    Args:
        path: A file or folder of Parquet, JSON lines, CSV or MCAP.
        roles: Columns the user names; the others are guessed.
        time_type: The event-time type of the time column; guessed if not given.
        limit: Most rows read for the statistics, from the first file on. `Profile.rows` counts all.

    Returns:
        The profile. Without a readable time column it has columns and candidates, but no
        statistics.

    Raises:
        ConfigError: The path cannot be read, a named column does not exist, it is not a time, or
            the topic column has more than `MAX_TOPICS` values.
    """
    source = find_recording(path)
    sample = source.head(SAMPLE_ROWS)
    roles = roles or Roles()
    roles.check(sample.schema)
    if source.format == "mcap":
        times = recording_clocks(sample)
    else:
        times = time_candidates(sample, as_text=source.format != "parquet")
    guessed = guess_roles(sample)
    time = roles.time or (times[0].column if times else None)
    if time_type is None:
        time_type = next((c.type for c in times if c.column == time), None)
    if roles.time and time_type is None:
        raise ConfigError(
            "time",
            roles.time,
            "cannot be read as a time between 1990 and 2100; give its type with --type",
        )
    roles = replace(roles.over(guessed), time=time)
    if roles.arrival == time:
        roles = replace(roles, arrival=None)
    rows = source.rows()
    empty = Profile(
        source, rows, 0, _column_facts(sample), times, roles, time_type, 0, [], [], {}, None, None,
        Spread(), 0, ([], []), None, [], {},
    )  # fmt: skip
    if time is None or time_type is None or sample.num_rows == 0:
        return empty
    wanted = [*roles.key, roles.topic, time, roles.arrival]
    table = source.read(list(dict.fromkeys(n for n in wanted if n)), limit)
    if roles.arrival:
        table = table.take(pc.sort_indices(table, sort_keys=[(roles.arrival, "ascending")]))
    return _measured(empty, table, roles, time_type)


def _measured(profile: Profile, table: pa.Table, roles: Roles, time_type: str) -> Profile:
    """Return the profile with everything that needs the rows: statistics, disorder, delays.

    Args:
        profile: The profile of the columns alone.
        table: The rows in order of arrival, with the columns of the roles.
        roles: Which column is what; the time is set.
        time_type: The event-time type of the time column.
    """
    kept, errors = _stage(table, roles, time_type)
    if not kept:
        return replace(profile, rows_read=table.num_rows, errors=errors)
    rows = pa.concat_tables([pa.Table.from_batches([k.rows]) for k in kept])
    time_ns = np.concatenate([k.time_ns for k in kept])
    disorder = np.concatenate([
        k.lateness_ns if isinstance(k, Late) else np.zeros(len(k), np.int64) for k in kept
    ])  # fmt: skip
    late = np.concatenate([np.full(len(k), isinstance(k, Late)) for k in kept])
    key, keys = _codes(rows, roles.key)
    topic, names = _codes(rows, (roles.topic,) if roles.topic else ())
    if len(names) > MAX_TOPICS:
        raise ConfigError("topic", roles.topic, f"names {len(names)} topics; give another --topic")
    labels = [name[0] if name else "all messages" for name in names]
    stream = key * len(labels) + topic
    behind = disorder[late]
    tolerance, shares = _suggest_tolerance(behind, len(time_ns))
    arrival = _arrival(rows, roles)
    return replace(
        profile,
        rows_read=table.num_rows,
        keys=len(keys),
        streams=topic_statistics(stream, topic, time_ns, labels),
        delays=[] if arrival is None else _delays(arrival - time_ns, topic, labels),
        errors=errors,
        first_ns=int(time_ns.min()),
        last_ns=int(time_ns.max()),
        disorder=Spread.of(behind),
        disordered=int(np.count_nonzero(late)),
        histogram=histogram(behind),
        late_tolerance_ns=tolerance,
        late_share=shares,
        lower_bounds_ns=_lower_bounds(stream, topic, time_ns, labels),
    )


def _stage(
    table: pa.Table, roles: Roles, time_type: str
) -> tuple[list[Collection | Late], dict[str, int]]:
    """Run the rows through the event-time stage with a tolerance of 0: every row that arrives after
    a newer one of its key is late by its disorder.

    Returns:
        The outcomes with rows, in order and late, and the number of error rows by reason.
    """
    stage = EventtimeWatermark(0, max_future_skew=MAX_FUTURE_SKEW, watermark_per="tuple")
    decoder = Decoder((TimeColumn(roles.time or "", time_type),))
    flow = Flow([stage], key=roles.key, decoder=decoder)
    out: list[Outcome] = []
    for batch in table.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS):
        out += flow.process(batch)
    out += flow.end()
    errors: dict[str, int] = {}
    for outcome in out:
        if isinstance(outcome, StreamError):
            for reason in outcome.reason.to_pylist():
                # A reason with a number in it would be counted once per row.
                ahead = "ahead, more than" in str(reason)
                text = "more than 1 h ahead of its key" if ahead else str(reason)
                errors[text] = errors.get(text, 0) + 1
    kept = [o for o in out if isinstance(o, (Collection, Late)) and len(o)]
    return kept, errors


def _suggest_tolerance(behind: Int64s, rows: int) -> tuple[int, list[tuple[int, float]]]:
    """Return a round tolerance, and the share of rows that some tolerances would make late.

    Ordinary disorder and rows that are really late are usually far apart: the tolerance ends where,
    among the last percent of rows, the distance more than doubles from one row to the next. Where
    there is no such jump, it keeps KEEP_SHARE of the rows in order.

    Args:
        behind: Disorder in ns of the rows that arrive after a newer one of their key.
        rows: Number of all rows, those in order included.
    """
    behind = np.sort(behind)
    few = behind[max(len(behind) - rows // 100 - 1, 0) :]
    jumps = np.flatnonzero(few[1:] > np.maximum(2 * few[:-1], JUMP_FLOOR_NS))
    allowed = int(rows * (1 - KEEP_SHARE))
    needed = -1
    if len(jumps):
        needed = int(few[jumps[0]])
    elif len(behind) > allowed:
        needed = int(behind[-1 - allowed])
    suggested = _round_up(needed + 1)
    shares = []
    for tolerance in sorted({0, suggested // 4, suggested // 2, suggested, suggested * 2}):
        # A row exactly as far behind as the tolerance is late.
        late = len(behind) - int(np.searchsorted(behind, tolerance, side="left"))
        shares.append((tolerance, late / rows))
    return suggested, shares


def _round_up(ns: int) -> int:
    """Round up to two significant digits."""
    step: int = 10 ** max(len(str(ns)) - 2, 0)
    return -(-ns // step) * step


def _delays(delay: Int64s, topic: Int64s, names: list[str]) -> list[TopicDelay]:
    """Return the delay of every topic that has rows, and its skew against the quickest topic.

    Args:
        delay: Arrival less event time of each row, in ns.
        topic: Number of the topic of each row.
        names: The names of the topics.
    """
    medians = {
        n: int(np.median(delay[topic == n])) for n in range(len(names)) if (topic == n).any()
    }
    least = min(medians.values(), default=0)
    return [
        TopicDelay(names[n], Spread.of(delay[topic == n]), middle - least)
        for n, middle in medians.items()
    ]


def _lower_bounds(
    stream: Int64s, topic: Int64s, time_ns: Int64s, names: list[str]
) -> dict[str, int]:
    """Return per topic the smallest step between two messages of one key, rounded down: a lower
    bound above the true one makes `synchronize` miss sets."""
    order = np.lexsort((time_ns, stream))
    same = stream[order][1:] == stream[order][:-1]
    steps = np.diff(time_ns[order])[same]
    of = topic[order][1:][same]
    out = {}
    for number, name in enumerate(names):
        own = steps[of == number]
        least = int(own.min()) if len(own) else 0
        step = 10 ** max(len(str(least)) - 2, 0)
        if least > 0:
            out[name] = least // step * step
    return out


def _arrival(rows: pa.Table, roles: Roles) -> Int64s | None:
    """Return arrival in nanoseconds, if that column is a time and not just a number."""
    if roles.arrival is None:
        return None
    column = rows[roles.arrival].combine_chunks()
    kind = "unixtimestamp_ns"
    if not (roles.arrival.endswith("_ns") and pa.types.is_integer(column.type)):
        found = time_candidates(rows.select([roles.arrival]).slice(0, SAMPLE_ROWS))
        if not found or found[0].readable < 1:
            return None
        kind = found[0].type
    parsed = Decoder().types.parse(kind, column)
    return parsed.time_ns if bool(parsed.ok.all()) else None


def _codes(rows: pa.Table, names: tuple[str, ...]) -> tuple[Int64s, list[tuple[str, ...]]]:
    """Return per row the number of its combination of values, and the combinations."""
    codes = np.zeros(rows.num_rows, np.int64)
    labels: list[tuple[str, ...]] = [()]
    for name in names:
        encoded = pc.fill_null(rows[name].cast(pa.string()), "?").combine_chunks()
        encoded = encoded.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        joined = codes * len(values) + encoded.indices.to_numpy()
        present, codes = np.unique(joined, return_inverse=True)
        labels = [(*labels[p // len(values)], values[p % len(values)]) for p in present.tolist()]
    return codes, labels


def _column_facts(sample: pa.Table) -> list[dict[str, Any]]:
    """Return name, type and nulls of every column, and its distinct values if it is not nested."""
    out = []
    for field in sample.schema:
        column = sample[field.name]
        entry = {"name": field.name, "type": str(field.type), "nulls": column.null_count}
        if not pa.types.is_nested(field.type):
            entry["distinct"] = pc.count_distinct(column).as_py()
        out.append(entry)
    return out
