"""Our batchers against recorded runs of the batcher they take their rules from.

Equal in start, end and set of messages, call by call. Where one of our fixes must change a recorded
run, the case is named in CHANGED with the fix and the reason, and what ours does is asserted.
"""

from __future__ import annotations

from typing import Any

import pytest

from cases import load
from tidegate.batching import (
    AdaptiveBatcher,
    AdaptiveLength,
    Message,
    RateAwareBatcher,
    SimpleBatcher,
)
from tidegate.errors import ConfigError

Batches = list[tuple[int, int, int, list[int]]]

CHANGED = {
    # q3: messages of the gating stream itself, a million batch lengths ahead, twice in a row: time
    # has moved. Recorded: three more batches that carry the old time range.
    "rate_aware_batcher__TestStallBackstop__test_forward_epoch_jump_recovers": 7,
    # q3: the good stream lies 43 years ahead of where the window was opened. Recorded: five batches
    # of its messages under the old time range; ours goes with it at the first.
    "rate_aware_batcher__TestBrokenTimestampStream"
    "__test_far_future_broken_stream_does_not_veto_slot_gate": 1,
    # q4: one log message a year ahead. Recorded: it closes the next two windows too, empty.
    "rate_aware_batcher__TestBrokenTimestampStream"
    "__test_far_future_outlier_does_not_permanently_elevate_hwm": 7,
    # q5: ancient messages in the first call. Recorded: the first batch spans 43 years.
    "rate_aware_batcher__TestBrokenTimestampStream"
    "__test_far_past_broken_stream_does_not_veto_slot_gate": 0,
}
"""The name of each case a fix changes, and the number of the first batch that differs."""


class Clock:
    wall_ns = 0

    def __call__(self) -> int:
        return self.wall_ns


def ns(seconds: float) -> int:
    return int(seconds * 1e9)


def rate_aware(config: dict[str, Any], clock: Clock) -> RateAwareBatcher:
    length, timeout = config["batch_length_s"], config["timeout_s"]
    return RateAwareBatcher(ns(length), 1.2 if timeout is None else timeout / length, clock)


def replay(case: dict[str, Any], batcher: Any, clock: Clock) -> Batches:
    """What comes out of every recorded call: event, start, end, message numbers."""
    out: Batches = []
    number = 0
    for at, event in enumerate(case["events"]):
        if "wall_s" in event:
            clock.wall_ns = ns(event["wall_s"])
        match event["op"]:
            case "set_batch_length":
                batcher.set_batch_length(ns(event["seconds"]))
            case "set_timeout_factor" if "raises" in event:
                with pytest.raises(ConfigError):
                    batcher.set_timeout(float(event["factor"]))
            case "set_timeout_factor":
                batcher.set_timeout(float(event["factor"]))
            case "report":
                took = round(event["processing_time_s"] * 1e9)
                level = batcher.report(event["message_count"], took)
                if "level_after" in event:
                    assert level == event["level_after"], at
                    length = event["batch_length_s_after"]
                    assert batcher.length.length_ns == pytest.approx(ns(length), abs=1)
            case _:
                for _ in range(event.get("times", 1)):
                    messages = []
                    for stream, gated, time_ns in event["messages"]:
                        messages.append(Message(stream, time_ns, number, gated))
                        number += 1
                    batch = batcher.poll(messages)
                    if batch is not None:
                        ids = sorted(message.payload for message in batch.messages)
                        out.append((at, batch.start_ns, batch.end_ns, ids))
    return out


def recorded(case: dict[str, Any]) -> Batches:
    return [(b["event"], b["start"], b["end"], sorted(b["messages"])) for b in case["expected"]]


def cases(batcher: str) -> list[Any]:
    """The recorded cases of one kind of batcher."""
    every = [
        case
        for family in ("adaptive", "message", "rate")
        for case in load(f"batching/{family}_*.json")
    ]
    return [p for p in every if p.values[0] is None or p.values[0]["batcher"] == batcher]


@pytest.mark.parametrize("case", cases("rate_aware"))
def test_rate_aware(case: dict[str, Any]) -> None:
    clock = Clock()
    if "raises" in case:
        with pytest.raises(ConfigError):
            rate_aware(case["config"], clock)
        return
    batcher = rate_aware(case["config"], clock)
    got, want = replay(case, batcher, clock), recorded(case)
    if case["name"] in CHANGED:
        same = CHANGED[case["name"]]
        assert got[:same] == want[:same]
        assert got[same : same + 1] != want[same : same + 1], "no longer changed: take it off"
        out = sorted(i for *_, ids in got for i in ids)
        out += sorted(m.payload for b in batcher.flush() for m in b.messages)
        assert sorted(out) == list(range(case["n_messages"]))
        return
    assert got == want
    final = case["final"]
    assert batcher.batch_length_ns == final["batch_length_ns"]
    assert batcher.window_ns == (final["window"] and tuple(final["window"]))
    assert batcher.waiting == sum(final["buffered"].values())


@pytest.mark.parametrize("case", cases("simple"))
def test_simple(case: dict[str, Any]) -> None:
    batcher = SimpleBatcher(ns(case["config"]["batch_length_s"]))
    assert replay(case, batcher, Clock()) == recorded(case)
    assert batcher.batch_length_ns == case["final"]["batch_length_ns"]
    assert batcher.window_ns == (case["final"]["window"] and tuple(case["final"]["window"]))
    assert batcher.waiting == sum(case["final"]["buffered"].values())


@pytest.mark.parametrize("case", cases("adaptive"))
def test_adaptive(case: dict[str, Any]) -> None:
    clock = Clock()
    config = case["config"]
    inner: Any = SimpleBatcher(ns(config["inner"]["batch_length_s"]))
    if config["inner"]["batcher"] == "rate_aware":
        inner = rate_aware(config["inner"], clock)
    length = AdaptiveLength(
        ns(config["base_batch_length_s"]),
        max_doublings=config["max_level"],
        pulse_rate_hz=round(config["pulse_rate_hz"]),
    )
    batcher = AdaptiveBatcher(inner, length, clock)
    assert replay(case, batcher, clock) == recorded(case)
    assert batcher.level == case["final"]["level"]
    assert length.length_ns == pytest.approx(ns(case["final"]["batch_length_s"]), abs=1)
