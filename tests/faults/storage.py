"""Storage that fails: a full disk, and files of a checkpoint that a crash left half written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from faults.sources import FILES, Place
from spark.outcomes import run_now
from tidegate.errors import TidegateError


class CannotMountError(Exception):
    """Why there is no small disk to fill."""


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A disk of so many bytes at `folder`, and a way to make it larger."""
    folder.mkdir(parents=True)

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tidegate-faults", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise CannotMountError(f"a tmpfs cannot be mounted: {said.strip()}") from error

    mount(f"size={size}")
    try:
        yield lambda larger: mount(f"remount,size={larger}")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disk(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """The disk of the output is full, then that of the checkpoint; with more space runs go on."""
    rows, said = 0, []
    for what in ("output", "checkpoint"):
        place = Place(spark, folder / what)
        for number, part in enumerate(place.parts):
            place.put(part, number)
        disk = folder / what / "disk"
        with small_disk(disk, 96 * 1024) as grow:
            checkpoint = folder / what / "checkpoint"
            if what == "output":
                place.out = disk / "out"
            else:
                checkpoint = disk / "checkpoint"
            place.stops(place.frames(), "No space left", checkpoint=str(checkpoint))
            done = len(list((place.out / "_commits").glob("*.json")))
            assert done < FILES
            grow(64 * 2**20)
            run_now(place.frames(), place.out, checkpoint=str(checkpoint))
            rows += place.check(place.parts)
            said.append(f"{what} full after {done} of {FILES} batches")
    return f"tmpfs: {', '.join(said)}; then larger", rows


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "gone": lambda file: file.unlink(),
}

NEWEST = (
    "_checkpoint/metadata",
    "_checkpoint/tidegate.json",
    "_checkpoint/offsets/[0-9]*",
    "_checkpoint/commits/[0-9]*",
    "_checkpoint/sources/0/[0-9]*",
    "_checkpoint/state/0/0/**/*.changelog",
    "_commits/*.json",
)
"""The files of a stream that a crash may leave half written: the newest of each."""


def half_written(
    spark: SparkSession, folder: Path, cases: list[tuple[str, str]] | None = None
) -> tuple[str, int]:
    """Each file of a checkpoint emptied, halved, removed: refused, or the answer is right."""
    plain = Place(spark, folder)
    for number in range(FILES // 2):
        plain.put(plain.parts[number], number)
    run_now(plain.frames(), plain.out)
    for number in range(FILES // 2, FILES):
        plain.put(plain.parts[number], number)
    rows = refused = repaired = 0
    wrong = []
    for which, how in cases or [(which, how) for which in NEWEST for how in DAMAGE]:
        place = Place(spark, folder)
        place.out = folder / f"{which.replace('/', '-').replace('*', '')}-{how}"
        shutil.copytree(plain.out, place.out)
        found = max(place.out.glob(which), key=lambda file: (file.name, str(file)))
        DAMAGE[how](found)
        found.with_name(f".{found.name}.crc").unlink(missing_ok=True)
        try:
            run_now(place.frames(), place.out)
            rows += place.check(place.parts)
            repaired += 1
        except (PySparkException, TidegateError):
            refused += 1
        except Exception as error:  # a wrong answer, or a Java stack in place of a sentence
            wrong.append(f"{which} {how}: {type(error).__name__} {str(error)[:200]}")
    assert not wrong, "; ".join(wrong)
    return f"{refused + repaired} damages: {refused} refused, {repaired} repaired", rows
