"""Which column names the key, the topic, the event time and the order of arrival.

Names are asked first, then the values: what is guessed is always shown, and always overridable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError

__all__ = ["Roles", "guess_roles"]

KEY_NAMES = ("vehicle", "vehicle_id", "robot", "car", "device", "device_id", "instrument",
             "machine", "host", "key", "run", "shard", "vector_id")  # fmt: skip
TOPIC_NAMES = ("topic", "stream", "channel", "sensor", "signal", "source", "name")
TIME_NAMES = ("time_ns", "header_stamp_ns", "stamp", "event_time", "eventtime", "timestamp",
              "header_stamp", "time", "ts", "t", "created_at", "date")  # fmt: skip
ARRIVAL_NAMES = ("log_time", "log_time_ns", "arrival", "arrival_ns", "arrived", "received",
                 "received_at", "receive_time", "ingest_time", "publish_time",
                 "offset")  # fmt: skip

FEW = 1000
"""A text column with more distinct values than this names rows, not streams."""


@dataclass(frozen=True)
class Roles:
    """The columns a look needs; None or empty where there is none."""

    key: tuple[str, ...] = ()
    topic: str | None = None
    time: str | None = None
    arrival: str | None = None

    def over(self, other: Roles) -> Roles:
        """These roles, and the other's where these say nothing."""
        return Roles(
            self.key or other.key,
            self.topic or other.topic,
            self.time or other.time,
            self.arrival or other.arrival,
        )

    def check(self, schema: pa.Schema) -> None:
        """Every column named must be there."""
        named: list[tuple[str, str | None]] = [("key", name) for name in self.key]
        named += [("topic", self.topic), ("time", self.time), ("arrival", self.arrival)]
        for field, name in named:
            if name is not None and name not in schema.names:
                allowed = ", ".join(schema.names)
                raise ConfigError(field, name, f"is no column of the table; it has {allowed}")


def guess_roles(sample: pa.Table) -> Roles:
    """Roles from the names of the columns, then from what the first rows hold.

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
    """Text columns with few distinct values name streams: fewest for the topic, then the key."""
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
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    return "other"
