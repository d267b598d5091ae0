"""Input that no one should send, and everyone does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.batching import AdaptiveLength, Batch, Message, PulseGrid, RateAwareBatcher
from tidegate.batching.layout import lane_records
from tidegate.core.outcomes import Collection, ControlSignal, Side, StreamError
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.errors import ConfigError, ContractError, StateError

SECOND = 10**9
YEAR = 365 * 86400 * SECOND


def pulses(count: int, stream: str = "det", first: int = 0) -> list[Message]:
    return [
        Message(stream, round(n * SECOND / 14), n, gated=True) for n in range(first, first + count)
    ]


def everything(batcher: RateAwareBatcher, messages: list[Message]) -> list[Message]:
    batches = batcher.process(messages) + batcher.flush()
    return [message for batch in batches for message in batch.messages]


@pytest.mark.parametrize("bad", [MIN_NS, MIN_NS + 1, MAX_NS, MAX_NS - 1, -(2**62), 2**62, 0])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("at", [0, 1, 40, 69])
def test_the_ends_of_time(bad: int, gated: bool, at: int) -> None:
    """No stamp overflows a decision, wherever it comes; its message leaves with its own time."""
    messages = pulses(70)
    messages.insert(at, Message("odd", bad, "odd", gated))
    out = everything(RateAwareBatcher(), messages)
    assert len(out) == 71
    assert [m.time_ns for m in out if m.payload == "odd"] == [bad]


@pytest.mark.parametrize("off", [YEAR, -43 * YEAR])
def test_an_outlier_costs_no_batch(off: int) -> None:
    messages = pulses(14 * 12)
    messages.insert(100, Message("det", messages[100].time_ns + off, "odd", True))
    batches = RateAwareBatcher().process(messages)
    counts = [sum(m.payload != "odd" for m in b.messages) for b in batches]
    assert counts[3:] == [14] * len(counts[3:])


def test_a_first_message_from_the_future_is_healed_by_the_stall_check() -> None:
    wall = [0]
    batcher = RateAwareBatcher(clock=lambda: wall[0])
    batcher.process([Message("det", YEAR, "odd", True)])
    out = []
    for n, message in enumerate(pulses(14 * 30)):
        wall[0] = n * SECOND // 14
        out += batcher.process([message])
    assert out[-1].reason == "gate"
    assert out[-1].streams["det"].missing == 0


def test_a_first_message_from_the_future_is_healed_by_the_limit_in_a_backfill() -> None:
    """A backfill has no wall time that passes: the bound on waiting rows is its backstop."""
    batcher = RateAwareBatcher(max_rows=100)
    batcher.process([Message("det", YEAR, "odd", True)])
    batches = batcher.process(pulses(14 * 40))
    assert batches[0].reason == "stall"
    assert batches[-1].reason == "gate"


def test_all_messages_at_one_time() -> None:
    messages = [Message("det", 5, n, True) for n in range(1000)]
    out = everything(RateAwareBatcher(), messages)
    assert [m.payload for m in out] == list(range(1000))


def test_time_running_backwards() -> None:
    messages = pulses(200)[::-1]
    assert len(everything(RateAwareBatcher(), messages)) == 200


def test_more_streams_than_there_is_room_for_ride_along() -> None:
    messages = [Message(f"s{n % 10}", n * SECOND // 50, n, gated=True) for n in range(2000)]
    batcher = RateAwareBatcher(max_streams=3)
    batches = batcher.process(messages)
    assert max(sum(r.expected is not None for r in b.streams.values()) for b in batches) <= 3
    assert batches[-1].reason == "gate"
    assert sum(len(b.messages) for b in [*batches, *batcher.flush()]) == 2000


def test_names_that_come_and_go_make_room_for_each_other() -> None:
    """A new log name every message must not keep a gated stream from being measured."""
    logs = [Message(f"log-{n}", n * SECOND // 10, n) for n in range(300)]
    det = pulses(14 * 30)
    messages = sorted([*logs, *det], key=lambda m: m.time_ns)
    batches = RateAwareBatcher(max_streams=4).process(messages)
    assert batches[-1].streams["det"].expected == 14


@pytest.mark.parametrize("name", ["", "ü", "a\x00b", "x" * 10_000, "\ud800"])
def test_odd_names(name: str) -> None:
    batcher = RateAwareBatcher()
    batches = batcher.process(pulses(50, name))
    assert set(batches[-1].streams) == {name}


# -- the operator ---------------------------------------------------------------------------------


def rows_at(times: list[int], topics: list[Any], **columns: Any) -> Collection:
    batch = pa.record_batch({"topic": pa.array(topics, pa.string()), **columns})
    return Collection.of(batch, np.array(times, np.int64))


def test_rows_without_a_stream_are_errors_and_move_nothing() -> None:
    stage = Batch()
    state = stage.open()
    out = stage.process(state, rows_at([0, 10**18, 1], ["a", None, "a"]))
    [error] = [o for o in out if isinstance(o, StreamError)]
    assert error.table().to_pylist() == [
        {
            "topic": None,
            "error_column": "topic",
            "error_value": None,
            "error_reason": "no stream: the column is null",
        }
    ]
    assert lane_records(state)["hwm"][0] < 10**9
    assert len(stage.process(state, rows_at([5], [None]))) == 1


def test_columns_that_are_missing_or_taken() -> None:
    schema = pa.schema([("topic", pa.string())])
    with pytest.raises(ConfigError, match="topic"):
        Batch(topic="sensor").schema(schema)
    with pytest.raises(ConfigError, match="keys"):
        Batch(keys=("vehicle",)).side_schemas(schema)
    with pytest.raises(ConfigError, match="slot"):
        Batch().schema(pa.schema([("topic", pa.string()), ("slot", pa.int32())]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"topic": 3},
        {"gated": ""},
        {"gated": (1,)},
        {"keys": ("vehicle", "vehicle")},
        {"max_streams": 0},
        {"max_streams": 5000},
        {"max_rows": 0},
        {"max_rows": True},
    ],
)
def test_absurd_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Batch(**wrong)


def test_absurd_settings_of_the_others() -> None:
    with pytest.raises(ConfigError, match="max_doublings"):
        AdaptiveLength("1 h", max_doublings=5)
    with pytest.raises(ConfigError, match="pulse_rate_hz"):
        AdaptiveLength(pulse_rate_hz=0)
    with pytest.raises(ConfigError, match="period_ns"):
        PulseGrid(0, 0, 1)
    with pytest.raises(ConfigError, match="slots"):
        PulseGrid(0, 1, 0)
    with pytest.raises(ConfigError, match="rate_hz"):
        PulseGrid.of_rate(0, "1 s")
    with pytest.raises(ConfigError, match="batch_length"):
        PulseGrid.of_rate(1, "600 ms")


def test_a_control_with_an_absurd_length_changes_nothing() -> None:
    stage = Batch()
    state = stage.open()
    with pytest.raises(ConfigError, match="batch_length"):
        stage.control(state, ControlSignal("batch_length", "0 s"))
    assert lane_records(state)["length"][0] == 0
    assert stage.control(state, ControlSignal("somebody_elses", 1)) == []


def test_snapshots_that_cannot_be_used() -> None:
    blob = RateAwareBatcher().snapshot()
    with pytest.raises(StateError, match="corrupt"):
        RateAwareBatcher.restore(blob[:-1] + b"\x00" if blob[-1] else blob[:-1] + b"\x01")
    with pytest.raises(StateError):
        RateAwareBatcher.restore(Batch().snapshot(Batch().open()))
    with pytest.raises(StateError, match="settings"):
        Batch("2 s").restore(Batch("1 s").snapshot(Batch("1 s").open()))


def test_payloads_a_snapshot_cannot_write() -> None:
    batcher = RateAwareBatcher()
    batcher.process([Message("a", 0), Message("a", 1, {1, 2})])
    with pytest.raises(ContractError, match="encode"):
        batcher.snapshot()
    blob = batcher.snapshot(encode=sorted)
    [batch] = RateAwareBatcher.restore(blob, decode=set).flush()
    assert batch.messages[0].payload == {1, 2}


def test_a_summary_of_streams_that_sent_nothing_names_them() -> None:
    """`mon` is expected in the batches after it fell silent, in calls that never mention it."""
    stage = Batch()
    state = stage.open()
    times = [n * SECOND // 10 for n in range(60)]
    stage.process(state, rows_at(sorted(times * 2), ["det", "mon"] * 60))
    later = [n * SECOND // 10 for n in range(60, 90)]
    [side] = [o for o in stage.process(state, rows_at(later, ["det"] * 30)) if isinstance(o, Side)]
    silent = [
        part for row in side.rows.to_pylist() for part in row["streams"] if part["stream"] == "mon"
    ]
    assert [part["missing"] for part in silent if part["rows"] == 0] == [10, 10]
