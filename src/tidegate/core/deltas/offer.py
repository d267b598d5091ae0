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

from tidegate.core.deltas import admission
from tidegate.core.deltas.admission import Ids, admit, arrange
from tidegate.core.deltas.chains import Chains, seal_keys
from tidegate.core.deltas.rows import Block, frozen, reason_text
from tidegate.core.deltas.taking import take_rows
from tidegate.core.model import Int64s
from tidegate.core.time import MIN_NS

__all__ = ["Limits", "Offer"]

NO_LIMIT = 2**62
"""Room of a chain nobody bounds."""


@dataclass(frozen=True)
class Limits:
    """How long, and how many deltas per vector, may wait for a parent that has not come."""

    wait_ns: int
    max_waiting: int


class Offer:
    """Candidate rows (schema DELTAS) and what has become of each so far."""

    def __init__(self, chains: Chains, rows: pa.RecordBatch, vec: Int64s, limits: Limits) -> None:
        self.rows = rows
        self.vec = vec
        self.limits = limits
        self.block = Block.of(rows)
        self.why, self.where = self.block.check(chains.dims)
        self.dims = chains.dims
        self.status: NDArray[np.int8] = np.where(
            self.why != 0, admission.REFUSED, admission.OPEN
        ).astype(np.int8)
        self.behind_ns = np.zeros(len(vec), np.int64)
        """How far a late row lies behind the seal of its chain."""
        self.decided = np.arange(len(vec), dtype=np.int64)
        ids, parents = rows.column("delta_id"), rows.column("parent")
        self.ident, self.parent, self.numbering = Ids.of(vec, ids, parents, len(chains))
        self.known: NDArray[np.int8] = np.zeros(len(self.numbering), np.int8)
        self._names = np.arange(len(chains))
        self.learn(chains)

    def learn(self, chains: Chains) -> None:
        """Look up where the ids on offer are by now: after a compaction, for instance."""
        self.known[:] = admission.FREE
        covers = chains.rows.column("covers")
        behind = np.ones(len(chains.vec), np.bool_)
        if covers.null_count < len(covers):
            merged = np.flatnonzero(covers.is_valid().to_numpy(zero_copy_only=False))
            last = np.full(len(chains), -1, np.int64)
            last[chains.vec[merged]] = merged
            behind = np.arange(len(behind)) > last[chains.vec]
            sizes = pc.fill_null(covers.value_lengths(), 0).to_numpy()
            self._note(np.repeat(chains.vec, sizes), covers.flatten(), admission.SEALED)
        self._note(chains.covered.vec, chains.covered.ids, admission.SEALED)
        ids = chains.rows.column("delta_id")
        if behind.all():
            self._note(chains.vec, ids, admission.BEHIND)
        else:
            self._note(chains.vec[~behind], ids.filter(pa.array(~behind)), admission.SEALED)
            self._note(chains.vec[behind], ids.filter(pa.array(behind)), admission.BEHIND)

    def _note(self, vec: Int64s, ids: pa.Array, where: int) -> None:
        if len(vec):
            self.known[self.numbering.find(self._names[vec], ids)] = where

    @property
    def open(self) -> bool:
        """Rows are left that found their chain full."""
        return bool((self.status == admission.OPEN).any())

    def round(self, chains: Chains, room: Int64s | None = None) -> tuple[Chains, Int64s]:
        """Admit what there is room for: the new chains, and the rows admitted, in that order."""
        asked = (self.status == admission.OPEN) | (self.status == admission.WAITING)
        rows = np.flatnonzero(asked & (self.vec >= 0)).astype(np.int64)
        self.known[self.ident[rows[self.status[rows] == admission.WAITING]]] = admission.FREE
        accepted = np.empty(len(rows), np.int64)
        if room is None:
            room = np.full(len(chains), NO_LIMIT, np.int64)
        n = admit(
            frozen(rows),
            frozen(self.vec),
            self.block.time_ns,
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
            accepted,
        )
        late = rows[self.status[rows] == admission.LATE]
        self.behind_ns[late] = chains.sealed_ns[self.vec[late]] - self.block.time_ns[late]
        taken = accepted[:n]
        if n == 0:
            return chains, taken
        new = take_rows(self.rows, taken) if n < self.rows.num_rows else self.rows
        new_vec = self.vec[taken] if n < self.rows.num_rows else self.vec
        if n == self.rows.num_rows and not np.array_equal(taken, np.arange(n)):
            new, new_vec = take_rows(self.rows, taken), self.vec[taken]
        rows_now = pa.concat_batches([chains.rows, new]) if len(chains.vec) else new
        vec_now = np.concatenate([chains.vec, new_vec])
        order = arrange(vec_now, rows_now)
        if not np.array_equal(order, np.arange(len(order))):
            rows_now, vec_now = take_rows(rows_now, order), vec_now[order]
        elif new is self.rows:
            return chains.extended(rows_now, vec_now, self.block), taken
        return replace(chains, rows=rows_now, vec=vec_now), taken

    def narrow(self, which: Int64s, vectors: int) -> None:
        """Go on with these vectors only, numbered anew: the others have no open row left."""
        new = np.full(vectors, -1, np.int64)
        new[which] = np.arange(len(which))
        self.vec = new[self.vec]
        self._names = self._names[which]

    def _before_seal(self, chains: Chains, rows: Int64s) -> NDArray[np.bool_]:
        """Rows with exactly the time of the seal that (origin, id) puts before it."""
        tied = np.zeros(len(self.vec), np.bool_)
        same = rows[self.block.time_ns[rows] == chains.sealed_ns[self.vec[rows]]]
        if len(same):
            mine = seal_keys(self.rows.take(pa.array(same)))
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
        over = (self.status == admission.WAITING) & (self.block.time_ns <= limit[self.vec])
        self.status[over] = admission.ORPHAN

    def reasons(self, rows: Int64s) -> list[str]:
        """Why these rows were not admitted, in words."""
        parents = self.rows.column("parent")
        out = []
        for r in rows.tolist():
            match int(self.status[r]):
                case admission.REFUSED:
                    out.append(reason_text(int(self.why[r]), int(self.where[r]), self.dims))
                case admission.DUPLICATE:
                    out.append("duplicate delta id")
                case admission.LATE:
                    out.append("late: belongs before deltas that are already folded")
                case admission.ORPHAN:
                    out.append(f"unknown parent {parents[r].as_py()}, waited beyond the limit")
                case admission.CROWDED:
                    out.append(
                        f"unknown parent {parents[r].as_py()}, and "
                        f"{self.limits.max_waiting} deltas of this vector wait already"
                    )
                case _:
                    out.append("the chain is full and cannot be compacted")
        return out
