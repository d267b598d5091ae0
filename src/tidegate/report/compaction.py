"""How long the chains of a run are and what compaction made of them, per micro-batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.profile.statistics import Spread
from tidegate.report.cells import integers
from tidegate.report.stored import MICRO_BATCH, StoredRun

__all__ = ["chain_levels", "compaction_of"]

_STAGE = "compact."


def chain_levels(metrics: list[dict[str, int]]) -> dict[str, float] | None:
    """Over all shards that have a compact stage: chains, the deltas in them, their mean length."""
    own = [shard for shard in metrics if f"{_STAGE}chains_held" in shard]
    if not own:
        return None
    names = ("chains_held", "pending_held", "compactions", "bytes_saved")
    chains, deltas, done, saved = (sum(m.get(_STAGE + n, 0) for m in own) for n in names)
    return {
        "chains": chains, "deltas": deltas, "length": deltas / chains if chains else 0.0,
        "compactions": done, "bytes_saved": saved,
    }  # fmt: skip


def compaction_of(run: StoredRun) -> dict[str, Any] | None:
    """Chains before and after each compaction, from the table of them; None if there is none."""
    if "compactions" not in run.kinds:
        return None
    names = ("deltas_before", "deltas_after", "bytes_before", "bytes_after")
    table = run.table("compactions", names)
    before, after, bytes_before, bytes_after = (integers(table, name, 0) for name in names)
    micro = integers(table, MICRO_BATCH)
    batches = np.unique(micro)
    return {
        "count": len(before),
        "before": Spread.of(before).__dict__,
        "after": Spread.of(after).__dict__,
        "bytes_before": int(bytes_before.sum()),
        "bytes_after": int(bytes_after.sum()),
        "by_batch": {
            int(batch): {
                "count": int((micro == batch).sum()),
                "before": float(before[micro == batch].mean()),
                "after": float(after[micro == batch].mean()),
            }
            for batch in batches
        },
    }
