"""Every message of a run with what became of it, as columns sorted for drawing.

The rows are sorted by (key, topic, kind, time). The messages of one stream and kind are then one
slice in order of time, so that the page finds what is under a pixel by bisection, at any zoom,
without precomputed levels of detail. Sets, batches and windows are tables beside the messages; a
message carries the index of its group.

Reading goes in four steps: `gather_messages` reads the tables of the run, `_message_rows` and
`groups.sets_of` turn each into a `MessagePart` with the same columns, `_thin` leaves rows out where
there are more than the page can hold, and `_join_parts` numbers the texts and joins the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
from tidegate.report.groups import (
    Groups,
    MessagePart,
    batches_of,
    evenly,
    sets_of,
    topics_of,
    windows_of,
)
from tidegate.report.roles import check_roles, roles_in
from tidegate.report.values import Float32s, numeric_columns, values_by_topic

__all__ = ["KINDS", "RunMessages", "gather_messages"]

KINDS = ("data", "late", "dropped", "error")
"""What can become of a message; their order is that of the kind's number in the page."""

OURS = ("time_ns", "lateness_ns", "reason", "error_column", "error_value", "error_reason",
        "batch_id", "batch_start_ns", "batch_end_ns", "batch_reason", "slot", "late",
        "spread_ns", "decided_at_ns", "window_id", "window_start_ns", "window_end_ns", "pane",
        "revision", "trigger", "retraction")  # fmt: skip
"""Columns that Tidegate adds and the page shows."""


@dataclass
class RunMessages:
    """The columns of all messages of a page, and the names that their codes stand for.

    Attributes:
        keys, topics, reasons: Distinct texts, sorted; `key`, `topic`, `reason` are indices into
            them.
        kind: Index into `KINDS`.
        time_ns: Event time; where a row has none (an error) its arrival, so that it can be drawn.
        arrival_ns: `NONE` where it is not known.
        lateness_ns: 0 unless the row is late.
        micro: Number of the micro-batch that delivered the row; -1 if unknown.
        group: Index into `groups`; -1 if the row is in none.
        slot: Slot in its batch; `NONE` if it has none.
        value, value_names: A number of the message, and the column it is from, by topic.
        row: Number of the row in the table `data` that the message is from; -1 for other tables.
        total: Messages there are; more than the length if they were thinned.
        groups: Sets, batches or windows; None if the run has none.
        roles: The columns that were used as key, topic and arrival.
    """

    keys: list[str]
    topics: list[str]
    reasons: list[str]
    key: Int64s
    topic: Int64s
    kind: NDArray[np.uint8]
    time_ns: Int64s
    arrival_ns: Int64s
    lateness_ns: Int64s
    micro: Int64s
    group: Int64s
    slot: Int64s
    reason: Int64s
    value: Float32s
    row: Int64s
    value_names: list[str | None]
    total: int
    groups: Groups | None
    roles: Roles

    def __len__(self) -> int:
        return len(self.time_ns)


def gather_messages(run: StoredRun, roles: Roles, limit: int = 1_000_000) -> RunMessages:
    """Read the messages of a run from its tables.

    Args:
        run: The stored run; only the commits it lists are read.
        roles: Columns the user asked for; the rest is declared by the run or guessed.
        limit: Most messages to return. Above it rows are left out evenly, late rows and errors
            last.

    Returns:
        The messages, sorted by (key, topic, kind, time), with their sets, batches or windows. A run
        of aggregated windows has groups and, besides late rows and errors, no messages.

    Raises:
        ConfigError: A role names a column that no table has.
    """
    check_roles(run, roles)
    parts: list[MessagePart] = []
    groups: Groups | None = None
    seen: dict[str, tuple[pa.Table, Roles]] = {}
    for kind in KINDS:
        if kind in run.kinds:
            seen[kind] = _read_kind(run, kind, roles)
    total = 0
    budget = _budget({kind: table for kind, (table, _) in seen.items()}, limit)
    for kind, (table, own) in seen.items():
        code = KINDS.index(kind)
        if kind == "data" and "spread_ns" in table.column_names:
            most = budget[kind] // max(len(topics_of(table)), 1)
            groups, members = sets_of(table, own, most)
            total += sum(table.num_rows - table[t].null_count for t in topics_of(table))
            parts += members
            continue
        if kind == "data" and "window_start_ns" in table.column_names:
            groups = windows_of(table, own)
            if "late" not in table.column_names:  # aggregated: its rows are panes, not messages
                continue
        elif kind == "data" and "batch_id" in table.column_names:
            groups = batches_of(run, table, own)
        total += table.num_rows
        part = _message_rows(code, table, own)
        if groups is not None and kind == "data" and groups.what in ("batch", "window"):
            part.group = groups.columns.pop(OF_ROW)
        part.most = budget[kind]
        parts.append(part)
    roles_used = seen["data"][1] if "data" in seen else next((r for _, r in seen.values()), roles)
    return _join_parts(parts, groups, total, roles_used)


def _budget(tables: dict[str, pa.Table], limit: int) -> dict[str, int]:
    """Return how many messages of each kind the page may hold.

    Late rows and errors are few, and what one looks for: they are kept first, up to a quarter of
    the limit each. The rest is shared in proportion."""
    rows = {kind: table.num_rows * _messages_per_row(table) for kind, table in tables.items()}
    if sum(rows.values()) <= limit:
        return rows
    rare = [kind for kind in rows if kind in ("late", "error")]
    kept: dict[str, int] = {kind: min(rows[kind], max(limit // 4, 1)) for kind in rare}
    rest = max(limit - sum(kept.values()), 1)
    many = sum(count for kind, count in rows.items() if kind not in kept)
    for kind, count in rows.items():
        kept.setdefault(kind, max(count * rest // max(many, 1), 1))
    return kept


def _messages_per_row(table: pa.Table) -> int:
    """Return how many messages a row stands for at most: the topics of a set, else one."""
    return len(topics_of(table)) if "spread_ns" in table.column_names else 1


def _read_kind(run: StoredRun, kind: str, asked: Roles) -> tuple[pa.Table, Roles]:
    """Read the columns of one table that the page uses, and tell their roles.

    Payloads stay on disk: they are most of the bytes of a run, and the page does not show them.
    """
    schema, roles = run.schema(kind), roles_in(run, kind, asked)
    ours = OURS
    structs = [name for f in schema if pa.types.is_struct(f.type) for name in _without_bytes(f)]
    if "window_start_ns" in schema.names and "late" not in schema.names:
        ours = (*ours, *schema.names)  # aggregated: the page shows every column
    arrival = [roles.arrival] if roles.arrival else []
    values = _value_columns(schema, roles) if kind == "data" else []
    topic = [roles.topic] if roles.topic else []
    wanted = [*roles.key, *topic, *arrival, *ours, *structs, *values]
    return run.table(kind, list(dict.fromkeys(wanted))), roles


def _without_bytes(struct: pa.Field) -> list[str]:
    """Return the fields of a struct but for payloads; its own name if there are none to leave out.

    >>> _without_bytes(pa.field("lidar", pa.struct({"time_ns": pa.int64(), "data": pa.binary()})))
    ['lidar.time_ns']
    """
    payload = [pa.types.is_binary(f.type) or pa.types.is_large_binary(f.type) for f in struct.type]
    if not any(payload):
        return [struct.name]
    return [f"{struct.name}.{f.name}" for f, big in zip(struct.type, payload, strict=True)
            if not big]  # fmt: skip


def _value_columns(schema: pa.Schema, roles: Roles) -> list[str]:
    """Return the columns of a table of messages that may be plotted."""
    taken = (*roles.key, roles.topic, roles.arrival, *roles.time_columns, *OURS)
    return numeric_columns(_plain_fields(schema), taken)


def _plain_fields(fields: Iterable[pa.Field], path: str = "") -> Iterator[pa.Field]:
    """Yield fields that hold no others; those of structs by their path.

    >>> nested = pa.schema({"a": pa.struct({"b": pa.int8(), "c": pa.struct({"d": pa.int8()})})})
    >>> [field.name for field in _plain_fields(nested)]
    ['a.b', 'a.c.d']
    """
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _plain_fields(field.type, f"{path}{field.name}.")
        else:
            yield field.with_name(path + field.name)


def _values_of(table: pa.Table, name: str) -> pa.Array:
    """Return a column, or a field of a struct by its path."""
    if name in table.column_names:
        return flat(table[name])
    head, *inner = name.split(".")
    return flat(pc.struct_field(table[head], inner))


def _message_rows(code: int, table: pa.Table, roles: Roles) -> MessagePart:
    """Return the rows of a table that holds one message per row.

    The reason of an error is three texts, joined by the unit separator U+001F: the column, its
    value and why it cannot be used. The page splits them again.

    Args:
        code: Index of the table's kind in `KINDS`.
        table: The columns that `_read_kind` read.
        roles: Which of them are key, topic and arrival.
    """
    rows = table.num_rows
    none = np.full(rows, NONE, np.int64)
    time_ns = nanoseconds(table["time_ns"]) if "time_ns" in table.column_names else none
    has_arrival = roles.arrival and roles.arrival in table.column_names
    part = MessagePart(
        kind=code,
        key=text_of(table, roles.key),
        topic=text_of(table, (roles.topic,) if roles.topic else ()),
        time_ns=time_ns,
        arrival_ns=arrival_of(table[roles.arrival], time_ns) if has_arrival else none,
        micro=integers(table, MICRO_BATCH),
        slot=integers(table, "slot", NONE),
    )
    if KINDS[code] == "data":
        columns = {n: _values_of(table, n) for n in _value_columns(table.schema, roles)}
        part.value, part.value_names = values_by_topic(columns, part.topic)
        part.row = np.arange(rows, dtype=np.int64)
    if "lateness_ns" in table.column_names:
        part.lateness_ns = integers(table, "lateness_ns", 0)
    if "error_reason" in table.column_names:
        texts = [pc.fill_null(flat(table[n]).cast(pa.string()), "null")
                 for n in ("error_column", "error_value", "error_reason")]  # fmt: skip
        part.reason = pc.binary_join_element_wise(*texts, "\x1f")
    elif "reason" in table.column_names and KINDS[code] == "dropped":
        part.reason = pc.fill_null(flat(table["reason"]).cast(pa.string()), "")
    return part


def _join_parts(
    parts: list[MessagePart], groups: Groups | None, total: int, roles: Roles
) -> RunMessages:
    """Join the parts, number their texts and sort by (key, topic, kind, time).

    Args:
        parts: Messages of every table; thinned here, in place.
        groups: Sets, batches or windows; their keys are numbered together with those of the
            messages.
        total: Messages there are, before thinning.
        roles: The columns used, for the page.
    """
    for part in parts:
        _thin(part)
    texts = [part.key for part in parts] + ([groups.columns.pop(KEY)] if groups else [])
    keys, key_codes = _encode(texts)
    topics, topic_codes = _encode([part.topic for part in parts])
    reasons, reason_codes = _encode(
        [part.reason if part.reason is not None else pa.array([""] * len(part.time_ns), pa.string())
         for part in parts], first=""
    )  # fmt: skip
    rows = sum(len(part.time_ns) for part in parts)
    if groups:
        groups.key = key_codes[rows:]

    def joined(of: Any, missing: int) -> Int64s:
        arrays = [of(p) if of(p) is not None else np.full(len(p.time_ns), missing) for p in parts]
        return np.concatenate([np.empty(0, np.int64), *arrays]).astype(np.int64)

    names = {topic: name for part in parts for topic, name in part.value_names.items()}
    value = np.concatenate([np.empty(0, np.float32), *(
        part.value if part.value is not None else np.full(len(part.time_ns), np.nan, np.float32)
        for part in parts
    )])  # fmt: skip
    time_ns, arrival = joined(lambda p: p.time_ns, NONE), joined(lambda p: p.arrival_ns, NONE)
    kind = np.concatenate([np.empty(0), *(np.full(len(p.time_ns), p.kind) for p in parts)])
    # a row without event time (an error) is drawn at its arrival
    placed = np.where(time_ns == NONE, arrival, time_ns)
    key = key_codes[:rows]
    order = np.lexsort((placed, kind, topic_codes, key))
    group = joined(lambda p: p.group, -1)
    if groups is not None and groups.what == "set":
        groups.members = _set_members(groups, topics, topic_codes[order], group[order])
    return RunMessages(
        keys, topics, reasons, key[order], topic_codes[order], kind[order].astype(np.uint8),
        placed[order], arrival[order], joined(lambda p: p.lateness_ns, 0)[order],
        joined(lambda p: p.micro, -1)[order], group[order], joined(lambda p: p.slot, NONE)[order],
        reason_codes[order], value[order], joined(lambda p: p.row, -1)[order],
        [names.get(topic) for topic in topics], total, groups, roles,
    )  # fmt: skip


def _set_members(
    groups: Groups, names: list[str], topic: Int64s, group: Int64s
) -> NDArray[np.int32]:
    """Return the message of every set and topic, -1 where the set has none.

    Args:
        groups: The sets.
        names: The topics by number.
        topic: Number of the topic of each message, in the order of the page.
        group: Set of each message, -1 for none, in the order of the page.
    """
    members = np.full((len(groups.start_ns), len(groups.topics)), -1, np.int32)
    column = np.array(
        [groups.topics.index(n) if n in groups.topics else -1 for n in names], np.int64
    )
    at = np.flatnonzero(group >= 0)
    members[group[at], column[topic[at]]] = at
    return members


def _thin(part: MessagePart) -> None:
    """Leave out rows evenly if there are more than `part.most`."""
    if part.most is None or len(part.time_ns) <= part.most:
        return
    at = evenly(len(part.time_ns), part.most)
    for name in ("time_ns", "arrival_ns", "micro", "lateness_ns", "group", "slot", "value", "row"):
        values = getattr(part, name)
        setattr(part, name, None if values is None else values[at])
    for name in ("key", "topic", "reason"):
        values = getattr(part, name)
        setattr(part, name, None if values is None else values.take(pa.array(at)))


def _encode(texts: list[pa.Array], first: str | None = None) -> tuple[list[str], Int64s]:
    """Return the distinct texts, sorted but for `first`, and the index of the text of each row.

    >>> _encode([pa.array(["b", ""]), pa.array(["a"])], first="")[0]
    ['', 'a', 'b']
    """
    if not texts:
        return ([] if first is None else [first]), np.empty(0, np.int64)
    whole = pa.concat_arrays([t.cast(pa.string()) for t in texts])
    names = sorted(pc.unique(whole).to_pylist())
    if first is not None:
        names = [first, *(name for name in names if name != first)]
    codes = pc.index_in(whole, pa.array(names, pa.string()))
    return names, np.asarray(codes).astype(np.int64)
