"""The chains of a stage while it works on them: out of the state tables, worked on, and back.

Only the vectors a call is about are taken out. Deltas are admitted in rounds: each chain takes as
many as bring it to its next compaction, all chains that got there are compacted together, and on it
goes, so that compactions fall between the same two deltas however the input was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.columns import NEXT, UNDELIVERED
from tidegate.core.numba import frozen
from tidegate.core.outcomes import Collection, Int32s, Int64s, Outcome, Side, with_columns
from tidegate.core.parallel import each
from tidegate.core.state import LANE, State, concat
from tidegate.core.time import MAX_NS
from tidegate.deltas import admission
from tidegate.deltas.codec import checkpoints_of
from tidegate.deltas.columns import Chains
from tidegate.deltas.keeping import (
    by_appearance,
    distinct,
    latest,
    named,
    taken_out,
    together,
    without_covered,
)
from tidegate.deltas.offer import Offer

if TYPE_CHECKING:
    from tidegate.deltas.stage import Arrived, Compact

__all__ = ["Residents"]


@dataclass
class Residents:
    """Some vectors of a stage: their chains, and when each is next compacted and delivered."""

    stage: Compact
    chains: Chains
    next_at: Int64s
    undelivered: Int64s
    """Wall time of the first delta not yet delivered; MAX_NS if there is none."""
    keys: pa.RecordBatch
    rest: dict[str, pa.RecordBatch | None]
    lanes: Int64s
    merged: Int64s
    saved: Int64s
    compactions: Int64s

    # -- out of the state, and back ---------------------------------------------------------------

    @classmethod
    def load(
        cls, stage: Compact, state: State, arrived: Arrived, words: pa.DictionaryArray
    ) -> tuple[Residents, Int64s]:
        """The vectors these rows are about, and of each row of the batch its vector (-1 for those
        that are not meant). `words` are the vector ids of the batch."""
        rows, order, lane = arrived.rows, arrived.order, arrived.lane
        code = words.indices.to_numpy().astype(np.int64)
        if order is not None:
            code = code[order]
        lanes = int(lane.max()) + 1
        if order is not None or lanes > 1:
            code = by_appearance(code, len(words.dictionary))
        if lanes > 1:
            code = code * lanes + lane
        first, vec = distinct(code, len(words.dictionary) * lanes)
        lies = pa.array(first if order is None else order[first])
        ids = words.dictionary.take(words.indices.take(lies))
        keys = rows.select(list(stage.key)).take(lies)
        if order is not None:
            whole = np.full(rows.num_rows, -1, np.int64)
            whole[order] = vec
            vec = whole
        return cls._open(stage, state, ids, lane[first].astype(np.int32), keys), vec

    @classmethod
    def of_lanes(
        cls, stage: Compact, state: State, lanes: Int64s, *, last: bool = False
    ) -> Residents:
        """All vectors of these lanes, by lane and id. If it is for the last time, without the ids
        they have folded: nobody will ask for them again."""
        table = state.tables["chains"]
        if table is None or not table.num_rows:
            none = pa.array([], pa.string())
            return cls._open(stage, state, none, np.empty(0, np.int32), None)
        names = table.select(["vector_id", LANE, *stage.key])
        inside = np.isin(names.column(LANE).to_numpy(), lanes)
        if not inside.all():
            names = names.filter(pa.array(inside))
        names = names.sort_by([(LANE, "ascending"), ("vector_id", "ascending")])
        lane, keys = names.column(LANE).to_numpy(), names.select(list(stage.key))
        return cls._open(stage, state, names.column("vector_id"), lane, keys, last)

    @classmethod
    def _open(
        cls,
        stage: Compact,
        state: State,
        ids: pa.Array,
        lane: Int32s,
        keys: pa.RecordBatch | None,
        last: bool = False,
    ) -> Residents:
        table, pending = state.tables["chains"], state.tables["pending"]
        n = len(ids)
        next_at = np.full(n, stage.delta_threshold, np.int64)
        undelivered = np.full(n, MAX_NS, np.int64)
        rest: dict[str, pa.RecordBatch | None] = {"chains": table, "pending": pending}
        chains = Chains.of(stage.dims, ids, lane)
        if n and table is not None and table.num_rows:
            if last:
                table = without_covered(table)
            chains, at, rest = taken_out(stage.dims, table, pending, ids, lane)
            found = np.flatnonzero(at >= 0)
            next_at[found] = table.column(NEXT).to_numpy()[at[found]]
            undelivered[found] = table.column(UNDELIVERED).to_numpy()[at[found]]
        zeros = np.zeros(n, np.int64)
        empty = keys if keys is not None else pa.RecordBatch.from_arrays([], names=[])
        return cls(
            stage, chains, next_at, undelivered, empty, rest, np.unique(lane),
            zeros, zeros.copy(), zeros.copy(),
        )  # fmt: skip

    def save(self, state: State) -> None:
        """Put the vectors back. Ones that hold nothing are not kept."""
        chains = self.chains
        kept = np.flatnonzero(chains.has | (chains.pending > 0))
        if len(kept) < len(chains):
            chains = chains.take(kept)
        table, (rows, vec) = each(_of, ((checkpoints_of, chains), (Chains.as_they_lie, chains)))
        beside: dict[str, Any] = {
            name: self.keys.column(name).take(pa.array(kept)) for name in self.stage.key
        }
        beside |= {
            NEXT: self.next_at[kept],
            UNDELIVERED: self.undelivered[kept],
            LANE: chains.lane.astype(np.int32),
        }
        pending = with_columns(rows, {LANE: chains.lane[vec].astype(np.int32)})
        state.tables["chains"] = concat([self.rest["chains"], with_columns(table, beside)])
        state.tables["pending"] = concat([self.rest["pending"], pending])
        lane = self.chains.lane
        np.add.at(state["merged"], lane, self.merged)
        np.add.at(state["bytes_saved"], lane, self.saved)
        np.add.at(state["compactions"], lane, self.compactions)
        self._deadlines(state)

    def _deadlines(self, state: State) -> None:
        table = state.tables["chains"]
        assert table is not None
        due = np.full(state.lanes, MAX_NS, np.int64)
        since = table.column(UNDELIVERED).to_numpy()
        threshold = self.stage.compactor.time_threshold_ns
        if threshold is None:
            return
        open_ = since < MAX_NS - threshold
        np.minimum.at(due, table.column(LANE).to_numpy()[open_], since[open_] + threshold)
        state["due_ns"][self.lanes] = due[self.lanes]

    # -- work -------------------------------------------------------------------------------------

    def work(self, offer: Offer, wall_ns: int) -> list[Outcome]:
        """Admit everything on offer, compacting wherever a chain has become long enough."""
        made: list[tuple[Int64s, pa.RecordBatch, pa.RecordBatch, Int64s, Int32s]] = []
        active = np.arange(len(self.chains))
        chains = self.chains
        done: list[tuple[Int64s, Chains]] = []
        rounds = 0
        while True:
            room = self.next_at[active] - chains.pending
            chains, taken = offer.round(chains, room)
            rounds += 1
            # The delta that filled a chain dates its compaction among all outcomes.
            cause = latest(frozen(offer.vec), frozen(offer.decided), frozen(taken), len(active))
            fresh = active[cause >= 0]
            self.undelivered[fresh] = np.minimum(self.undelivered[fresh], wall_ns)
            full = chains.pending >= self.next_at[active]
            if full.any():
                chains, rows = self._compacted(chains, active, full, cause, offer)
                made += rows
            if not offer.open:
                break
            still = named(offer.vec[offer.status == admission.OPEN], len(active))
            # Most need no more than two rounds, and parting with the others costs about one.
            if rounds > 1 and 2 * len(still) < len(active):
                out = np.setdiff1d(np.arange(len(active)), still)
                done.append((active[out], chains.take(out)))
                offer.narrow(still, len(active))
                chains, active = chains.take(still), active[still]
        done.append((active, chains))
        self.chains = together(done) if len(done) > 1 else chains
        return self._outcomes(made)

    def _compacted(
        self,
        chains: Chains,
        active: Int64s,
        full: NDArray[np.bool_],
        cause: Int64s,
        offer: Offer,
    ) -> tuple[Chains, list[Any]]:
        compactor = self.stage.compactor
        due = np.flatnonzero(full)
        part = chains.take(due) if len(due) < len(chains) else chains
        forced = part.pending >= compactor.max_chain_length
        plan = compactor.plan(part, forced=forced).among(due, chains)
        folded = compactor.fold(chains, plan)
        after = folded.chains
        # A chain that could not be shortened is tried again a quarter of the threshold later.
        left = after.pending[due]
        retry = left + max(1, compactor.delta_threshold // 4)
        retry = np.where(left < compactor.max_chain_length,
                         np.minimum(retry, compactor.max_chain_length), retry)  # fmt: skip
        short = left < compactor.delta_threshold
        self.next_at[active[due]] = np.where(short, compactor.delta_threshold, retry)
        changed = np.flatnonzero(folded.changed)
        rows = []
        if len(changed):
            rows.append(self._rows(chains, after, changed, active[changed], cause[changed]))
        if after.pool is offer.pool:
            offer.folded(folded.folded, folded.forgotten)
        else:
            offer.learn(after)
        return after, rows

    def _rows(
        self, before: Chains, after: Chains, which: Int64s, own: Int64s, order: Int64s
    ) -> tuple[Int64s, pa.RecordBatch, pa.RecordBatch, Int64s, Int32s]:
        """What leaves for these vectors: the vectors themselves, and what their compaction did."""
        stage = self.stage
        vectors, newest, lane = self._vectors(after, which, own)
        chosen = pa.array(which)
        bytes_before, bytes_after = before.measured(which), after.measured(which)
        report = {
            **{name: self.keys.column(name).take(pa.array(own)) for name in stage.key},
            "vector_id": after.ids.take(chosen),
            "time_ns": pa.array(newest),
            "strategy": pa.array([stage.compactor.strategy.name] * len(which)),
            "deltas_before": pa.array(before.pending[which]),
            "deltas_after": pa.array(after.pending[which]),
            "bytes_before": pa.array(bytes_before),
            "bytes_after": pa.array(bytes_after),
        }
        self.merged[own] += before.pending[which] - after.pending[which]
        self.saved[own] += bytes_before - bytes_after
        self.compactions[own] += 1
        return order, vectors, pa.RecordBatch.from_pydict(report), newest, lane

    def _vectors(
        self, chains: Chains, which: Int64s, own: Int64s
    ) -> tuple[pa.RecordBatch, Int64s, Int32s]:
        composed = chains.compose(which)
        self.undelivered[own] = MAX_NS
        last = chains.start[1:][which] - 1
        has_rows = chains.pending[which] > 0
        ids = chains.pool.rows.column("delta_id")
        at = chains.at.take(pa.array(which))
        if has_rows.any():
            newest_id = ids.take(pa.array(chains.place[np.maximum(last, 0)]))
            at = pc.if_else(pa.array(has_rows), newest_id, at)
        sizes = np.where(composed.exists, chains.dims, 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        flat = composed.vectors[composed.exists].reshape(-1)
        vector = pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(flat), mask=pa.array(~composed.exists)
        )
        columns = {
            **{name: self.keys.column(name).take(pa.array(own)) for name in self.stage.key},
            "vector_id": chains.ids.take(pa.array(which)),
            "vector": vector,
            "deleted": pa.array(composed.deleted),
            "at_delta": at,
            "delta_count": pa.array(chains.total[which]),
        }
        lane = chains.lane[which].astype(np.int32)
        return pa.RecordBatch.from_pydict(columns), chains.newest_ns[which], lane

    def deliver(self, which: NDArray[np.bool_], wall_ns: int | None) -> list[Outcome]:
        """Hand on these vectors, compacted if the strategy finds something to do.

        Without a wall time (the end of the stream) they are handed on as they are.
        """
        which = which & (self.undelivered < MAX_NS)
        if not which.any():
            return []
        made = []
        if wall_ns is not None:
            compactor = self.stage.compactor
            plan = compactor.plan(self.chains).only(self.chains, which)
            folded = compactor.fold(self.chains, plan)
            changed = np.flatnonzero(folded.changed)
            if len(changed):
                made.append(self._rows(self.chains, folded.chains, changed, changed, changed))
                self.chains = folded.chains
                self.next_at[changed] = np.maximum(
                    self.stage.delta_threshold, folded.chains.pending[changed] + 1
                )
                which = which & ~folded.changed
        out = self._outcomes(made)
        plain = np.flatnonzero(which)
        if len(plain):
            vectors, newest, lane = self._vectors(self.chains, plain, plain)
            out.insert(0, Collection(vectors, newest, lane))
        return out

    def _outcomes(self, made: list[Any]) -> list[Outcome]:
        if not made:
            return []
        order = np.argsort(np.concatenate([part[0] for part in made]), kind="stable")
        vectors = pa.concat_batches([part[1] for part in made]).take(pa.array(order))
        reports = pa.concat_batches([part[2] for part in made]).take(pa.array(order))
        newest = np.concatenate([part[3] for part in made])[order]
        lane = np.concatenate([part[4] for part in made])[order]
        return [Collection(vectors, newest, lane), Side("compactions", reports, lane)]


def _of(work: tuple[Callable[[Chains], Any], Chains]) -> Any:
    return work[0](work[1])
