"""The batching scenarios again with 29.97 and 2.5 Hz: what holds for whole rates holds for any."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest

from tidegate.batching import Message, MessageBatch, RateAwareBatcher

SECOND = 10**9
YEAR = 365 * 86400 * SECOND
RATES = pytest.mark.parametrize(("rate", "length"), [(29.97, 1.0), (2.5, 1.0), (2.5, 4.0)])


def pulses(
    rate: float, first: float, last: float, *, stream: str = "det", phase: float = 0
) -> list[Message]:
    """Every pulse of a steady stream between two times (s); `phase` in periods."""
    numbers = range(round(first * rate), round(last * rate))
    times = ((number + phase) * SECOND / rate for number in numbers)
    return [Message(stream, round(t), n) for n, t in zip(numbers, times, strict=True)]


def in_order(*streams: Iterable[Message]) -> list[Message]:
    return sorted((m for stream in streams for m in stream), key=lambda m: m.time_ns)


def batches_of(
    messages: list[Message], length: float, batcher: RateAwareBatcher | None = None
) -> list[MessageBatch]:
    """All batches but those in which rates are still learned and the last; nothing is lost."""
    batcher = batcher or RateAwareBatcher(round(length * SECOND), rates="any")
    out = batcher.process(messages)
    left = [id(m) for b in out for m in b.messages] + [id(m) for m in _rest(batcher)]
    assert sorted(left) == sorted(id(m) for m in messages)
    return out[6:]


def _rest(batcher: RateAwareBatcher) -> list[Message]:
    return [m for b in batcher.flush() for m in b.messages]


def missing(batches: list[MessageBatch], stream: str = "det") -> int:
    return sum(b.streams[stream].missing or 0 for b in batches if stream in b.streams)


def reasons(batches: list[MessageBatch]) -> set[str]:
    return {b.reason for b in batches}


@RATES
def test_happy_path(rate: float, length: float) -> None:
    batches = batches_of(pulses(rate, 0, 40 * length), length)
    assert reasons(batches) == {"gate"}
    assert missing(batches) == 0
    for one, other in pairwise(batches):
        assert one.end_ns == other.start_ns


@RATES
def test_missing_pulse(rate: float, length: float) -> None:
    messages = pulses(rate, 0, 40 * length)
    gone = set(range(len(messages) // 2, len(messages) - round(4 * rate * length), 7))
    batches = batches_of([m for n, m in enumerate(messages) if n not in gone], length)
    assert reasons(batches) == {"gate"}
    assert missing(batches) == len(gone)


@RATES
def test_split_messages(rate: float, length: float) -> None:
    messages = pulses(rate, 0, 40 * length)
    split = in_order(
        messages, [Message("det", m.time_ns, -1) for m in messages[len(messages) // 2 :]]
    )
    batches = batches_of(split, length)
    assert reasons(batches) == {"gate"}
    assert missing(batches) == 0


@RATES
def test_several_gated_streams_with_a_phase(rate: float, length: float) -> None:
    messages = in_order(
        pulses(rate, 0, 40 * length),
        pulses(rate * 2, 0, 40 * length, stream="mon", phase=0.37),
        pulses(10, 0, 40 * length, stream="whole"),
    )
    batches = batches_of(messages, length)
    assert reasons(batches) == {"gate"}
    for stream in ("det", "mon", "whole"):
        assert missing(batches, stream) == 0


@RATES
def test_overflow_waits_for_its_window(rate: float, length: float) -> None:
    """`mon` comes a third of a batch later than `det`: what `det` has sent meanwhile waits."""
    delayed = [
        (m.time_ns + round(length * SECOND / 3), m)
        for m in pulses(rate, 0, 40 * length, stream="mon")
    ]
    arrivals = delayed + [(m.time_ns, m) for m in pulses(rate, 0, 40 * length)]
    messages = [m for _, m in sorted(arrivals, key=lambda entry: (entry[0], entry[1].stream))]
    batcher = RateAwareBatcher(round(length * SECOND), rates="any", timeout=2)
    batches = batches_of(messages, length, batcher)
    assert reasons(batches) == {"gate"}
    assert missing(batches) + missing(batches, "mon") == 0
    assert all(b.late == b.early == 0 for b in batches)


@RATES
def test_gap_recovery(rate: float, length: float) -> None:
    messages = pulses(rate, 0, 20 * length) + pulses(rate, 40 * length, 60 * length)
    batches = batches_of(messages, length)
    assert all(b.messages for b in batches)
    assert reasons(batches) <= {"gate", "gap", "timeout"}
    assert len([b for b in batches if b.reason != "gate"]) <= 2
    assert missing(batches[-10:]) == 0


@RATES
def test_timeout_when_a_stream_stops_and_eviction(rate: float, length: float) -> None:
    messages = in_order(
        pulses(rate, 0, 40 * length),
        pulses(rate, 0, 20 * length, stream="mon"),
    )
    batches = batches_of(messages, length)
    assert 1 <= len([b for b in batches if b.reason == "timeout"]) <= 6
    assert reasons(batches[-10:]) == {"gate"}


@RATES
def test_a_stream_that_joins_is_waited_for(rate: float, length: float) -> None:
    messages = in_order(
        pulses(rate, 0, 60 * length),
        pulses(rate, 20 * length, 60 * length, stream="mon", phase=0.2),
    )
    batches = batches_of(messages, length)
    assert reasons(batches[-20:]) == {"gate"}
    assert missing(batches[-20:], "mon") == 0


@RATES
def test_ride_along(rate: float, length: float) -> None:
    logs = [Message("log", round((n + 0.3) * length * SECOND), n, gated=False) for n in range(39)]
    batches = batches_of(in_order(pulses(rate, 0, 40 * length), logs), length)
    assert reasons(batches) == {"gate"}
    for batch in batches:
        log = [m for m in batch.messages if m.stream == "log"]
        assert all(batch.start_ns <= m.time_ns <= batch.end_ns for m in log)


@RATES
def test_jitter(rate: float, length: float) -> None:
    rng = random.Random(5)
    period = SECOND / rate
    jittered = [
        Message("det", round(m.time_ns + rng.uniform(-0.2, 0.2) * period), m.payload)
        for m in pulses(rate, 0, 80 * length)
    ]
    batches = batches_of(jittered, length)[8:]
    assert reasons(batches) == {"gate"}
    assert missing(batches) == 0


@RATES
def test_a_broken_clock_and_one_wrong_time(rate: float, length: float) -> None:
    messages = pulses(rate, 0, 40 * length)
    broken = [Message("mon", m.time_ns - 43 * YEAR, m.payload) for m in messages]
    arrivals = [m for pair in zip(messages, broken, strict=True) for m in pair]
    arrivals.insert(len(arrivals) // 2, Message("det", YEAR, -1))
    batches = batches_of(arrivals, length)
    assert reasons(batches) == {"gate"}
    assert missing(batches) <= 1


@RATES
def test_batch_length_changes(rate: float, length: float) -> None:
    batcher = RateAwareBatcher(round(length * SECOND), rates="any")
    batcher.set_batch_length(round(2 * length * SECOND), time_ns=round(20 * length * SECOND))
    batches = batches_of(pulses(rate, 0, 60 * length), length, batcher)
    assert reasons(batches) == {"gate"}
    assert missing(batches) == 0
    lengths = [b.end_ns - b.start_ns for b in batches]
    assert set(lengths) == {round(length * SECOND), round(2 * length * SECOND)}
    assert lengths == sorted(lengths)


@RATES
def test_cuts_and_restarts_do_not_matter(rate: float, length: float) -> None:
    messages = in_order(
        pulses(rate, 0, 30 * length), pulses(rate * 1.5, 0, 30 * length, stream="mon", phase=0.4)
    )
    whole = RateAwareBatcher(round(length * SECOND), rates="any", correct_skew=True)
    want = whole.process(messages)
    parts, got = RateAwareBatcher(round(length * SECOND), rates="any", correct_skew=True), []
    for first in range(0, len(messages), 11):
        got += parts.process(messages[first : first + 11])
        parts = RateAwareBatcher.restore(parts.snapshot())
    assert got == want
    assert parts.flush() == whole.flush()
