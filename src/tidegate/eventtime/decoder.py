"""From rows to a collection: which time each tuple has, and which tuples have none.

A tuple is one row. It may carry several messages: then each message is a struct column named after
its stream, null where the tuple has no such message, and the tuple's time is that of the first
message, in column order, whose stream declares an event time. A plain row is a tuple of one message
whose columns are the row's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core import checks
from tidegate.core.arrow import as_text
from tidegate.core.columns import check_columns
from tidegate.core.outcomes import Collection, Int32s, StreamError
from tidegate.errors import ConfigError
from tidegate.eventtime.types import EventtimeTypes, Parsed, TimeOptions

__all__ = ["Decoder", "TimeColumn"]


@dataclass(frozen=True)
class TimeColumn:
    """A declaration of event time.

    Args:
        column: The column with the time. A field of a struct is named by its path: `header.stamp`.
            A column whose own name has the dot comes first. Several columns (a date and a time of
            day; year, month and day) are joined as text, with a blank between them, and read as
            one value: a row in which one of them is null has no time.
        type: How it is read: a name of `EventtimeTypes`.
        message: In a tuple of several messages, the stream whose message has the time; else None.
        zone: The IANA zone of values without one, such as `Europe/Berlin`. Default None: UTC, never
            the zone of the session or the machine. Values that name their zone keep it.
        format: The layout of the text for type `date_time`, as in `datetime.strptime`; else None.

    Raises:
        ConfigError: an unknown zone, and for a format without `date_time` or the reverse.

    Example:
        >>> TimeColumn("header.stamp", "iso8601", zone="Europe/Berlin").path
        'header.stamp'
        >>> TimeColumn(("day", "clock"), "date_time", format="%d.%m.%Y %H:%M").path
        'day + clock'
    """

    column: str | tuple[str, ...]
    type: str
    message: str | None = None
    zone: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        names = checks.names("eventtime.column", self.column, empty=False)
        check_columns(names, "eventtime.column")
        object.__setattr__(self, "column", names[0] if len(names) == 1 else names)
        if (self.format is None) == (self.type == "date_time"):
            raise ConfigError(
                "eventtime.format", self.format, "goes with type `date_time`, and only with it"
            )
        if self.zone is not None:
            try:
                pc.assume_timezone(pa.array([0], pa.timestamp("s")), self.zone)
            except (pa.ArrowInvalid, pa.ArrowKeyError, TypeError) as error:
                raise ConfigError(
                    "eventtime.zone", self.zone, "must be a time zone such as Europe/Berlin"
                ) from error

    @property
    def path(self) -> str:
        """Where the time is, for messages."""
        place = "" if self.message is None else f"{self.message}."
        return " + ".join(f"{place}{name}" for name in self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, one or several."""
        return (self.column,) if isinstance(self.column, str) else self.column

    @property
    def options(self) -> TimeOptions:
        """What the parser gets beside the column."""
        return TimeOptions(self.zone, self.format)


@dataclass(frozen=True)
class Decoder:
    """Gives every row its time. Without a declaration that is the processing time.

    Args:
        times: The declarations. More than one only for tuples of several messages, each with its
            message.
        types: The event-time types by name; default: the built-in ones.

    Raises:
        ConfigError: an unknown type, and for several declarations without a message.

    Example:
        >>> import pyarrow as pa
        >>> decoder = Decoder((TimeColumn("stamp", "unixtimestamp_ms"),))
        >>> rows = pa.record_batch({"stamp": ["1500", "soon"], "v": [1, 2]})
        >>> collection, errors = decoder.decode(rows)
        >>> collection.time_ns, errors.table().to_pylist()[0]["error_reason"]
        (array([1500000000]), 'not an integer')
    """

    times: tuple[TimeColumn, ...] = ()
    types: EventtimeTypes = field(default_factory=EventtimeTypes, compare=False)

    def __post_init__(self) -> None:
        for time in self.times:
            self.types.resolve(time.type)
        if len(self.times) > 1 and any(time.message is None for time in self.times):
            raise ConfigError(
                "eventtime.column",
                [time.path for time in self.times],
                "must name the message (stream) of each column when there are several",
            )

    @property
    def reads_time(self) -> bool:
        """Whether a time column is declared; if not, rows get the processing time."""
        return bool(self.times)

    def columns_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns, among those of the input, that times are read from.

        >>> Decoder((TimeColumn("header.stamp", "unixtimestamp_ns"),)).columns_of(["header", "v"])
        ('header',)
        """
        needed = {
            time.message or (column if column in names else column.split(".")[0])
            for time in self.times
            for column in time.columns
        }
        return tuple(name for name in names if name in needed)

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse, at plan time, a time column that is missing or of a type that can never be read.

        Args:
            schema: the schema of the input.

        Raises:
            ConfigError: with the columns there are, or the types that would read this one.
        """
        for time in self.times:
            place: pa.DataType | None = pa.struct(list(schema))
            if time.message is not None:
                place = _type_at(place, time.message)
            kinds = [None if place is None else _type_at(place, name) for name in time.columns]
            if None in kinds:
                known = ", ".join(schema.names)
                raise ConfigError(
                    "eventtime.column", time.path, f"is not among the columns: {known}"
                )
            kind = kinds[0] if len(kinds) == 1 else pa.string()  # several are joined as text
            self.types.check_column(time.type, kind, time.path)

    def check_first(self, schema: pa.Schema) -> None:
        """Refuse, at the first rows, declarations of which none finds its column.

        Less than `check_schema`: rows that come later may have a column that the first ones lack,
        and values of another type are errors with a reason.

        Args:
            schema: the schema of the first rows.

        Raises:
            ConfigError: with the columns there are.
        """
        place = pa.struct(list(schema))
        for time in self.times:
            names = time.columns if time.message is None else (time.message,)
            if any(_type_at(place, name) is not None for name in names):
                return
        if self.times:
            paths = ", ".join(time.path for time in self.times)
            known = ", ".join(schema.names)
            raise ConfigError("eventtime.column", paths, f"is not among the columns: {known}")

    def decode(
        self, rows: pa.RecordBatch, lane: Int32s | None = None, wall_ns: int = 0
    ) -> tuple[Collection, StreamError | None]:
        """Give every row its time.

        Args:
            rows: the input. A time column that it lacks is read as null.
            lane: the lane of each row; None: lane 0.
            wall_ns: the processing time; the time of all rows if no column is declared.

        Returns:
            The rows that have a time, as a collection, and those that have none with the reason, or
            None if there are none.
        """
        lanes = np.zeros(rows.num_rows, np.int32) if lane is None else lane
        if not self.times:
            return Collection(rows, np.full(rows.num_rows, wall_ns, np.int64), lanes, wall_ns), None
        parsed, path, value = self._parse(rows)
        if parsed.reason.null_count == rows.num_rows:
            return Collection(rows, parsed.time_ns, lanes, wall_ns), None
        good = parsed.ok
        bad = np.flatnonzero(~good)
        wanted = pa.array(bad)
        error = StreamError(
            rows.take(wanted), path.take(wanted), value.take(wanted), parsed.reason.take(wanted),
            lanes[bad],
        )  # fmt: skip
        kept = rows.filter(pa.array(good))
        return Collection(kept, parsed.time_ns[good], lanes[good], wall_ns), error

    def read_times(self, rows: pa.RecordBatch) -> Parsed:
        """Return the time of every row, and the reason where it has none, without a collection."""
        return self._parse(rows)[0]

    def _parse(self, rows: pa.RecordBatch) -> tuple[Parsed, pa.Array, pa.Array]:
        """Times, and for each row the column they were read from and its value as text."""
        if self.times[0].message is None:
            time = self.times[0]
            column = _joined([_column(rows, name) for name in time.columns])
            parsed = self.types.parse(time.type, column, time.options)
            if parsed.reason.null_count == rows.num_rows:
                nobody = pa.nulls(0, pa.string())  # no bad row: nobody reads path and value
                return parsed, nobody, nobody
            return parsed, pa.repeat(time.path, rows.num_rows), as_text(column)
        order = {name: place for place, name in enumerate(rows.schema.names)}
        times = sorted(self.times, key=lambda time: order.get(time.message or "", len(order)))
        open_rows = np.ones(rows.num_rows, np.bool_)
        time_ns = np.zeros(rows.num_rows, np.int64)
        reason = np.full(rows.num_rows, "no message with an event time in this tuple", object)
        path = np.full(rows.num_rows, ",".join(time.path for time in times), object)
        value = np.full(rows.num_rows, None, object)
        for time in times:
            message = _column(rows, time.message or "")
            if pa.types.is_null(message.type):
                continue
            here = open_rows & message.is_valid().to_numpy(zero_copy_only=False)
            column = _joined([_struct_field(message, name) for name in time.columns])
            parsed = self.types.parse(time.type, column, time.options)
            time_ns[here] = parsed.time_ns[here]
            reason[here] = parsed.reason.to_numpy(zero_copy_only=False)[here]
            path[here] = time.path
            value[here] = as_text(column).to_numpy(zero_copy_only=False)[here]
            open_rows &= ~here
        return (
            Parsed(time_ns, pa.array(reason, pa.string())),
            pa.array(path, pa.string()),
            pa.array(value, pa.string()),
        )


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or a field of a struct column by its path; nulls where this collection has none of
    that name (its schema may change)."""
    index = rows.schema.get_field_index(name)
    if index >= 0:
        return rows.column(index)
    head, _, rest = name.partition(".")
    index = rows.schema.get_field_index(head)
    return (
        _struct_field(rows.column(index), rest) if rest and index >= 0 else pa.nulls(rows.num_rows)
    )


def _joined(columns: list[pa.Array]) -> pa.Array:
    """One column as it is; several as text with a blank between them, null where one of them is."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*(pc.utf8_trim(as_text(c), " ") for c in columns), " ")


def _struct_field(message: pa.Array, name: str) -> pa.Array:
    """A field of a struct, or of a struct within it by its path; nulls where there is none."""
    if not pa.types.is_struct(message.type):
        return pa.nulls(len(message))
    if message.type.get_field_index(name) >= 0:
        return pc.struct_field(message, name)
    head, _, rest = name.partition(".")
    if rest and message.type.get_field_index(head) >= 0:
        return _struct_field(pc.struct_field(message, head), rest)
    return pa.nulls(len(message))


def _type_at(kind: pa.DataType, name: str) -> pa.DataType | None:
    """The type of a field of a struct type, by its path; None if there is none."""
    if not pa.types.is_struct(kind):
        return None
    index = kind.get_field_index(name)
    if index >= 0:
        return kind.field(index).type
    head, _, rest = name.partition(".")
    index = kind.get_field_index(head)
    return _type_at(kind.field(index).type, rest) if rest and index >= 0 else None
