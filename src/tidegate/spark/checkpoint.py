"""What Tidegate checks and keeps in a checkpoint beside Spark's own files.

CHECKPOINT/metadata          Spark's: the id of the query this checkpoint belongs to
CHECKPOINT/tidegate.json     ours: the number of shards and partitions its state was made with
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pyarrow.fs as pafs

from tidegate.errors import StateError
from tidegate.output.filesystem import filesystem, read_bytes, write_whole
from tidegate.spark.dataflow import Dataflow
from tidegate.spark.stateful_step import check_shards

__all__ = ["check_checkpoint", "with_shards_of"]


def check_checkpoint(checkpoint: str) -> None:
    """Raise StateError if a checkpoint no longer says which query it belongs to.

    Spark would end in a Java stack if its file is damaged, and begin a query with another id if it
    is lost: what the sink has of the last batch would then be written again.
    """
    fs, root = filesystem(checkpoint, "checkpoint")
    file = f"{root}/metadata"
    content = read_bytes(fs, file)
    if content is None:
        offsets = fs.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True))
        if any(info.base_name.isdigit() for info in offsets):
            raise StateError(
                f"{file} is lost, which says whose checkpoint this is; put it back, or use another "
                "output path and checkpoint"
            )
        return
    text = content.decode(errors="replace")
    try:
        uuid.UUID(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{file} is corrupt: {text[:80]!r}") from error


def with_shards_of(pipeline: Dataflow, checkpoint: str) -> Dataflow:
    """Return the pipeline with as many shards as its checkpoint was made with; write that number
    down if the checkpoint is new.

    Unset, the number follows the cores of the machine. On another machine keys would go to other
    shards than their state, and what is held there would never come out. Raises StateError if the
    pipeline sets another number, or the file is damaged.
    """
    fs, root = filesystem(checkpoint, "checkpoint")
    file = f"{root}/tidegate.json"
    content = read_bytes(fs, file)
    if content is None:
        shards, partitions = pipeline.shard_count, pipeline.partition_count
        made = {"shards": shards, "partitions": partitions}
        write_whole(fs, file, json.dumps(made).encode())
        return replace(pipeline, shards=shards, partitions=partitions)
    text = content.decode(errors="replace")
    try:
        made = json.loads(text)
        shards, partitions = int(made["shards"]), int(made["partitions"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{file} is corrupt: {text[:80]!r}") from error
    check_shards(shards, pipeline.shards or shards, f"the checkpoint {checkpoint}")
    return replace(pipeline, shards=shards, partitions=partitions)
