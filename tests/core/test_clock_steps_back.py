"""A wall clock that is set back while a flow runs: no row is lost, doubled, or held for ever."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from tidegate.batching import Batch
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Outcome, Watermark
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn

S = 10**9
HOUR = 3600 * S


def numbers(outcomes: list[Outcome]) -> Counter[int]:
    """The rows that came out of the four kinds, by number."""
    found: Counter[int] = Counter()
    for outcome in outcomes:
        if not isinstance(outcome, Watermark) and outcome.kind in (
            "data", "late", "error", "dropped",
        ):  # fmt: skip
            found.update(outcome.table(()).column("n").to_pylist())
    return found


@pytest.mark.parametrize(
    "stages",
    [
        (EventtimeWatermark("2 s"),),
        (EventtimeWatermark("2 s"), Batch("1 s", topic="topic")),
    ],
    ids=["event time", "batch"],
)
@pytest.mark.parametrize("step", [-HOUR, -5 * S, HOUR])
def test_no_row_is_lost(stages: tuple[Operator, ...], step: int) -> None:
    flow = Flow(
        stages, key="car", decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)), forget="1 day"
    )
    out: list[Outcome] = []
    wall = 10 * HOUR
    for part in range(8):
        if part == 4:
            wall += step
        rows = range(10 * part, 10 * part + 10)
        out += flow.process(
            pa.record_batch({
                "car": [f"car-{n % 2}" for n in rows],
                "topic": [("a", "b")[n // 2 % 2] for n in rows],
                "n": list(rows),
                "t": [n * S // 4 for n in rows],
            }),
            wall_ns=wall,
        )  # fmt: skip
        wall += 3 * S
        out += flow.wake(wall)
        due = flow.wake_at()
        assert due is None or due >= 0
    out += flow.end()
    assert numbers(out) == Counter(range(80))
