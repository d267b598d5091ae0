"""Chains as tables and back: checkpoints on one side, pending deltas (rows.DELTAS) on the other.

Lossless: float64 vectors as fixed-size lists, times as int64 nanoseconds. A chain's snapshot is
these two tables as Arrow IPC with zstd inside the checked envelope all snapshots share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core import snapshot
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.deltas.columns import Chains
from tidegate.deltas.covered import Covered
from tidegate.deltas.pool import Pool
from tidegate.deltas.rows import DELTAS
from tidegate.errors import StateError

__all__ = [
    "chains_from",
    "checkpoint_schema",
    "checkpoints_of",
    "decode_chain",
    "encode_chain",
    "locate",
    "vector_column",
]


def checkpoint_schema(dims: int) -> pa.Schema:
    """One row per vector: its checkpoint (if `has_checkpoint`), its seal and the ids it covers."""
    return pa.schema(
        [
            pa.field("vector_id", pa.string()),
            pa.field("vector", pa.list_(pa.float64(), dims)),
            pa.field("has_checkpoint", pa.bool_()),
            pa.field("deleted", pa.bool_()),
            pa.field("at_delta", pa.string()),
            pa.field("time_ns", pa.int64()),
            pa.field("delta_count", pa.int64()),
            pa.field("sealed_ns", pa.int64()),
            pa.field("sealed_key", pa.string()),
            pa.field("covered", pa.list_(pa.string())),
            pa.field("covered_ns", pa.list_(pa.int64())),
        ]
    )


def vector_column(vectors: Any) -> pa.Array:
    """A matrix as a column of fixed-size lists."""
    flat = pa.array(np.ascontiguousarray(vectors, np.float64).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def checkpoints_of(chains: Chains) -> pa.RecordBatch:
    """The checkpoint side of these chains."""
    ids, time_ns, offsets = chains.covered.by_vector(len(chains))
    return pa.RecordBatch.from_arrays(
        [
            chains.ids,
            vector_column(chains.vectors),
            pa.array(chains.has),
            pa.array(chains.dead),
            chains.at,
            pa.array(chains.folded_ns),
            pa.array(chains.count),
            pa.array(chains.sealed_ns),
            chains.sealed_key,
            pa.ListArray.from_arrays(pa.array(offsets), ids),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(time_ns)),
        ],
        schema=checkpoint_schema(chains.dims),
    )


def locate(ids: pa.Array, lane: Int32s, wanted: pa.Array, wanted_lane: Int32s) -> Int64s:
    """Of each wanted (id, lane) its place among these, -1 where it is not one of them."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    words = ids.unique()
    if len(words) == len(ids):
        alone: Int64s = pc.fill_null(pc.index_in(wanted, words), -1).to_numpy().astype(np.int64)
        return np.where((alone >= 0) & (lane[alone] == wanted_lane), alone, -1)
    lanes = int(max(lane.max(), wanted_lane.max() if len(wanted_lane) else 0)) + 1
    own = pc.index_in(ids, words).to_numpy().astype(np.int64) * lanes + lane
    place = pc.fill_null(pc.index_in(wanted, words), -1).to_numpy().astype(np.int64)
    order = np.argsort(own, kind="stable")
    asked = place * lanes + wanted_lane
    at = np.minimum(np.searchsorted(own[order], asked), len(own) - 1)
    found = (own[order][at] == asked) & (place >= 0)
    return np.where(found, order[at], -1)


def chains_from(
    checkpoints: pa.RecordBatch, deltas: pa.RecordBatch, vec: Int64s, lane: Int32s | None = None
) -> Chains:
    """The reverse: deltas must stand by vector and in chain order, `vec` names their vectors."""
    vector = checkpoints.column("vector")
    dims = vector.type.list_size
    n = checkpoints.num_rows
    lists = checkpoints.column("covered")
    sizes = pc.fill_null(lists.value_lengths(), 0).to_numpy()
    owner = np.repeat(np.arange(n), sizes)
    times = checkpoints.column("covered_ns").flatten().to_numpy()
    return Chains(
        dims,
        checkpoints.column("vector_id"),
        np.zeros(n, np.int32) if lane is None else lane,
        vector.flatten().to_numpy().reshape(n, dims),
        checkpoints.column("has_checkpoint").to_numpy(zero_copy_only=False),
        checkpoints.column("deleted").to_numpy(zero_copy_only=False),
        checkpoints.column("delta_count").to_numpy(),
        checkpoints.column("at_delta"),
        checkpoints.column("time_ns").to_numpy(),
        checkpoints.column("sealed_ns").to_numpy(),
        checkpoints.column("sealed_key"),
        Pool(deltas),
        np.arange(deltas.num_rows),
        vec,
        Covered(lists.flatten(), None, owner, times),
    )


def encode_chain(
    chains: Chains | None, waiting: pa.RecordBatch | None, header: dict[str, Any]
) -> bytes:
    """One chain and its waiting deltas in one checked blob."""
    tables = [] if chains is None else [checkpoints_of(chains), chains.rows]
    tables += [] if waiting is None else [waiting]
    said = {**header, "kind": "chain", "known": chains is not None, "waits": waiting is not None}
    return snapshot.pack(said, [_ipc(table) for table in tables])


def decode_chain(blob: bytes) -> tuple[Chains | None, pa.RecordBatch | None, dict[str, Any]]:
    """The reverse of `encode_chain`."""
    header, buffers = snapshot.unpack(blob, "chain snapshot")
    if header.get("kind") != "chain":
        raise StateError("this is not the snapshot of a chain")
    tables = [_read(buffer) for buffer in buffers]
    chains = None
    if header["known"]:
        vec = np.zeros(tables[1].num_rows, np.int64)
        chains = chains_from(tables[0], tables[1].cast(DELTAS), vec)
    return chains, tables[-1] if header["waits"] else None, header


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _read(buffer: memoryview) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(pa.py_buffer(buffer)) as reader:
            return reader.read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise StateError(f"chain snapshot is unreadable: {error}") from error
