"""Which columns hold the key, the topic, the event time and the arrival order.

Names come first, then values. A key is shown by the order of the rows: if rows are out of order as
a whole and in order for each value of a column, or if rows of one time differ in it, that column
tells streams apart. A topic needs a name that says so, or values that take turns at regular steps;
a column of states (`S S S M M`) or of categories does neither. Every guess comes with its reason
and its confidence, and can be overridden (`--key`, `--topic`, `--time`, `--arrival`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.outcomes import Int64s
from tidegate.errors import ConfigError
from tidegate.profile.order import running_max
from tidegate.profile.time_columns import Confidence, name_words, word_set

__all__ = ["RoleGuess", "Roles", "guess_roles", "guess_with_times"]

# Names that are recognised, in order of preference; upper and lower case are the same.
KEY_NAMES = ("vehicle", "vehicle_id", "robot", "car", "device", "device_id", "instrument",
             "machine", "host", "key", "run", "shard", "vector_id")  # fmt: skip
TOPIC_NAMES = ("topic", "stream", "channel", "sensor", "signal", "source", "name")
TIME_NAMES = ("time_ns", "header_stamp_ns", "stamp", "event_time", "eventtime", "timestamp",
              "header_stamp", "time", "ts", "t", "created_at", "date")  # fmt: skip
ARRIVAL_NAMES = ("log_time", "log_time_ns", "arrival", "arrival_ns", "arrived", "received",
                 "received_at", "receive_time", "ingest_time", "publish_time",
                 "offset")  # fmt: skip

KEY_WORDS = word_set(
    "vehicle robot car device instrument machine host hostname server node station site symbol "
    "ticker mmsi vessel ship imei truck bus train drone asset unit buoy turbine meter well plant "
    "gauge tag trip patient subject player shard vin tail router gateway house household room "
    "sym entity locomotive satellite spacecraft icao callsign farm stand flight well"
)
"""Words in a name that say: each value is a thing with a clock or a course of its own."""

SURE_TOPICS = frozenset({"topic", "channel", "stream"})
"""Words that say nothing else than: each value is a kind of message."""

TOPIC_WORDS = word_set(
    "topic channel signal metric variable parameter quantity measurand sensor measurement"
)
"""Words in a name that say: each value is a kind of message."""

NO_KEY_WORDS = word_set(
    "schema encoding state status phase mode level severity priority color colour version comment "
    "description message text note title url link path address email quality flag unit_of currency "
    "result action category class kind type size weather tz timezone zone dst "
    "year quarter month week weekday day hour minute"
)
"""Words in a name that say: a property of a row. It tells no streams apart, whatever its values."""

ARRIVAL_WORDS = (
    {"arrival"}, {"arrived"}, {"received"}, {"receive", "time"}, {"recv"}, {"ingest"},
    {"ingested"}, {"ingestion"}, {"log", "time"}, {"logged"}, {"server", "time"},
    {"server", "timestamp"}, {"rx", "time"}, {"kafka", "offset"}, {"kafka", "timestamp"},
)  # fmt: skip
"""Words that together say: this is when, or in which order, rows arrived."""

NO_ARRIVAL_WORDS = word_set(
    "delay year month week day airport station stop platform gate date hour count number"
)
"""Words that say: the arrival of a guest or a train, or a part of its date."""

LEAST_RANKS = 0.5
"""Correlation of ranks, with time or with the rows, that a column of arrival has at least. Rows
that arrive far out of order still have one near 1; delays and durations have none."""

FEW = 1000
"""A text column with more distinct values than this identifies rows, not topics or keys. Lower, and
a large fleet has no key; higher, and free text becomes one."""

MOST_KEYS = 100_000
"""A column that the order of the rows shows to be the key may have this many values."""


@dataclass(frozen=True)
class Roles:
    """The columns with a meaning; None or empty where there is none.

    Attributes:
        key: Columns that identify a vehicle, an instrument, a shard.
        topic: Column that names the topic of a message.
        time: Column with the event time; several that are read as one are a tuple.
        arrival: Column that gives the arrival order.
    """

    key: tuple[str, ...] = ()
    topic: str | None = None
    time: str | tuple[str, ...] | None = None
    arrival: str | None = None

    def over(self, other: Roles) -> Roles:
        """Return these roles, completed by `other` where these are empty."""
        return Roles(
            self.key or other.key,
            self.topic or other.topic,
            self.time or other.time,
            self.arrival or other.arrival,
        )

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns of the event time, none, one or several."""
        return () if self.time is None else _tuple(self.time)

    def check(self, schema: pa.Schema) -> None:
        """Raise a ConfigError if a column named here is not in `schema`. A time may be a field of a
        struct column, by its path."""
        named: list[tuple[str, str | None]] = [("key", name) for name in self.key]
        named += [("topic", self.topic), ("arrival", self.arrival)]
        named += [("time", name) for name in self.time_columns]
        for field, name in named:
            if name is None or name in schema.names:
                continue
            if field == "time" and name.split(".")[0] in schema.names:
                continue
            allowed = ", ".join(schema.names)
            raise ConfigError(
                field, name, f"is not a column of the table; its columns are {allowed}"
            )


class RoleGuess(NamedTuple):
    """Why a column has a role, and how sure that is."""

    column: str
    confidence: Confidence
    reason: str


def _tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (names,) if isinstance(names, str) else names


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
    """Fill in topic and key: text columns whose few values take turns, the fewest for the topic."""
    taken = {*roles.key, roles.topic, *roles.time_columns, roles.arrival}
    few: list[tuple[int, str]] = []
    for field in sample.schema:
        if field.name in taken or _sort_of(field) != "text" or _is_property(field.name):
            continue
        distinct = pc.count_distinct(sample[field.name]).as_py()
        if 1 < distinct <= min(FEW, sample.num_rows // 4) and _takes_turns(sample[field.name]):
            few.append((distinct, field.name))
    free = [name for _, name in sorted(few)]
    if roles.topic is None and free:
        roles = replace(roles, topic=free.pop(0))
    if not roles.key and free:
        roles = replace(roles, key=(free.pop(0),))
    return roles


def _is_property(name: str) -> bool:
    """Return whether the name says that a column is a property of its row."""
    return bool(set(name_words(name)) & NO_KEY_WORDS)


def _takes_turns(column: pa.ChunkedArray) -> bool:
    """Return whether every value of a column comes again after about the same number of rows.

    True for topics and devices that report in turns; false for states, which come in runs, and for
    categories, which come at random.
    """
    codes = _value_numbers(column)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    steps = np.diff(order)[same].astype(np.float64)
    owner = codes[order][1:][same]
    if len(steps) < 4:
        return False
    counts = np.bincount(owner)
    mean = np.bincount(owner, steps) / np.maximum(counts, 1)
    spread = np.sqrt(np.bincount(owner, (steps - mean[owner]) ** 2) / np.maximum(counts, 1))
    busy = counts > 1
    return bool(np.median(spread[busy] / mean[busy]) < 0.4) and float(np.median(mean[busy])) > 1.2


def _value_numbers(column: Any) -> Int64s:
    """Return the number of each row's value."""
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(flat, pa.ChunkedArray):
        flat = flat.chunk(0) if flat.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(flat.type):
        flat = flat.dictionary_decode()
    encoded = flat.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64)


# -- with times -----------------------------------------------------------------------------------


def guess_with_times(
    rows: pa.Table,
    time_ns: Int64s,
    file: Int64s,
    taken: tuple[str, ...],
    times: dict[str, str],
) -> dict[str, RoleGuess]:
    """Guess key, topic and arrival of rows whose event time is known.

    Args:
        rows: The rows, in the order of the files.
        time_ns: Their times.
        file: The number of the file of each row.
        taken: The columns of the event time.
        times: Columns that can be read as a time, with their event-time types.

    Returns:
        By role (`key`, `topic`, `arrival`) the column and why; roles without a column are missing.
    """
    found: dict[str, RoleGuess] = {}
    arrival = _arrival(rows, time_ns, taken, times)
    if arrival is not None:
        found["arrival"] = arrival
        order = pc.sort_indices(rows, sort_keys=[(arrival.column, "ascending")]).to_numpy()
        rows, time_ns, file = rows.take(pa.array(order)), time_ns[order], np.zeros_like(file)
    gone = {*taken, *times, *(guess.column for guess in found.values())}
    topic = _topic(rows, time_ns, gone)
    if topic is not None:
        found["topic"] = topic
        gone.add(topic.column)
    key = _key(rows, time_ns, file, gone, topic)
    if key is not None:
        found["key"] = key
    return found


def _arrival(
    rows: pa.Table, time_ns: Int64s, taken: tuple[str, ...], times: dict[str, str]
) -> RoleGuess | None:
    """Guess the arrival column: by its name, if it is a number or a time that sorts as written."""
    for name in rows.column_names:
        words = set(name_words(name))
        exact = name.lower() in ARRIVAL_NAMES
        if name in taken or not (exact or any(each <= words for each in ARRIVAL_WORDS)):
            continue
        sort = _sort_of(rows.schema.field(name))
        if rows[name].null_count or words & NO_ARRIVAL_WORDS:
            continue
        sortable = sort in ("number", "time") or times.get(name) in ("iso8601", "date")
        if sortable and _goes_with(rows[name], time_ns):
            return RoleGuess(name, "high", "its name says when rows arrived")
    return None


def _goes_with(column: Any, time_ns: Int64s) -> bool:
    """Return whether a column grows as time does, or with the rows: the delay at an airport
    (`arrival_delay`) does neither."""
    place = np.empty(len(time_ns), np.int64)
    place[pc.sort_indices(column).to_numpy()] = np.arange(len(time_ns))
    if len(np.unique(time_ns)) < 3:
        return True
    by_time = np.empty(len(time_ns), np.int64)
    by_time[np.argsort(time_ns, kind="stable")] = np.arange(len(time_ns))
    with_time = np.corrcoef(place, by_time)[0, 1]
    return bool(max(with_time, np.corrcoef(place, np.arange(len(place)))[0, 1]) > LEAST_RANKS)


def _topic(rows: pa.Table, time_ns: Int64s, gone: set[str]) -> RoleGuess | None:
    """Guess the topic column: by its name, and for words that may mean a property also by its
    values."""
    shared = _trouble(time_ns, np.zeros(len(time_ns), np.int64)).same > 0.2
    best: RoleGuess | None = None
    for name in rows.column_names:
        if name in gone or _sort_of(rows.schema.field(name)) != "text":
            continue
        words = name_words(name)
        distinct = pc.count_distinct(rows[name]).as_py()
        if not 1 <= distinct <= FEW or (distinct > 20 and distinct > rows.num_rows // 2):
            continue
        if words and (words[-1] in SURE_TOPICS or name == "_field"):  # the latter by InfluxDB
            return RoleGuess(name, "high", "its name says what a message is about")
        if words and words[-1] in TOPIC_WORDS:
            # A trading signal is a property; a signal of a bus takes turns with the others.
            if distinct == 1:
                best = best or RoleGuess(name, "medium", "its name speaks of kinds of messages")
            elif shared or _takes_turns(rows[name]):
                return RoleGuess(name, "high", "its name, and its values take turns")
        typed = words[-2:] in (["event", "type"], ["message", "type"], ["msg", "type"],
                               ["record", "type"])  # fmt: skip
        if typed and 1 < distinct <= 200:
            best = best or RoleGuess(name, "medium", "its name speaks of kinds of messages")
    return best


def _key(
    rows: pa.Table,
    time_ns: Int64s,
    file: Int64s,
    gone: set[str],
    topic: RoleGuess | None,
) -> RoleGuess | None:
    """Guess the key column: by its name, or because rows are in order only within its values."""
    base = _trouble(time_ns, file)
    moments = len(np.unique(time_ns))
    options: list[tuple[float, RoleGuess]] = []
    for name in rows.column_names:
        field = rows.schema.field(name)
        sort = _sort_of(field)
        if name in gone or sort not in ("text", "number") or pa.types.is_floating(field.type):
            continue
        words = set(name_words(name))
        codes = _value_numbers(rows[name])
        distinct = int(codes.max(initial=-1)) + 1
        if distinct < 2 or distinct > min(MOST_KEYS, max(rows.num_rows // 2, 3)):
            named = name.lower() in KEY_NAMES and distinct == 1
            if named:
                options.append((0.0, RoleGuess(name, "medium", "its name speaks of a thing")))
            continue
        exact = name.lower() in KEY_NAMES
        named = exact or bool(words & KEY_WORDS)
        region = "state" in words and base.disorder > 0.01  # a state of a machine comes in order
        if _is_property(name) and not exact and not region:
            continue
        own = _trouble(time_ns, file * distinct + codes)
        gain = max(base.disorder - own.disorder, base.same - own.same)
        mended = own.disorder < 0.2 * base.disorder and base.disorder > 0.01
        # Panel data: nearly every value has a row at nearly every time.
        dense = rows.num_rows > 0.3 * distinct * moments
        few = (
            sort == "number" and not named and not words & {"id"} and rows.num_rows < 10 * distinct
        )
        if few:  # measurements that come twice are in order each by itself, whatever they are
            continue
        parted = own.same < 0.2 * base.same and base.same > 0.2 and dense
        if named and (mended or parted):
            text = "its name, and rows are in order within its values"
            options.append((3 + gain, RoleGuess(name, "high", text)))
        elif named:
            sure: Confidence = "high" if exact or words & {"mmsi", "symbol", "ticker"} else "medium"
            options.append((2.0, RoleGuess(name, sure, "its name speaks of things of their own")))
        elif (mended or parted) and own.disorder <= base.disorder and distinct <= FEW:
            why = "rows are in order only within its values" if mended else (
                "rows of the same time differ in it")  # fmt: skip
            regular = sort == "text" or words & {"id"}
            options.append((gain if regular else gain / 2, RoleGuess(name, "medium", why)))
    if not options:
        return None
    return max(options, key=lambda option: option[0])[1]


class _Trouble(NamedTuple):
    """How badly rows of one stream are in order."""

    disorder: float
    """Share of the rows that come after a newer one."""
    same: float
    """Share of the rows with the same time as another one of the stream."""


def _trouble(time_ns: Int64s, group: Int64s) -> _Trouble:
    """Judge the order of rows within groups."""
    if len(time_ns) == 0:
        return _Trouble(0.0, 0.0)
    order = np.argsort(group, kind="stable")
    times, owner = time_ns[order], group[order]
    behind = np.count_nonzero(times < running_max(times, owner))
    by_time = np.lexsort((time_ns, group))
    twice = np.diff(time_ns[by_time]) == 0
    twice &= group[by_time][1:] == group[by_time][:-1]
    return _Trouble(behind / len(time_ns), np.count_nonzero(twice) / len(time_ns))


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
