"""Blobs that stay in files of the machine: in local mode, Spark only carries where they are.

Between two of our functions Spark copies a blob some ten times (out of Python, into a row, through
a sort, the shuffle and another sort, and into Python again): of the CPU time of a micro-batch that
was more than half. Where all tasks run on one machine the blob is written to a file once, and what
goes through Spark is a reference of some hundred bytes; the reader maps the file into memory.

    FOLDER/SESSION/QUERY/BATCH/NAME     one file per call, several blobs in it

Files outlive a task, so that one which fails can run again, and go when a later micro-batch of the
same query begins: what it has read, nobody asks for again. The last ones of a query go with the
next query of the session, or with the session: `FOLDER` is inside Spark's own temporary folder.

Outside a micro-batch blobs are carried: a batch DataFrame may be evaluated at any time, and again.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.spark.connect import is_connect

__all__ = ["BlobFiles", "blob_files", "blob_size", "opened_blob"]

FOLDER = "tidegate-blobs"
"""The folder inside Spark's temporary folder."""

LEAST_BYTES = 64 * 2**10
"""Bytes of blobs that are worth a file. Fewer are carried: opening and mapping a file takes about
long as Spark takes to copy them, and a micro-batch of few rows should write none."""

_MARK = b"tidegate blob in "
"""What a reference begins with. Arrow IPC begins with four bytes 0xFF."""

_SPAN = struct.Struct("<qq")
"""Offset and size, behind the mark; the path follows."""

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of Spark's tasks: the query, and the number of its micro-batch."""

_LOCAL = re.compile(r"local(\[.*\])?")
"""Masters that run all tasks in one process, on this machine."""


@dataclass(frozen=True)
class BlobFiles:
    """Where the blobs of micro-batches may stay. Travels to the workers.

    Args:
        folder: The folder of this session.
        least: Bytes of blobs below which they are carried.
    """

    folder: str
    least: int = LEAST_BYTES

    def column(
        self, write: Callable[[pa.NativeFile, int], None], count: int, size: int
    ) -> pa.BinaryArray | None:
        """Write blobs into a file of this micro-batch; return references to them.

        Args:
            write: Writes one blob, given by its place, to a file.
            count: How many blobs there are.
            size: Their bytes, about.

        Returns:
            None where they have to be carried: outside a micro-batch, below `least` bytes, and if
            the file cannot be written, as on a full disk.
        """
        if size < self.least or os.name != "posix":
            return None
        batch = _micro_batch()
        if batch is None:
            return None
        query, number = batch
        folder = f"{self.folder}/{query}/{number}"
        path = f"{folder}/{uuid.uuid4().hex}"
        try:
            if not os.path.isdir(folder):
                os.makedirs(folder, mode=0o700, exist_ok=True)
                _remove_earlier(f"{self.folder}/{query}", number)
            with pa.OSFile(path, "wb") as sink:
                edges = [0]
                for place in range(count):
                    write(sink, place)
                    edges.append(sink.tell())
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            return None
        name = path.encode()
        return pa.array(
            [_MARK + _SPAN.pack(start, stop - start) + name for start, stop in pairwise(edges)],
            pa.binary(),
        )


def _micro_batch() -> tuple[str, int] | None:
    """Return the query and the number of the micro-batch that this runs in; None outside one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query, number = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
    return (query, int(number)) if query and number and number.isdigit() else None


def _remove_earlier(folder: str, batch: int) -> None:
    """Remove the files of earlier micro-batches of a query."""
    for name in os.listdir(folder):
        if name.isdigit() and int(name) < batch:
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)


def _reference(blob: pa.Buffer) -> tuple[str, int, int] | None:
    """Return path, offset and size of a blob that is in a file; None for one that is carried."""
    head = len(_MARK)
    if blob.size < head + _SPAN.size or blob.slice(0, head).to_pybytes() != _MARK:
        return None
    content = blob.to_pybytes()
    offset, size = _SPAN.unpack_from(content, head)
    return content[head + _SPAN.size :].decode(), offset, size


def opened_blob(blob: pa.Buffer) -> pa.Buffer:
    """Return the bytes of a blob, wherever they are; those of a file are mapped, not read.

    Example:
        >>> opened_blob(pa.py_buffer(b"carried")).to_pybytes()
        b'carried'
    """
    found = _reference(blob)
    if found is None:
        return blob
    path, offset, size = found
    with pa.memory_map(path) as file:
        file.seek(offset)
        return file.read_buffer(size)


def blob_size(blob: pa.Buffer) -> int:
    """Return how many bytes a blob has, wherever they are.

    Example:
        >>> blob_size(pa.py_buffer(b"carried"))
        7
    """
    found = _reference(blob)
    return blob.size if found is None else found[2]


def blob_files(spark: SparkSession) -> BlobFiles | None:
    """Return where the blobs of a session may stay; None where tasks may run on several machines.

    Files of queries of this session that have ended are removed.
    """
    if is_connect(spark):
        return None
    context = spark.sparkContext
    own = getattr(context, "_temp_dir", None)  # Spark removes it when Java ends
    if own is None or _LOCAL.fullmatch(str(context.master)) is None:
        return None
    # A session knows its own queries only: what is not active here may be of another session.
    folder = f"{own}/{FOLDER}/{spark._jsparkSession.hashCode()}"
    active = {query.id for query in spark.streams.active}
    with suppress(OSError):
        for query in os.listdir(folder):
            if query not in active:
                shutil.rmtree(f"{folder}/{query}", ignore_errors=True)
    return BlobFiles(folder, LEAST_BYTES)
