"""A recording of a fleet, made up: what real ones look like, with every trouble they have.

Each vehicle has one stream per topic, with a phase of its own and jitter. Messages are dropped,
arrive out of order (by less than `disorder`), a few arrive very late, a few have a stamp that
cannot be read, and one vehicle has a clock that jumps a year ahead now and then. The same seed
gives the same recording, and `facts` says, without running any operator, what must come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.time import UNSET, Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = ["JUMP_NS", "START_NS", "TOPICS", "UNREADABLE", "Facts", "facts", "fleet"]

TOPICS: Mapping[str, float] = {"lidar": 10, "camera": 30, "imu": 100, "gps": 5}
"""Messages per second of each topic."""

START_NS = 1_767_225_600 * 10**9
"""2026-01-01T00:00:00Z: a fixed start, so that a recording depends on its arguments only."""

JUMP_NS = 365 * 86_400 * 10**9
"""How far a broken clock jumps ahead: one year, so a single row can make all others late."""

JUMP_EVERY = 400
"""Messages of the broken clock per jump. Jumps must be rare: several in a row would be taken for
the truth (`skew_confirm`)."""

LATENCY_NS = 2 * 10**6
"""What every message takes from sensor to log, so that no good stamp is ahead of its arrival."""

UNREADABLE = (None, "", "n/a", "NaN", "1.5e18", "-1", "2026-01-01", "99999999999999999999")
"""Stamps that are not nanoseconds since 1970, used in turn."""

_CHUNK = 1_000_000
"""Rows per chunk of the table: Arrow's offsets are 32 bits, so payloads must not be one piece."""


def fleet(
    vehicles: int = 10,
    seconds: float = 60,
    seed: int = 0,
    topics: Mapping[str, float] = TOPICS,
    *,
    jitter: Duration = "2 ms",
    drops: float = 0.01,
    disorder: Duration = "200 ms",
    late_share: float = 0.001,
    late_by: Duration = "5 s",
    unreadable: int = 8,
    broken_clock: bool = True,
    payload_bytes: int = 100,
) -> pa.Table:
    """Make a recording, in order of arrival.

    Columns: `vehicle` and `topic` (string), `stamp` (event time: nanoseconds since 1970, as digits
    in a string when some are unreadable, else int64; `unixtimestamp_ns` reads both), `log_time`
    (int64 ns, strictly increasing: pins arrival order), `seq` (int64, per vehicle and topic, with
    gaps where messages were dropped: the three name a row), `value` (double), `payload` (binary).

    A row that is not late arrives less than `disorder` (plus `LATENCY_NS`) behind its time, so a
    late tolerance of `disorder` puts all of them in order, and those with `late_by` on top come out
    late.

    Args:
        vehicles: Number of vehicles, at least 1.
        seconds: Length of the recording; more than 0.
        seed: The same arguments and seed give the same recording.
        topics: Messages per second by topic, each above 0 and up to 1,000,000.
        jitter: Largest deviation of a message from its period; cut to less than half a period.
        drops: Share of messages that are missing, 0 to 1.
        disorder: Largest additional delay of a message that is not late, exclusive.
        late_share: Share of messages that are late, 0 to 1.
        late_by: Delay of these, on top of the others.
        unreadable: Number of rows whose stamp is one of `UNREADABLE`; 0 makes `stamp` int64.
        broken_clock: Whether the clock of the first vehicle jumps now and then.
        payload_bytes: Bytes of each payload, 0 to 2000.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> recording = fleet(vehicles=2, seconds=2, seed=7)
        >>> recording.column_names
        ['vehicle', 'topic', 'stamp', 'log_time', 'seq', 'value', 'payload']
    """
    _check_arguments(vehicles, seconds, topics, drops, late_share, payload_bytes)
    rng = np.random.default_rng(seed)
    jitter_ns = parse_duration(jitter, "jitter")
    vehicle, topic, seq, time_ns = _messages(rng, vehicles, seconds, topics, jitter_ns)
    kept = rng.random(len(seq)) >= drops
    vehicle, topic, seq, time_ns = vehicle[kept], topic[kept], seq[kept], time_ns[kept]

    rows = len(seq)
    disorder_ns = parse_duration(disorder, "disorder")
    arrival = time_ns + LATENCY_NS + rng.integers(0, max(disorder_ns, 1), rows)
    late = rng.random(rows) < late_share
    arrival[late] += parse_duration(late_by, "late_by")
    order = np.argsort(arrival, kind="stable")
    vehicle, topic, seq = vehicle[order], topic[order], seq[order]
    time_ns, late = time_ns[order], late[order]
    steps = np.arange(rows)
    # Raise equal times by one each, so that log times strictly increase.
    log_time = np.maximum.accumulate(arrival[order] - steps) + steps

    ordinary = ~late
    if broken_clock:
        jumps = _jumps(rng, vehicle)
        time_ns[jumps] += JUMP_NS
        ordinary[jumps] = False
    # Only ordinary rows lose their stamp, so that each row has one trouble at most.
    candidates = np.flatnonzero(ordinary)
    bad = rng.choice(candidates, min(unreadable, len(candidates)), replace=False)
    columns: dict[str, Any] = {
        "vehicle": _decode_names([f"car-{number:05d}" for number in range(vehicles)], vehicle),
        "topic": _decode_names(list(topics), topic),
        "stamp": _stamps(time_ns, np.sort(bad)),
        "log_time": pa.array(log_time),
        "seq": pa.array(seq),
        "value": pa.array(rng.standard_normal(rows)),
    }
    chunks = [
        pa.record_batch(
            {name: column.slice(first, _CHUNK) for name, column in columns.items()}
            | {"payload": _random_payloads(rng, min(_CHUNK, rows - first), payload_bytes)}
        )
        for first in range(0, max(rows, 1), _CHUNK)
    ]
    return pa.Table.from_batches(chunks)


@dataclass(frozen=True)
class Facts:
    """What a recording holds, and what the event-time stage must make of it."""

    rows: int
    """All rows of the recording."""
    by_topic: dict[str, int]
    """Rows by topic, sorted by name."""
    by_vehicle: dict[str, int]
    """Rows by vehicle, sorted by name."""
    unreadable: int
    """Rows whose stamp is no time: one error each."""
    skewed: int
    """Rows a future-skew guard reports; 0 if there is none."""
    late: int
    """Rows whose time is at or below the watermark of their vehicle."""
    in_order: int
    """Rows that come out as data once the stream has ended."""
    newest_ns: int
    """The newest time followed, over all vehicles; `UNSET` if there is none."""


def facts(
    recording: pa.Table, late_tolerance: Duration = "200 ms", *, skew_guard: bool = True
) -> Facts:
    """Compute what must come out of a recording, with a watermark per tuple
    (`watermark_per="tuple"`).

    Computed from the columns alone: per vehicle, a row is late when its time is at or below the
    newest before it less the tolerance.

    Args:
        recording: A table that `fleet` made.
        late_tolerance: The tolerance of the event-time stage.
        skew_guard: Whether the stage has a `max_future_skew`; any between the disorder and a year
            gives the same result.

    Example:
        >>> known = facts(fleet(vehicles=2, seconds=20, seed=7))
        >>> known.unreadable, known.rows == 8 + known.skewed + known.late + known.in_order
        (8, True)
    """
    tolerance = parse_duration(late_tolerance, "late_tolerance")
    text = pc.cast(recording["stamp"], pa.string())
    readable = _flags(pc.fill_null(pc.match_substring_regex(text, r"^[0-9]{1,19}$"), False))
    stamp = pc.cast(text.filter(pa.array(readable)), pa.int64()).to_numpy()
    log_time = recording["log_time"].to_numpy()[readable]
    jumped = stamp > log_time
    followed = ~jumped if skew_guard else np.ones(len(stamp), np.bool_)
    encoded = recording["vehicle"].combine_chunks().dictionary_encode()
    vehicle = encoded.indices.to_numpy()[readable][followed]
    late, newest = 0, UNSET
    order = np.argsort(vehicle, kind="stable")
    times = stamp[followed][order]
    for own in np.split(times, np.flatnonzero(np.diff(vehicle[order])) + 1):
        if len(own):
            late += int((own[1:] <= np.maximum.accumulate(own)[:-1] - tolerance).sum())
            newest = max(newest, int(own.max()))
    skewed = int(jumped.sum()) if skew_guard else 0
    return Facts(
        rows=recording.num_rows,
        by_topic=_counts(recording["topic"]),
        by_vehicle=_counts(recording["vehicle"]),
        unreadable=int((~readable).sum()),
        skewed=skewed,
        late=late,
        in_order=len(stamp) - skewed - late,
        newest_ns=newest,
    )


def _messages(
    rng: np.random.Generator,
    vehicles: int,
    seconds: float,
    topics: Mapping[str, float],
    jitter: int,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Vehicle, topic, number and time of every message before any trouble."""
    parts = []
    for number, hz in enumerate(topics.values()):
        period = round(10**9 / hz)
        count = int(seconds * hz)
        phase = rng.integers(0, period, vehicles)
        seq = np.tile(np.arange(count), vehicles)
        vehicle = np.repeat(np.arange(vehicles, dtype=np.int32), count)
        time_ns = START_NS + phase[vehicle] + seq * period
        # Jitter below half a period keeps the messages of one stream in their own order.
        reach = min(jitter, period // 2 - 1)
        if reach > 0:
            time_ns += rng.integers(-reach, reach + 1, len(seq))
        parts.append((vehicle, np.full(len(seq), number, np.int32), seq, time_ns))
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return joined[0], joined[1], joined[2], joined[3]


def _jumps(rng: np.random.Generator, vehicle: NDArray[Any]) -> NDArray[Any]:
    """The rows of vehicle 0 whose clock is wrong: one in each run of `JUMP_EVERY`, none among the
    first few, because a stream that begins with a wrong time has nothing to be wrong against."""
    own = np.flatnonzero(vehicle == 0)
    starts = np.arange(10, len(own), JUMP_EVERY)
    places = starts + rng.integers(0, JUMP_EVERY // 2, len(starts))
    return np.asarray(own[places[places < len(own)]])


def _stamps(time_ns: NDArray[Any], bad: NDArray[Any]) -> pa.Array:
    """Return the column `stamp`: int64, or text with unreadable stamps in the rows `bad`."""
    if len(bad) == 0:
        return pa.array(time_ns)
    wrong = np.zeros(len(time_ns), np.bool_)
    wrong[bad] = True
    values = pa.array([UNREADABLE[n % len(UNREADABLE)] for n in range(len(bad))], pa.string())
    text = pa.array(time_ns).cast(pa.string())
    return pc.replace_with_mask(text, pa.array(wrong), values)


def _decode_names(names: list[str], codes: NDArray[Any]) -> pa.Array:
    """Return the names of codes as a string column."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names)).cast(pa.string())


def _random_payloads(rng: np.random.Generator, rows: int, size: int) -> pa.Array:
    """Return a binary column of random payloads of `size` bytes each."""
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rng.bytes(rows * size))]
    return pa.BinaryArray.from_buffers(pa.binary(), rows, buffers)


def _flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a boolean column without nulls as a numpy array."""
    return np.asarray(column.to_numpy(), np.bool_)


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Count the rows by value, sorted by value."""
    pairs = pc.value_counts(column).to_pylist()
    return dict(sorted((pair["values"], pair["counts"]) for pair in pairs))


def _check_arguments(
    vehicles: int, seconds: float, topics: Mapping[str, float], drops: float, late: float, size: int
) -> None:
    """Check the arguments of `fleet`.

    Raises:
        ConfigError: one is out of range. Payloads of more than 2000 bytes would not fit Arrow's
            32-bit offsets in a chunk of `_CHUNK` rows.
    """
    if vehicles < 1:
        raise ConfigError("vehicles", vehicles, "must be at least 1")
    if seconds <= 0:
        raise ConfigError("seconds", seconds, "must be more than 0")
    if not topics or any(not 0 < hz <= 10**6 for hz in topics.values()):
        raise ConfigError("topics", dict(topics), "must name topics with 0 < Hz <= 1,000,000")
    for name, share in (("drops", drops), ("late_share", late)):
        if not 0 <= share <= 1:
            raise ConfigError(name, share, "must be a share between 0 and 1")
    if not 0 <= size <= 2000:
        raise ConfigError("payload_bytes", size, "must be between 0 and 2000")
