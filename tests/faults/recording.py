"""What the disturbed runs read, and the pipeline they run: order, late rows, errors, sets."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.testing.fleet import fleet

FILES = 6
"""One micro-batch each."""

PIPELINE = """
name: faults
streams:
  fleet:{source}
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  mode: streaming
  trigger: available_now
  shards: 2
  eventtime: {{enabled: true, lateTolerance: 200 ms, maxFutureSkew: 1 h, watermarkPer: tuple}}
stages:
  - synchronize: {{topics: [lidar, camera, gps, imu], queueSize: 10, maxInterval: 50 ms}}
sink: {{format: {sink}, path: {out}{options}}}
"""

FOLDER = """
    source: {{path: {recording}, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle
    topic: topic
    arrival: log_time"""


def slices(files: int = FILES, seed: int = 5) -> list[pa.Table]:
    """A small fleet's messages in order of arrival, cut into files."""
    table = fleet(
        vehicles=5, seconds=files, seed=seed, late_share=0.01, late_by="1 s", payload_bytes=16
    )
    step = -(-table.num_rows // files)
    return [table.slice(number * step, step) for number in range(files)]


def write_file(table: pa.Table, path: Path, number: int) -> None:
    """Put a file into a source at once, a second after the last: Spark goes by their times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden)
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(path)


def record(folder: Path, files: int = FILES, seed: int = 5) -> int:
    """Write the recording as a folder of Parquet files; how many rows it has."""
    parts = slices(files, seed)
    for number, part in enumerate(parts):
        write_file(part, folder / f"{number:03d}.parquet", number)
    return sum(part.num_rows for part in parts)


def from_folder(recording: Path) -> str:
    """The source of a pipeline that reads what `record` wrote."""
    return FOLDER.format(recording=recording)


def pipeline(source: str, out: Path, sink: str, options: str = "") -> str:
    """The text of the pipeline file; `options` are those of the sink, in YAML."""
    extra = f", options: {options}" if options else ""
    return PIPELINE.format(source=source.rstrip(), out=out, sink=sink, options=extra)
