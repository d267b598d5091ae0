"""A snapshot comes back as it was, or is refused with what is wrong, and nothing is changed."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core import snapshot
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection
from tidegate.errors import StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn

HEAD = struct.Struct("<4sHII")


def make_flow(**settings: Any) -> Flow:
    stage = EventtimeWatermark(**{"late_tolerance": "10 s", **settings})
    decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))
    return Flow([stage], key="k", decoder=decoder)


def used(**settings: Any) -> Flow:
    flow = make_flow(**settings)
    flow.process(pa.record_batch({"k": ["a", "b", "a"], "t": [5, 6, 4], "v": ["x", None, "z"]}))
    return flow


def repack(blob: bytes, change: Any) -> bytes:
    """The blob with its header changed and its checksum right: damage only our checks can find."""
    header, buffers = snapshot.unpack(blob)
    header.pop("sizes")
    changed = change(header)
    return snapshot.pack(header if changed is None else changed, [bytes(b) for b in buffers])


def test_a_stage_comes_back_as_it_was() -> None:
    stage = EventtimeWatermark(5, source="s", max_sources=3)
    state = stage.open(4)
    rows = pa.record_batch({"s": ["x", "y", "x"], "v": [b"\x00", None, b"b"]})
    stage.process(state, Collection(rows, np.array([9, 8, 7]), np.array([3, 0, 3], np.int32), 2))
    back = stage.restore(stage.snapshot(state))
    assert back.lanes == state.lanes
    for name, array in state.arrays.items():
        assert np.array_equal(back[name], array)
        assert back[name].dtype == array.dtype
    assert back.tables["held"].equals(state.tables["held"])
    back["watermark"][0] = 1  # it is a copy that can be written to


def test_envelope_holds_any_header_and_buffers() -> None:
    header, buffers = snapshot.unpack(snapshot.pack({"a": [1, "ü"]}, [b"", b"xyz"]))
    assert header["a"] == [1, "ü"]
    assert [bytes(b) for b in buffers] == [b"", b"xyz"]


def damaged() -> dict[str, tuple[bytes, str]]:
    """Every kind of damage, and a word its error must have."""
    blob = used().pages()[0]
    magic, version, crc, length = HEAD.unpack_from(blob)
    body = blob[HEAD.size :]

    def stage(change: Any) -> bytes:
        return repack(blob, lambda header: change(header["stages"][1]))

    def newer(found: dict[str, Any]) -> None:
        found["version"] = 99

    def older(found: dict[str, Any]) -> None:
        found["version"] = 0

    def settings_changed(found: dict[str, Any]) -> None:
        found["config"]["late_tolerance"] = 1

    def renamed(found: dict[str, Any]) -> None:
        found["name"] = "another"

    def array_gone(found: dict[str, Any]) -> None:
        found["arrays"].pop()

    def array_cut(found: dict[str, Any]) -> None:
        found["arrays"][0][2][0] += 1

    def array_retyped(found: dict[str, Any]) -> None:
        found["arrays"][0][1] = "<f4"

    def array_odd_type(found: dict[str, Any]) -> None:
        found["arrays"][0][1] = "nonsense"

    def array_twice(found: dict[str, Any]) -> None:
        found["arrays"][1] = found["arrays"][0]

    def table_unknown(found: dict[str, Any]) -> None:
        found["tables"][0][0] = "unknown"

    def more_tables(found: dict[str, Any]) -> None:
        found["tables"].append(["held", True])

    def lanes_wrong(found: dict[str, Any]) -> None:
        found["lanes"] = 7

    def lanes_negative(found: dict[str, Any]) -> None:
        found["lanes"] = -1

    def lanes_text(found: dict[str, Any]) -> None:
        found["lanes"] = "many"

    def no_config(found: dict[str, Any]) -> None:
        del found["config"]

    junk = json.dumps({"sizes": [], "stages": "x"}).encode()
    not_json = b"{{{{"
    head, buffers = snapshot.unpack(blob)
    tables_broken = snapshot.pack(
        {k: v for k, v in head.items() if k != "sizes"},
        [bytes(b) if bytes(b)[:4] != b"\xff\xff\xff\xff" else b"\xff" * len(b) for b in buffers],
    )
    return {
        "empty": (b"", "corrupt"),
        "cut in the head": (blob[:9], "corrupt"),
        "cut in the body": (blob[:-5], "checksum"),
        "a flipped bit": (blob[:-9] + bytes([blob[-9] ^ 1]) + blob[-8:], "checksum"),
        "not ours": (b"PAR1" + blob[4:], "not one of Tidegate's"),
        "a newer format": (HEAD.pack(magic, version + 1, crc, length) + body, "newer"),
        "an older format": (HEAD.pack(magic, 0, crc, length) + body, "format 0"),
        "a header beyond the end": (HEAD.pack(magic, version, crc, 10**6) + body, "corrupt"),
        "a header that is no JSON": (
            HEAD.pack(magic, version, zlib.crc32(not_json), len(not_json)) + not_json, "corrupt"),
        "a header of junk": (HEAD.pack(magic, version, zlib.crc32(junk), len(junk)) + junk,
                             "another plan"),
        "no stages": (repack(blob, lambda h: {"extra": {}}), "another plan"),
        "a stage less": (repack(blob, lambda h: {**h, "stages": h["stages"][:1]}), "another plan"),
        "a newer stage": (stage(newer), "newer"),
        "an older stage": (stage(older), "older"),
        "other settings": (stage(settings_changed), "settings"),
        "another stage": (stage(renamed), "another plan"),
        "an array gone": (stage(array_gone), "arrays differ"),
        "an array cut": (stage(array_cut), "watermark"),
        "an array of another type": (stage(array_retyped), "watermark"),
        "an array of no type": (stage(array_odd_type), "corrupt"),
        "an array twice": (stage(array_twice), "arrays differ"),
        "an unknown table": (stage(table_unknown), "unknown table"),
        "a table too many": (stage(more_tables), "tables differ"),
        "lanes that do not fit": (stage(lanes_wrong), "7 lanes"),
        "negative lanes": (stage(lanes_negative), "lanes"),
        "lanes of text": (stage(lanes_text), "corrupt"),
        "no settings": (stage(no_config), "corrupt"),
        "a table that is unreadable": (tables_broken, "unreadable"),
        "another page": (repack(blob, lambda h: {**h, "extra": {**h["extra"], "page": 3}}),
                         "calls itself page 3"),
        "no page": (repack(blob, lambda h: {**h, "extra": {}}), "page"),
    }  # fmt: skip


@pytest.mark.parametrize("name", damaged())
def test_damage_is_refused_and_nothing_changes(name: str) -> None:
    blob, says = damaged()[name]
    flow = used()
    before = flow.pages()
    with pytest.raises(StateError, match=says):
        flow.load({0: blob})
    assert flow.pages() == before


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_is_a_state_error(data: st.DataObject) -> None:
    blob = bytearray(used().snapshot())
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError):
        make_flow().restore(bytes(blob))


@settings(max_examples=100, deadline=None)
@given(blob=st.binary(max_size=200))
def test_any_bytes_are_a_state_error(blob: bytes) -> None:
    with pytest.raises(StateError):
        make_flow().restore(blob)
    with pytest.raises(StateError):
        make_flow().restore(b"TIDE" + blob)


def test_another_key_is_another_plan() -> None:
    stage = EventtimeWatermark("10 s")
    other = Flow([stage], key="v", decoder=Decoder((TimeColumn("t", "unixtimestamp_s"),)))
    with pytest.raises(StateError, match="keys"):
        other.restore(used().snapshot())


def test_other_settings_say_both() -> None:
    with pytest.raises(StateError, match=r"late_tolerance +10000000000 +0\n"):
        make_flow(late_tolerance=0).restore(used().snapshot())


def test_a_page_that_is_missing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.core.flow.PAGE_LANES", 1)
    flow = used()
    pages = flow.pages()
    assert len(pages) == 2
    with pytest.raises(StateError, match="page 0"):
        make_flow().load({1: pages[1]})
