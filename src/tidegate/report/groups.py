"""Sets, batches and windows of a run, and which messages they hold.

A table of sets has one row per set with a struct per topic: its members become messages here. A
table of batches or windows has one row per message that names its group: the distinct groups are
found from those columns. Aggregated windows have one row per emission and no messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.columns import KEY, MICRO_BATCH, OF_ROW
from tidegate.core.outcomes import Int64s
from tidegate.output.reader import StoredRun
from tidegate.profile.roles import Roles
from tidegate.report.columns import NONE, arrival_of, flat, integers, nanoseconds, text_of
from tidegate.report.values import Float32s, numeric_columns, values_by_topic

__all__ = ["Groups", "MessagePart", "batches_of", "evenly", "sets_of", "topics_of", "windows_of"]

_WINDOW_COLUMNS = ("window_id", "window_start_ns", "window_end_ns", "pane", "revision", "trigger",
                   "retraction", "time_ns", MICRO_BATCH)  # fmt: skip
"""Columns of an aggregated window that say which emission it is; all others are results to show."""


@dataclass
class Groups:
    """Sets, batches or windows.

    Args:
        what: "set", "batch" or "window".
        key: Index of its key, per group; empty until `rows.gather_messages` has numbered all keys.
        start_ns: Time of the first member of a set; start of a batch or window.
        end_ns: Time of the last member of a set; end of a batch or window.
        columns: Further columns by name, for example `reason` of batches or `spread_ns` of sets.
            All are as long as `start_ns`, except `OF_ROW`: the group of every row of the table.
        topics: The topics of sets, in the order of their columns.
        members: For sets, the message (index into `RunMessages`) of every topic; -1 if missing.
    """

    what: str
    key: Int64s
    start_ns: Int64s
    end_ns: Int64s
    columns: dict[str, Any] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    members: NDArray[np.int32] | None = None


@dataclass
class MessagePart:
    """Messages of one table, or of one topic of a table of sets, before they are joined.

    Columns that a table does not have are None.

    Args:
        kind: Index into `rows.KINDS`.
        key: Key of each message as text.
        topic: Topic of each message as text; empty without a topic column.
        time_ns: Event time; `NONE` where there is none.
        arrival_ns: Arrival; `NONE` where it is not known.
        micro: Number of the micro-batch that delivered the message; -1 if unknown.
        lateness_ns: How late the message was.
        group: Index of its set, batch or window.
        slot: Slot in its batch.
        reason: Why the message was dropped or is an error.
        value: A number to plot, NaN where there is none.
        row: Number of the row in its table, for what the page reads later (images).
    """

    kind: int
    key: pa.Array
    topic: pa.Array
    time_ns: Int64s
    arrival_ns: Int64s
    micro: Int64s
    lateness_ns: Int64s | None = None
    group: Int64s | None = None
    slot: Int64s | None = None
    reason: pa.Array | None = None
    value: Float32s | None = None
    row: Int64s | None = None
    value_names: dict[str, str] = field(default_factory=dict)
    """The column that `value` holds, by topic."""
    most: int | None = None
    """Most rows to keep; None keeps all."""


def evenly(rows: int, most: int) -> Int64s:
    """Return at most `most` row indices, evenly spread over `rows` rows, ascending.

    At least one row is kept, even if `most` is 0.

    >>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if rows <= most:
        return np.arange(rows)
    return np.arange(max(most, 1), dtype=np.int64) * rows // max(most, 1)


def topics_of(table: pa.Table) -> list[str]:
    """Return the topics of a table of sets: its struct columns that hold a time."""
    structs = [f for f in table.schema if pa.types.is_struct(f.type)]
    return [f.name for f in structs if f.type.get_field_index("time_ns") >= 0]


def sets_of(table: pa.Table, roles: Roles, most: int) -> tuple[Groups, list[MessagePart]]:
    """Return the sets of a table, at most `most`, and their members as messages per topic.

    Whole sets are left out, never single members: a set without a member would look incomplete.

    Args:
        table: Rows of sets, with a struct per topic.
        roles: Columns that are key and arrival; the arrival is a field of the structs.
        most: Most sets to return, spread evenly over the table.

    Returns:
        The groups, with start and end over the members that are present, and one part per topic.
    """
    kept = evenly(table.num_rows, most)
    table = table.take(pa.array(kept))
    topics = topics_of(table)
    key = text_of(table, roles.key)
    number = np.arange(table.num_rows)
    micro = integers(table, MICRO_BATCH)
    parts = []
    times = np.full((table.num_rows, len(topics)), NONE, np.int64)
    for column, topic in enumerate(topics):
        struct = flat(table[topic])
        there = np.asarray(pc.is_valid(struct))
        time_ns = nanoseconds(pc.struct_field(struct, "time_ns"))
        times[:, column] = np.where(there, time_ns, NONE)
        arrival = np.full(len(time_ns), NONE, np.int64)
        if roles.arrival and struct.type.get_field_index(roles.arrival) >= 0:
            arrival = arrival_of(pc.struct_field(struct, roles.arrival), time_ns)
        names = numeric_columns(struct.type, (*roles.key, roles.topic, roles.arrival, "time_ns"))
        columns = {name: pc.struct_field(struct, name) for name in names}
        value, value_names = values_by_topic(columns, pa.array([topic] * len(struct), pa.string()))
        at = np.flatnonzero(there)
        parts.append(
            MessagePart(
                kind=0,
                key=key.take(pa.array(at)),
                topic=pa.array([topic] * len(at), pa.string()),
                time_ns=time_ns[at],
                arrival_ns=arrival[at],
                micro=micro[at],
                group=number[at],
                value=value[at],
                row=kept[at],
                value_names=value_names,
            )
        )
    present = times != NONE
    start = np.where(present, times, 2**63 - 1).min(axis=1, initial=2**63 - 1)
    end = times.max(axis=1, initial=NONE)
    groups = Groups(
        "set", np.empty(0, np.int64), start, end,
        {"spread_ns": integers(table, "spread_ns", 0),
         "decided_at_ns": integers(table, "decided_at_ns", NONE), KEY: key},
        topics,
    )  # fmt: skip
    return groups, parts


def _first_of(labels: list[pa.Array]) -> tuple[Int64s, Int64s]:
    """Return the first row of each distinct combination, and the combination of each row.

    Codes are renumbered after every label, so that their product cannot overflow. A null counts as
    the first value of its column.

    Args:
        labels: At least one array; all of the same length.
    """
    codes = np.zeros(len(labels[0]), np.int64)
    for label in labels:
        encoded = flat(label).dictionary_encode()
        own = np.asarray(pc.fill_null(encoded.indices, 0)).astype(np.int64)
        codes = codes * (len(encoded.dictionary) + 1) + own
        _, codes = np.unique(codes, return_inverse=True)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return first, inverse


def batches_of(run: StoredRun, table: pa.Table, roles: Roles) -> Groups:
    """Return the batches of a table of messages, with their reports if the run wrote any.

    Args:
        run: The run, for the side table `batch`.
        table: Rows of batches, each with the number of its batch. Numbers repeat between keys.
        roles: Columns that are the key.
    """
    key = text_of(table, roles.key)
    first, inverse = _first_of([key, flat(table["batch_id"])])
    heads = table.take(pa.array(first))
    columns: dict[str, Any] = {
        "id": integers(heads, "batch_id"),
        "rows": np.bincount(inverse, minlength=len(first)),
        KEY: key.take(pa.array(first)),
        OF_ROW: inverse,
    }
    if "batch_reason" in heads.column_names:
        columns["reason"] = flat(heads["batch_reason"]).cast(pa.string()).to_pylist()
    if "batch" in run.kinds:
        columns["report"] = _batch_reports(run, roles, columns)
    return Groups("batch", np.empty(0, np.int64), integers(heads, "batch_start_ns", NONE),
                  integers(heads, "batch_end_ns", NONE), columns)  # fmt: skip


def _batch_reports(
    run: StoredRun, roles: Roles, columns: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """Return the rows of the side table `batch` for every batch: expected, missing, rate, ...

    Reports of batches that are not in `columns` are left out: their rows may be in commits that are
    not read.
    """
    side = run.table("batch", run.schema("batch").names)
    if "batch_id" not in side.column_names:
        return [[] for _ in columns["id"]]
    keys = text_of(side, tuple(name for name in roles.key if name in side.column_names))
    wanted = dict(zip(zip(columns[KEY].to_pylist(), columns["id"].tolist(), strict=True),
                      range(len(columns["id"])), strict=True))  # fmt: skip
    reports: list[list[dict[str, Any]]] = [[] for _ in wanted]
    drop = {*roles.key, MICRO_BATCH, "batch_id", "batch_start_ns", "batch_end_ns"}
    shown = [name for name in side.column_names if name not in drop]
    for own, number, row in zip(keys.to_pylist(), side["batch_id"].to_pylist(),
                                side.select(shown).to_pylist(), strict=True):  # fmt: skip
        at = wanted.get((own, number))
        if at is not None:
            reports[at].append({k: v for k, v in row.items() if v is not None})
    return reports


def windows_of(table: pa.Table, roles: Roles) -> Groups:
    """Return one group per emission of a window: per pane, revision and retraction.

    A table without the column `late` holds aggregates: its rows are kept as the report of their
    emission. Otherwise the rows are messages, and only their number is kept here.

    Args:
        table: Rows of the stage `window`.
        roles: Columns that are the key.
    """
    key = text_of(table, roles.key)
    labels = [key, *(flat(table[n]) for n in ("window_start_ns", "window_end_ns"))]
    labels += [
        flat(table[n]) for n in ("pane", "revision", "retraction") if n in table.column_names
    ]
    first, inverse = _first_of(labels)
    heads = table.take(pa.array(first))
    columns: dict[str, Any] = {
        "pane": integers(heads, "pane", 0),
        "revision": integers(heads, "revision", 0),
        "rows": np.bincount(inverse, minlength=len(first)),
        KEY: key.take(pa.array(first)),
        OF_ROW: inverse,
    }
    if "late" not in table.column_names:
        shown = [n for n in table.column_names if n not in _WINDOW_COLUMNS and n not in roles.key]
        reports: list[list[dict[str, Any]]] = [[] for _ in first]
        for at, row in zip(inverse.tolist(), table.select(shown).to_pylist(), strict=True):
            reports[at].append(row)
        columns["report"] = reports
    if "trigger" in heads.column_names:
        columns["trigger"] = flat(heads["trigger"]).cast(pa.string()).to_pylist()
    return Groups("window", np.empty(0, np.int64), integers(heads, "window_start_ns", NONE),
                  integers(heads, "window_end_ns", NONE), columns)  # fmt: skip
