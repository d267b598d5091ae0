"""Profile a recording: topics, disorder, delays, and the settings that follow from them.

    files ─► rows ─► which column is the time ─► key, topic, arrival ─► order and rates ─► settings

Disorder is what the event-time stage itself reports with a tolerance of 0, and rows are given to it
in the order in which a run takes them, so that a suggested late tolerance means the same here as in
a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Int64s, Late, Outcome, StreamError
from tidegate.core.text import plural, span
from tidegate.core.time import format_duration, format_time
from tidegate.errors import ConfigError, DataError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.profile.files import RecordingFiles, find_recording
from tidegate.profile.order import (
    UNORDERED,
    Skewed,
    forward_skew,
    recorded_order,
    rows_held,
    suggest_tolerance,
    unset_clocks,
)
from tidegate.profile.roles import RoleGuess, Roles, guess_with_times
from tidegate.profile.rows import LoadedRows
from tidegate.profile.spans import setting
from tidegate.profile.statistics import Spread, TopicStatistics, histogram, topic_statistics
from tidegate.profile.time_columns import (
    TimeCandidate,
    clocks_agree,
    name_words,
    read_times,
    recording_clocks,
    time_candidates,
)

__all__ = [
    "CHUNK_ROWS",
    "Profile",
    "TopicDelay",
    "arrival_order",
    "count_reasons",
    "inspect",
    "inspect_rows",
]

CHUNK_ROWS = 500_000
"""Rows given to the event-time stage at once. It bounds memory; results do not depend on it."""
MAX_TOPICS = 60
"""With more topics, statistics are given per group of topics with the same beginning: more lines
than two screens hold are not read."""
MAX_GROUPS = 24
"""Groups that topics are gathered into, at most."""
FACT_ROWS = 20_000
"""Rows that nulls and distinct values of columns are counted in."""


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
        schema: The columns with the types that a run gets.
        options: Options of the source that make Spark read the same rows.
        times: Columns that can be read as a time, the most likely first.
        time: The one that is used; None if there is none that is sure enough.
        roles: The columns used.
        guesses: Why each column has its role (`key`, `topic`, `time`, `arrival`), and how sure.
        keys, topics: Number of keys and of topics.
        streams: Statistics per topic, or per group of topics where there are many.
        delays: Delay per topic; empty without an arrival column that is a time.
        errors: Rows that cannot be used, by reason.
        unreadable: Lines and parts of files that hold no row, by reason.
        first_ns, last_ns: The earliest and the latest event time.
        disorder, disordered: How far rows arrive after a newer one of their key, and how many do.
        histogram: Edges and counts of that distance.
        late_tolerance_ns: The suggested late tolerance; None without a time column.
        late_share: For some tolerances, the share of rows that would be late.
        held: Rows that wait at one moment with that tolerance, at most.
        max_future_skew_ns: The suggested limit for wrong clocks; None without a time column.
        wrong_clocks: Rows beyond it.
        longest_gap_ns: How far ahead of the rows before it a good row gets.
        lower_bounds_ns: Per topic the smallest step between two messages, rounded down.
        notes: Sentences about how the files were read.
        needed_schema: The schema that a pipeline must have, where Spark would read columns that it
            cannot.
    """

    source: RecordingFiles
    rows: int
    rows_read: int
    columns: list[dict[str, Any]]
    schema: pa.Schema
    options: dict[str, Any]
    times: list[TimeCandidate]
    time: TimeCandidate | None
    roles: Roles
    guesses: dict[str, RoleGuess] = field(default_factory=dict)
    keys: int = 0
    topics: int = 0
    streams: list[TopicStatistics] = field(default_factory=list)
    delays: list[TopicDelay] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    first_ns: int | None = None
    last_ns: int | None = None
    disorder: Spread = field(default_factory=Spread)
    disordered: int = 0
    histogram: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    late_tolerance_ns: int | None = None
    late_share: list[tuple[int, float]] = field(default_factory=list)
    held: int = 0
    max_future_skew_ns: int | None = None
    wrong_clocks: int = 0
    longest_gap_ns: int = 0
    lower_bounds_ns: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    needed_schema: pa.Schema | None = None

    @property
    def time_type(self) -> str | None:
        """The event-time type of the time column; None without one."""
        return None if self.time is None else self.time.type

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `tidegate inspect --json`."""
        return {
            "path": self.source.path,
            "format": self.source.format,
            "options": self.options,
            "rows": self.rows,
            "rows_read": self.rows_read,
            "columns": self.columns,
            "time_candidates": [c.to_json() for c in self.times],
            "time": None if self.time is None else self.time.to_json(),
            "roles": {**self.roles.__dict__, "time_type": self.time_type},
            "guesses": {role: guess._asdict() for role, guess in self.guesses.items()},
            "keys": self.keys,
            "topics": self.topics,
            "streams": [s.to_json() for s in self.streams],
            "delays": [{**d.__dict__, "delay": d.delay.__dict__} for d in self.delays],
            "errors": self.errors,
            "unreadable": self.unreadable,
            "first": format_time(self.first_ns),
            "last": format_time(self.last_ns),
            "disorder": {**self.disorder.__dict__, "rows": self.disordered},
            "disorder_histogram": {"edges_ns": self.histogram[0], "rows": self.histogram[1]},
            "late_share": [{"tolerance_ns": t, "share": s} for t, s in self.late_share],
            "suggested": {
                "late_tolerance": None if self.late_tolerance_ns is None
                else format_duration(self.late_tolerance_ns),
                "max_future_skew": None if self.max_future_skew_ns is None
                else format_duration(self.max_future_skew_ns),
                "rows_held": self.held,
                "lower_bounds": {t: format_duration(b) for t, b in self.lower_bounds_ns.items()},
            },
            "notes": list(self.notes),
        }  # fmt: skip


def inspect(
    path: str,
    roles: Roles | None = None,
    *,
    time_type: str | None = None,
    format: str | None = None,
    zone: str | None = None,
    limit: int = 5_000_000,
) -> Profile:
    """Profile a file or a folder of files.

    Args:
        path: A file or folder of Parquet, JSON, CSV, MCAP or bags, text also compressed.
        roles: Columns the user names; the others are guessed.
        time_type: The event-time type of the time column; guessed if not given.
        format: The layout of its text (`%d.%m.%Y`); makes the type `date_time`.
        zone: The zone of times without one; default UTC.
        limit: Most rows read, from the first file on. `Profile.rows` counts all.

    Returns:
        The profile. Without a time column that is sure enough it has columns and candidates, but no
        statistics.

    Raises:
        ConfigError: A named column does not exist, or it is not a time.
        DataError: The path does not exist, or holds no or several kinds of recordings; a file is
            damaged, or not of its format.
    """
    return inspect_rows(path, roles, time_type=time_type, format=format, zone=zone, limit=limit)[0]


def inspect_rows(
    path: str,
    roles: Roles | None = None,
    *,
    time_type: str | None = None,
    format: str | None = None,
    zone: str | None = None,
    limit: int = 5_000_000,
) -> tuple[Profile, LoadedRows]:
    """Return the profile, as `inspect` does, and the rows it was made from.

    Args:
        path: A file or folder of Parquet, JSON, CSV, MCAP or bags, text also compressed.
        roles: Columns the user names; the others are guessed.
        time_type: The event-time type of the time column; guessed if not given.
        format: The layout of its text (`%d.%m.%Y`); makes the type `date_time`.
        zone: The zone of times without one; default UTC.
        limit: Most rows read, from the first file on; default 5,000,000, which bounds memory.

    Raises:
        ConfigError: As `inspect`.
        DataError: As `inspect`.
    """
    source = find_recording(path)
    loaded = source.load(limit)
    asked = roles or Roles()
    asked.check(loaded.table.schema)
    recorded = source.format in ("mcap", "rosbag")
    if loaded.table.num_rows == 0:
        times: list[TimeCandidate] = []
    elif recorded:
        times = recording_clocks(loaded.table)
    else:
        times = time_candidates(loaded.table, loaded.text, loaded.units)
    time = _chosen_time(times, loaded, asked, _Told(time_type, format, zone))
    if time is not None:
        time = _doubt_zone(time, loaded.table)
    if time is not None and loaded.left_out and not time.has_time and time.confidence == "high":
        reason = f"{time.reason}, without the time of day in {', '.join(loaded.left_out)}"
        time = replace(time, confidence="medium", reason=reason)
    if time is not None:
        loaded = loaded.as_text(time.as_text)
    clock = ""
    if recorded and time is not None and time.columns[0] == "header_stamp_ns":
        clock = "header"
        if (filled := _with_log_times(loaded.table)) is not None:
            loaded, clock = replace(loaded, table=filled), "header_or_log"
            reason = f"{time.reason}; of messages without one, when they were recorded"
            time = replace(time, reason=reason)
    if recorded and not any("header_stamp_ns" in each.columns for each in times):
        # Only a source that is told `clock: header` has this column, and here nothing is in it.
        loaded = replace(loaded, table=loaded.table.drop_columns(["header_stamp_ns"]))
    profile = Profile(
        source, loaded.total, 0, _column_facts(loaded.table), loaded.table.schema,
        dict(loaded.options), times, time, asked, unreadable=dict(loaded.unreadable),
        notes=loaded.notes,
        needed_schema=_needed_schema(loaded),
    )  # fmt: skip
    if time is None:
        return profile, loaded
    asked = replace(asked, time=time.columns[0] if len(time.columns) == 1 else time.columns)
    guesses = {"time": RoleGuess(time.column, time.confidence, time.reason)}
    time_ns, good = read_times(time, loaded.table)
    if recorded:
        guesses |= _roles_of_recording(time)
        if clock:
            profile.options["clock"] = clock
    elif good.any():
        readable = {c.column: c.type for c in times if c.confidence != "low"}
        kept = pa.array(good)
        guesses |= guess_with_times(
            loaded.table.filter(kept), time_ns[good], loaded.file[good], time.columns, readable
        )
    guessed = Roles(
        (guesses["key"].column,) if "key" in guesses else (),
        guesses["topic"].column if "topic" in guesses else None,
        None,
        guesses["arrival"].column if "arrival" in guesses else None,
    )
    final = asked.over(guessed)
    if final.arrival in time.columns and asked.arrival is None:
        final = replace(final, arrival=None)
    if final.arrival is None and _newest_first(time_ns[good], loaded.file[good]):
        if _sorts_as_read(time, loaded):
            final = replace(final, arrival=time.columns[0])
            reason = "the rows are newest first, so they are taken in order of their time"
            guesses["arrival"] = RoleGuess(time.columns[0], "high", reason)
        else:
            note = "the rows are newest first, so the tolerance must span all of them"
            profile = replace(profile, notes=(*profile.notes, note))
    for role, column in (("key", ", ".join(final.key)), ("topic", final.topic),
                         ("arrival", final.arrival)):  # fmt: skip
        if not column:
            guesses.pop(role, None)
        elif role not in guesses or guesses[role].column != column:
            guesses[role] = RoleGuess(column, "high", "named by you")
    profile = replace(profile, roles=final, guesses=guesses)
    if (
        not final.key
        and final.arrival is None
        and (again := _starts_over(time_ns[good], loaded.file[good]))
    ):
        profile = replace(profile, notes=(*profile.notes, again))
    if not recorded and not final.key and final.arrival is None:
        together = _files_together(time_ns[good], loaded.file[good])
        if together:
            profile = replace(profile, notes=(*profile.notes, together))
    if not good.any():
        return replace(profile, rows_read=loaded.table.num_rows), loaded
    return _doubt_disorder(_measured(profile, loaded, time_ns, good)), loaded


def _needed_schema(loaded: LoadedRows) -> pa.Schema | None:
    """Return the schema of all columns that Spark can read, if there are others; else None."""
    if not loaded.left_out:
        return None
    payloads = [pa.field(name, pa.binary()) for name in loaded.payloads]
    return pa.schema([*loaded.table.schema, *payloads])


def _doubt_zone(time: TimeCandidate, rows: pa.Table) -> TimeCandidate:
    """Lower the confidence of times without a zone beside a column that names one: `tz_cd: EST`."""
    if time.zoned or time.zone is not None or time.confidence != "high":
        return time
    for name in rows.column_names:
        if not set(name_words(name)) & {"tz", "timezone"} or not pa.types.is_string(
            rows.schema.field(name).type
        ):
            continue
        zones = [z for z in pc.unique(rows[name]).to_pylist() if z not in (None, "UTC", "GMT", "Z")]
        if zones:
            listed = ", ".join(zones[:3])
            reason = f"{time.reason}, read as UTC although {name} says {listed}: see --zone"
            return replace(time, confidence="medium", reason=reason)
    return time


def _doubt_disorder(profile: Profile) -> Profile:
    """Lower the confidence of a time in whose order the rows do not come at all: the year in which
    a car was built is no event time of a list of cars."""
    time = profile.time
    assert time is not None
    whole = (profile.last_ns or 0) - (profile.first_ns or 0)
    far = 2 * profile.disorder.p99 > whole and profile.disordered > UNORDERED * profile.rows_read
    known = any(note.startswith("the rows are newest first") for note in profile.notes)
    if not far or known or time.confidence != "high" or time.reason == "as you said":
        return profile
    reason = f"{time.reason}; but rows are in no order of it"
    time = replace(time, confidence="medium", reason=reason)
    guess = RoleGuess(time.column, time.confidence, time.reason)
    return replace(profile, time=time, guesses={**profile.guesses, "time": guess})


def require_rows(profile: Profile) -> None:
    """Raise DataError if there is no row: nothing can be said of such a recording."""
    if profile.rows:
        return
    path = profile.source.path
    if profile.source.format in ("mcap", "rosbag"):
        raise DataError(f"{path} holds no message")
    raise DataError(f"{path} {'has columns, but no rows' if profile.columns else 'is empty'}")


# -- the time column ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """What the user said about the time column beside its name."""

    type: str | None
    format: str | None
    zone: str | None

    @property
    def anything(self) -> bool:
        """Whether the user said how the column is read."""
        return self.type is not None or self.format is not None


def _chosen_time(
    times: list[TimeCandidate], loaded: LoadedRows, asked: Roles, told: _Told
) -> TimeCandidate | None:
    """Return the time column that is used: as told, else the most likely one that is sure enough.

    Raises:
        ConfigError: A column that the user names cannot be read, or only in a way that is not sure.
    """
    names = asked.time_columns
    if told.anything:
        if not names and times:
            names = times[0].columns
        if not names:
            raise ConfigError("time", None, "is needed: name the column with --time")
        type = told.type or "date_time"
        declared = TimeColumn(names, type, zone=told.zone, format=told.format)
        text = _text_for(type, names, loaded)
        time_ns, good = read_times(declared, loaded.as_text(text).table)
        share = float(np.count_nonzero(good)) / max(len(good), 1)
        if share == 0:
            raise ConfigError("time", " + ".join(names), f"holds no value that {type} reads")
        low, high = int(time_ns[good].min()), int(time_ns[good].max())
        return TimeCandidate(names, type, share, low, high, told.format, told.zone,
                             reason="as you said", as_text=text,
                             zoned=type.startswith(("unix", "timestamp")))  # fmt: skip
    wanted = [c for c in times if not names or c.columns == names]
    if told.zone is not None:  # it settles what an abbreviation in the values left open
        wanted = [
            replace(c, confidence="high", reason="in the zone you named")
            if any(option == "zone" for option, _ in c.choices)
            else c
            for c in wanted
        ]
    sure = [c for c in wanted if c.confidence != "low"]
    if names and not sure:
        why = "cannot be read as a time; give its type with --type, or its --format"
        if wanted:
            why = f"{wanted[0].reason}; say so with {wanted[0].settled_by}".removesuffix(
                "; say so with "
            )
        raise ConfigError("time", " + ".join(names), why)
    if not sure:
        return None
    first = sure[0]
    return replace(first, zone=told.zone) if told.zone else first


def _text_for(type: str, names: tuple[str, ...], loaded: LoadedRows) -> tuple[str, ...]:
    """Return the columns that must stay text so that this type can read them."""
    numbers = [n for n in names if n in loaded.text]
    if type in ("date_time", "iso8601", "date") or type.endswith("_float"):
        return tuple(numbers)
    return ()


def _with_log_times(messages: pa.Table) -> pa.Table | None:
    """Return the messages of a recording with log times in the place of missing stamps; None if no
    stamp is missing, or if the two clocks are too far apart to be mixed."""
    stamps, logged = messages["header_stamp_ns"], messages["log_time_ns"]
    if not stamps.null_count or not clocks_agree(stamps, logged):
        return None
    place = messages.column_names.index("header_stamp_ns")
    return messages.set_column(place, "header_stamp_ns", pc.coalesce(stamps, logged))


def _roles_of_recording(time: TimeCandidate) -> dict[str, RoleGuess]:
    """Return the roles of the columns of an MCAP file or a bag. Files of one recording share one
    clock, so the file is no key."""
    made = {"topic": RoleGuess("topic", "high", "the topic of a recording")}
    if time.columns[0] != "log_time_ns":
        made["arrival"] = RoleGuess("log_time_ns", "high", "when messages were recorded")
    return made


def _newest_first(time_ns: Int64s, file: Int64s) -> bool:
    """Return whether rows are sorted by falling time, as exports often are."""
    steps = np.diff(time_ns)[np.diff(file) == 0]
    falling = np.count_nonzero(steps < 0)
    return len(steps) > 2 and bool(falling > 20 * np.count_nonzero(steps > 0))


MOST_STARTS = 20
"""Recordings that may stand in one file, one behind the other. More falls are disorder."""


def _starts_over(time_ns: Int64s, file: Int64s) -> str | None:
    """Return a sentence if the time of a file falls back to where it began, and goes on from there:
    several recordings in one file."""
    if len(time_ns) < 4:
        return None
    steps = np.diff(time_ns)
    same = np.diff(file) == 0
    falls = np.flatnonzero((steps < 0) & same)
    whole = int(time_ns.max()) - int(time_ns.min())
    far = falls[-steps[falls] > whole // 4]
    if not 0 < len(far) <= MOST_STARTS or len(far) < len(falls):
        return None
    if far[-1] + 1 >= len(steps) or (steps[far + 1] > whole // 4).any():
        return None  # a single row with a wrong clock
    return (
        f"the time falls back {plural(len(far), 'time')}, first by {span(-int(steps[far[0]]))} "
        f"behind row {int(far[0]) + 1:,}, and goes on from there: if these are several recordings, "
        "give each a file or a key, else they are put into each other"
    )


def _files_together(time_ns: Int64s, file: Int64s) -> str | None:
    """Return a sentence if files overlap in time, as recordings of several runs do."""
    own = [time_ns[file == one] for one in np.unique(file)]
    spans = sorted((int(times.min()), int(times.max())) for times in own)
    if not any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        return None
    return (
        f"the {len(spans):,} files overlap in time: they are taken side by side, as one; if each "
        "is a run of its own, give them one by one"
    )


def _sorts_as_read(time: TimeCandidate, loaded: LoadedRows) -> bool:
    """Return whether sorting the time column sorts the rows by time: numbers, and dates with the
    year first."""
    name = time.columns[0]
    if len(time.columns) > 1 or name not in loaded.table.column_names:
        return False
    kind = loaded.table.schema.field(name).type
    if loaded.table[name].null_count:
        return False
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if numeric or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if time.type not in ("iso8601", "date"):
        return False
    times, good = read_times(time, loaded.table)
    order = pc.sort_indices(loaded.table, sort_keys=[(name, "ascending")]).to_numpy()
    return bool(good.all()) and bool(np.all(np.diff(times[order]) >= 0))


# -- what the rows say ----------------------------------------------------------------------------


def arrival_order(
    loaded: LoadedRows, roles: Roles, time_ns: Int64s, good: Any
) -> tuple[Int64s, Skewed, Int64s]:
    """Return the order in which a run takes the rows, rows with a wrong clock, and their keys.

    Args:
        loaded: The rows, in the order of the files.
        roles: Key and arrival.
        time_ns: The time of each row.
        good: Which rows have a time; the others come last.

    Returns:
        Indices of the rows; the skew of the rows in that order, good ones only; the number of the
        key of every row.
    """
    key, _ = _codes(loaded.table, roles.key)
    if roles.arrival is not None:
        order = pc.sort_indices(loaded.table, sort_keys=[(roles.arrival, "ascending")]).to_numpy()
        ordered = order[good[order]]
        skew = _skew(time_ns[ordered], key[ordered], key[ordered])
        return np.concatenate([ordered, order[~good[order]]]), skew, key
    at = np.flatnonzero(good)
    group = loaded.file[at] * (int(key.max(initial=0)) + 1) + key[at]
    skew = _skew(time_ns[at], group, key[at])
    inner = recorded_order(time_ns[at], loaded.file[at], key[at], skew.wrong)
    ordered = at[inner]
    skew = skew._replace(wrong=skew.wrong[inner])
    return np.concatenate([ordered, np.flatnonzero(~good)]), skew, key


def _skew(time_ns: Int64s, group: Int64s, key: Int64s) -> Skewed:
    """Return the skew of rows, without those whose clock was never set."""
    there = ~unset_clocks(time_ns, key)
    skew = forward_skew(time_ns[there], group[there])
    wrong = np.zeros(len(time_ns), np.bool_)
    wrong[there] = skew.wrong
    return skew._replace(wrong=wrong)


def _measured(profile: Profile, loaded: LoadedRows, time_ns: Int64s, good: Any) -> Profile:
    """Return the profile with everything that needs the rows: statistics, disorder, delays.

    Args:
        profile: The profile of the columns alone.
        loaded: The rows.
        time_ns: The time of each row.
        good: Which rows have a time; at least one.
    """
    roles, time = profile.roles, profile.time
    assert time is not None
    order, skew, _ = arrival_order(loaded, roles, time_ns, good)
    outer = [n if n in loaded.table.column_names else n.split(".")[0] for n in time.columns]
    wanted = [*roles.key, roles.topic, *outer, roles.arrival]
    table = loaded.table.select(list(dict.fromkeys(n for n in wanted if n))).take(pa.array(order))
    kept, errors = _stage(table, roles, time, skew.limit_ns)
    if not kept:
        return replace(profile, rows_read=table.num_rows, errors=errors)
    rows = pa.concat_tables([pa.Table.from_batches([k.rows]) for k in kept])
    times = np.concatenate([k.time_ns for k in kept])
    # With a tolerance of 0 the watermark stands 1 ns below the newest time.
    disorder = np.concatenate([
        k.lateness_ns + 1 if isinstance(k, Late) else np.zeros(len(k), np.int64) for k in kept
    ])  # fmt: skip
    late = np.concatenate([np.full(len(k), isinstance(k, Late)) for k in kept])
    key, keys = _codes(rows, roles.key)
    unset = unset_clocks(times, key)
    notes = profile.notes
    if unset.any():
        several = plural(int(np.count_nonzero(unset)), "row")
        note = f"{several} with a time on 1 January 1970, as clocks have that were never set: late"
        notes = (*notes, f"{note} in a run, and not counted below")
        rows, times, key = rows.filter(pa.array(~unset)), times[~unset], key[~unset]
        disorder, late = disorder[~unset], late[~unset]
    topic, names = _codes(rows, (roles.topic,) if roles.topic else ())
    labels = [name[0] if name else "all rows" for name in names]
    stream = key * len(labels) + topic
    bounds = _lower_bounds(stream, topic, times, labels) if len(labels) <= MAX_TOPICS else {}
    group, shown = _grouped(topic, labels)
    streams = topic_statistics(stream, group, times, shown)
    period = min((s.period_ns for s in streams if s.period_ns), default=0)
    behind = disorder[late]
    tolerance, shares = suggest_tolerance(behind, len(times), period)
    arrival = _arrival_ns(rows, roles, profile)
    return replace(
        profile,
        rows_read=table.num_rows,
        keys=len(keys),
        topics=len(labels) if roles.topic else 0,
        streams=streams,
        delays=[] if arrival is None else _delays(arrival - times, group, shown),
        errors=errors,
        first_ns=int(times.min()),
        last_ns=int(times.max()),
        disorder=Spread.of(behind),
        disordered=int(np.count_nonzero(late)),
        histogram=histogram(behind),
        late_tolerance_ns=tolerance,
        late_share=shares,
        held=rows_held(times, key, tolerance),
        max_future_skew_ns=skew.limit_ns,
        wrong_clocks=int(np.count_nonzero(skew.wrong)),
        longest_gap_ns=skew.furthest_ns,
        lower_bounds_ns=bounds,
        notes=notes,
    )


def _stage(
    table: pa.Table, roles: Roles, time: TimeCandidate, skew_ns: int
) -> tuple[list[Collection | Late], dict[str, int]]:
    """Run the rows through the event-time stage with a tolerance of 0: every row that arrives after
    a newer one of its key is late by its disorder.

    Returns:
        The outcomes with rows, in order and late, and the number of error rows by reason.
    """
    stage = EventtimeWatermark(0, max_future_skew=skew_ns, watermark_per="tuple")
    flow = Flow([stage], key=roles.key, decoder=Decoder((time.declaration,)))
    out: list[Outcome] = []
    for batch in table.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS):
        out += flow.process(batch)
    out += flow.end()
    kept = [o for o in out if isinstance(o, (Collection, Late)) and len(o)]
    return kept, count_reasons(out, skew_ns)


def count_reasons(outcomes: list[Outcome], skew_ns: int) -> dict[str, int]:
    """Return the number of error rows by reason.

    Args:
        outcomes: What came out of a flow.
        skew_ns: The limit for wrong clocks, for the sentence about them: each such row has its own
            number in its reason, and would be counted alone.
    """
    errors: dict[str, int] = {}
    for reason in _reasons(outcomes):
        ahead = "ahead, more than" in reason
        text = f"more than {setting(skew_ns)} ahead of its key" if ahead else reason
        errors[text] = errors.get(text, 0) + 1
    return errors


def _reasons(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the reason of every error row."""
    for outcome in outcomes:
        if isinstance(outcome, StreamError):
            yield from map(str, outcome.reason.to_pylist())


def _grouped(topic: Int64s, names: list[str]) -> tuple[Int64s, list[str]]:
    """Gather topics with the same beginning, if there are more than `MAX_TOPICS`.

    The beginning is as long as it can be with at most `MAX_GROUPS` groups.

    Returns:
        The number of the group of each row, and the names of the groups with how many topics each
        has; the topics themselves if there are few.
    """
    if len(names) <= MAX_TOPICS:
        return topic, names
    sep = next((s for s in ("/", ".", "_", "-") if sum(s in n for n in names) > len(names) // 2),
               "/")  # fmt: skip
    parts = [name.split(sep) for name in names]
    best = [""] * len(names)
    for depth in range(1, max(map(len, parts)) + 1):
        heads = [sep.join(part[:depth]) for part in parts]
        if len(set(heads)) > MAX_GROUPS:
            break
        best = heads
    groups = {head: number for number, head in enumerate(dict.fromkeys(best))}
    counts = {head: best.count(head) for head in groups}
    labels = [
        head if n == 1 and head in names else f"{head}{sep if head else ''}… ({plural(n, 'topic')})"
        for head, n in counts.items()
    ]
    of = np.array([groups[head] for head in best], np.int64)
    return of[topic], labels


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


def _arrival_ns(rows: pa.Table, roles: Roles, profile: Profile) -> Int64s | None:
    """Return arrival in nanoseconds, if that column is a time and not just a number."""
    if roles.arrival is None:
        return None
    column = rows[roles.arrival].combine_chunks()
    kind = "unixtimestamp_ns"
    if not (roles.arrival.endswith("_ns") and pa.types.is_integer(column.type)):
        found = next((c for c in profile.times if c.column == roles.arrival), None)
        if found is None or found.confidence == "low":
            return None
        kind = found.type
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


def _column_facts(rows: pa.Table) -> list[dict[str, Any]]:
    """Return name, type and nulls of every column, and its distinct values if it is not nested."""
    out = []
    sample = rows.slice(0, FACT_ROWS)
    for field_ in sample.schema:
        column = sample[field_.name]
        entry = {"name": field_.name, "type": str(field_.type), "nulls": column.null_count}
        if not pa.types.is_nested(field_.type):
            entry["distinct"] = pc.count_distinct(column).as_py()
        out.append(entry)
    return out
