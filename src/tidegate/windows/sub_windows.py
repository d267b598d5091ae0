"""Overlapping windows (sliding, cumulating) from sub-windows that do not overlap.

A sliding window that emits once, when complete, is the union of whole sub-windows of length
gcd(size, step): every row is accumulated once, whatever the overlap, and the windows the watermark
has passed are put together from accumulators (or from the rows of their sub-windows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.core.arrow import ranges
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernels.layout import Panes, Settings, Step, Steps, Timing
from tidegate.windows.results import Emits


@dataclass
class SubWindows:
    """The windows to emit, and of which panes (sub-windows) each consists, in order of start."""

    emits: Emits
    window: Int64s
    """For each part: the number of its emission,"""
    pane: Int64s
    """and its pane."""

    def slots(self, pane: Int64s, code: Int64s, size: int, codes: int) -> tuple[Int64s, Steps]:
        """New slots behind the `size` there are, one per window and group.

        Args:
            pane: the pane of every slot.
            code: its group.
            size: how many slots there are.
            codes: how many groups there may be.

        Returns:
            The window of each new slot, and the steps that merge the sub-windows' slots into them.
        """
        source, window = self._members(pane)
        pairs, slot = np.unique(window * np.int64(codes) + code[source], return_inverse=True)
        n = len(source)
        what = np.full(n, Step.MERGE, np.int64)
        return pairs // codes, Steps(what, size + slot, source, np.zeros(n, np.int64))

    def rows(self, owner: Int64s) -> tuple[Int64s, Int64s]:
        """The buffered rows of each window, and beside each the number of its emission.

        Args:
            owner: the pane of every buffered row.
        """
        return self._members(owner)

    def _members(self, owner: Int64s) -> tuple[Int64s, Int64s]:
        by = np.argsort(owner, kind="stable")
        ranked = owner[by]
        first = np.searchsorted(ranked, self.pane)
        last = np.searchsorted(ranked, self.pane, "right")
        index, part = ranges(first, last)
        return by[index], self.window[part]


def combine_sub_windows(
    panes: Panes, settings: Settings, before: Int64s, after: Int64s, reason: int
) -> SubWindows:
    """The windows whose end lies in (before, after] of their lane; spent sub-windows are closed.

    Args:
        panes: the sub-windows.
        settings: of the stage; `span` and `stride` are those of the real windows.
        before: the watermark of each lane so far.
        after: the watermark of each lane now.
        reason: why they are emitted.
    """
    span, stride, offset = settings.span, settings.stride, settings.offset
    lane, start, end = panes.lane, panes.start, panes.end
    newest = (start - offset) // stride * stride + offset
    old, new = before[lane], after[lane]
    starts, ends, parts = [], [], []
    for number in range(span // settings.size if settings.cumulate else -(-span // stride)):
        if settings.cumulate:  # one start, and an end after every sub-window
            first, last = newest, end + number * settings.size
            inside = last <= newest + span
        else:
            first = newest - number * stride
            last = first + span
            inside = last >= end
        done = last - 1
        found = np.flatnonzero(inside & (done > old) & (done <= new))
        starts.append(first[found])
        ends.append(last[found])
        parts.append(found)
    begin, finish, part = np.concatenate(starts), np.concatenate(ends), np.concatenate(parts)
    order = np.lexsort((start[part], finish, begin, lane[part]))
    begin, finish, part = begin[order], finish[order], part[order]
    owner = lane[part]
    fresh = np.ones(len(begin), np.bool_)
    fresh[1:] = (begin[1:] != begin[:-1]) | (finish[1:] != finish[:-1]) | (owner[1:] != owner[:-1])
    window = np.cumsum(fresh) - 1
    begin, finish, owner = begin[fresh], finish[fresh], owner[fresh]
    panes.dead[newest + span - 1 <= new] = 1
    zero = np.zeros(len(begin), np.int64)
    mask = np.full(len(begin), reason, np.int64)
    on_time = np.full(len(begin), Timing.ON_TIME, np.int64)
    final = np.ones(len(begin), np.bool_)  # only the watermark emits these windows, once
    emits = Emits(owner, begin, finish, zero, zero, zero, mask, on_time, final)
    return SubWindows(emits, window, part)
