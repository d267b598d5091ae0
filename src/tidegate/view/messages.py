"""Every message of a run with what became of it, as columns sorted for drawing.

Sorted by (stream, kind, time): the messages of one stream and kind are then one stretch in order of
time, so that the page finds what lies under a pixel by bisection, at any zoom, without levels of
its own. Sets, batches and windows are tables beside them; a message carries the number of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.model import Int64s
from tidegate.look.columns import Roles, guess_roles
from tidegate.view.stored import MICRO_BATCH, StoredRun

__all__ = ["KINDS", "NONE", "Groups", "Messages", "gather"]

KINDS = ("data", "late", "dropped", "error")
NONE = -(2**63)
"""No time: a message whose arrival is not known."""

PLAUSIBLE_DELAY_NS = 7 * 86_400 * 10**9
"""An arrival column further than this from event time (median) is an offset, no time."""


@dataclass
class Groups:
    """Sets, batches or windows: each with its key, its span and further columns by name."""

    what: str
    key: Int64s
    start_ns: Int64s
    end_ns: Int64s
    columns: dict[str, Any] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    members: NDArray[np.int32] | None = None
    """Sets: the message of every topic (row of `Messages`), -1 where it is missing."""


@dataclass
class Messages:
    """The columns of all messages kept, and the names their numbers stand for."""

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
    total: int
    groups: Groups | None
    roles: Roles

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass
class _Part:
    """Messages of one table, or of one topic of a table of sets."""

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
    stride: int = 1


def gather(run: StoredRun, roles: Roles, limit: int = 1_000_000) -> Messages:
    """Everything a run's tables say about its messages, thinned evenly above `limit`."""
    _check(run, roles)
    named = roles.over(run.declared_roles())
    parts: list[_Part] = []
    groups: Groups | None = None
    seen: dict[str, tuple[pa.Table, Roles]] = {}
    for kind in KINDS:
        if kind in run.kinds:
            seen[kind] = _read(run, kind, named)
    total = 0
    for kind, (table, own) in seen.items():
        code = KINDS.index(kind)
        if kind == "data" and "spread_ns" in table.column_names:
            thin = _stride(table.num_rows * max(len(_topics_of(table)), 1), limit)
            groups, members = _sets(table, own, thin)
            total += sum(table.num_rows - table[t].null_count for t in _topics_of(table))
            parts += members
            continue
        if kind == "data" and "window_start_ns" in table.column_names:
            groups = _windows(table, own)
            if "late" not in table.column_names:  # aggregated: its rows are panes, not messages
                continue
        elif kind == "data" and "batch_id" in table.column_names:
            groups = _batches(run, table, own)
        total += table.num_rows
        part = _plain(code, table, own)
        if groups is not None and kind == "data" and groups.what in ("batch", "window"):
            part.group = groups.columns.pop("__of_row")
        part.stride = _stride(table.num_rows, limit // (1 if kind == "data" else 4))
        parts.append(part)
    roles_used = seen["data"][1] if "data" in seen else next((r for _, r in seen.values()), named)
    return _sorted(parts, groups, total, roles_used)


def _check(run: StoredRun, roles: Roles) -> None:
    """A column that was asked for must be in some table, or in the members of its sets."""
    names: dict[str, None] = {}
    for kind in run.kinds:
        for f in run.schema(kind):
            names |= dict.fromkeys([f.name, *_inner(f.type)])
    roles.check(pa.schema([(name, pa.null()) for name in names]))


def _inner(kind: pa.DataType) -> list[str]:
    return [f.name for f in kind] if pa.types.is_struct(kind) else []


def _stride(rows: int, limit: int) -> int:
    return max(1, -(-rows // max(limit, 1)))


def _read(run: StoredRun, kind: str, named: Roles) -> tuple[pa.Table, Roles]:
    schema = run.schema(kind)
    there = Roles(
        tuple(name for name in named.key if name in schema.names),
        named.topic if named.topic in schema.names else None,
        None,
        named.arrival,
    )
    roles = there.over(guess_roles(run.sample(kind)))
    ours = ("time_ns", "lateness_ns", "reason", "error_column", "error_value", "error_reason",
            "batch_id", "batch_start_ns", "batch_end_ns", "batch_reason", "slot", "late",
            "spread_ns", "decided_at_ns", "window_id", "window_start_ns", "window_end_ns", "pane",
            "revision", "trigger", "retraction", "count")  # fmt: skip
    structs = [f.name for f in schema if pa.types.is_struct(f.type)]
    arrival = [roles.arrival] if roles.arrival else []
    wanted = [*roles.key, *([roles.topic] if roles.topic else []), *arrival, *ours, *structs]
    return run.table(kind, list(dict.fromkeys(wanted))), roles


def _text(table: pa.Table, names: tuple[str, ...]) -> pa.Array:
    if not names:
        return pa.array([""] * table.num_rows, pa.string())
    columns = [pc.fill_null(pc.cast(_flat(table[name]), pa.string()), "?") for name in names]
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, " / ")


def _flat(column: Any) -> pa.Array:
    made = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(made, pa.ChunkedArray):
        made = made.chunk(0) if made.num_chunks else pa.array([], made.type)
    return made.dictionary_decode() if pa.types.is_dictionary(made.type) else made


def _ns(values: Any) -> Int64s:
    """A column of times as nanoseconds; NONE for null and for what is no time."""
    array = _flat(values)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ns"), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(array.type):
        return np.full(len(array), NONE, np.int64)
    return np.asarray(pc.fill_null(array.cast(pa.int64()), NONE))


def _ints(table: pa.Table, name: str, missing: int = -1) -> Int64s:
    if name not in table.column_names:
        return np.full(table.num_rows, missing, np.int64)
    return np.asarray(pc.fill_null(_flat(table[name]).cast(pa.int64()), missing))


def _arrival(values: Any, time_ns: Int64s) -> Int64s:
    """When each row came, if that column is a time near the event times; else nothing."""
    arrival = _ns(values)
    known = (arrival != NONE) & (time_ns != NONE)
    if known.any():
        delay = arrival[known].astype(np.float64) - time_ns[known]
        if abs(float(np.median(delay))) > PLAUSIBLE_DELAY_NS:
            return np.full(len(arrival), NONE, np.int64)
    return arrival


def _plain(code: int, table: pa.Table, roles: Roles) -> _Part:
    rows = table.num_rows
    none = np.full(rows, NONE, np.int64)
    time_ns = _ns(table["time_ns"]) if "time_ns" in table.column_names else none
    has_arrival = roles.arrival and roles.arrival in table.column_names
    part = _Part(
        kind=code,
        key=_text(table, roles.key),
        topic=_text(table, (roles.topic,) if roles.topic else ()),
        time_ns=time_ns,
        arrival_ns=_arrival(table[roles.arrival], time_ns) if has_arrival else none,
        micro=_ints(table, MICRO_BATCH),
        slot=_ints(table, "slot", NONE),
    )
    if "lateness_ns" in table.column_names:
        part.lateness_ns = _ints(table, "lateness_ns", 0)
    if "error_reason" in table.column_names:
        texts = [pc.fill_null(_flat(table[n]).cast(pa.string()), "null")
                 for n in ("error_column", "error_value", "error_reason")]  # fmt: skip
        part.reason = pc.binary_join_element_wise(*texts, "\x1f")
    elif "reason" in table.column_names and KINDS[code] == "dropped":
        part.reason = pc.fill_null(_flat(table["reason"]).cast(pa.string()), "")
    return part


def _topics_of(table: pa.Table) -> list[str]:
    """The struct columns of a table of sets: one per topic."""
    structs = [f for f in table.schema if pa.types.is_struct(f.type)]
    return [f.name for f in structs if f.type.get_field_index("time_ns") >= 0]


def _sets(table: pa.Table, roles: Roles, stride: int) -> tuple[Groups, list[_Part]]:
    """Sets, and their members as messages of their topics."""
    table = table.take(pa.array(np.arange(0, table.num_rows, stride)))
    topics = _topics_of(table)
    key = _text(table, roles.key)
    number = np.arange(table.num_rows)
    micro = _ints(table, MICRO_BATCH)
    parts = []
    times = np.full((table.num_rows, len(topics)), NONE, np.int64)
    for column, topic in enumerate(topics):
        struct = _flat(table[topic])
        there = np.asarray(pc.is_valid(struct))
        time_ns = _ns(pc.struct_field(struct, "time_ns"))
        times[:, column] = np.where(there, time_ns, NONE)
        arrival = np.full(len(time_ns), NONE, np.int64)
        if roles.arrival and struct.type.get_field_index(roles.arrival) >= 0:
            arrival = _arrival(pc.struct_field(struct, roles.arrival), time_ns)
        at = np.flatnonzero(there)
        parts.append(
            _Part(
                kind=0,
                key=key.take(pa.array(at)),
                topic=pa.array([topic] * len(at), pa.string()),
                time_ns=time_ns[at],
                arrival_ns=arrival[at],
                micro=micro[at],
                group=number[at],
            )
        )
    present = times != NONE
    start = np.where(present, times, 2**63 - 1).min(axis=1, initial=2**63 - 1)
    end = times.max(axis=1, initial=NONE)
    groups = Groups(
        "set", np.empty(0, np.int64), start, end,
        {"spread_ns": _ints(table, "spread_ns", 0),
         "decided_at_ns": _ints(table, "decided_at_ns", NONE), "__key": key},
        topics,
    )  # fmt: skip
    return groups, parts


def _first_of(labels: list[pa.Array]) -> tuple[Int64s, Int64s]:
    """The rows where each distinct combination first stands, and per row which one it is."""
    codes = np.zeros(len(labels[0]), np.int64)
    for label in labels:
        encoded = _flat(label).dictionary_encode()
        own = np.asarray(pc.fill_null(encoded.indices, 0)).astype(np.int64)
        codes = codes * (len(encoded.dictionary) + 1) + own
        _, codes = np.unique(codes, return_inverse=True)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return first, inverse


def _batches(run: StoredRun, table: pa.Table, roles: Roles) -> Groups:
    key = _text(table, roles.key)
    first, inverse = _first_of([key, _flat(table["batch_id"])])
    heads = table.take(pa.array(first))
    columns: dict[str, Any] = {
        "id": _ints(heads, "batch_id"),
        "rows": np.bincount(inverse, minlength=len(first)),
        "__key": key.take(pa.array(first)),
        "__of_row": inverse,
    }
    if "batch_reason" in heads.column_names:
        columns["reason"] = _flat(heads["batch_reason"]).cast(pa.string()).to_pylist()
    if "batch" in run.kinds:
        columns["report"] = _reports(run, roles, columns)
    return Groups("batch", np.empty(0, np.int64), _ints(heads, "batch_start_ns", NONE),
                  _ints(heads, "batch_end_ns", NONE), columns)  # fmt: skip


def _reports(run: StoredRun, roles: Roles, columns: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The batch's own table, per stream: expected, missing, rate and so on, for whoever asks."""
    side = run.table("batch", run.schema("batch").names)
    if "batch_id" not in side.column_names:
        return [[] for _ in columns["id"]]
    keys = _text(side, tuple(name for name in roles.key if name in side.column_names))
    wanted = dict(zip(zip(columns["__key"].to_pylist(), columns["id"].tolist(), strict=True),
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


def _windows(table: pa.Table, roles: Roles) -> Groups:
    """One entry per emission (pane and revision) of a window."""
    key = _text(table, roles.key)
    labels = [key, *(_flat(table[n]) for n in ("window_start_ns", "window_end_ns"))]
    labels += [
        _flat(table[n]) for n in ("pane", "revision", "retraction") if n in table.column_names
    ]
    first, inverse = _first_of(labels)
    heads = table.take(pa.array(first))
    columns: dict[str, Any] = {
        "pane": _ints(heads, "pane", 0),
        "revision": _ints(heads, "revision", 0),
        "rows": np.bincount(inverse, minlength=len(first)),
        "__key": key.take(pa.array(first)),
        "__of_row": inverse,
    }
    if "count" in heads.column_names:
        columns["rows"] = _ints(heads, "count", 0)
    if "trigger" in heads.column_names:
        columns["trigger"] = _flat(heads["trigger"]).cast(pa.string()).to_pylist()
    return Groups("window", np.empty(0, np.int64), _ints(heads, "window_start_ns", NONE),
                  _ints(heads, "window_end_ns", NONE), columns)  # fmt: skip


def _sorted(parts: list[_Part], groups: Groups | None, total: int, roles: Roles) -> Messages:
    for part in parts:
        _thin(part)
    texts = [part.key for part in parts] + ([groups.columns.pop("__key")] if groups else [])
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

    time_ns, arrival = joined(lambda p: p.time_ns, NONE), joined(lambda p: p.arrival_ns, NONE)
    kind = np.concatenate([np.empty(0), *(np.full(len(p.time_ns), p.kind) for p in parts)])
    # a row without event time (an error) stands where it arrived
    placed = np.where(time_ns == NONE, arrival, time_ns)
    key = key_codes[:rows]
    order = np.lexsort((placed, kind, topic_codes, key))
    group = joined(lambda p: p.group, -1)
    if groups is not None and groups.what == "set":
        groups.members = _members(groups, topics, topic_codes[order], group[order])
    return Messages(
        keys, topics, reasons, key[order], topic_codes[order], kind[order].astype(np.uint8),
        placed[order], arrival[order], joined(lambda p: p.lateness_ns, 0)[order],
        joined(lambda p: p.micro, -1)[order], group[order], joined(lambda p: p.slot, NONE)[order],
        reason_codes[order], total, groups, roles,
    )  # fmt: skip


def _members(groups: Groups, names: list[str], topic: Int64s, group: Int64s) -> NDArray[np.int32]:
    members = np.full((len(groups.start_ns), len(groups.topics)), -1, np.int32)
    column = np.array(
        [groups.topics.index(n) if n in groups.topics else -1 for n in names], np.int64
    )
    at = np.flatnonzero(group >= 0)
    members[group[at], column[topic[at]]] = at
    return members


def _thin(part: _Part) -> None:
    if part.stride == 1:
        return
    at = np.arange(0, len(part.time_ns), part.stride)
    for name in ("time_ns", "arrival_ns", "micro", "lateness_ns", "group", "slot"):
        values = getattr(part, name)
        setattr(part, name, None if values is None else values[at])
    for name in ("key", "topic", "reason"):
        values = getattr(part, name)
        setattr(part, name, None if values is None else values.take(pa.array(at)))


def _encode(texts: list[pa.Array], first: str | None = None) -> tuple[list[str], Int64s]:
    """Distinct texts in order, and the number of each row's own."""
    if not texts:
        return ([] if first is None else [first]), np.empty(0, np.int64)
    whole = pa.concat_arrays([t.cast(pa.string()) for t in texts])
    names = sorted(pc.unique(whole).to_pylist())
    if first is not None:
        names = [first, *(name for name in names if name != first)]
    codes = pc.index_in(whole, pa.array(names, pa.string()))
    return names, np.asarray(codes).astype(np.int64)
