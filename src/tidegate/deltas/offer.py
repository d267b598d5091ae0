"""Deltas offered to chains: checked, deduplicated, put behind their parents, admitted.

An `Offer` holds candidate rows in arrival order (first those that already waited, then new ones)
and is worked off in rounds: each admits as many as the chains have room for, so that compactions
happen between the same two deltas however the input was cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import frozen, kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MIN_NS
from tidegate.deltas import admission
from tidegate.deltas.admission import admit
from tidegate.deltas.columns import Chains, seal_keys
from tidegate.deltas.covered import Covered
from tidegate.deltas.numbering import Ids
from tidegate.deltas.ordering import arrange
from tidegate.deltas.pool import Pool, spans
from tidegate.deltas.rows import reason_text
from tidegate.deltas.taking import take_rows

__all__ = ["Limits", "Offer"]

NO_LIMIT = 2**62
"""Room of a chain nobody bounds."""


@dataclass(frozen=True)
class Limits:
    """How long, and how many deltas per vector, may wait for a parent that has not come."""

    wait_ns: int
    max_waiting: int


@kernel
def _at_seal(rows: Int64s, vec: Int64s, time_ns: Int64s, sealed_ns: Int64s) -> Int64s:
    """Those of the rows that have exactly the time of the seal of their chain."""
    found = 0
    for r in rows:
        found += time_ns[r] == sealed_ns[vec[r]]
    out = np.empty(found, np.int64)
    found = 0
    for r in rows:
        if time_ns[r] == sealed_ns[vec[r]]:
            out[found] = r
            found += 1
    return out


class Offer:
    """Candidate rows (schema DELTAS) and what has become of each so far."""

    def __init__(
        self,
        chains: Chains,
        rows: pa.RecordBatch | Pool,
        vec: Int64s,
        limits: Limits,
        order: Int64s | None = None,
    ) -> None:
        """Offer these rows (all, as they stand; or those of these numbers, in that order). `vec`
        names the vectors of all rows."""
        self.limits = limits
        self.dims = chains.dims
        given = rows if isinstance(rows, Pool) else Pool(rows)
        self._order = order
        why, self._where = given.check(self.dims)
        columns = given.rows.column("delta_id"), given.rows.column("parent")
        ident, parent, self.numbering = Ids.of(vec, *columns)
        if order is None:
            self.vec, self.why, self.time_ns = vec, why, given.block.time_ns
            self.ident, self.parent = ident, parent
        else:
            self.vec, self.why = vec[order], why[order]
            self.time_ns, self.ident = given.block.time_ns[order], ident[order]
            self.parent = parent[order] if len(parent) else parent
        self.status: NDArray[np.int8] = (self.why != 0) * np.int8(admission.REFUSED)
        n = len(self.vec)
        self.behind_ns = np.zeros(n, np.int64)
        """How far a late row lies behind the seal of its chain."""
        self.decided = np.arange(n, dtype=np.int64)
        self.known: NDArray[np.int8] = np.zeros(len(self.numbering), np.int8)
        self._names = np.arange(len(chains))
        # Rows that are in the chains already come first in the pool.
        self._first = chains.place
        if 2 * len(chains.place) < len(chains.pool):
            chains = chains.settled()  # most of their pool is none of theirs
        self._old = chains.place
        self._lead = len(chains.pool) if len(chains.place) else 0
        self.pool, self._numbers = given, ident
        found = self.learn(chains)
        if self._lead:
            self.pool, self._numbers = chains.pool.plus(given), np.concatenate([found, ident])

    @property
    def rows(self) -> pa.RecordBatch:
        """The candidates."""
        if self._order is None:
            return self.pool.rows.slice(self._lead)
        return take_rows(self.pool.rows, self._places(np.arange(len(self.vec))))

    def _places(self, rows: Int64s) -> Int64s:
        """Where these candidates lie in the pool."""
        lies = rows if self._order is None else self._order[rows]
        return lies + self._lead if self._lead else lies

    def learn(self, chains: Chains) -> NDArray[np.int32]:
        """Look up where the ids on offer are by now: after rows were merged, for instance. Gives
        the numbers of the ids of all rows in the pool of these chains."""
        self.known[:] = admission.FREE
        self._note(chains.covered.vec, chains.covered.ids, admission.SEALED)
        pool = chains.pool
        owner = np.full(len(pool), -1, np.int64)
        owner[chains.place] = self._names[chains.vec]
        numbers = self.numbering.find(owner, pool.rows.column("delta_id"))
        self._put(numbers, admission.BEHIND)
        if pool.merged:
            texts, ends = pool.ids
            sizes = pool.sizes[chains.place]
            valid = pool.rows.column("covers").is_valid().to_numpy(zero_copy_only=False)
            merged = np.flatnonzero(valid[chains.place])
            last = np.full(len(chains), -1, np.int64)
            last[chains.vec[merged]] = merged
            sealed = np.arange(len(sizes)) <= last[chains.vec]
            flat, whose = spans(ends[chains.place[sealed]], sizes[sealed])
            vec = chains.vec[sealed][whose]
            self._put(numbers[chains.place[sealed]], admission.SEALED)
            self._note(vec, texts.take(pa.array(flat)), admission.SEALED)
        return numbers

    def folded(self, rows: Int64s, forgotten: Covered) -> None:
        """Rows of the pool went into checkpoints, and ids of folded ones are no longer known: what
        `learn` would find out, without reading an id again."""
        self._put(self._numbers[rows], admission.SEALED)
        self._note(forgotten.vec, forgotten.ids, admission.FREE)

    def _note(self, vec: Int64s, ids: pa.Array, where: int) -> None:
        if len(vec):
            self._put(self.numbering.find(self._names[vec], ids), where)

    def _put(self, numbers: NDArray[np.int32], where: int) -> None:
        self.known[numbers[numbers >= 0]] = where

    @property
    def open(self) -> bool:
        """Rows are left that found their chain full."""
        return bool((self.status == admission.OPEN).any())

    def round(self, chains: Chains, room: Int64s | None = None) -> tuple[Chains, Int64s]:
        """Admit what there is room for: the new chains, and the rows admitted, in that order."""
        asked = (self.status == admission.OPEN) | (self.status == admission.WAITING)
        rows = np.flatnonzero(asked & (self.vec >= 0)).astype(np.int64)
        if len(self.parent):
            self.known[self.ident[rows[self.status[rows] == admission.WAITING]]] = admission.FREE
        accepted = np.empty(len(rows), np.int64)
        if room is None:
            room = np.full(len(chains), NO_LIMIT, np.int64)
        n = admit(
            frozen(rows),
            frozen(self.vec),
            frozen(self.time_ns),
            frozen(self.ident),
            frozen(self.parent),
            frozen(self._before_seal(chains, rows)),
            frozen(chains.sealed_ns),
            room.copy(),
            self.limits.wait_ns,
            self.limits.max_waiting,
            self.known,
            self.status,
            self.decided,
            self.behind_ns,
            accepted,
        )
        taken = accepted[:n]
        if n == 0:
            return chains, taken
        pool, place = self._joined(chains, self._places(taken))
        vec = np.concatenate([chains.vec, self.vec[taken]]) if len(chains.vec) else self.vec[taken]
        vec, time_ns, place = arrange(vec, pool.block.time_ns[place], pool.rows, place)
        new = replace(chains, pool=pool, place=place, vec=vec)
        new.__dict__["time_ns"] = time_ns
        return new, taken

    def _joined(self, chains: Chains, new: Int64s) -> tuple[Pool, Int64s]:
        """The rows of the chains, and behind them new ones, as places of one pool."""
        if not len(chains.place):
            return self.pool, new
        if chains.pool is self.pool:
            return self.pool, np.concatenate([chains.place, new])
        if chains.place is self._first:
            return self.pool, np.concatenate([self._old, new])
        both = chains.settled().pool.plus(Pool(take_rows(self.pool.rows, new)))
        return both, np.arange(len(both))

    def narrow(self, which: Int64s, vectors: int) -> None:
        """Go on with these vectors only, numbered anew: the others have no open row left."""
        new = np.full(vectors, -1, np.int64)
        new[which] = np.arange(len(which))
        self.vec = np.where(self.vec >= 0, new[self.vec], -1)  # -1: given up before
        self._names = self._names[which]

    def _before_seal(self, chains: Chains, rows: Int64s) -> NDArray[np.bool_]:
        """Rows with exactly the time of the seal that (origin, id) puts before it."""
        tied = np.zeros(len(self.vec), np.bool_)
        times = frozen(self.time_ns), frozen(chains.sealed_ns)
        same = _at_seal(frozen(rows), frozen(self.vec), *times)
        if len(same):
            mine = seal_keys(self.pool.rows, self._places(same))
            seal = chains.sealed_key.take(pa.array(self.vec[same]))
            before = pc.fill_null(pc.less_equal(mine, seal), False)
            tied[same] = before.to_numpy(zero_copy_only=False)
        return tied

    def expire(self, now_ns: NDArray[np.int64]) -> None:
        """Refuse what waited for a parent longer than the limit, as time stands per vector."""
        limit = np.where(
            now_ns >= MIN_NS + self.limits.wait_ns,
            now_ns - self.limits.wait_ns,
            MIN_NS,
        )
        over = (self.status == admission.WAITING) & (self.time_ns <= limit[self.vec])
        self.status[over] = admission.ORPHAN

    def reasons(self, rows: Int64s) -> list[str]:
        """Why these rows were not admitted, in words."""
        parents = self.pool.rows.column("parent").take(pa.array(self._places(rows)))
        out = []
        for k, r in enumerate(rows.tolist()):
            match int(self.status[r]):
                case admission.REFUSED:
                    where = self._where[r if self._order is None else self._order[r]]
                    out.append(reason_text(int(self.why[r]), int(where), self.dims))
                case admission.DUPLICATE:
                    out.append("duplicate delta id")
                case admission.LATE:
                    out.append("late: belongs before deltas that are already folded")
                case admission.ORPHAN:
                    out.append(f"unknown parent {parents[k].as_py()}, waited beyond the limit")
                case admission.CROWDED:
                    out.append(
                        f"unknown parent {parents[k].as_py()}, and "
                        f"{self.limits.max_waiting} deltas of this vector wait already"
                    )
                case _:
                    out.append("the chain is full and cannot be compacted")
        return out
