"""Which deltas may join their chains: checked, deduplicated, put behind their parents, admitted.

Rules, decided row by row in arrival order, per vector, so that no cutting of the input can change
them:

    unusable    the row itself is wrong (`check_rows`): refused
    duplicate   its id is in the chain, waits, or was folded and is still remembered: refused
    waiting     it names a parent that is not here yet: until the parent comes, or until the chain
                has moved on by more than the wait limit (then an orphan), or at once if too many
                wait already (crowded)
    late        it belongs before the seal of its chain: refused. A child whose parent stands behind
                the seal comes behind it too, whatever its own clock says
    accepted    it joins its chain

A `DeltaAdmission` holds candidate rows in arrival order (first those that already waited, then new
ones) and is worked off in rounds: each admits as many as the chains have room for, so that
compactions happen between the same two deltas however the input was cut.

Clock policy: event time only. The wait limit is measured in the times of the vector's own deltas.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.arrow import ranges, take
from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MIN_NS
from tidegate.deltas.columns import (
    Chains,
    DeltaRows,
    FoldedIds,
    in_chain_order,
    seal_keys,
)
from tidegate.deltas.id_table import IdTable
from tidegate.deltas.kernels import DeltaVerdict

__all__ = ["DeltaAdmission", "ParentLimits"]

Bools = NDArray[np.bool_]
Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]

UNBOUNDED = 2**62
"""The room of a chain without a limit: half the range, so that counting down never wraps around."""


class ParentLimits(NamedTuple):
    """How long, and how many deltas per vector, may wait for a parent that has not come."""

    wait_ns: int
    """How far (event time) the chain may move on before a waiting delta is refused."""
    max_waiting: int
    """How many deltas of one vector may wait at once; further ones are refused at once."""


class IdState(IntEnum):
    """Where a delta id is."""

    ABSENT = 0
    """Unknown, or forgotten: a delta with this id is new."""
    PENDING = 1
    """In its chain, behind the seal."""
    WAITING = 2
    """Waits for its parent."""
    SEALED = 3
    """Folded, merged, or in its chain before the seal."""


class Candidates(NamedTuple):
    """What the kernel reads of the rows on offer; all arrays are read-only."""

    vec: Int64s
    """The vector of each candidate; -1 for one that takes no part any more."""
    time_ns: Int64s
    """Its event time."""
    id_number: Int32s
    """The number of its id in the `IdTable`; -1 for a null id."""
    parent_number: Int32s
    """Empty if nobody has a parent; -1 for a row that has none."""

    def readonly(self) -> Candidates:
        """Mark all arrays read-only: a kernel would be compiled once for every mixture."""
        for array in self:
            array.setflags(write=False)
        return self


class AdmissionArrays(NamedTuple):
    """What the kernel writes, one entry per candidate but for `id_state`."""

    verdict: Int8s
    """`DeltaVerdict` of each candidate."""
    decided_by: Int64s
    """The candidate whose arrival decided this one: itself, its parent, or the one that ended its
    wait."""
    late_by_ns: Int64s
    """LATE: how far before the seal; else 0."""
    id_state: Int8s
    """`IdState` by id number."""


@kernel
def _admit(
    rows: Int64s,
    given: Candidates,
    before_seal: Bools,
    sealed_ns: Int64s,
    room: Int64s,
    limits: ParentLimits,
    out: AdmissionArrays,
) -> Int64s:
    """Decide candidates in the order given.

    Args:
        rows: the candidates to decide: open ones, and those that wait.
        given: what is known of all candidates.
        before_seal: candidates with exactly the time of the seal that sort before it.
        sealed_ns: the seal of each chain.
        room: how many more deltas each chain takes now; counted down. Candidates that find no room
            stay open and are decided in the next round.
        limits: how long and how many may wait.
        out: written.

    Returns:
        The accepted candidates in order of admission: a child that waited follows its parent.
    """
    vec, time_ns = given.vec, given.time_ns
    id_number, parent = given.id_number, given.parent_number
    verdict, decided_by, id_state = out.verdict, out.decided_by, out.id_state
    vectors = len(sealed_ns)
    accepted = np.empty(len(rows), np.int64)
    # The waiting rows of each vector, as linked lists in order of arrival.
    first = np.full(vectors, -1, np.int64)
    last = np.full(vectors, -1, np.int64)
    waiting = np.zeros(vectors, np.int64)
    behind = np.full(len(parent), -1, np.int64)
    named = len(parent) > 0
    count = 0
    for k in range(len(rows)):
        r = rows[k]
        v = vec[r]
        if room[v] <= 0:
            verdict[r] = DeltaVerdict.OPEN
            continue
        now = decided_by[r]
        # 1. Its time may end the wait of others.
        before = -1
        w = first[v]
        while w >= 0:
            after = behind[w]
            # Never `time - wait` below the first time there is: it would wrap around.
            if time_ns[r] >= MIN_NS + limits.wait_ns and time_ns[w] < time_ns[r] - limits.wait_ns:
                verdict[w] = DeltaVerdict.ORPHAN
                decided_by[w] = now
                id_state[id_number[w]] = IdState.ABSENT
                waiting[v] -= 1
                if before < 0:
                    first[v] = after
                else:
                    behind[before] = after
                if after < 0:
                    last[v] = before
            else:
                before = w
            w = after
        # 2. Is it new, and is its parent here?
        if id_state[id_number[r]] != IdState.ABSENT:
            verdict[r] = DeltaVerdict.DUPLICATE
            continue
        if named and parent[r] >= 0 and id_state[parent[r]] in (IdState.ABSENT, IdState.WAITING):
            if waiting[v] >= limits.max_waiting:
                verdict[r] = DeltaVerdict.CROWDED
                continue
            verdict[r] = DeltaVerdict.WAITING
            id_state[id_number[r]] = IdState.WAITING
            waiting[v] += 1
            if first[v] < 0:
                first[v] = r
            else:
                behind[last[v]] = r
            last[v] = r
            continue
        # 3. It joins, and so do those that waited for it.
        joins = r
        while joins >= 0:
            decided_by[joins] = now
            early = time_ns[joins] < sealed_ns[v] or before_seal[joins]
            orphan = not named or parent[joins] < 0
            if early and (orphan or id_state[parent[joins]] != IdState.PENDING):
                verdict[joins] = DeltaVerdict.LATE
                out.late_by_ns[joins] = sealed_ns[v] - time_ns[joins]
                id_state[id_number[joins]] = IdState.ABSENT
            else:
                verdict[joins] = DeltaVerdict.ACCEPTED
                id_state[id_number[joins]] = IdState.PENDING
                accepted[count] = joins
                count += 1
                room[v] -= 1
            joins = -1
            before = -1
            w = first[v]
            while w >= 0:
                if id_state[parent[w]] in (IdState.PENDING, IdState.SEALED):
                    if room[v] <= 0:
                        # Its parent is here: it waits for room only, and is offered again.
                        decided_by[w] = now
                        verdict[w] = DeltaVerdict.OPEN
                        id_state[id_number[w]] = IdState.ABSENT
                        break
                    joins = w
                    waiting[v] -= 1
                    if before < 0:
                        first[v] = behind[w]
                    else:
                        behind[before] = behind[w]
                    if behind[w] < 0:
                        last[v] = before
                    break
                before = w
                w = behind[w]
    return accepted[:count]


@kernel
def _at_seal(rows: Int64s, given: Candidates, sealed_ns: Int64s) -> Int64s:
    """The candidates among `rows` that have exactly the time of the seal of their chain."""
    vec, time_ns = given.vec, given.time_ns
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


class DeltaAdmission:
    """Candidate rows for some chains, and what has become of each so far.

    Use: build it once per call, `admit` until no vector is open, with `note_folded` or `look_up`
    after every compaction in between, then read `waiting` and `refused`.

    Args:
        chains: the chains the candidates are for.
        offered: the candidate rows.
        vec: the vector of every row of `offered`; for rows not in `order` any value.
        limits: how long and how many may wait for a parent.
        order: the candidates among the rows, in order of arrival; None: all, in their order.
    """

    def __init__(
        self,
        chains: Chains,
        offered: DeltaRows,
        vec: Int64s,
        limits: ParentLimits,
        order: Int64s | None = None,
    ) -> None:
        """Check the rows, number their ids, and find out which of those the chains know already.

        Old and new rows are joined into one source here, so that admitting moves indices only.
        """
        self.limits = limits
        self.dims = chains.dims
        self._order = order
        verdict, self._where = offered.verdicts(self.dims)
        rows = offered.rows
        self._id_table = IdTable(vec, rows.column("delta_id"), rows.column("parent"))
        numbers, parents = self._id_table.numbers, self._id_table.parent_numbers
        given = Candidates(vec.view(), offered.time_ns, numbers, parents)
        if order is not None:
            given = Candidates(
                given.vec[order],
                given.time_ns[order],
                numbers[order],
                parents[order] if len(parents) else parents,
            )
            verdict = verdict[order]
        self._given = given.readonly()
        n = len(given.vec)
        self._out = AdmissionArrays(
            verdict=verdict.copy(),
            decided_by=np.arange(n, dtype=np.int64),
            late_by_ns=np.zeros(n, np.int64),
            id_state=np.zeros(self._id_table.size, np.int8),
        )
        self._vector_names = np.arange(len(chains.ids))
        # Deltas that are in the chains already come first in the joint source.
        self._index_before, self._vec_before = chains.index, chains.vec
        if 2 * len(chains.index) < chains.source.size:
            chains = chains.owned()  # most of their source is none of theirs
        self._index_joint = chains.index
        self._lead = chains.source.size if len(chains.index) else 0
        self.source, self._source_numbers = offered, numbers
        found = self.look_up(chains)
        if self._lead:
            self.source = chains.source.plus(offered)
            self._source_numbers = np.concatenate([found, numbers])

    @property
    def verdict(self) -> Int8s:
        """`DeltaVerdict` of each candidate."""
        return self._out.verdict

    @property
    def decided_by(self) -> Int64s:
        """The candidate whose arrival decided each: outcomes are in this order."""
        return self._out.decided_by

    @property
    def late_by_ns(self) -> Int64s:
        """How far (ns) a late candidate lies before the seal of its chain."""
        return self._out.late_by_ns

    @property
    def vec(self) -> Int64s:
        """The vector of each candidate."""
        return self._given.vec

    @property
    def rows(self) -> pa.RecordBatch:
        """The candidates as a batch (a copy if `order` was given)."""
        if self._order is None:
            return self.source.rows.slice(self._lead)
        return take(self.source.rows, self._index_of(np.arange(len(self.vec))))

    def _index_of(self, candidates: Int64s) -> Int64s:
        """Indices into the joint source of some candidates."""
        index = candidates if self._order is None else self._order[candidates]
        return index + self._lead if self._lead else index

    # -- where ids are ----------------------------------------------------------------------------

    def look_up(self, chains: Chains) -> Int32s:
        """Find out anew where all known ids are. Needed after deltas were merged; slower than
        `note_folded`.

        Returns:
            The id number of every row in the source of these chains, -1 for ids that are no
            candidate's.
        """
        self._out.id_state[:] = IdState.ABSENT
        folded = chains.folded_ids
        if len(folded.vec):
            self._note(folded.vec, folded.ids, IdState.SEALED)
        source, index = chains.source, chains.index
        owner = np.full(source.size, -1, np.int64)
        owner[index] = self._vector_names[chains.vec]
        numbers = self._id_table.find(owner, source.rows.column("delta_id"))
        self._set(numbers, IdState.PENDING)
        if source.merged:
            # Everything up to the last merged delta of a vector is sealed.
            texts, begin = source.ids
            covers = source.rows.column("covers").is_valid().to_numpy(zero_copy_only=False)
            merged = np.flatnonzero(covers[index])
            last = np.full(len(chains.ids), -1, np.int64)
            last[chains.vec[merged]] = merged
            sealed = np.arange(len(index)) <= last[chains.vec]
            flat, owner = ranges(begin[index[sealed]], begin[index[sealed] + 1])
            self._set(numbers[index[sealed]], IdState.SEALED)
            vec = chains.vec[sealed][owner]
            self._note(vec, texts.take(pa.array(flat)), IdState.SEALED)
        return numbers

    def note_folded(self, rows: Int64s, forgotten: FoldedIds) -> None:
        """Bring the ids up to date after a compaction that only folded, without reading a text.

        Args:
            rows: rows of the joint source that went into checkpoints.
            forgotten: ids that chains no longer remember: a candidate with such an id is new again.
        """
        self._set(self._source_numbers[rows], IdState.SEALED)
        if len(forgotten.vec):
            self._note(forgotten.vec, forgotten.ids, IdState.ABSENT)

    def _note(self, vec: Int64s, ids: pa.Array, where: IdState) -> None:
        """Set the state of ids given as (vector, text)."""
        self._set(self._id_table.find(self._vector_names[vec], ids), where)

    def _set(self, numbers: Int32s, where: IdState) -> None:
        """Set the state of ids given by number; -1 is skipped."""
        self._out.id_state[numbers[numbers >= 0]] = where

    # -- rounds -----------------------------------------------------------------------------------

    def open_vectors(self) -> Int64s:
        """The vectors that have candidates left which found their chain full."""
        still = np.zeros(len(self._vector_names), np.bool_)
        still[self.vec[(self.verdict == DeltaVerdict.OPEN) & (self.vec >= 0)]] = True
        return np.flatnonzero(still)

    def admit(self, chains: Chains, room: Int64s | None = None) -> tuple[Chains, Int64s]:
        """Admit what there is room for.

        Args:
            chains: the chains as they are now.
            room: how many more deltas each takes; None: no limit.

        Returns:
            The new chains, and the candidates admitted, in order of admission.
        """
        verdict, given = self.verdict, self._given
        waits = verdict == DeltaVerdict.WAITING
        rows = np.flatnonzero(((verdict == DeltaVerdict.OPEN) | waits) & (given.vec >= 0))
        if len(given.parent_number):
            self._out.id_state[given.id_number[rows[waits[rows]]]] = IdState.ABSENT
        if room is None:
            room = np.full(len(chains.ids), UNBOUNDED, np.int64)
        rows.setflags(write=False)
        before_seal = self._before_seal(chains, rows)
        accepted = _admit(
            rows, given, before_seal, chains.sealed_ns, room.copy(), self.limits, self._out
        )
        if not len(accepted):
            return chains, accepted
        source, index = self._joined(chains, self._index_of(accepted))
        vec = given.vec[accepted]
        if len(chains.vec):
            vec = np.concatenate([chains.vec, vec])
        vec, time_ns, index = in_chain_order(vec, source.time_ns[index], source.rows, index)
        return chains.with_pending(source, index, vec, time_ns), accepted

    def _joined(self, chains: Chains, new: Int64s) -> tuple[DeltaRows, Int64s]:
        """One source for the pending rows with new ones behind them, and the indices of both in it.

        Rows are copied only if the chains name neither the joint source nor the one they came with,
        which is so after a merge.
        """
        if not len(chains.index):
            return self.source, new
        if chains.source is self.source:
            return self.source, np.concatenate([chains.index, new])
        if chains.index is self._index_before:
            return self.source, np.concatenate([self._index_joint, new])
        both = chains.owned().source.plus(DeltaRows(take(self.source.rows, new)))
        return both, np.arange(both.size)

    def new_behind_old(self, chains: Chains, changed: Bools) -> Bools | None:
        """Find the deltas that joined since the admission began, for a state that appends.

        Args:
            chains: the chains after admission.
            changed: vectors whose deltas were folded or merged. Those with a new delta before an
                old one are marked as well, in place.

        Returns:
            A mask over the pending deltas; None if the chains no longer name them by the joint
            source.
        """
        if chains.index is self._index_before:
            return np.zeros(len(chains.index), np.bool_)
        if chains.source is not self.source:
            return None
        new = chains.index >= self._lead
        before_old = np.flatnonzero(new[:-1] & ~new[1:] & (chains.vec[1:] == chains.vec[:-1]))
        changed[chains.vec[before_old]] = True
        mine = chains.index[~new & ~changed[chains.vec]]
        same = np.array_equal(mine, self._index_joint[~changed[self._vec_before]])
        return new if same else None

    def keep_only(self, which: Int64s) -> None:
        """Continue with the vectors `which`, renumbered in that order. The others must have no open
        candidate."""
        new = np.full(len(self._vector_names), -1, np.int64)
        new[which] = np.arange(len(which))
        vec = np.where(self.vec >= 0, new[self.vec], -1)  # -1: left out before
        self._given = self._given._replace(vec=vec).readonly()
        self._vector_names = self._vector_names[which]

    def _before_seal(self, chains: Chains, rows: Int64s) -> Bools:
        """A mask of candidates with exactly the time of the seal that (origin, id) puts before it.

        Only ties are compared as text, which is why the kernel gets the answer as a mask.
        """
        tied = np.zeros(len(self.vec), np.bool_)
        same = _at_seal(rows, self._given, chains.sealed_ns)
        if len(same):
            mine = seal_keys(self.source.rows, self._index_of(same))
            seal = chains.sealed_key.take(pa.array(self.vec[same]))
            before = pc.fill_null(pc.less_equal(mine, seal), False)
            tied[same] = before.to_numpy(zero_copy_only=False)
        tied.setflags(write=False)
        return tied

    def expire(self, now_ns: Int64s) -> None:
        """Refuse candidates that waited for a parent longer than the limit.

        Args:
            now_ns: event time per vector.
        """
        wait = self.limits.wait_ns
        limit = np.where(now_ns >= MIN_NS + wait, now_ns - wait, MIN_NS)
        over = (self.verdict == DeltaVerdict.WAITING) & (self._given.time_ns <= limit[self.vec])
        self.verdict[over] = DeltaVerdict.ORPHAN

    # -- what became of them ----------------------------------------------------------------------

    def waiting(self) -> Int64s:
        """The candidates that wait for a parent."""
        return np.flatnonzero(self.verdict == DeltaVerdict.WAITING)

    def refused(self) -> Int64s:
        """The candidates that were not admitted and do not wait, in the order of the decisions."""
        verdict = self.verdict
        out = np.flatnonzero((verdict != DeltaVerdict.ACCEPTED) & (verdict != DeltaVerdict.WAITING))
        return out[np.argsort(self.decided_by[out], kind="stable")]

    def reasons(self, candidates: Int64s) -> list[str]:
        """Why candidates were not admitted, one sentence each (`DeltaVerdict.sentence`)."""
        parents = self.source.rows.column("parent").take(pa.array(self._index_of(candidates)))
        row = candidates if self._order is None else self._order[candidates]
        found = zip(
            self.verdict[candidates].tolist(),
            self._where[row].tolist(),
            parents.to_pylist(),
            strict=True,
        )
        sentences: dict[tuple[int, int, str], str] = {}  # thousands are often the same
        out = []
        for reason in found:
            if reason not in sentences:
                verdict, where, parent = reason
                sentences[reason] = DeltaVerdict(verdict).sentence(
                    where=where, dims=self.dims, parent=parent, limit=self.limits.max_waiting
                )
            out.append(sentences[reason])
        return out
