"""The engine of the fuzzers: change good inputs, try each in a child process with limits.

An input is a seed of the target or of its corpus, changed by one to eight mutations (bits, numbers
at the limits of their types, blocks removed, repeated, exchanged with another seed, words of the
format). A target either takes an input or raises an error it promises; anything else is a finding:
another exception, a signal, more memory than `MEMORY`, or more time than `SECONDS`. A finding is
minimised by halves and kept in the corpus, so that it is tried first from then on.

The same seed gives the same inputs.
"""

from __future__ import annotations

import hashlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

CORPUS = Path(__file__).parent / "corpus"

MEMORY = 2 << 30
"""Bytes a child may take beyond what it has when it starts. Readers may hold 256 MiB of one chunk
in a few forms; a trap claims ten times as much."""

SECONDS = 30.0
"""The longest that one input may compute: CPU, as the machine may be busy with other things."""

STUCK_SECONDS = 300.0
"""The longest that one input may take by the clock: one that waits for ever computes nothing."""

LONGEST_SEED = 50_000
"""Bytes of an input that is still changed: larger ones take most of the time for one change."""

_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40,
            2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of strangers.

    Args:
        name: Also the folder of its corpus.
        seeds: Makes good inputs.
        use: Reads an input as a user would.
        promised: The exceptions it may raise.
        words: Pieces of the format that mutations put in.
        repair: Mends checksums after a mutation, so that it comes further than them.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    use: Callable[[bytes], object]
    promised: tuple[type[Exception], ...] = ()
    words: Sequence[bytes] = ()
    repair: Callable[[bytes, Random], bytes] | None = None

    def corpus(self) -> list[bytes]:
        """The kept inputs, findings of earlier runs among them."""
        folder = CORPUS / self.name
        return [file.read_bytes() for file in sorted(folder.glob("*"))] if folder.is_dir() else []


@dataclass(frozen=True)
class Finding:
    """An input that a target did not survive."""

    target: str
    data: bytes
    what: str

    def keep(self) -> Path:
        """Put it into the corpus."""
        file = CORPUS / self.target / f"found-{hashlib.sha256(self.data).hexdigest()[:12]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.data)
        return file


def mutated(seeds: Sequence[bytes], target: Target, rng: Random) -> bytes:
    """A seed with one to eight changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        size = min(rng.choice((1, 2, 4, 8, 30, 300)), len(data) - at)
        how = rng.randrange(8)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 2:
            width = rng.choice((2, 4, 8))
            number = rng.choice(_NUMBERS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif how == 3:
            del data[at : at + size]
        elif how == 4:
            data[at:at] = data[at : at + size] * rng.choice((1, 2, 20))
        elif how == 5 and target.words:
            data[at : at + rng.choice((0, size))] = rng.choice(target.words)
        elif how == 6:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at : at + size] = other[start : start + rng.choice((size, 300))]
        elif how == 7 and rng.random() < 0.2:
            del data[at:]
    made = bytes(data)
    return made if target.repair is None else target.repair(made, rng)


def run(target: Target, *, seconds: float, seed: int = 0) -> tuple[int, Finding | None]:
    """Try inputs for some seconds; returns how many, and the first finding."""
    seeds = [*target.seeds(), *(kept for kept in target.corpus() if len(kept) < LONGEST_SEED)]
    for good in target.seeds():
        with suppress(*target.promised):
            target.use(good)  # children then need not load kernels
    end = time.monotonic() + seconds
    number = 0
    while number == 0 or time.monotonic() < end:
        inputs = [mutated(seeds, target, Random(f"{seed}/{n}")) for n in range(number, number + 50)]
        done, what = try_all(target, inputs, end)
        number += done
        if what is not None:
            return number, Finding(target.name, _smaller(target, inputs[done]), what)
    return number, None


def try_all(
    target: Target, inputs: Sequence[bytes], end: float = float("inf")
) -> tuple[int, str | None]:
    """Try inputs in a child until one fails or time is over; returns how many went well, and what
    the failure was."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(target, inputs, write, end)
    os.close(write)
    done, failure, rest = 0, None, b""
    begun, computed = time.monotonic(), _cpu_seconds(child)
    while True:
        ready, _, _ = select.select([read], [], [], 1.0)
        if not ready:
            stuck = time.monotonic() - begun > STUCK_SECONDS
            if not stuck and _cpu_seconds(child) - computed <= SECONDS:
                continue
            os.kill(child, signal.SIGKILL)
            failure = f"did not end within {SECONDS:g} s"
            break
        part = os.read(read, 65536)
        if not part:
            break
        begun, computed = time.monotonic(), _cpu_seconds(child)
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"!"):
                failure = line[1:].decode()
            else:
                done = int(line)
    os.close(read)
    _, status = os.waitpid(child, 0)
    if failure is None and os.WIFSIGNALED(status):
        failure = f"the process died with {signal.Signals(os.WTERMSIG(status)).name}"
    return done, failure


def _cpu_seconds(process: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child(target: Target, inputs: Sequence[bytes], write: int, end: float) -> None:
    """Try inputs and report the number of those that went well; never returns."""
    # What is reserved already (numba, Arrow) counts too.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for number, data in enumerate(inputs, 1):
            try:
                target.use(data)
            except target.promised:
                pass
            except BaseException as error:
                text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                os.write(write, f"!{text}\n".encode())
                os._exit(1)
            os.write(write, f"{number}\n".encode())
            if time.monotonic() > end:
                break
    finally:
        os._exit(0)


def _smaller(target: Target, data: bytes, tries: int = 60) -> bytes:
    """Cut away what the failure does not need, by halves of what is left."""
    size = len(data) // 2
    while size and tries:
        at = 0
        while at < len(data) and tries:
            tries -= 1
            shorter = data[:at] + data[at + size :]
            if target.repair is None and try_all(target, [shorter])[1] is not None:
                data = shorter
            else:
                at += size
        size //= 2
    return data
