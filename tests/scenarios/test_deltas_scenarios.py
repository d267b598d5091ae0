"""Stories about chains: what a user of the library would try first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tidegate.core.outcomes import Collection
from tidegate.deltas import (
    Adaptive,
    Checkpoint,
    Compact,
    Compactor,
    Create,
    Delete,
    DeltaChain,
    FullMerge,
    Offset,
    Scale,
    Sparse,
    TieredMerge,
    TimeBoundary,
    Urgency,
    VectorDelta,
    affine,
)
from tidegate.deltas.operations import rows_from
from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.testing.laws import cut, play
from tidegate.windows import Window

SECOND = 10**9
MINUTE = 60 * SECOND


def test_half_a_day_of_updates_stays_short_and_can_be_looked_back_on() -> None:
    """One update a minute, an hour of retention: the chain never exceeds it, and any minute of the
    last hour can be asked for."""
    compactor = Compactor(TieredMerge(10), delta_threshold=20, retention="1 h")
    chain = DeltaChain("room-1", dims=2)
    chain.push(VectorDelta("start", "room-1", Create([0.0, 0.0]), 0))
    longest = 0
    for minute in range(1, 12 * 60):
        change = Sparse([0], [float(minute)])
        assert chain.push(VectorDelta(f"m{minute}", "room-1", change, minute * MINUTE)) == []
        if compactor.needs_compaction(chain):
            compactor.compact(chain)
        longest = max(longest, len(chain))
    assert longest <= 62
    for minute in range(11 * 60, 12 * 60):
        vector = chain.compose(at_ns=minute * MINUTE)
        assert vector is not None
        assert vector[0] == minute
    with pytest.raises(ConfigError, match="checkpoint"):
        chain.compose(at_ns=60 * SECOND)


def test_two_writers_with_different_clocks() -> None:
    """The child's clock is behind its parent's: it still takes effect after it."""
    chain = DeltaChain("v", dims=1)
    chain.push(VectorDelta("base", "v", Create([1.0]), 10, origin="a"))
    chain.push(VectorDelta("fix", "v", Scale(10.0), 3, parent="base", origin="b"))
    chain.push(VectorDelta("more", "v", Offset(1.0), 5, origin="a"))
    assert [d.delta_id for d in chain.pending] == ["more", "base", "fix"]
    assert chain.compose().tolist() == [10.0]  # type: ignore[union-attr]
    assert chain.compose(at_ns=9).tolist() == [1.0]  # type: ignore[union-attr]


def test_a_child_whose_parent_filled_the_chain_joins_after_the_compaction() -> None:
    """It waits for room only, not for the next collection."""
    stage = Compact(1, "full_merge", delta_threshold=2, time_threshold=None)
    state = stage.open()
    stage.process(state, offsets(("child", "v", 3, "b"), ("a", "v", 1, None), ("b", "v", 2, None)))
    found = stage.metrics(state)
    assert (found["accepted"], found["rows_held"]) == (3, 1)
    assert (state.rows("pending"), state.rows("waiting")) == (1, 0)


def test_vectors_that_are_done_keep_their_waiting_deltas_to_themselves() -> None:
    """Some vectors are compacted many times in one call, the others are put aside meanwhile, twice:
    what waits there must not count as waiting for a vector that goes on."""
    stage = Compact(1, "full_merge", delta_threshold=2, time_threshold=None, max_waiting=1)
    lengths = {"a": 2, "b": 2, "c": 2, "d": 2, "y1": 7, "y2": 7, "z": 19}
    rows = [(f"{name}{n}", name, n, None) for name, total in lengths.items() for n in range(total)]
    state = stage.open()
    waits = [("w1", "u1", 0, "nobody"), ("w2", "u2", 0, "nobody")]
    out = stage.process(state, offsets(*waits, *rows))
    assert not [o for o in out if o.kind in ("dropped", "late")]
    assert state.rows("waiting") == 2


def offsets(*said: tuple[str, str, int, str | None]) -> Collection:
    """Deltas that add 1: id, vector, time, parent."""
    rows = rows_from([VectorDelta(i, v, Offset(1.0), t, parent) for i, v, t, parent in said])
    return Collection.of(rows, rows.column("time_ns").to_numpy())


def test_a_tombstone_survives_every_compaction() -> None:
    for strategy in (FullMerge(), TieredMerge(1), TimeBoundary(2), Adaptive(1)):
        chain = DeltaChain("v", dims=1)
        ops = [Create([1.0]), Offset(1.0), Delete(), Offset(5.0), Sparse([0], [7.0])]
        chain.process(VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(ops))
        compactor = Compactor(strategy, delta_threshold=2)
        compactor.compact(chain)
        assert chain.compose() is None
        assert chain.deleted
        chain.push(VectorDelta("late", "v", Offset(1.0), 50))
        compactor.compact(chain)
        assert chain.deleted
        chain.push(VectorDelta("back", "v", Create([4.0]), 60))
        compactor.compact(chain)
        assert chain.compose().tolist() == [4.0]  # type: ignore[union-attr]


def test_time_buckets_become_plain_operations() -> None:
    """What a merged bucket says is the simplest operation that means the same."""
    chain = DeltaChain("v", dims=3)
    steps = [
        (0, Offset(1.0)), (1, Offset(2.0)),
        (10, Scale(2.0)), (11, Scale(3.0)),
        (20, Sparse([0], [1.0])), (21, Sparse([2], [5.0])),
        (30, Scale(2.0)), (31, Sparse([1], [9.0])),
        (40, Offset(1.0)), (41, Delete()),
        (50, Create([1.0, 2.0, 3.0])), (51, Offset(1.0)),
        (60, Offset(0.0)),
    ]  # fmt: skip
    chain.process(VectorDelta(f"d{t}", "v", op, t) for t, op in steps)
    result = Compactor(TimeBoundary(10), delta_threshold=2).compact(chain)
    assert result.deltas_merged == 6
    merged = [d.operation for d in chain.pending]
    names = ["offset", "scale", "sparse", "affine", "delete", "create", "offset"]
    assert [operation.op for operation in merged] == names
    assert merged[0] == Offset(3.0)
    assert merged[1] == Scale(6.0)
    assert merged[2] == Sparse([0, 2], [1.0, 5.0])
    a, b = affine(merged[3], 3)
    assert (a.tolist(), b.tolist()) == ([2.0, 0.0, 2.0], [0.0, 9.0, 0.0])
    assert merged[5] == Create([2.0, 3.0, 4.0])
    with pytest.raises(ConfigError, match="tombstone"):
        affine(merged[4], 3)
    with pytest.raises(ConfigError, match="merged into one"):
        chain.compose(at_ns=20)
    assert chain.compose(at_ns=21).tolist() == [1.0, 18.0, 5.0]  # type: ignore[union-attr]


def test_adaptive_leaves_a_chain_alone_that_would_grow() -> None:
    wide = DeltaChain("v", dims=4096)
    wide.process(VectorDelta(f"d{n}", "v", Sparse([n], [1.0]), n) for n in range(20))
    before = wide.nbytes
    full = Compactor(FullMerge(), delta_threshold=5).compact(wide, dry_run=True)
    assert full.space_saved < 0
    assert full.dry_run
    assert len(wide) == 20
    adaptive = Compactor(Adaptive(3), delta_threshold=5).compact(wide)
    assert adaptive.space_saved > 0  # merged into one sparse delta instead
    assert wide.nbytes < before
    assert [d.operation.op for d in wide.pending] == ["sparse"]
    single = DeltaChain("v", dims=4096)
    single.push(VectorDelta("d", "v", Sparse([1], [1.0])))
    assert Compactor(Adaptive(0), delta_threshold=1).compact(single).no_op


def test_a_chain_that_is_read_often_is_folded_further() -> None:
    """Adaptive weighs reads: what is cold keeps its recent deltas where that is smaller."""

    def after(reads: int) -> int:
        chain = DeltaChain("v", checkpoint=Checkpoint(np.zeros(64)))
        chain.process(VectorDelta(f"d{n}", "v", Sparse([n], [1.0]), n) for n in range(40))
        for _ in range(reads):
            chain.compose()
        Compactor(Adaptive(8), delta_threshold=10).compact(chain)
        return len(chain)

    assert after(reads=1000) == 0
    assert after(reads=0) >= after(reads=1000)


def test_age_counts_from_arrival_and_from_the_last_compaction() -> None:
    compactor = Compactor(TieredMerge(1), delta_threshold=100, time_threshold="60 s")
    chain = DeltaChain("v", dims=1)
    # the deltas are years old; they only just arrived
    for n in range(3):
        chain.push(VectorDelta(f"d{n}", "v", Offset(1.0), n), wall_ns=1000 * SECOND)
    assert compactor.urgency(chain, 1060 * SECOND) is Urgency.NONE
    assert compactor.urgency(chain, 1060 * SECOND + 1) is Urgency.BACKGROUND
    compactor.compact(chain, wall_ns=1061 * SECOND)
    assert len(chain) == 1
    assert compactor.urgency(chain, 5000 * SECOND) is Urgency.NONE  # nothing left to fold
    chain.push(VectorDelta("d9", "v", Offset(1.0), 9), wall_ns=1062 * SECOND)
    assert compactor.urgency(chain, 1121 * SECOND) is Urgency.NONE
    assert compactor.urgency(chain, 1121 * SECOND + 1) is Urgency.BACKGROUND
    no_age = Compactor(TieredMerge(1), time_threshold=None)
    assert no_age.urgency(chain, 10**18) is Urgency.NONE


def test_deltas_through_adaptive_windows_into_compaction() -> None:
    rng = np.random.default_rng(2)
    deltas = [
        VectorDelta(f"d{n}", f"v{rng.integers(5)}", Sparse([int(rng.integers(4))], [float(n)]), n)
        for n in range(300)
    ]
    rows = rows_from(deltas)
    arrival = np.argsort(np.arange(300) + rng.integers(0, 9, 300), kind="stable")
    whole = Collection.of(rows, rows.column("time_ns").to_numpy()).take(arrival)
    stages = [EventtimeWatermark(20), Window(), Compact(4, TieredMerge(3), delta_threshold=9)]
    out = play(stages, cut(whole, range(0, 300, 40)))
    last = {
        row["vector_id"]: row["vector"]
        for o in out
        if isinstance(o, Collection)
        for row in o.rows.to_pylist()
    }
    for name, vector in last.items():
        chain = DeltaChain(name, dims=4)
        chain.process(d for d in deltas if d.vector_id == name)
        assert vector == chain.compose().tolist()  # type: ignore[union-attr]
    assert len(last) == 5


def test_the_example_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "vector_deltas.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")],
        capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    assert "deltas came twice and were counted once" in done.stdout
    assert "replayed: 0 changed" in done.stdout
    assert (tmp_path / "out" / "compaction.svg").read_text().startswith("<svg")
