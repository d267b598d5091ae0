"""The classes that are used in process, one case each: messages before and after a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from golden.cases import HALF, MS, WHOLE, deltas, messages
from tidegate import align
from tidegate.batching import (
    AdaptiveBatcher,
    AdaptiveLength,
    Message,
    RateAwareBatcher,
    SimpleBatcher,
)
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Dropped
from tidegate.deltas import DeltaChain
from tidegate.deltas.operations import deltas_of
from tidegate.eventtime import EventtimeWatermark
from tidegate.sync import ApproximateTime, EpsilonTime, ExactTime, LatestTime

TOPICS = ("camera", "lidar", "imu")


class InProcess(NamedTuple):
    """A class and its use.

    Args:
        make: Returns a new object.
        feed: Hands rows from number `first` up to `last` to one, and returns what it said.
        restore: Returns the object that a snapshot saw.
    """

    make: Callable[[], Any]
    feed: Callable[[Any, int, int], Any]
    restore: Callable[[bytes], Any]


def push_all(sync: Any, first: int, last: int) -> Any:
    """Sets as (times, payloads)."""
    part = messages(first, last)
    rows = zip(part.rows.to_pylist(), part.time_ns.tolist(), strict=True)
    sets = [one for row, time in rows for one in sync.push(row["topic"], time, row["id"])]
    return [[list(one.times_ns), list(one.payloads)] for one in sets]


def push_ticks(sync: Any, first: int, last: int) -> Any:
    """The same with equal stamps, one topic every now and then missing."""
    sets = []
    for n in range(first, last):
        for topic in TOPICS[: 2 if n % 5 == 4 else 3]:
            sets += sync.push(topic, n * MS, f"{topic}-{n}")
    return [[list(one.times_ns), list(one.payloads)] for one in sets]


def batch_all(batcher: Any, first: int, last: int) -> Any:
    """Batches as (start, end, payloads)."""
    made = []
    for n in range(first, last):
        for stream, every in (("detector", 1), ("monitor", 4)):
            if n % every == 0:
                made += batcher.process([Message(stream, n * 70 * MS, n)])
    return [[one.start_ns, one.end_ns, [m.payload for m in one.messages]] for one in made]


def batch_adaptively(batcher: Any, first: int, last: int) -> Any:
    """The same through an adaptive one, with a report on a slow batch."""
    batcher.report(messages=100, took="2 s")
    return [batch_all(batcher.inner, first, last), batcher.length.level]


def push_deltas(chain: DeltaChain, first: int, last: int) -> Any:
    """Why deltas were refused, and the vector after them."""
    mine = [one for one in deltas_of(deltas(first, last).rows) if one.vector_id == "v0"]
    refused = [refusal.reason for refusal in chain.process(mine)]
    vector = chain.compose()
    return [refused, None if vector is None else vector.tolist(), len(chain.waiting)]


def make_aligner() -> align.Aligner:
    return align.Aligner({"lidar": align.nearest("30 ms")}, reference="camera")


def align_all(aligner: align.Aligner, first: int, last: int) -> Any:
    part = messages(first, last)
    rows = zip(part.rows.to_pylist(), part.time_ns.tolist(), strict=True)
    out = [one for row, time in rows for one in aligner.push(row["topic"], time, row)]
    return [repr(one) for one in out if not isinstance(one, Dropped)]


def restore_aligner(blob: bytes) -> align.Aligner:
    made = make_aligner()
    made.restore(blob)
    return made


def make_flow() -> Flow:
    return Flow((EventtimeWatermark("50 ms"),), key="key", timed=True)


def flow_all(flow: Flow, first: int, last: int) -> Any:
    out = flow.accept(messages(first, last))
    return [[one.kind, one.table().to_pylist()] for one in out if one.kind != "watermark"]


def restore_flow(blob: bytes) -> Flow:
    made = make_flow()
    made.restore(blob)
    return made


CASES: dict[str, InProcess] = {
    "approximate-time": InProcess(
        lambda: ApproximateTime(TOPICS, queue_size=5), push_all, ApproximateTime.restore
    ),
    "exact-time": InProcess(
        lambda: ExactTime(TOPICS, queue_size=5), push_ticks, ExactTime.restore
    ),
    "epsilon-time": InProcess(
        lambda: EpsilonTime(TOPICS, max_interval=20 * MS, queue_size=5),
        push_all, EpsilonTime.restore,
    ),
    "latest-time": InProcess(lambda: LatestTime(TOPICS), push_all, LatestTime.restore),
    "simple-batcher": InProcess(
        lambda: SimpleBatcher("1 s"), batch_all, SimpleBatcher.restore
    ),
    "rate-aware-batcher": InProcess(
        lambda: RateAwareBatcher("1 s"), batch_all, RateAwareBatcher.restore
    ),
    "adaptive-batcher": InProcess(
        lambda: AdaptiveBatcher(SimpleBatcher("1 s"), AdaptiveLength("1 s")), batch_adaptively,
        lambda blob: AdaptiveBatcher.restore(blob, SimpleBatcher.restore, AdaptiveLength("1 s")),
    ),
    "delta-chain": InProcess(lambda: DeltaChain("v0"), push_deltas, DeltaChain.restore),
    "aligner": InProcess(make_aligner, align_all, restore_aligner),
    "flow": InProcess(make_flow, flow_all, restore_flow),
}  # fmt: skip
"""By name. Windows in process are a snapshot of their stage, which `golden.cases` has."""


def snapshot_in_mid_stream(name: str) -> tuple[bytes, Any]:
    """Run a case up to its snapshot; return that and what comes after it."""
    case = CASES[name]
    used = case.make()
    case.feed(used, 0, HALF)
    return used.snapshot(), case.feed(used, HALF, WHOLE)


def after_snapshot(name: str, blob: bytes) -> Any:
    """What comes after a snapshot."""
    case = CASES[name]
    return case.feed(case.restore(blob), HALF, WHOLE)
