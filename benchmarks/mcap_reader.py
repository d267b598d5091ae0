"""Our MCAP reader beside the stock one: messages per second, and the ratio within one run.

    python benchmarks/mcap_reader.py [messages] [rounds]

Both read all messages of the same files with topic, times and payload; the contestants alternate.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from tidegate import mcap

HEADER = b"std_msgs/Header header\nfloat64[9] values\n"


def record(path: Path, messages: int, compression: CompressionType) -> None:
    """Half incompressible bytes, half text: between a camera and a log."""
    rng = np.random.default_rng(3)
    noise = rng.bytes(1 << 16)
    with open(path, "wb") as file:
        writer = Writer(file, compression=compression)
        writer.start()
        schema = writer.register_schema("pkg/msg/Imu", "ros2msg", HEADER)
        channels = [writer.register_channel(f"/sensor/{n}", "cdr", schema) for n in range(8)]
        for n in range(messages):
            place = (n * 7919) % (len(noise) - 60)
            stamp = n.to_bytes(4, "little") + (n % 10**9).to_bytes(4, "little")
            data = b"\0\1\0\0" + stamp + noise[place : place + 60] + b"frame of the sensor " * 3
            writer.add_message(channels[n % 8], n * 1000, data, n * 1000, n)
        writer.finish()


def stock(path: Path) -> int:
    count = 0
    with open(path, "rb") as file:
        for _, channel, message in make_reader(file).iter_messages(log_time_order=False):
            count += bool(channel.topic and message.data)
    return count


def ours(path: Path) -> int:
    return sum(batch.num_rows for batch in mcap.read(path))


def with_stamps(path: Path) -> int:
    return sum(batch.num_rows for batch in mcap.read(path, clock="header"))


def timed(job: Callable[[Path], int], path: Path, messages: int) -> float:
    began = time.perf_counter()
    assert job(path) == messages
    return messages / (time.perf_counter() - began)


def main(messages: int = 200_000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for compression in (CompressionType.ZSTD, CompressionType.LZ4):
            path = Path(folder) / "log.mcap"
            record(path, messages, compression)
            with_stamps(path)  # compiles the kernels
            speeds: dict[str, list[float]] = {"stock": [], "ours": [], "with stamps": []}
            for _ in range(rounds):
                for name, job in (("stock", stock), ("ours", ours), ("with stamps", with_stamps)):
                    speeds[name].append(timed(job, path, messages))
            median = {name: statistics.median(values) for name, values in speeds.items()}
            ratios = [a / b for a, b in zip(speeds["ours"], speeds["stock"], strict=True)]
            print(
                f"{compression.name:5s} stock {median['stock']:>10,.0f} messages/s   "
                f"tidegate {median['ours']:>10,.0f}   with header stamps "
                f"{median['with stamps']:>10,.0f}   ratio {statistics.median(ratios):.1f}"
            )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
