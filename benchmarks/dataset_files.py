"""Many recordings to one dataset: Spark on two cores against one thread in this process.

    python benchmarks/dataset_files.py [files] [GB per file] [folder] [rounds]

The files are those of `benchmarks/dataset.py`, with pictures that can be decoded (320 x 240). Two
datasets: Parquet with the bytes of the images, which is copying, and LeRobot with videos, which
is decoding and encoding. In turns; the session of Spark is open and has run one small job before,
as `tidegate dataset --spark` of a large recording pays for its start once. The fastest counts.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

import dataset as single
from tidegate.core import parallel
from tidegate.dataset import write_dataset
from tidegate.pipeline import PipelineDefinition


def pictures(count: int) -> npt.NDArray[np.uint8]:
    """A moving pattern with some noise as JPEG files of equal length, one behind the other."""
    rng = np.random.default_rng(2)
    base = rng.integers(0, 256, (60, 80, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    found = []
    for number in range(count):
        image = np.roll(base, 5 * number, 1) // 2 + rng.integers(0, 30, base.shape, np.uint8)
        context: Any = av.CodecContext.create("mjpeg", "w")
        context.height, context.width = image.shape[:2]
        context.pix_fmt, context.time_base = "yuvj420p", Fraction(1, 30)
        frame = av.VideoFrame.from_ndarray(image.astype(np.uint8), format="rgb24")
        data = b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])
        found.append(np.frombuffer(data.ljust(single.IMAGE_BYTES, b"\0"), np.uint8))
    return np.concatenate(found)


def definition(folder: Path, kind: str) -> PipelineDefinition:
    """The pipeline, with a file for a recording."""
    made = single.definition(folder).model_dump(exclude_unset=True)
    made["streams"]["robot"]["key"] = "file"
    if kind == "lerobot":
        features = {
            "observation.state": "joint.q", "observation.images.front": "front.image",
            "observation.images.wrist": "wrist.image",
        }  # fmt: skip
        made["dataset"] = {"format": "lerobot", "fps": 30, "task": "wave", "features": features}
    return PipelineDefinition.of(made)


def main() -> None:
    """Record, run both, and compare."""
    given = [*sys.argv[1:], *["12", "0.05", "", "2"][len(sys.argv) - 1 :]]
    files, gigabytes, rounds = int(given[0]), float(given[1]), int(given[3])
    root = Path(given[2] or tempfile.mkdtemp(prefix="tidegate-"))
    folder = root / f"logs-{files}-{gigabytes:g}"
    if not folder.exists():
        (root / "part").mkdir(parents=True)
        noise = pictures(30)
        for number in range(files):
            single.record(root / "part" / f"{number:03d}.mcap", gigabytes, noise)
        (root / "part").rename(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{files} files, {size / 1e9:.2f} GB")
    for kind in ("parquet", "lerobot"):
        took: dict[str, list[float]] = {"one thread": [], "Spark": []}
        for turn in range(rounds + 1):
            for name, times in took.items():
                out = root / f"{kind}-{name.split()[0]}"
                shutil.rmtree(out, ignore_errors=True)
                parallel.use(1)
                began, used = time.perf_counter(), time.process_time()
                written = write_dataset(definition(folder, kind), to=out, spark=name == "Spark")
                wall, cpu = time.perf_counter() - began, time.process_time() - used
                told = "warming up: " if turn == 0 else ""
                print(f"{told}{kind}, {name}: {wall:.1f} s (cpu here {cpu:.1f}), {written.written}")
                if turn:
                    times.append(wall)
        ratio = min(took["one thread"]) / min(took["Spark"])
        print(f"{kind}: Spark is {ratio:.2f} times as fast as one thread", flush=True)
    if not given[2]:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
