"""Many chains at once, as columns: the one engine behind everything that has to do with deltas.

`Chains` is a value: admitting deltas or compacting gives a new one that shares what did not change.
So a compaction works on a snapshot while deltas go on arriving, and a failed one has changed
nothing. A `DeltaChain`, a shard in a Spark state and a bucket of a stored table are all this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import frozen, kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.time import UNSET
from tidegate.deltas.covered import Covered
from tidegate.deltas.kernels import as_they_lie
from tidegate.deltas.pool import Pool, spans
from tidegate.deltas.rows import Block, reason_text
from tidegate.deltas.taking import take_rows
from tidegate.errors import ConfigError, StateError

__all__ = ["Chains", "Composed", "seal_keys"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

FIXED_BYTES = 8 + 8 + 1 + 4
"""Of a checkpoint besides vector and ids: time, count, tombstone, and the offset of its id."""


@kernel
def _running_max(vec: Int64s, time_ns: Int64s) -> Int64s:
    out = time_ns.copy()
    for k in range(1, len(out)):
        if vec[k] == vec[k - 1] and out[k] < out[k - 1]:
            out[k] = out[k - 1]
    return out


@kernel
def _raise(top: Int64s, vec: Int64s, time_ns: Int64s) -> None:
    for k in range(len(vec)):
        top[vec[k]] = max(top[vec[k]], time_ns[k])


@dataclass(frozen=True)
class Composed:
    """Vectors, one row each: `exists` is false where there is none (never made, or deleted)."""

    vectors: Floats
    exists: Bools
    deleted: Bools


@dataclass(frozen=True, eq=False)
class Chains:
    """Checkpoints and pending deltas of many vectors.

    Pending are the rows `place` of the pool, by vector (`vec`), then in chain order.

    The *seal* of a chain is the place of its newest folded or merged delta: nothing may be put in
    before it any more.
    """

    dims: int
    ids: pa.Array
    lane: Int32s
    vectors: Floats
    has: Bools
    dead: Bools
    count: Int64s
    """Deltas folded into the checkpoint, ever."""
    at: pa.Array
    """The id of the last folded delta."""
    folded_ns: Int64s
    """The time of the checkpoint."""
    sealed_ns: Int64s
    sealed_key: pa.Array
    pool: Pool
    place: Int64s
    vec: Int64s
    covered: Covered

    @classmethod
    def of(cls, dims: int, ids: pa.Array, lane: Int32s | None = None) -> Chains:
        """Empty chains for these vector ids."""
        if not isinstance(dims, int) or isinstance(dims, bool) or dims < 1:
            raise ConfigError("dims", dims, "must be an int of at least 1")
        n = len(ids)
        return cls(
            dims,
            ids,
            np.zeros(n, np.int32) if lane is None else lane,
            np.zeros((n, dims)),
            np.zeros(n, np.bool_),
            np.zeros(n, np.bool_),
            np.zeros(n, np.int64),
            pa.nulls(n, pa.string()),
            np.full(n, UNSET, np.int64),
            np.full(n, UNSET, np.int64),
            pa.nulls(n, pa.string()),
            Pool.none(),
            np.empty(0, np.int64),
            np.empty(0, np.int64),
            Covered.none(),
        )

    def __len__(self) -> int:
        return len(self.ids)

    # -- what can be read off ---------------------------------------------------------------------

    @cached_property
    def _alone(self) -> bool:
        """Whether the pool is these rows, in this order."""
        n = len(self.place)
        return n == len(self.pool) and bool((self.place == np.arange(n)).all())

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The pending rows themselves."""
        return self.pool.rows if self._alone else take_rows(self.pool.rows, self.place)

    @cached_property
    def block(self) -> Block:
        return self.pool.block if self._alone else self.pool.block.take(self.place)

    @cached_property
    def time_ns(self) -> Int64s:
        """Of each pending row."""
        times: Int64s = self.pool.block.time_ns
        return times if self._alone else times[self.place]

    @cached_property
    def start(self) -> Int64s:
        """Of each vector its first pending row; one more entry at the end."""
        edges: Int64s = np.searchsorted(self.vec, np.arange(len(self) + 1)).astype(np.int64)
        return edges

    @cached_property
    def pending(self) -> Int64s:
        """Pending rows per vector."""
        lengths: Int64s = np.diff(self.start)
        return lengths

    @cached_property
    def sizes(self) -> Int64s:
        """How many deltas each pending row stands for."""
        return self.pool.sizes[self.place]

    @cached_property
    def total(self) -> Int64s:
        """Deltas per vector that were admitted and not taken back: folded and pending."""
        if not self.pool.merged:
            return self.count + self.pending
        each = np.concatenate([[0], np.cumsum(self.sizes)])
        total: Int64s = self.count + each[self.start[1:]] - each[self.start[:-1]]
        return total

    @cached_property
    def effective_ns(self) -> Int64s:
        """When a pending row takes effect: its time, or that of the one it had to wait for."""
        return _running_max(frozen(self.vec), frozen(self.time_ns))

    @cached_property
    def newest_ns(self) -> Int64s:
        """The newest time per vector, folded or pending."""
        newest = np.maximum(self.folded_ns, self.sealed_ns)
        _raise(newest, frozen(self.vec), frozen(self.time_ns))
        return newest

    @cached_property
    def _checked(self) -> tuple[NDArray[np.int8], Int64s]:
        reason, where = self.pool.check(self.dims)
        return (reason, where) if self._alone else (reason[self.place], where[self.place])

    @cached_property
    def sound(self) -> bool:
        """Whether every pending row can be applied."""
        return self.pool.sound(self.dims) or not self._checked[0].any()

    @cached_property
    def errors(self) -> dict[int, str]:
        """Vectors with a pending row that cannot be applied, and why. Admission lets none in, so
        these come from outside."""
        if self.sound:
            return {}
        reason, where = self._checked
        bad = np.flatnonzero(reason)[::-1]  # the first of a vector wins
        return {
            int(self.vec[r]): reason_text(int(reason[r]), int(where[r]), self.dims) for r in bad
        }

    @cached_property
    def nbytes(self) -> Int64s:
        """Measured bytes per vector: checkpoint, covered ids, pending rows; uncompressed."""
        return self.measured(np.arange(len(self)))

    def measured(self, which: Int64s) -> Int64s:
        """The same for these vectors."""
        rows, owner = spans(self.start[which], self.pending[which])
        each = self.pool.nbytes[self.place[rows]]
        out: Int64s = np.bincount(owner, each, len(which)).astype(np.int64)
        at = pc.fill_null(pc.binary_length(self.at.take(pa.array(which))), 0).to_numpy()
        out += np.where(self.has[which], 8 * self.dims + FIXED_BYTES + at, 0)
        if len(self.covered.vec):
            covered = np.bincount(self.covered.vec, self.covered.nbytes, len(self))
            out += covered.astype(np.int64)[which]
        return out

    def bases(self, which: Int64s) -> Floats:
        """A copy of what these chains start from: the checkpoint, or zeros."""
        if not self.has.any():
            return np.zeros((len(which), self.dims))
        return self.vectors[which]

    def compose(self, which: Int64s | None = None, at_ns: int | None = None) -> Composed:
        """The vectors of these chains (all), now or as they were at a time.

        A time from before the checkpoint, or inside a folded delta, is a ConfigError: that history
        is gone, and no other vector is given in its place.
        """
        if which is not None and np.array_equal(which, np.arange(len(self))):
            which = None
        if which is None:
            rows, slot = None, self.vec
            vectors, dead, has = self.bases(np.arange(len(self))), self.dead.copy(), self.has
            pending = self.pending
        else:
            pending = self.pending[which]
            rows, slot = spans(self.start[which], pending)
            vectors, dead, has = self.bases(which), self.dead[which], self.has[which]
        if not self.sound:
            for vector in np.unique(self.vec if rows is None else self.vec[rows]):
                if int(vector) in self.errors:
                    name = self.ids[int(vector)].as_py()
                    raise StateError(f"chain {name}: {self.errors[int(vector)]}")
        if at_ns is not None:
            if rows is None:
                rows = np.arange(len(self.vec))
            rows, slot, pending = self._until(at_ns, rows, slot, len(vectors), which)
        place = self.place if rows is None else self.place[rows]
        self.pool.block.apply(vectors, dead, place, slot)
        there = has | (pending > 0)
        return Composed(vectors, there & ~dead, there & dead)

    def _until(
        self, at_ns: int, rows: Int64s, slot: Int64s, vectors: int, which: Int64s | None
    ) -> tuple[Int64s, Int64s, Int64s]:
        folded = self.folded_ns if which is None else self.folded_ns[which]
        if len(folded) and int(folded.max()) > at_ns:
            raise ConfigError(
                "at_ns", at_ns, f"must be at or after the checkpoint at {int(folded.max())} ns"
            )
        keep = self.effective_ns[rows] <= at_ns
        first = self.pool.rows.column("first_ns")
        left = pc.fill_null(first, at_ns + 1 if at_ns < 2**63 - 1 else at_ns).to_numpy()
        if bool((left[self.place[rows]][~keep] <= at_ns).any()):
            raise ConfigError("at_ns", at_ns, "lies inside deltas that were merged into one")
        return rows[keep], slot[keep], np.bincount(slot[keep], minlength=vectors)

    # -- other sets of chains ---------------------------------------------------------------------

    def plus(self, more: Chains) -> Chains:
        """These chains, and behind them others."""
        n = len(self)
        pool, place = self._pooled(more)
        return Chains(
            self.dims,
            pa.concat_arrays([self.ids, more.ids]),
            np.concatenate([self.lane, more.lane]),
            np.concatenate([self.vectors, more.vectors]),
            np.concatenate([self.has, more.has]),
            np.concatenate([self.dead, more.dead]),
            np.concatenate([self.count, more.count]),
            pa.concat_arrays([self.at, more.at]),
            np.concatenate([self.folded_ns, more.folded_ns]),
            np.concatenate([self.sealed_ns, more.sealed_ns]),
            pa.concat_arrays([self.sealed_key, more.sealed_key]),
            pool,
            place,
            np.concatenate([self.vec, more.vec + n]),
            self.covered.plus(replace(more.covered, vec=more.covered.vec + n)),
        )

    def _pooled(self, more: Chains) -> tuple[Pool, Int64s]:
        """One pool for both, and the places of their rows in it."""
        if not len(more.place):
            return self.pool, self.place
        if not len(self.place):
            return more.pool, more.place
        if self.pool is more.pool:
            return self.pool, np.concatenate([self.place, more.place])
        both = Pool(pa.concat_batches([self.rows, more.rows]))
        return both, np.arange(len(both))

    def take(self, which: Int64s) -> Chains:
        """The chains of these vectors, in this order."""
        rows, vec = spans(self.start[which], self.pending[which])
        chosen = pa.array(which)
        new = Chains(
            self.dims,
            self.ids.take(chosen),
            self.lane[which],
            self.vectors[which],
            self.has[which],
            self.dead[which],
            self.count[which],
            self.at.take(chosen),
            self.folded_ns[which],
            self.sealed_ns[which],
            self.sealed_key.take(chosen),
            self.pool,
            self.place[rows],
            vec,
            self.covered.of(which, len(self)),
        )
        if "time_ns" in self.__dict__:
            new.__dict__["time_ns"] = self.time_ns[rows]
        return new

    def as_they_lie(self) -> tuple[pa.RecordBatch, Int64s]:
        """The pending rows, and of each its vector: those of one in chain order, otherwise as they
        lie in the pool, where they are copied from several times as fast."""
        if self._alone:
            return self.pool.rows, self.vec
        place, vec = as_they_lie(frozen(self.place), frozen(self.vec), len(self.pool))
        return take_rows(self.pool.rows, place), vec

    def settled(self) -> Chains:
        """The same, with a pool of their own: nothing but their own rows is kept alive."""
        covered = self.covered.settled()
        if self._alone:
            return self if covered is self.covered else replace(self, covered=covered)
        return replace(self.with_rows(self.rows, self.vec), covered=covered)

    def with_rows(self, rows: pa.RecordBatch, vec: Int64s) -> Chains:
        """The same chains with other pending rows, which must stand in chain order."""
        return replace(self, pool=Pool(rows), place=np.arange(len(vec)), vec=vec)


def seal_keys(rows: pa.RecordBatch, which: Int64s) -> pa.Array:
    """What orders deltas of one time, as one text: origin, then id. Of these rows."""
    chosen = pa.array(which)
    origin = pc.fill_null(rows.column("origin").take(chosen), "")
    return pc.binary_join_element_wise(origin, rows.column("delta_id").take(chosen), "\x00")
