"""Who may write to an output: epochs, the lease on them, and what fences off a driver of the past.

    OUT/_epochs/00000003.json     the claim: who took epoch 3; created exclusively, never changed
    OUT/_epochs/00000003.lease    how often its driver has renewed it, and whether it has let go

Theory of operation
===================

A *driver* is a process that writes micro-batches into an output. Before it writes, it claims the
next *epoch* by creating its claim file exclusively: of two that try, one is told that it came
second. While it runs it renews its *lease*: every third of `LEASE_S` it writes a number that is
larger by one. A second driver that comes meanwhile is refused. It may claim the next epoch when

- the lease was *released*: the driver ended in good order and promised not to write again;
- its process is *dead*, which a process on the same machine can see for itself;
- the lease has *expired*: it was not renewed for `LEASE_S`;
- the user says so (`--take-over`).

A lease says who should write. It cannot stop a driver that was paused (a suspended machine, a long
garbage collection, a lost network) and wakes up long after it was superseded. The *fence* does:

- every staged file, every data file and every commit record carries the epoch that wrote it, so
  two drivers never write the same file;
- commit records are created exclusively, one per batch. A driver that takes over from one that is
  not known to be dead *seals* the next record first (`CommitLog.seal`): it creates it as a sign
  that says "closed by epoch 4". Either the old driver's record was there before, and the new one
  goes on behind it; or the old driver finds the seal in its way and stops. There is no third case;
- a driver removes files of its own epoch, and uncommitted files of earlier epochs, whose records
  can no longer be created. It never removes a file of a later epoch.

So a driver that was superseded can harm nothing, however long it slept and wherever it wakes up.

Clock policy
============

No two machines' clocks are compared. The age of a lease is the difference of two times given by
the same file system: that of the lease file, and that of a file written just now. If that says
*expired*, renewals are counted for another third of `LEASE_S` on our own monotonic clock before it
is believed: a clock that was set in between must not end a living lease. If the lease was renewed
in the future (the clock was set back: a machine without a battery for it, after a reboot), times
say nothing, and renewals are counted for a whole `LEASE_S`. A wrong verdict costs the older driver
its run, never a row: that is what the fence is for.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow.fs as pafs

from tidegate.errors import ConfigError, StateError
from tidegate.output.filesystem import create_whole, filesystem, now_s, read_bytes, write_whole

__all__ = ["EPOCHS", "LEASE_S", "Claim", "Epochs", "LeaseClock", "Owner", "Standing"]

log = logging.getLogger(__name__)

EPOCHS = "_epochs"
"""The folder of claims and leases under the output path."""

LEASE_S = 30.0
"""Seconds after its last renewal for which a lease holds. Below some five, a driver that swaps or
collects garbage loses its run; above minutes, people wait for a machine that is gone."""

TICK_S = 0.5
"""Seconds between two looks of the renewing thread at whether its run has ended: how long a lease
outlives its run in a process that goes on (a notebook)."""


class LeaseClock(Protocol):
    """What measures time here: the module `time`, or the clock of a simulation."""

    def monotonic(self) -> float:
        """Return seconds since some moment; never runs back."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


class Standing(enum.Enum):
    """How the driver of an epoch stands, as far as another one can tell."""

    RELEASED = "released"
    """It ended and will not write again."""

    DEAD = "dead"
    """Its process ended on this machine without a word."""

    OURS = "ours"
    """It belongs to this process and its run has ended."""

    EXPIRED = "expired"
    """Its lease was not renewed; it may be paused and wake up."""

    HELD = "held"
    """It renews its lease."""

    @property
    def may_wake(self) -> bool:
        """Whether it may still try to write: it must be fenced off."""
        return self in (Standing.EXPIRED, Standing.HELD)


_RELEASED = "has ended"
"""Why a claim is over that its own run let go of, the end of a sentence."""


@dataclass(frozen=True)
class Owner:
    """A process that claims epochs.

    Args:
        process: A random name of the process.
        host: The name of its machine, for people.
        machine: Boot and process namespace of that machine: where they are the same, processes
            see each other. Empty where the system does not tell (not Linux).
        pid: Its number in that namespace.
        started: When it was started, in the kernel's ticks: numbers are used again.
    """

    process: str
    host: str = ""
    machine: str = ""
    pid: int = 0
    started: int = 0

    @classmethod
    def here(cls) -> Owner:
        """Return this process; another one after a fork."""
        return _this_process(os.getpid())

    def is_gone(self, seen_from: Owner) -> bool:
        """Return whether this process has ended, if that can be seen from there; else False."""
        if not self.machine or self.machine != seen_from.machine:
            return False
        found = _process_state(self.pid)
        if found is None or found.state in "ZX":
            return True
        return found.started not in (self.started, -1)


@cache
def _this_process(pid: int) -> Owner:
    """The owner of a process number; made once, so that its random name stays the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        machine = ""
    state = _process_state(pid) if machine else None
    started = 0 if state is None else state.started
    return Owner(uuid.uuid4().hex, socket.gethostname(), machine, pid, started)


class _ProcessState(NamedTuple):
    """What `/proc/PID/stat` says: its state (Z and X are dead) and when it was started."""

    state: str
    started: int


def _process_state(pid: int) -> _ProcessState | None:
    """Return the state of a process of this machine; None if there is none of that number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            pass
        return _ProcessState("?", -1)  # it is there, and hidden from us
    after_name = text.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return _ProcessState(after_name[0], int(after_name[19]))


class Claimed(NamedTuple):
    """An epoch as its files describe it.

    - `epoch`: its number.
    - `owner`: who claimed it.
    - `lease_s`: how long a renewal holds; 0: it is not renewed at all.
    - `beat`: how often it was renewed.
    - `released`: whether its driver has let go.
    - `owes_seal`: whether it took over from a driver that may wake up, and has not sealed the next
      record: whoever comes after it must.
    - `renewed_at`: when its newest file was written, in s by the clock of the file system; None
      where there is no such clock.
    """

    epoch: int
    owner: Owner
    lease_s: float
    beat: int
    released: bool
    owes_seal: bool
    renewed_at: float | None


@dataclass
class Claim:
    """An epoch that this process has claimed. Made by `Epochs.claim`.

    Args:
        epochs: Where it was claimed.
        epoch: Its number; 1 for the first driver of an output.
        owner: This process.
        lease_s: How long a renewal holds, in s.
        owes_seal: Whether a driver before may wake up, so that the next record must be sealed
            before this one writes; see `sealed`.
    """

    epochs: Epochs
    epoch: int
    owner: Owner
    lease_s: float
    owes_seal: bool
    beat: int = 0
    ended: str = ""
    """Why this claim is over, the end of a sentence; empty while it holds."""
    active: Callable[[], bool] = field(default=lambda: False)
    """Whether its run goes on."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while a record is created, so that nobody in this process is promised the contrary."""

    def check(self) -> None:
        """Raise StateError if this claim is over, as far as is known here or on disk.

        A query that is being stopped counts as ended while its last micro-batch is still at work.
        If nobody has taken the output meanwhile, the claim holds again until that batch is done.
        """
        if self.ended in ("", _RELEASED):
            newest = self.epochs.newest()
            if newest is not None and newest.epoch > self.epoch:
                who = f"process {newest.owner.pid} on {newest.owner.host}"
                self.ended = f"was taken over by epoch {newest.epoch} ({who})"
            elif self.ended:
                with self.lock:
                    self.ended = ""
                    self._write(released=False)
                self.keep(self.active)
        if self.ended:
            raise StateError(
                f"{self.epochs.shown}: epoch {self.epoch} of this run {self.ended}; it stops here, "
                "and nothing of the other run was touched"
            )

    def sealed(self) -> None:
        """Write down that the next record is sealed: drivers before this one are fenced off."""
        self.owes_seal = False
        self._write(released=False)

    def renew(self) -> None:
        """Write the lease once more."""
        self.beat += 1
        self._write(released=False)

    def release(self) -> None:
        """Let go: this process will write no more under this epoch, and the next may start."""
        with self.lock:
            if self.ended:
                return
            self.ended = _RELEASED
        with contextlib.suppress(OSError):  # the lease expires all the same
            self._write(released=True)

    def keep(self, active: Callable[[], bool]) -> None:
        """Renew the lease in a thread while `active()`, then release it."""
        self.active = active
        threading.Thread(target=self._renew_while_active, daemon=True).start()

    def _renew_while_active(self) -> None:
        """Renew every third of the lease; a disk that refuses is tried again."""
        renewed = time.monotonic()
        while self.goes_on() and not self.ended:
            if time.monotonic() - renewed >= self.lease_s / 3:
                renewed = time.monotonic()
                try:
                    self.renew()
                except OSError as error:
                    log.warning("the lease on %s was not renewed: %s", self.epochs.shown, error)
            time.sleep(min(TICK_S, self.lease_s / 3))
        self.release()

    def goes_on(self) -> bool:
        """Whether the run goes on; one that cannot be asked any more (its session is gone) does
        not."""
        try:
            return self.active()
        except Exception:
            return False

    def _write(self, *, released: bool) -> None:
        """Write the lease file of this epoch, which has no other writer."""
        said = {"beat": self.beat, "released": released, "owes_seal": self.owes_seal}
        write_whole(
            self.epochs.fs, self.epochs.file(self.epoch, "lease"), json.dumps(said).encode()
        )


_CLAIMS: dict[tuple[str, str], Claim] = {}
"""The newest claim of each process on each output, by (process, root). Simulated drivers are
processes of their own here."""


@atexit.register
def _release_all() -> None:
    """Let go of what a process that ends in good order still holds."""
    for claim in list(_CLAIMS.values()):
        if claim.beat:
            claim.release()


@dataclass(frozen=True)
class Epochs:
    """The epochs of one output.

    Args:
        shown: The output as the user wrote it, for errors.
        fs: Its file system.
        root: Its path inside `fs`.
        clock: What measures leases.
        owner: The process that claims; None: this one.

    Example:
        >>> import tempfile
        >>> epochs = Epochs.at(tempfile.mkdtemp())
        >>> first = epochs.claim()
        >>> first.keep(lambda: not first.ended)
        >>> epochs.claim().epoch
        Traceback (most recent call last):
            ...
        tidegate.errors.ConfigError: ... is written to by this process (epoch 1): stop that run \
first
        >>> first.release()
        >>> epochs.claim().epoch
        2
    """

    shown: str
    fs: pafs.FileSystem
    root: str
    clock: LeaseClock = time
    owner: Owner | None = None

    @classmethod
    def at(cls, path: str, field: str = "path", clock: LeaseClock = time) -> Epochs:
        """Open the epochs of an output; there need not be any yet."""
        fs, root = filesystem(path, field)
        return cls(path, fs, root, clock)

    def file(self, epoch: int, suffix: str) -> str:
        """Return the path of the claim (`json`) or the lease (`lease`) of an epoch."""
        return f"{self.root}/{EPOCHS}/{epoch:08d}.{suffix}"

    def newest(self) -> Claimed | None:
        """Return the newest epoch; None before the first. Raises StateError if it is damaged."""
        folder = pafs.FileSelector(f"{self.root}/{EPOCHS}", allow_not_found=True)
        found = [re.fullmatch(r"(\d+)\.json", info.base_name)
                 for info in self.fs.get_file_info(folder)]  # fmt: skip
        numbers = [int(match[1]) for match in found if match is not None]
        return self._read(max(numbers)) if numbers else None

    def _read(self, epoch: int) -> Claimed:
        """Read the files of an epoch."""
        claim = read_bytes(self.fs, self.file(epoch, "json"))
        lease = read_bytes(self.fs, self.file(epoch, "lease"))
        try:
            said = json.loads(claim or b"null")
            owner = Owner(**said["owner"])
            renewed: dict[str, Any] = json.loads(lease) if lease else {}
            times = [self.fs.get_file_info(self.file(epoch, suffix)).mtime_ns
                     for suffix in ("json", "lease")]  # fmt: skip
            known = [ns / 1e9 for ns in times if ns is not None]
            return Claimed(
                epoch, owner, float(said["lease_s"]), int(renewed.get("beat", 0)),
                bool(renewed.get("released", False)),
                bool(renewed.get("owes_seal", said["owes_seal"])), max(known, default=None),
            )  # fmt: skip
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise StateError(
                f"{self.shown}/{EPOCHS}/{epoch:08d}.json or .lease is corrupt: {error}; remove "
                "both if no run is writing to this output"
            ) from error

    def claim(self, *, lease_s: float = LEASE_S, take_over: bool = False) -> Claim:
        """Claim the next epoch.

        Args:
            lease_s: How long a renewal will hold, in s. 0 for a writer that nobody renews: the
                next one need not wait for it, and is fenced off from it all the same.
            take_over: Claim it even from a driver that renews its lease.

        Returns:
            The claim. If it `owes_seal`, seal the next record before you write anything.

        Raises:
            ConfigError: If another driver holds the lease and `take_over` is not given.
            StateError: If the files of the newest epoch are damaged.
        """
        owner = self.owner or Owner.here()
        while True:
            newest = self.newest()
            owes_seal = False
            if newest is not None:
                standing = self.standing(newest, owner)
                if standing is Standing.HELD and not take_over:
                    raise self._held(newest, owner)
                owes_seal = standing.may_wake or newest.owes_seal
                self._end_ours(newest, owner)
            epoch = 1 if newest is None else newest.epoch + 1
            claim = Claim(self, epoch, owner, lease_s, owes_seal)
            said = {"epoch": epoch, "owner": asdict(owner), "lease_s": lease_s,
                    "owes_seal": owes_seal, "claim": uuid.uuid4().hex}  # fmt: skip
            if create_whole(self.fs, self.file(epoch, "json"), json.dumps(said).encode()):
                if lease_s:
                    claim.renew()
                _CLAIMS[owner.process, self.root] = claim
                return claim
            # another driver came first: now it is the newest, and it holds its lease

    def joined(self, epoch: int) -> Claim:
        """Return the claim of an epoch that another process of the same run holds and renews: of
        the client, on the server of Spark Connect.

        Args:
            epoch: Its number.

        Raises:
            StateError: If there is no such claim. The client wrote it where it thinks the output
                is; here that path is another place.

        Example:
            >>> import tempfile
            >>> epochs = Epochs.at(tempfile.mkdtemp())
            >>> epochs.joined(epochs.claim().epoch).epoch
            1
        """
        if read_bytes(self.fs, self.file(epoch, "json")) is None:
            raise StateError(
                f"{self.shown} is not the folder that this run has claimed: the path must mean the "
                "same place for the client, the server and its workers (a mounted folder, or an "
                "address such as s3://)"
            )
        claimed = self._read(epoch)
        return Claim(self, epoch, claimed.owner, claimed.lease_s, owes_seal=False)

    def _end_ours(self, newest: Claimed, owner: Owner) -> None:
        """A claim of this process that is superseded learns it at once, without a look at disks."""
        ours = _CLAIMS.get((owner.process, self.root))
        if ours is not None and ours.epoch == newest.epoch:
            with ours.lock:
                ours.ended = ours.ended or f"was taken over by epoch {newest.epoch + 1}"

    def check_free(self, *, take_over: bool = False) -> None:
        """Raise ConfigError if `claim` would; claims nothing."""
        owner = self.owner or Owner.here()
        newest = self.newest()
        if newest is not None and not take_over and self.standing(newest, owner) is Standing.HELD:
            raise self._held(newest, owner)

    def standing(self, newest: Claimed, owner: Owner) -> Standing:
        """Return how the driver of an epoch stands; waits for a third of its lease if it seems to
        have expired (see the clock policy above).
        """
        if newest.released:
            return Standing.RELEASED
        if newest.owner.process == owner.process:
            ours = _CLAIMS.get((owner.process, self.root))
            held = ours is not None and ours.epoch == newest.epoch and ours.goes_on()
            return Standing.HELD if held and ours and not ours.ended else Standing.OURS
        if newest.owner.is_gone(owner):
            return Standing.DEAD
        if not newest.lease_s:
            return Standing.EXPIRED
        age_s = self._age_s(newest)
        if age_s is not None and age_s < newest.lease_s:
            return Standing.HELD
        wait_s = newest.lease_s if age_s is None else newest.lease_s / 3
        until = self.clock.monotonic() + wait_s
        while self.clock.monotonic() < until:
            self.clock.sleep(wait_s / 10)
            now = self._read(newest.epoch)
            if now.released:
                return Standing.RELEASED
            if now.beat != newest.beat:
                return Standing.HELD
        return Standing.EXPIRED

    def _age_s(self, newest: Claimed) -> float | None:
        """Return how long ago a lease was renewed, in s by the clock of the file system; None if
        that cannot be told: the clock was set back since then, or there is none."""
        now = now_s(self.fs, f"{self.root}/{EPOCHS}")
        if now is None or newest.renewed_at is None or now < newest.renewed_at:
            return None
        return now - newest.renewed_at

    def _held(self, newest: Claimed, owner: Owner) -> ConfigError:
        """The refusal, in a sentence."""
        if newest.owner.process == owner.process:
            who, fix = "this process", "stop that run first"
        else:
            who = f"process {newest.owner.pid} on {newest.owner.host}"
            fix = (
                f"stop that run first; if it is gone without a trace, wait {newest.lease_s:g} s "
                "for its lease to expire; `tidegate run --take-over` ends it, wherever it is"
            )
        return ConfigError(
            "sink.path", self.shown, "",
            message=f"{self.shown} is written to by {who} (epoch {newest.epoch}): {fix}",
        )  # fmt: skip
