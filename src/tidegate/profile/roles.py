"""Which columns hold the key, the topic, the event time and the arrival order.

A guess goes by the names of the columns first, then by their values. Every guess is shown to the
user and can be overridden (`--key`, `--topic`, `--time`, `--arrival`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError

__all__ = ["Roles", "guess_roles"]

# Names that are recognised, in order of preference; upper and lower case are the same.
KEY_NAMES = ("vehicle", "vehicle_id", "robot", "car", "device", "device_id", "instrument",
             "machine", "host", "key", "run", "shard", "vector_id")  # fmt: skip
TOPIC_NAMES = ("topic", "stream", "channel", "sensor", "signal", "source", "name")
TIME_NAMES = ("time_ns", "header_stamp_ns", "stamp", "event_time", "eventtime", "timestamp",
              "header_stamp", "time", "ts", "t", "created_at", "date")  # fmt: skip
ARRIVAL_NAMES = ("log_time", "log_time_ns", "arrival", "arrival_ns", "arrived", "received",
                 "received_at", "receive_time", "ingest_time", "publish_time",
                 "offset")  # fmt: skip

FEW = 1000
"""A text column with more distinct values than this identifies rows, not topics or keys. Lower, and
a large fleet has no key; higher, and free text becomes one."""


@dataclass(frozen=True)
class Roles:
    """The columns with a meaning; None or empty where there is none.

    Attributes:
        key: Columns that identify a vehicle, an instrument, a shard.
        topic: Column that names the topic of a message.
        time: Column with the event time.
        arrival: Column that gives the arrival order.
    """

    key: tuple[str, ...] = ()
    topic: str | None = None
    time: str | None = None
    arrival: str | None = None

    def over(self, other: Roles) -> Roles:
        """Return these roles, completed by `other` where these are empty."""
        return Roles(
            self.key or other.key,
            self.topic or other.topic,
            self.time or other.time,
            self.arrival or other.arrival,
        )

    def check(self, schema: pa.Schema) -> None:
        """Raise a ConfigError if a column named here is not in `schema`."""
        named: list[tuple[str, str | None]] = [("key", name) for name in self.key]
        named += [("topic", self.topic), ("time", self.time), ("arrival", self.arrival)]
        for field, name in named:
            if name is not None and name not in schema.names:
                allowed = ", ".join(schema.names)
                raise ConfigError(
                    field, name, f"is not a column of the table; its columns are {allowed}"
                )


def guess_roles(sample: pa.Table) -> Roles:
    """Guess the roles from the names of the columns, then from the values in `sample`.

    A name must come with a fitting type: a column `source` of numbers is no topic.

    Args:
        sample: Some rows. With very few, only names decide: a column counts as having few distinct
            values if it has at most a quarter as many as there are rows.

    >>> guess_roles(pa.table({"car": ["a"], "channel": ["imu"], "ts": [1], "offset": [0]}))
    Roles(key=('car',), topic='channel', time='ts', arrival='offset')
    """
    names = {name.lower(): name for name in reversed(sample.schema.names)}

    def named(candidates: tuple[str, ...], fits: tuple[str, ...]) -> str | None:
        found = (names[name] for name in candidates if name in names)
        return next((name for name in found if _sort_of(sample.schema.field(name)) in fits), None)

    key = named(KEY_NAMES, ("text", "number"))
    roles = Roles(
        key=(key,) if key else (),
        topic=named(TOPIC_NAMES, ("text",)),
        time=named(TIME_NAMES, ("number", "time", "text")),
        arrival=named(ARRIVAL_NAMES, ("number", "time")),
    )
    return roles if roles.topic and roles.key else _by_values(sample, roles)


def _by_values(sample: pa.Table, roles: Roles) -> Roles:
    """Fill in topic and key: text columns with few distinct values, the fewest for the topic."""
    taken = {*roles.key, roles.topic, roles.time, roles.arrival}
    few: list[tuple[int, str]] = []
    for field in sample.schema:
        if field.name in taken or _sort_of(field) != "text":
            continue
        distinct = pc.count_distinct(sample[field.name]).as_py()
        if 1 < distinct <= min(FEW, sample.num_rows // 4):
            few.append((distinct, field.name))
    free = [name for _, name in sorted(few)]
    if roles.topic is None and free:
        roles = replace(roles, topic=free.pop(0))
    if not roles.key and free:
        roles = replace(roles, key=(free.pop(0),))
    return roles


def _sort_of(field: pa.Field) -> str:
    """Return text, number, time or other for the type of a column; a dictionary counts as its
    values.
    """
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    return "other"
