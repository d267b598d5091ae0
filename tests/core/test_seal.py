"""Sealed state: a page that the holder of the key did not write is a StateError, whatever it is."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.flow import Flow
from tidegate.core.seal import StateKey
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn

KEY = "0123456789abcdef-of-the-tests"
OTHER = "fedcba9876543210-of-the-tests"


def make_flow(key: str | None = KEY, scope: str = "") -> Flow:
    decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))
    flow = Flow([EventtimeWatermark("10 s")], key="k", decoder=decoder, state_key=key)
    flow.scope = scope
    return flow


def rows(*keys: str, time: int = 5) -> pa.RecordBatch:
    return pa.record_batch({"k": list(keys), "t": [time] * len(keys)})


def used(**options: Any) -> Flow:
    flow = make_flow(**options)
    flow.process(rows("a", "b", "c"))
    return flow


def test_a_sealed_state_goes_on_as_it_would_have() -> None:
    flow, again = used(), make_flow()
    again.restore(flow.snapshot())
    after = [f.process(rows("a", time=99)) for f in (flow, again)]
    assert [len(o) for o in after[0]] == [len(o) for o in after[1]]
    assert flow.pages() == again.pages()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed, plain = used().snapshot(), used(key=None).snapshot()
    with pytest.raises(StateError, match="not sealed"):
        make_flow().restore(plain)
    with pytest.raises(StateError, match="give the state key"):
        make_flow(None).restore(sealed)
    with pytest.raises(StateError, match="another key"):
        make_flow(OTHER).restore(sealed)
    with pytest.raises(StateError, match="another key"):
        make_flow(scope="shard 2").load(used(scope="shard 1").pages())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_change_of_a_sealed_page_is_refused(data: st.DataObject) -> None:
    blob = bytearray(used().pages()[0])
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError):
        make_flow().load({0: bytes(blob)})


def test_pages_that_do_not_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is sealed by the right key; still they cannot be removed, added or mixed."""
    monkeypatch.setattr("tidegate.core.flow.PAGE_LANES", 1)
    flow = used()
    old = flow.pages()
    assert len(old) == 3
    flow.process(rows("b", time=6))
    new = {**old, **flow.pages(changed=True)}
    assert new[2] == old[2]
    assert new[1] != old[1]
    make_flow().load(new)
    for wrong in (
        {0: new[0], 1: new[1]},
        {**new, 1: old[1]},
        {**new, 0: old[0]},
        {**new, 3: old[2]},
    ):
        with pytest.raises(StateError, match="do not belong together"):
            make_flow().load(wrong)


def test_pages_written_in_turns_open_after_keys_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark stores is every page ever written, also those behind the last key in use."""
    monkeypatch.setattr("tidegate.core.flow.PAGE_LANES", 1)
    decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))

    def fresh() -> Flow:
        return Flow(
            [EventtimeWatermark("10 s")], key="k", decoder=decoder, forget="1 s", state_key=KEY
        )

    flow, stored = fresh(), {}
    for step, keys in enumerate(("abc", "a", "ad", "defg", "")):
        if keys:
            flow.process(rows(*keys), step * 10**9)
        flow.wake(step * 10**9)
        stored |= flow.pages(changed=True)
        again = fresh()
        again.load(stored)
        counts = [{**f.metrics(), "state_bytes": 0} for f in (again, flow)]
        assert counts[0] == counts[1]
        stored |= again.pages(changed=True)
        flow = again


@pytest.mark.parametrize("bad", ["short", b"short", 7, ["x" * 32]])
def test_a_bad_key_is_refused_and_not_shown(bad: Any) -> None:
    with pytest.raises(ConfigError, match="state_key") as told:
        Flow([EventtimeWatermark("10 s")], timed=True, state_key=bad)
    assert "short" not in str(told.value)
    assert "xxx" not in str(told.value)


def test_the_key_is_in_no_text_and_in_no_page() -> None:
    flow = used()
    assert KEY not in repr(StateKey(KEY)) + repr(vars(flow))
    assert KEY.encode() not in flow.snapshot()
    assert pickle.loads(pickle.dumps(StateKey(KEY))).open(
        StateKey(KEY).seal(b"x", ""), "", "page"
    ) == memoryview(b"x")
