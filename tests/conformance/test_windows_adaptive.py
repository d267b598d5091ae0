"""The recorded cases of rate, memory, triggers, adapting and late rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cases import load_list
from tidegate.core.outcomes import Collection, Dropped, Late, Watermark
from tidegate.errors import ConfigError
from tidegate.windows import (
    Adaptive,
    AfterCount,
    AfterSize,
    AfterTime,
    Discard,
    Everything,
    LatePolicy,
    Memory,
    MemoryTracker,
    NextWindow,
    RateMonitor,
    Reemit,
    Tumbling,
    Window,
    WindowOutput,
    Windows,
    outputs,
)

MS = 1_000_000
FILE = "deltas/adaptive_windows.json"


@pytest.mark.parametrize("case", load_list(FILE, "rate"))
def test_rate(case: dict[str, Any]) -> None:
    monitor = RateMonitor(case["window_ms"] * MS, start_ns=case["start_ms"] * MS)
    size = monitor.nbytes
    for at, count in case["records"]:
        monitor.record(at * MS, count)
    for query in case["query"]:
        assert monitor.rate(query["at"] * MS) == pytest.approx(query["rate"])
    assert monitor.nbytes == size


@pytest.mark.parametrize("case", load_list(FILE, "memory"))
def test_memory(case: dict[str, Any]) -> None:
    settings = {"high_water": case["high"], "emergency": case["emergency"]}
    if case["steps"][0] == ["config", "error"]:
        with pytest.raises(ConfigError, match="budget"):
            Memory(case["max"], **settings)
        return
    tracker = MemoryTracker(Memory(case["max"], **settings))
    guards = {}
    for verb, *rest in case["steps"]:
        if verb == "alloc":
            verdict, guard = tracker.allocate(rest[0])
            assert verdict.value == rest[1]
            assert (guard is None) == (rest[1] in ("emergency", "too_large"))
            guards[rest[0]] = guard
        elif verb == "free":
            guards[rest[0]].release()
            guards[rest[0]].release()  # twice is harmless
        else:
            assert tracker.used == rest[0]


def trigger_of(given: list[dict[str, int]]) -> Any:
    makers = {"count": AfterCount, "size": AfterSize, "time_ms": lambda ms: AfterTime(f"{ms} ms")}
    made = [makers[name](value) for each in given for name, value in each.items()]
    whole = made[0]
    for each in made[1:]:
        whole = whole | each
    return whole


def shown(output: WindowOutput) -> dict[str, Any]:
    return {
        "ids": output.rows.column("id").to_pylist(),
        "reason": output.trigger,
        "start": output.start_ns // MS,
        "end": output.end_ns // MS,
    }


def trigger_cases() -> list[Any]:
    return [p for p in load_list(FILE, "triggers") if p.values[0] is None or "adds" in p.values[0]]


@pytest.mark.parametrize("case", trigger_cases())
def test_triggers(case: dict[str, Any]) -> None:
    verdicts = iter(case.get("emitter", ()))
    taken: list[tuple[int, WindowOutput]] = []
    now = 0

    def emit(delivery: Collection) -> None:
        if next(verdicts, "ok") == "fail":
            raise OSError("the receiver is away")
        taken.extend((now, output) for output in outputs([delivery]))

    windows = Windows(
        Everything(), trigger=trigger_of(case["triggers"]), size_column="bytes", emit=emit
    )
    events = [(at, 0, ("add", number, size)) for number, (at, size) in enumerate(case["adds"])]
    events += [(at, 1, ("tick",)) for at in case.get("tick", ())]
    for now, _, (what, *rest) in sorted(events):
        if what == "add":
            row = {"id": rest[0], "bytes": rest[1]}
            windows.push(row, now * MS, wall_ns=now * MS)
        else:
            due = windows.wake_at()
            assert due is None or due >= 0
            windows.tick(now * MS)
    if "emitter" in case:
        assert taken == []
        windows.tick(10**12)
    for expected, (at, output) in zip(case["expect"], taken, strict=True):
        found = {**shown(output), "at": at, "attempts": windows.attempts}
        assert {key: found[key] for key in expected} == expected
        assert output.stats is not None
        assert output.stats.delta_count == len(expected["ids"])
    taken.clear()
    windows.flush()
    if "flush" in case:
        assert [shown(output) for _, output in taken] == case["flush"]
    assert windows.metrics()["memory_used_ingestion"] == 0


def named(name: str) -> Any:
    found = [p for p in load_list(FILE, "triggers") if p.values[0] and p.values[0]["name"] == name]
    return pytest.mark.parametrize("case", found or load_list(FILE, "triggers")[:1])


@named("adaptive_duration_clamps")
def test_adaptive_duration(case: dict[str, Any]) -> None:
    bounds = case["window"]
    window = Adaptive(f"{bounds['min_ms']} ms", f"{bounds['max_ms']} ms", bounds["target"])
    for rate, expected in case["rates"]:
        assert window.duration_ns(rate) == expected * MS


def late_run(late: LatePolicy) -> tuple[list[dict[str, Any]], list[Any], dict[str, Any]]:
    stage = Window(Tumbling("10 ms"), late=late)
    state = stage.open()

    def rows(*times: int) -> Collection:
        batch = pa.record_batch({"id": pa.array(times, pa.int64())})
        return Collection.of(batch, np.array(times, np.int64) * MS)

    stage.process(state, rows(5, 15))
    first = stage.advance(state, Watermark.at(20 * MS))
    assert [r["id"] for o in first if isinstance(o, Collection) for r in o.rows.to_pylist()] == [
        5,
        15,
    ]
    after = stage.process(state, rows(7))
    after += stage.advance(state, Watermark.at(40 * MS))
    data = [r for o in after if isinstance(o, Collection) for r in o.rows.to_pylist()]
    aside = [o for o in after if isinstance(o, (Late, Dropped))]
    return data, aside, stage.metrics(state)


@named("late_policies")
def test_late_policies(case: dict[str, Any]) -> None:
    wanted = case["policies"]
    data, aside, metrics = late_run(Discard())
    assert data == []
    assert [type(o) for o in aside] == [Dropped]
    assert metrics["late_dropped_count"] == wanted["discard"]["late_dropped"]

    data, aside, _ = late_run(NextWindow())
    assert aside == []
    span = [data[0]["window_start_ns"] // MS, data[0]["window_end_ns"] // MS]
    assert span == wanted["next_window"]["row 7 appears in"]
    assert (data[0]["id"], data[0]["late"]) == (7, True)

    data, aside, _ = late_run(Reemit(f"{wanted['reemit']['max_lateness_ms']} ms"))
    assert aside == []
    assert [row["id"] for row in data] == wanted["reemit"]["ids"]
    assert {row["revision"] for row in data} == {wanted["reemit"]["revision"]}
    assert [data[0]["window_start_ns"] // MS, data[0]["window_end_ns"] // MS] == wanted["reemit"][
        "window"
    ]

    too_late = wanted["reemit_too_late"]
    data, aside, metrics = late_run(Reemit(f"{too_late['max_lateness_ms']} ms"))
    assert data == []
    assert [type(o) for o in aside] == [Late]
    assert metrics["late_dropped_count"] == too_late["late_dropped"]
