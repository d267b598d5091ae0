"""Sets of a recording, chosen with all of it in view: the most sets, then the least total spread.

An online synchroniser decides before it has seen the future. On recorded data the best choice can
be worked out, and with it what deciding early cost (`Hindsight.cost`).

Two topics: exact. Both are sorted by time; a best choice exists in which pairs do not cross, so it
is a path through a table of (first i messages of one, first j of the other) that takes or leaves
one message at a time. Only messages within `max_interval` of each other can be a pair, so of every
line of the table only that band is worked out: time and memory grow with messages times messages
per `max_interval`.

More topics: the topic with the fewest messages is matched with each other one, exactly. A set
consists of those of its messages that found a partner everywhere. Such a set is at most twice
`max_interval` wide; wider ones than `max_interval` are left out. The number of sets is at most that
of the exact choice, and at least the messages of the rarest topic less those without a partner in
each other topic, and less the wide ones: `Hindsight.at_most` says how many sets there could be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tidegate.core.checks import duration
from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.time import Duration
from tidegate.errors import ConfigError, ContractError
from tidegate.sync.results import SyncResult

__all__ = ["Hindsight", "hindsight"]

MOST_CELLS = 2 * 10**9
"""Cells of the table (a byte each) beyond which a recording is refused: `max_interval` then covers
so many messages that it hardly bounds anything."""


@dataclass(frozen=True, eq=False)
class Hindsight:
    """The sets of a recording, in order of time."""

    rows: Int64s
    """Sets x topics: indices into the arrays given."""
    times_ns: Int64s
    """Sets x topics: their stamps."""
    spread_ns: Int64s
    """The spread of each set."""
    at_most: int
    """No choice has more sets than this. Equal to the number of sets for two topics."""

    def __len__(self) -> int:
        return len(self.rows)

    def cost(self, online: SyncResult) -> dict[str, int]:
        """What deciding early cost.

        Args:
            online: what `ApproximateTime.process` (and `flush`) made of the same recording.

        Returns:
            `sets`: how many more sets hindsight has, and `spread_ns`: by how much the total spread
            of its sets is less. Either may be negative where online sets may be wider.
        """
        less = int(online.spread_ns.sum()) - int(self.spread_ns.sum())
        return {"sets": len(self) - len(online), "spread_ns": less}


def hindsight(
    topics: int, topic_index: ArrayLike, time_ns: ArrayLike, *, max_interval: Duration
) -> Hindsight:
    """Choose the sets of a recording with all of it in view.

    Args:
        topics: how many topics there are, at least 2.
        topic_index: the topic of each message, 0 to `topics` - 1, in any order of time.
        time_ns: its stamp, int64 nanoseconds.
        max_interval: sets wider than this are not formed: ns, text or timedelta. It bounds the
            work, so it must be given.

    Returns:
        The sets. For two topics they are the most there can be, and of all choices of that many
        those with the least total spread; for more see the head of this module.

    Raises:
        ConfigError: `topics` or `max_interval` is out of range, or `max_interval` covers so many
            messages that the table would not fit into memory.
        ContractError: arrays of different length, or a topic out of range.

    >>> found = hindsight(2, [0, 1, 0, 1], [0, 9, 10, 30], max_interval=20)
    >>> found.rows.tolist(), found.spread_ns.tolist()
    ([[0, 1], [2, 3]], [9, 20])
    """
    if topics < 2:
        raise ConfigError("topics", topics, "must be at least 2")
    width = duration("max_interval", max_interval)
    number = np.asarray(topic_index, np.int64)
    times = np.asarray(time_ns, np.int64)
    if number.shape != times.shape or number.ndim != 1:
        raise ContractError(f"hindsight: {number.shape} topics and {times.shape} times")
    if len(number) and not 0 <= number.min() <= number.max() < topics:
        raise ContractError(f"hindsight: topics must be 0 to {topics - 1}")
    order = np.argsort(times, kind="stable")
    of = [order[number[order] == topic] for topic in range(topics)]
    rarest = min(range(topics), key=lambda topic: len(of[topic]))
    partner = np.full((len(of[rarest]), topics), -1, np.int64)
    partner[:, rarest] = of[rarest]
    for topic in range(topics):
        if topic != rarest:
            left, right = _best_pairs(times[of[rarest]], times[of[topic]], width)
            partner[left, topic] = of[topic][right]
    found = (partner >= 0).sum(axis=0).min() if len(partner) else 0
    rows = partner[(partner >= 0).all(axis=1)]
    stamps = times[rows] if len(rows) else np.zeros((0, topics), np.int64)
    spread = stamps.max(axis=1) - stamps.min(axis=1) if len(rows) else np.zeros(0, np.int64)
    kept = spread <= width
    return Hindsight(rows[kept], stamps[kept], spread[kept], int(found))


def _best_pairs(left: Int64s, right: Int64s, width: int) -> tuple[Int64s, Int64s]:
    """The most pairs of two sorted lists within `width`, of least total distance: their indices."""
    low = np.searchsorted(right, left - width, "left")
    high = np.searchsorted(right, left + width, "right")
    # Cell (i, j) of line i: the first i + 1 of `left` and the first j of `right`, low <= j <= high.
    begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(high - low + 1)])
    if begin[-1] > MOST_CELLS:
        text = f"covers too many messages at once ({begin[-1]:,} combinations); give a smaller one"
        raise ConfigError("max_interval", width, text)
    steps = np.empty(int(begin[-1]), np.int8)
    pairs = np.empty((min(len(left), len(right)), 2), np.int64)
    n = _solve(left, right, low, high, begin, steps, pairs)
    found = pairs[:n][::-1]
    return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])


@kernel
def _solve(left: Any, right: Any, low: Any, high: Any, begin: Any, steps: Any, pairs: Any) -> int:
    """Fill the table line by line, then walk it back.

    A line keeps, for every j of its band, the best (pairs, total distance). Below the band the line
    before it holds; a j above the band of the line before has that line's last value, since nothing
    up there can be a pair of an earlier message.

    Args:
        left: sorted times.
        right: sorted times.
        low: per message of `left`, the first of `right` within reach.
        high: and the one behind the last.
        begin: where the cells of each line begin in `steps`.
        steps: filled: how each cell was reached.
        pairs: filled from the last pair on.

    Returns:
        How many pairs there are.
    """
    size = len(right) + 1
    count, total = np.zeros(size, np.int64), np.zeros(size, np.int64)
    filled = 0  # cells up to this j are those of the line before; above it, all are like it
    for i in range(len(left)):
        first, last = low[i], high[i]
        while filled < last:
            count[filled + 1], total[filled + 1] = count[filled], total[filled]
            filled += 1
        before_count, before_total = count[first], total[first]
        steps[begin[i]] = 0
        for j in range(first + 1, last + 1):
            old_count, old_total = count[j], total[j]
            step = 0
            best, cost = old_count, old_total
            if count[j - 1] > best or (count[j - 1] == best and total[j - 1] < cost):
                step, best, cost = 1, count[j - 1], total[j - 1]
            made = before_count + 1
            with_pair = before_total + abs(left[i] - right[j - 1])
            if made > best or (made == best and with_pair < cost):
                step, best, cost = 2, made, with_pair
            count[j], total[j] = best, cost
            steps[begin[i] + j - first] = step
            before_count, before_total = old_count, old_total
        filled = last
    n = 0
    i, j = len(left) - 1, len(right)
    while i >= 0 and j >= 0:
        if j > high[i]:
            j = high[i]
        if j < low[i]:
            i -= 1
            continue
        step = steps[begin[i] + j - low[i]]
        if step == 2:
            pairs[n, 0], pairs[n, 1] = i, j - 1
            n += 1
            i -= 1
            j -= 1
        elif step == 1:
            j -= 1
        else:
            i -= 1
    return n
