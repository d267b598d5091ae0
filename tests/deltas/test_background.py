"""Compaction keeps to its budget of memory."""

from __future__ import annotations

import gc
import threading
import time

from tidegate.deltas import Compactor, DeltaChain, FullMerge, Offset, VectorDelta
from tidegate.deltas.table import BackgroundCompactor
from tidegate.windows import Memory, MemoryTracker


def chain_of(deltas: int) -> DeltaChain:
    chain = DeltaChain("v", dims=64)
    chain.process([VectorDelta(f"d{n}", "v", Offset(1.0), n) for n in range(deltas)])
    return chain


def test_a_compaction_waits_for_memory_and_gives_it_back() -> None:
    chain = chain_of(20)
    size = chain.nbytes
    tracker = MemoryTracker(Memory(components={"compaction": size + 10}))
    _, taken = tracker.allocate(size, "compaction")
    assert taken is not None
    freed = threading.Timer(0.2, taken.release)
    with BackgroundCompactor(Compactor(FullMerge(), delta_threshold=5), memory=tracker) as looking:
        freed.start()
        looking.submit(chain)
        freed.join()
        for _ in range(500):
            if len(chain) < 5:
                break
            time.sleep(0.01)
    assert len(chain) < 5
    assert chain.compose().tolist() == [20.0] * 64
    assert tracker.used == 0
    assert looking.refused == 0


def test_a_chain_larger_than_the_budget_is_left_and_counted() -> None:
    chain = chain_of(20)
    tracker = MemoryTracker(Memory(components={"compaction": chain.nbytes - 1}))
    limited = Compactor(FullMerge(), delta_threshold=5, max_chain_length=20)
    with BackgroundCompactor(limited, memory=tracker) as looking:
        looking.submit(chain)
    assert len(chain) == 20
    assert looking.refused == 1
    with BackgroundCompactor(limited, memory=tracker) as looking:
        refused = looking.push(chain, VectorDelta("one more", "v", Offset(1.0), 20))
    assert [refusal.reason for refusal in refused] == ["the chain is full and cannot be compacted"]
    assert chain.compose().tolist() == [20.0] * 64


def test_age_is_looked_at_without_being_asked() -> None:
    now = [1_000]
    compactor = Compactor(FullMerge(), delta_threshold=100, time_threshold="1 s")
    chain = chain_of(0)
    with BackgroundCompactor(compactor, interval="5 ms", clock=lambda: now[0]) as background:
        assert background.push(chain, VectorDelta("a", "v", Offset(1.0), 1)) == []
        time.sleep(0.05)
        assert len(chain) == 1  # young by the clock, however often the thread looks
        now[0] += 10**9 + 1
        for _ in range(1000):
            if not len(chain):
                break
            time.sleep(0.01)
    assert len(chain) == 0
    assert chain.compose().tolist() == [1.0] * 64  # type: ignore[union-attr]
    assert [result.deltas_merged for result in background.results] == [1]


def test_a_chain_that_others_append_to_is_watched_and_let_go() -> None:
    now = [1_000]
    compactor = Compactor(FullMerge(), delta_threshold=100, time_threshold="1 s")
    with BackgroundCompactor(compactor, interval="5 ms", clock=lambda: now[0]) as background:
        chain = chain_of(0)
        background.watch(chain)
        chain.push(VectorDelta("a", "v", Offset(1.0), 1), wall_ns=now[0])
        now[0] += 2 * 10**9
        for _ in range(1000):
            if not len(chain):
                break
            time.sleep(0.01)
        assert len(chain) == 0
        del chain
        gc.collect()
        assert len(background._known) == 0


def test_a_chain_without_an_age_limit_stays() -> None:
    compactor = Compactor(FullMerge(), delta_threshold=100, time_threshold=None)
    chain = chain_of(0)
    with BackgroundCompactor(compactor, interval="1 ms") as background:
        background.push(chain, VectorDelta("a", "v", Offset(1.0), 1))
        time.sleep(0.05)
        background.tick(2**62)
    assert len(chain) == 1
