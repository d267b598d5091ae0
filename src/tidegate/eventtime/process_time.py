"""The processing-time watermark: rows are stamped when seen, and a ticker moves time.

Clock policy: `wall_ns` of the collection (or of `wake`) decides everything. The ticker is aligned
to window ends (multiples of `interval`, shifted by `offset`) and never runs backwards: when the
wall clock steps back, rows are stamped with the newest time seen until it has caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Outcome, Watermark
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET, Duration, parse_duration

__all__ = ["ProcessTimeWatermark"]


@dataclass(frozen=True)
class ProcessTimeWatermark(Operator):
    """Stamps rows with the wall clock and emits a watermark at every window end.

    Args:
        interval: The distance of watermarks (wall time). Default 1 s; use the size of the windows
            behind it, or a divisor: smaller values only emit more watermarks, larger ones close
            windows late.
        offset: Shifts the ticks away from the epoch, as windows with an offset need it. Default 0;
            may be negative.

    Raises:
        ConfigError: an interval below 1 ns, or a value that is no duration.

    Example:
        >>> import pyarrow as pa
        >>> stage = ProcessTimeWatermark("1 s")
        >>> state = stage.open()
        >>> row = pa.record_batch({"v": [1]})
        >>> seen = Collection.of(row, np.array([0]), wall_ns=1_400_000_000)
        >>> [type(o).__name__ for o in stage.process(state, seen)]
        ['Watermark', 'Collection']
        >>> stage.wake_at(state), stage.wake(state, 2_000_000_000)[0].time_ns
        (2000000000, array([1999999999]))
    """

    interval: Duration = "1 s"
    offset: Duration = 0

    name: ClassVar[str] = "process_time_watermark"
    adopts: ClassVar[Mapping[str, str]] = {
        "interval": "holds from the next tick on; the watermark does not move back",
        "offset": "holds from the next tick on; the watermark does not move back",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", parse_duration(self.interval, "interval", minimum=1))
        object.__setattr__(self, "offset", parse_duration(self.offset, "offset", minimum=None))

    @property
    def gives_time(self) -> bool:
        return True

    def layout(self) -> Layout:
        """The state: the last watermark of each lane, and counters. No rows are held."""
        return Layout(
            {
                "newest": Column(np.int64, fill=UNSET),
                "watermark": Column(np.int64, fill=UNSET),
                "emitted": Column(np.int64),
            }
        )

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        lanes = np.unique(collection.lane)
        newest = state["newest"]
        # Behind the watermark too: the ticker may have moved it while no row came.
        floor = np.maximum(newest[lanes], state["watermark"][lanes] + 1)
        newest[lanes] = np.maximum(floor, collection.wall_ns)
        stamped = Collection(
            collection.rows, newest[collection.lane], collection.lane, collection.wall_ns
        )
        return [*self._tick(state, lanes, newest[lanes]), stamped]

    def wake_at(self, state: State) -> int | None:
        """The wall time of the next watermark; None before the first row."""
        watermark = state["watermark"]
        started = watermark[watermark != UNSET]
        return None if len(started) == 0 else int(started.min()) + 1 + int(self._every)

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        """Hand on the watermark of the interval that has ended, although no row came."""
        lanes = np.flatnonzero(state["watermark"] != UNSET)
        return self._tick(state, lanes, np.full(len(lanes), wall_ns, np.int64))

    def metrics(self, state: State) -> dict[str, int | float]:
        """The newest watermark, and how many were handed on."""
        return {
            "watermark_emitted_count": int(state["emitted"].sum()),
            "current_watermark": int(state["watermark"].max(initial=UNSET)),
            "max_timestamp_seen": int(state["newest"].max(initial=UNSET)),
        }

    @property
    def _every(self) -> int:
        """The interval in nanoseconds."""
        return parse_duration(self.interval)

    def _tick(self, state: State, lanes: NDArray[Any], now: NDArray[Any]) -> list[Outcome]:
        """Move the watermark of lanes to the last window end at or before `now`; never back.

        Args:
            state: the state of the stage.
            lanes: the lanes.
            now: the time of each, in ns.

        Returns:
            One watermark outcome for the lanes that moved, or nothing.
        """
        shift = parse_duration(self.offset, minimum=None)
        # The end itself belongs to the next window, so time stands one nanosecond before it.
        target = (now - shift) // self._every * self._every + shift - 1
        moved = target > state["watermark"][lanes]
        if not moved.any():
            return []
        lanes = lanes[moved]
        state["watermark"][lanes] = target[moved]
        state["emitted"][lanes] += 1
        state.touch(lanes)
        return [Watermark(target[moved], lanes.astype(np.int32))]
