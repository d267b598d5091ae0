"""Snapshots that somebody changed, with right checksums: a StateError, or a state that is safe."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core import snapshot
from tidegate.core.outcomes import Collection
from tidegate.errors import ContractError, StateError
from tidegate.sync import ApproximateTime, ExactTime, Synchronize

TOPICS = ["a", "b", "c"]
ODD = [0, 1, -1, 2, 3, 5, 7, 64, 2**31, 2**62, 2**63 - 1, -(2**63), 10**9]


def changed(blob: bytes, rnd: random.Random) -> bytes:
    """One to three int64 of the state replaced, and the checksum made right again."""
    header, buffers = snapshot.unpack(blob)
    header.pop("sizes")
    parts = [bytearray(buffer) for buffer in buffers]
    for _ in range(rnd.randint(1, 3)):
        part = rnd.choice([part for part in parts if len(part) >= 8])
        at = rnd.randrange(len(part) // 8) * 8
        value = rnd.choice(ODD) if rnd.random() < 0.8 else rnd.getrandbits(63)
        part[at : at + 8] = int(value).to_bytes(8, "little", signed=True)
    return snapshot.pack(header, [bytes(part) for part in parts])


def messages(rnd: random.Random, size: int) -> list[tuple[int, int]]:
    return [(rnd.randrange(3), k * 10 + rnd.randrange(-15, 15)) for k in range(size)]


@pytest.mark.parametrize("cls", [ApproximateTime, ExactTime])
def test_a_changed_snapshot_never_leads_the_kernels_astray(cls: Any) -> None:
    rnd = random.Random(7)
    refused = restored = 0
    extras: list[dict[str, Any]] = [{"queue_size": 3}, {"queue_time": 60, "max_queue": 6}]
    if cls is ApproximateTime:
        extras.append({"queue_size": 4, "optional": ["c"], "timeout": 30, "learn_bounds": True})
        extras.append({"queue_size": 4, "offsets": {"b": -7}, "max_jump_back": 12})
    for number in range(3000):
        sync = cls(TOPICS, **extras[number % len(extras)])
        for i, t in messages(rnd, rnd.randrange(25)):
            sync.push(TOPICS[i], t if cls is ApproximateTime else t // 10, t)
        blob = sync.snapshot()
        assert cls.restore(blob).snapshot() == blob
        try:
            back = cls.restore(changed(blob, rnd))
        except StateError:
            refused += 1
            continue
        restored += 1
        for i, t in messages(rnd, 20):
            back.push(TOPICS[i], t)
        back.process(*np.array(messages(rnd, 30)).T)
        back.tick(10_000)
        back.diagnose()
        back.flush()
    assert refused > 300
    assert restored > 300


@pytest.mark.parametrize("policy", ["approximate", "exact"])
def test_a_changed_state_of_the_stage_is_refused_or_safe(policy: str) -> None:
    rnd = random.Random(3)
    stage = Synchronize(tuple(TOPICS), queue_size=3, policy=policy)

    def collection(size: int) -> Collection:
        given = messages(rnd, size)
        rows = pa.record_batch({"topic": [TOPICS[i] for i, _ in given], "v": list(range(size))})
        lanes = np.array([rnd.randrange(3) for _ in given], np.int32)
        return Collection(rows, np.array([t for _, t in given]), lanes)

    refused = 0
    for _ in range(600):
        state = stage.open(3)
        stage.process(state, collection(20))
        stage.invariants(state)
        name = rnd.choice(["search", "topics", "stamps", "held"])
        if name == "held":
            table: Any = state.tables["held"]
            places = table.column("__tidegate_place").to_numpy().copy()
            if not len(places):
                continue
            places[rnd.randrange(len(places))] = rnd.choice(ODD)
            at = table.schema.get_field_index("__tidegate_place")
            state.tables["held"] = table.set_column(at, "__tidegate_place", pa.array(places))
        else:
            flat = state[name].reshape(-1)
            flat[rnd.randrange(len(flat))] = rnd.choice(ODD)
        try:
            stage.invariants(state)
        except StateError:
            refused += 1
            continue
        stage.process(state, collection(20))
        stage.flush(state)
    assert refused > 50


def test_a_snapshot_that_claims_more_than_it_holds_takes_no_memory() -> None:
    header, buffers = snapshot.unpack(ApproximateTime(["a", "b"], queue_size=2).snapshot())
    header.pop("sizes")
    for key, value in [("queue_size", 2**24), ("queue_size", "x"), ("topics", ["a"]), ("new", 1)]:
        config = {**header["stages"][0]["config"], key: value}
        stages = [{**header["stages"][0], "config": config}]
        with pytest.raises(StateError):
            ApproximateTime.restore(snapshot.pack({**header, "stages": stages}, list(buffers)))
    for broken in ({}, {"stages": []}, {"stages": [3]}, {"stages": [{"name": "ApproximateTime"}]}):
        with pytest.raises(StateError):
            ApproximateTime.restore(snapshot.pack(broken, []))
    for payloads in (None, [1], [[0, "bytes", "?"]], [["x", "plain", 1]]):
        extra = {**header, "extra": {"payloads": payloads}}
        with pytest.raises((StateError, ContractError)):
            ApproximateTime.restore(snapshot.pack(extra, list(buffers)))
