"""Look into a checkpoint, check it, save its state, start from a saved one, and rescale it.

    read_savepoint    the pages of a stopped stream, through Spark's state reader
    describe          which keys, how much is held, the oldest row, per stage
    verify            load every shard as a run would, and say what is wrong
    prepare_import    let the first run of a new output start from a savepoint
    rescale           Spark's offline repartition, and the batch it adds to our commits

All of them are for a stream that does not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from pyspark.sql import SparkSession

from tidegate.core import snapshot
from tidegate.core.columns import PLACE, TIME
from tidegate.core.flow import Flow
from tidegate.core.seal import open_pages
from tidegate.errors import ConfigError, StateError, TidegateError
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.eventtime.slices import Slices
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.epochs import Epochs
from tidegate.output.filesystem import filesystem, read_bytes
from tidegate.output.savepoint import Savepoint
from tidegate.output.upkeep import exclusively
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.pipeline.run_record import RECORD, RunRecord
from tidegate.spark.checkpoint import CheckpointRecord, check_checkpoint, finished_batches
from tidegate.spark.failures import failures_in_a_sentence
from tidegate.spark.open import state_key_of
from tidegate.spark.shards import labels, partition_of, shard_of
from tidegate.spark.stateful_step import SLICES_PAGE, TOKEN_PAGE

__all__ = [
    "StageSummary",
    "StateSummary",
    "checkpoint_of",
    "describe",
    "flow_of",
    "prepare_import",
    "read_savepoint",
    "rescale",
    "spread",
    "verify",
]

OPEN_WINDOWS = "open"
"""The state table of the window stage whose rows are windows, not rows of the stream."""


@dataclass(frozen=True)
class StageSummary:
    """What one stage holds, over all shards.

    Args:
        name: The name of the operator.
        version: The version of its state.
        rows: Rows that wait in its tables.
        windows: Open windows.
        bytes: Size of its arrays and tables.
        oldest_ns: The event time of the oldest row that waits; None if none does.
        settings: What it was made with.
    """

    name: str
    version: int
    rows: int
    windows: int
    bytes: int
    oldest_ns: int | None
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class StateSummary:
    """What a checkpoint holds.

    Args:
        shards: Into how many shards the keys are divided.
        partitions: How many partitions Spark keeps them in.
        batch: The last micro-batch that is done.
        keys: How many keys there are.
        pages: How many pages the state has.
        stages: What each stage holds.
        sample: A few keys, as in the data.
    """

    shards: int
    partitions: int
    batch: int
    keys: int
    pages: int
    stages: tuple[StageSummary, ...]
    sample: tuple[tuple[Any, ...], ...]


def checkpoint_of(out: str, checkpoint: str | None = None) -> str:
    """Return the checkpoint of a stopped stream: the one given, else OUT/_checkpoint.

    Raises:
        ConfigError: The stream is running.
        StateError: There is no stream's checkpoint.
    """
    found = checkpoint or f"{out}/_checkpoint"
    Epochs.at(out).check_free()
    check_checkpoint(found)
    fs, root = filesystem(found, "checkpoint")
    if read_bytes(fs, f"{root}/metadata") is None:
        raise StateError(
            f"{found} is not the checkpoint of a stream that has run; give the path that `tidegate "
            "run` wrote to, and --checkpoint if the pipeline names another place"
        )
    return found


def flow_of(out: str, pipeline: Path | None = None) -> Callable[[], Flow] | None:
    """Return what makes the flow of a shard of a stream, from its definition.

    Args:
        out: The output; the record of its last run says the definition.
        pipeline: A pipeline file to take instead.

    Returns:
        A function that returns a new flow; None if the output was not written by a definition.

    Raises:
        ConfigError: The definition is wrong, or its state key cannot be found.
    """
    if pipeline is not None:
        definition = PipelineDefinition.load(pipeline)
    else:
        fs, root = filesystem(out)
        content = read_bytes(fs, f"{root}/{RECORD}")
        if content is None:
            return None
        definition = PipelineDefinition.of(dict(RunRecord.read(content, RECORD).definition))
    made, key = plan(definition), state_key_of(definition)
    stages, forget = made.flow_stages(), definition.options.forget

    def make() -> Flow:
        return Flow(stages, key=made.key, forget=forget, timed=True, state_key=key)

    return make


def read_savepoint(
    spark: SparkSession, checkpoint: str, make: Callable[[], Flow] | None = None
) -> Savepoint:
    """Read all pages of a stopped stream.

    Args:
        spark: A session.
        checkpoint: From `checkpoint_of`.
        make: Returns a flow with the state key; None: the state is not sealed.

    Raises:
        StateError: The checkpoint is not one of ours, or has no finished batch; or files were read
            in part, so that rows wait before the first stage, which belong to those files.
    """
    record = CheckpointRecord.read(checkpoint)
    if record is None:
        raise StateError(f"{checkpoint} has no record of tidegate: it is of another program")
    batch = last_batch(checkpoint)
    rows = (
        spark.read.format("statestore")
        .option("stateVarName", "pages")
        .option("batchId", batch)
        .load(checkpoint)
        .selectExpr(
            "key.shard AS shard", "user_map_key.page AS page", "user_map_value.blob AS blob"
        )
    )
    pages: dict[int, dict[int, bytes]] = {}
    with failures_in_a_sentence():
        for row in rows.toLocalIterator():
            pages.setdefault(int(row.shard), {})[int(row.page)] = bytes(row.blob)
    for label, own in pages.items():
        token = own.pop(TOKEN_PAGE, None)
        if token is None:
            raise StateError(f"the state of shard {label} has no token: it is not whole")
        waiting = own.pop(SLICES_PAGE, None)
        if waiting is not None and _rows_before_stages(label, waiting, make):
            raise StateError(
                f"{checkpoint}: rows of files that were read in part wait before the first stage; "
                "let the stream read them to their end"
            )
    stages = record.made_by[-1] if record.made_by else ()
    source = {
        "checkpoint": checkpoint,
        "batch": batch,
        "partitions": partitions_of(checkpoint, batch),
        "offsets": _offsets(checkpoint, batch),
    }
    return Savepoint(record.shards, record.keys or (), tuple(stages), pages, source)


def _rows_before_stages(label: int, page: bytes, make: Callable[[], Flow] | None) -> int:
    """How many rows of a shard wait for others before they may enter the first stage."""
    slices = Slices(ArrivalOrder())
    if make is not None:
        flow = make()
        flow.scope = f"shard {label}"
        slices.load(flow.unseal(page, "slices"))
    else:
        slices.load(page)
    return slices.rows_held


def last_batch(checkpoint: str) -> int:
    """Return the number of the last batch that Spark has finished.

    Raises:
        StateError: None is finished, or a later one has begun: run the stream to its end first.
    """
    done, begun = finished_batches(checkpoint), finished_batches(checkpoint, "offsets")
    if not done:
        raise StateError(f"{checkpoint} has no finished batch")
    if begun and max(begun) > max(done):
        raise StateError(
            f"{checkpoint}: batch {max(begun)} was begun and not finished; run the stream until it "
            "has finished, and stop it with Ctrl-C or let it end"
        )
    return max(done)


def describe(savepoint: Savepoint, make: Callable[[], Flow] | None = None) -> StateSummary:
    """Count what a state holds. Its stages need not be known; a sealed state needs its key.

    Args:
        savepoint: From `read_savepoint` or `Savepoint.read`.
        make: Returns a flow with the state key; None: the state is not sealed.
    """
    keys = 0
    sample: list[tuple[Any, ...]] = []
    found: dict[int, StageSummary] = {}
    for label, sealed in savepoint.pages.items():
        key = None if make is None else make().state_key
        for blob in open_pages(key, f"shard {label}", sealed).values():
            stages, _ = snapshot.read_stages(blob)
            table = stages[0].state.tables["keys"]
            if table is not None and table.num_rows:
                keys += table.num_rows
                columns = [name for name in savepoint.keys if name in table.schema.names]
                few = table.select(columns).slice(0, max(0, 5 - len(sample)))
                sample += [tuple(row.values()) for row in few.to_pylist()]
            for number, stage in enumerate(stages[1:]):
                mine = _summary(stage)
                found[number] = mine if number not in found else _added(found[number], mine)
    partitions = savepoint.source.get("partitions", 0)
    return StateSummary(
        shards=savepoint.shards,
        partitions=int(partitions),
        batch=int(savepoint.source.get("batch", -1)),
        keys=keys,
        pages=sum(len(pages) for pages in savepoint.pages.values()),
        stages=tuple(found[number] for number in sorted(found)),
        sample=tuple(sample),
    )


def verify(
    savepoint: Savepoint, make: Callable[[], Flow], partitions: int | None = None
) -> list[str]:
    """Load every shard as a run would, and return what is wrong, in sentences; empty: nothing.

    Args:
        savepoint: From `read_savepoint` or `Savepoint.read`.
        make: Returns a new flow with the stages that are to run.
        partitions: The partitions the labels were chosen for; None: where keys are is not checked.
    """
    wrong = []
    names = None if partitions is None else labels(savepoint.shards, partitions)
    for label in sorted(savepoint.pages):
        flow = make()
        flow.scope = f"shard {label}"
        try:
            flow.load(savepoint.pages[label], adopt=True)
        except TidegateError as error:
            wrong.append(f"shard {label}: {error}")
            continue
        table = flow.lanes.tables["keys"]
        if names is None or table is None or not flow.keys:
            continue
        found = shard_of(
            [table.column(name) for name in flow.keys], table.num_rows, savepoint.shards
        )
        strange = sum(names[shard] != label for shard in found.tolist())
        if strange:
            wrong.append(f"shard {label}: keys of other shards: {strange:,}")
    return wrong


def prepare_import(checkpoint: str, savepoint: str) -> None:
    """Let the first run on a new checkpoint start from a savepoint.

    Args:
        checkpoint: The checkpoint of the new output; it must not have run.
        savepoint: A folder or URI that holds a savepoint. It is read when the stream starts, and
            not needed any more once its first batch is done.

    Raises:
        ConfigError: The checkpoint has run already.
        StateError: There is no readable savepoint.
    """
    found = Savepoint.read(savepoint)
    if finished_batches(checkpoint, "offsets"):
        raise ConfigError("checkpoint", checkpoint, "has run already; use a new output")
    fs, root = filesystem(savepoint, "savepoint")
    at = root if isinstance(fs, pafs.LocalFileSystem) else savepoint
    record = CheckpointRecord.read(checkpoint) or CheckpointRecord(0, 0)
    replace(record, savepoint=at, keys=found.keys).write(checkpoint)


def rescale(spark: SparkSession, out: str, checkpoint: str, partitions: int) -> int:
    """Change the number of partitions that Spark keeps a state in.

    Spark adds a batch without rows to the checkpoint. It never reaches the sink, which would miss
    its record and refuse to go on: so the record is written here. If that was cut off, calling it
    again writes it.

    Args:
        spark: A session; not under Spark Connect.
        out: The output whose commits belong to the checkpoint.
        checkpoint: From `checkpoint_of`.
        partitions: How many partitions; at least 1. More than there are shards stay empty.

    Returns:
        How many there were before.

    Raises:
        ConfigError: A number below 1, or a run is writing to the output.
        RunError: Spark fails.
        StateError: The stream has an unfinished batch, or this Spark cannot do it.
    """
    if partitions < 1:
        raise ConfigError("partitions", partitions, "must be at least 1")
    log = CommitLog.at(out)
    with exclusively(log) as epoch:
        batch = last_batch(checkpoint)
        before = partitions_of(checkpoint, batch)
        _note_added_batch(log, checkpoint, batch, epoch)
        if partitions == before:
            return before
        manager = getattr(spark, "_streamingCheckpointManager", None)
        if manager is None:
            raise StateError(
                "rescaling needs Spark 4.2 or later, and a session without Spark Connect"
            )
        with failures_in_a_sentence():
            manager.repartition(checkpoint, partitions)
        _note_added_batch(log, checkpoint, last_batch(checkpoint), epoch)
    return before


def partitions_of(checkpoint: str, batch: int) -> int:
    """Return how many partitions the state has, as the offset log of a batch says."""
    fs, root = filesystem(checkpoint, "checkpoint")
    content = read_bytes(fs, f"{root}/offsets/{batch}")
    try:
        lines = (content or b"").decode().splitlines()
        return int(json.loads(lines[1])["conf"]["spark.sql.shuffle.partitions"])
    except (IndexError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{root}/offsets/{batch} is corrupt: {error!r}") from error


def spread(shards: int, made_for: int, partitions: int) -> list[int]:
    """Return how many shards each partition gets, after rescaling.

    Args:
        shards: How many shards there are.
        made_for: The partitions that their labels were chosen for.
        partitions: How many there are now.

    Example:
        >>> spread(8, 2, 2), sum(spread(8, 2, 3))
        ([4, 4], 8)
    """
    out = [0] * partitions
    for label in labels(shards, made_for):
        out[partition_of(label, partitions)] += 1
    return out


def _note_added_batch(log: CommitLog, checkpoint: str, batch: int, epoch: int) -> None:
    """Write the commit record of a batch that rescaling has added, if it has none: it follows the
    last committed one and has read nothing."""
    numbers = log.numbers()
    if not numbers or batch in numbers or numbers[-1] != batch - 1:
        return
    if _offsets(checkpoint, batch) != _offsets(checkpoint, batch - 1):
        return
    last = log.read(batch - 1)
    if last is not None:
        log.write(Commit(batch, last.query, watermark_ns=last.watermark_ns, epoch=epoch))


def _offsets(checkpoint: str, batch: int) -> list[str]:
    """The offsets of all sources at the end of a batch, as Spark writes them."""
    fs, root = filesystem(checkpoint, "checkpoint")
    content = read_bytes(fs, f"{root}/offsets/{batch}") or b""
    return content.decode(errors="replace").splitlines()[2:]


def _summary(stage: snapshot.FoundStage) -> StageSummary:
    """What one stage of one page holds."""
    tables = dict(_tables_with_rows(stage))
    times = [pc.min(table.column(TIME)).as_py() for table in tables.values()
             if TIME in table.schema.names]  # fmt: skip
    return StageSummary(
        stage.name,
        stage.version,
        sum(table.num_rows for name, table in tables.items() if TIME in table.schema.names
            or PLACE in table.schema.names),
        tables[OPEN_WINDOWS].num_rows if OPEN_WINDOWS in tables else 0,
        stage.state.nbytes(),
        min(times, default=None),
        stage.settings,
    )  # fmt: skip


def _tables_with_rows(stage: snapshot.FoundStage) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The tables of a stage that have rows."""
    for name, table in stage.state.tables.items():
        if table is not None and table.num_rows:
            yield name, table


def _added(one: StageSummary, two: StageSummary) -> StageSummary:
    """Two summaries of a stage as one."""
    times = [each for each in (one.oldest_ns, two.oldest_ns) if each is not None]
    return replace(
        one,
        rows=one.rows + two.rows,
        windows=one.windows + two.windows,
        bytes=one.bytes + two.bytes,
        oldest_ns=min(times, default=None),
    )
