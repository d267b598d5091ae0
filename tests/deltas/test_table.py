"""Deltas on disk: appended, read as of a time, compacted, killed at every step, handed on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.deltas import (
    Adaptive,
    Add,
    Compactor,
    Create,
    Delete,
    DeltaChain,
    FullMerge,
    Offset,
    Operation,
    Scale,
    Sparse,
    TieredMerge,
    TimeBoundary,
    VectorDelta,
)
from tidegate.deltas.operations import rows_from
from tidegate.deltas.table import (
    BackgroundCompactor,
    DeltaTable,
    LanceVectors,
    VectorTable,
    compact_table,
)
from tidegate.deltas.table.versions import VersionLog
from tidegate.errors import ConfigError, StateError

DIMS = 6
STRATEGIES = [FullMerge(), TieredMerge(3), TimeBoundary(50), Adaptive(3)]


def some_deltas(vectors: int = 20, each: int = 30, seed: int = 1) -> list[VectorDelta]:
    """An update-heavy stream in which every value is exact, in time order."""
    rng = np.random.default_rng(seed)
    out = []
    for n in range(vectors * each):
        # vector k gets its share late or early: some end up long, some short
        v = int(rng.integers(vectors) * rng.random())
        kind = int(rng.integers(8))
        operation: Operation
        if kind == 0:
            operation = Create(rng.integers(-9, 9, DIMS).astype(float))
        elif kind == 1:
            operation = Scale(float(rng.choice([-1.0, 2.0, 0.5])))
        elif kind == 2:
            operation = Offset(1.0)
        elif kind == 3 and rng.random() < 0.2:
            operation = Delete()
        elif kind == 4:
            operation = Add([1.0, 2.0], [0, 3])
        else:
            places = rng.choice(DIMS, 2, replace=False)
            operation = Sparse(places, rng.integers(-9, 9, 2).astype(float))
        out.append(VectorDelta(f"d{n}", f"v{v}", operation, n))
    return out


def in_process(deltas: list[VectorDelta]) -> dict[str, Any]:
    chains: dict[str, DeltaChain] = {}
    for name in {d.vector_id for d in deltas}:
        chains[name] = DeltaChain(name, DIMS)
        chains[name].process(d for d in deltas if d.vector_id == name)
    out = {}
    for name, chain in chains.items():
        vector = chain.compose()
        out[name] = None if vector is None else vector.tolist()
    return out


def vectors_of(table: DeltaTable | VectorTable) -> dict[str, Any]:
    return {
        row["vector_id"]: None if row["deleted"] else row["vector"]
        for batch in table.vectors()
        for row in batch.to_pylist()
    }


def filled(path: Path, deltas: list[VectorDelta], pieces: int = 2) -> DeltaTable:
    table = DeltaTable.create(path, DIMS, buckets=2)
    size = -(-len(deltas) // pieces)
    for n in range(pieces):
        table.append(deltas[n * size : (n + 1) * size], batch=f"b{n}")
    return table


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compaction_of_a_table_changes_no_vector(tmp_path: Path, strategy: Any) -> None:
    deltas = some_deltas()
    table = filled(tmp_path / "t", deltas)
    expected = in_process(deltas)
    assert vectors_of(table) == expected
    compactor = Compactor(strategy, delta_threshold=8)
    before = table.bytes
    report = compact_table(table.root, compactor)
    assert report.vectors > 0
    assert report.errors == ()
    assert report.deltas_after < report.deltas_before
    assert vectors_of(table) == expected
    assert all(
        (None if (x := table.vector(v)) is None else x.tolist()) == expected[v] for v in expected
    )
    if isinstance(strategy, Adaptive):
        assert table.bytes <= before
    named = {file.path for file in table.log.latest().files}
    assert {f"data/{p.name}" for p in (table.root / "data").iterdir()} == named
    # again: nothing to do, nothing committed
    again = compact_table(table.root, compactor)
    assert (again.version, again.buckets) == (report.version, 0)
    # the same deltas once more, under other batch ids: all known
    table.append(deltas, batch="again")
    compact_table(table.root, compactor, everything=True)
    assert vectors_of(table) == expected


def test_only_vectors_that_need_it_are_rewritten(tmp_path: Path) -> None:
    long = [VectorDelta(f"l{n}", "long", Offset(1.0), n) for n in range(50)]
    short = [VectorDelta(f"s{n}", f"s{n}", Create([float(n)] * DIMS), n) for n in range(20)]
    table = DeltaTable.create(tmp_path / "t", DIMS, buckets=4)
    table.append(short + long)
    before = {f.bucket: f.path for f in table.log.latest().files}
    report = compact_table(table.root, Compactor(TieredMerge(2), delta_threshold=10))
    assert (report.vectors, report.buckets) == (1, 1)
    after = table.log.latest().files
    untouched = [f for f in after if before.get(f.bucket) == f.path]
    assert len({f.bucket for f in untouched}) == 3
    stored = [f for f in after if f.kind == "checkpoints"]
    assert [pq.read_table(table.root / f.path).column("vector_id").to_pylist() for f in stored] == [
        ["long"]
    ]


def test_a_batch_is_appended_once_and_bad_deltas_come_back(tmp_path: Path) -> None:
    table = DeltaTable.create(tmp_path / "t", 2)
    good = VectorDelta("a", "v", Offset(1.0), 1)
    bad = VectorDelta("b", "v", Sparse([7], [1.0]), 2)
    refused = table.append([good, bad], batch="one")
    assert refused.column("reason").to_pylist() == ["index 7 out of range for 2 dims"]
    assert table.append([good, bad], batch="one").num_rows == 0
    assert table.refused().column("delta_id").to_pylist() == ["b"]
    assert table.vector("v").tolist() == [1.0, 1.0]  # type: ignore[union-attr]
    assert table.vector("nobody") is None
    with pytest.raises(ConfigError, match="holds a table already"):
        DeltaTable.create(tmp_path / "t", 2)
    with pytest.raises(StateError, match="holds no table"):
        DeltaTable(tmp_path / "elsewhere")


def test_duplicates_and_late_deltas_are_kept_with_their_reason(tmp_path: Path) -> None:
    table = DeltaTable.create(tmp_path / "t", 1, buckets=1)
    table.append([VectorDelta(f"d{n}", "v", Offset(1.0), n) for n in range(10)])
    compactor = Compactor(FullMerge(), delta_threshold=2)
    compact_table(table.root, compactor)
    table.append([VectorDelta("d3", "v", Offset(1.0), 50), VectorDelta("x", "v", Offset(1.0), 5)])
    table.append([VectorDelta(f"e{n}", "v", Offset(1.0), 20 + n) for n in range(3)])
    orphan = VectorDelta("o", "v", Offset(1.0), 21, parent="p")
    table.append([orphan])
    compact_table(table.root, compactor)
    assert table.vector("v").tolist() == [13.0]  # type: ignore[union-attr]
    told = {row["delta_id"]: row["reason"] for row in table.refused().to_pylist()}
    assert told["d3"] == "duplicate delta id"
    assert told["x"].startswith("late")
    table.append([VectorDelta("p", "v", Offset(1.0), 22)])  # the parent comes at last
    assert table.vector("v").tolist() == [15.0]  # type: ignore[union-attr]


def test_as_of_a_time_inside_the_retention(tmp_path: Path) -> None:
    table = DeltaTable.create(tmp_path / "t", 1)
    table.append([VectorDelta(f"d{n}", "v", Offset(1.0), n * 10) for n in range(100)])
    compact_table(table.root, Compactor(FullMerge(), delta_threshold=10, retention=200))
    for at in range(790, 1000, 10):
        assert table.vector("v", at_ns=at).tolist() == [at / 10 + 1]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="must be at or after the checkpoint"):
        table.vector("v", at_ns=780)


# -- killed ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Not an Exception: nothing in the job may catch it."""


def steps_of(path: Path, compactor: Compactor) -> list[str]:
    seen: list[str] = []
    compact_table(path, compactor, step=seen.append)
    return seen


def test_killed_at_every_step_and_run_again(tmp_path: Path) -> None:
    deltas = some_deltas(8, 15)
    expected = in_process(deltas)
    compactor = Compactor(TieredMerge(3), delta_threshold=8)
    rehearsal = steps_of(filled(tmp_path / "rehearsal", deltas).root, compactor)
    assert {"draft", "link", "linked"} <= set(rehearsal)
    assert sum(step.startswith("remove") for step in rehearsal) >= 2
    clean = DeltaTable(tmp_path / "rehearsal")
    for number in range(len(rehearsal)):
        table = filled(tmp_path / f"t{number}", deltas)
        left = number

        def die(step: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed(step)

        with pytest.raises(Killed):
            compact_table(table.root, compactor, step=die)
        assert vectors_of(DeltaTable(table.root)) == expected
        table.append([VectorDelta("new", "v0", Offset(0.0), 10**6)])
        compact_table(table.root, compactor)
        assert vectors_of(DeltaTable(table.root)) == expected
        assert compact_table(table.root, compactor).buckets == 0
        table.vacuum(grace_s=-10)
        named = {file.path for file in table.log.latest().files}
        assert {f"data/{p.name}" for p in (table.root / "data").iterdir()} == named
        assert vectors_of(DeltaTable(table.root)) == expected
    assert vectors_of(clean) == expected


@pytest.mark.parametrize("step", ["checkpoints", "link", "linked"])
def test_really_killed(tmp_path: Path, step: str) -> None:
    """The same with a process that dies at once, without any clean-up of its own."""
    deltas = some_deltas(6, 12)
    table = filled(tmp_path / "t", deltas)
    script = textwrap.dedent(
        f"""
        import os
        from tidegate.deltas import Compactor, TieredMerge
        from tidegate.deltas.table import compact_table

        def die(step):
            if step.split()[0] == {step!r}:
                os._exit(9)

        compact_table({str(table.root)!r}, Compactor(TieredMerge(2), delta_threshold=5), step=die)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    assert done.returncode == 9
    assert vectors_of(DeltaTable(table.root)) == in_process(deltas)
    compact_table(table.root, Compactor(TieredMerge(2), delta_threshold=5))
    assert vectors_of(DeltaTable(table.root)) == in_process(deltas)


def test_two_compactions_of_a_table_at_once(tmp_path: Path) -> None:
    deltas = some_deltas()
    table = filled(tmp_path / "t", deltas)
    compactor = Compactor(TieredMerge(3), delta_threshold=8)
    reports = []

    def meanwhile(step: str) -> None:
        if step == "draft" and not reports:
            # just before the first commits: another one runs to its end, and a delta arrives
            reports.append(compact_table(table.root, compactor))
            table.append([VectorDelta("new", "v0", Offset(0.0), 10**6)])

    first = compact_table(table.root, compactor, step=meanwhile)
    assert (first.buckets, len(first.conflicts)) == (0, reports[0].buckets)
    assert all(text.startswith("VersionConflict: bucket ") for text in first.conflicts)
    assert vectors_of(table) == in_process(deltas)
    table.vacuum(grace_s=-10)
    assert vectors_of(table) == in_process(deltas)


def test_a_newer_or_corrupt_log_is_a_state_error(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", some_deltas(3, 3))
    newest = sorted((table.root / "_log").glob("*.json"))[-1]
    newest.write_text('{"format": 99}')
    with pytest.raises(StateError, match="newer version"):
        VersionLog(table.root).latest()
    newest.write_text("{")
    with pytest.raises(StateError, match="corrupt"):
        VersionLog(table.root).latest()


# -- in the background -----------------------------------------------------------------------------


def test_background_appends_in_order_from_two_threads() -> None:
    chain = DeltaChain("v", 2)
    compactor = Compactor(TieredMerge(5), delta_threshold=20, max_chain_length=10**6)
    gate = threading.Lock()
    clock = iter(range(10**6))
    with BackgroundCompactor(compactor) as background:

        def add(writer: int) -> None:
            for n in range(200):
                with gate:
                    delta = VectorDelta(f"{writer}-{n}", "v", Add([1.0], [writer]), next(clock))
                    assert background.push(chain, delta) == []

        threads = [threading.Thread(target=add, args=(w,)) for w in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert chain.compose().tolist() == [200.0, 200.0]  # type: ignore[union-attr]
    assert len(background.results) > 0
    assert len(chain) < 20


def test_a_delta_before_the_folded_place_undoes_the_swap() -> None:
    chain = DeltaChain("v", 1)
    chain.process(VectorDelta(f"d{n}", "v", Offset(1.0), n * 10) for n in range(10))
    compactor = Compactor(FullMerge(), delta_threshold=2)
    with chain.compacting() as attempt:
        assert attempt.chains is not None
        folded = compactor.carry_out(attempt.chains, compactor.plan(attempt.chains))
        assert chain.push(VectorDelta("early", "v", Scale(2.0), 45)) == []
        assert not chain.swap(attempt, folded.chains)
    assert chain.compose().tolist() == [15.0]  # type: ignore[union-attr]
    assert len(chain) == 11
    with chain.compacting() as one, chain.compacting() as other:
        assert one.chains is not None
        assert other.chains is not None
        first = compactor.carry_out(one.chains, compactor.plan(one.chains)).chains
        assert chain.push(VectorDelta("after", "v", Offset(1.0), 500)) == []
        assert chain.swap(one, first)
        assert not chain.swap(other, first)
    assert chain.compose().tolist() == [16.0]  # type: ignore[union-attr]
    assert len(chain) == 1


def test_the_hard_limit_compacts_before_accepting_more() -> None:
    chain = DeltaChain("v", 1)
    keep_all = Compactor(
        TimeBoundary("1 h"), delta_threshold=10, max_chain_length=20, retention="1 d"
    )
    with BackgroundCompactor(keep_all) as background:
        for n in range(100):
            assert background.push(chain, VectorDelta(f"d{n:03}", "v", Offset(1.0), n)) == []
            assert len(chain) <= 20
    assert chain.compose().tolist() == [100.0]  # type: ignore[union-attr]


# -- handed on -------------------------------------------------------------------------------------


def stores(tmp_path: Path) -> list[Any]:
    out: list[Any] = [VectorTable.create(tmp_path / "parquet", DIMS, buckets=3)]
    if find_spec("lancedb"):
        out.append(LanceVectors(str(tmp_path / "lance"), DIMS))
    return out


def test_a_missing_lancedb_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(ConfigError, match="pip install"):
        LanceVectors(str(tmp_path), 2)


def test_a_replay_changes_nothing(tmp_path: Path) -> None:
    deltas = some_deltas()
    half = DeltaTable.create(tmp_path / "half", DIMS)
    half.append(deltas[: len(deltas) // 2])
    full = DeltaTable.create(tmp_path / "full", DIMS)
    full.append(deltas)
    old = pa.concat_batches(list(half.vectors()))
    new = pa.concat_batches(list(full.vectors()))
    for store in stores(tmp_path):
        assert store.upsert(old) == old.num_rows
        changed = store.upsert(new)
        assert 0 < changed <= new.num_rows
        for replay in (new, old, old, new):
            assert store.upsert(replay) == 0
        if isinstance(store, VectorTable):
            assert vectors_of(store) == in_process(deltas)
        else:
            alive = {k: v for k, v in in_process(deltas).items() if v is not None}
            assert len(store) == len(alive)
            vector = next(iter(alive.values()))
            nearest = store.nearest(vector, 3)
            assert nearest[0]["_distance"] == 0.0
            assert alive[nearest[0]["vector_id"]] == vector
            assert all(row["vector_id"] in alive for row in store.nearest(vector, 100))


def test_stage_rows_go_into_a_store(tmp_path: Path) -> None:
    from tidegate.core.outcomes import Collection, Side
    from tidegate.deltas import Compact
    from tidegate.report.picture import compaction_picture
    from tidegate.testing.laws import play

    deltas = some_deltas()
    rows = rows_from(deltas)
    out = play(Compact(DIMS, delta_threshold=12), [
        Collection.of(rows, rows.column("time_ns").to_numpy())])  # fmt: skip
    store = VectorTable.create(tmp_path / "parquet", DIMS)
    for outcome in out:
        if isinstance(outcome, Collection):
            store.upsert(outcome.table())
    assert vectors_of(store) == in_process(deltas)
    compactions = [o.table() for o in out if isinstance(o, Side)]
    picture = compaction_picture(pa.Table.from_batches(compactions))
    assert picture.count("<polyline") == 5
    assert "nothing was compacted" in compaction_picture(pa.Table.from_batches(compactions)[:0])
