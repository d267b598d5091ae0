"""Eight defects of the batcher our rules come from, each shown absent from ours.

Message by message (`process`) unless a defect lives in the call (`poll`).
"""

from __future__ import annotations

import math

import pytest

from tidegate.batching import Batch, Message, RateAwareBatcher, SimpleBatcher
from tidegate.batching.adaptive import AdaptiveLength
from tidegate.errors import ConfigError

SECOND = 10**9
YEAR = 365 * 86400 * SECOND


def pulses(stream: str, rate: float, first: int, count: int, offset: int = 0) -> list[Message]:
    return [
        Message(stream, offset + round(n * SECOND / rate), (stream, n), gated=True)
        for n in range(first, first + count)
    ]


def test_q1_one_pulse_per_batch_gates_from_a_cold_start() -> None:
    """
    det 1 Hz  |‖|‖|‖|‖       held messages that a non-gating close delivers are evidence too
    """
    batcher = RateAwareBatcher("1 s")
    batches = [batch for m in pulses("det", 1, 0, 40) if (batch := batcher.poll([m]))]
    assert [b.reason for b in batches[-20:]] == ["gate"] * 20
    assert [len(b.messages) for b in batches[-20:]] == [1] * 20
    batches = RateAwareBatcher("1 s").process(pulses("det", 1, 0, 40))
    assert [b.reason for b in batches[-20:]] == ["gate"] * 20


def test_q2_a_stream_that_slows_below_one_hertz_loses_its_grid() -> None:
    """
    mon 14 Hz, then one message in two seconds: no batch waits for its old 14 slots any more
    """
    fast = pulses("mon", 14, 0, 14 * 5)
    slow = pulses("mon", 0.5, 0, 60, offset=5 * SECOND)
    det = pulses("det", 10, 0, 10 * 130)
    batches = RateAwareBatcher().process(sorted(fast + slow + det, key=lambda m: m.time_ns))
    last = batches[-20:]
    assert all(b.streams["mon"].expected is None for b in last if "mon" in b.streams)
    assert {b.reason for b in last} == {"gate"}


def test_q3_after_a_long_silence_batches_carry_the_new_time_range() -> None:
    """
    det  ||||||‖ ... 2000 s of silence ... ‖||||||‖||||||‖
    """
    batcher = RateAwareBatcher()
    batcher.process(pulses("det", 14, 0, 14 * 6))
    after = batcher.process(pulses("det", 14, 14 * 2000, 14 * 6))
    for batch in after:
        inside = [batch.start_ns <= m.time_ns <= batch.end_ns for m in batch.messages]
        assert sum(inside) >= len(inside) - 1  # one pulse may round over the edge
    assert after[-1].reason == "gate"
    assert after[-1].streams["det"].missing == 0


def test_q3_call_by_call() -> None:
    batcher = RateAwareBatcher()
    for second in range(6):
        batcher.poll(pulses("det", 14, 14 * second, 14))
    batches = [batcher.poll(pulses("det", 14, 14 * s, 14)) for s in range(2000, 2004)]
    for batch in batches[1:]:
        assert batch is not None
        assert batch.start_ns >= 1999 * SECOND


def test_q4_one_far_future_log_message_closes_nothing_early() -> None:
    """
    det  ||||||||||||||‖||||||||||||||‖||||||||||||||‖
    log       x → + 1 year
    """
    batcher = RateAwareBatcher()
    batcher.process(pulses("det", 14, 0, 14 * 6))
    part = pulses("det", 14, 14 * 6, 14 * 4)
    batches = batcher.process([*part[:5], Message("log", YEAR, gated=False), *part[5:]])
    assert [sum(m.stream == "det" for m in b.messages) for b in batches] == [14] * 4
    assert {b.reason for b in batches} == {"gate"}


def test_q4_call_by_call_the_next_window_stays_open() -> None:
    batcher = RateAwareBatcher(timeout=0.8)
    for second in range(6):
        batcher.poll(pulses("det", 14, 14 * second, 14))
    while batcher.poll() is not None:
        pass
    part = pulses("det", 14, 84, 14)
    assert batcher.poll([*part, Message("log", YEAR, gated=False)]) is not None
    assert batcher.poll() is None


def test_q5_one_ancient_message_in_the_first_call_does_not_stretch_the_first_batch() -> None:
    """
    first call   x ← 43 years      ||||||||      the batch spans the pulses
    """
    det = pulses("det", 14, 0, 14, offset=60 * YEAR)
    batch = RateAwareBatcher().poll([Message("log", 17 * YEAR, "ancient", gated=False), *det])
    assert batch is not None
    assert (batch.start_ns, batch.end_ns) == (det[0].time_ns, det[-1].time_ns)
    assert len(batch.messages) == 15
    assert batch.late == 1


@pytest.mark.parametrize("rate", [3, 7, 9, 11, 13, 14, 17, 49])
def test_q6_one_period_is_long_enough_for_one_pulse(rate: int) -> None:
    """
    det 7 Hz in batches of 1/7 s   |‖|‖|‖|‖      a nanosecond of rounding costs no gate
    """
    batcher = RateAwareBatcher(SECOND // rate)
    batches = batcher.process(pulses("det", rate, 0, 20 * rate))
    assert batches[-1].reason == "gate"
    assert batches[-1].streams["det"].expected == 1
    assert [len(b.messages) for b in batches[-5:]] == [1] * 5


def test_q7_a_clock_that_runs_ahead_is_measured_and_reported() -> None:
    """
    a, b, c  ||||||||||
    fast     ||||||||||  + 2 s on every stamp
    """
    streams = [pulses(name, 10, 0, 200) for name in "abc"]
    streams.append(pulses("fast", 10, 0, 200, offset=2 * SECOND))
    batches = RateAwareBatcher().process([m for row in zip(*streams, strict=True) for m in row])
    for batch in batches[10:]:
        skews = {name: report.skew_ns for name, report in batch.streams.items()}
        assert skews["fast"] == pytest.approx(2 * SECOND, abs=SECOND // 10)
        assert all(abs(skews[name] or 0) <= SECOND // 10 for name in "abc")
    assert any(b.streams["a"].late for b in batches[10:])


@pytest.mark.parametrize("length", [0, -1, "0 s", "-1 s", "2 d", None, True, 1.5, "fortnight"])
def test_q8_absurd_lengths_are_refused(length: object) -> None:
    for make in (RateAwareBatcher, SimpleBatcher, Batch, AdaptiveLength):
        with pytest.raises(ConfigError):
            make(length)  # type: ignore[operator]
    batcher = RateAwareBatcher()
    with pytest.raises(ConfigError, match="batch_length"):
        batcher.set_batch_length(length)  # type: ignore[arg-type]
    assert batcher.batch_length_ns == SECOND


@pytest.mark.parametrize("timeout", [0, -1, 3.01, 4, math.nan, -math.inf, None, "1.2", True])
def test_q8_absurd_timeouts_are_refused(timeout: object) -> None:
    for make in (RateAwareBatcher, Batch):
        with pytest.raises(ConfigError, match="timeout"):
            make(timeout=timeout)  # type: ignore[operator]
    with pytest.raises(ConfigError):
        RateAwareBatcher().set_timeout(timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [3, 3.0, 1e-9, math.inf])
def test_q8_the_edges_are_allowed(timeout: float) -> None:
    RateAwareBatcher(timeout=timeout).set_timeout(timeout)
