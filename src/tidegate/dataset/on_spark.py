"""A pipeline to a dataset on Spark, in one of two ways.

By file: where `file` is in the key, no message of a file has anything to do with those of another.
So the files of MCAP recordings are dealt to tasks, in runs of about the same size, and every task
makes a dataset of its files just as one process would, with images by reference. The driver then
joins these by moving files. Nothing goes through a shuffle, and videos are encoded by all cores.

By rows, for everything else: the pipeline runs as `tidegate run` does, to Parquet in a folder of
its own, and the driver makes the dataset of its rows, a few at a time, in the order in which they
left: that of each key is the order of time. The driver holds a batch of them and the open episodes,
however long the recording is; the folder is inside that of the dataset, and needs room for all.

Both need a folder that the driver and the tasks see, as every dataset on a local disk does.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.core.columns import ERROR_REASON, PREFIX, REASON
from tidegate.dataset.in_process import (
    DatasetSummary,
    Reasons,
    close_writer,
    dataset_writer,
    is_by_file,
    make_dataset_here,
    most_frequent,
    source_files,
    tally_reasons,
)
from tidegate.dataset.lerobot import LeRobotWriter
from tidegate.dataset.tables import ParquetWriter
from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.pipeline.definition import DatasetDefinition
from tidegate.spark.connect import cores_of
from tidegate.spark.open import check_sources, open_pipeline, session_for

__all__ = ["make_dataset_on_spark"]

TASKS_PER_CORE = 2
"""Tasks per core, by file: a few, so that cores end at about the same time; each costs about 0.2 s
for its plan and its codecs."""

_TOLD = "folder string, summary string"
"""What a task tells: where its dataset is, and its summary as JSON."""


def make_dataset_on_spark(
    definition: PipelineDefinition, wanted: DatasetDefinition, path: str | Path
) -> DatasetSummary:
    """Run a pipeline to a dataset on Spark.

    Args:
        definition: The pipeline.
        wanted: What to make of the rows.
        path: The folder of the dataset.

    Raises:
        ConfigError: A setting is wrong, or a source cannot be opened.
    """
    check_sources(definition)
    # Spark may still write to its log and checkpoint when the rows are long there.
    with tempfile.TemporaryDirectory(
        prefix="tidegate-dataset-", ignore_cleanup_errors=True
    ) as scratch:
        session = session_for(definition, None, Path(scratch) / "spark.log")
        if wanted.format in ("parquet", "lerobot") and is_by_file(definition):
            return _make_by_file(session, definition, wanted, Path(path))
        return _make_by_rows(session, definition, wanted, Path(path))


# -- by file --------------------------------------------------------------------------------------


def _make_by_file(
    session: SparkSession, definition: PipelineDefinition, wanted: DatasetDefinition, path: Path
) -> DatasetSummary:
    """Deal the files to tasks, and join the datasets they make."""
    plan(definition)  # what is wrong without looking at the data is said here
    [(name, stream)] = definition.streams.items()
    files = source_files(name, stream)
    runs = _runs(files, cores_of(session) * TASKS_PER_CORE)
    writer = dataset_writer(definition, wanted, path)
    path.mkdir(parents=True, exist_ok=True)
    work = path.absolute() / f".parts-{uuid4().hex}"
    try:
        task = _FileTask(definition, tuple(map(str, files)), tuple(map(len, runs)), str(work))
        told = session.range(0, len(runs), 1, len(runs)).mapInArrow(task, _TOLD).collect()
        parts = [DatasetSummary(**json.loads(row["summary"])) for row in told]
        for row, part in zip(told, parts, strict=True):
            _take_over(writer, Path(row["folder"]), part)
        counts: Counter[str] = Counter()
        reasons: Reasons = {}
        for part in parts:
            counts.update(part.outcomes)
            for kind, counted in part.reasons.items():
                reasons.setdefault(kind, Counter()).update(counted)
        written = close_writer(writer, counts, reasons)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    warnings = set.intersection(*(set(part.warnings) for part in parts))
    read = sum(part.rows_read for part in parts)
    why = most_frequent(reasons)
    return DatasetSummary(str(path), written, read, dict(counts), sorted(warnings), why)


def _runs(files: Sequence[Path], most: int) -> list[list[Path]]:
    """Cut files into at most `most` runs of about the same size; their order stays.

    >>> [[f.name for f in run] for run in _runs([Path("a"), Path("b"), Path("c")], 2)]
    [['a'], ['b', 'c']]
    """
    size = np.array([file.stat().st_size if file.exists() else 1 for file in files], np.float64)
    middle = np.cumsum(size + 1) - (size + 1) / 2
    run = (middle / (size + 1).sum() * min(most, len(files))).astype(np.int64)
    return [[files[n] for n in np.flatnonzero(run == one).tolist()] for one in np.unique(run)]


@dataclass(frozen=True)
class _FileTask:
    """mapInArrow: numbers of runs of files in, a dataset per run and its summary out.

    A task that is tried again writes to another folder, so what is left of a failed one is never
    taken for a result.
    """

    definition: PipelineDefinition
    files: tuple[str, ...]
    """All files, in the order of the runs."""
    sizes: tuple[int, ...]
    """How many files each run has."""
    work: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = self.definition.dataset
        assert wanted is not None
        files = [Path(file) for file in self.files]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                folder = Path(self.work) / f"{number}-{uuid4().hex}"
                first = sum(self.sizes[:number])
                some = files[first : first + self.sizes[number]]
                made = make_dataset_here(self.definition, wanted, folder, some, files)
                told = json.dumps(made._asdict())
                yield pa.record_batch({"folder": [str(folder)], "summary": [told]})


def _take_over(writer: LeRobotWriter | ParquetWriter, folder: Path, part: DatasetSummary) -> None:
    """Add the dataset of a task to that of the run."""
    if isinstance(writer, LeRobotWriter):
        writer.left_out += part.written["left_out"]
        for reason, count in part.written["reasons"].items():
            writer.reasons[reason] = writer.reasons.get(reason, 0) + count
        if part.written.get("frames"):
            writer.absorb(folder)
        return
    for file in sorted(folder.glob("part-*.parquet")):
        writer.absorb(file)


# -- by rows --------------------------------------------------------------------------------------


def _make_by_rows(
    session: SparkSession,
    definition: PipelineDefinition,
    wanted: DatasetDefinition,
    path: Path,
) -> DatasetSummary:
    """Run the pipeline to a folder of its own, and write the rows it left."""
    writer = dataset_writer(definition, wanted, path)
    _, frames = open_pipeline(session, definition, streaming=False)
    path.mkdir(parents=True, exist_ok=True)
    out = path.absolute() / f".rows-{uuid4().hex}"
    try:
        # Not compressed: it is read once, and images are compressed already.
        frames.write(str(out), options={"compression": "none"})
        run = open_run(str(out))
        if "data" in run.kinds:
            names = [name for name in run.schema("data").names if not name.startswith(PREFIX)]
            for rows in run.batches("data", names):
                writer.write(rows)
        reasons: Reasons = {}
        for kind, reason in (("dropped", REASON), ("error", ERROR_REASON)):
            if kind in run.kinds:
                # A column of the user's of that name stands before ours, which then is longer.
                column = [n for n in run.schema(kind).names if n.replace(PREFIX, "") == reason][-1]
                for rows in run.batches(kind, [column]):
                    tally_reasons(reasons, kind, rows.column(0))
        counts = dict(run.counts)
        written = close_writer(writer, counts, reasons)
        return DatasetSummary(str(path), written, 0, counts, [], most_frequent(reasons))
    finally:
        shutil.rmtree(out, ignore_errors=True)
