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

from tidegate.core.deltas import kernels
from tidegate.core.deltas.chains import Chains, Covered, seal_keys
from tidegate.core.deltas.rows import DELTAS
from tidegate.core.deltas.taking import take_rows
from tidegate.core.model import Int64s

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


@dataclass(frozen=True)
class Folded:
    """New chains, and per vector: rows that went into another, and errors of those left alone."""

    chains: Chains
    merged: Int64s
    """Deltas less than before: folded rows, and rows of merged runs but one each."""
    changed: NDArray[np.bool_]
    errors: dict[int, str] = field(default_factory=dict)


def fold(chains: Chains, plan: Plan, remember_ns: int | None = None) -> Folded:
    """Carry out the plan; the ids of folded deltas older than `remember_ns` are forgotten."""
    wanted = plan.changes(chains)
    errors = {v: text for v, text in chains.errors.items() if wanted[v]}
    if errors:
        wanted[list(errors)] = False
        plan = plan.only(chains, wanted)
    n, vectors = len(chains.vec), len(chains)
    inside = np.arange(n) - chains.start[:-1][chains.vec]
    folded = inside < plan.fold[chains.vec]
    # 1. the checkpoints
    touched = np.flatnonzero(plan.fold > 0)
    slot_of = np.full(vectors, -1, np.int64)
    slot_of[touched] = np.arange(len(touched))
    out, dead = chains.bases(touched), chains.dead[touched]
    rows = np.flatnonzero(folded)
    chains.block.apply(out, dead, rows, slot_of[chains.vec[rows]])
    good = kernels.finite_rows(out) | dead
    if not good.all():
        for v in touched[~good].tolist():
            errors[v] = "the composed vector is not finite"
        wanted[touched[~good]] = False
        plan = plan.only(chains, wanted)
        folded &= wanted[chains.vec]
        out, dead, touched = out[good], dead[good], touched[good]
        rows = np.flatnonzero(folded)
    # 2. the runs
    run = np.full(n, -1, np.int64) if plan.run is None else plan.run.copy()
    run[folded] = -1
    edge = np.flatnonzero(run >= 0)
    new_run = np.ones(len(edge), np.bool_)
    new_run[1:] = (run[edge[1:]] != run[edge[:-1]]) | (edge[1:] != edge[:-1] + 1)
    start = edge[new_run]
    stop = np.concatenate([edge[np.flatnonzero(new_run)[1:] - 1] + 1, edge[-1:] + 1])
    several = stop - start > 1
    start, stop = start[several].astype(np.int64), stop[several].astype(np.int64)
    made = chains.block.merge(start, stop, chains.dims)
    fine = made.fine
    gone = folded.copy()
    for_merge = np.zeros(n + 1, np.int64)
    for_merge[start[fine]] += 1
    for_merge[stop[fine]] -= 1
    in_run = np.cumsum(for_merge[:-1]) > 0
    gone |= in_run
    # 3. what is pending now: kept rows, with each merged row where its run began
    keep = np.flatnonzero(~gone)
    place = np.argsort(np.concatenate([keep, start[fine]]), kind="stable")
    if len(start[fine]):
        merged_rows = _merged_rows(chains, start[fine], stop[fine], made.columns(), fine)
        pending = pa.concat_batches([take_rows(chains.rows, keep), merged_rows])
        pending = take_rows(pending, place)
    elif len(keep) == n:
        pending = chains.rows
    else:
        pending = take_rows(chains.rows, keep)
    vec = np.concatenate([chains.vec[keep], chains.vec[start[fine]]])[place]
    less = np.bincount(chains.vec, minlength=vectors) - np.bincount(vec, minlength=vectors)
    new = replace(chains, rows=pending, vec=vec)
    new = _sealed(new, chains, gone)
    if len(touched):
        new = _checkpointed(new, chains, plan, touched, out, dead, rows, remember_ns)
    return Folded(new, less.astype(np.int64), less > 0, errors)


def _merged_rows(
    chains: Chains,
    start: Int64s,
    stop: Int64s,
    columns: dict[str, pa.Array],
    fine: NDArray[np.bool_],
) -> pa.RecordBatch:
    """The rows that stand for the runs: named and dated after their last delta."""
    rows = chains.rows
    last = rows.take(pa.array(stop - 1))
    times = chains.block.time_ns
    since = pc.fill_null(rows.column("first_ns"), pa.scalar(2**63 - 1)).to_numpy()
    flat, ends = _ids_of(chains)
    size = stop - start
    member = (
        np.repeat(start, size) + np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    )
    cut = np.cumsum(size) - size
    made = {
        **{name: columns[name].filter(pa.array(fine)) for name in columns},
        "time_ns": pa.array(np.maximum.reduceat(times[member], cut)),
        "first_ns": pa.array(np.minimum.reduceat(np.minimum(times, since)[member], cut)),
        "parent": pa.nulls(len(start), pa.string()),
        "metadata": pa.nulls(len(start), pa.string()),
    }
    offsets = np.concatenate([[0], np.cumsum(ends[stop] - ends[start])])
    picked = np.repeat(ends[start] - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
    made["covers"] = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), flat.take(pa.array(picked))
    )
    return pa.RecordBatch.from_arrays(
        [made.get(f.name, last.column(f.name)) for f in DELTAS], schema=DELTAS
    )


def _ids_of(chains: Chains) -> tuple[pa.Array, Int64s]:
    """All ids the pending rows stand for, flat, and where each row's begin."""
    ids, covers = chains.rows.column("delta_id"), chains.rows.column("covers")
    ends = np.concatenate([[0], np.cumsum(chains.sizes)]).astype(np.int64)
    if covers.null_count == len(covers):
        return ids, ends
    listed = covers.is_valid().to_numpy(zero_copy_only=False)
    both = pa.concat_arrays([ids, covers.flatten()])
    from_list = np.repeat(listed, chains.sizes)
    place = np.empty(ends[-1], np.int64)
    place[~from_list] = np.flatnonzero(~listed)
    place[from_list] = len(ids) + np.arange(int(from_list.sum()))
    return both.take(pa.array(place)), ends


def _last_of(chains: Chains, chosen: NDArray[np.bool_]) -> Int64s:
    """Per vector the last of the chosen rows, -1 if there is none."""
    last = np.full(len(chains), -1, np.int64)
    rows = np.flatnonzero(chosen)
    last[chains.vec[rows]] = rows
    return last


def _sealed(new: Chains, old: Chains, gone: NDArray[np.bool_]) -> Chains:
    """Move the seal behind the newest row that went into another."""
    time_ns = old.block.time_ns
    top = np.full(len(old), np.iinfo(np.int64).min, np.int64)
    np.maximum.at(top, old.vec[gone], time_ns[gone])
    last = _last_of(old, gone & (time_ns == top[old.vec]))
    moved = np.flatnonzero((last >= 0) & (top >= old.sealed_ns))
    if not len(moved):
        return new
    sealed_ns = old.sealed_ns.copy()
    sealed_ns[moved] = top[moved]
    keys = seal_keys(old.rows.take(pa.array(last[moved])))
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
) -> Chains:
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
    flat, ends = _ids_of(old)
    size = old.sizes[rows]
    count = old.count + np.bincount(old.vec[rows], size, len(old)).astype(np.int64)
    picked = np.repeat(ends[rows] - (np.cumsum(size) - size), size) + np.arange(size.sum())
    ids = flat if len(picked) == len(flat) else flat.take(pa.array(picked))
    covered = old.covered.plus(
        Covered(ids, np.repeat(old.vec[rows], size), np.repeat(old.block.time_ns[rows], size))
    )
    if remember_ns is not None:
        # Only chains that fold forget, and by their own newest delta: so the moment is in the data.
        newest = old.newest_ns[covered.vec]
        folding = plan.fold[covered.vec] > 0
        limit = np.where(newest >= remember_ns - 2**63 + 1, newest - remember_ns, -(2**63))
        keep = ~folding | (covered.time_ns >= limit)
        if not keep.all():
            covered = covered.where(keep)
    return replace(
        new,
        vectors=vectors,
        dead=tombs,
        has=has,
        count=count,
        at=_put(old.at, touched, old.rows.column("delta_id").take(pa.array(last))),
        folded_ns=folded_ns,
        covered=covered,
    )
