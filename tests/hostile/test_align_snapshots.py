"""Crafted snapshots of align: refused in a sentence, or used without a crash or an endless grid."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate import align
from tidegate.align import Align, Episodes
from tidegate.core.flow import Flow
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.testing.snapshots import assert_survives_crafted

ROWS = pa.record_batch(
    {
        "k": list("abababababab"),
        "topic": ["camera", "imu", "imu", "camera", "imu", "imu"] * 2,
        "t": [0, 0, 3, 5, 9, 8, 12, 11, 15, 17, 21, 26],
        "v": [float(n) for n in range(12)],
    }
)
STAGES = {
    "reference": {"reference": "camera", "topics": {"imu": align.linear("5 ns")}},
    "grid": {
        "grid": "3 ns",
        "topics": {"imu": align.nearest("5 ns"), "camera": align.mean("9 ns")},
    },
}


@pytest.mark.parametrize("name", STAGES)
def test_flows(name: str) -> None:
    def flow() -> Flow:
        stage = Align(keys="k", **STAGES[name])
        decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
        return Flow([EventtimeWatermark(4), stage], key="k", decoder=decoder)

    first = flow()
    first.process(ROWS)
    blob = first.snapshot()

    def use(changed: bytes) -> None:
        again = flow()
        again.restore(changed)
        again.process(ROWS)
        again.metrics()
        again.pages()
        again.end()

    use(blob)
    assert_survives_crafted(blob, use, examples=300)


def test_episodes() -> None:
    def flow() -> Flow:
        stage = Episodes(gap="3 ns", state="topic", actions={"a": {"delta": "v"}}, keys="k")
        decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
        return Flow([EventtimeWatermark(4), stage], key="k", decoder=decoder)

    first = flow()
    first.process(ROWS)
    blob = first.snapshot()

    def use(changed: bytes) -> None:
        again = flow()
        again.restore(changed)
        again.process(ROWS)
        again.metrics()
        again.pages()
        again.end()

    use(blob)
    assert_survives_crafted(blob, use, examples=300)
