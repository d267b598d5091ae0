"""Rates as they are: real numbers, drifting and skewed clocks, and why a stream does not gate."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.batching import Batch, Message, MessageBatch, RateAwareBatcher
from tidegate.core.outcomes import Collection, Side
from tidegate.errors import ConfigError

SECOND = 10**9
LEARNED = 8
"""Batches after which every stream here is known."""


def pulses(
    rate: float, seconds: float, *, jitter: float = 0, drift: float = 0, stream: str = "det"
) -> list[Message]:
    """A steady stream; `jitter` in periods, `drift` the share by which the period grows in all."""
    rng = random.Random(7)
    n = int(rate * seconds)
    out, t, period = [], 0.0, SECOND / rate
    for number in range(n):
        out.append(Message(stream, int(t + rng.uniform(-jitter, jitter) * period), number))
        t += period * (1 + drift * number / n)
    return out


def settled(messages: list[Message], **settings: Any) -> list[MessageBatch]:
    batches = RateAwareBatcher(settings.pop("length", "1 s"), **settings).process(messages)
    return batches[LEARNED:]


@pytest.mark.parametrize("rate", [29.97, 2.5, 1.5, 14, 14.3, 59.94])
@pytest.mark.parametrize("jitter", [0, 0.2])
def test_any_rate_gates_without_a_slip(rate: float, jitter: float) -> None:
    batches = settled(pulses(rate, 200, jitter=jitter), rates="any")
    assert {b.reason for b in batches} == {"gate"}
    assert sum(b.streams["det"].missing or 0 for b in batches) == 0
    assert {len(b.messages) for b in batches} <= {int(rate), int(rate) + 1}
    assert sum(b.late for b in batches) == 0
    assert batches[-1].streams["det"].rate_hz == pytest.approx(rate, rel=1e-3)
    assert batches[-1].streams["det"].why_not_gating is None


@pytest.mark.parametrize("drift", [0.05, -0.05, 0.001])
def test_a_drifting_clock_is_followed(drift: float) -> None:
    batches = settled(pulses(29.97, 300, drift=drift, jitter=0.1), rates="any")
    assert {b.reason for b in batches} == {"gate"}
    assert sum(b.streams["det"].missing or 0 for b in batches) <= 1
    assert sum(b.late for b in batches) <= 1


def test_long_batches_of_any_rate() -> None:
    batches = settled(pulses(100, 1200, jitter=0.1, drift=0.001), rates="any", length="60 s")
    assert {b.reason for b in batches} == {"gate"}
    assert sum(b.streams["det"].missing or 0 for b in batches) <= 1


def test_slower_than_one_hertz_gates_in_longer_batches() -> None:
    batches = settled(pulses(0.4, 600), rates="any", length="10 s")
    assert {b.reason for b in batches} == {"gate"}
    assert {len(b.messages) for b in batches} == {4}


def test_missing_and_split_messages_of_any_rate() -> None:
    """A missing pulse is told, and does not hold up the batch; a split one is no further slot."""
    messages = pulses(29.97, 60)
    gone = {400, 401, 702}
    messages = [m for m in messages if m.payload not in gone]
    messages.insert(900, messages[900])
    batches = settled(messages, rates="any")
    assert {b.reason for b in batches} == {"gate"}
    assert sum(b.streams["det"].missing or 0 for b in batches) == len(gone)


def test_a_stream_that_changes_its_rate() -> None:
    first = pulses(29.97, 30)
    later = [Message("det", m.time_ns + 30 * SECOND, m.payload) for m in pulses(12.5, 60)]
    batches = settled(first + later, rates="any")
    assert {b.reason for b in batches[-40:]} == {"gate"}
    assert {len(b.messages) for b in batches[-40:]} == {12, 13}


@pytest.mark.parametrize(
    ("rate", "text"),
    [(2.5, "2.5 Hz is not a whole rate; set rates: any"), (0.5, "0.5 Hz is less than one")],
)
def test_a_stream_that_never_gates_says_why(rate: float, text: str) -> None:
    batches = settled(pulses(rate, 60))
    assert {b.reason for b in batches} == {"timeout"}
    why = batches[-1].streams["det"].why_not_gating
    assert why is not None
    assert why.startswith(text)


def test_the_first_messages_are_learned() -> None:
    [batch, *_] = RateAwareBatcher().process(pulses(14, 1))
    why = batch.streams["det"].why_not_gating
    assert why is not None
    assert "fewer than five messages" in why
    [batch] = RateAwareBatcher().process([Message("log", 0, gated=False)])
    assert batch.streams["log"].why_not_gating == "not gated, or silent for five batches"


def test_rates_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match="rates"):
        RateAwareBatcher(rates="real")
    with pytest.raises(ConfigError, match="rates"):
        Batch(rates="real")


def test_the_tolerance_of_a_whole_rate_is_a_tenth_of_the_whole_one() -> None:
    """5.49 Hz is within 10 % of itself from 5 Hz, but not within 10 % of 5 Hz."""
    batches = settled(pulses(5.495, 60))
    assert batches[-1].streams["det"].expected == 5
    batches = settled(pulses(5.51, 60))
    assert batches[-1].streams["det"].expected == 6
    batches = settled(pulses(3.32, 60))
    assert batches[-1].streams["det"].expected is None  # 0.32 > 0.1 * 3; 0.1 * 3.32 would be more


# -- skew -----------------------------------------------------------------------------------------


def skewed(ahead_ns: int, seconds: float = 40) -> list[Message]:
    """Three streams at 10 Hz that arrive together; the clock of one is wrong."""
    out = []
    for number in range(int(10 * seconds)):
        t = number * SECOND // 10
        out += [Message("a", t, number), Message("b", t + 1000, number)]
        out.append(Message("fast", t + 2000 + ahead_ns, number))
    return out


@pytest.mark.parametrize("ahead", [2 * SECOND, -2 * SECOND, 700_000_000])
def test_a_clock_that_is_wrong_is_corrected(ahead: int) -> None:
    batches = settled(skewed(ahead), correct_skew=True)
    assert {b.reason for b in batches} == {"gate"}
    for batch in batches[2:]:
        numbers = {name: set() for name in ("a", "b", "fast")}  # type: dict[str, set[int]]
        for message in batch.messages:
            numbers[message.stream].add(message.payload)
        assert numbers["a"] == numbers["b"]
        assert (
            len(numbers["a"] ^ numbers["fast"]) <= 4
        )  # skews of little more than a period are left alone
    report = batches[-1].streams["fast"]
    assert abs(report.corrected_ns - ahead) <= SECOND // 5
    assert report.skew_ns is not None
    assert abs(report.skew_ns - ahead) <= SECOND // 5
    assert batches[-1].streams["a"].corrected_ns == 0


def test_messages_keep_their_time_when_corrected() -> None:
    messages = skewed(2 * SECOND)
    batcher = RateAwareBatcher(correct_skew=True)
    out = batcher.process(messages) + batcher.flush()
    left = sorted((m.stream, m.time_ns) for b in out for m in b.messages)
    assert left == sorted((m.stream, m.time_ns) for m in messages)


def test_without_correction_the_skew_is_only_told() -> None:
    batches = settled(skewed(2 * SECOND))
    assert batches[-1].streams["fast"].corrected_ns == 0
    skew = batches[-1].streams["fast"].skew_ns
    assert skew is not None
    assert abs(skew - 2 * SECOND) <= SECOND // 5


def test_clocks_that_agree_are_left_alone() -> None:
    batches = settled(skewed(0), correct_skew=True)
    assert {r.corrected_ns for b in batches for r in b.streams.values()} == {0}


# -- idle close -----------------------------------------------------------------------------------


class Clock:
    wall_ns = 0

    def __call__(self) -> int:
        return self.wall_ns


def test_a_quiet_tail_leaves_without_traffic() -> None:
    clock = Clock()
    batcher = RateAwareBatcher("1 s", clock=clock, idle_close="3 s")
    messages = pulses(10, 6.5)
    out = batcher.process(messages)
    clock.wall_ns = 3 * SECOND - 1
    assert batcher.tick() == []
    clock.wall_ns = 3 * SECOND
    tail = batcher.tick()
    assert {b.reason for b in tail} == {"idle"}
    assert batcher.waiting == 0
    again = [Message("det", m.time_ns, -1) for m in messages[-3:]]
    again += [Message("det", m.time_ns + 6_500_000_000, m.payload) for m in pulses(10, 4)]
    later = batcher.process(again) + batcher.flush()
    late = [m for b in later for m in b.messages if m.payload == -1]
    assert len(late) == 3
    assert sum(b.late for b in later) == 3 + 5  # and the rest of the second that was closed
    assert len([m for b in out + tail for m in b.messages]) == len(messages)
    for one, other in pairwise(out + tail + later):
        assert one.end_ns <= other.start_ns


def test_a_row_after_the_deadline_finds_the_tail_gone() -> None:
    """Whether or not somebody woke the batcher, the same batches come out."""
    outs = []
    for ticks in (True, False):
        clock = Clock()
        batcher = RateAwareBatcher("1 s", clock=clock, idle_close="3 s")
        out = batcher.process(pulses(10, 6.5))
        clock.wall_ns = 5 * SECOND
        if ticks:
            out += batcher.tick()
        out += batcher.process([Message("det", 8 * SECOND)])
        outs.append([(b.reason, b.start_ns, b.end_ns, len(b.messages)) for b in out])
    assert outs[0] == outs[1]
    assert "idle" in {reason for reason, *_ in outs[0]}


def test_idle_close_of_the_stage_has_a_deadline() -> None:
    stage = Batch("1 s", idle_close="2 s")
    state = stage.open()
    rows = pa.record_batch({"topic": ["det"] * 65})
    stage.process(state, Collection.of(rows, np.arange(65) * SECOND // 10, wall_ns=10 * SECOND))
    assert stage.wake_at(state) == 12 * SECOND
    assert stage.wake(state, 12 * SECOND - 1) == []
    sides = [o for o in stage.wake(state, 12 * SECOND) if isinstance(o, Side)]
    assert {row["batch_reason"] for side in sides for row in side.rows.to_pylist()} == {"idle"}
    assert stage.wake_at(state) is None
    assert stage.metrics(state)["rows_held"] == 0


# -- names that never come ------------------------------------------------------------------------


def test_a_gated_name_that_never_occurs_is_told() -> None:
    stage = Batch("1 s", gated=("det", "detektor"))
    rows = pa.record_batch({"topic": ["det"] * 120})
    out = stage.process(stage.open(), Collection.of(rows, np.arange(120) * SECOND // 10))
    [side] = [o for o in out if isinstance(o, Side)]
    told = Counter(
        part["why_not_gating"]
        for row in side.rows.to_pylist()
        for part in row["streams"]
        if part["stream"] == "detektor"
    )
    [(text, times)] = told.items()
    assert text == "gated, but no message of this name ever came"
    assert times == side.rows.num_rows - 5


def test_one_string_is_one_name() -> None:
    assert Batch(gated="det").gated == ("det",)
