"""MCAP files for tests, written by the format's own library: not by the writer under test."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from mcap.reader import make_reader
from mcap.writer import CompressionType, IndexType, Writer

TOPICS = ("/camera", "/lidar", "/imu")


def recording(
    messages: int = 500,
    *,
    compression: CompressionType = CompressionType.ZSTD,
    chunk_size: int = 2_000,
    **options: Any,
) -> bytes:
    """A file whose message `n` is of topic `n % 3`, logged at `1000 * n`, sent 7 ns before."""
    out = io.BytesIO()
    writer = Writer(out, compression=compression, chunk_size=chunk_size, **options)
    writer.start()
    schema = writer.register_schema("Reading", "jsonschema", b"{}")
    channels = [writer.register_channel(topic, "json", schema) for topic in TOPICS]
    for n in range(messages):
        data = b'{"n": %d, "fill": "%s"}' % (n, b"x" * (n % 50))
        writer.add_message(channels[n % 3], 1000 * n + 7, data, 1000 * n, n)
    writer.finish()
    return out.getvalue()


def unindexed(messages: int = 500, **options: Any) -> bytes:
    """The same without any summary: a footer that points nowhere."""
    return recording(
        messages, index_types=IndexType.NONE, repeat_channels=False, repeat_schemas=False,
        use_statistics=False, use_summary_offsets=False, **options,
    )  # fmt: skip


def by_stock_reader(file: bytes) -> list[tuple[Any, ...]]:
    """What the format's own reader finds, in the order of the file."""
    found = make_reader(io.BytesIO(file)).iter_messages(log_time_order=False)
    return [
        (channel.topic, message.log_time, message.publish_time, message.sequence, message.data)
        for _, channel, message in found
    ]


COLUMNS = ("topic", "log_time_ns", "publish_time_ns", "sequence", "data")


def messages_in(batches: Any) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Messages and errors of what our reader gives."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    good = [tuple(row[name] for name in COLUMNS) for row in rows if row["error"] is None]
    return good, [row for row in rows if row["error"] is not None]


def write(folder: Path, file: bytes, name: str = "log.mcap") -> Path:
    path = folder / name
    path.write_bytes(file)
    return path


def as_table(batches: Any) -> pa.Table:
    return pa.Table.from_batches(list(batches))
