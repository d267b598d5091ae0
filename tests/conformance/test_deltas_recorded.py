"""The recorded cases of conformance/deltas/compaction.json."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import load_list
from tidegate.core.time import UNSET
from tidegate.deltas import (
    Add,
    Checkpoint,
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
    Strategy,
    TieredMerge,
    TimeBoundary,
    VectorDelta,
    affine,
    merge,
)

MS = 10**6


def operation(d: dict[str, Any]) -> Operation:
    match d["op"]:
        case "create":
            return Create(d["vector"])
        case "dense":
            return Dense(d["vector"])
        case "sparse":
            return Sparse(d["indices"], d["values"])
        case "add":
            return Add(d["values"], d["indices"])
        case "scale":
            return Scale(d["factor"])
        case "offset":
            return Offset(d["amount"])
    assert d["op"] == "delete"
    return Delete()


def deltas_of(case: dict[str, Any]) -> list[VectorDelta]:
    return [
        VectorDelta(d["id"], "v", operation(d), d["ts_ms"] * MS, metadata=str(d["seq"]))
        for d in case["deltas"]
    ]


def checkpoint_of(case: dict[str, Any]) -> Checkpoint | None:
    if "checkpoint" not in case:
        return None
    meta = case.get("checkpoint_meta")
    vector = np.array(case["checkpoint"], float)
    if meta is None:
        return Checkpoint(vector)
    return Checkpoint(vector, meta["at_delta"], meta["ts_ms"] * MS, meta["delta_count"])


def strategy_of(case: dict[str, Any]) -> Strategy:
    match case["strategy"]:
        case {"time_boundary_ms": ms}:
            return TimeBoundary(ms * MS)
        case {"tiered": keep}:
            return TieredMerge(keep)
    return FullMerge()


def compactor_of(case: dict[str, Any]) -> Compactor:
    config = case.get("config")
    if config is None:
        return Compactor(strategy_of(case))
    strategy = strategy_of(case) if case["strategy"] != "decide" else TieredMerge(10)
    return Compactor(
        strategy,
        delta_threshold=config["delta_threshold"],
        time_threshold=config["time_threshold_ms"] * MS,
        max_chain_length=config["max_chain_length"],
    )


@pytest.mark.parametrize("case", load_list("deltas/compaction.json", "cases"))
def test_recorded_case(case: dict[str, Any]) -> None:
    expect, dims, compactor = case["expect"], case["dims"], compactor_of(case)
    checkpoint, deltas = checkpoint_of(case), deltas_of(case)
    chain = DeltaChain("v", dims, checkpoint=checkpoint)
    if "error" in expect:  # a stored chain with a delta that admission would have refused
        chain = DeltaChain.stored("v", deltas, dims, checkpoint)
    else:
        chain.process(deltas, wall_ns=deltas[0].time_ns if deltas else None)
        assert chain.duplicates == expect.get("duplicates", 0)
    if case["strategy"] == "merge_run":
        one = merge(deltas, dims)
        a, b = affine(one.operation, dims)
        assert (a.tolist(), b.tolist()) == (expect["affine"]["a"], expect["affine"]["b"])
        for on in expect["on"]:
            based = DeltaChain.stored("v", [one], dims, Checkpoint(np.array(on["base"], float)))
            composed = based.compose()
            assert composed is not None
            assert composed.tolist() == on["vector"]
        return
    if case["strategy"] == "decide":
        for at in expect["at_len"]:
            fresh = DeltaChain("v", dims)
            fresh.process(VectorDelta(f"d{n}", "v", Offset(1.0), n) for n in range(at["len"]))
            assert compactor.urgency(fresh).value == at["level"]
        return
    if "needs_compaction" in expect:
        assert compactor.needs_compaction(chain, case["now_ms"] * MS) is expect["needs_compaction"]
        return
    if "affine" in expect:
        a, b = affine(merge(deltas, dims).operation, dims)
        assert (a.tolist(), b.tolist()) == (expect["affine"]["a"], expect["affine"]["b"])
    if "prefix2" in expect:
        two = DeltaChain("v", dims)
        two.process(deltas[:2])
        compactor.compact(two)
        assert two.compose() is expect["prefix2"]["vector"]
        assert two.deleted is expect["prefix2"]["deleted"]
    watermark = case["watermark_ms"] * MS if "watermark_ms" in case else None
    before_bytes = chain.nbytes
    result = compactor.compact(chain, watermark_ns=watermark)
    if "error" in expect:
        assert result.error == expect["error"]
        assert [d.delta_id for d in chain.pending] == expect["kept"]
        assert chain.checkpoint is not None
        assert chain.checkpoint.vector.tolist() == expect["checkpoint"]
        assert chain.nbytes == before_bytes
        return
    if "groups" in expect:
        assert [list(d.ids) for d in chain.pending] == expect["groups"]
    if "kept" in expect:
        assert [d.delta_id for d in chain.pending] == expect["kept"]
    if "vector" in expect:
        composed = chain.compose()
        assert composed is not None
        assert composed.tolist() == expect["vector"]
    if "deleted" in expect:
        assert chain.deleted is expect["deleted"]
    if "deltas_merged" in expect:
        assert result.deltas_merged == expect["deltas_merged"]
    if "no_op" in expect:
        assert result.no_op is expect["no_op"]
    found = chain.checkpoint
    if "checkpoint_vector" in expect:
        assert found is not None
        assert found.vector.tolist() == expect["checkpoint_vector"]
    if "checkpoint_meta" in expect:
        meta = expect["checkpoint_meta"]
        assert found is not None
        assert found.timestamp_ns != UNSET
        got = (found.at_delta, found.delta_count, found.timestamp_ns)
        assert got == (meta["at_delta"], meta["delta_count"], meta["ts_ms"] * MS)
