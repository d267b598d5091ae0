"""Laws of batching: cut, restart, conservation, bound, keys apart, time does not run backwards."""

from __future__ import annotations

import random
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tidegate.batching import Batch, Message, MessageBatch, RateAwareBatcher, SimpleBatcher
from tidegate.batching.layout import lane_records
from tidegate.core.chain import Chain
from tidegate.core.outcomes import Collection, Outcome, Side, Watermark
from tidegate.core.state import State
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, play, rows_of

SECOND = 10**9
YEAR = 365 * 86400 * SECOND
KEYS = 3

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**32)
cuts = st.lists(st.integers(0, 2000), max_size=8)


def messages(rng: random.Random) -> list[Message]:
    """Hostile traffic: jitter, missing pulses, splits, silence, stamps years off."""
    out = []
    for number in range(rng.randint(1, 4)):
        rate, jitter = rng.choice([14, 5, 1, 0.5, 10]), rng.choice([0, 0.2, 0.5])
        gated, silent = rng.random() < 0.7, rng.choice([0, 0, 4, 30, 1500])
        t = rng.randrange(SECOND)
        for pulse in range(rng.randint(3, 80)):
            t += int(SECOND / rate) + (silent * SECOND if pulse == 40 else 0)
            if rng.random() < 0.05:
                continue
            stamp = t + int(rng.uniform(-jitter, jitter) * SECOND / rate)
            if rng.random() < 0.02:
                stamp += rng.choice([YEAR, -43 * YEAR, 5 * SECOND, 200 * SECOND])
            message = Message(f"s{number}", stamp, None, gated)
            copies = 2 if rng.random() < 0.05 else 1
            out += [(t + rng.randrange(SECOND // 2), message)] * copies
    out.sort(key=lambda entry: entry[0])
    return [Message(m.stream, m.time_ns, n, m.gated) for n, (_, m) in enumerate(out)]


def collection(rng: random.Random, *, ordered: bool = False) -> Collection:
    """The same for several keys at once."""
    rows: list[tuple[int, Message]] = []
    for key in range(KEYS):
        rows += [(key, message) for message in messages(rng)]
    order = sorted(range(len(rows)), key=lambda i: (rows[i][1].payload, rows[i][0]))
    rows = [rows[i] for i in order]
    if ordered:
        rows.sort(key=lambda row: (row[0], row[1].time_ns))
    batch = pa.record_batch(
        {
            "topic": [m.stream for _, m in rows],
            "vehicle": [f"v{key}" for key, _ in rows],
            "n": list(range(len(rows))),
        }
    )
    times = np.array([m.time_ns for _, m in rows], np.int64)
    return Collection(batch, times, np.array([key for key, _ in rows], np.int32))


def shown(batches: list[MessageBatch]) -> list[Any]:
    """Everything a batch says."""
    return [(b, [m.payload for m in b.messages], b.streams) for b in batches]


def pieces(items: list[Message], at: list[int]) -> list[list[Message]]:
    edges = sorted({0, len(items), *(a % (len(items) + 1) for a in at)})
    return [items[i:j] for i, j in pairwise(edges)]


@few
@given(seed=seeds, at=cuts, simple=st.booleans())
def test_cut_in_process(seed: int, at: list[int], simple: bool) -> None:
    items = messages(random.Random(seed))
    whole: Any = SimpleBatcher() if simple else RateAwareBatcher()
    parts: Any = SimpleBatcher() if simple else RateAwareBatcher()
    want = whole.process(items)
    got = [batch for piece in pieces(items, at) for batch in parts.process(piece)]
    assert shown(got) == shown(want)
    assert shown(parts.flush()) == shown(whole.flush())


@few
@given(seed=seeds, at=cuts)
def test_restart_in_process(seed: int, at: list[int]) -> None:
    items = messages(random.Random(seed))
    straight, restarted = RateAwareBatcher(), RateAwareBatcher()
    want = straight.process(items)
    got = []
    for piece in pieces(items, at):
        got += restarted.process(piece)
        restarted = RateAwareBatcher.restore(restarted.snapshot())
    assert shown(got) == shown(want)
    assert shown(restarted.flush()) == shown(straight.flush())


@few
@given(seed=seeds, simple=st.booleans(), call_by_call=st.booleans(), at=cuts)
def test_nothing_lost_nothing_twice(
    seed: int, simple: bool, call_by_call: bool, at: list[int]
) -> None:
    items = messages(random.Random(seed))
    batcher: Any = SimpleBatcher() if simple else RateAwareBatcher()
    out: list[MessageBatch] = []
    for piece in pieces(items, at):
        if call_by_call:
            batch = batcher.poll(piece)
            out += [] if batch is None else [batch]
        else:
            out += batcher.process(piece)
    assert sum(len(b.messages) for b in out) + batcher.waiting == len(items)
    out += batcher.flush()
    assert sorted(m.payload for b in out for m in b.messages) == list(range(len(items)))
    for batch in out:
        order = [(m.time_ns, m.payload) for m in batch.messages]
        assert order == sorted(order)
    assert [b.id for b in out] == list(range(len(out)))


@few
@given(seed=seeds)
def test_time_ranges_run_backwards_only_by_reported_recovery(seed: int) -> None:
    batcher = RateAwareBatcher()
    batches = batcher.process(messages(random.Random(seed))) + batcher.flush()
    for before, after in pairwise(batches):
        assert before.start_ns <= before.end_ns
        if after.moved_ns >= 0:
            assert after.start_ns >= before.end_ns


@few
@given(seed=seeds, at=cuts, ordered=st.booleans())
def test_operator_cut(seed: int, at: list[int], ordered: bool) -> None:
    stage = Batch("1 s", gated=("s0", "s1", "s2"), keys=("vehicle",))
    assert_cut_law(stage, collection(random.Random(seed), ordered=ordered), at, lanes=KEYS)


@few
@given(seed=seeds, at=cuts)
def test_operator_restart_through_snapshots_and_pages(seed: int, at: list[int]) -> None:
    stage = Batch("500 ms", keys=("vehicle",))
    whole = collection(random.Random(seed))
    assert_restart_law(stage, cut(whole, at), lanes=KEYS)
    state, out = stage.open(KEYS), []
    for piece in cut(whole, at):
        out += stage.process(state, piece)
        pages = dict(enumerate(state.pages(range(KEYS + 1))))
        state = State.of_pages(stage.layout(), pages)
    out += stage.flush(state)
    assert rows_of(out) == rows_of(play(stage, [whole], lanes=KEYS))


@few
@given(seed=seeds)
def test_operator_conserves_and_keeps_keys_apart(seed: int) -> None:
    stage = Batch("1 s", keys=("vehicle",))
    whole = collection(random.Random(seed))
    together = rows_of(play(stage, [whole], lanes=KEYS))
    numbers = [row["n"] for (_, kind), rows in together.items() if kind == "data" for row in rows]
    assert sorted(numbers) == list(range(len(whole)))
    for key in range(KEYS):
        alone = whole.take(np.flatnonzero(whole.lane == key))
        apart = rows_of(play(stage, [alone], lanes=KEYS))
        for kind in ("data", "batch"):
            assert together.get((key, kind)) == apart.get((key, kind))
        counts = [row["rows"] for row in together[key, "batch"]]
        assert sum(counts) == len(alone)
        assert {row["vehicle"] for row in together[key, "batch"] if row["rows"]} == {f"v{key}"}


@few
@example(seed=109)
@given(seed=seeds)
def test_operator_agrees_with_the_batcher_in_process(seed: int) -> None:
    items = messages(random.Random(seed))
    gated = tuple({m.stream for m in items if m.gated})
    rows = pa.record_batch({"topic": [m.stream for m in items], "n": [m.payload for m in items]})
    times = np.array([m.time_ns for m in items], np.int64)
    stage = Batch("1 s", gated=gated)
    out = rows_of(play(stage, [Collection.of(rows, times)]))
    batcher = RateAwareBatcher("1 s", max_streams=16)
    batches = batcher.process(items) + batcher.flush()
    assert [row["n"] for row in out[0, "data"]] == [m.payload for b in batches for m in b.messages]
    summaries = [
        (r["batch_id"], r["batch_start_ns"], r["batch_end_ns"], r["batch_reason"], r["rows"])
        for r in out[0, "batch"]
    ]
    assert summaries == [(b.id, b.start_ns, b.end_ns, b.reason, len(b.messages)) for b in batches]
    for row, batch in zip(out[0, "batch"], batches, strict=True):
        told = {part["stream"]: part["skew_ns"] for part in row["streams"]}
        # From the fifth batch on the stage tells gated names that never occurred; the batcher in
        # process learns of a stream by its first message.
        absent = set(told) - set(batch.streams)
        assert all(told.pop(name) is None for name in absent)
        assert absent <= set(gated)
        assert told == {name: report.skew_ns for name, report in batch.streams.items()}


@few
@given(seed=seeds, limit=st.integers(1, 40))
@example(seed=262143, limit=10)  # the window moved to and fro for ever
def test_bound(seed: int, limit: int) -> None:
    """However hostile the traffic, no more rows wait than the limit allows."""
    stage = Batch("10 s", timeout=float("inf"), max_rows=limit)
    whole = collection(random.Random(seed))
    state, out = stage.open(KEYS), []
    for piece in cut(whole, range(0, len(whole), 7)):
        out += stage.process(state, piece)
        assert (lane_records(state)["rows"] <= limit).all()
        assert state.rows("held") == lane_records(state)["rows"].sum()
    out += stage.flush(state)
    assert sum(len(o) for o in out if isinstance(o, Collection)) == len(whole)
    assert state.rows("held") == 0


@few
@given(seed=seeds, at=cuts)
def test_watermarks_wait_for_rows_that_are_still_here(seed: int, at: list[int]) -> None:
    """What is handed on never lies behind a row that comes later, unless that row was late."""
    stage = Batch("1 s")
    whole = collection(random.Random(seed), ordered=True)
    chain = Chain((stage,))
    states = chain.open(KEYS)
    out: list[Outcome] = []
    for piece in cut(whole, at):
        out += chain.process(states, piece)
        lanes = np.unique(piece.lane)
        newest = np.array([piece.time_ns[piece.lane == lane].max() for lane in lanes], np.int64)
        out += chain.advance(states, Watermark(newest - 1, lanes.astype(np.int32)))
    out += chain.flush(states)
    reached = np.full(KEYS, -(2**63))
    for outcome in out:
        if isinstance(outcome, Watermark):
            assert (outcome.time_ns > reached[outcome.lane]).all()
            reached[outcome.lane] = outcome.time_ns
        elif isinstance(outcome, Collection):
            assert (outcome.time_ns > reached[outcome.lane]).all()
        else:
            assert isinstance(outcome, Side)
    assert (
        reached[np.unique(whole.lane)]
        == [whole.time_ns[whole.lane == lane].max() - 1 for lane in np.unique(whole.lane)]
    ).all()


@pytest.mark.parametrize("timeout", [1.2, float("inf")])
def test_a_backlog_costs_linear_time(timeout: float) -> None:
    """The whole backlog of one stream, then that of the other: eight times as much may not cost
    sixty-four times as much, as it would if every close looked at all that waits."""

    def cost(seconds: int) -> float:
        a, b = (
            [Message(stream, n * SECOND // 20, None, True) for n in range(20 * seconds)]
            for stream in "ab"
        )
        batcher = RateAwareBatcher()
        batcher.process([m for pair in zip(a[:200], b[:200], strict=True) for m in pair])
        batcher.set_timeout(timeout)
        begun = process_time()
        batcher.process(a[200:] + b[200:])
        return process_time() - begun

    cost(50)
    small, large = (min(cost(seconds) for _ in range(3)) for seconds in (400, 3200))
    assert large < 8 * small * 3


def steady(rng: random.Random) -> Collection:
    """Mostly expected pulses in order of time: what runs of rows are for, now and then broken."""
    rows = []
    slip = rng.choice([0, 0, 0.002, 0.02])
    for key in range(rng.randint(1, 3)):
        for stream in range(rng.randint(1, 4)):
            rate, jitter = rng.choice([5, 14, 29.97]), rng.choice([0, 0, 0.1, 0.3])
            for pulse in range(rng.randint(60, 200)):
                t = (pulse + rng.uniform(-jitter, jitter)) * SECOND / rate + stream * 1e6
                if rng.random() >= slip:
                    rows.append((int(t), key, f"s{stream}"))
                if rng.random() < slip:
                    rows.append((int(t) + rng.choice([0, 1, 10**8, 5 * SECOND]), key, "log"))
    rows.sort()
    for i in range(len(rows) - 1):
        if rng.random() < slip:
            rows[i], rows[i + 1] = rows[i + 1], rows[i]
    batch = pa.record_batch({"topic": [row[2] for row in rows], "n": list(range(len(rows)))})
    times = np.array([row[0] for row in rows], np.int64)
    return Collection(batch, times, np.array([row[1] for row in rows], np.int32))


@few
@given(seed=seeds, at=cuts, rates=st.sampled_from(["whole", "any"]), limit=st.booleans())
def test_steady_rows_in_runs_obey_the_cut_law(
    seed: int, at: list[int], rates: str, limit: bool
) -> None:
    """Row by row there are no runs, in one call almost everything is one: all results agree, the
    jitter to the last bit."""
    rng = random.Random(seed)
    rows = steady(rng)
    stage = Batch(
        rng.choice(["1 s", "300 ms", "4 s"]),
        rates=rates,
        timeout=rng.choice([0.7, 1.0, 1.2, float("inf")]),
        max_rows=rng.randint(5, 60) if limit else 10**6,
        gated=True if rng.random() < 0.5 else ("s0", "s1", "log"),
    )
    assert_cut_law(stage, rows, at, lanes=3)
    if len(rows) < 300:
        assert_cut_law(stage, rows, range(len(rows)), lanes=3)
    assert_restart_law(stage, cut(rows, at), lanes=3)
