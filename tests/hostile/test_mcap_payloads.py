"""Payloads that lie: whatever the bytes, every message is a row, and none of them raises."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.mcap.index import Channels
from tidegate.mcap.payload import PayloadDecoder, parse_fields, resolve_fields
from tidegate.mcap.records import Channel, Schema

ros = pytest.importorskip("ros_messages", reason="pip install 'tidegate[rosbag]'")

ASKED = {
    "sensor_msgs/msg/JointState": "header.stamp, name, position, effort array<float>, *",
    "diagnostic_msgs/msg/DiagnosticArray": "header.frame_id, status, *",
    "sensor_msgs/msg/BatteryState": "voltage, cell_voltage, present, power_supply_status, *",
}


def decoder(kind: str, ros1: bool) -> PayloadDecoder:
    encoding = "ros1msg" if ros1 else "ros2msg"
    channels = Channels(
        {1: Channel(1, 1, "/a", "ros1" if ros1 else "cdr")},
        {1: Schema(1, kind, encoding, ros.definition(kind, ros1))},
    )
    return PayloadDecoder(resolve_fields(parse_fields(ASKED[kind]), [channels]), channels)


DECODERS = {(kind, ros1): decoder(kind, ros1) for kind in ASKED for ros1 in (False, True)}


def decoded(of: PayloadDecoder, payloads: list[bytes]) -> tuple[list[Any], dict[int, str]]:
    ids = np.ones(len(payloads), np.int64)
    made, reasons = of.columns(pa.array(payloads, pa.binary()), ids, np.zeros(len(ids), bool))
    for column in made:
        column.validate(full=True)
        assert len(column) == len(payloads)
        assert all(column[row].as_py() is None for row in reasons)
    return [column.to_pylist() for column in made], reasons


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(DECODERS)), st.integers(0, 2**32), st.data())
def test_changed_and_cut_payloads(which: tuple[str, bool], seed: int, data: st.DataObject) -> None:
    kind, ros1 = which
    whole = ros.serialised(ros.any_message(kind, random.Random(seed), ros1), ros1)
    payloads = [whole]
    for _ in range(6):
        broken = bytearray(whole)
        place = data.draw(st.integers(0, len(whole) - 1))
        broken[place] = data.draw(st.integers(0, 255))
        payloads.append(bytes(broken[: data.draw(st.integers(0, len(whole)))]))
    columns, reasons = decoded(DECODERS[which], payloads)
    assert 0 not in reasons
    for row, text in enumerate(columns[-1]):
        assert (text is None) == (row in reasons)
        assert text is None or isinstance(json.loads(text), dict)


@pytest.mark.parametrize("count", [2**31, 2**32 - 1, 1_000])
def test_counts_beyond_the_payload(count: int) -> None:
    """A sequence that claims a billion elements costs nothing."""
    empty = bytes(12) + count.to_bytes(4, "little")
    for ros1 in (False, True):
        payload = empty if ros1 else b"\0\1\0\0" + empty
        _, reasons = decoded(DECODERS["diagnostic_msgs/msg/DiagnosticArray", ros1], [payload] * 3)
        assert len(reasons) == 3


def test_text_that_is_not_utf8_is_a_reason(tmp_path: Path) -> None:
    message = ros.any_message("sensor_msgs/msg/BatteryState", random.Random(1))
    message.header.frame_id = "frame"
    payload = ros.serialised(message).replace(b"frame", b"fr\xffme")
    _, reasons = decoded(DECODERS["sensor_msgs/msg/BatteryState", False], [payload])
    assert "cannot be decoded: 'utf-8' codec" in reasons[0]
