"""Compaction as a stage of a pipeline: deltas in, vectors out.

A lane holds many vectors (a shard of them, or one, if the key is the vector's id). A vector leaves
whenever its chain is compacted, at the latest `time_threshold` after its first undelivered delta
arrived, and at the end. `delta_count` is its version: it only grows.

Theory of operation. Each call takes the vectors it is about out of the state tables (`WorkingSet`),
works on them as `Chains`, and puts them back. Deltas are admitted in rounds: each chain takes as
many as bring it to its next compaction, all chains that got there are compacted together, and so
on, so that compactions fall between the same two deltas however the input was cut.

State: table `chains`, one row per vector (`checkpoint_schema`, its keys, the chain length of its
next compaction and the wall time of its first undelivered delta); table `pending`, the deltas
behind the checkpoints, those of a vector in chain order; table `waiting`, input rows whose parent
has not come; counters per lane, and `due_ns`, when the next vector of the lane must leave.

Clock policy: chains, thresholds by count, retention and the wait for parents go by event time and
by the order of the deltas. Only "at the latest" is wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.arrow import concat, first_rows, take
from tidegate.core.checks import column_name, duration, int_in, names
from tidegate.core.columns import LANE, NEXT, TIME, UNDELIVERED
from tidegate.core.numba import kernel
from tidegate.core.operator import Adopted, Operator, left_behind
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Side,
    Watermark,
    with_columns,
)
from tidegate.core.parallel import MANY, each
from tidegate.core.state import Column, Layout, State, require_int64
from tidegate.core.time import MAX_NS, UNSET, Duration
from tidegate.deltas.admission import DeltaAdmission, ParentLimits
from tidegate.deltas.columns import (
    Chains,
    DeltaRows,
    chains_from_tables,
    check_delta_types,
    checkpoint_schema,
    checkpoint_table,
    find_vectors,
    join_chains,
    normalise,
)
from tidegate.deltas.compactor import Compactor
from tidegate.deltas.kernels import DeltaVerdict
from tidegate.deltas.operations import DELTAS, Offset, VectorDelta, rows_from
from tidegate.deltas.strategies import FullMerge, Strategy, TimeBoundary
from tidegate.errors import ConfigError, StateError

__all__ = ["Compact"]

Bools = NDArray[np.bool_]
Table = Any
"""A `pa.RecordBatch`, or None where there is none yet."""

FEW_ROWS = 2000
"""Up to this many rows are cut out of a table as gaps between slices, which are joined in one go;
beyond, as many slices would cost more than taking the other rows by index."""

COUNTERS = ("accepted", "duplicates", "late", "refused", "compactions", "merged", "bytes_saved")
"""Counters per lane, in the state and in `metrics`: rows accepted, refused as duplicates, late, and
refused for another reason; compactions of a vector, deltas they merged, and bytes they saved
(measured, uncompressed)."""


# -- the rows of a call ---------------------------------------------------------------------------


class InputRows(NamedTuple):
    """The rows of a call with time and lane beside them, not copied. Rows that waited for a parent
    come first."""

    rows: pa.RecordBatch
    """A batch that contains the rows, with the columns TIME and LANE; it may contain others."""
    order: Int64s | None
    """Indices into `rows` of the rows of this call, in order of arrival; None: all of them."""
    lane: Int32s
    """The lane of each row of this call."""

    @classmethod
    def of(cls, collection: Collection, waited: Table) -> InputRows:
        """Join a collection with the rows that waited.

        Args:
            collection: the new rows. If they are lazy, they are not copied: `order` then names
                them.
            waited: the state table `waiting`, or None. If it has rows, everything is copied into
                one batch.
        """
        if waited is not None and waited.num_rows:
            beside = {TIME: collection.time_ns, LANE: collection.lane}
            rows = concat([waited, with_columns(collection.rows, beside)])
            assert rows is not None
            return cls(rows, None, rows.column(LANE).to_numpy())
        rows, order = collection.lies
        time_ns, lane = collection.time_ns, collection.lane
        if order is not None:
            time_ns, lane = np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.int32)
            time_ns[order], lane[order] = collection.time_ns, collection.lane
        return cls(with_columns(rows, {TIME: time_ns, LANE: lane}), order, collection.lane)

    def index_of(self, which: Int64s) -> Int64s:
        """Turn positions among the rows of this call into indices into `rows`."""
        return which if self.order is None else self.order[which]

    def vectors(self, keys: tuple[str, ...], ids: pa.Array) -> tuple[VectorNames, Int64s]:
        """Find the distinct vectors of a call.

        Args:
            keys: columns to carry along; the value of the first row of a vector is taken.
            ids: the vector id of every row of `rows`, dictionary-encoded.

        Returns:
            The vectors, by first appearance of the id, then by lane; and the vector of each row of
            `rows`, -1 for rows that are not part of this call.
        """
        rows, order, lane = self
        code = ids.indices.to_numpy().astype(np.int64)
        if order is not None:
            code = code[order]
        lanes, size = int(lane.max()) + 1, len(ids.dictionary)
        if order is not None or lanes > 1:
            code = _by_appearance(code, size)
        if lanes > 1:
            code, size = code * lanes + lane, size * lanes
        if size > 4 * len(code):  # a table of all codes would be mostly empty
            _, first, vec = np.unique(code, return_index=True, return_inverse=True)
        else:
            first, vec = first_rows(code, size), code
            if (first < 0).any():
                occurs = first >= 0
                first, vec = first[occurs], (np.cumsum(occurs) - 1)[code]
        chosen = pa.array(self.index_of(first))
        named = VectorNames(
            ids.dictionary.take(ids.indices.take(chosen)),
            lane[first].astype(np.int32),
            rows.select(list(keys)).take(chosen),
        )
        if order is None:
            return named, vec.astype(np.int64)
        every = np.full(rows.num_rows, -1, np.int64)
        every[order] = vec
        return named, every

    def own_rows(self, index: Int64s) -> pa.RecordBatch:
        """Copy rows without the columns TIME and LANE that the stage added."""
        own = [name for name in self.rows.schema.names if name not in (TIME, LANE)]
        return take(self.rows.select(own), index)

    def dropped(self, index: Int64s, reasons: list[str]) -> Dropped:
        """Make a `Dropped` outcome.

        Args:
            index: the refused rows, as indices into `rows`.
            reasons: why, one sentence per row.
        """
        time_ns, lane = self.rows.column(TIME).to_numpy(), self.rows.column(LANE).to_numpy()
        reason = pa.array(reasons, pa.string())
        return Dropped(self.own_rows(index), time_ns[index], lane[index], reason)


class VectorNames(NamedTuple):
    """Which vectors a call is about: their ids, lanes and key columns."""

    ids: pa.Array
    """Vector ids."""
    lane: Int32s
    """The lane of each."""
    keys: pa.RecordBatch
    """The key columns, one row per vector."""


@kernel
def _by_appearance(code: Int64s, codes: int) -> Int64s:
    """Renumber codes (each below `codes`) in the order in which they first appear."""
    number = np.full(codes, -1, np.int64)
    out = np.empty(len(code), np.int64)
    count = 0
    for r in range(len(code)):
        if number[code[r]] < 0:
            number[code[r]] = count
            count += 1
        out[r] = number[code[r]]
    return out


# -- the vectors of a call ------------------------------------------------------------------------


@kernel
def _group_by_vector(vec: Int64s, vectors: int) -> tuple[Int64s, Int64s]:
    """Group rows by vector with a stable counting sort.

    Returns:
        Row numbers by vector, and the vector of each.
    """
    next_slot = np.zeros(vectors + 1, np.int64)
    for v in vec:
        next_slot[v + 1] += 1
    for v in range(vectors):
        next_slot[v + 1] += next_slot[v]
    order, owner = np.empty(len(vec), np.int64), np.empty(len(vec), np.int64)
    for r in range(len(vec)):
        k = next_slot[vec[r]]
        next_slot[vec[r]] += 1
        order[k] = r
        owner[k] = vec[r]
    return order, owner


@kernel
def _last_decision(vec: Int64s, decided_by: Int64s, rows: Int64s, vectors: int) -> Int64s:
    """Per vector the latest entry of `decided_by` among some rows; -1 if none is of that vector."""
    out = np.full(vectors, -1, np.int64)
    for r in rows:
        out[vec[r]] = max(out[vec[r]], decided_by[r])
    return out


class Delivery(NamedTuple):
    """Vectors that leave, with what their compaction did."""

    order: Int64s
    """The candidate that caused each delivery: sorts the deliveries of one call."""
    vectors: pa.RecordBatch
    """Rows as they leave the stage."""
    reports: pa.RecordBatch
    """Rows of the side table `compactions`, one per vector."""
    time_ns: Int64s
    """The event time of each vector: that of its newest delta."""
    lane: Int32s
    """The lane of each vector."""


class TakenOut(NamedTuple):
    """Where in the state tables the vectors of a working set came from."""

    table: pa.RecordBatch
    """The state table `chains` as it was."""
    pending: Table
    """The state table `pending` as it was, or None."""
    at: Int64s
    """The row of each vector in `table`; -1: it is new."""
    pending_rows: Int64s
    """The rows of `pending` that are theirs."""
    pending_vec: Int64s
    """The vector of each of those."""


class WorkingSet:
    """The vectors of one call, taken out of the state: their chains, and when each is next due.

    Life cycle: built from the state, changed by `admit` or `deliver`, written back with `put_back`.
    Until then the state tables are unchanged.

    Args:
        compactor: thresholds and strategy.
        dims: the length of every vector.
        state: the state of the stage; only read here.
        named: the vectors. Those the state does not know start empty.
        forget_ids: leave out the ids they have folded: for the end of a stream, when no duplicate
            can come.
    """

    def __init__(
        self,
        compactor: Compactor,
        dims: int,
        state: State,
        named: VectorNames,
        *,
        forget_ids: bool = False,
    ) -> None:
        """Take the vectors out of the state tables."""
        self.compactor = compactor
        self.keys = named.keys
        table, pending = state.tables["chains"], state.tables["pending"]
        n = len(named.ids)
        self.next_length = np.full(n, compactor.delta_threshold, np.int64)
        """The chain length at which each vector is next compacted."""
        self.undelivered_ns = np.full(n, MAX_NS, np.int64)
        """Wall time of the first delta that is not delivered yet; MAX_NS if there is none."""
        self.taken: TakenOut | None = None
        """Where the vectors came from; None if the state had none."""
        if n and table is not None and table.num_rows:
            if forget_ids:
                table = _without_folded_ids(table)
            self.chains, self.taken = _take_out(dims, table, pending, named)
            found = np.flatnonzero(self.taken.at >= 0)
            rows = self.taken.at[found]
            self.next_length[found] = table.column(NEXT).to_numpy()[rows]
            self.undelivered_ns[found] = table.column(UNDELIVERED).to_numpy()[rows]
        else:
            self.chains = Chains.empty(dims, named.ids, named.lane)
        self.compacted = np.zeros(n, np.bool_)
        """Vectors on which a compaction was tried."""
        self.counts = {
            name: np.zeros(n, np.int64) for name in ("compactions", "merged", "bytes_saved")
        }

    @classmethod
    def of_lanes(
        cls,
        compactor: Compactor,
        dims: int,
        state: State,
        lanes: Int64s,
        *,
        keys: tuple[str, ...],
        forget_ids: bool = False,
    ) -> WorkingSet:
        """All vectors of some lanes, by lane and id.

        Args:
            compactor: as for the class.
            dims: as for the class.
            state: as for the class.
            lanes: lane numbers.
            keys: the key columns to carry along.
            forget_ids: as for the class.
        """
        table = state.tables["chains"]
        if table is None or not table.num_rows:
            nothing = pa.RecordBatch.from_arrays([], names=[])
            none = VectorNames(pa.array([], pa.string()), np.empty(0, np.int32), nothing)
            return cls(compactor, dims, state, none)
        found = table.select(["vector_id", LANE, *keys])
        inside = np.isin(found.column(LANE).to_numpy(), lanes)
        if not inside.all():
            found = found.filter(pa.array(inside))
        found = found.sort_by([(LANE, "ascending"), ("vector_id", "ascending")])
        named = VectorNames(
            found.column("vector_id"), found.column(LANE).to_numpy(), found.select(list(keys))
        )
        return cls(compactor, dims, state, named, forget_ids=forget_ids)

    def put_back(self, state: State, admission: DeltaAdmission | None = None) -> None:
        """Write the vectors into the state. Vectors that hold nothing are not kept.

        Args:
            state: the state; tables, counters and deadlines of the touched lanes are replaced.
            admission: what was worked off by `admit`, if anything. With it, a vector that was not
                compacted and whose new deltas all come behind its old ones stays where it is in the
                tables, and only the new deltas are appended. Without it every vector is rewritten,
                which for a few deltas on many long chains costs many times as much.
        """
        chains, taken, own = self.chains, self.taken, np.arange(len(self.chains.ids))
        if not len(own):
            return
        changed, new = self.compacted, None
        if admission is not None and taken is not None:
            new = admission.new_behind_old(chains, changed)
        if new is None:
            changed, new = np.ones(len(own), np.bool_), np.ones(len(chains.vec), np.bool_)
        at = np.full(len(own), -1, np.int64) if taken is None else taken.at
        written = (changed | (at < 0)) & (chains.has_checkpoint | (chains.pending > 0))
        rows = np.flatnonzero(new | changed[chains.vec])
        work: list[Callable[[], Any]] = [
            lambda: self._chain_rows(np.flatnonzero(written)),
            lambda: chains.rows_in_memory_order(rows),
        ]
        table, (pending, vec) = _side_by_side(work, len(rows))
        tables, pendings = (
            [table],
            [with_columns(pending, {LANE: chains.lane[vec].astype(np.int32)})],
        )
        if taken is not None:
            stays = np.flatnonzero((at >= 0) & ~changed)
            old = self._with_undelivered(taken.table, at[stays], stays)
            tables = [*_without(old, at[(at >= 0) & changed]), table]
            if taken.pending is not None:
                gone = taken.pending_rows[changed[taken.pending_vec]]
                pendings = [*_without(taken.pending, gone), *pendings]
        table = concat(tables)
        assert table is not None
        state.tables["chains"] = table
        state.tables["pending"] = concat(pendings)
        arrays, lane = state.arrays, chains.lane
        for name, counts in self.counts.items():
            np.add.at(arrays[name], lane, counts)
        threshold = self.compactor.time_threshold_ns
        if threshold is not None:
            due = np.full(state.lanes, MAX_NS, np.int64)
            since = table.column(UNDELIVERED).to_numpy()
            open_ = since < MAX_NS - threshold
            np.minimum.at(due, table.column(LANE).to_numpy()[open_], since[open_] + threshold)
            lanes = np.unique(lane)
            arrays["due_ns"][lanes] = due[lanes]

    def _with_undelivered(self, table: pa.RecordBatch, rows: Int64s, own: Int64s) -> pa.RecordBatch:
        """A copy of the table of chains with new wall times of undelivered deltas.

        Args:
            table: the state table `chains`.
            rows: rows of it that stay.
            own: the vectors of this set in those rows.
        """
        if not len(rows):
            return table
        undelivered = table.column(UNDELIVERED).to_numpy().copy()
        undelivered[rows] = self.undelivered_ns[own]
        at = table.schema.get_field_index(UNDELIVERED)
        return table.set_column(at, table.schema.field(at), pa.array(undelivered))

    def _chain_rows(self, own: Int64s) -> pa.RecordBatch:
        """Rows of the state table `chains` for the vectors `own`: checkpoint, keys, thresholds,
        lane."""
        chains = self.chains if len(own) == len(self.chains.ids) else self.chains.take(own)
        beside: dict[str, Any] = self._key_columns(own)
        beside |= {
            NEXT: self.next_length[own],
            UNDELIVERED: self.undelivered_ns[own],
            LANE: chains.lane.astype(np.int32),
        }
        return with_columns(checkpoint_table(chains), beside)

    # -- work -------------------------------------------------------------------------------------

    def admit(self, admission: DeltaAdmission, wall_ns: int) -> list[Outcome]:
        """Admit all candidates, compacting wherever a chain has become long enough.

        Works in rounds, see the head of the module. Vectors that are finished early are set aside
        when fewer than half still have candidates, so that one long chain does not make every round
        as expensive as the first.

        Args:
            admission: the candidates.
            wall_ns: the time of the call, from which undelivered deltas count.

        Returns:
            Vectors that leave and the reports of their compactions, in the order of the deltas that
            caused them.
        """
        made: list[Delivery] = []
        done: list[tuple[Int64s, Chains]] = []
        chains = self.chains
        active = np.arange(len(chains.ids))
        rounds = 0
        while True:
            chains, accepted = admission.admit(chains, self.next_length[active] - chains.pending)
            rounds += 1
            # The delta that filled a chain dates its compaction among all outcomes.
            accepted.setflags(write=False)
            cause = _last_decision(admission.vec, admission.decided_by, accepted, len(active))
            fresh = active[cause >= 0]
            self.undelivered_ns[fresh] = np.minimum(self.undelivered_ns[fresh], wall_ns)
            full = np.flatnonzero(chains.pending >= self.next_length[active])
            if len(full):
                chains, delivered = self._compact(chains, active, full, cause, admission)
                made += delivered
            still = admission.open_vectors()
            if not len(still):
                break
            # Most need no more than two rounds, and parting with the others costs about one.
            if rounds > 1 and 2 * len(still) < len(active):
                finished = np.setdiff1d(np.arange(len(active)), still)
                done.append((active[finished], chains.take(finished)))
                admission.keep_only(still)
                chains, active = chains.take(still), active[still]
        done.append((active, chains))
        self.chains = join_chains(done) if len(done) > 1 else chains
        return _deliveries(made)

    def _compact(
        self, chains: Chains, active: Int64s, full: Int64s, cause: Int64s, admission: DeltaAdmission
    ) -> tuple[Chains, list[Delivery]]:
        """Compact full chains.

        Args:
            chains: the chains of this round.
            active: the vectors of this set they are.
            full: positions among `chains` that reached their threshold.
            cause: per chain the candidate that was decided last, which dates the delivery.
            admission: told where ids are now.

        Returns:
            The chains after, and what leaves. A chain that the strategy could not shorten is not
            delivered.
        """
        self.compacted[active[full]] = True
        compactor = self.compactor
        part = chains.take(full) if len(full) < len(chains.ids) else chains
        forced = part.pending >= compactor.max_chain_length
        plan = compactor.plan(part, forced=forced).among(full, chains)
        result = compactor.carry_out(chains, plan)
        after = result.chains
        # A chain that could not be shortened is tried again a quarter of the threshold later, or
        # at the hard limit if that comes first.
        left = after.pending[full]
        retry = left + max(1, compactor.delta_threshold // 4)
        below = left < compactor.max_chain_length
        retry = np.where(below, np.minimum(retry, compactor.max_chain_length), retry)
        short = left < compactor.delta_threshold
        self.next_length[active[full]] = np.where(short, compactor.delta_threshold, retry)
        changed = np.flatnonzero(result.changed)
        made = []
        if len(changed):
            made.append(self._delivery(chains, after, changed, active[changed], cause[changed]))
        if after.source is admission.source:
            admission.note_folded(result.folded_rows, result.forgotten)
        else:
            admission.look_up(after)
        return after, made

    def deliver(self, which: Bools, wall_ns: int | None) -> list[Outcome]:
        """Hand on vectors that have undelivered deltas, compacted if the strategy finds something
        to do.
        Args:
            which: a mask of vectors; those without undelivered deltas are skipped.
            wall_ns: the time by the clock; None at the end of the stream: nothing is compacted
                then.

        Returns:
            First the vectors that were not compacted, then those that were with their reports.
        """
        which = which & (self.undelivered_ns < MAX_NS)
        if not which.any():
            return []
        made = []
        if wall_ns is not None:
            chains = self.chains
            result = self.compactor.carry_out(
                chains, self.compactor.plan(chains).only(chains, which)
            )
            changed = np.flatnonzero(result.changed)
            if len(changed):
                made.append(self._delivery(chains, result.chains, changed, changed, changed))
                self.chains = result.chains
                self.next_length[changed] = np.maximum(
                    self.compactor.delta_threshold, self.chains.pending[changed] + 1
                )
                which = which & ~result.changed
        out = _deliveries(made)
        plain = np.flatnonzero(which)
        if len(plain):
            out.insert(0, Collection(*self._vectors(self.chains, plain, plain)))
        return out

    def _delivery(
        self, before: Chains, after: Chains, which: Int64s, own: Int64s, order: Int64s
    ) -> Delivery:
        """What leaves for compacted chains; adds to the counters.

        Args:
            before: the chains before the compaction.
            after: the chains after it.
            which: the compacted ones among them.
            own: the vectors of this set they are.
            order: sort keys for `_deliveries`.
        """
        vectors, newest, lane = self._vectors(after, which, own)
        bytes_before, bytes_after = before.measured(which), after.measured(which)
        report = {
            **self._key_columns(own),
            "vector_id": after.ids.take(pa.array(which)),
            "time_ns": pa.array(newest),
            "strategy": pa.array([self.compactor.strategy.name] * len(which)),
            "deltas_before": pa.array(before.pending[which]),
            "deltas_after": pa.array(after.pending[which]),
            "bytes_before": pa.array(bytes_before),
            "bytes_after": pa.array(bytes_after),
        }
        self.counts["merged"][own] += before.pending[which] - after.pending[which]
        self.counts["bytes_saved"][own] += bytes_before - bytes_after
        self.counts["compactions"][own] += 1
        return Delivery(order, vectors, pa.RecordBatch.from_pydict(report), newest, lane)

    def _vectors(
        self, chains: Chains, which: Int64s, own: Int64s
    ) -> tuple[pa.RecordBatch, Int64s, Int32s]:
        """Compose vectors as output rows, and mark them as delivered.

        Returns:
            The rows (a deleted vector is null), the event time and the lane of each.
        """
        composed = chains.compose(which)
        self.undelivered_ns[own] = MAX_NS
        last = chains.start[1:][which] - 1
        has_rows = chains.pending[which] > 0
        at = chains.last_folded.take(pa.array(which))
        if has_rows.any():
            ids = chains.source.rows.column("delta_id")
            newest_id = ids.take(pa.array(chains.index[np.maximum(last, 0)]))
            at = pc.if_else(pa.array(has_rows), newest_id, at)
        sizes = np.where(composed.exists, chains.dims, 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        flat = composed.vectors[composed.exists].reshape(-1)
        vector = pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(flat), mask=pa.array(~composed.exists)
        )
        columns = {
            **self._key_columns(own),
            "vector_id": chains.ids.take(pa.array(which)),
            "vector": vector,
            "deleted": pa.array(composed.deleted),
            "at_delta": at,
            "delta_count": pa.array(chains.total[which]),
        }
        lane = chains.lane[which].astype(np.int32)
        return pa.RecordBatch.from_pydict(columns), chains.newest_ns[which], lane

    def _key_columns(self, own: Int64s) -> dict[str, pa.Array]:
        """The key columns of the vectors `own`."""
        chosen = pa.array(own)
        return {name: self.keys.column(name).take(chosen) for name in self.keys.schema.names}


def _take_out(
    dims: int, table: pa.RecordBatch, pending: Table, named: VectorNames
) -> tuple[Chains, TakenOut]:
    """Build the chains of some vectors from the state tables.

    Args:
        dims: the length of every vector.
        table: the state table `chains`.
        pending: the state table `pending`, or None.
        named: the vectors; the result is in this order, and those not in the table are empty.

    Returns:
        The chains, and where they came from, for `put_back`.
    """
    ids, lane = named.ids, named.lane
    at = find_vectors(table.column("vector_id"), table.column(LANE).to_numpy(), ids, lane)
    found = np.flatnonzero(at >= 0)
    chosen = take(table.select(checkpoint_schema(dims).names), at[found])
    rows = pa.RecordBatch.from_pylist([], schema=DELTAS)
    index = vec = np.empty(0, np.int64)
    pending_rows = pending_vec = np.empty(0, np.int64)
    if pending is not None and pending.num_rows:
        owner = find_vectors(
            ids.take(pa.array(found)),
            lane[found],
            pending.column("vector_id"),
            pending.column(LANE).to_numpy(),
        )
        pending_rows = np.flatnonzero(owner >= 0)
        rows, owner = take(pending.select(DELTAS.names), pending_rows), owner[pending_rows]
        pending_vec = found[owner]
        # Those of a vector are in chain order; the vectors themselves may be mixed.
        owner.setflags(write=False)
        index, vec = _group_by_vector(owner, len(found))
    old = chains_from_tables(chosen, rows, index, vec, lane[found], checked=True)
    new = np.flatnonzero(at < 0)
    fresh = Chains.empty(dims, ids.take(pa.array(new)), lane[new])
    return join_chains([(found, old), (new, fresh)]), TakenOut(
        table, pending, at, pending_rows, pending_vec
    )


def _without(table: pa.RecordBatch, rows: Int64s) -> list[pa.RecordBatch]:
    """The table without some rows, as a list of batches (see `FEW_ROWS`)."""
    if not len(rows):
        return [table]
    if len(rows) == table.num_rows:
        return []
    if len(rows) > FEW_ROWS:
        stays = np.ones(table.num_rows, np.bool_)
        stays[rows] = False
        return [take(table, np.flatnonzero(stays))]
    edges = [-1, *np.sort(rows).tolist(), table.num_rows]
    parts = (table.slice(a + 1, b - a - 1) for a, b in pairwise(edges) if b - a > 1)
    return list(parts)


def _without_folded_ids(table: pa.RecordBatch) -> pa.RecordBatch:
    """The table of chains with the columns of folded ids set to null."""
    for name in ("covered", "covered_ns"):
        at = table.schema.get_field_index(name)
        column = table.schema.field(at)
        table = table.set_column(at, column, pa.nulls(table.num_rows, column.type))
    return table


def _require_columns(
    table: str, rows: pa.RecordBatch, schema: pa.Schema, nullable: Container[str]
) -> None:
    """Check the columns of a state table that came from a snapshot.

    Args:
        table: its name, for the message.
        rows: the table.
        schema: the columns it must have, in these types; it may have others.
        nullable: columns that may hold nulls.

    Raises:
        StateError: a column is missing, of another type, or has nulls.
    """
    for wanted in schema:
        index = rows.schema.get_field_index(wanted.name)
        if index < 0:
            raise StateError(f"state table {table} has no column {wanted.name}")
        column = rows.column(index)
        if not column.type.equals(wanted.type):
            raise StateError(f"state table {table}: column {wanted.name} is {column.type}")
        if column.null_count and wanted.name not in nullable:
            raise StateError(f"state table {table}: column {wanted.name} has nulls")


def _deliveries(made: list[Delivery]) -> list[Outcome]:
    """Join deliveries into one collection and one side table, in the order of the deltas that
    caused them."""
    if not made:
        return []
    order = np.argsort(np.concatenate([part.order for part in made]), kind="stable")
    chosen = pa.array(order)
    vectors = pa.concat_batches([part.vectors for part in made]).take(chosen)
    reports = pa.concat_batches([part.reports for part in made]).take(chosen)
    newest = np.concatenate([part.time_ns for part in made])[order]
    lane = np.concatenate([part.lane for part in made])[order]
    return [Collection(vectors, newest, lane), Side("compactions", reports, lane)]


def _side_by_side(work: list[Callable[[], Any]], rows: int) -> list[Any]:
    """Call functions, in threads if there are at least `MANY` rows; below, threads cost more than
    they save."""
    return [do() for do in work] if rows < MANY else each(lambda do: do(), work)


# -- the stage ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compact(Operator):
    """Keeps the chains of many vectors short, and hands their vectors on.

    Rows are deltas (columns as in `operations.DELTAS`; those missing are null). Vectors leave with
    the columns `keys`, `vector_id`, `vector` (null if deleted), `deleted`, `at_delta` (the id of
    the last delta in it) and `delta_count` (its version). Deltas that are refused leave as dropped
    rows with a reason, those that belong before a folded place as late ones; what compactions did
    leaves as the side table `compactions`.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> from tidegate.deltas import Add, VectorDelta
        >>> rows = rows_from([VectorDelta(f"d{n}", "v", Add([1.0]), n) for n in range(3)])
        >>> stage = Compact(1, "full_merge", delta_threshold=3)
        >>> out = stage.process(stage.open(), Collection.of(rows, np.arange(3)))
        >>> out[0].rows.column("vector").to_pylist()
        [[3.0]]
    """

    dims: int
    """The length of every vector (at least 1). Deltas of another length are refused."""
    strategy: Strategy | str | Mapping[str, Any] = "tiered_merge"
    """What a compaction folds or merges: a strategy, its name, or a mapping as in a definition."""
    delta_threshold: int = 100
    """Pending deltas at which a chain is compacted and its vector leaves (at least 1)."""
    time_threshold: Duration | None = "60 s"
    """Wall time after which a vector leaves at the latest, counted from its first undelivered
    delta. None: nothing leaves by the clock; only compactions and the end deliver."""
    max_chain_length: int = 1000
    """Pending deltas at which a chain is shortened whatever the strategy and the retention say."""
    retention: Duration | None = None
    """Deltas younger than this (event time) stay as they are. None: no such limit."""
    remember: Duration | None = "7 d"
    """How long (event time) ids of folded deltas are kept to recognise duplicates. None: for ever;
    the state then grows with every delta."""
    parent_wait: Duration = "10 s"
    """How long (event time) a delta waits for a parent that has not come."""
    max_waiting: int = 1000
    """Deltas per vector that may wait at once; more are refused."""
    time_column: str | None = None
    """The int64 column with a delta's own time in ns, where that is not the row's event time
    (behind a window stage, for instance). None: the event time."""
    keys: tuple[str, ...] = ()
    """Columns that are carried through to the vectors (the value of the first delta of a vector in
    a collection). A single name is one column."""
    compactor: Compactor = field(init=False, repr=False, compare=False)
    """The thresholds and the strategy, parsed."""
    limits: ParentLimits = field(init=False, repr=False, compare=False)
    """`parent_wait` and `max_waiting`, parsed."""

    name: ClassVar[str] = "compact"
    adopts: ClassVar[Mapping[str, str]] = {
        "strategy": "holds from the next compaction on",
        "delta_threshold": "holds for a vector from its next compaction on",
        "time_threshold": "holds for everything that was not delivered yet",
        "max_chain_length": "holds from the next delta on",
        "retention": "holds from the next compaction on",
        "remember": "holds from the next compaction on; ids forgotten before stay forgotten",
        "parent_wait": "holds for deltas that wait, too",
        "max_waiting": "holds from the next delta on",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "dims": "the vectors in the state have the old length",
        "time_column": "the chains in the state are ordered by the old times",
        "keys": "the state is kept by key",
    }
    held_tables: ClassVar[tuple[str, ...]] = ("waiting",)

    def __post_init__(self) -> None:
        int_in("dims", self.dims, 1, 2**31 - 1)  # the length of a list of Arrow
        column_name("time_column", self.time_column)
        compactor = Compactor(
            self.strategy,  # type: ignore[arg-type]  # read there
            self.delta_threshold,
            self.time_threshold,
            self.max_chain_length,
            self.retention,
            self.remember,
        )
        limits = ParentLimits(
            duration("parent_wait", self.parent_wait), int_in("max_waiting", self.max_waiting, 0)
        )
        set_ = object.__setattr__
        set_(self, "strategy", compactor.strategy)
        set_(self, "keys", tuple(k for k in names("keys", self.keys) if k != "vector_id"))
        set_(self, "compactor", compactor)
        set_(self, "limits", limits)

    def layout(self) -> Layout:
        counters = {name: Column(np.int64) for name in COUNTERS}
        due = {"due_ns": Column(np.int64, fill=MAX_NS)}
        return Layout(counters | due, ("chains", "pending", "waiting"))

    def invariants(self, state: State) -> None:
        """Check a restored state before a kernel sees it.

        Tables must have the right columns, vectors the right length and one row each, and pending
        deltas must be usable and belong to a vector: kernels use indices without checking them.

        Raises:
            StateError: one of these does not hold.
        """
        chains, pending, waiting = (state.tables[n] for n in ("chains", "pending", "waiting"))
        require_int64(state, "chains", NEXT, UNDELIVERED)
        if chains is not None and chains.num_rows:
            needed = checkpoint_schema(self.dims)
            _require_columns("chains", chains, needed, nullable=("at_delta", "sealed_key"))
            missing = [name for name in self.keys if name not in chains.schema.names]
            if missing:
                raise StateError(f"state table chains has no column {missing[0]}")
            sizes = [chains.column(n).value_lengths() for n in ("covered", "covered_ns")]
            if not sizes[0].equals(sizes[1]):
                raise StateError("state table chains: folded ids and their times do not agree")
            if (
                chains.column("covered").flatten().null_count
                + chains.column("vector").flatten().null_count
            ):
                raise StateError(
                    "state table chains: a folded id or a value of a vector is missing"
                )
            where = pa.table({"id": chains.column("vector_id"), "lane": chains.column(LANE)})
            if where.group_by(["id", "lane"]).aggregate([]).num_rows < chains.num_rows:
                raise StateError("state table chains names a vector twice")
        if pending is not None and pending.num_rows:
            some = DELTAS.names[:5]
            _require_columns(
                "pending", pending, DELTAS, nullable=set(DELTAS.names) - set(some) | {"parent"}
            )
            if not DeltaRows(pending.select(DELTAS.names)).usable(self.dims):
                raise StateError("state table pending holds a delta that cannot be applied")
            nowhere = (
                chains is None
                or (
                    find_vectors(
                        chains.column("vector_id"),
                        chains.column(LANE).to_numpy(),
                        pending.column("vector_id"),
                        pending.column(LANE).to_numpy(),
                    )
                    < 0
                ).any()
            )
            if nowhere:
                raise StateError("state table pending holds a delta of no vector")
        if waiting is not None and waiting.num_rows:
            require_int64(state, "waiting", TIME)
            self._deltas(waiting)

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """Deadlines follow from the undelivered deltas and the new threshold."""
        made = state.conformed(self.layout(), self.name)
        if old["time_threshold"] == self.settings()["time_threshold"]:
            return Adopted(made, [])
        made["due_ns"][:] = MAX_NS
        threshold, chains = self.compactor.time_threshold_ns, made.tables["chains"]
        if threshold is not None and chains is not None and chains.num_rows:
            require_int64(made, "chains", UNDELIVERED)
            since, lane = chains.column(UNDELIVERED).to_numpy(), chains.column(LANE).to_numpy()
            open_ = since < MAX_NS - threshold
            np.minimum.at(made["due_ns"], lane[open_], since[open_] + threshold)
        return Adopted(made, [])

    @classmethod
    def release(cls, state: State, settings: Mapping[str, Any]) -> list[Outcome]:
        """Deltas behind the checkpoints, and those that wait for a parent. Vectors that were
        delivered are no rows; deltas folded since are told by their number."""
        out = super().release(state, settings)
        pending = state.tables.get("pending")
        if pending is not None and pending.num_rows:
            out.append(left_behind(pending, pending.column("time_ns").to_numpy()))
        return out

    def schema(self, rows: pa.Schema) -> pa.Schema:
        needed = [("compact", name) for name in ("delta_id", "vector_id", "op")]
        needed += [("keys", key) for key in self.keys]
        needed += [("time_column", self.time_column)] if self.time_column else []
        for setting, column in needed:
            if rows.get_field_index(column) < 0:
                have = ", ".join(rows.names)
                raise ConfigError(setting, column, f"must be a column of the rows: {have}")
        self.check_input(rows)
        return pa.schema(
            [
                *(rows.field(name) for name in self.keys),
                pa.field("vector_id", pa.string()),
                pa.field("vector", pa.list_(pa.float64())),
                pa.field("deleted", pa.bool_()),
                pa.field("at_delta", pa.string()),
                pa.field("delta_count", pa.int64()),
            ]
        )

    def check_input(self, rows: pa.Schema) -> None:
        check_delta_types(rows, given_time=True)
        at = -1 if self.time_column is None else rows.get_field_index(self.time_column)
        if at >= 0 and not pa.types.is_integer(rows.field(at).type):
            expected = f"must be a column of whole numbers (ns), has type {rows.field(at).type}"
            raise ConfigError("time_column", self.time_column, expected)

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        return {
            "compactions": pa.schema(
                [
                    *(rows.field(name) for name in self.keys),
                    pa.field("vector_id", pa.string()),
                    pa.field("time_ns", pa.int64()),
                    pa.field("strategy", pa.string()),
                    pa.field("deltas_before", pa.int64()),
                    pa.field("deltas_after", pa.int64()),
                    pa.field("bytes_before", pa.int64()),
                    pa.field("bytes_after", pa.int64()),
                ]
            )
        }

    def compile(self) -> None:
        # A child before its parent, a run to merge, a prefix to fold: every kernel gets its turn.
        rows = rows_from(
            [
                VectorDelta("a", "v", Offset(1.0), 1, parent="b"),
                *(VectorDelta(name, "v", Offset(1.0), 2) for name in "bcd"),
                VectorDelta("e", "v", Offset(1.0), 9),
            ]
        )
        for strategy in (FullMerge(), TimeBoundary(4)):
            stage = Compact(1, strategy, delta_threshold=5)
            stage.process(stage.open(), Collection.of(rows, rows.column("time_ns").to_numpy()))

    # -- transitions ------------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        given = InputRows.of(collection, state.tables["waiting"])
        deltas = DeltaRows(self._deltas(given.rows))
        ids = pc.fill_null(deltas.rows.column("vector_id"), "")
        work = [ids.dictionary_encode, lambda: deltas.usable(self.dims), lambda: deltas.nbytes]
        encoded = _side_by_side(work, deltas.size)[0]
        named, vec = given.vectors(self.keys, encoded)
        working_set = WorkingSet(self.compactor, self.dims, state, named)
        admission = DeltaAdmission(working_set.chains, deltas, vec, self.limits, given.order)
        out = working_set.admit(admission, collection.wall_ns)
        working_set.put_back(state, admission)
        waits = admission.waiting()
        if len(waits) or state.tables["waiting"] is not None:
            rows = take(given.rows, given.index_of(waits)) if len(waits) else None
            state.tables["waiting"] = rows
        return out + self._refused(state, given, admission)

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        waited = state.tables["waiting"]
        if waited is None or not waited.num_rows:
            return [watermark]
        now = np.full(state.lanes, UNSET, np.int64)
        now[watermark.lane] = watermark.time_ns
        return [*self._orphans(state, waited, now), watermark]

    def uses_wall_time(self) -> bool:
        return self.time_threshold is not None

    def wake_at(self, state: State) -> int | None:
        due = int(state["due_ns"].min())
        return None if due == MAX_NS else due

    def resume(self, state: State, wall_ns: int) -> None:
        """Follow a clock that was set back: deltas that came in what is the future now came now. A
        break alone changes nothing: what is overdue is delivered."""
        table, threshold = state.tables["chains"], self.compactor.time_threshold_ns
        if threshold is None or table is None or not table.num_rows:
            return
        since = table.column(UNDELIVERED).to_numpy()
        ahead = (since > wall_ns) & (since < MAX_NS - threshold)
        if not ahead.any():
            return
        at = table.schema.get_field_index(UNDELIVERED)
        again = pa.array(np.where(ahead, wall_ns, since))
        state.tables["chains"] = table.set_column(at, table.schema.field(at), again)
        lanes = np.unique(table.column(LANE).to_numpy()[ahead])
        state["due_ns"][lanes] = np.minimum(state["due_ns"][lanes], wall_ns + threshold)
        state.touch(lanes)

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        lanes = np.flatnonzero(state["due_ns"] <= wall_ns)
        if not len(lanes):
            return []
        state.touch(lanes)
        working_set = WorkingSet.of_lanes(self.compactor, self.dims, state, lanes, keys=self.keys)
        threshold = self.compactor.time_threshold_ns or 0
        out = working_set.deliver(working_set.undelivered_ns <= wall_ns - threshold, wall_ns)
        working_set.put_back(state)
        return out

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        which: Int64s = (
            np.arange(state.lanes) if lanes is None else np.unique(lanes).astype(np.int64)
        )
        out: list[Outcome] = []
        working_set = WorkingSet.of_lanes(
            self.compactor, self.dims, state, which, keys=self.keys, forget_ids=True
        )
        if len(working_set.chains.ids):
            out += working_set.deliver(working_set.undelivered_ns < MAX_NS, None)
        waited = state.tables["waiting"]
        if waited is not None and waited.num_rows:
            now = np.full(state.lanes, UNSET, np.int64)
            now[which] = MAX_NS
            out += self._orphans(state, waited, now)
        counted = {name: state[name][which].copy() for name in COUNTERS}
        state.free(which)
        for name, values in counted.items():  # what was counted stays counted
            state[name][which] = values
        return out

    def discard(self, state: State) -> dict[str, int]:
        gone = {name: state.rows(name) for name in ("pending", "waiting")}
        state.free(np.arange(state.lanes))
        return gone

    def metrics(self, state: State) -> dict[str, int | float]:
        out: dict[str, int | float] = {name: int(state[name].sum()) for name in COUNTERS}
        held = state.rows("pending") + state.rows("waiting")
        return out | {"chains_held": state.rows("chains"), "rows_held": held}

    # -- rows that do not get into a chain --------------------------------------------------------

    def _deltas(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Input rows in the schema `DELTAS`; the time is the event time, or that of `time_column`.

        Raises:
            ConfigError: a column has a type that cannot be read.
        """
        self.check_input(rows.schema)
        if self.time_column is None:
            return normalise(rows, rows.column(TIME).to_numpy())
        return normalise(with_columns(rows, {"time_ns": rows.column(self.time_column)}))

    def _refused(self, state: State, given: InputRows, admission: DeltaAdmission) -> list[Outcome]:
        """Count what became of the candidates, and make outcomes of those that were not admitted.

        Duplicates leave as dropped rows but are counted apart: after a replay they are expected.
        """
        verdict, lane, counters = admission.verdict, given.lane, state.arrays
        for name, code in (
            ("accepted", DeltaVerdict.ACCEPTED),
            ("duplicates", DeltaVerdict.DUPLICATE),
            ("late", DeltaVerdict.LATE),
        ):
            counters[name][:] += np.bincount(lane[verdict == code], minlength=state.lanes)
        refused = admission.refused()
        if not len(refused):
            return []
        is_late = verdict[refused] == DeltaVerdict.LATE
        late, dropped = refused[is_late], refused[~is_late]
        np.add.at(counters["refused"], lane[dropped][verdict[dropped] != DeltaVerdict.DUPLICATE], 1)
        out: list[Outcome] = []
        if len(late):
            index = given.index_of(late)
            time_ns = given.rows.column(TIME).to_numpy()[index]
            out.append(Late(given.own_rows(index), time_ns, lane[late], admission.late_by_ns[late]))
        if len(dropped):
            out.append(given.dropped(given.index_of(dropped), admission.reasons(dropped)))
        return out

    def _orphans(self, state: State, waited: pa.RecordBatch, now_ns: Int64s) -> list[Outcome]:
        """Refuse waiting rows whose parent did not come in time.

        Args:
            state: the state; the rows are removed from its table `waiting`.
            waited: that table.
            now_ns: event time per lane; UNSET: nothing expires there, MAX_NS: everything does.
        """
        lane = waited.column(LANE).to_numpy()
        limit, wait = now_ns[lane], self.limits.wait_ns
        time_ns = self._deltas(waited).column("time_ns").to_numpy()
        low = UNSET + 1 + wait
        over = (limit >= low) & (time_ns <= np.maximum(limit, low) - wait)
        over |= limit == MAX_NS
        if not over.any():
            return []
        state.tables["waiting"] = waited.filter(pa.array(~over))
        state.touch(np.unique(lane[over]))
        rows = np.flatnonzero(over)
        np.add.at(state["refused"], lane[rows], 1)
        parents = waited.column("parent").take(pa.array(rows)).to_pylist()
        reasons = [DeltaVerdict.ORPHAN.sentence(parent=parent) for parent in parents]
        return [InputRows(waited, None, lane).dropped(rows, reasons)]
