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
    """transformWithState: one map state; the work is done by an `RunningStep`."""

    def __init__(self, settings: StepSettings) -> None:
        self.settings: bytes = cloudpickle.dumps(settings)  # type: ignore[no-untyped-call]

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.pages = handle.getMapState("pages", "page int", "blob binary")
        self.step: RunningStep | None = None

    def handleInputRows(  # noqa: N802  (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        now_ms = int(timerValues.getCurrentProcessingTimeInMs())
        return (Row(**row) for row in self._opened().rows(int(key[0]), rows, now_ms))

    def handleExpiredTimer(  # noqa: N802  (Spark's name)
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        now_ms = int(timerValues.getCurrentProcessingTimeInMs())
        return (Row(**row) for row in self._opened().expired(int(key[0]), now_ms))

    def close(self) -> None:
        pass

    def _opened(self) -> RunningStep:
        if self.step is None:
            from tidegate.spark.stateful_step import RunningStep

            self.step = RunningStep(pickle.loads(self.settings), self.handle, self.pages)
        return self.step


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
