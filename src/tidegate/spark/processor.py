"""What Spark holds of the stateful step: a processor that is light until rows come.

Before the first micro-batch of a query Spark starts a new Python on the driver, only to ask which
state the processor has. Whatever the processor is made of is imported there: with numba and the
kernels that took more than a second of every start. So the class travels by value, needs nothing
but pyspark, and carries the settings of the step as bytes, which workers open, who have all of it
loaded.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from tidegate.spark.stateful_step import RunningStep, StepSettings

__all__ = ["ShardProcessor"]


class ShardProcessor(StatefulProcessor):
    """transformWithState: one map state; the work is done by a `RunningStep`.

    Spark calls `init` once per task, then `handleInputRows` per shard with rows, then
    `handleExpiredTimer` per shard whose timer has passed, then `close`. Groups are shards, not
    the user's keys: one call does the work of all keys of a shard.

    Args:
        settings: The settings of the step; kept as bytes until the first rows come.
    """

    def __init__(self, settings: StepSettings) -> None:
        self.settings: bytes = cloudpickle.dumps(settings)  # type: ignore[no-untyped-call]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: page number to bytes. Called by Spark; keep it light (see above)."""
        self.handle = handle
        self.pages = handle.getMapState("pages", "page int", "blob binary")
        self.step: RunningStep | None = None

    def handleInputRows(  # noqa: N802  (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Run the packed rows of one shard; returns rows of `STEP_DDL`. `key` is (label of the
        shard,).
        """
        now_ms = int(timerValues.getCurrentProcessingTimeInMs())
        return (Row(**row) for row in self._opened().rows(int(key[0]), rows, now_ms))

    def handleInitialState(  # noqa: N802  (Spark's name)
        self,
        key: Any,
        initialState: Any,  # noqa: N803
        timerValues: Any,  # noqa: N803
    ) -> None:
        """Write one page of a savepoint into the state of its shard; called once per page, in the
        first micro-batch of a query. A shard that waits by the clock is woken at once: it then sets
        a timer of its own, though no row may come for it.
        """
        self.pages.updateValue((initialState.page,), (initialState.blob,))
        if initialState.wake:
            self.handle.registerTimer(int(timerValues.getCurrentProcessingTimeInMs()) + 1)

    def handleExpiredTimer(  # noqa: N802  (Spark's name)
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Return what one shard lets out because its deadline has passed."""
        now_ms = int(timerValues.getCurrentProcessingTimeInMs())
        return (Row(**row) for row in self._opened().expired(int(key[0]), now_ms))

    def close(self) -> None:
        """Do nothing: all state is written by the end of each call."""

    def _opened(self) -> RunningStep:
        """Return the step, made at the first rows: only then are its modules imported."""
        if self.step is None:
            from tidegate.spark.stateful_step import RunningStep

            self.step = RunningStep(pickle.loads(self.settings), self.handle, self.pages)
        return self.step


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
