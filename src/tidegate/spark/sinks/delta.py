"""Delta tables, one per kind: `OUT/data`, `OUT/late`, `OUT/error`, ...

Files are written as for Parquet. Each table then gets them in one transaction that carries the
query and the number of the batch (Delta's application transactions), so a batch that runs again
after a crash finds, table by table, what is in it already.

Transactions carry the driver's epoch too, under the name `EPOCH`. A driver that takes over from one
that may wake up writes its epoch into every table first; of two transactions that name the same
application, Delta refuses the one that began earlier. So the old driver either was in time, or adds
nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import Commit
from tidegate.output.maintenance import batch_folder
from tidegate.spark.sinks.parquet import ParquetSink, Placed
from tidegate.spark.sinks.registry import SinkRequest

try:
    import deltalake
    from deltalake.exceptions import CommitFailedError, TableNotFoundError
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

EPOCH = "tidegate-epoch"
"""The application id under which transactions carry the epoch of their driver."""


class DeltaSink(ParquetSink):
    """Writes the packed outcomes of a pipeline to one Delta table per kind. Has no options.

    Args:
        request: Its path must be local, and its options empty; else a ConfigError.
    """

    options = ()
    merges = False

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

    def _held_files(self, kind: str, batch: int) -> list[str]:
        table = self._table(kind)
        own = f"{batch_folder(kind, batch)}/"
        found = [] if table is None else [f"{kind}/{name}" for name in _files_of(table)]
        return [file for file in found if file.startswith(own)]

    def _publish(self, epoch: int, batch: int, files: Sequence[Placed]) -> None:
        for kind in sorted({one.kind for one in files}):
            added = [self._action(one) for one in files if one.kind == kind]
            properties = CommitProperties(
                app_transactions=[Transaction(self._query, batch), Transaction(EPOCH, epoch)]
            )
            table, schema = self._table(kind), deltalake.Schema.from_arrow(self.schemas[kind])
            try:
                if table is None:
                    place = f"{self.root}/{kind}"
                    create_table_with_add_actions(
                        place, schema, added, commit_properties=properties
                    )
                    continue
                # Asked of the very version that the transaction begins from.
                newest = table.transaction_version(EPOCH) or 0
                last = table.transaction_version(self._query)
                if newest <= epoch and (last is None or last < batch):
                    table.create_write_transaction(
                        added, "append", schema, commit_properties=properties
                    )
                    continue
            except CommitFailedError as error:
                raise self._superseded(kind, epoch) from error
            raise self._superseded(kind, epoch)

    def _superseded(self, kind: str, epoch: int) -> StateError:
        """Another driver has written to a table since this one looked."""
        return StateError(
            f"{self.path}/{kind}: epoch {epoch} of this run was taken over by another driver while "
            "it was writing; it stops here, and nothing of the other run was touched"
        )

    def _fence(self, epoch: int) -> None:
        for kind in self.schemas:
            table = self._table(kind)
            while table is not None:
                properties = CommitProperties(app_transactions=[Transaction(EPOCH, epoch)])
                try:
                    table.create_write_transaction(
                        [], "append", table.schema(), commit_properties=properties
                    )
                    break
                except CommitFailedError:  # the old driver was in time: read what it added
                    table = self._table(kind)

    def _table(self, kind: str) -> Any | None:
        """Return the Delta table of a kind; None before its first batch."""
        try:
            return deltalake.DeltaTable(f"{self.root}/{kind}")
        except TableNotFoundError:
            return None

    def _action(self, one: Placed) -> AddAction:
        """Return what adds a file to its table: name, size, time and number of rows."""
        name = one.file.removeprefix(f"{one.kind}/")
        size = self.fs.get_file_info(f"{self.root}/{one.file}").size
        stats = json.dumps({"numRecords": one.rows})
        return AddAction(name, size, {}, time.time_ns() // 10**6, True, stats)


def _files_of(table: Any) -> list[str]:
    """Return the files of the newest version of a table, relative to it."""
    place = str(table.table_uri).removeprefix("file://").rstrip("/")
    return [str(uri).removeprefix("file://").removeprefix(f"{place}/") for uri in table.file_uris()]
