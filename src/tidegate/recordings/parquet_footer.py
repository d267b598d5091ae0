"""Open a Parquet file that may come from a stranger: its footer is read in a child process first.

Arrow throws in C++ for some footers where Python cannot catch it (pyarrow 26: a histogram of levels
whose size does not fit its column), and the process that looked at the file ends with SIGABRT: on
the driver, the run. So the bytes of the footer go to a child, which looks at everything in it. If
the child dies, needs too long or too much memory, the file is refused in a sentence and the next
file gets a new child. What the child survived is opened here, with the same bytes: a file exchanged
in between changes nothing.

One child serves all files of a process. It starts with the first of them (0.2 s) and ends with the
process; a file then costs what its footer takes to be read twice (10,000 small files: 3 s, opened
without a child 0.5 s). Who opens many asks for them in groups (`check_ahead`). Only a file that
kills it costs a new child. Pages of data are not read there: of pyarrow's ways to look at a file
only `row_group(...).column(...)` aborts, on every file that was found so far; reading the rows
raises.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["FOOTERS_AHEAD", "check_ahead", "open_checked"]

MOST_FOOTER = 256 << 20
"""Bytes of a footer. A file of 10,000 row groups with 1,000 columns has about that; a file may
claim 4 GiB."""

MEMORY = 4 << 30
"""Bytes of address space that the child may take: a few times what the largest footer needs."""

SECONDS = 60.0
"""The longest that one footer may take; the largest takes about ten."""

VERDICTS_KEPT = 1000
"""Footers whose verdict is remembered: a file is looked at more than once while a run is planned
and begun."""

FOOTERS_AHEAD = 100
"""Footers sent before the first answer is read. Answers of 300 bytes must fit into a pipe of 64 kB,
or both sides would wait for each other."""

_MAGIC = b"PAR1"


def open_checked(source: str | bytes) -> pq.ParquetFile:
    """Open a Parquet file whose footer may be crafted.

    Args:
        source: A file of this machine, or the content of one.

    Raises:
        pa.ArrowInvalid: The file is not Parquet, or its footer cannot be read, or a process that
            reads it dies of it.
        OSError: The file cannot be opened.
    """
    footer = _footer_of(source)
    _checker(os.getpid()).check(footer)
    file = pa.BufferReader(source) if isinstance(source, bytes) else source
    return pq.ParquetFile(file, metadata=_metadata_in(footer))


def check_ahead(paths: Sequence[str]) -> None:
    """Have the child read the footers of files that are about to be opened by `open_checked`.

    A footer takes the child a tenth of a millisecond; waiting for each answer before the next
    question takes as long on an idle machine, and milliseconds on a busy one. What is wrong with a
    file is said when it is opened.

    Args:
        paths: At most `FOOTERS_AHEAD` files of this machine.
    """
    footers = []
    for path in paths[:FOOTERS_AHEAD]:
        with suppress(OSError, pa.ArrowInvalid):
            footers.append(_footer_of(path))
    _checker(os.getpid()).check_ahead(footers)


def _footer_of(source: str | bytes) -> bytes:
    """Return the bytes of a footer. Raises pa.ArrowInvalid if there is none."""
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        if size < 12 or tail[4:] != _MAGIC:
            raise pa.ArrowInvalid("not a Parquet file: the last bytes are not those of one")
        (length,) = struct.unpack("<I", tail[:4])
        if length > min(size - 12, MOST_FOOTER):
            raise pa.ArrowInvalid(f"its footer claims {length:,} bytes; the file has {size:,}")
        file.seek(size - 8 - length)
        return file.read(length)


def _metadata_in(footer: bytes) -> pq.FileMetaData:
    """Return the metadata in the bytes of a footer."""
    whole = _MAGIC + footer + struct.pack("<I", len(footer)) + _MAGIC
    return pq.read_metadata(pa.BufferReader(whole))


@cache
def _checker(pid: int) -> _Checker:
    """Return the checker of a process; one that was forked must not talk to its parent's child."""
    return _Checker()


class _Checker:
    """The child, and what it said about footers."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""
        """What it said and has not been looked at."""
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()
        atexit.register(self._end)

    def check(self, footer: bytes) -> None:
        """Raise pa.ArrowInvalid with the reason if a footer cannot be read."""
        digest = hashlib.blake2b(footer, digest_size=16).digest()
        with self._lock:
            verdict = self._verdicts.pop(digest, None)
            if verdict is None:
                verdict = self._ask(footer)
            self._verdicts[digest] = verdict
            while len(self._verdicts) > VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
        if verdict:
            raise pa.ArrowInvalid(verdict)

    def check_ahead(self, footers: Sequence[bytes]) -> None:
        """Ask for all these footers before the first answer. If the child does not survive one,
        those it has not answered are asked for again, one by one, when their files are opened.
        """
        with self._lock:
            digests = [hashlib.blake2b(footer, digest_size=16).digest() for footer in footers]
            new = {
                digest: footer
                for digest, footer in zip(digests, footers, strict=True)
                if digest not in self._verdicts
            }
            try:
                self._send(list(new.values()))
                for digest in new:
                    answer = self._answer()
                    if not answer:
                        break
                    self._verdicts[digest] = str(json.loads(answer))
                else:
                    return
            except BrokenPipeError:
                pass
            if self._child is not None:
                self._child.kill()
                self._end()

    def _send(self, footers: Sequence[bytes]) -> None:
        """Send footers to the child, which is started if there is none."""
        if self._child is None or self._child.poll() is not None:
            self._child = _started()
        if self._child is None:
            return
        assert self._child.stdin is not None
        for footer in footers:
            self._child.stdin.write(struct.pack("<I", len(footer)) + footer)
        self._child.stdin.flush()

    def _answer(self) -> bytes | None:
        """Return the next line of the child; empty if it died, None if it takes too long."""
        if self._child is None:  # none can be started: nothing is found wrong
            return b'""'
        assert self._child.stdout is not None
        while b"\n" not in self._said:
            ready, _, _ = select.select([self._child.stdout], [], [], SECONDS)
            if not ready:
                return None
            more = os.read(self._child.stdout.fileno(), 1 << 16)
            if not more:
                return b""
            self._said += more
        answer, _, self._said = self._said.partition(b"\n")
        return answer

    def _ask(self, footer: bytes) -> str:
        """Return what the child says: nothing, or why the footer cannot be read."""
        try:
            self._send([footer])
            answer = self._answer()
        except BrokenPipeError:
            answer = b""
        if answer:
            return str(json.loads(answer))
        assert self._child is not None
        if answer is None:
            self._child.kill()
        code = self._end()
        if answer is None:
            return f"its metadata is not read within {SECONDS:g} s"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"a process that reads its metadata dies ({how}): the file is damaged or crafted"

    def _end(self) -> int:
        """End the child, if there is one; returns its exit code."""
        child, self._child = self._child, None
        self._said = b""
        if child is None:
            return 0
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        return child.wait()


def _started() -> subprocess.Popen[bytes] | None:
    """Start a child that has loaded Arrow; None, with a warning, where none can be started."""
    # -S and -E: the path is ours, and looking for another one takes as long as the rest. Where the
    # package was found by an import hook (some editable installs), its folder is not in the path.
    code = (
        "import sys, json; sys.path[:] = json.loads(sys.argv[1]); sys.modules['numpy'] = None; "
        f"from {__name__} import serve; serve()"
    )
    path = [*sys.path, str(Path(__file__).parents[2])]
    command = [sys.executable, "-S", "-E", "-c", code, json.dumps(path)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)
    except (OSError, ValueError) as error:
        why = str(error)
    else:
        assert child.stdout is not None
        if child.stdout.readline() == b"ready\n":
            return child
        why = f"it ended with {child.wait()}"
    warnings.warn(
        f"no child process to read Parquet metadata in ({why}): a crafted file may end this one",
        stacklevel=2,
    )
    return None


def serve() -> None:
    """Be the child: answer every footer on stdin with a line on stdout, until stdin ends."""
    import resource  # not on Windows, where no child is started

    # Ctrl-C is for the parent: it may have a micro-batch to finish, and would take a child that
    # died of it for a crafted file.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(b"ready\n")
    answers.flush()
    while len(head := given.read(4)) == 4:
        answers.write(json.dumps(_fault_of(_exactly(given, struct.unpack("<I", head)[0]))).encode())
        answers.write(b"\n")
        answers.flush()


def _exactly(given: BinaryIO, size: int) -> bytes:
    """Read `size` bytes; end the process if its parent is gone."""
    data = given.read(size)
    if len(data) < size:
        raise SystemExit(0)
    return data


def _fault_of(footer: bytes) -> str:
    """Look at everything in a footer; return why it cannot be read, or nothing."""
    try:
        meta = _metadata_in(footer)
        meta.schema.to_arrow_schema()
        for group in range(meta.num_row_groups):
            about = meta.row_group(group)
            for leaf in range(meta.num_columns):
                _look_at(about.column(leaf))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return ""


def _look_at(column: pq.ColumnChunkMetaData) -> None:
    """Look at what gate 1 uses of a column of a row group."""
    known = column.statistics
    if known is None or not known.has_min_max:
        return
    try:
        _ = known.min, known.max
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        return  # no dates of Python's, or text that is not UTF-8: no fault of the file
