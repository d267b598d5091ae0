"""Overlapping windows from sub-windows that do not overlap.

A sliding window that emits once, when complete, is the union of whole sub-windows of length
gcd(size, step): every row is accumulated once, whatever the overlap, and the windows the watermark
has passed are put together from accumulators (or from the rows of their sub-windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.windows import numbers as k
from tidegate.windows.call import Call
from tidegate.windows.emission import Emits, expand


@dataclass
class Combined:
    """The windows to emit, and of which entries (sub-windows) each consists, in order of start."""

    emits: Emits
    window: Int64s
    entry: Int64s

    def slots(
        self, entry: Int64s, code: Int64s, size: int, codes: int
    ) -> tuple[Int64s, NDArray[Any]]:
        """New slots behind the `size` there are, one per window and group: the window of each, and
        the steps that merge the sub-windows' slots into them."""
        by = np.argsort(entry, kind="stable")
        ranked = entry[by]
        first = np.searchsorted(ranked, self.entry)
        last = np.searchsorted(ranked, self.entry, "right")
        source = by[expand(first, last)]
        window = np.repeat(self.window, last - first)
        pairs, slot = np.unique(window * np.int64(codes) + code[source], return_inverse=True)
        steps = np.zeros((len(source), 4), np.int64)
        steps[:, 0] = k.STEP_MERGE
        steps[:, 1] = size + slot
        steps[:, 2] = source
        return pairs // codes, steps

    def rows(self, owner: Int64s) -> tuple[Int64s, Int64s]:
        """The buffered rows of each window."""
        by = np.argsort(owner, kind="stable")
        ranked = owner[by]
        first = np.searchsorted(ranked, self.entry)
        last = np.searchsorted(ranked, self.entry, "right")
        return by[expand(first, last)], np.repeat(self.window, last - first)


def combine(call: Call, before: Int64s, after: Int64s, reason: int) -> Combined:
    """The windows whose end lies in (before, after] of their lane; spent sub-windows are closed."""
    cfg = call.cfg
    span, stride, offset = int(cfg[k.C_SPAN]), int(cfg[k.C_STRIDE]), int(cfg[k.C_OFFSET])
    used = call.entries[: call.n_entries]
    lane, start, end = used[:, k.E_LANE], used[:, k.E_START], used[:, k.E_END]
    newest = (start - offset) // stride * stride + offset
    old, new = before[lane], after[lane]
    starts, entries = [], []
    for back in range(-(-span // stride)):
        first = newest - back * stride
        done = first + span - 1
        found = np.flatnonzero((first + span >= end) & (done > old) & (done <= new))
        starts.append(first[found])
        entries.append(found)
    begin, entry = np.concatenate(starts), np.concatenate(entries)
    order = np.lexsort((start[entry], begin, lane[entry]))
    begin, entry = begin[order], entry[order]
    owner = lane[entry]
    fresh = np.ones(len(begin), np.bool_)
    fresh[1:] = (begin[1:] != begin[:-1]) | (owner[1:] != owner[:-1])
    window = np.cumsum(fresh) - 1
    begin, owner = begin[fresh], owner[fresh]
    used[newest + span - 1 <= new, k.E_DEAD] = 1
    zero = np.zeros(len(begin), np.int64)
    emits = Emits(owner, begin, begin + span, zero, zero, zero, np.full(len(begin), reason))
    return Combined(emits, window, entry)
