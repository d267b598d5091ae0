"""The latest policy against its definition in plain Python, its laws, and what it refuses."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.align import AlignedRow, Aligner, latest
from tidegate.errors import ConfigError, ContractError, StateError
from tidegate.sync import EpsilonTime, LatestTime, Synchronize, SyncSet, Unmatched

TOPICS = ("a", "b", "c")
MESSAGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=60).map(
    lambda given: [(topic, 10 * n + late) for n, (topic, late) in enumerate(given)]
)
OFFSETS = {"b": -7, "c": 12}


def model(messages: list[tuple[int, int]], pivot: int, widest: int | None) -> Any:
    """By definition, looking at everything that came so far again at every message."""
    sets, reasons = [], {}
    add = [OFFSETS.get(name, 0) for name in TOPICS]
    for row, (topic, stamp) in enumerate(messages):
        earlier = messages[:row]
        if any(t == topic and at > stamp for t, at in earlier):
            reasons[row] = "too_old"
        elif topic == pivot:
            members = []
            for number in range(3):
                own = [(at, n) for n, (t, at) in enumerate(messages[: row + 1]) if t == number]
                members.append(max(own) if own else None)
            if None in members:
                reasons[row] = "unproven"
                continue
            times = [at + by for (at, _), by in zip(members, add, strict=True)]
            if widest is not None and max(times) - min(times) > widest:
                reasons[row] = "too_old"
            else:
                sets.append([n for _, n in members])
    used = {n for one in sets for n in one}
    for row, (topic, stamp) in enumerate(messages):
        if row not in used and row not in reasons:
            newer = [at for t, at in messages[row + 1 :] if t == topic and at >= stamp]
            reasons[row] = "superseded" if newer else "flush"
    return sets, reasons


@settings(deadline=None)
@given(
    messages=MESSAGES,
    pivot=st.integers(0, 2),
    widest=st.none() | st.integers(0, 200),
    at=st.integers(0, 60),
)
def test_against_the_definition_in_any_cuts_and_across_a_restart(
    messages: list[tuple[int, int]], pivot: int, widest: int | None, at: int
) -> None:
    made: list[SyncSet] = []
    gone: list[Unmatched] = []
    sync = LatestTime(TOPICS, pivot=TOPICS[pivot], max_interval=widest, offsets=OFFSETS)
    for n, (topic, stamp) in enumerate(messages):
        if n == at:
            sync = LatestTime.restore(sync.snapshot())
        made += sync.push(TOPICS[topic], stamp, f"p{n}")
        gone += sync.unmatched
    assert sync.flush() == []
    gone += sync.unmatched
    sets, reasons = model(messages, pivot, widest)
    assert [list(one.rows) for one in made] == sets
    assert {left.row: left.reason for left in gone} == reasons
    assert len(gone) == len(reasons)
    for one in made:
        assert one.payloads == tuple(f"p{row}" for row in one.rows)
        assert one.times_ns == tuple(messages[row][1] for row in one.rows if row is not None)
    # Every message is in a set or says why not, and is counted so.
    counted = sync.counters
    assert sum(each["received"] for each in counted.values()) == len(messages)
    assert sum(each["matched"] for each in counted.values()) == len({n for s in sets for n in s})

    whole = LatestTime(TOPICS, pivot=TOPICS[pivot], max_interval=widest, offsets=OFFSETS)
    first = whole.process(*zip(*messages[:at], strict=True)) if messages[:at] else None
    second = whole.process(*zip(*messages[at:], strict=True)) if messages[at:] else None
    parts = [part for part in (first, second) if part is not None]
    assert [row for part in parts for row in part.rows.tolist()] == sets
    assert [row for part in parts for row in part.unmatched_rows.tolist()] == [
        left.row for left in gone if left.reason != "flush"
    ]
    assert [s for part in parts for s in part.spread_ns.tolist()] == [s.spread_ns for s in made]


def test_callbacks_and_threads() -> None:
    sets: list[SyncSet] = []
    gone: list[Unmatched] = []
    sync = LatestTime(["fast", "slow"], on_set=sets.append, on_unmatched=gone.append)
    sync.push("slow", 0, "s")

    def work(first: int) -> None:
        for n in range(first, 4000, 4):
            sync.push("fast", n, n)

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sets) + len(gone) == 4000
    assert {one.payloads[1] for one in sets} == {"s"}
    assert all(one.payloads[0] == one.times_ns[0] for one in sets)
    assert sync.held == {"fast": 1, "slow": 1}
    assert sync.tick(5000) == sync.advance(6000) == []


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match="pivot"):
        LatestTime(["a", "b"], pivot="c")
    with pytest.raises(ConfigError, match="topics"):
        LatestTime(["a"])
    sync = LatestTime(["a", "b"])
    with pytest.raises(ContractError, match="no topic"):
        sync.push("c", 1)
    with pytest.raises(ContractError, match="float"):
        sync.push("a", 1.5)
    with pytest.raises(ContractError, match="0 to 1"):
        sync.process([2], [0])
    sync.push("a", 1, object())
    with pytest.raises(ContractError, match="dump"):
        sync.snapshot()
    with pytest.raises(StateError, match="EpsilonTime"):
        LatestTime.restore(EpsilonTime(["a", "b"], max_interval=5, queue_size=4).snapshot())


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1, max_size=60),
    widest=st.none() | st.integers(1, 200),
)
def test_in_a_flow_an_align_stage_makes_the_same_sets(
    steps: list[tuple[int, int]], widest: int | None
) -> None:
    """ADR 17: rows in order of time, the pivot as reference, and a tolerance for the width."""
    sync = LatestTime(TOPICS, max_interval=widest)
    aligner = Aligner(
        {name: latest(widest) for name in TOPICS[1:]}, reference=TOPICS[0], missing="drop"
    )
    sets: list[Any] = []
    rows: list[Any] = []
    now = 0
    for topic, later in steps:
        now += later
        sets += [one.times_ns for one in sync.push(TOPICS[topic], now)]
        rows += aligner.push(TOPICS[topic], now, {"at": now})
    rows += aligner.flush()
    rows = [row for row in rows if isinstance(row, AlignedRow)]
    aligned = [(row.time_ns, *(row.values[name]["time_ns"] for name in TOPICS[1:])) for row in rows]
    assert aligned == sets


def test_a_stage_names_what_to_use_instead() -> None:
    with pytest.raises(ConfigError, match=r"in process only.*align stage.*method latest"):
        Synchronize(("a", "b"), policy="latest")
