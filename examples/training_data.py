"""Training data: from the recording of a robot arm to a LeRobot dataset, with every value checked.

    python examples/training_data.py [folder]

An MCAP file is made up (two attempts at a task, JSON messages of Foxglove's shape, each recorded a
little after its stamp and out of order). A pipeline file aligns joints and gripper to the camera,
cuts episodes where the joints fall silent, takes the next joint positions as the action, and
writes the dataset. Nothing here needs Spark, and videos are only encoded where PyAV is installed.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import tempfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tidegate.dataset import DatasetSummary, write_dataset
from tidegate.mcap import McapWriter

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000

PIPELINE = """\
name: arm
streams:
  arm:
    source:
      format: mcap
      path: {folder}/arm.mcap
      options:
        decode: stamp long, position array<double> as q, opening double, data binary as image
    topic: topic
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options: {{mode: batch, eventtime: {{enabled: true, lateTolerance: 100 ms}}}}
stages:
  - align:
      reference: camera
      topics: {{joint: {{linear: 50 ms}}, gripper: {{latest: 500 ms}}}}
      missing: drop
  - episodes: {{gap: 150 ms, actions: {{action: {{next: joint.q}}}}}}
dataset:
  format: lerobot
  path: {folder}/dataset
  fps: 10
  task: put the cube into the box
  features:
    observation.state: [joint.q, gripper.opening]
    action: action
{image}"""


def angles(seconds: float) -> list[float]:
    """What the two joints really did: the dataset can be compared with it."""
    return [math.sin(seconds), 0.5 * seconds]


def png(grey: int) -> bytes:
    """A picture of 32 x 24 pixels in one shade of grey, as PNG."""
    lines = b"".join(b"\x00" + bytes([grey, grey, grey]) * 32 for _ in range(24))

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", 32, 24, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in parts)


def messages(seconds: int = 6) -> list[tuple[str, int, dict[str, Any]]]:
    """Topic, stamp and content: camera at 10 Hz, joints at 50 Hz, gripper at 5 Hz.

    Between the two attempts the joints are silent for a second.
    """
    out: list[tuple[str, int, dict[str, Any]]] = []
    for n in range(10 * seconds):
        image = base64.b64encode(png(4 * n % 256)).decode()
        out.append(("camera", START_NS + 100 * MS * n, {"data": image}))
    for n in range(50 * seconds):
        t = 20 * n - 7
        if not 2500 < t < 3500:
            out.append(("joint", START_NS + t * MS, {"position": angles(t / 1000)}))
    return out + [
        ("gripper", START_NS + 200 * MS * n - 3 * MS, {"opening": n % 2})
        for n in range(5 * seconds)
    ]


def record(path: Path) -> int:
    """Write the recording in the order of arrival, which is not the order of the stamps."""
    sent = messages()
    delay = [(7919 * n) % 30 * MS for n in range(len(sent))]
    order = sorted(range(len(sent)), key=lambda n: sent[n][1] + delay[n])
    with McapWriter(path) as log:
        channels = {
            topic: log.channel(
                topic=topic, schema="", schema_encoding="", schema_data=b"", encoding="json"
            )
            for topic in ("camera", "joint", "gripper")
        }
        for n in order:
            topic, stamp, content = sent[n]
            body = json.dumps({"stamp": stamp, **content}).encode()
            log.message(channels[topic], stamp + delay[n], body)
    return len(sent)


def main(to: str | None = None) -> tuple[DatasetSummary, list[dict[str, Any]]]:
    """Record, make the dataset, and compare its states with what the joints really did."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(to or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{record(folder / 'arm.mcap'):,} messages recorded")
        video = find_spec("av") is not None
        image = "    observation.images.front: camera.image\n" if video else ""
        (folder / "run.yaml").write_text(PIPELINE.format(folder=folder, image=image))

        made = write_dataset(folder / "run.yaml")  # or: tidegate dataset run.yaml
        print(f"outcomes: {made.outcomes}")
        print(f"dataset: {made.written}")

        rows = pq.read_table(folder / "dataset" / "data").to_pylist()
        for row in rows:
            truth = angles((row["time_ns"] - START_NS) / 1e9)
            off = [a - b for a, b in zip(row["observation.state"], truth, strict=False)]
            assert max(map(abs, off)) < 1e-3, (row, truth)
        print(f"{len(rows)} frames, every joint angle within 0.001 rad of what it was")
        return made, rows


if __name__ == "__main__":
    main(*sys.argv[1:2])
