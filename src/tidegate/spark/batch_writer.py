"""What Spark calls for every micro-batch of a stream: note the run, write the batch, tell of it.

Where it runs:

    a session with a driver    in this process, with the sink that `start` has claimed the output by
    Spark Connect              on the server, in a Python of its own: the writer is pickled when the
                               query starts, and opens the sink there, at its first batch

So it is made of values only; no DataFrame and no session is among them. On Connect the client keeps
the lease on the output, and the writer joins its epoch: if another run takes over, the next batch
finds that and stops, whether or not the client is still there. See `tidegate.output.epochs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from tidegate.errors import StateError
from tidegate.output.commit import Commit
from tidegate.output.filesystem import filesystem, read_bytes
from tidegate.spark.checkpoint import RunNote, note_run
from tidegate.spark.columnar.payload import PayloadAttacher
from tidegate.spark.sinks.registry import Sink, SinkFactory, SinkRequest, join_output
from tidegate.spark.stateful_step import STEP_DDL

__all__ = ["BatchWriter", "query_of"]


@dataclass
class BatchWriter:
    """Writes micro-batches; a function of `foreachBatch`.

    Args:
        make: Makes the sink, where this is not the process that opened it.
        request: What the sink is made from.
        checkpoint: The checkpoint of the query, which says its id.
        note: What is written into the checkpoint before the first batch of this run.
        payload: Gives rows the payload that they did not carry; None: they carry it.
        epoch: The epoch that was claimed for this run; None: the sink knows no epochs.
        sink: The sink that claimed it; None on a server, and in a copy that was pickled.
        on_commit: Called with every record; never in a copy that was pickled.
    """

    make: SinkFactory
    request: SinkRequest
    checkpoint: str
    note: RunNote
    payload: PayloadAttacher | None = None
    epoch: int | None = None
    sink: Sink | None = field(default=None, repr=False)
    on_commit: Callable[[Commit], None] | None = field(default=None, repr=False)
    query: str = ""

    def __call__(self, outcomes: DataFrame, batch: int) -> None:
        """Write one micro-batch. Called by Spark, again for the same batch after a crash."""
        if self.sink is None:
            self.sink = self.make(self.request)
            join_output(self.sink, self.epoch)
        if not self.query:  # the state of these stages is written by this very batch
            self.query = query_of(self.checkpoint)
            note_run(self.note, self.checkpoint)
        if self.payload is not None and not getattr(self.sink, "attaches_payload", False):
            outcomes = outcomes.mapInArrow(self.payload.blobs, STEP_DDL)
        commit = self.sink.write(outcomes, batch, self.query)
        if self.on_commit is not None:
            self.on_commit(commit)

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process opens a sink of its own and reports to nobody."""
        return {**self.__dict__, "sink": None, "on_commit": None, "query": ""}


def query_of(checkpoint: str) -> str:
    """Return the id of the query that a checkpoint belongs to, which Spark writes before its first
    batch. The only way that works on Spark Connect too.

    Raises StateError if the file is not there: what is a checkpoint on the server is none here.

    >>> import tempfile, pathlib
    >>> folder = tempfile.mkdtemp()
    >>> _ = pathlib.Path(folder, "metadata").write_text('{"id":"6a1c"}')
    >>> query_of(folder)
    '6a1c'
    """
    fs, root = filesystem(checkpoint, "checkpoint")
    content = read_bytes(fs, f"{root}/metadata")
    if content is None:
        raise StateError(
            f"{checkpoint} has no file metadata, which Spark writes there: the path must mean the "
            "same place for Spark and for Python (a mounted folder, or the same address)"
        )
    return str(json.loads(content)["id"])
