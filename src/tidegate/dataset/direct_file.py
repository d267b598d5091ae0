"""Write a large file in order, past the page cache where the disk is quick enough for that.

Through the page cache every byte is copied once more, into memory that the system has to find
first. For datasets larger than memory that is lost work: pages that will not be read soon push out
those of the recording. On virtual machines that give free memory back to their host it costs up to
eight times as much as on others (1.6 instead of 0.2 seconds of CPU per GB: each page is fetched
from the host again), and differs from run to run.

So bytes are collected in blocks of whole disk sectors. A thread writes one block with `O_DIRECT`
while the next is filled. A disk that takes less than `SLOW` this way is left to the page cache,
which writes behind; so are small files and file systems that do not know `O_DIRECT`.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

__all__ = ["DirectFile"]

BLOCK_BYTES = 4 << 20
"""Bytes of a block: large enough for the full speed of a disk (1 MB is enough for most), small
enough that a block is still in the cache of the processor when it is written."""

SECTOR = 4096
"""Bytes to whose multiples direct writes are aligned; disks have sectors of 512 or 4,096 bytes."""

LARGE_PAGE = 2 << 20
"""Bytes of a large page: the disk's driver looks at each page of a block."""

SLOW = 100e6
"""Bytes per second below which a disk is left to the page cache. The run waits for a disk that is
slower than the 1 GB/s at which rows are made; but a quick disk that others use for a moment must
not make it go through the cache."""

TRIAL_BYTES = 32 * BLOCK_BYTES
"""Bytes after which the speed of a disk is believed: it changes from moment to moment."""


class DirectFile:
    """A new file that is written from its start to its end.

    Args:
        path: The file; what was there is replaced.
        direct: Whether to try without the page cache. Give `direct` of the file before, on the
            same disk.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"
        >>> file = DirectFile(path)
        >>> file.append(b"abc")
        >>> file.close()
        >>> path.read_bytes()
        b'abc'
    """

    def __init__(self, path: str | Path, direct: bool = True) -> None:
        self.direct = direct and hasattr(os, "O_DIRECT")
        """Whether writes bypass the page cache."""
        self.size = 0
        """Bytes so far."""
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
        self._written = 0
        self._seconds = 0.0
        self._blocks = _blocks()
        self._place = 0
        self._thread = ThreadPoolExecutor(1, "tidegate-disk")
        self._writing: Future[None] | None = None
        self._begun_direct = False

    def append(self, data: bytes | memoryview) -> None:
        """Write bytes behind those before.

        Raises:
            OSError: What was written before cannot be written.
        """
        done, size = 0, len(data)
        self.size += size
        while done < size:
            if self._place == BLOCK_BYTES:
                self._hand_over(BLOCK_BYTES)
            some = min(BLOCK_BYTES - self._place, size - done)
            self._blocks[0][self._place : self._place + some] = data[done : done + some]
            self._place += some
            done += some

    def append_sized(self, values: Sequence[memoryview]) -> None:
        """Write values, each behind its length in four bytes, the lowest first.

        Raises:
            OSError: What was written before cannot be written.
        """
        # Three lines per value: a call for each part would take as long as copying an image.
        for value in values:
            size = len(value)
            begin = self._place + 4
            end = begin + size
            if end > BLOCK_BYTES:
                self.append(size.to_bytes(4, "little"))
                self.append(value)
                continue
            block = self._blocks[0]
            block[self._place : begin] = size.to_bytes(4, "little")
            block[begin:end] = value
            self._place = end
            self.size += size + 4

    def close(self) -> None:
        """Write what is left, and close the file.

        Raises:
            OSError: The file cannot be written.
        """
        try:
            if self._place:
                whole = -(-self._place // SECTOR) * SECTOR
                self._blocks[0][self._place : whole] = bytes(whole - self._place)
                self._hand_over(whole if self._begun_direct else self._place)
            self._wait()
            os.ftruncate(self._file, self.size)
        finally:
            self._thread.shutdown()
            os.close(self._file)

    def _hand_over(self, count: int) -> None:
        """Give the block to the thread, when it is done with the other one."""
        self._wait()
        if count == BLOCK_BYTES and self.direct and not self._begun_direct:
            self._begun_direct = self.direct = self._set_direct(True)
        block = self._blocks[0]
        self._writing = self._thread.submit(self._write, block[:count])
        self._blocks.reverse()
        self._place = 0

    def _wait(self) -> None:
        """Wait for the thread; what went wrong there is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, rest: memoryview) -> None:
        """Write a block at the end of the file. Runs in the thread."""
        begun = time.perf_counter()
        while rest:
            try:
                some = os.pwrite(self._file, rest, self._written)
            except OSError:
                # Some file systems take the flag and refuse the write.
                if not self._begun_direct:
                    raise
                self._use_cache()
                continue
            self._written += some
            rest = rest[some:]
            if rest and some % SECTOR:  # the disk is full, or the next place is no sector's
                self._use_cache()
        self._seconds += time.perf_counter() - begun
        slow = self._written < SLOW * self._seconds
        if self._begun_direct and self._written >= TRIAL_BYTES and slow:
            self._use_cache()

    def _use_cache(self) -> None:
        """Write through the page cache from here on."""
        if self._begun_direct:
            self._set_direct(False)
            self._begun_direct = self.direct = False

    def _set_direct(self, on: bool) -> bool:
        """Switch the page cache off or on; whether the file system does so."""
        import fcntl  # Windows has neither this nor the flag

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | (os.O_DIRECT if on else 0))
        except OSError:
            return False
        return True


def _blocks() -> list[memoryview]:
    """Two blocks that begin at sectors, in large pages where the system has them."""
    memory = mmap.mmap(-1, 2 * BLOCK_BYTES + LARGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the system has none
            memory.madvise(mmap.MADV_HUGEPAGE)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    first = -address % LARGE_PAGE
    whole = memoryview(memory)
    return [whole[at : at + BLOCK_BYTES] for at in (first, first + BLOCK_BYTES)]
