"""Every picture of the seed as a named test. Time runs to the right; `|` closes a batch."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from tidegate.batching import (
    Message,
    MessageBatch,
    PulseGrid,
    RateAwareBatcher,
    StreamPeriodEstimator,
)

SECOND = 10**9
YEAR = 365 * 86400 * SECOND


def pulses(
    stream: str, rate: float, first: int, count: int, *, offset: int = 0, without: tuple = ()
) -> list[Message]:
    """Pulses `first`, `first + 1`, ... of a steady gated stream."""
    return [
        Message(stream, offset + round(n * SECOND / rate), (stream, n), gated=True)
        for n in range(first, first + count)
        if n not in without
    ]


def log(time_ns: int, name: object = "log") -> Message:
    return Message("log", time_ns, name, gated=False)


def in_order(*streams: list[Message]) -> list[Message]:
    return sorted((m for stream in streams for m in stream), key=lambda m: m.time_ns)


def steady(batcher: RateAwareBatcher, *, seconds: int = 6, mon: bool = False) -> None:
    """Warm up: `seconds` of 14 Hz (and 5 Hz) until batches close by their gates."""
    det = pulses("det", 14, 0, 14 * seconds)
    batches = batcher.process(in_order(det, pulses("mon", 5, 0, 5 * seconds) if mon else []))
    assert batches[-1].reason == "gate"


def window(batcher: RateAwareBatcher) -> tuple[int, int]:
    assert batcher.window_ns is not None
    return batcher.window_ns


def names(batch: MessageBatch, stream: str) -> list[object]:
    return [m.payload for m in batch.messages if m.stream == stream]


# -- the mechanics --------------------------------------------------------------------------------


def test_estimator_sees_through_a_missed_pulse_and_a_split() -> None:
    """| | |   | | | ||| | |      14 Hz all the same"""
    estimator = StreamPeriodEstimator()
    for pulse in (0, 1, 2, 4, 5, 6, 6, 6, 7, 8):
        estimator.observe(round(pulse * SECOND / 14))
    assert estimator.rate_hz == 14


def test_estimator_ignores_what_comes_out_of_order() -> None:
    """1 2 3 2 4 5 3 6"""
    estimator = StreamPeriodEstimator()
    for pulse in (1, 2, 3, 2, 4, 5, 3, 6):
        estimator.observe(pulse * SECOND // 5)
    assert estimator.rate_hz == 5


def test_estimator_needs_four_distances() -> None:
    """| | | |     three distances say nothing yet"""
    estimator = StreamPeriodEstimator()
    for pulse in range(4):
        estimator.observe(pulse * SECOND // 5)
    assert estimator.rate_hz is None
    estimator.observe(4 * SECOND // 5)
    assert estimator.rate_hz == 5


def test_grid_rounds_half_a_period_of_jitter_away() -> None:
    """
    slot  0     1     2
       ( | )( | )( | )
    """
    grid = PulseGrid.of_rate(10, "1 s")
    assert [grid.slot(t * SECOND // 100, 0) for t in (-4, 4, 6, 14, 16, 94)] == [0, 0, 1, 1, 2, 9]
    assert grid.slot(SECOND // 20, 0) == 0  # exactly half: to even
    assert grid.slot(3 * SECOND // 20, 0) == 2


# -- the scenarios --------------------------------------------------------------------------------


def test_happy_path() -> None:
    """
    det 14 Hz  ||||||||||||||‖||||||||||||||‖||||||||||||||‖
               0             1 s            2 s            3 s
    """
    batches = RateAwareBatcher().process(pulses("det", 14, 0, 14 * 10))
    gated = batches[2:]
    assert [b.reason for b in gated] == ["gate"] * len(gated)
    assert [len(b.messages) for b in gated[1:]] == [14] * (len(gated) - 1)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(batches))
    report = gated[-1].streams["det"]
    assert (report.expected, report.missing) == (14, 0)
    assert report.rate_hz == pytest.approx(14, rel=1e-6)
    assert report.jitter_ns == pytest.approx(0, abs=200)


def test_missing_pulse_still_closes() -> None:
    """
    det  ||||||.|||||||‖      slot 6 never comes; the last slot does
    """
    batcher = RateAwareBatcher(timeout=math.inf)
    steady_ns = _steady_forever(batcher)
    lost = steady_ns + 6
    [batch] = batcher.process(pulses("det", 14, steady_ns, 14, without=(lost,)))
    assert (batch.reason, len(batch.messages)) == ("gate", 13)
    assert batch.streams["det"].missing == 1


def test_split_messages_do_not_close_early() -> None:
    """
    det  ||:|||            a second message in slot 2 is no further slot
    """
    batcher = RateAwareBatcher(timeout=math.inf)
    first = _steady_forever(batcher)
    part = pulses("det", 14, first, 6)
    assert batcher.process([*part[:3], part[2], *part[3:]]) == []
    assert batcher.waiting == 7
    [batch] = batcher.process(pulses("det", 14, first + 6, 8))
    assert len(batch.messages) == 15
    assert batch.streams["det"].missing == 0


def test_overflow_goes_to_the_next_batch() -> None:
    """
    det  |||||||||||||  o  |‖      o came early: it opens the next batch
    """
    batcher = RateAwareBatcher(timeout=math.inf)
    first = _steady_forever(batcher, mon=True)
    early = pulses("det", 14, first + 14, 1)
    out = batcher.process([*pulses("det", 14, first, 13), *early, *_mon(batcher)])
    assert out == []
    [batch] = batcher.process(_mon(batcher, last=True))
    assert ("det", first + 14) not in names(batch, "det")
    assert batcher.waiting >= 1
    assert early[0] in [m for b in batcher.flush() for m in b.messages]


def test_multi_stream_waits_for_all() -> None:
    """
    det 14 Hz  ||||||||||||||.....
    mon  5 Hz  |    |    |    |   |‖   closes when both have their last slot
    """
    batcher = RateAwareBatcher(timeout=math.inf)
    first = _steady_forever(batcher, mon=True)
    assert batcher.process(pulses("det", 14, first, 14)) == []
    [batch] = batcher.process([*_mon(batcher), *_mon(batcher, last=True)])
    assert batch.reason == "gate"
    assert len(names(batch, "det")) == 14
    assert len(names(batch, "mon")) == 5


def test_phase_offset_fits_all_slots() -> None:
    """
    window   [            )
    det        | | | | | |        starts 40 ms into the window: all 14 slots fit
    """
    batcher = RateAwareBatcher()
    batcher.process([log(0)])
    batches = batcher.process(pulses("det", 14, 0, 14 * 8, offset=40_000_000))
    assert [len(b.messages) for b in batches[2:]] == [14] * len(batches[2:])
    assert all(b.streams["det"].missing == 0 for b in batches[2:])


def test_gap_recovery_jumps_over_silence() -> None:
    """
    det  |||||||‖              ‖|||||||‖     five silent batches, none of them emitted
    """
    batcher = RateAwareBatcher()
    before = batcher.process(pulses("det", 14, 0, 14 * 6 - 1))
    after = batcher.process(pulses("det", 14, 14 * 11, 14 * 3))
    assert len(after) == 4
    old, gap = after[0], after[1]
    assert [len(b.messages) > 0 for b in after] == [True] * 4
    assert old.end_ns <= gap.start_ns - 4 * SECOND
    assert gap.reason == "gap"
    assert gap.moved_ns == gap.start_ns - old.end_ns
    assert before[-1].end_ns == old.start_ns


def test_timeout_by_the_high_water_mark() -> None:
    """
    det  |||||| . . . . . .
    log                        x      past 1.2 batch lengths: closes
    """
    batcher = RateAwareBatcher()
    steady(batcher)
    start, end = window(batcher)
    part = pulses("det", 14, 84, 5)
    assert batcher.process(part) == []
    assert batcher.process([log(start + SECOND + SECOND // 5 - 1)]) == []
    [batch] = batcher.process([log(start + SECOND + SECOND // 5)])  # inclusive
    assert batch.reason == "timeout"
    assert batch.end_ns == end
    assert not batch.complete
    assert batch.streams["det"].missing == 14 - batch.streams["det"].messages


def test_non_gated_rides_along() -> None:
    """
    det  ||||||||||||||‖||||||||||||||‖
    log    x  x     x     x x              never gates
    """
    logs = [log(n * SECOND // 3 + 1, n) for n in range(30)]
    batches = RateAwareBatcher().process(in_order(pulses("det", 14, 0, 140), logs))
    assert {b.reason for b in batches[2:]} == {"gate"}
    for batch in batches[2:]:
        assert all(batch.start_ns <= m.time_ns <= batch.end_ns for m in batch.messages)


def test_sub_hz_stream_does_not_gate() -> None:
    """
    det 14 Hz   ||||||||||||||‖||||||||||||||‖
    mon 0.5 Hz  |                            |     no grid: rides along
    """
    mon = pulses("mon", 0.5, 0, 12)
    batches = RateAwareBatcher().process(in_order(pulses("det", 14, 0, 14 * 22), mon))
    assert {b.reason for b in batches[2:]} == {"gate"}
    assert all(b.streams["mon"].expected is None for b in batches if "mon" in b.streams)


def test_future_ungridded_is_held_for_its_window() -> None:
    """
    det  |||||||||‖|||||||||‖
    log      x........>            stamped for the next window: waits for it
    """
    batcher = RateAwareBatcher()
    steady(batcher)
    start, end = window(batcher)
    soon = log(end + SECOND // 10, "soon")
    rest = pulses("det", 14, 84, 28)
    batches = batcher.process([soon, *rest])
    assert soon not in batches[0].messages
    assert soon in batches[1].messages
    assert start == batches[0].start_ns


def test_implausibly_far_ungridded_falls_through() -> None:
    """
    log  x → +100 batches      cannot be parked for ever: leaves with the batch it came in
    """
    batcher = RateAwareBatcher()
    steady(batcher)
    far = log(window(batcher)[1] + 100 * SECOND, "far")
    [batch] = batcher.process([far, *pulses("det", 14, 84, 14)])[:1]
    assert far in batch.messages
    assert batch.early == 1
    assert len(names(batch, "det")) == 14


def test_broken_stream_of_another_epoch_does_not_veto() -> None:
    """
    good    ||||||||||||||‖||||||||||||||‖
    broken  ⋯ 43 years behind, delivered, never waited for
    """
    good = pulses("good", 14, 0, 14 * 12, offset=50 * YEAR)
    broken = [Message("broken", m.time_ns - 43 * YEAR, i, True) for i, m in enumerate(good)]
    mixed = [m for pair in zip(good, broken, strict=True) for m in pair]
    batcher = RateAwareBatcher()
    batches = batcher.process(mixed)
    assert {b.reason for b in batches[2:]} == {"gate"}
    assert [len(names(b, "good")) for b in batches[3:]] == [14] * len(batches[3:])
    assert sum(len(b.messages) for b in [*batches, *batcher.flush()]) == len(mixed)


def test_high_water_mark_is_clamped() -> None:
    """
    log   x → + 1 year       no flood of empty batches, and traffic goes on
    """
    batcher = RateAwareBatcher()
    steady(batcher)
    batches = batcher.process([log(YEAR), *pulses("det", 14, 84, 14 * 5)])
    assert [len(names(b, "det")) for b in batches] == [14] * 5
    assert [b.reason for b in batches] == ["gate"] * 5


def test_join_absent_evict_rejoin() -> None:
    """
    det  ||||||‖||||||‖||||||‖||||||‖||||||‖||||||‖||||||‖
    mon        | | | | |                            | | |
               joins   ^ absent five times: out     ^ in again
    """
    batcher = RateAwareBatcher()
    mon = pulses("mon", 5, 25, 25) + pulses("mon", 5, 125, 25)
    batches = batcher.process(in_order(pulses("det", 14, 0, 14 * 30), mon))
    waits = [b.streams["mon"].expected if "mon" in b.streams else None for b in batches]
    gone = [b for b, w in zip(batches, waits, strict=True) if w == 5 and b.streams["mon"].missing]
    assert waits.count(5) >= 8
    assert sum(b.streams["mon"].messages == 0 for b in gone) == 5
    assert waits[-1] == 5 or waits[-2] == 5
    quiet = [b.reason for b, w in zip(batches, waits, strict=True) if w is None][3:]
    assert set(quiet) == {"gate"}


def test_batch_length_change_keeps_the_origin() -> None:
    """
    det  |||||||‖|||||||‖||||||||||||||‖     set to 2 s: 14 slots become 28
    """
    batcher = RateAwareBatcher()
    steady(batcher)
    batcher.set_batch_length("4 s")
    batcher.set_batch_length("2 s")  # the last one set wins
    batches = batcher.process(pulses("det", 14, 84, 14 * 9))
    assert [b.end_ns - b.start_ns for b in batches] == [SECOND] + [2 * SECOND] * 4
    assert [len(b.messages) for b in batches][1:] == [28] * 4
    assert batches[-1].streams["det"].expected == 28


def test_jitter_within_half_a_period() -> None:
    """
    det  | |  || | |  |‖ ...     ± 30 ms at 14 Hz: batches go on, ± 1 message
    """
    rng = random.Random(7)
    jittered = [
        Message("det", m.time_ns + rng.randint(-15, 15) * 1_000_000, None, True)
        for m in pulses("det", 14, 0, 14 * 60)
    ]
    batches = RateAwareBatcher().process(jittered)
    assert all(12 <= len(b.messages) <= 16 for b in batches[3:])
    assert batches[-1].streams["det"].jitter_ns == pytest.approx(9e6, rel=0.5)


def test_stall_backstop() -> None:
    """
    window        [      )          a stamp four minutes ahead dragged it there
    traffic  |||||||||||||||||      real time is here; ten batch lengths later it comes back
    """
    wall = [0]
    batcher = RateAwareBatcher(clock=lambda: wall[0])
    steady(batcher)
    stood, _ = window(batcher)
    batcher.process([Message("det", 245 * SECOND, "poison", True)])
    assert window(batcher)[0] > 240 * SECOND
    batcher.process(pulses("det", 14, 84, 14))
    wall[0] = 9 * SECOND
    assert batcher.tick() == []
    assert window(batcher)[0] > 240 * SECOND
    wall[0] = 10 * SECOND
    assert batcher.tick() == []
    assert window(batcher)[0] < 8 * SECOND
    batches = batcher.process(pulses("det", 14, 98, 28))
    assert batches[0].reason == "stall"
    assert batches[0].moved_ns == batches[0].start_ns - stood  # there and back
    assert "poison" in [m.payload for m in batches[0].messages]
    assert {b.reason for b in batches[1:]} <= {"gate"}


def test_quiet_stream_is_no_stall() -> None:
    """
    det  ||||||‖                     nothing waits: nothing to recover
    """
    wall = [0]
    batcher = RateAwareBatcher(clock=lambda: wall[0])
    batcher.process([Message("det", 0, None, True)])
    before = batcher.window_ns
    wall[0] = 1000 * SECOND
    assert batcher.tick() == []
    assert batcher.window_ns == before


def _steady_forever(batcher: RateAwareBatcher, *, mon: bool = False) -> int:
    """Warm up a batcher that has no timeout, call by call; gives back the next pulse of `det`."""
    batcher.set_timeout(1.2)
    det = pulses("det", 14, 0, 14 * 6)
    batches = batcher.process(in_order(det, pulses("mon", 5, 0, 30) if mon else []))
    batcher.set_timeout(math.inf)
    assert batches[-1].reason == "gate"
    # Complete the window that stands, so that the next pulse opens a new one.
    following, sent = 84, 30
    while batcher.waiting:
        batcher.process(pulses("det", 14, following, 1))
        following += 1
        due = following * 5 // 14 + 1 if mon else 30
        batcher.process(pulses("mon", 5, sent, max(0, due - sent)))
        sent = max(sent, due)
        assert following < 120
    return following


def _mon(batcher: RateAwareBatcher, *, last: bool = False) -> list[Message]:
    """The pulses of `mon` in the window that stands: all but the last, or the last."""
    start, end = window(batcher)
    inside = [n for n in range(100) if start <= n * SECOND // 5 + 1 and n * SECOND // 5 < end - 1]
    chosen = inside[-1:] if last else inside[:-1]
    return [m for n in chosen for m in pulses("mon", 5, n, 1)]
