"""One vector's chain, as an object: a thin layer over the columnar engine.

A chain may be appended to and composed from any thread while a compaction runs on it: the
compaction works on a snapshot, and its result is swapped in under a lock, with the deltas that came
meanwhile behind it. If one of those belongs before the folded place, the swap does not happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, UNSET, Duration, parse_duration
from tidegate.deltas import admission
from tidegate.deltas.codec import decode_chain, encode_chain
from tidegate.deltas.columns import Chains
from tidegate.deltas.covered import Covered
from tidegate.deltas.objects import deltas_of, rows_from
from tidegate.deltas.offer import Limits, Offer
from tidegate.deltas.operations import Create, Dense, VectorDelta
from tidegate.deltas.ordering import arrange
from tidegate.errors import ConfigError, ContractError

__all__ = ["Checkpoint", "DeltaChain", "Refusal"]


@dataclass(frozen=True)
class Checkpoint:
    """A vector that stands for the first deltas of its chain.

    `timestamp_ns` is that of the last folded delta, never the time of folding; `delta_count` is
    all that were ever folded; `covered` the ids among them that are still remembered.
    """

    vector: NDArray[np.float64]
    at_delta: str | None = None
    timestamp_ns: int = UNSET
    delta_count: int = 0
    tombstone: bool = False
    covered: tuple[str, ...] = ()

    @property
    def dims(self) -> int:
        return len(self.vector)


@dataclass(frozen=True)
class Refusal:
    """A delta that was not admitted, and why."""

    delta: VectorDelta
    reason: str


class DeltaChain:
    """The deltas of one vector, in order, behind an optional checkpoint.

    >>> from tidegate.deltas import Create, Scale, Sparse
    >>> chain = DeltaChain("vec-1")
    >>> chain.append(VectorDelta("a", "vec-1", Create([1.0, 2.0]), time_ns=1))
    []
    >>> chain.append(VectorDelta("c", "vec-1", Scale(3.0), time_ns=3))
    []
    >>> chain.append(VectorDelta("b", "vec-1", Sparse([0], [5.0]), time_ns=2))
    []
    >>> chain.compose().tolist(), chain.compose(at_ns=2).tolist()
    ([15.0, 6.0], [5.0, 2.0])
    >>> chain.append(VectorDelta("d", "vec-1", Sparse([9], [5.0]), time_ns=4))[0].reason
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
        self.limits = Limits(parse_duration(parent_wait, "parent_wait"), max_waiting)
        self.duplicates = 0
        self.reads = 0
        self._lock = Lock()
        self._chains: Chains | None = None
        self._waiting: pa.RecordBatch | None = None
        self._log: list[pa.RecordBatch] = []
        self._attempts = 0
        self._version = 0
        self._arrived_ns: int | None = None
        if checkpoint is not None:
            if dims is not None and dims != checkpoint.dims:
                raise ConfigError("dims", dims, f"the checkpoint has {checkpoint.dims}")
            self._chains = _from_checkpoint(vector_id, checkpoint)
        elif dims is not None:
            self._chains = Chains.of(dims, pa.array([vector_id]))

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
        """
        chain = cls(vector_id, dims, checkpoint=checkpoint)
        rows = rows_from(deltas)
        vec = np.zeros(rows.num_rows, np.int64)
        assert chain._chains is not None
        time_ns = pc.fill_null(rows.column("time_ns"), MAX_NS).to_numpy()
        _, _, order = arrange(vec, time_ns, rows, np.arange(rows.num_rows))
        chain._chains = chain._chains.with_rows(rows.take(pa.array(order)), vec)
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
        chains = self._chains
        if chains is None or not chains.has[0]:
            return None
        return Checkpoint(
            chains.vectors[0].copy(),
            chains.at[0].as_py(),
            int(chains.folded_ns[0]),
            int(chains.count[0]),
            bool(chains.dead[0]),
            tuple(chains.covered.ids.to_pylist()),
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
        """The vector now, or as of a time; None if there is none, or it is deleted."""
        chains = self._chains
        if chains is None:
            return None
        self.reads += 1
        composed = chains.compose(at_ns=at_ns)
        return composed.vectors[0] if composed.exists[0] else None

    def age_ns(self, wall_ns: int) -> int:
        """Wall time since the oldest pending delta arrived, or since the last compaction."""
        return 0 if self._arrived_ns is None or not len(self) else wall_ns - self._arrived_ns

    def reads_array(self) -> Int64s:
        return np.array([self.reads], np.int64)

    # -- writing ----------------------------------------------------------------------------------

    def append(self, delta: VectorDelta, wall_ns: int | None = None) -> list[Refusal]:
        """Admit one delta. Gives what was refused: it, or others whose wait it ended."""
        return self.extend([delta], wall_ns)

    def extend(self, deltas: Iterable[VectorDelta], wall_ns: int | None = None) -> list[Refusal]:
        """Admit deltas in arrival order. Gives what was refused, each with its reason."""
        refused: list[Refusal] = []
        offered: list[VectorDelta] = []
        with self._lock:
            for delta in deltas:
                if (why := self._foreign(delta)) is not None:
                    refused.append(Refusal(delta, why))
                else:
                    offered.append(delta)
            if not offered:
                return refused
            return refused + self._admit(rows_from(offered), wall_ns)

    def _foreign(self, delta: VectorDelta) -> str | None:
        """Why a delta cannot even be offered; learns the dimension from the first that tells."""
        if delta.vector_id != self.vector_id:
            return f"belongs to vector {delta.vector_id}"
        if self._chains is not None:
            return None
        if not isinstance(delta.operation, (Create, Dense)) or not len(delta.operation.vector):
            return "the dimension is unknown before the first create or dense delta"
        self._chains = Chains.of(len(delta.operation.vector), pa.array([self.vector_id]))
        return None

    def expire(self, now_ns: int) -> list[Refusal]:
        """Refuse deltas that have waited for their parent beyond the limit at event time `now`."""
        with self._lock:
            if self._waiting is None or self._chains is None:
                return []
            rows, self._waiting = self._waiting, None
            offer = self._offer(rows)
            self._chains, _ = offer.round(self._chains)
            offer.expire(np.array([now_ns], np.int64))
            return self._settle(offer)

    def _offer(self, rows: pa.RecordBatch) -> Offer:
        assert self._chains is not None
        return Offer(self._chains, rows, np.zeros(rows.num_rows, np.int64), self.limits)

    def _admit(self, rows: pa.RecordBatch, wall_ns: int | None) -> list[Refusal]:
        if self._waiting is not None:
            rows = pa.concat_batches([self._waiting, rows])
            self._waiting = None
        offer = self._offer(rows)
        assert self._chains is not None
        empty = not len(self)
        self._chains, taken = offer.round(self._chains)
        if len(taken) and self._attempts:
            self._log.append(rows.take(pa.array(taken)))
        if len(taken) and empty and wall_ns is not None:
            self._arrived_ns = wall_ns
        return self._settle(offer)

    def _settle(self, offer: Offer) -> list[Refusal]:
        if (offer.status == admission.ACCEPTED).all():
            return []
        waits = np.flatnonzero(offer.status == admission.WAITING)
        if len(waits):
            self._waiting = offer.rows.take(pa.array(waits))
        self.duplicates += int((offer.status == admission.DUPLICATE).sum())
        out = np.flatnonzero(~np.isin(offer.status, (admission.ACCEPTED, admission.WAITING)))
        out = out[np.argsort(offer.decided[out], kind="stable")]
        deltas = deltas_of(offer.rows.take(pa.array(out)))
        return [Refusal(d, why) for d, why in zip(deltas, offer.reasons(out), strict=True)]

    # -- restart ----------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The chain as bytes (Arrow IPC, zstd, checked); `restore` gives it back."""
        with self._lock:
            return encode_chain(
                self._chains,
                self._waiting,
                {
                    "vector_id": self.vector_id,
                    "wait_ns": self.limits.wait_ns,
                    "max_waiting": self.limits.max_waiting,
                    "duplicates": self.duplicates,
                    "reads": self.reads,
                    "arrived_ns": self._arrived_ns,
                },
            )

    @classmethod
    def restore(cls, blob: bytes) -> DeltaChain:
        """The reverse of `snapshot`, or a StateError."""
        chains, waiting, header = decode_chain(blob)
        chain = cls(
            header["vector_id"], parent_wait=header["wait_ns"], max_waiting=header["max_waiting"]
        )
        chain._chains, chain._waiting = chains, waiting
        chain.duplicates, chain.reads = header["duplicates"], header["reads"]
        chain._arrived_ns = header["arrived_ns"]
        return chain

    # -- compaction -------------------------------------------------------------------------------

    @contextmanager
    def compacting(self) -> Iterator[Attempt]:
        """A snapshot to compact, and the swap that brings the result in (used by Compactor)."""
        with self._lock:
            attempt = Attempt(self, self._chains, self._version, len(self._log), self.reads)
            self._attempts += 1
        try:
            yield attempt
        finally:
            with self._lock:
                self._attempts -= 1
                if not self._attempts:
                    self._log = []

    def _swap(self, attempt: Attempt, new: Chains, wall_ns: int | None) -> bool:
        with self._lock:
            if self._version != attempt.version:
                return False
            since = self._log[attempt.mark :]
            if since:
                rows = pa.concat_batches(since)
                # Admitted once already, so no one waits: offered behind the new checkpoint.
                offer = Offer(new, rows, np.zeros(rows.num_rows, np.int64), self.limits)
                new, taken = offer.round(new)
                if len(taken) < rows.num_rows:
                    return False
            self._chains = new.settled()
            self._version += 1
            self.reads = max(0, self.reads - attempt.reads_before)
            if wall_ns is not None:
                self._arrived_ns = wall_ns
            return True


@dataclass
class Attempt:
    """A compaction under way: the chains as they were, and what to check before swapping."""

    chain: DeltaChain
    chains: Chains | None
    version: int
    mark: int
    reads_before: int
    done: bool = False

    @property
    def reads(self) -> Int64s:
        return np.array([self.reads_before], np.int64)

    def swap(self, new: Chains, wall_ns: int | None = None) -> bool:
        """Bring the result in; False if the chain moved on in a way that does not go with it."""
        if self.done:
            raise ContractError("a compaction is swapped in at most once")
        self.done = True
        return self.chain._swap(self, new, wall_ns)


def _from_checkpoint(vector_id: str, checkpoint: Checkpoint) -> Chains:
    chains = Chains.of(checkpoint.dims, pa.array([vector_id]))
    vector = np.asarray(checkpoint.vector, np.float64).reshape(1, -1)
    seen = checkpoint.covered or ((checkpoint.at_delta,) if checkpoint.at_delta else ())
    return replace(
        chains,
        vectors=np.where(checkpoint.tombstone, 0.0, vector),
        has=np.array([True]),
        dead=np.array([checkpoint.tombstone]),
        count=np.array([checkpoint.delta_count], np.int64),
        at=pa.array([checkpoint.at_delta], pa.string()),
        folded_ns=np.array([checkpoint.timestamp_ns], np.int64),
        sealed_ns=np.array([checkpoint.timestamp_ns], np.int64),
        covered=Covered(
            pa.array(seen, pa.string()),
            None,
            np.zeros(len(seen), np.int64),
            np.full(len(seen), checkpoint.timestamp_ns, np.int64),
        ),
    )
