"""Packed outcomes without Spark: what a sink gets of a micro-batch, as an object it can call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from tidegate.spark.stateful_step import STEP_SCHEMA

Rows = Callable[[], Iterable[dict[str, Any]]]
"""Runs the step and returns its rows (`STEP_DDL`). Called once per action, as Spark does it."""


@dataclass
class Outcomes:
    """Stands for the DataFrame of a micro-batch: `mapInArrow(...).collect()` and a noop write."""

    rows: Rows

    def mapInArrow(self, function: Any, schema: str) -> Outcomes:  # noqa: N802  (Spark's name)
        return Outcomes(lambda: _rows(function(iter(self._batches()))))

    def collect(self) -> list[Any]:
        return [SimpleNamespace(**row) for row in self.rows()]

    def _batches(self) -> list[pa.RecordBatch]:
        return pa.Table.from_pylist(list(self.rows()), schema=STEP_SCHEMA).to_batches()

    @property
    def write(self) -> Outcomes:
        return self

    def format(self, name: str) -> Outcomes:
        assert name == "noop"
        return self

    def mode(self, name: str) -> Outcomes:
        return self

    def save(self) -> None:
        list(self.rows())


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for row in batch.to_pylist():
            if row.get("metrics") is not None:
                row["metrics"] = dict(row["metrics"])
            yield row
