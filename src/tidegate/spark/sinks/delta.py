"""Delta tables, one per kind: `OUT/data`, `OUT/late`, `OUT/error`, ...

Files are written as for Parquet. Each table then gets them in one transaction that carries the
query and the number of the batch (Delta's application transactions), so a batch that runs again
after a crash finds, table by table, what is in it already.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.errors import ConfigError
from tidegate.output.commit import Commit
from tidegate.output.maintenance import batch_folder
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest

try:
    import deltalake
    from deltalake.exceptions import TableNotFoundError
    from deltalake.transaction import (
        AddAction,
        CommitProperties,
        Transaction,
        create_table_with_add_actions,
    )
except ImportError as missing:  # pragma: no cover
    raise ConfigError(
        "sink.format", "delta", "needs the package deltalake: pip install 'tidegate[delta]'"
    ) from missing

__all__ = ["DeltaSink"]


class DeltaSink(ParquetSink):
    """Writes the packed outcomes of a pipeline to one Delta table per kind. Has no options.

    Args:
        request: Its path must be local, and its options empty; else a ConfigError.
    """

    options = ()

    def __init__(self, request: SinkRequest) -> None:
        request.check_local("delta")
        super().__init__(request)
        self._query = ""

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        self._query = query
        return super().write(outcomes, batch, query)

    def _holds(self, kind: str, batch: int) -> bool:
        table = self._table(kind)
        last = None if table is None else table.transaction_version(self._query)
        return last is not None and last >= batch

    def _publish(self, batch: int, schemas: dict[str, pa.Schema], files: list[Any]) -> None:
        for kind in sorted({row.kind for row in files}):
            added = [self._action(row, batch) for row in files if row.kind == kind]
            properties = CommitProperties(app_transactions=[Transaction(self._query, batch)])
            table, schema = self._table(kind), deltalake.Schema.from_arrow(schemas[kind])
            if table is None:
                place = f"{self.root}/{kind}"
                create_table_with_add_actions(place, schema, added, commit_properties=properties)
            else:
                table.create_write_transaction(
                    added, "append", schema, commit_properties=properties
                )

    def _table(self, kind: str) -> Any | None:
        """Return the Delta table of a kind; None before its first batch."""
        try:
            return deltalake.DeltaTable(f"{self.root}/{kind}")
        except TableNotFoundError:
            return None

    def _action(self, row: Any, batch: int) -> AddAction:
        """Return what adds a file to its table: name, size, time and number of rows."""
        file = f"{batch_folder(row.kind, batch)}/{row.file.rsplit('/', 1)[1]}"
        name = file.removeprefix(f"{row.kind}/")
        size = self.fs.get_file_info(f"{self.root}/{file}").size
        stats = json.dumps({"numRecords": row.rows})
        return AddAction(name, size, {}, time.time_ns() // 10**6, True, stats)
