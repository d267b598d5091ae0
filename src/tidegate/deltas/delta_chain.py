"""One vector's chain, as an object: a thin layer over the columnar engine.

A chain may be appended to and composed from any thread while a compaction runs on it: the
compaction works on a snapshot, and its result is swapped in under a lock, with the deltas that came
meanwhile behind it. If one of those belongs before the folded place, the swap does not happen.

The methods are those of every in-process class: `push` one delta, `process` many, `advance` the
watermark, `tick` the clock, `flush` at the end, `snapshot` and `restore`.

Clock policy: order, waiting for parents and `compose(at_ns)` go by event time. The wall clock only
comes in as an argument and decides nothing but `age_ns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core import snapshot
from tidegate.core.checks import duration, int_in
from tidegate.core.ipc import read_batch, write_batch
from tidegate.core.time import MAX_NS, UNSET, Duration
from tidegate.deltas.admission import DeltaAdmission, ParentLimits
from tidegate.deltas.columns import (
    Chains,
    CompactionPlan,
    DeltaRows,
    FoldedIds,
    chains_from_tables,
    checkpoint_table,
    compact,
    in_chain_order,
)
from tidegate.deltas.kernels import DeltaVerdict, KernelOp, merge_runs
from tidegate.deltas.operations import (
    DELTAS,
    Create,
    Dense,
    Operation,
    VectorDelta,
    deltas_of,
    rows_from,
)
from tidegate.errors import ConfigError, ContractError, StateError

__all__ = ["Checkpoint", "DeltaChain", "Refusal", "affine", "merge"]

STATE_VERSION = 1
"""The version of a chain's snapshot. Raised when its header or its tables change."""


@dataclass(frozen=True)
class Checkpoint:
    """A vector that stands for the first deltas of its chain."""

    vector: NDArray[np.float64]
    """The folded vector; zeros under a tombstone."""
    at_delta: str | None = None
    """The id of the last folded delta."""
    timestamp_ns: int = UNSET
    """The time of the last folded delta, never the time of folding."""
    delta_count: int = 0
    """All deltas that were ever folded."""
    tombstone: bool = False
    """Whether the vector is deleted."""
    covered: tuple[str, ...] = ()
    """The ids of folded deltas that are still remembered."""

    @property
    def dims(self) -> int:
        """The length of the vector."""
        return len(self.vector)


@dataclass(frozen=True)
class Refusal:
    """A delta that was not admitted, and why."""

    delta: VectorDelta
    """The delta as it came."""
    reason: str
    """Why, in words (`kernels.DeltaVerdict` lists them)."""


@dataclass
class Attempt:
    """A compaction under way: the chain as it was when it began."""

    chains: Chains | None
    version: int
    """How many compactions had been swapped in."""
    log_length: int
    """How many appends had been logged."""
    reads: int
    swapped: bool = False


class DeltaChain:
    """The deltas of one vector, in order, behind an optional checkpoint.

    Args:
        vector_id: the id of the vector; deltas of others are refused.
        dims: the length of the vector (at least 1). None: learnt from the first Create or Dense;
            other deltas are refused before that.
        checkpoint: what the chain starts from; its length is then `dims`.
        parent_wait: how long (event time) a delta waits for a parent that has not come.
        max_waiting: how many may wait at once; more are refused.

    Raises:
        ConfigError: a setting is out of range, or `dims` is not that of the checkpoint.

    Example:
        >>> from tidegate.deltas import Create, Scale, Sparse
        >>> chain = DeltaChain("vec-1")
        >>> chain.push(VectorDelta("a", "vec-1", Create([1.0, 2.0]), time_ns=1))
        []
        >>> chain.push(VectorDelta("c", "vec-1", Scale(3.0), time_ns=3))
        []
        >>> chain.push(VectorDelta("b", "vec-1", Sparse([0], [5.0]), time_ns=2))
        []
        >>> chain.compose().tolist(), chain.compose(at_ns=2).tolist()
        ([15.0, 6.0], [5.0, 2.0])
        >>> chain.push(VectorDelta("d", "vec-1", Sparse([9], [5.0]), time_ns=4))[0].reason
        'index 9 out of range for 2 dims'
    """

    def __init__(
        self,
        vector_id: str,
        dims: int | None = None,
        *,
        checkpoint: Checkpoint | None = None,
        parent_wait: Duration = "10 s",
        max_waiting: int = 1000,
    ) -> None:
        self.vector_id = vector_id
        self.limits = ParentLimits(
            duration("parent_wait", parent_wait), int_in("max_waiting", max_waiting, 0)
        )
        self.duplicates = 0
        """Deltas refused because their id had been seen."""
        self.reads = 0
        """How often the vector was composed since the last compaction."""
        self._lock = Lock()
        self._chains: Chains | None = None
        self._waiting: pa.RecordBatch | None = None
        self._log: list[pa.RecordBatch] = []
        """What was admitted while compactions run."""
        self._attempts = 0
        self._version = 0
        self._arrived_ns: int | None = None
        if checkpoint is not None:
            if dims is not None and dims != checkpoint.dims:
                raise ConfigError("dims", dims, f"the checkpoint has {checkpoint.dims}")
            self._chains = _chain_of_checkpoint(vector_id, checkpoint)
        elif dims is not None:
            self._chains = Chains.empty(dims, pa.array([vector_id]))

    @classmethod
    def stored(
        cls,
        vector_id: str,
        deltas: Iterable[VectorDelta],
        dims: int,
        checkpoint: Checkpoint | None = None,
    ) -> DeltaChain:
        """A chain read back from elsewhere: put in order, but neither checked nor deduplicated.

        A delta in it that cannot be applied makes `compose` a StateError, and a compaction report
        it and leave the chain as it is.

        Args:
            vector_id: the id of the vector.
            deltas: the pending deltas, in any order.
            dims: the length of the vector.
            checkpoint: what they are applied to; None: zeros.
        """
        chain = cls(vector_id, dims, checkpoint=checkpoint)
        source = DeltaRows(rows_from(deltas))
        time_ns = pc.fill_null(source.rows.column("time_ns"), MAX_NS).to_numpy()
        index = np.arange(source.size)
        vec, _, index = in_chain_order(np.zeros(source.size, np.int64), time_ns, source.rows, index)
        assert chain._chains is not None
        chain._chains = chain._chains.with_pending(source, index, vec).owned()
        return chain

    # -- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Pending deltas."""
        chains = self._chains
        return 0 if chains is None else len(chains.vec)

    @property
    def chains(self) -> Chains | None:
        """The columns behind it (None until the dimension is known)."""
        return self._chains

    @property
    def dims(self) -> int | None:
        """The length of the vector, if it is known."""
        return None if self._chains is None else self._chains.dims

    @property
    def pending(self) -> list[VectorDelta]:
        """The deltas behind the checkpoint, in order."""
        chains = self._chains
        return [] if chains is None else deltas_of(chains.rows)

    @property
    def waiting(self) -> list[VectorDelta]:
        """Deltas whose parent has not come yet."""
        return [] if self._waiting is None else deltas_of(self._waiting)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint, if anything was folded."""
        chains = self._chains
        if chains is None or not chains.has_checkpoint[0]:
            return None
        return Checkpoint(
            chains.vectors[0].copy(),
            chains.last_folded[0].as_py(),
            int(chains.folded_ns[0]),
            int(chains.folded_count[0]),
            bool(chains.deleted[0]),
            tuple(chains.folded_ids.ids.to_pylist()),
        )

    @property
    def nbytes(self) -> int:
        """Measured bytes of checkpoint and pending deltas, uncompressed."""
        chains = self._chains
        return 0 if chains is None else int(chains.nbytes[0])

    @property
    def deleted(self) -> bool:
        """Whether the vector is under a tombstone now."""
        chains = self._chains
        return chains is not None and bool(chains.compose().deleted[0])

    def compose(self, at_ns: int | None = None) -> NDArray[np.float64] | None:
        """The vector now, or as of an event time; None if there is none, or it is deleted.

        Args:
            at_ns: nanoseconds since the epoch; None: with all pending deltas.

        Raises:
            ConfigError: that time lies before the checkpoint or inside merged deltas.
            StateError: a stored delta cannot be applied.
        """
        chains = self._chains
        if chains is None:
            return None
        self.reads += 1
        composed = chains.compose(at_ns=at_ns)
        return composed.vectors[0] if composed.exists[0] else None

    def history(self) -> pa.RecordBatch:
        """What the chain consists of: its checkpoint and pending deltas, one row each, with the
        times they span, how many deltas they stand for, and bytes (`Chains.history`).

        Example:
            >>> from tidegate.deltas import Offset
            >>> chain = DeltaChain("v", dims=1)
            >>> chain.push(VectorDelta("a", "v", Offset(1.0), 5))
            []
            >>> chain.history().select(["kind", "delta_id", "time_ns", "deltas"]).to_pylist()
            [{'kind': 'delta', 'delta_id': 'a', 'time_ns': 5, 'deltas': 1}]
        """
        chains = self._chains
        if chains is None:
            chains = Chains.empty(1, pa.array([], pa.string()))
        return chains.history()

    def age_ns(self, wall_ns: int) -> int:
        """Wall time since the oldest pending delta arrived, or since the last compaction.

        Args:
            wall_ns: the time now, by the clock of the appends.
        """
        return 0 if self._arrived_ns is None or not len(self) else wall_ns - self._arrived_ns

    # -- writing ----------------------------------------------------------------------------------

    def push(self, delta: VectorDelta, wall_ns: int | None = None) -> list[Refusal]:
        """Admit one delta. Returns what was refused: it, or others whose wait it ended.

        Args:
            delta: the delta.
            wall_ns: the time by the clock, for `age_ns`; None: age does not count.
        """
        return self.process([delta], wall_ns)

    def process(self, deltas: Iterable[VectorDelta], wall_ns: int | None = None) -> list[Refusal]:
        """Admit deltas in arrival order. Returns what was refused, each with its reason.

        Args:
            deltas: the deltas.
            wall_ns: as for `push`.
        """
        refused: list[Refusal] = []
        offered: list[VectorDelta] = []
        with self._lock:
            for delta in deltas:
                if (why := self._cannot_offer(delta)) is not None:
                    refused.append(Refusal(delta, why))
                else:
                    offered.append(delta)
            if not offered:
                return refused
            return refused + self._admit(rows_from(offered), wall_ns)

    def advance(self, watermark_ns: int) -> list[Refusal]:
        """Refuse deltas that have waited for their parent beyond the limit.

        Args:
            watermark_ns: event time now.
        """
        with self._lock:
            if self._waiting is None or self._chains is None:
                return []
            rows, self._waiting = self._waiting, None
            admission = self._offer(rows)
            self._chains, _ = admission.admit(self._chains)
            admission.expire(np.array([watermark_ns], np.int64))
            return self._conclude(admission)

    def tick(self, wall_ns: int) -> list[Refusal]:
        """Nothing: a chain does nothing by the clock. (`BackgroundCompactor` does.)

        Args:
            wall_ns: the time by the clock.
        """
        return []

    def flush(self) -> list[Refusal]:
        """The end: no parent will come any more, so what waits is refused."""
        return self.advance(MAX_NS)

    def _cannot_offer(self, delta: VectorDelta) -> str | None:
        """Why a delta cannot even be offered; learns the dimension from the first that tells."""
        if delta.vector_id != self.vector_id:
            return f"belongs to vector {delta.vector_id}"
        if self._chains is not None:
            return None
        if not isinstance(delta.operation, (Create, Dense)) or not len(delta.operation.vector):
            return "the dimension is unknown before the first create or dense delta"
        self._chains = Chains.empty(len(delta.operation.vector), pa.array([self.vector_id]))
        return None

    def _offer(self, rows: pa.RecordBatch) -> DeltaAdmission:
        assert self._chains is not None
        vec = np.zeros(rows.num_rows, np.int64)
        return DeltaAdmission(self._chains, DeltaRows(rows), vec, self.limits)

    def _admit(self, rows: pa.RecordBatch, wall_ns: int | None) -> list[Refusal]:
        if self._waiting is not None:
            rows = pa.concat_batches([self._waiting, rows])
            self._waiting = None
        admission = self._offer(rows)
        assert self._chains is not None
        empty = not len(self)
        self._chains, accepted = admission.admit(self._chains)
        if len(accepted) and self._attempts:
            self._log.append(rows.take(pa.array(accepted)))
        if len(accepted) and empty and wall_ns is not None:
            self._arrived_ns = wall_ns
        return self._conclude(admission)

    def _conclude(self, admission: DeltaAdmission) -> list[Refusal]:
        """Keep what waits, and return what was refused."""
        if (admission.verdict == DeltaVerdict.ACCEPTED).all():
            return []
        waits = admission.waiting()
        if len(waits):
            self._waiting = admission.rows.take(pa.array(waits))
        self.duplicates += int((admission.verdict == DeltaVerdict.DUPLICATE).sum())
        out = admission.refused()
        deltas = deltas_of(admission.rows.take(pa.array(out)))
        return [Refusal(d, why) for d, why in zip(deltas, admission.reasons(out), strict=True)]

    # -- restart ----------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The chain as bytes (Arrow IPC with zstd in a checked envelope); see `restore`."""
        with self._lock:
            chains, waiting = self._chains, self._waiting
            tables = [] if chains is None else [checkpoint_table(chains), chains.rows]
            tables += [] if waiting is None else [waiting]
            header = {
                "kind": "chain",
                "version": STATE_VERSION,
                "known": chains is not None,
                "waits": waiting is not None,
                "vector_id": self.vector_id,
                "wait_ns": self.limits.wait_ns,
                "max_waiting": self.limits.max_waiting,
                "duplicates": self.duplicates,
                "reads": self.reads,
                "arrived_ns": self._arrived_ns,
            }
            return snapshot.pack(header, [write_batch(table) for table in tables])

    @classmethod
    def restore(cls, blob: bytes) -> DeltaChain:
        """The reverse of `snapshot`.

        Args:
            blob: what `snapshot` returned.

        Raises:
            StateError: these bytes are no snapshot of a chain, damaged, or of another version.
        """
        header, buffers = snapshot.unpack(blob, "chain snapshot")
        if header.get("kind") != "chain":
            raise StateError("this is not the snapshot of a chain")
        if header.get("version") != STATE_VERSION:
            raise StateError(
                f"chain snapshot has version {header.get('version')}, this version of tidegate "
                f"reads {STATE_VERSION}"
            )
        tables = [read_batch(buffer, "chain snapshot") for buffer in buffers]
        chain = cls(
            header["vector_id"], parent_wait=header["wait_ns"], max_waiting=header["max_waiting"]
        )
        if header["known"]:
            rows = tables[1].cast(DELTAS)
            index, vec = np.arange(rows.num_rows), np.zeros(rows.num_rows, np.int64)
            chain._chains = chains_from_tables(tables[0], rows, index, vec)
        chain._waiting = tables[-1] if header["waits"] else None
        chain.duplicates, chain.reads = header["duplicates"], header["reads"]
        chain._arrived_ns = header["arrived_ns"]
        return chain

    # -- compaction (called by Compactor) ---------------------------------------------------------

    @contextmanager
    def compacting(self) -> Iterator[Attempt]:
        """A snapshot to compact; inside the block, `swap` brings the result in."""
        with self._lock:
            attempt = Attempt(self._chains, self._version, len(self._log), self.reads)
            self._attempts += 1
        try:
            yield attempt
        finally:
            with self._lock:
                self._attempts -= 1
                if not self._attempts:
                    self._log = []

    def swap(self, attempt: Attempt, new: Chains, wall_ns: int | None = None) -> bool:
        """Bring the result of a compaction in, with what was appended meanwhile behind it.

        Args:
            attempt: what `compacting` gave.
            new: its chains, compacted.
            wall_ns: the time by the clock, from which the age counts again; None: unchanged.

        Returns:
            False if another compaction was first, or a delta came in before the folded place: then
            nothing has changed.
        """
        with self._lock:
            if attempt.swapped:
                raise ContractError("a compaction is swapped in at most once")
            attempt.swapped = True
            if self._version != attempt.version:
                return False
            since = self._log[attempt.log_length :]
            if since:
                rows = pa.concat_batches(since)
                # Admitted once already, so no one waits: offered behind the new checkpoint.
                vec = np.zeros(rows.num_rows, np.int64)
                new, accepted = DeltaAdmission(new, DeltaRows(rows), vec, self.limits).admit(new)
                if len(accepted) < rows.num_rows:
                    return False
            self._chains = new.owned()
            self._version += 1
            self.reads = max(0, self.reads - attempt.reads)
            if wall_ns is not None:
                self._arrived_ns = wall_ns
            return True


def _chain_of_checkpoint(vector_id: str, checkpoint: Checkpoint) -> Chains:
    chains = Chains.empty(checkpoint.dims, pa.array([vector_id]))
    vector = np.asarray(checkpoint.vector, np.float64).reshape(1, -1)
    seen = checkpoint.covered or ((checkpoint.at_delta,) if checkpoint.at_delta else ())
    return replace(
        chains,
        vectors=np.where(checkpoint.tombstone, 0.0, vector),
        has_checkpoint=np.array([True]),
        deleted=np.array([checkpoint.tombstone]),
        folded_count=np.array([checkpoint.delta_count], np.int64),
        last_folded=pa.array([checkpoint.at_delta], pa.string()),
        folded_ns=np.array([checkpoint.timestamp_ns], np.int64),
        sealed_ns=np.array([checkpoint.timestamp_ns], np.int64),
        folded_ids=FoldedIds(
            pa.array(seen, pa.string()),
            None,
            np.zeros(len(seen), np.int64),
            np.full(len(seen), checkpoint.timestamp_ns, np.int64),
        ),
    )


# -- folding without a base -----------------------------------------------------------------------


def merge(deltas: Sequence[VectorDelta], dims: int) -> VectorDelta:
    """One delta that does to any vector what these do one after the other, in chain order.

    Args:
        deltas: at least one delta, all of one vector.
        dims: the length of the vector.

    Raises:
        ConfigError: they are of several vectors, one cannot be applied, or their factors multiply
            to a number that no float holds exactly enough.

    Example:
        >>> from tidegate.deltas import Offset, Scale, Sparse
        >>> run = [Scale(2.0), Sparse([0], [5.0]), Offset(1.0)]
        >>> one = merge([VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(run)], dims=2)
        >>> [part.tolist() for part in affine(one.operation, 2)], one.ids
        ([[0.0, 2.0], [6.0, 1.0]], ('d0', 'd1', 'd2'))
    """
    if len({delta.vector_id for delta in deltas}) != 1:
        raise ConfigError("deltas", len(deltas), "must be deltas of one vector, at least one")
    chains = DeltaChain.stored(deltas[0].vector_id, deltas, dims).chains
    assert chains is not None
    one_run = CompactionPlan(np.zeros(1, np.int64), np.zeros(len(deltas), np.int64))
    done = compact(chains, one_run)
    if done.errors:
        raise ConfigError("deltas", len(deltas), done.errors[0])
    merged = deltas_of(done.chains.rows)
    if len(merged) != 1:
        raise ConfigError("deltas", len(deltas), "their factors leave the range of floats")
    return merged[0]


def affine(operation: Operation, dims: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The pair (a, b) per dimension: what the operation does is x -> a*x + b.

    Args:
        operation: any operation but Delete, which has no such form. Create and Dense have a = 0.
        dims: the length of the vector.

    Raises:
        ConfigError: it is a Delete, or not valid for `dims`.

    Example:
        >>> from tidegate.deltas import Scale
        >>> [part.tolist() for part in affine(Scale(2.0), 2)]
        [[2.0, 2.0], [0.0, 0.0]]
    """
    if operation.op == "delete":
        raise ConfigError("operation", "delete", "a tombstone is not an affine map")
    rows = DeltaRows(rows_from([VectorDelta("d", "v", operation)]))
    if not rows.usable(dims):
        raise ConfigError("operation", operation, f"must be valid for {dims} dims")
    one: Any = np.zeros(1, np.int64)
    stop: Any = np.ones(1, np.int64)
    for array in (one, stop):
        array.setflags(write=False)
    run, _ = merge_runs(rows.arrays, one, one, stop, dims, dims)
    a, b = np.full(dims, run.factor[0]), np.full(dims, run.amount[0])
    if len(run.values):
        named = run.indices if len(run.indices) == len(run.values) else np.arange(dims)
        b[named] = run.values
        adds = run.op[0] in (KernelOp.ADD, KernelOp.ADD_DENSE)
        a[named] = run.factors if len(run.factors) else float(adds)
    return a, b
