"""Deltas that are wrong, in every way we could think of: refused with a reason, never an exception,
and the chain goes on as if they had not been there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.chain import Chain
from tidegate.core.outcomes import Collection, Dropped, End, Late, Watermark
from tidegate.core.snapshot import pack
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.deltas import (
    Adaptive,
    Add,
    Affine,
    Compact,
    Compactor,
    Create,
    DeltaChain,
    Dense,
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
from tidegate.errors import ConfigError, StateError
from tidegate.testing.laws import play, rows_of

WRONG: list[tuple[Operation, str]] = [
    (Create([1.0]), "1 values for 3 dims"),
    (Dense([]), "0 values for 3 dims"),
    (Add([1.0] * 4), "4 values for 3 dims"),
    (Sparse([3], [1.0]), "index 3 out of range for 3 dims"),
    (Sparse([-1], [1.0]), "index -1 out of range for 3 dims"),
    (Sparse([2**40], [1.0]), "index 2147483647 out of range for 3 dims"),
    (Sparse([1, 1], [1.0, 2.0]), "duplicate index 1"),
    (Add([1.0, 2.0], [1, 1]), "duplicate index 1"),
    (Sparse([0, 1], [1.0]), "2 indices do not match the number of values or factors"),
    (Add([1.0], []), "0 indices do not match the number of values or factors"),
    (Sparse([0], [np.nan]), "NaN or infinity at position 0"),
    (Create([1.0, np.inf, 0.0]), "NaN or infinity at position 1"),
    (Add([1.0, 0.0, -np.inf]), "NaN or infinity at position 2"),
    (Scale(0.0), "factor 0"),
    (Scale(-0.0), "factor 0"),
    (Scale(np.nan), "factor or amount is missing, NaN or infinite"),
    (Offset(np.inf), "factor or amount is missing, NaN or infinite"),
    (Affine(1.0, 0.0, [0], [1.0, 2.0], [0.0]), "1 indices do not match"),
    (Affine(0.0, 0.0), "factor or amount is missing, NaN or infinite"),
    (Affine(1.0, 0.0, [0], [np.nan], [0.0]), "NaN or infinity at position 0"),
]


@pytest.mark.parametrize(("operation", "reason"), WRONG)
def test_a_wrong_operation_is_refused_and_nothing_moves(operation: Operation, reason: str) -> None:
    chain = DeltaChain("v", 3)
    chain.push(VectorDelta("a", "v", Create([1.0, 2.0, 3.0]), 1))
    (refusal,) = chain.push(VectorDelta("b", "v", operation, 2))
    assert refusal.reason.startswith(reason)
    assert refusal.delta.delta_id == "b"
    assert chain.compose().tolist() == [1.0, 2.0, 3.0]  # type: ignore[union-attr]
    assert chain.push(VectorDelta("b", "v", Offset(1.0), 2)) == []  # the id is still free


class Strange(Operation):
    op = "rotate"


def test_deltas_that_do_not_belong() -> None:
    chain = DeltaChain("v", 1)
    assert chain.push(VectorDelta("a", "w", Offset(1.0)))[0].reason == "belongs to vector w"
    assert chain.push(VectorDelta("a", "v", Strange()))[0].reason == "unknown operation"
    own = VectorDelta("a", "v", Offset(1.0), parent="a")
    assert chain.push(own)[0].reason == "a delta cannot be its own parent"
    nameless = VectorDelta(None, "v", Offset(1.0))  # type: ignore[arg-type]
    assert "missing" in chain.push(nameless)[0].reason
    unknown = DeltaChain("v")
    assert "dimension is unknown" in unknown.push(VectorDelta("a", "v", Offset(1.0)))[0].reason
    assert unknown.compose() is None
    assert unknown.nbytes == len(unknown) == 0
    assert Compactor().compact(unknown).no_op
    assert unknown.push(VectorDelta("a", "v", Create([1.0]))) == []
    assert unknown.dims == 1


def test_parents_that_never_come() -> None:
    chain = DeltaChain("v", 1, parent_wait=10, max_waiting=2)
    assert chain.push(VectorDelta("b", "v", Offset(1.0), 5, parent="a")) == []
    assert chain.push(VectorDelta("c", "v", Offset(1.0), 9, parent="b")) == []
    (crowded,) = chain.push(VectorDelta("d", "v", Offset(1.0), 9, parent="x"))
    assert "2 deltas of this vector wait already" in crowded.reason
    assert [d.delta_id for d in chain.waiting] == ["b", "c"]
    assert chain.push(VectorDelta("e", "v", Offset(1.0), 15)) == []  # exactly at the limit
    (orphan,) = chain.push(VectorDelta("f", "v", Offset(1.0), 16))
    assert (orphan.delta.delta_id, orphan.reason) == (
        "b",
        "unknown parent a, waited beyond the limit",
    )
    assert chain.advance(18) == []
    assert [r.delta.delta_id for r in chain.advance(19)] == ["c"]
    assert chain.compose().tolist() == [2.0]  # type: ignore[union-attr]
    cycle = DeltaChain("v", 1, parent_wait=10)
    cycle.process(
        [VectorDelta("a", "v", Offset(1.0), 1, "b"), VectorDelta("b", "v", Offset(1.0), 1, "a")]
    )
    assert len(cycle.waiting) == 2
    assert len(cycle.advance(MAX_NS)) == 2


def test_times_at_the_ends_of_the_range() -> None:
    for strategy in (FullMerge(), TieredMerge(0), TimeBoundary("1 s"), Adaptive(0)):
        chain = DeltaChain("v", 1)
        for n, t in enumerate([MIN_NS, MIN_NS + 1, -1, 0, MAX_NS - 1, MAX_NS]):
            assert chain.push(VectorDelta(f"d{n}", "v", Offset(1.0), t)) == []
        compactor = Compactor(strategy, delta_threshold=2, retention="1 s", remember="1 s")
        compactor.compact(chain)
        assert chain.compose().tolist() == [6.0]  # type: ignore[union-attr]
        assert chain.compose(MAX_NS).tolist() == [6.0]  # type: ignore[union-attr]


def test_many_dims_and_no_deltas_at_all() -> None:
    wide = 65_536
    chain = DeltaChain("v", wide)
    chain.push(VectorDelta("a", "v", Create(np.arange(wide, dtype=float)), 1))
    chain.process(VectorDelta(f"s{n}", "v", Sparse([n], [-1.0]), 2 + n) for n in range(50))
    chain.push(VectorDelta("z", "v", Scale(2.0), 100))
    expected = np.arange(wide, dtype=float)
    expected[:50] = -1.0
    for strategy in (TimeBoundary(10), TieredMerge(3), FullMerge()):
        Compactor(strategy, delta_threshold=5).compact(chain)
        assert np.array_equal(chain.compose(), 2 * expected)  # type: ignore[arg-type]
    assert chain.process([]) == []
    assert chain.push(VectorDelta("e", "v", Sparse([], []), 101)) == []
    empty = DeltaChain("v", 4)
    assert empty.compose() is None
    for strategy in (FullMerge(), TieredMerge(1), TimeBoundary(1), Adaptive()):
        assert Compactor(strategy).compact(empty).no_op


def test_factors_that_leave_the_floats_are_kept_apart() -> None:
    """Merging 1e-200 twice would underflow to 0, an assignment: the run stays as it is."""
    for factor in (1e-200, 1e200):
        chain = DeltaChain("v", 1)
        ops: list[Operation] = [Create([1e-30]), Scale(1e30), *[Scale(factor), Scale(1 / factor)]]
        chain.process(VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(ops))
        before = chain.compose()
        Compactor(TimeBoundary(2), delta_threshold=2).compact(chain, watermark_ns=100)
        assert chain.compose().tolist() == before.tolist()  # type: ignore[union-attr]
        twice = DeltaChain("v", 1)
        twice.process(VectorDelta(f"d{n}", "v", Scale(factor), n) for n in range(2))
        result = Compactor(TimeBoundary(10), delta_threshold=2).compact(twice, watermark_ns=100)
        assert result.no_op
        assert len(twice) == 2


def test_a_vector_that_overflows_is_not_folded() -> None:
    chain = DeltaChain("v", 1)
    ops: list[Operation] = [Create([1e300]), Scale(1e300)]
    chain.process(VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(ops))
    result = Compactor(FullMerge(), delta_threshold=2).compact(chain)
    assert result.error == "the composed vector is not finite"
    assert len(chain) == 2


# -- the stage -------------------------------------------------------------------------------------


def deltas_in(rows: pa.RecordBatch, wall_ns: int = 0) -> Collection:
    return Collection.of(rows, rows.column("time_ns").to_numpy(), wall_ns)


def test_every_wrong_delta_leaves_the_stage_with_its_reason() -> None:
    deltas = [VectorDelta(f"d{n}", "v", op, n) for n, (op, _) in enumerate(WRONG)]
    good = VectorDelta("good", "v", Create([1.0, 2.0, 3.0]), 50)
    out = play(Compact(3), [deltas_in(rows_from([*deltas, good]))])
    (dropped,) = [o for o in out if isinstance(o, Dropped)]
    assert len(dropped) == len(WRONG)
    for said, (_, reason) in zip(dropped.reason.to_pylist(), WRONG, strict=True):
        assert said.startswith(reason)
    assert rows_of(out)[0, "data"][0]["vector"] == [1.0, 2.0, 3.0]


def test_rows_with_holes_and_other_types() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "delta_id": ["a", None, "c", "d", "e"],
            "vector_id": ["v", "v", None, "v", "v"],
            "op": pa.array(["create", "offset", "offset", None, "sparse"]).dictionary_encode(),
            "values": pa.array([[1, 2], None, None, None, [7]], pa.list_(pa.float32())),
            "indices": pa.array([None, None, None, None, [2**40]], pa.list_(pa.int64())),
            "amount": [None, 1.0, 1.0, None, None],
        }
    )
    out = play(Compact(2), [Collection.of(rows, np.arange(5))])
    (dropped,) = [o for o in out if isinstance(o, Dropped)]
    assert dropped.rows.column("delta_id").to_pylist() == [None, "c", "d", "e"]
    assert dropped.rows.schema.equals(rows.schema)
    assert rows_of(out)[0, "data"][0]["vector"] == [1.0, 2.0]
    holes = pa.RecordBatch.from_pydict(
        {
            "delta_id": ["a", "b"],
            "vector_id": ["v", "v"],
            "op": ["create", "sparse"],
            "values": [[1.0, None], [1.0]],
            "indices": pa.array([None, [None]], pa.list_(pa.int32())),
        }
    )
    out = play(Compact(2), [Collection.of(holes, np.arange(2))])
    (dropped,) = [o for o in out if isinstance(o, Dropped)]
    assert len(dropped) == 2
    texts = pa.RecordBatch.from_pydict({"delta_id": ["a"], "vector_id": ["v"], "values": ["x"]})
    with pytest.raises(ConfigError, match="values: got a column of type string"):
        play(Compact(2), [Collection.of(texts, np.arange(1))])


def test_late_rows_say_how_late() -> None:
    rows = rows_from(
        [VectorDelta(f"d{n}", "v", Offset(1.0), 10 * n) for n in range(5)]
        + [VectorDelta("late", "v", Offset(1.0), 15)]
    )
    out = play(Compact(1, FullMerge(), delta_threshold=5), [deltas_in(rows)])
    (late,) = [o for o in out if isinstance(o, Late)]
    assert late.lateness_ns.tolist() == [25]
    assert rows_of(out)[0, "data"][-1]["vector"] == [5.0]


def test_watermarks_end_the_wait_and_the_clock_delivers() -> None:
    stage = Compact(1, parent_wait=10, time_threshold=100)
    chain = Chain((stage,))
    states = chain.open()
    rows = rows_from(
        [VectorDelta("a", "v", Offset(1.0), 1), VectorDelta("b", "v", Offset(1.0), 2, parent="x")]
    )
    assert chain.process(states, deltas_in(rows, wall_ns=1000)) == []
    assert chain.wake_at(states) == 1100
    assert chain.wake(states, 1099) == []
    (vector,) = chain.wake(states, 1100)
    assert rows_of([vector])[0, "data"][0]["vector"] == [1.0]
    assert chain.wake_at(states) is None
    assert [o.kind for o in chain.advance(states, Watermark.at(11))] == ["watermark"]
    dropped, _ = chain.advance(states, Watermark.at(12))
    assert isinstance(dropped, Dropped)
    assert dropped.reason.to_pylist() == ["unknown parent x, waited beyond the limit"]
    assert chain.metrics(states)["compact.refused"] == 1
    chain.process(states, deltas_in(rows_from([VectorDelta("c", "v", Offset(1.0), 30)])))
    assert stage.discard(states[0]) == {"pending": 2, "waiting": 0}
    assert End.QUICK.value == "quick"


def test_settings_that_make_no_sense() -> None:
    wrong: list[dict[str, Any]] = [
        {"dims": 0},
        {"dims": "3"},
        {"strategy": "smallest"},
        {"strategy": {"tiered_merge": {"keep": 3}}},
        {"strategy": {"tiered_merge": {"keep_recent": 100}}},
        {"strategy": {"time_boundary": {"interval": 0}}},
        {"strategy": 7},
        {"delta_threshold": 0},
        {"max_chain_length": 99},
        {"time_threshold": "soon"},
        {"retention": -1},
        {"parent_wait": None},
        {"max_waiting": -1},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError):
            Compact(**{"dims": 3, **settings})
    with pytest.raises(ConfigError, match="keep_recent"):
        Compactor(TieredMerge(10), delta_threshold=10)
    same = Compact(3, {"name": "time_boundary", "interval": "1 s"})
    assert same.strategy == TimeBoundary("1 s")
    assert same.settings()["strategy"] == {"name": "time_boundary", "interval": "1 s"}


def test_a_stored_chain_with_a_wrong_delta_is_a_state_error() -> None:
    chain = DeltaChain.stored("v", [VectorDelta("a", "v", Sparse([9], [1.0]))], 2)
    with pytest.raises(StateError, match="index 9 out of range"):
        chain.compose()
    with pytest.raises(StateError, match="checksum"):
        DeltaChain.restore(chain.snapshot()[:-1] + b"!")
    with pytest.raises(StateError, match="not the snapshot of a chain"):
        DeltaChain.restore(pack({"kind": "other"}, []))


@pytest.mark.parametrize(
    ("column", "kind", "says"),
    [
        ("values", pa.string(), "values: got a column of type string, must be a list of numbers"),
        ("values", pa.list_(pa.string()), "must be a list of numbers"),
        ("indices", pa.list_(pa.float64()), "must be a list of whole numbers"),
        ("factor", pa.string(), "factor: got a column of type string, must be numbers"),
        ("vector_id", pa.list_(pa.string()), "must be text or numbers"),
        ("vector_id", None, "compact: got 'vector_id', must be a column of the rows: delta_id, op"),
        ("op", None, "compact: got 'op', must be a column of the rows"),
    ],
)
def test_columns_that_are_no_deltas_are_found_in_the_plan(
    column: str, kind: pa.DataType | None, says: str
) -> None:
    schema = {"delta_id": pa.string(), "vector_id": pa.int64(), "op": pa.string()}
    schema |= {"values": pa.large_list(pa.float32()), "indices": pa.list_(pa.int64())}
    schema |= {"factor": pa.int8()}
    Compact(2).schema(pa.schema(schema))
    changed = {k: v for k, v in (schema | {column: kind}).items() if v is not None}
    with pytest.raises(ConfigError, match=says):
        Compact(2).schema(pa.schema(changed))


def test_a_time_column_that_is_no_number_of_nanoseconds_is_refused() -> None:
    """A timestamp of microseconds would be taken for nanoseconds."""
    stage = Compact(2, time_column="at")
    rows = rows_from([VectorDelta("a", "v", Create([1.0, 2.0]), 5)])
    stage.schema(rows.schema.append(pa.field("at", pa.int32())))
    wrong = rows.append_column("at", pa.array([5], pa.timestamp("us")))
    for call in (stage.schema, lambda _: play(stage, [Collection.of(wrong, np.arange(1))])):
        with pytest.raises(ConfigError, match=r"time_column: got 'at', must be a column of whole"):
            call(wrong.schema)


def test_one_number_that_does_not_fit_refuses_its_row_alone() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "delta_id": ["a", "b", "c"],
            "vector_id": ["v", "v", "v"],
            "op": ["create", "dense", "sparse"],
            "values": pa.array([[1, 2], [2**53 + 1, 0], [7]], pa.list_(pa.int64())),
            "indices": pa.array([None, None, [2**63 + 5]], pa.list_(pa.uint64())),
        }
    )
    out = play(Compact(2), [Collection.of(rows, np.arange(3))])
    (dropped,) = [o for o in out if isinstance(o, Dropped)]
    assert dropped.rows.column("delta_id").to_pylist() == ["b", "c"]
    assert rows_of(out)[0, "data"][0]["vector"] == [1.0, 2.0]
