"""Every kernel of the package, compiled before anyone waits for it, and Spark's Java classes.

Numba compiles a kernel when it is first called and keeps the result beside the package, or in the
folder that `NUMBA_CACHE_DIR` names. `tidegate warm` does that for all of them at once: in the build
of an image, once on each node of a cluster, before a test run. Compiling holds the interpreter's
lock, so parts are compiled in processes side by side. Where pyspark is installed, one more part
keeps Spark's Java classes for the sessions that start in local mode on this machine.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "compile_all"]


def compile_all(processes: int | None = None) -> Iterator[tuple[str, float]]:
    """Compile every kernel, and keep Java's classes; what is on disk already is only loaded.

    Args:
        processes: How many compile at once; one per core if None.

    Yields:
        The name of a part of `PARTS` and the seconds of CPU it took, as each is done.

    Example:
        >>> from tidegate.warm import PARTS
        >>> sorted(PARTS)[:5]
        ['align', 'batch', 'compact', 'eventtime_watermark', 'java_classes']
    """
    # Kernels that the others share: compiled first, or every process would compile them again.
    from tidegate.core.flow import Flow

    Flow([]).compile()
    # Not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), context) as pool:
        for done in as_completed([pool.submit(_compile_part, part) for part in PARTS]):
            yield done.result()


def _compile_part(part: str) -> tuple[str, float]:
    """Compile one part, in a process of its own."""
    begun = _cpu_seconds()
    PARTS[part]()
    return part, _cpu_seconds() - begun


def _cpu_seconds() -> float:
    """Return the seconds of CPU that this process and the processes it has waited for took."""
    return sum(os.times()[:4])


# Each imports what it compiles: a process loads one part of the package only. Settings only have
# to be valid.


def _eventtime() -> None:
    from tidegate.eventtime import EventtimeWatermark

    EventtimeWatermark("1 s").compile()
    EventtimeWatermark("1 s", max_future_skew="1 s", idle_timeout="1 s").compile()


def _synchronize() -> None:
    from tidegate.sync import ApproximateTime, ExactTime, Synchronize, hindsight

    Synchronize(("a", "b"), queue_size=10).compile()
    Synchronize(("a", "b"), queue_size=10, policy="exact").compile()
    for live in (ApproximateTime(("a", "b"), queue_size=10), ExactTime(("a", "b"), queue_size=10)):
        live.push("a", 1, None)
        live.tick(2)
    hindsight(2, [0, 1], [1, 2], max_interval=1)


def _batch() -> None:
    from tidegate.batching import Batch, Message, RateAwareBatcher
    from tidegate.core.numba import compile_at_once

    Batch().compile()
    with compile_at_once():
        RateAwareBatcher("1 s").poll([Message("a", 1, None)])


def _window() -> None:
    from tidegate.windows import Adaptive, Session, StateWindow, Tumbling, Window

    mergeable: dict[str, Any] = {"n": "count", "top": ("max", "x")}
    needs_rows: dict[str, Any] = {**mergeable, "middle": ("quantile", "x", 0.5)}
    for kind in (Adaptive(), Session("1 s"), StateWindow(True, True), Tumbling("1 s")):
        Window(kind).compile()
        Window(kind, aggregates=mergeable).compile()
        Window(kind, aggregates=mergeable, group_by=("g",)).compile()
        Window(kind, aggregates=needs_rows, group_by=("g",)).compile()


def _compact() -> None:
    from tidegate.deltas import Compact

    Compact(2).compile()


def _align() -> None:
    from tidegate.align import Align, Episodes, linear, mean, slerp

    methods = {"a": linear("1 s"), "b": slerp("1 s"), "c": mean("1 s")}
    Align(methods, "d").compile()
    Align(methods, grid="10 Hz").compile()
    Episodes(gap="1 s").compile()


def _recordings() -> None:
    """What reads MCAP files: a small one is written, and read by each clock and decoded."""
    from tidegate.mcap import CLOCKS, McapWriter, read

    fields = b"std_msgs/Header header\nfloat64[] values\n" + b"=" * 80 + b"\n"
    header = b"MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
    # CDR: its header, a stamp (s, ns), an empty string (its length counts the end), one float64
    ros = b"\0\1\0\0" + struct.pack("<iIIBxxxIxxxxd", 1, 0, 1, 0, 1, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "warm.mcap")
        with McapWriter(path) as writer:
            channel = writer.channel(
                "ros", schema="warm/msg/Warm", schema_encoding="ros2msg",
                schema_data=fields + header, encoding="cdr",
            )  # fmt: skip
            writer.message(channel, 1, ros)
            channel = writer.channel(
                "protobuf", schema="Warm", schema_encoding="protobuf",
                schema_data=_described_stamp(), encoding="protobuf",
            )  # fmt: skip
            writer.message(channel, 2, b"\n\2\10\1")
        for clock in CLOCKS:
            list(read(path, clock=clock))
        if find_spec("rosbags") is not None:  # it reads ROS definitions
            list(read(path, ["ros"], decode="values, header.frame_id"))


def _java_classes() -> None:
    """Keep the classes of Spark's Java in a file, where there are pyspark and Java."""
    if find_spec("pyspark") is None:
        return
    from tidegate.errors import ConfigError
    from tidegate.spark.environment.class_archive import make_archive
    from tidegate.spark.environment.java import use_java

    with suppress(ConfigError):  # no Java: there is nothing to keep
        make_archive(use_java(), [sys.executable, "-m", __name__])


def _load_java_classes(folder: Path) -> None:
    """Run what most runs do, a batch and a stream, so that Java loads the classes they need; then
    end Java and wait for it: it writes the archive at its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark import SparkContext

    from tidegate.spark import frames, read, session
    from tidegate.spark.query import run_batch_job

    pq.write_table(pa.table({"key": ["a", "b"], "t": [1, 2]}), folder / "rows.parquet")
    spark = session("local[2]", "tidegate-warm", log=folder / "log")
    rows = spark.read.parquet(str(folder / "rows.parquet"))
    frames(rows, key="key", time="t").event_time("unixtimestamp_s", "1 s").data.collect()
    made = frames(read(str(folder / "rows.parquet"), spark=spark), key="key", time="t")
    run_batch_job(made.event_time("unixtimestamp_s", "1 s"), str(folder / "out"))
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _described_stamp() -> bytes:
    """Return the schema of a protobuf message with a stamp."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    described = FileDescriptorSet()
    message = described.file.add(name="warm.proto").message_type.add(name="Warm")
    kind = FieldDescriptorProto.TYPE_MESSAGE
    message.field.add(name="stamp", number=1, type=kind, type_name=".google.protobuf.Timestamp")
    return bytes(described.SerializeToString())


PARTS: dict[str, Callable[[], None]] = {
    # the longest first, so that two processes end at about the same time
    "java_classes": _java_classes,
    "batch": _batch,
    "window": _window,
    "compact": _compact,
    "synchronize": _synchronize,
    "eventtime_watermark": _eventtime,
    "align": _align,
    "recordings": _recordings,
}
"""What prepares each part, by name: the kernels of a part of the package, or Java."""

if __name__ == "__main__":  # the program of `make_archive`
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        _load_java_classes(Path(place))
