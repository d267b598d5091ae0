"""Arrow rows from row numbers: sets, clock jumps, dropped rows, and what stays held.

The kernels know a message by its row number in one list: the rows held from earlier calls, then
the rows of this call (`AllRows`). Nothing is copied before it is known where it goes.

    held table (payload, lane, place) --+                         +--> set_rows, jump_rows
                                        +--> AllRows --> Decided --+
    new collection (usable rows) -------+                         +--> leave, keep: held again
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import concat, take
from tidegate.core.columns import LANE, PLACE
from tidegate.core.outcomes import Collection, Dropped, Int32s, Int64s, Outcome
from tidegate.core.state import State
from tidegate.sync.matchers import Decided
from tidegate.sync.results import Diagnosis
from tidegate.sync.settings import SyncSettings

__all__ = [
    "AllRows",
    "diagnosis_rows",
    "diagnosis_schema",
    "held_and_new",
    "held_places",
    "jump_rows",
    "jump_schema",
    "keep",
    "leave",
    "merge_unknown",
    "set_rows",
    "set_schema",
]


@dataclass(frozen=True, eq=False)
class AllRows:
    """The held rows and behind them the new ones: what the kernel's row numbers mean."""

    source: pa.RecordBatch
    """The columns of the user, of all rows."""
    picks: Int64s | None
    """Where each row lies in the source; None: as numbered."""
    lane: Int32s
    """The lane of each row."""

    @classmethod
    def of_held(cls, held: pa.RecordBatch) -> AllRows:
        """Return the held rows alone, for a call that brings none. `held` is the state table."""
        return cls(_user_columns(held), None, held.column(LANE).to_numpy())

    def __len__(self) -> int:
        """The number of rows, held and new."""
        return len(self.lane)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the user's columns."""
        return self.source.schema

    def at(self, rows: Int64s) -> Int64s:
        """Return the indices into `source` of these row numbers; -1, a missing member, stays -1."""
        if self.picks is None:
            return rows
        return np.where(rows < 0, -1, self.picks[rows])

    def take(self, rows: Int64s) -> pa.RecordBatch:
        """Return the user's columns of these row numbers, none of which is -1."""
        return take(self.source, self.at(rows))


def _user_columns(held: pa.RecordBatch) -> pa.RecordBatch:
    """Return the state table `held` without the columns we added."""
    return held.drop_columns([LANE, PLACE])


def held_places(held: pa.RecordBatch) -> tuple[Int32s, Int64s]:
    """Return lane and place (index into the lane's `rows`) of every held row."""
    return held.column(LANE).to_numpy(), held.column(PLACE).to_numpy()


def held_and_new(held: pa.RecordBatch | None, new: Collection, usable: Int64s) -> AllRows:
    """Return the rows a call works on: those held, then the usable new ones.

    Args:
        held: The state table `held`; None before the first call.
        new: The collection that came.
        usable: Indices of its rows that have a known topic, ascending.
    """
    source, picks = new.lies
    lane = new.lane
    if len(usable) < len(new):
        picks = usable if picks is None else picks[usable]
        lane = lane[usable]
    if held is None or not held.num_rows:
        return AllRows(source, picks, lane)
    lane = np.concatenate([held.column(LANE).to_numpy(), lane])
    if not len(usable):
        return AllRows(_user_columns(held), None, lane)
    joined: Any = concat([_user_columns(held), source])
    if picks is not None:
        picks = np.concatenate([np.arange(held.num_rows), held.num_rows + picks])
    return AllRows(joined, picks, lane)


def leave(stays: NDArray[np.bool_], decided: Decided) -> None:
    """Mark the rows that became part of a set, or left without one.

    Args:
        stays: Per row number: whether it stays; set to False here.
        decided: What the kernel decided.
    """
    members = decided.members.ravel()
    stays[members[members >= 0]] = False
    stays[decided.gone["row"]] = False


def keep(state: State, rows: AllRows, stays: NDArray[np.bool_], places: Int64s) -> None:
    """Put the rows that stay into the state table `held`, with the places the kernel knows.

    Args:
        state: The state of the stage.
        rows: Held and new rows.
        stays: Per row number: whether it stays.
        places: Per new row: the place the kernel gave it. Held rows keep theirs.
    """
    at = np.flatnonzero(stays)
    table = state.tables["held"]
    before = np.empty(0, np.int64) if table is None else table.column(PLACE).to_numpy()
    place = np.concatenate([before, places])[at]
    payload = rows.take(at)
    state.tables["held"] = pa.RecordBatch.from_arrays(
        [*payload.columns, pa.array(rows.lane[at], pa.int32()), pa.array(place, pa.int64())],
        names=[*payload.schema.names, LANE, PLACE],
    )


def _member_fields(rows: pa.Schema, topic: str, keys: tuple[str, ...]) -> list[pa.Field]:
    """Return the payload columns of a member: all but the topic, the keys and the names that we
    add."""
    out = {topic, *keys, "time_ns", "offset_ns"}
    return [field.with_nullable(True) for field in rows if field.name not in out]


def set_schema(
    rows: pa.Schema, settings: SyncSettings, topic: str, keys: tuple[str, ...]
) -> pa.Schema:
    """Return the schema of sets: keys, spread and moment of the decision, and a struct per topic.

    Args:
        rows: Schema of the rows that come.
        settings: For the topics, and whether there are offsets to report.
        topic: The column that holds the topic.
        keys: Columns carried over from the first member.
    """
    own = [pa.field("time_ns", pa.int64())]
    if any(settings.offsets):
        own.append(pa.field("offset_ns", pa.int64()))
    member = pa.struct([*_member_fields(rows, topic, keys), *own])
    return pa.schema(
        [
            *(rows.field(key) for key in keys),
            pa.field("spread_ns", pa.int64()),
            pa.field("decided_at_ns", pa.int64()),
            *(pa.field(name, member) for name in settings.topics),
        ]
    )


def set_rows(
    rows: AllRows, decided: Decided, settings: SyncSettings, topic: str, keys: tuple[str, ...]
) -> pa.RecordBatch:
    """Return one row per set, in the order they were decided.

    Args:
        rows: Held and new rows.
        decided: What the kernel decided; at least one set.
        settings: For the topics and their offsets.
        topic: The column that holds the topic.
        keys: Columns carried over, from the first member that is present.
    """
    schema = set_schema(rows.schema, settings, topic, keys)
    fields = _member_fields(rows.schema, topic, keys)
    present = decided.members >= 0
    first = decided.members[np.arange(len(present)), present.argmax(axis=1)]
    firsts = pa.array(rows.at(first))
    arrays: list[Any] = [rows.source.column(key).take(firsts) for key in keys]
    arrays += [pa.array(decided.sets["spread_ns"]), pa.array(decided.sets["decided_at_ns"])]
    for number, name in enumerate(settings.topics):
        missing = ~present[:, number]
        none = missing if missing.any() else None
        at = pa.array(rows.at(decided.members[:, number]), mask=none)
        columns = [rows.source.column(field.name).take(at) for field in fields]
        columns.append(pa.array(decided.times[:, number], mask=none))
        if any(settings.offsets):
            offset = np.full(len(present), settings.topic_rules["offset"][number])
            columns.append(pa.array(offset, mask=none))
        struct = list(schema.field(name).type)
        mask = None if none is None else pa.array(none)
        arrays.append(pa.StructArray.from_arrays(columns, fields=struct, mask=mask))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def jump_schema(rows: pa.Schema, topic: str, keys: tuple[str, ...]) -> pa.Schema:
    """The side table `clock_jump`."""
    return pa.schema(
        [
            *(rows.field(key) for key in keys),
            rows.field(topic),
            pa.field("time_ns", pa.int64()),
            pa.field("back_ns", pa.int64()),
        ]
    )


def jump_rows(rows: AllRows, jumps: Any, topic: str, keys: tuple[str, ...]) -> pa.RecordBatch:
    """One row per backward jump of a clock: where to, and how far back."""
    named = rows.source.select([*keys, topic]).take(pa.array(rows.at(jumps["row"])))
    return pa.RecordBatch.from_arrays(
        [*named.columns, pa.array(jumps["time_ns"]), pa.array(jumps["amount"])],
        schema=jump_schema(rows.schema, topic, keys),
    )


def diagnosis_schema(rows: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    """The side table `diagnosis`: the fields of `Diagnosis`, and the sentence it makes."""
    numbers = ("by_ns", "queue_size", "offset_ns", "refused")
    return pa.schema(
        [
            *(rows.field(key) for key in keys),
            pa.field("problem", pa.string()),
            pa.field("topic", pa.string()),
            *(pa.field(name, pa.int64()) for name in numbers),
            pa.field("text", pa.string()),
        ]
    )


def diagnosis_rows(
    rows: pa.RecordBatch, found: list[Diagnosis], keys: tuple[str, ...]
) -> pa.RecordBatch:
    """One row per diagnosis; `rows` has a row of each key."""
    schema = diagnosis_schema(rows.schema, keys)
    arrays = [rows.column(key) for key in keys]
    arrays += [
        pa.array([getattr(one, field.name) for one in found], field.type)
        for field in list(schema)[len(keys) : -1]
    ]
    arrays.append(pa.array([str(one) for one in found], pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def merge_unknown(
    out: list[Outcome], unknown: Collection, at: Int64s, usable: Int64s, decided: Decided, held: int
) -> None:
    """Put rows of no known topic between the other dropped rows, in order of arrival.

    So the order of dropped rows does not depend on how the input was cut into collections.

    Args:
        out: The outcomes of this call; its `Dropped` is replaced, or one is added.
        unknown: The rows of no known topic.
        at: Their indices in the collection.
        usable: Indices of the other rows in the collection.
        decided: What the kernel decided about those.
        held: How many rows were held before: row numbers of new rows start there.
    """
    reason = pa.array(["unknown topic"] * len(unknown), pa.string())
    number = next((k for k, o in enumerate(out) if isinstance(o, Dropped)), None)
    if number is None:
        out.append(Dropped(unknown.rows, unknown.time_ns, unknown.lane, reason))
        return
    other = out[number]
    assert isinstance(other, Dropped)
    moment = np.concatenate([usable[decided.gone["index"] - held], at])
    order = np.argsort(moment, kind="stable")
    rows: Any = concat([other.rows, unknown.rows])
    reasons = pa.concat_arrays([other.reason, reason])
    out[number] = Dropped(
        rows.take(pa.array(order)),
        np.concatenate([other.time_ns, unknown.time_ns])[order],
        np.concatenate([other.lane, unknown.lane])[order],
        reasons.take(pa.array(order)),
    )
