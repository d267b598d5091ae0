"""Carry out a compaction plan: fold prefixes into checkpoints, merge runs into one delta each.

Build, validate, then hand over: a chain with a row that cannot be applied, or whose result would
not be finite, stays exactly as it was and its error is reported beside the others' results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import frozen, kernel
from tidegate.core.outcomes import Int64s
from tidegate.deltas import kernels
from tidegate.deltas.columns import Chains, seal_keys
from tidegate.deltas.covered import Covered
from tidegate.deltas.pool import Pool, spans
from tidegate.deltas.rows import DELTAS
from tidegate.deltas.taking import take_rows

__all__ = ["Folded", "Plan", "fold"]


@dataclass(frozen=True)
class Plan:
    """What to do with each chain: fold its first rows, merge runs of the rest.

    `fold[v]` is how many of its first rows go into the checkpoint; `run[r]` numbers the run that
    pending row r is merged into (rows of a run are neighbours), -1 for a row that stays.
    """

    fold: Int64s
    run: Int64s | None = None

    def changes(self, chains: Chains) -> NDArray[np.bool_]:
        """Per vector: would this change anything?"""
        out: NDArray[np.bool_] = self.fold > 0
        if self.run is not None and len(self.run):
            pair = (self.run[1:] >= 0) & (self.run[1:] == self.run[:-1])
            out[chains.vec[1:][pair]] = True
        return out

    def only(self, chains: Chains, which: NDArray[np.bool_]) -> Plan:
        """The same, for these vectors alone."""
        run = None if self.run is None else np.where(which[chains.vec], self.run, -1)
        return Plan(np.where(which, self.fold, 0), run)

    def among(self, which: Int64s, chains: Chains) -> Plan:
        """This plan for some chains as one for more: `which` of them are meant."""
        if len(which) == len(chains):
            return self
        rows = np.zeros(len(chains), np.int64)
        rows[which] = self.fold
        run = None
        if self.run is not None:
            run = np.full(len(chains.vec), -1, np.int64)
            run[spans(chains.start[which], chains.pending[which])[0]] = self.run
        return Plan(rows, run)


@dataclass(frozen=True)
class Folded:
    """New chains, and per vector: rows that went into another, and errors of those left alone."""

    chains: Chains
    merged: Int64s
    """Deltas less than before: folded rows, and rows of merged runs but one each."""
    changed: NDArray[np.bool_]
    folded: Int64s
    """Rows of the pool that went into checkpoints."""
    forgotten: Covered
    """Ids of folded deltas that are no longer remembered."""
    errors: dict[int, str] = field(default_factory=dict)


def fold(chains: Chains, plan: Plan, remember_ns: int | None = None) -> Folded:
    """Carry out the plan; the ids of folded deltas older than `remember_ns` are forgotten."""
    wanted = plan.changes(chains)
    errors = {v: text for v, text in chains.errors.items() if wanted[v]}
    if errors:
        wanted[list(errors)] = False
        plan = plan.only(chains, wanted)
    # 1. the checkpoints
    touched = np.flatnonzero(plan.fold > 0)
    slot_of = np.full(len(chains), -1, np.int64)
    slot_of[touched] = np.arange(len(touched))
    out, dead = chains.bases(touched), chains.dead[touched]
    folded, rows = _folding(chains, plan)
    place = chains.place if len(rows) == len(folded) else chains.place[rows]
    vec = chains.vec if len(rows) == len(folded) else chains.vec[rows]
    chains.pool.block.apply(out, dead, place, slot_of[vec])
    good = kernels.finite_rows(out) | dead
    if not good.all():
        for v in touched[~good].tolist():
            errors[v] = "the composed vector is not finite"
        wanted[touched[~good]] = False
        plan = plan.only(chains, wanted)
        out, dead, touched = out[good], dead[good], touched[good]
        folded, rows = _folding(chains, plan)
    # 2. what is pending now
    if plan.run is None:
        gone = folded
        keep = np.flatnonzero(~gone)
        new = replace(chains, place=chains.place[keep], vec=chains.vec[keep])
    else:
        new, gone = _merge(chains, plan.run, folded)
    less = chains.pending - np.bincount(new.vec, minlength=len(chains))
    new = _sealed(new, chains, gone)
    forgotten = Covered.none()
    if len(touched):
        new, forgotten = _checkpointed(new, chains, plan, touched, out, dead, rows, remember_ns)
    return Folded(new, less, less > 0, chains.place[rows], forgotten, errors)


def _folding(chains: Chains, plan: Plan) -> tuple[NDArray[np.bool_], Int64s]:
    """The rows that go into checkpoints: as a mask, and by number."""
    n = len(chains.vec)
    if bool((plan.fold == chains.pending).all()):
        return np.ones(n, np.bool_), np.arange(n)
    inside = np.arange(n) - chains.start[:-1][chains.vec]
    folded = inside < plan.fold[chains.vec]
    return folded, np.flatnonzero(folded)


def _merge(
    chains: Chains, run: Int64s, folded: NDArray[np.bool_]
) -> tuple[Chains, NDArray[np.bool_]]:
    """Merge the runs of what is not folded: the chains with kept rows, and each merged row where
    its run began; and the rows that went into something."""
    n = len(folded)
    run = np.where(folded, -1, run)
    edge = np.flatnonzero(run >= 0)
    new_run = np.ones(len(edge), np.bool_)
    new_run[1:] = (run[edge[1:]] != run[edge[:-1]]) | (edge[1:] != edge[:-1] + 1)
    start = edge[new_run]
    stop = np.concatenate([edge[np.flatnonzero(new_run)[1:] - 1] + 1, edge[-1:] + 1])
    several = stop - start > 1
    start, stop = start[several].astype(np.int64), stop[several].astype(np.int64)
    made = chains.block.merge(start, stop, chains.dims)
    fine = made.fine
    for_merge = np.zeros(n + 1, np.int64)
    for_merge[start[fine]] += 1
    for_merge[stop[fine]] -= 1
    gone = folded | (np.cumsum(for_merge[:-1]) > 0)
    keep = np.flatnonzero(~gone)
    if not fine.any():
        return replace(chains, place=chains.place[keep], vec=chains.vec[keep]), gone
    order = np.argsort(np.concatenate([keep, start[fine]]), kind="stable")
    merged_rows = _merged_rows(chains, start[fine], stop[fine], made.columns(), fine)
    pending = pa.concat_batches([take_rows(chains.pool.rows, chains.place[keep]), merged_rows])
    vec = np.concatenate([chains.vec[keep], chains.vec[start[fine]]])[order]
    return replace(chains, pool=Pool(pending), place=order, vec=vec), gone


def _merged_rows(
    chains: Chains,
    start: Int64s,
    stop: Int64s,
    columns: dict[str, pa.Array],
    fine: NDArray[np.bool_],
) -> pa.RecordBatch:
    """The rows that stand for the runs: named and dated after their last delta."""
    pool = chains.pool
    last = pool.rows.take(pa.array(chains.place[stop - 1]))
    times = pool.block.time_ns
    since = pc.fill_null(pool.rows.column("first_ns"), pa.scalar(2**63 - 1)).to_numpy()
    size = stop - start
    member = chains.place[spans(start, size)[0]]
    cut = np.cumsum(size) - size
    made = {
        **{name: columns[name].filter(pa.array(fine)) for name in columns},
        "time_ns": pa.array(np.maximum.reduceat(times[member], cut)),
        "first_ns": pa.array(np.minimum.reduceat(np.minimum(times, since)[member], cut)),
        "parent": pa.nulls(len(start), pa.string()),
        "metadata": pa.nulls(len(start), pa.string()),
    }
    texts, ends = pool.ids
    ids = pool.sizes[member]
    offsets = np.concatenate([[0], np.cumsum(np.add.reduceat(ids, cut))])
    made["covers"] = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), texts.take(pa.array(spans(ends[member], ids)[0]))
    )
    return pa.RecordBatch.from_arrays(
        [made.get(f.name, last.column(f.name)) for f in DELTAS], schema=DELTAS
    )


@kernel
def _newest(
    vec: Int64s, time_ns: Int64s, gone: NDArray[np.bool_], top: Int64s, last: Int64s
) -> None:
    """Per vector the newest time of the rows that are gone, and the last row that has it."""
    for k in range(len(vec)):
        if gone[k] and (last[vec[k]] < 0 or time_ns[k] >= top[vec[k]]):
            top[vec[k]] = time_ns[k]
            last[vec[k]] = k


def _sealed(new: Chains, old: Chains, gone: NDArray[np.bool_]) -> Chains:
    """Move the seal behind the newest row that went into another."""
    top = np.full(len(old), np.iinfo(np.int64).min, np.int64)
    last = np.full(len(old), -1, np.int64)
    _newest(frozen(old.vec), frozen(old.time_ns), frozen(gone), top, last)
    moved = np.flatnonzero((last >= 0) & (top >= old.sealed_ns))
    if not len(moved):
        return new
    sealed_ns = old.sealed_ns.copy()
    sealed_ns[moved] = top[moved]
    keys = seal_keys(old.pool.rows, old.place[last[moved]])
    return replace(new, sealed_ns=sealed_ns, sealed_key=_put(old.sealed_key, moved, keys))


def _put(texts: pa.Array, where: Int64s, values: pa.Array) -> pa.Array:
    place = np.arange(len(texts))
    place[where] = len(texts) + np.arange(len(where))
    return pa.concat_arrays([texts, values]).take(pa.array(place))


def _checkpointed(
    new: Chains,
    old: Chains,
    plan: Plan,
    touched: Int64s,
    out: NDArray[np.float64],
    dead: NDArray[np.bool_],
    rows: Int64s,
    remember_ns: int | None,
) -> tuple[Chains, Covered]:
    tombs, has = old.dead.copy(), old.has.copy()
    out[dead] = 0.0
    vectors = out
    if len(touched) < len(old):
        vectors = old.bases(np.arange(len(old)))
        vectors[touched] = out
    tombs[touched] = dead
    has[touched] = True
    last = old.start[touched] + plan.fold[touched] - 1
    folded_ns = old.folded_ns.copy()
    folded_ns[touched] = np.maximum(folded_ns[touched], old.effective_ns[last])
    fresh = _folded_ids(old, rows)
    count = old.count + np.bincount(fresh.vec, minlength=len(old))
    covered = old.covered.plus(fresh)
    forgotten = Covered.none()
    if remember_ns is not None:
        # Only chains that fold forget, and by their own newest delta: so the moment is in the data.
        newest = old.newest_ns
        forgets = (plan.fold > 0) & (newest >= remember_ns - 2**63 + 1)
        limit = np.where(forgets, np.where(forgets, newest, 0) - remember_ns, -(2**63))
        if bool(covered.time_ns.min() < limit.max()):
            keep = covered.time_ns >= limit[covered.vec]
            if not keep.all():
                covered, forgotten = covered.where(keep), covered.where(~keep)
    new = replace(
        new,
        vectors=vectors,
        dead=tombs,
        has=has,
        count=count,
        at=_put(old.at, touched, old.pool.rows.column("delta_id").take(pa.array(old.place[last]))),
        folded_ns=folded_ns,
        covered=covered,
    )
    return new, forgotten


def _folded_ids(chains: Chains, rows: Int64s) -> Covered:
    """The ids these pending rows stand for."""
    every = len(rows) == len(chains.vec)
    place = chains.place if every else chains.place[rows]
    vec, time_ns = chains.vec, chains.time_ns
    if not every:
        vec, time_ns = vec[rows], time_ns[rows]
    texts, ends = chains.pool.ids
    if not chains.pool.merged:
        return Covered(texts, place, vec, time_ns)
    size = chains.pool.sizes[place]
    flat, owner = spans(ends[place], size)
    return Covered(texts, flat, vec[owner], time_ns[owner])
