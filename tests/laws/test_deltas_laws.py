"""Compaction never changes what a chain composes to, and its stage obeys the laws of all stages."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.outcomes import Collection, Dropped, Late
from tidegate.deltas import (
    Adaptive,
    Add,
    Compact,
    Compactor,
    Create,
    Delete,
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
    merge,
)
from tidegate.deltas.operations import rows_from
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, play, rows_of

STRATEGIES = [FullMerge(), TieredMerge(3), TimeBoundary(7), Adaptive(2)]
Vector = list[float] | None


# -- an oracle of its own: plain lists, one operation at a time ------------------------------------


def apply(x: Vector, operation: Operation, dims: int) -> Vector:
    match operation:
        case Create(vector):
            return [float(v) for v in vector]
        case Delete():
            return None
    if x is None:
        return None
    out = list(x)
    match operation:
        case Dense(vector):
            out = [float(v) for v in vector]
        case Sparse(indices, values):
            for i, v in zip(indices, values, strict=True):
                out[i] = v
        case Add(values, None):
            out = [a + b for a, b in zip(out, values, strict=True)]
        case Add(values, indices):
            assert indices is not None
            for i, v in zip(indices, values, strict=True):
                out[i] += v
        case Scale(factor):
            out = [factor * v for v in out]
        case Offset(amount):
            out = [v + amount for v in out]
    return out


def in_order(deltas: list[VectorDelta]) -> list[VectorDelta]:
    """(time, origin, id), but nobody before their parent.

    An id may come again once it is forgotten: a parent is the one admitted last before its child,
    or, for a child that waited, the first one after it.
    """
    found: dict[str, list[int]] = {}
    for n, d in enumerate(deltas):
        found.setdefault(d.delta_id, []).append(n)
    children: dict[int, list[int]] = {}
    heap = []
    for n, d in enumerate(deltas):
        named = found.get(str(d.parent), [])
        if named:
            before = [m for m in named if m < n]
            children.setdefault(before[-1] if before else named[0], []).append(n)
        else:
            heap.append((d.time_ns, d.origin, d.delta_id, n))
    heapq.heapify(heap)
    out = []
    while heap:
        n = heapq.heappop(heap)[-1]
        out.append(deltas[n])
        for c in children.get(n, ()):
            heapq.heappush(heap, (deltas[c].time_ns, deltas[c].origin, deltas[c].delta_id, c))
    return out


def compose(deltas: list[VectorDelta], dims: int, at_ns: int | None = None) -> Vector:
    x: Vector = [0.0] * dims
    seen = False
    latest = None
    for d in in_order(deltas):
        latest = d.time_ns if latest is None else max(latest, d.time_ns)
        if at_ns is not None and latest > at_ns:
            break
        seen = True
        x = apply(x, d.operation, dims)
    return x if seen else None


def composed(chain: DeltaChain, at_ns: int | None = None) -> Vector:
    vector = chain.compose(at_ns)
    return None if vector is None else vector.tolist()


# -- what to feed it -------------------------------------------------------------------------------

whole = st.integers(-8, 8).map(float)
"""Small whole numbers, and factors ±1, ±2: every sum and product of them is exact in float64."""
rough = st.floats(-100, 100, allow_nan=False).filter(lambda v: v == 0 or abs(v) > 1e-3)


@st.composite
def operations(draw: st.DrawFn, dims: int, number: Any, factor: Any) -> Operation:
    full = st.lists(number, min_size=dims, max_size=dims)
    kind = draw(st.sampled_from(["create", "dense", "sparse", "add", "adds", "scale", "offset"] * 3
                                + ["delete"]))  # fmt: skip
    if kind in ("sparse", "adds"):
        places = draw(st.lists(st.integers(0, dims - 1), unique=True, max_size=dims))
        values = draw(st.lists(number, min_size=len(places), max_size=len(places)))
        return Sparse(places, values) if kind == "sparse" else Add(values, places)
    match kind:
        case "create":
            return Create(draw(full))
        case "dense":
            return Dense(draw(full))
        case "add":
            return Add(draw(full))
        case "scale":
            return Scale(draw(factor))
        case "offset":
            return Offset(draw(number))
    return Delete()


@st.composite
def histories(
    draw: st.DrawFn, *, exact: bool = True, dims: int | None = None, most: int = 30
) -> tuple[int, list[VectorDelta]]:
    """Deltas of one vector in arrival order: times mostly grow, some repeat an id, some have a
    parent (also a later one)."""
    dims = dims or draw(st.integers(1, 6))
    number = whole if exact else rough
    factor = st.sampled_from([1.0, -1.0, 2.0, -2.0]) if exact else rough.filter(bool)
    out: list[VectorDelta] = []
    now = draw(st.integers(-50, 50))
    for n in range(draw(st.integers(0, most))):
        now += draw(st.integers(-2, 6))
        parent = None
        if n and draw(st.integers(0, 4)) == 0:
            parent = f"d{draw(st.integers(0, n + 1))}"
            parent = None if parent == f"d{n}" else parent
        name = f"d{n}" if not n or draw(st.integers(0, 9)) else f"d{draw(st.integers(0, n - 1))}"
        parent = None if parent == name else parent
        operation = draw(operations(dims, number, factor))
        out.append(VectorDelta(name, "v", operation, now, parent, draw(st.sampled_from("ab"))))
    return dims, out


# -- compose ---------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(histories(), st.data())
def test_compose_now_and_as_of_any_time(history: Any, data: st.DataObject) -> None:
    dims, deltas = history
    chain = DeltaChain("v", dims, parent_wait=10**6)
    refused = {id(r.delta) for r in chain.process(deltas)}
    accepted = chain.pending
    assert [d.delta_id for d in accepted] == [d.delta_id for d in in_order(accepted)]
    assert len(accepted) + len(refused) + len(chain.waiting) == len(deltas)
    assert composed(chain) == compose(accepted, dims)
    at = data.draw(st.integers(-80, 200))
    assert composed(chain, at) == compose(accepted, dims, at)


@settings(max_examples=50, deadline=None)
@given(histories(most=12), st.randoms(use_true_random=False))
def test_arrival_order_does_not_matter(history: Any, rng: random.Random) -> None:
    dims, deltas = history
    deltas = list({d.delta_id: d for d in deltas}.values())
    one, other = (DeltaChain("v", dims, parent_wait=10**6) for _ in range(2))
    one.process(deltas)
    rng.shuffle(deltas)
    for delta in deltas:
        one_refused = other.push(delta)
        assert not one_refused
    assert one.pending == other.pending
    assert composed(one) == composed(other)


# -- the law of compaction -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(histories(), st.sampled_from(STRATEGIES), st.sampled_from([None, 5, 20]), st.data())
def test_compaction_changes_nothing(
    history: Any, strategy: Any, retention: int | None, data: st.DataObject
) -> None:
    """Random operations, any strategy, compactions and restarts between any two appends."""
    dims, deltas = history
    compactor = Compactor(strategy, delta_threshold=4, max_chain_length=10**6, retention=retention)
    chain = DeltaChain("v", dims, parent_wait=15)
    plain: list[VectorDelta] = []  # what was admitted, never compacted
    for delta in deltas:
        known = set(chain.checkpoint.covered if chain.checkpoint else ())
        known |= {name for d in chain.pending for name in d.ids}
        held = {d.delta_id: d for d in chain.waiting}
        chain.push(delta)
        now = set(chain.checkpoint.covered if chain.checkpoint else ())
        now |= {name for d in chain.pending for name in d.ids}
        # One of this id may have waited in vain until now: it is this one that was let in.
        plain += [delta if n == delta.delta_id else held[n] for n in now - known]
        what = data.draw(st.sampled_from(["go on", "compact", "restart", "dry run"]))
        before = composed(chain)
        assert before == compose(plain, dims)
        if what == "compact":
            expected = compactor.needs_compaction(chain)
            result = compactor.compact(chain)
            assert result.error is None
            if expected:
                assert not result.no_op
            if isinstance(strategy, Adaptive):
                assert result.space_saved >= 0
            if not result.no_op:
                assert result.deltas_merged > 0
        elif what == "restart":
            chain = DeltaChain.restore(chain.snapshot())
        elif what == "dry run":
            sure = chain.snapshot()
            promised = compactor.compact(chain, dry_run=True)
            assert chain.snapshot() == sure
            done = compactor.compact(DeltaChain.restore(sure))
            assert done.space_saved == promised.space_saved
        assert composed(chain) == before
        if retention is not None and plain:
            newest = max(d.time_ns for d in plain)
            for at in range(newest - retention, newest + 2):
                assert composed(chain, at) == compose(plain, dims, at)


@settings(max_examples=50, deadline=None)
@given(histories(exact=False, most=20), st.sampled_from(STRATEGIES))
def test_at_most_one_rounding_per_operation(history: Any, strategy: Any) -> None:
    """Checkpoints are folded in order and stay exact. Merged runs round elsewhere: each operation
    may err by one rounding, magnified by the factors behind it."""
    dims, deltas = history
    chain = DeltaChain("v", dims, parent_wait=10**6)
    chain.process(deltas)
    accepted = chain.pending
    before = composed(chain)
    Compactor(strategy, delta_threshold=4).compact(chain)
    after = composed(chain)
    if isinstance(strategy, (FullMerge, TieredMerge)):
        assert after == before
        return
    if before is None or after is None:
        assert before == after
        return
    bound = np.zeros(dims)  # of the error in each dimension, in units of eps
    size = np.zeros(dims)  # what the dimension could be if nothing cancelled
    for d in accepted:
        match d.operation:
            case Scale(factor):
                bound, size = abs(factor) * bound, abs(factor) * size
            case Offset(amount):
                size = size + abs(amount)
            case Add(values, None):
                size = size + np.abs(values)
            case Add(values, indices):
                size[list(indices or ())] += np.abs(values)
            case Create(vector) | Dense(vector):
                bound, size = bound * 0, np.abs(np.array(vector, float))
            case Sparse(indices, values):
                bound[list(indices)] = 0
                size[list(indices)] = np.abs(values)
        bound = bound + 2 * size
    assert (np.abs(np.array(after) - before) <= bound * np.finfo(float).eps).all()


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_merging_is_associative_and_needs_no_base(data: st.DataObject, dims: int) -> None:
    factor = st.sampled_from([1.0, -1.0, 2.0])
    ops = data.draw(st.lists(operations(dims, whole, factor), min_size=3, max_size=9))
    deltas = [VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(ops)]
    split = data.draw(st.integers(1, len(ops) - 2))
    other = data.draw(st.integers(split + 1, len(ops) - 1))
    a, b, c = (merge(part, dims) for part in (deltas[:split], deltas[split:other], deltas[other:]))
    left, right = merge([merge([a, b], dims), c], dims), merge([a, merge([b, c], dims)], dims)
    assert left == right == merge(deltas, dims)
    for base in ([0.0] * dims, data.draw(st.lists(whole, min_size=dims, max_size=dims)), None):
        expected: Vector = base
        for op in ops:
            expected = apply(expected, op, dims)
        assert apply_merged(base, left, dims) == expected


def apply_merged(base: Vector, delta: VectorDelta, dims: int) -> Vector:
    first: Operation = Delete() if base is None else Create(base)
    start = VectorDelta("base", "v", first, -1)
    return composed(DeltaChain.stored("v", [start, delta], dims))


# -- the stage -------------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, Collection]:
    """Deltas of several vectors in several lanes, some of them broken."""
    dims = draw(st.integers(1, 4))
    deltas: list[VectorDelta] = []
    now = 0
    for n in range(draw(st.integers(1, 60))):
        now += draw(st.integers(-2, 5))
        vector = draw(st.sampled_from(["u", "v"]))
        operation: Operation = draw(operations(dims, whole, st.sampled_from([1.0, -1.0, 2.0])))
        if draw(st.integers(0, 15)) == 0:
            operation = draw(st.sampled_from([Scale(0.0), Sparse([9], [1.0]), Offset(np.inf)]))
        parent = f"d{draw(st.integers(0, n + 2))}" if draw(st.integers(0, 5)) == 0 else None
        name = f"d{draw(st.integers(0, n)) if draw(st.integers(0, 9)) == 0 else n}"
        deltas.append(VectorDelta(name, vector, operation, now, parent))
    rows = rows_from(deltas)
    lane = np.array(draw(st.lists(st.integers(0, 2), min_size=len(deltas), max_size=len(deltas))))
    return dims, Collection(rows, rows.column("time_ns").to_numpy(), lane.astype(np.int32))


def stage(dims: int, strategy: Any) -> Compact:
    return Compact(dims, strategy, delta_threshold=5, max_chain_length=12, parent_wait=20,
                   remember=50, max_waiting=3)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(streams(), st.sampled_from(STRATEGIES), st.lists(st.integers(0, 60), max_size=6))
def test_stage_cut_and_restart(stream: Any, strategy: Any, at: list[int]) -> None:
    dims, collection = stream
    assert_cut_law(stage(dims, strategy), collection, at, lanes=3)
    assert_restart_law(stage(dims, strategy), cut(collection, at), lanes=3)


@settings(max_examples=30, deadline=None)
@given(streams(), st.sampled_from(STRATEGIES))
def test_stage_conserves_and_stays_bounded(stream: Any, strategy: Any) -> None:
    dims, collection = stream
    operator = stage(dims, strategy)
    state = operator.open(3)
    out = []
    for piece in cut(collection, range(0, len(collection), 7)):
        out += operator.process(state, piece)
        held = state.tables["pending"]
        if held is not None and held.num_rows:
            lanes = held.column("__tidegate_lane").to_pylist()
            per = Counter(zip(lanes, held.column("vector_id").to_pylist(), strict=True))
            assert max(per.values()) <= operator.max_chain_length
    out += operator.flush(state)
    assert all(state.rows(name) == 0 for name in ("chains", "pending", "waiting"))
    assert operator.wake_at(state) is None
    gone = sum(len(o) for o in out if isinstance(o, (Dropped, Late)))
    count: dict[tuple[int, str], int] = {}
    for o in out:
        if isinstance(o, Collection):
            for lane, row in zip(o.lane.tolist(), o.rows.to_pylist(), strict=True):
                assert row["delta_count"] > count.get((lane, row["vector_id"]), 0)
                count[lane, row["vector_id"]] = row["delta_count"]
    assert gone + sum(count.values()) == len(collection)


@settings(max_examples=30, deadline=None)
@given(streams(), st.sampled_from(STRATEGIES))
def test_stage_and_chains_agree(stream: Any, strategy: Any) -> None:
    """The last vector a stage delivers is what plain chains of the admitted deltas compose to."""
    dims, collection = stream
    out = play(stage(dims, strategy), [collection], lanes=3)
    refused = Counter(
        (lane, row["vector_id"], row["delta_id"], row["time_ns"], repr(row))
        for o in out
        if isinstance(o, (Dropped, Late))
        for lane, row in zip(o.lane.tolist(), o.rows.to_pylist(), strict=True)
    )
    from tidegate.deltas.operations import deltas_of

    admitted: dict[tuple[int, str], list[VectorDelta]] = {}
    rows = collection.rows.to_pylist()
    for lane, delta, row in zip(collection.lane.tolist(), deltas_of(collection.rows), rows,
                                strict=True):  # fmt: skip
        name = (lane, delta.vector_id, delta.delta_id, delta.time_ns, repr(row))
        if refused[name]:
            refused[name] -= 1
            continue
        admitted.setdefault((lane, delta.vector_id), []).append(delta)
    last = {
        (lane, row["vector_id"]): row
        for (lane, kind), found in rows_of(out).items()
        if kind == "data"
        for row in found
    }
    assert set(last) == set(admitted)
    for name, deltas in admitted.items():
        assert last[name]["vector"] == compose(deltas, dims)
        assert last[name]["delta_count"] == len(deltas)
        assert last[name]["deleted"] == (compose(deltas, dims) is None)


def test_schema_is_exact() -> None:
    rows = rows_from([VectorDelta(f"d{n}", "v", Offset(1.0), n) for n in range(9)])
    keyed = rows.append_column("car", pa.array(["x"] * 9))
    operator = Compact(2, TieredMerge(1), delta_threshold=4, keys=("car", "vector_id"))
    out = play(operator, [Collection.of(keyed, rows.column("time_ns").to_numpy())])
    data = [o for o in out if isinstance(o, Collection)]
    assert data
    assert all(o.rows.schema.equals(operator.schema(keyed.schema)) for o in data)
    sides = [o for o in out if o.kind == "compactions"]
    assert sides
    wanted = operator.side_schemas(keyed.schema)["compactions"]
    assert all(o.table().schema.equals(wanted) for o in sides if not isinstance(o, Collection))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_delta_that_comes_again_changes_nothing(strategy: Any) -> None:
    deltas = [VectorDelta(f"d{n}", "v", Offset(1.0), n) for n in range(40)]
    chain = DeltaChain("v", 1)
    compactor = Compactor(strategy, delta_threshold=4)
    for delta in deltas:
        chain.push(delta)
        compactor.compact(chain)
        again = VectorDelta(delta.delta_id, "v", delta.operation, delta.time_ns + 100)
        assert [r.reason for r in chain.push(again)] == ["duplicate delta id"]
    assert composed(chain) == [40.0]
    assert chain.duplicates == 40


def test_the_seal_among_deltas_of_one_time_is_the_greatest_key_folded() -> None:
    """A child that sorts before its parent is the last of the chain, but not the seal of it."""
    chain = DeltaChain("v", 1)
    chain.push(VectorDelta("d5", "v", Create([1.0]), 10))
    chain.push(VectorDelta("d2", "v", Add([1.0]), 10, parent="d5"))
    Compactor(FullMerge(), delta_threshold=1).compact(chain)
    [refusal] = chain.push(VectorDelta("d3", "v", Scale(2.0), 10))  # it belongs before d5
    assert "late" in refusal.reason
    assert composed(chain) == [2.0]
