"""Our MCAP reader beside the stock one: messages per second, and the ratio within one run.

    python benchmarks/mcap_reader.py [messages] [rounds]

Both read all messages of the same files with topic, times and payload; the contestants alternate.
Then three fields of every ROS 2 message are decoded: beside us the stock reader with `rosbags`,
which decodes all fields, since it cannot decode some.
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
from rosbags.typesys import Stores, get_typestore

from tidegate import mcap

IMU = "sensor_msgs/msg/Imu"
FIELDS = "header.stamp, header.frame_id, linear_acceleration.x"

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


def record_imu(path: Path, messages: int) -> None:
    """Real messages: a header with a frame of changing length, and 37 numbers."""
    store = get_typestore(Stores.LATEST)
    types = store.types
    vector, nine = types["geometry_msgs/msg/Vector3"], np.arange(9.0)
    turned = types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0)
    text, _ = store.generate_msgdef(IMU, ros_version=2)
    with mcap.McapWriter(path) as log:
        encoded = {"schema_encoding": "ros2msg", "schema_data": text.encode(), "encoding": "cdr"}
        channel = log.channel("/imu", schema=IMU, **encoded)
        for n in range(messages):
            stamp = types["builtin_interfaces/msg/Time"](sec=n, nanosec=n)
            header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="imu" * (n % 4))
            message = types[IMU](
                header=header, orientation=turned, orientation_covariance=nine,
                angular_velocity=vector(x=n * 0.1, y=0.0, z=0.0),
                angular_velocity_covariance=nine,
                linear_acceleration=vector(x=n * 0.5, y=0.0, z=9.8),
                linear_acceleration_covariance=nine,
            )  # fmt: skip
            log.message(channel, n, bytes(store.serialize_cdr(message, IMU)))


def stock_decoded(path: Path) -> int:
    store = get_typestore(Stores.LATEST)
    count, total = 0, 0.0
    with open(path, "rb") as file:
        for _, _, message in make_reader(file).iter_messages(log_time_order=False):
            imu = store.deserialize_cdr(message.data, IMU)
            total += imu.linear_acceleration.x
            count += bool(imu.header.stamp.sec >= 0)
    assert total == 0.5 * count * (count - 1) / 2
    return count


def ours_decoded(path: Path) -> int:
    count, total = 0, 0.0
    for batch in mcap.read(path, decode=FIELDS):
        total += batch.column("linear_acceleration_x").to_numpy().sum()
        count += batch.num_rows
    assert total == 0.5 * count * (count - 1) / 2
    return count


def decoding(path: Path, messages: int, rounds: int) -> None:
    record_imu(path, messages)
    ours_decoded(path)  # compiles the kernels
    stock, ours = [], []
    for _ in range(rounds):
        stock.append(timed(stock_decoded, path, messages))
        ours.append(timed(ours_decoded, path, messages))
    ratio = statistics.median(a / b for a, b in zip(ours, stock, strict=True))
    print(
        f"three fields of ROS 2 messages: stock and rosbags {statistics.median(stock):>10,.0f} "
        f"messages/s   tidegate {statistics.median(ours):>10,.0f}   ratio {ratio:.1f}"
    )


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
        decoding(Path(folder) / "imu.mcap", messages // 5, rounds)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
