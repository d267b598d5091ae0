"""A robot's MCAP to a dataset: Tidegate against a script with the stock reader, side by side.

    python benchmarks/dataset.py [GB] [folder] [rounds]

The file has two cameras at 30 Hz (compressed images of 60 kB), joints at 100 Hz and an IMU at
200 Hz, as ROS 2 messages, uncompressed chunks of 4 MB, a little out of order. Both contestants make
Parquet of it: a row per frame of the first camera with the second camera, the joints and the IMU
nearest to it. The script is what teams write: `mcap` reads, `rosbags` deserialises, `merge_asof` of
pandas joins. Beside them: Arrow writing the same rows that Tidegate wrote, from memory and without
compression, which is the least that any of it can cost. All three in turns, `rounds` times; the
fastest of each counts. Peak memory is that of a process of its own for Tidegate; the file is
mapped, so the part of it that is in the page cache counts too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mcap.reader import make_reader
from rosbags.typesys import Stores, get_typestore

from tidegate.dataset import write_dataset
from tidegate.mcap import McapWriter
from tidegate.pipeline import PipelineDefinition

IMAGE_BYTES = 60_000
IMAGES = 500
"""Different pictures, 30 MB: as with JPEG, no compressor finds one in another, which would be so if
they were parts of one another."""
START_NS = 1_700_000_000_000_000_000
KINDS = {
    "front": ("sensor_msgs/msg/CompressedImage", 30),
    "wrist": ("sensor_msgs/msg/CompressedImage", 30),
    "joint": ("sensor_msgs/msg/JointState", 100),
    "imu": ("sensor_msgs/msg/Imu", 200),
}
STORE: Any = get_typestore(Stores.LATEST)


def message(topic: str, stamp: int, number: int, noise: np.ndarray) -> bytes:
    """One message as ROS 2 serialises it."""
    types = STORE.types
    header = types["std_msgs/msg/Header"](
        stamp=types["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9),
        frame_id="base",
    )
    kind = KINDS[topic][0]
    if topic in ("front", "wrist"):
        begin = number * IMAGE_BYTES % len(noise)
        data = noise[begin : begin + IMAGE_BYTES]
        made = types[kind](header=header, format="jpeg", data=data)
    elif topic == "joint":
        some = np.sin(np.arange(6) + number / 100)
        made = types[kind](
            header=header, name=list("abcdef"), position=some, velocity=some, effort=some
        )
    else:
        vector, zeros = types["geometry_msgs/msg/Vector3"], np.zeros(9)
        made = types[kind](
            header=header, orientation_covariance=zeros, angular_velocity_covariance=zeros,
            orientation=types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0),
            angular_velocity=vector(x=0.1, y=0.2, z=0.3), linear_acceleration_covariance=zeros,
            linear_acceleration=vector(x=0.0, y=0.0, z=9.81 + number),
        )  # fmt: skip
    return bytes(STORE.serialize_cdr(made, kind))


def record(path: Path, gigabytes: float, pictures: np.ndarray | None = None) -> None:
    """Write the recording.

    Args:
        path: The file.
        gigabytes: Its size.
        pictures: The bytes of images of `IMAGE_BYTES` each; default: `IMAGES` that look like JPEG.
    """
    rng = np.random.default_rng(1)
    if pictures is None:
        pictures = rng.integers(0, 256, IMAGES * IMAGE_BYTES, np.uint8)
        pictures.reshape(IMAGES, IMAGE_BYTES)[:, :3] = (0xFF, 0xD8, 0xFF)
    noise = pictures
    seconds = gigabytes * 1e9 / (60 * IMAGE_BYTES + 100 * 330 + 200 * 380)
    sent = []
    for topic, (_, rate) in KINDS.items():
        stamps = START_NS + np.arange(int(seconds * rate)) * (10**9 // rate)
        delay = rng.integers(0, 20_000_000, len(stamps))
        arrival = zip((stamps + delay).tolist(), stamps.tolist(), strict=True)
        sent += [(at, stamp, n, topic) for n, (at, stamp) in enumerate(arrival)]
    sent.sort()
    with McapWriter(path, compression="none") as log:
        channels = {}
        for topic, (kind, _) in KINDS.items():
            text = STORE.generate_msgdef(kind, ros_version=2)[0]
            channels[topic] = log.channel(
                topic=topic, schema=kind, schema_encoding="ros2msg", schema_data=text.encode(),
                encoding="cdr",
            )  # fmt: skip
        for at, stamp, number, topic in sent:
            log.message(channels[topic], at, message(topic, stamp, number, noise))


def definition(path: Path) -> PipelineDefinition:
    """The pipeline of Tidegate."""
    decode = "position as q, linear_acceleration.z as az, data as image"
    return PipelineDefinition.of(
        {
            "streams": {
                "robot": {
                    "source": {
                        "format": "mcap", "path": str(path),
                        "options": {"clock": "header", "decode": decode},
                    },
                    "topic": "topic",
                    "eventtime": {"column": "header_stamp_ns", "type": "unixtimestamp_ns"},
                }
            },
            "options": {
                "mode": "batch", "eventtime": {"enabled": True, "lateTolerance": "50 ms"},
            },
            "stages": [
                {
                    "align": {
                        "reference": "front", "unused": False,
                        "topics": {
                            "wrist": {"nearest": "50 ms"}, "joint": {"nearest": "50 ms"},
                            "imu": {"nearest": "50 ms"},
                        },
                    }
                }
            ],
            "dataset": {
                "format": "parquet",
                "columns": ["front.image", "wrist.image", "joint.q", "imu.az"],
            },
        }
    )  # fmt: skip


def ours(path: Path, to: Path) -> int:
    """Tidegate, in process."""
    return int(write_dataset(definition(path), to=to).written["rows"])


def script(path: Path, to: Path) -> int:
    """The script: read, deserialise, sort, join, write."""
    found: dict[str, list[dict[str, Any]]] = {topic: [] for topic in KINDS}
    with path.open("rb") as file:
        for schema, channel, one in make_reader(file).iter_messages():
            assert schema is not None
            said = STORE.deserialize_cdr(one.data, schema.name)
            stamp = said.header.stamp.sec * 10**9 + said.header.stamp.nanosec
            row: dict[str, Any] = {"t": stamp}
            if channel.topic == "joint":
                row["q"] = said.position.tolist()
            elif channel.topic == "imu":
                row["az"] = said.linear_acceleration.z
            else:
                row[channel.topic] = said.data.tobytes()
            found[channel.topic].append(row)
    frames = {topic: pd.DataFrame(rows).sort_values("t") for topic, rows in found.items()}
    out = frames["front"]
    for topic in ("wrist", "joint", "imu"):
        out = pd.merge_asof(out, frames[topic], on="t", direction="nearest", tolerance=50_000_000)
    to.mkdir()
    table = pa.Table.from_pandas(out)
    pq.write_table(table, to / "part.parquet", compression="zstd")
    return int(table.num_rows)


def timed(label: str, size: float, run: Callable[[], int]) -> tuple[float, float]:
    """Run once; print and return wall and CPU time."""
    began, used = time.perf_counter(), time.process_time()
    rows = run()
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    print(
        f"{label:34s} {rows:7,} rows {wall:7.1f} s (cpu {cpu:6.1f})  {size / wall / 1e6:7.1f} MB/s"
        f" (per cpu second {size / cpu / 1e6:7.1f})",
        flush=True,
    )
    return wall, cpu


def main() -> None:
    """Record, run both, and compare."""
    if sys.argv[1:2] == ["--ours"]:
        ours(Path(sys.argv[2]), Path(sys.argv[3]))
        # Not ru_maxrss: that begins with what the process that started this one had.
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
        return
    gigabytes = float(sys.argv[1] if len(sys.argv) > 1 else 0.2)
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="tidegate-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"robot-{gigabytes:g}.mcap"
    if not path.exists():  # kept from an earlier run
        record(path, gigabytes)
    size = path.stat().st_size
    print(f"{path}: {size / 1e9:.2f} GB")
    small = folder / "small.mcap"
    for name in ("warm", "again"):
        shutil.rmtree(folder / name, ignore_errors=True)
    record(small, 0.02)
    ours(small, folder / "warm")  # compile
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    mine, other, least = [], [], []
    for _ in range(rounds):
        for name in ("ours", "script"):
            shutil.rmtree(folder / name, ignore_errors=True)
        mine.append(timed("tidegate dataset, parquet", size, lambda: ours(path, folder / "ours")))
        run = lambda: script(path, folder / "script")  # noqa: E731
        other.append(timed("mcap + rosbags + merge_asof", size, run))
        table = pq.read_table(folder / "ours")

        def written(table: pa.Table = table) -> int:
            pq.write_table(
                table, folder / "arrow.parquet", compression="none", use_dictionary=False
            )
            return int(table.num_rows)

        least.append(timed("Arrow writing the same rows", size, written))
    for place, what in enumerate(("wall", "CPU")):
        us, script_s, arrow_s = (min(one[place] for one in all) for all in (mine, other, least))
        print(f"{what} time: {script_s / us:.1f} x the script, {arrow_s / us:.2f} of Arrow's speed")
    script_rows = pq.read_table(folder / "script").to_pandas()
    images = table["wrist"].combine_chunks().field("image").to_pylist()
    assert images == script_rows["wrist"].to_list()
    assert table["imu"].combine_chunks().field("az").to_pylist() == script_rows["az"].to_list()
    ran = subprocess.run(
        [sys.executable, __file__, "--ours", str(path), str(folder / "again")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    print(f"peak memory of tidegate: {ran.stdout.strip()} MB")
    if len(sys.argv) <= 2:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
