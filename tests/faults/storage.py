"""Storage that fails: a disk that is full or read-only, a part file that somebody deleted, and
files of a checkpoint that a crash left half written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from faults.sources import FILES, CannotTryError, Place
from spark.outcomes import run_now
from tidegate.errors import TidegateError
from tidegate.output.audit import audit_run
from tidegate.output.commit import CommitLog
from tidegate.output.upkeep import maintain


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[str], None]]:
    """A disk of so many bytes at `folder`, and a way to mount it again with other options."""
    folder.mkdir(parents=True)

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tidegate-faults", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise CannotTryError(f"a tmpfs cannot be mounted: {said.strip()}") from error

    mount(f"size={size}")
    try:
        yield lambda options: mount(f"remount,{options}")
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
        with small_disk(disk, 96 * 1024) as mount_again:
            checkpoint = folder / what / "checkpoint"
            if what == "output":
                place.out = disk / "out"
            else:
                checkpoint = disk / "checkpoint"
            place.stops(place.frames(), "No space left", checkpoint=str(checkpoint))
            done = len(list((place.out / "_commits").glob("*.json")))
            assert done < FILES
            mount_again(f"size={64 * 2**20}")
            run_now(place.frames(), place.out, checkpoint=str(checkpoint))
            rows += place.check(place.parts)
            said.append(f"{what} full after {done} of {FILES} batches")
    return f"tmpfs: {', '.join(said)}; then larger", rows


def read_only(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """The disk of the output turns read-only between two runs, then that of the checkpoint; the run
    says so, and goes on when it can be written again."""
    rows = 0
    for what in ("output", "checkpoint"):
        place = Place(spark, folder / what)
        half = FILES // 2
        for number in range(half):
            place.put(place.parts[number], number)
        disk = folder / what / "disk"
        with small_disk(disk, 64 * 2**20) as mount_again:
            checkpoint = folder / what / "checkpoint"
            if what == "output":
                place.out = disk / "out"
            else:
                checkpoint = disk / "checkpoint"
            run_now(place.frames(), place.out, checkpoint=str(checkpoint))
            for number in range(half, FILES):
                place.put(place.parts[number], number)
            mount_again("ro")
            place.stops(place.frames(), "Read-only file system", checkpoint=str(checkpoint))
            rows += place.check(place.parts[:half])
            mount_again("rw")
            run_now(place.frames(), place.out, checkpoint=str(checkpoint))
            rows += place.check(place.parts)
    return "tmpfs: output, then checkpoint read-only; then not", rows


def deleted_part(spark: SparkSession, folder: Path) -> tuple[str, int]:
    """Somebody deletes a part file of the output. The audit names it, maintenance keeps its name,
    and the stream goes on beside it: put back, everything is there."""
    place = Place(spark, folder)
    for number in range(FILES - 1):
        place.put(place.parts[number], number)
    run_now(place.frames(), place.out)
    record = CommitLog.at(str(place.out)).read(1)
    assert record is not None
    lost = record.files_of("data")[0]
    (place.out / lost).rename(folder / "aside")
    maintained = folder / "maintained"
    shutil.copytree(place.out, maintained, ignore=shutil.ignore_patterns(".*.tmp"))
    maintain(str(maintained))
    place.put(place.parts[-1], FILES - 1)
    run_now(place.frames(), place.out)
    for out in (place.out, maintained):
        audit = audit_run(str(out))
        said = " ".join(audit.lines())
        assert not audit.passed, f"{out.name}: the audit passed"
        assert lost in said, f"{out.name}: the audit does not name {lost}: {said[:300]}"
    shutil.copy(folder / "aside", maintained / lost)
    (folder / "aside").rename(place.out / lost)
    for out in (place.out, maintained):
        audit = audit_run(str(out))
        assert audit.passed, f"{out.name}: put back, the audit says {audit.lines()}"
    return "the audit names it, also after maintenance; put back, all is well", place.check(
        place.parts
    )


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
        # the lease may be renewed once more while it is copied
        shutil.copytree(plain.out, place.out, ignore=shutil.ignore_patterns(".*.tmp"))
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
