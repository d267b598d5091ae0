"""Bad input: never an exception, never silent, and the rows beside it come out as ever."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Late, Outcome, StreamError
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.errors import ConfigError
from tidegate.eventtime import (
    Decoder,
    EventtimeTypes,
    EventtimeWatermark,
    Parsed,
    TimeColumn,
)
from tidegate.testing.hostile import NO_TIMES, odd_batches

UNIX = ["unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns"]


def make_flow(kind: str = "unixtimestamp_s", **settings: Any) -> Flow:
    return Flow(
        [
            EventtimeWatermark(
                **{"late_tolerance": "1 s", "watermark_per": "collection", **settings}
            )
        ],
        decoder=Decoder((TimeColumn("t", kind),)),
    )


def kinds(outcomes: list[Outcome]) -> Counter[str]:
    found: Counter[str] = Counter()
    for outcome in outcomes:
        found[outcome.kind] += len(outcome)
    return found


@pytest.mark.parametrize("kind", [*UNIX, "iso8601", "timestamp"])
@pytest.mark.parametrize("name", NO_TIMES)
def test_a_value_that_is_no_time(kind: str, name: str) -> None:
    column = NO_TIMES[name]
    flow = make_flow(kind)
    outcomes = flow.process(pa.record_batch({"t": column, "id": np.arange(len(column))}))
    assert [type(o) for o in outcomes] == [StreamError]
    error = outcomes[0]
    assert isinstance(error, StreamError)
    assert error.rows.column("id").to_pylist() == list(range(len(column)))
    assert error.column.to_pylist() == ["t"] * len(column)
    assert all(reason for reason in error.reason.to_pylist())
    for given_value, shown in zip(column.to_pylist(), error.value.to_pylist(), strict=True):
        assert (given_value is None) == (shown is None)
    assert flow.metrics()["parse_error_count"] == len(column)
    assert flow.metrics()["eventtime_watermark.max_timestamp_seen"] == MIN_NS - 1
    assert flow.end() == []


@pytest.mark.parametrize("kind", UNIX)
def test_good_rows_beside_bad_ones(kind: str) -> None:
    flow = make_flow(kind)
    column = pa.array(["5", None, "abc", "4", "-1", "3.0", "9" * 30, "+6"])
    outcomes = flow.process(pa.record_batch({"t": column, "id": list("abcdefgh")}))
    out = outcomes + flow.end()
    data = [i for o in out if isinstance(o, Collection) for i in o.rows.column("id").to_pylist()]
    bad = [i for o in out if isinstance(o, StreamError) for i in o.rows.column("id").to_pylist()]
    assert data == ["d", "a", "h"]
    assert bad == ["b", "c", "e", "f", "g"]


@pytest.mark.parametrize("name", odd_batches())
def test_an_odd_batch_between_good_ones(name: str) -> None:
    good = pa.record_batch({"t": [10, 11], "v": pa.array(["a", "b"])})
    odd = odd_batches()[name]
    flow = make_flow()
    out = flow.process(good) + flow.process(odd) + flow.process(good) + flow.end()
    assert sum(kinds(out)[kind] for kind in ("data", "late", "error")) == 4 + odd.num_rows
    assert flow.metrics()["rows_in"] == 4 + odd.num_rows


def test_a_time_column_that_is_missing_later_is_an_error_of_every_row() -> None:
    flow = make_flow()
    flow.process(pa.record_batch({"t": [1]}))
    outcomes = flow.process(pa.record_batch({"v": [1, 2]}))
    assert kinds(outcomes) == {"error": 2}
    assert outcomes[0].table().column("error_reason").to_pylist() == ["eventtime value is null"] * 2  # type: ignore[union-attr]


def test_columns_that_come_and_go_and_change_type_while_rows_are_held() -> None:
    flow = make_flow(late_tolerance="1 h")
    parts = [
        pa.record_batch({"t": [1], "v": pa.array([1], pa.int32())}),
        pa.record_batch({"t": [2], "v": pa.array([2.5])}),
        pa.record_batch({"t": [3]}),
        pa.record_batch({"t": [4], "v": pa.array(["four"]), "w": [True]}),
        pa.record_batch({"t": pa.array(["5"]), "v": pa.array([[5]])}),
    ]
    out: list[Outcome] = []
    for part in parts:
        out += flow.process(part)
    assert kinds(out)["data"] == 0
    (data,) = flow.end()
    assert isinstance(data, Collection)
    rows = data.rows.to_pylist()
    assert [row["t"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row["v"] for row in rows] == ["1", "2.5", None, "four", "[5]"]
    assert [row["w"] for row in rows] == [None, None, None, True, None]


def test_milliseconds_declared_as_seconds() -> None:
    """A date of today in ms is the year 57000 in seconds: an overflow that names the value, never a
    wrong time."""
    flow = make_flow("unixtimestamp_s")
    outcomes = flow.process(pa.record_batch({"t": [1_767_225_600_000]}))
    assert kinds(outcomes) == {"error": 1}
    reason = outcomes[0].table().column("error_reason")[0].as_py()  # type: ignore[union-attr]
    assert "overflow" in reason
    assert "1767225600000" in reason
    # Seconds declared as milliseconds are 1970: valid, but far behind, so they come out late.
    flow = make_flow("unixtimestamp_ms")
    out = flow.process(pa.record_batch({"t": [1_767_225_600_000]}))
    out += flow.process(pa.record_batch({"t": [1_767_225_600]}))
    assert kinds(out)["late"] == 1


def test_the_edges_of_time() -> None:
    """Before 1970, the first and the last nanosecond, and beyond."""
    iso = [
        "1677-09-22T00:00:00Z", "1969-12-31T23:59:59.999999999Z", "1970-01-01", "2262-04-10",
        "2600-01-01T00:00:00Z", "1600-01-01", "2262-04-12T00:00:00Z",
    ]  # fmt: skip
    parsed = EventtimeTypes().parse("iso8601", pa.array(iso))
    assert parsed.ok.tolist() == [True, True, True, True, False, False, False]
    assert parsed.time_ns[1:3].tolist() == [-1, 0]
    last = EventtimeTypes().parse("unixtimestamp_ns", pa.array([MAX_NS, 0]))
    assert last.ok.all()
    assert last.time_ns.tolist() == [MAX_NS, 0]
    stamps = pa.array([-1, -(2**63) + 1], pa.timestamp("ns"))
    before = EventtimeTypes().parse("timestamp", stamps)
    assert before.ok.all()
    assert before.time_ns.tolist() == [-1, MIN_NS]
    seconds = EventtimeTypes().parse("timestamp", pa.array([2**62, -(2**62)], pa.timestamp("s")))
    assert not seconds.ok.any()


@pytest.mark.parametrize("per", ["collection", "tuple"])
def test_times_at_both_ends_do_not_wrap(per: str) -> None:
    stage = EventtimeWatermark(MAX_NS, watermark_per=per)  # type: ignore[arg-type]
    state = stage.open()
    rows = pa.record_batch({"id": ["old", "new", "mid"]})
    stage.process(state, Collection.of(rows, np.array([MIN_NS, MAX_NS, 0])))
    (data,) = stage.flush(state)
    assert isinstance(data, Collection)
    assert data.rows.column("id").to_pylist()[-1] == "new"


def test_lateness_beyond_292_years_is_the_largest_span_not_a_negative_one() -> None:
    stage = EventtimeWatermark(0)
    state = stage.open()
    one = pa.record_batch({"id": [1]})
    stage.process(state, Collection.of(one, np.array([MAX_NS])))
    (late,) = stage.process(state, Collection.of(one, np.array([MIN_NS])))
    assert isinstance(late, Late)
    assert late.lateness_ns.tolist() == [MAX_NS]


@pytest.mark.parametrize("against", ["rows", "clock"])
def test_skew_beyond_292_years(against: str) -> None:
    stage = EventtimeWatermark(0, max_future_skew="1 h", skew_against=against)  # type: ignore[arg-type]
    state = stage.open()
    one = pa.record_batch({"id": [1]})
    stage.process(state, Collection.of(one, np.array([MIN_NS]), wall_ns=MIN_NS))
    out = stage.process(state, Collection.of(one, np.array([MAX_NS]), wall_ns=MIN_NS))
    assert kinds(out + stage.flush(state)) == {"error": 1}


def test_one_row_a_year_ahead_with_and_without_the_guard() -> None:
    times = [10, 11, 31_536_000, 12, 13]
    for skew, late, errors in ((None, 2, 0), ("1 h", 0, 1)):
        flow = make_flow(max_future_skew=skew, watermark_per="tuple")
        out = flow.process(pa.record_batch({"t": times})) + flow.end()
        found = kinds(out)
        assert (found["late"], found["error"]) == (late, errors)
        assert found["data"] == len(times) - late - errors


def test_a_stream_that_really_moved_on_is_believed_after_a_while() -> None:
    flow = make_flow(max_future_skew="1 min", skew_confirm=3, watermark_per="tuple")
    out = flow.process(pa.record_batch({"t": [0, 7200, 7201, 7202, 7203]})) + flow.end()
    data = [t for o in out if isinstance(o, Collection) for t in o.rows.column("t").to_pylist()]
    assert data == [0, 7200, 7201, 7202, 7203]  # rule 21: after a pause no good row is lost
    assert flow.metrics()["eventtime_watermark.future_skew_count"] == 0


def test_suspects_that_are_not_confirmed_are_errors_also_across_collections_and_a_restart() -> None:
    flow = make_flow(max_future_skew="1 min", skew_confirm=3, watermark_per="tuple")
    out = flow.process(pa.record_batch({"t": [0, 7200]}))
    out += flow.process(pa.record_batch({"t": [7201]}))
    assert flow.metrics()["eventtime_watermark.rows_held"] == 3
    other = make_flow(max_future_skew="1 min", skew_confirm=3, watermark_per="tuple")
    other.restore(flow.snapshot())
    confirmed = other.process(pa.record_batch({"t": [7202]})) + other.end()
    assert kinds(out + confirmed) == {"data": 4, "watermark": 2}
    refused = flow.process(pa.record_batch({"t": [1]}))
    (errors,) = (o for o in refused if isinstance(o, StreamError))
    assert errors.rows.column("t").to_pylist() == [7200, 7201]
    assert "ahead, more than max_future_skew (1 min)" in errors.reason[0].as_py()


def test_a_source_with_a_broken_clock_does_not_hold_up_the_others() -> None:
    """Its rows are refused and do not count as life: after the timeout nobody waits for it."""
    stage = EventtimeWatermark(
        0, source="s", idle_timeout=50, max_future_skew=100, skew_against="clock"
    )
    state = stage.open()
    delivered = 0
    for wall in range(0, 400, 10):
        broken = wall if wall == 0 else wall + 10**6
        rows = pa.record_batch({"s": ["good", "broken"]})
        out = stage.process(state, Collection.of(rows, np.array([wall, broken]), wall))
        delivered += kinds(out)["data"]
    assert delivered >= 35
    assert state.rows("held") <= 2


def test_more_sources_than_slots_is_reported_row_by_row() -> None:
    flow = make_flow(source="s", max_sources=2)
    rows = pa.record_batch({"t": [1, 2, 3, 4], "s": ["a", "b", "c", "a"]})
    errors = [o for o in flow.process(rows) if isinstance(o, StreamError)]
    assert [e.rows.column("s").to_pylist() for e in errors] == [["c"]]
    assert errors[0].column.to_pylist() == ["s"]
    assert "max_sources (2)" in errors[0].reason[0].as_py()
    assert flow.metrics()["eventtime_watermark.refused_source_count"] == 1


@pytest.mark.parametrize("source", [
    pa.array([None, "a", None]), pa.array([1, None, 2]), pa.nulls(3), pa.array([1.5, 2.5, None]),
    pa.array([True, False, None]),
])  # fmt: skip
def test_sources_of_any_kind(source: pa.Array) -> None:
    flow = make_flow(source="s")
    out = flow.process(pa.record_batch({"t": [3, 2, 1], "s": source})) + flow.end()
    assert kinds(out)["data"] == 3


@pytest.mark.parametrize("key", [
    pa.array(["a", None, "a", None]), pa.array([1, 2, None, 1]), pa.nulls(4),
    pa.array([True, None, False, True]), pa.array([b"x", b"\xff", None, b"x"]),
    pa.array([1.5, float("nan"), None, float("nan")]),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["x", "y"])),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0]), pa.array(["x", None])),
])  # fmt: skip
def test_keys_of_any_kind(key: pa.Array) -> None:
    """The same value is the same key, null is a key, and a restart knows them all again."""
    decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))
    flow = Flow([EventtimeWatermark("1 h")], key="k", decoder=decoder)
    rows = pa.record_batch({"k": key, "t": [4, 3, 2, 1]})
    flow.process(rows)
    known = flow.metrics()["keys"]
    flow.process(rows)
    assert flow.metrics()["keys"] == known
    other = Flow([EventtimeWatermark("1 h")], key="k", decoder=decoder)
    other.restore(flow.snapshot())
    other.process(rows)
    assert other.metrics()["keys"] == known
    assert kinds(other.end())["data"] == 12


@pytest.mark.parametrize("key", [pa.array([{"a": 1}]), pa.array([[1]])])
def test_a_nested_key_is_a_mistake_in_the_definition(key: pa.Array) -> None:
    flow = Flow([EventtimeWatermark(0)], key="k", timed=True)
    with pytest.raises(ConfigError, match="key: got 'k', must be a column of plain values"):
        flow.process(pa.record_batch({"k": key}))


def test_a_key_column_that_is_missing_is_refused_unless_it_was_there_before() -> None:
    decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))
    flow = Flow([EventtimeWatermark("1 s")], key="k", decoder=decoder)
    without = pa.record_batch({"t": [2, 2]})
    with pytest.raises(ConfigError, match="key: got 'k', must be a column of the rows: t"):
        flow.process(without)
    flow = Flow([EventtimeWatermark("1 s")], key="k", decoder=decoder)
    out = flow.process(pa.record_batch({"t": [1], "k": ["a"]})) + flow.process(without) + flow.end()
    assert kinds(out)["data"] == 3  # two of them under the null key


def test_message_scoped_time_and_tuples_without_one() -> None:
    """The first message of the tuple, in column order, whose stream declares event time."""
    decoder = Decoder(
        (TimeColumn("ts", "unixtimestamp_s", "lidar"), TimeColumn("at", "unixtimestamp_ms", "cam"))
    )
    cam = pa.array([{"at": 7000}, None, None, {"at": None}, {"at": 8000}])
    lidar = pa.array([{"ts": 1}, {"ts": 2}, None, {"ts": 3}, None])
    rows = pa.record_batch({"other": [1] * 5, "cam": cam, "lidar": lidar})
    collection, errors = decoder.decode(rows)
    assert collection.time_ns.tolist() == [7 * 10**9, 2 * 10**9, 8 * 10**9]
    assert errors is not None
    assert errors.column.to_pylist() == ["cam.at,lidar.ts", "cam.at"]
    assert errors.reason.to_pylist() == [
        "no message with an event time in this tuple", "eventtime value is null",
    ]  # fmt: skip
    gone, errors = decoder.decode(pa.record_batch({"x": [1, 2]}))
    assert len(gone) == 0
    assert errors is not None
    assert len(errors) == 2
    odd, errors = decoder.decode(pa.record_batch({"cam": pa.array([5, 6]), "lidar": pa.nulls(2)}))
    assert len(odd) == 0
    assert errors is not None
    assert len(errors) == 2


def test_a_parser_that_breaks_its_contract_is_a_bug_in_code() -> None:
    types = EventtimeTypes()
    types.register("short", lambda column: pa.array([1], pa.int64()))
    types.register("none", lambda column: None)  # type: ignore[arg-type, return-value]
    for name in ("short", "none"):
        with pytest.raises(ConfigError, match=f"parser of `{name}`"):
            types.parse(name, pa.array([1, 2]))


anything = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=25),
    st.from_regex(r"[+-]?[0-9]{1,25}", fullmatch=True),
    st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z",
                  fullmatch=True),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(values=st.lists(anything.map(lambda v: None if v is None else str(v)), max_size=20))
@pytest.mark.parametrize("kind", ["unixtimestamp_ms", "iso8601"])
def test_any_text(kind: str, values: list[str | None]) -> None:
    """Each value is a time or has a reason; the value of a row does not touch its neighbours."""
    types = EventtimeTypes()
    parsed = types.parse(kind, pa.array(values, pa.string()))
    assert isinstance(parsed, Parsed)
    assert len(parsed.time_ns) == len(parsed.reason) == len(values)
    for place, value in enumerate(values):
        alone = types.parse(kind, pa.array([value], pa.string()))
        assert alone.ok[0] == parsed.ok[place]
        assert alone.reason[0] == parsed.reason[place]
        if parsed.ok[place]:
            assert alone.time_ns[0] == parsed.time_ns[place]
        if kind == "unixtimestamp_ms" and parsed.ok[place]:
            assert value is not None
            assert int(value) * 10**6 == parsed.time_ns[place]
