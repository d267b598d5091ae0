"""Snapshots that somebody changed and whose checksums are right: refused in a sentence, or used
without a crash. Every room adds its operators with one line."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core import snapshot
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Watermark
from tidegate.errors import StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, ProcessTimeWatermark, TimeColumn
from tidegate.testing.snapshots import assert_survives_crafted

SECONDS = Decoder((TimeColumn("t", "unixtimestamp_s"),))
ROWS = pa.record_batch(
    {"k": list("abacabca"), "t": [5, 6, 4, 9, 10**9, 8, 7, 11], "s": list("xyxyxyzz"),
     "v": pa.array([[1.0], [], None, [2.0], [3.0], [1.0], [2.0], []])}
)  # fmt: skip


def flow_of(stage: EventtimeWatermark | ProcessTimeWatermark) -> Flow:
    return Flow([stage], key="k", decoder=SECONDS, forget="1 h")


STAGES = {
    "plain": EventtimeWatermark("4 s"),
    "suspects": EventtimeWatermark("4 s", max_future_skew="1 h", skew_confirm=3),
    "sources": EventtimeWatermark("4 s", source="s", max_sources=3, idle_timeout="10 s"),
    "clock": ProcessTimeWatermark("1 s"),
}


@pytest.mark.parametrize("name", STAGES)
def test_flows(name: str) -> None:
    stage = STAGES[name]
    flow = flow_of(stage)
    flow.process(ROWS, 10**9)
    blob = flow.snapshot()

    def use(changed: bytes) -> None:
        again = flow_of(stage)
        again.restore(changed)
        again.process(ROWS, 2 * 10**9)
        again.wake(3 * 10**9)
        again.metrics()
        again.lagging()
        again.pages()
        again.end()

    assert_survives_crafted(blob, use, examples=250)


def test_a_stage_alone() -> None:
    stage = STAGES["suspects"]
    state = stage.open(3)
    collection, _ = SECONDS.decode(ROWS, np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32))
    stage.process(state, collection)

    def use(changed: bytes) -> None:
        again = stage.restore(changed)
        again.grow(3)
        stage.process(again, collection)
        stage.advance(again, Watermark.at(3))
        stage.flush(again)
        stage.snapshot(again)

    assert_survives_crafted(stage.snapshot(state), use, examples=250)


def sealed(header: bytes, body: bytes = b"") -> bytes:
    """Any header behind a head that is right."""
    rest = header + body
    return struct.pack("<4sHII", b"TIDE", 1, zlib.crc32(rest), len(header)) + rest


@pytest.mark.parametrize("header", [
    b"[" * 100_000, b'{"a":' * 50_000, b"null", b"[]", b'{"sizes": 3}', b'{"sizes": [1e400]}',
    b'{"sizes": [-1]}', b'{"sizes": [true]}', b'{"sizes": ["1"]}', b'{"sizes": []}',
    b'{"sizes": [' + b"9" * 5000 + b"]}", b"\xff\xfe",
])  # fmt: skip
def test_headers_of_junk(header: bytes) -> None:
    with pytest.raises(StateError):
        snapshot.decode(sealed(header), [])


@pytest.mark.parametrize("lanes", [2**40, 2**31, 10**7, -(2**63), 0, 1.5, None])
def test_lanes_are_bounded_before_anything_is_allocated(lanes: object) -> None:
    stage = STAGES["plain"]
    header, buffers = snapshot.unpack(stage.snapshot(stage.open(2)))
    header["stages"][0]["lanes"] = lanes
    for array in header["stages"][0]["arrays"]:
        array[2][0] = lanes
    blob = sealed(json.dumps(header).encode(), b"".join(bytes(b) for b in buffers))
    with pytest.raises(StateError):
        stage.restore(blob)
