"""The tables of a run as a Rerun recording (`.rrd`) for its viewer.

    /KEY/TOPIC/COLUMN     numbers as series, text as log lines, at the event time of each row
    /KEY/TOPIC/...        of a set: its members' columns, with the number of the set as a timeline
    /KEY/sets/spread_ms   how wide each set is
    /KEY/late, /dropped, /error    log lines that say why

Timelines are `event_time`, `arrival` where it is known, and `set`. Payloads (bytes, lists) are left
out, because Rerun cannot know what they hold; `Exported.left_out` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.columns import MICRO_BATCH
from tidegate.core.outcomes import Int64s
from tidegate.core.time import format_duration
from tidegate.errors import ConfigError
from tidegate.output.reader import StoredRun, open_run
from tidegate.profile.roles import Roles
from tidegate.report.columns import NONE, arrival_of, flat, nanoseconds, text_of
from tidegate.report.groups import topics_of
from tidegate.report.roles import check_roles, roles_in
from tidegate.report.rows import KINDS

__all__ = ["Exported", "export_rerun"]

LOG_LEVELS = {"late": "WARN", "dropped": "INFO", "error": "ERROR"}
"""Level of a log line in Rerun, by kind. A late row is worth a warning, a dropped one is ordinary
where topics have different rates, an error row could not be used at all.
"""


@dataclass
class Exported:
    """What an export did.

    Args:
        rows: Rows read from the tables.
        left_out: Names of columns that Rerun cannot show (bytes, lists, structs), and entities of
            which rows have no time.
    """

    rows: int = 0
    left_out: set[str] = field(default_factory=set)


def export_rerun(
    out: str, file: str, *, kinds: Sequence[str] = (), roles: Roles | None = None
) -> Exported:
    """Write committed tables of a run to a Rerun recording.

    Args:
        out: The output path of the run.
        file: The `.rrd` file to write.
        kinds: Tables to write: data, late, dropped, error. Empty: all that the run has.
        roles: Columns that are key, topic and arrival; unset: what the run declares.

    Raises:
        ConfigError: If rerun-sdk is not installed, the run lacks a table, or the file cannot be
            written.
    """
    try:
        import rerun
    except ImportError as missing:
        raise ConfigError(
            "to", "rerun", "needs the package rerun-sdk: pip install 'tidegate[rerun]'"
        ) from missing
    run = open_run(out)
    for kind in kinds:
        if kind not in KINDS or kind not in run.kinds:
            there = ", ".join(k for k in KINDS if k in run.kinds)
            raise ConfigError("kind", kind, f"must be one of those the run has: {there}")
    asked = roles or Roles()
    check_roles(run, asked)
    recording = rerun.RecordingStream("tidegate", send_properties=False)
    try:
        recording.save(file)
    except (OSError, RuntimeError) as error:
        raise ConfigError("file", file, f"cannot be written: {error}") from error
    writer = _Writer(rerun, recording, run, asked)
    for kind in KINDS:
        if kind in run.kinds and (not kinds or kind in kinds):
            writer.add(kind)
    recording.flush()
    recording.disconnect()
    return writer.done


@dataclass
class _Writer:
    """Writes the tables of one run to a recording, one table at a time.

    Args:
        rerun: The module rerun-sdk; passed in because it is an optional dependency.
        recording: An open `RecordingStream`.
        run: The run to write.
        asked: Roles that the caller named; the rest comes from the run.
        done: What has been written so far.
    """

    rerun: Any
    recording: Any
    run: StoredRun
    asked: Roles
    done: Exported = field(default_factory=Exported)

    def add(self, kind: str) -> None:
        """Write one table of the run: as sets, as rows in order, or as log lines."""
        roles = roles_in(self.run, kind, self.asked)
        table = self.run.table(kind, self.run.schema(kind).names)
        self.done.rows += table.num_rows
        if kind == "data" and "spread_ns" in table.column_names:
            self._sets(table, roles)
        elif kind == "data":
            self._rows(table, roles)
        else:
            self._log(kind, table, roles)

    # -- one method per kind of table -------------------------------------------------------------

    def _rows(self, table: pa.Table, roles: Roles) -> None:
        """Write rows in order: one entity per key, topic and column."""
        known = self._known(roles)
        times = self._times(table, roles)
        keys = text_of(table, roles.key)
        topics = text_of(table, (roles.topic,) if roles.topic else ())
        for (key, topic), places in _groups(keys, topics):
            for name in table.column_names:
                if name not in known:
                    path = [key, topic or "data", name]
                    self._column(path, flat(table[name]), times, places)

    def _sets(self, table: pa.Table, roles: Roles) -> None:
        """Write sets: their spread, and the columns of every member.

        A member has its own event time, and shares the number of its set on the timeline `set`.
        Members that are absent from a set are skipped.
        """
        names, known = topics_of(table), self._known(roles)
        keys = text_of(table, roles.key)
        number = np.arange(table.num_rows, dtype=np.int64)
        whole = {**self._times(table, roles), "set": number}
        spread = pa.array(np.asarray(table["spread_ns"]) / 1e6)
        for (key, _), places in _groups(keys):
            self._column([key, "sets", "spread_ms"], spread, whole, places)
        for topic in names:
            members = flat(table[topic])
            inside = pa.Table.from_arrays(members.flatten(), names=[f.name for f in members.type])
            times = {**self._times(inside, roles), "set": number}
            there = np.asarray(members.is_valid())
            for (key, _), places in _groups(keys):
                for name in inside.column_names:
                    if name not in known:
                        column = flat(inside[name])
                        self._column([key, topic, name], column, times, places[there[places]])

    def _log(self, kind: str, table: pa.Table, roles: Roles) -> None:
        """Write one log line per row that says why it is not in the data."""
        times = self._times(table, roles)
        keys = text_of(table, roles.key)
        topics = text_of(table, (roles.topic,) if roles.topic else ()).to_pylist()
        why = _log_reasons(kind, table)
        lines = [f"{topic}: {text}" if topic else text
                 for topic, text in zip(topics, why, strict=True)]  # fmt: skip
        for (key, _), places in _groups(keys):

            def make(rows: NDArray[Any]) -> Any:
                levels = [LOG_LEVELS[kind]] * len(rows)
                return self.rerun.TextLog.columns(text=[lines[n] for n in rows], level=levels)

            self._send([key, kind], times, places, make)

    def _known(self, roles: Roles) -> set[str | None]:
        """Return the columns that are in the path or on a timeline already."""
        record = self.run.record()
        of_run = (record.topic, record.time) if record else ("topic", None)
        return {*roles.key, roles.topic, roles.arrival, *of_run, "time_ns", MICRO_BATCH}

    # -- columns ----------------------------------------------------------------------------------

    def _times(self, table: pa.Table, roles: Roles) -> dict[str, Int64s]:
        """Return the timelines of a table, without those of which no value is known."""
        none = np.full(table.num_rows, NONE, np.int64)
        own = nanoseconds(table["time_ns"]) if "time_ns" in table.column_names else none
        came = none
        if roles.arrival and roles.arrival in table.column_names:
            came = arrival_of(table[roles.arrival], own)
        found = {"event_time": own, "arrival": came}
        return {name: times for name, times in found.items() if (times != NONE).any()}

    def _column(
        self, path: list[str], column: pa.Array, times: dict[str, Int64s], places: NDArray[Any]
    ) -> None:
        """Write one column: numbers as scalars, text as log lines; other types are noted and left
        out.

        Args:
            path: Parts of the entity's path; empty parts are dropped.
            column: The values, as many as the table has rows.
            times: Timelines of the whole table, from `_times`.
            places: Row indices to write; nulls among them are skipped.
        """
        places = places[np.asarray(column.is_valid())[places]]
        if len(places) == 0:
            return
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            numbers = np.asarray(column.cast(pa.float64(), safe=False).fill_null(np.nan))
            self._send(path, times, places,
                       lambda rows: self.rerun.Scalars.columns(scalars=numbers[rows]))  # fmt: skip
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._send(path, times, places, lambda rows: self.rerun.TextLog.columns(
                text=column.take(pa.array(rows)).to_pylist()))  # fmt: skip
        else:
            self.done.left_out.add(path[-1])

    def _send(
        self,
        path: list[str],
        times: dict[str, Int64s],
        places: NDArray[Any],
        make: Callable[[NDArray[Any]], Any],
    ) -> None:
        """Write rows of one entity; a row goes on those timelines on which its time is known.

        Rerun wants a value for every row on every timeline of a call, so rows are grouped by the
        set of timelines they have (a bit mask), and each group is one call. Rows on none are noted
        in `left_out`.

        Args:
            path: Parts of the entity's path.
            times: Timelines of the whole table; `NONE` where a row has no time.
            places: Row indices to write.
            make: Returns Rerun's columns for given row indices.
        """
        entity = self.rerun.new_entity_path([part for part in path if part])
        on = np.zeros(len(places), np.int64)
        for bit, values in enumerate(times.values()):
            on |= (values[places] != NONE).astype(np.int64) << bit
        for lines in np.unique(on[on > 0]).tolist():
            rows = places[on == lines]
            indexes = [
                self.rerun.TimeColumn(name, sequence=values[rows])
                if name == "set"
                else self.rerun.TimeColumn(name, timestamp=values[rows].view("datetime64[ns]"))
                for bit, (name, values) in enumerate(times.items())
                if lines >> bit & 1
            ]
            self.recording.send_columns(entity, indexes=indexes, columns=make(rows))
        if (on == 0).any():
            self.done.left_out.add(f"{'/'.join(path)} (rows that have no time)")


def _log_reasons(kind: str, table: pa.Table) -> list[str]:
    """Return why each row of a table is not in the data: its lateness, its reason, or its error."""
    if kind == "late":
        return [f"late by {format_duration(by)}" for by in table["lateness_ns"].to_pylist()]
    if kind == "dropped":
        return [str(why) for why in table["reason"].to_pylist()]
    names = ("error_column", "error_value", "error_reason")
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [f"{column} = {value}: {why}" for column, value, why in rows]


def _groups(
    keys: pa.Array, topics: pa.Array | None = None
) -> Iterator[tuple[tuple[str, str], NDArray[Any]]]:
    """Yield ((key, topic), row indices) of every pair that occurs; topic is "" if there is none.

    Pairs are found by one sort over codes instead of one comparison per pair: a fleet has
    thousands.
    """
    key = keys.dictionary_encode()
    topic = (pa.array([""] * len(keys)) if topics is None else topics).dictionary_encode()
    code = np.asarray(key.indices, np.int64) * len(topic.dictionary) + np.asarray(topic.indices)
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    for places in np.split(order, starts[1:]):
        first = int(places[0])
        yield (keys[first].as_py(), "" if topics is None else topics[first].as_py()), places
