"""Histories of drivers on a disk that fails: the real step, sink and records, without Spark.

    python -m faults.simulation --histories 20000 --seed 3

What is real: `RunningStep` (its pages in a simulated state store), `ParquetSink`, `BlobWriter`,
`CommitLog`, `Epochs`, `open_run`. What is simulated: the disk (`simulated_disk`), the clock, the
scheduler that decides which of two drivers goes on, and the little of Spark that is left: a
checkpoint that says which batches are done, and a state per batch.

A history is a list of *faults*: at its n-th operation on the disk, a driver suffers one. What
happens then is decided by the history alone, so each can be run again from its text. Afterwards
the disk is well again, new drivers run until all input is done, and the *checker* compares: the
same rows as undisturbed, each once, in order within its key; no record that a reader saw has
changed; no file that plain readers of a folder would count twice.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from faults.outcomes import Outcomes
from faults.simulated_disk import CrashError, Disk, View
from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.errors import TidegateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output import epochs
from tidegate.output.audit import audit_run
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.epochs import Owner
from tidegate.output.filesystem import mount
from tidegate.output.reader import open_run
from tidegate.output.tally import audited_columns
from tidegate.spark.arrival import Packed
from tidegate.spark.pack import to_blob
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest
from tidegate.spark.stateful_step import FlowRecipe, RunningStep, StepSettings

BATCHES = 4
"""Micro-batches of a history: with two records to a fold, the first two are folded and merged in
the end."""

ROWS = 6
"""Rows of a micro-batch and shard."""

SHARDS = (0, 1)


# -- the pipeline that runs ---------------------------------------------------------------------


def make_flow() -> Flow:
    return Flow((EventtimeWatermark("2 s", watermark_per="tuple"),), key="car", timed=True)


def input_rows(batch: int, shard: int) -> pa.RecordBatch:
    """Two cars, a second per row, now and then five seconds late."""
    numbers = [ROWS * batch + row for row in range(ROWS)]
    times = [(n - 5 * (n % 4 == 3)) * 10**9 for n in numbers]
    cars = [f"car-{shard}-{n % 2}" for n in numbers]
    return pa.record_batch({"car": cars, "n": numbers, TIME: pa.array(times, pa.int64())})


SCHEMAS = {kind: pa.schema([("car", pa.string()), ("n", pa.int64())]) for kind in ("data", "late")}


AUDITED = audited_columns(SCHEMAS["data"], SCHEMAS)


class Store:
    """The map state of one shard, as far as a step uses it."""

    def __init__(self, pages: dict[int, bytes]) -> None:
        self.pages = pages

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:  # noqa: N802  (Spark's name)
        return (self.pages[key[0]],) if key[0] in self.pages else None

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        self.pages[key[0]] = value[0]

    def iterator(self) -> Iterator[tuple[tuple[int], tuple[bytes]]]:
        return (((page,), (blob,)) for page, blob in self.pages.items())


class Made(NamedTuple):
    """What a step returned, and the pages it left."""

    rows: list[dict[str, Any]]
    pages: dict[int, bytes]


_MADE: dict[tuple[int, int, tuple[tuple[int, bytes], ...]], Made] = {}
"""Steps by shard, batch and state before (without its random token): the same input gives the same
result (the restart law, tested elsewhere), so each is run once."""


def run_step(shard: int, batch: int, pages: dict[int, bytes]) -> Made:
    """Run the real step of a shard for a batch, from these pages."""
    known = tuple(sorted((page, blob) for page, blob in pages.items() if page >= 0))
    if (shard, batch, known) not in _MADE:
        recipe = FlowRecipe(make_flow, audited=AUDITED)
        settings = StepSettings(recipe, "q", timers=False, shards=len(SHARDS))
        after = dict(pages)
        step = RunningStep(settings, cast(Any, None), cast(Any, Store(after)))
        packed = Packed(
            "data", 0, 0, batch, f"{batch}", 0, to_blob(input_rows(batch, shard)).as_py()
        )
        _MADE[shard, batch, known] = Made(list(step.rows(shard, iter([packed]), batch)), after)
    return _MADE[shard, batch, known]


@dataclass
class Checkpoint:
    """What Spark keeps: which batches are done, and the state after each of them."""

    done: int = -1
    states: dict[int, dict[int, dict[int, bytes]]] = field(default_factory=lambda: {-1: {}})

    def outcomes(self, batch: int) -> Any:
        """The DataFrame of a batch: every action on it runs the step and stores its state."""

        def rows() -> Iterable[dict[str, Any]]:
            before = self.states[batch - 1]
            made = {shard: run_step(shard, batch, before.get(shard, {})) for shard in SHARDS}
            self.states[batch] = {shard: one.pages for shard, one in made.items()}
            return [row for one in made.values() for row in one.rows]

        return Outcomes(rows)


# -- one driver ---------------------------------------------------------------------------------


@dataclass
class World:
    """All that outlives a driver."""

    disk: Disk
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    seen: dict[int, Commit] = field(default_factory=dict)
    """Records as readers saw them at some moment; they may never change."""
    fences: list[tuple[int, set[int]]] = field(default_factory=list)
    """The epoch of every claim, and the batches that had a record when it was made."""
    drivers: list[Driver] = field(default_factory=list)

    def look(self) -> None:
        """Read the records as a reader would now, and remember them."""
        log = self.log()
        for commit in log:
            commit = replace(commit, files=[])  # merging puts others in their place
            before = self.seen.setdefault(commit.batch, commit)
            assert before == commit, f"the record of batch {commit.batch} has changed"
        assert set(self.seen) == set(log.numbers()), "a record is gone"

    def log(self) -> CommitLog:
        return CommitLog("sim://out", pafs.PyFileSystem(View(self.disk)), "/out")

    def cut_power(self, dice: random.Random) -> None:
        """Lose what was not synced, and every driver with it: one that slept does not wake up. A
        record that was visible for a moment may be gone too."""
        for driver in self.drivers:
            driver.view.kill()
        self.disk.power_cut(dice)
        there = self.log().numbers()
        self.seen = {batch: commit for batch, commit in self.seen.items() if batch in there}


class Driver:
    """A process that runs the stream to its end, on its own view of the disk."""

    def __init__(self, world: World, *, take_over: bool = False) -> None:
        world.drivers.append(self)
        self.world = world
        self.name = f"sim{len(world.drivers)}"
        self.take_over = take_over
        self.view = View(world.disk)
        self.idle = False
        self.said: BaseException | None = None

    def run(self) -> None:
        """Until all batches are done; what stops it is kept in `said`."""
        mount(self.name, pafs.PyFileSystem(self.view))
        try:
            self._run()
        except (Exception, CrashError) as error:
            self.said = error
        finally:
            self.view.over = True
            mount(self.name, None)
            epochs._CLAIMS.pop((self.name, "/out"), None)

    def _run(self) -> None:
        clock = self.world.disk.clock
        sink = ParquetSink(SinkRequest(f"{self.name}://out", SCHEMAS, take_over=self.take_over))
        sink.epochs = replace(sink.epochs, clock=clock, owner=Owner(self.name, "sim", "", 1))
        sink.fold = 2
        claim = sink.claim()
        self.world.fences.append((claim.epoch, set(self.world.log().numbers())))
        checkpoint = self.world.checkpoint
        while checkpoint.done < BATCHES - 1 and not self.idle:
            batch = checkpoint.done + 1
            sink.write(checkpoint.outcomes(batch), batch, "q")
            clock.sleep(0.1)
            claim.renew()
            checkpoint.done = max(checkpoint.done, batch)
        claim.release()


# -- faults -------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """What happens to a driver at its n-th operation."""

    at: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind.replace(' ', '_')}@{self.at}"


def _fail(number: int) -> Callable[[Driver], None]:
    def fail(driver: Driver) -> None:
        raise OSError(number, errno.errorcode[number])

    return fail


def _kill(driver: Driver) -> None:
    driver.view.kill()


def _cut(driver: Driver) -> None:
    driver.world.cut_power(random.Random(driver.view.calls))


CHANGES = {
    "create_dir", "move", "link_new", "delete_file", "delete_dir", "remove_empty_folder",
    "open_output_stream", "write",
}  # fmt: skip
"""Operations that need space, or a disk that can be written."""

ONCE: dict[str, tuple[str, Callable[[Driver], None]]] = {
    "lost": ("before", _fail(errno.EIO)),
    "unanswered": ("after", _fail(errno.EIO)),
    "killed before": ("before", _kill),
    "killed after": ("after", _kill),
    "power cut before": ("before", _cut),
    "power cut after": ("after", _cut),
}
"""Faults of one operation: when, and what. `lost` never happened; `unanswered` happened and was
reported as failed. A power cut loses, tears and reorders what was not synced."""

LASTING = {"full": errno.ENOSPC, "read-only": errno.EROFS}
"""Faults of all changes from an operation on, until the driver is started again."""

PAUSES = ("paused", "delayed", "overtaken")
"""The driver sleeps while another one runs: started by `--take-over` at once, or when the lease has
expired, or one that claims the output and writes nothing."""

KINDS = (*ONCE, *LASTING, "doubled", *PAUSES)


def strike(driver: Driver, fault: Fault) -> None:
    """Let a driver suffer a fault. Pauses are up to `History`."""
    view = driver.view
    if fault.kind in ONCE:
        when, what = ONCE[fault.kind]

        def once(number: int, name: str, path: str) -> None:
            if number == fault.at:
                what(driver)

        setattr(view, when, once)
    elif fault.kind in LASTING:

        def lasting(number: int, name: str, path: str) -> None:
            if number >= fault.at and name in CHANGES:
                _fail(LASTING[fault.kind])(driver)

        view.before = lasting
    elif fault.kind == "doubled":
        view.doubled = fault.at


# -- histories ----------------------------------------------------------------------------------


class Baton:
    """Lets a driver run in a thread up to an operation, wait there, and go on when told."""

    def __init__(self, driver: Driver, at: int) -> None:
        self.driver, self.at = driver, at
        self.paused, self.go_on = threading.Event(), threading.Event()
        driver.view.before = self._before
        self.thread = threading.Thread(target=self._run)

    def _before(self, number: int, name: str, path: str) -> None:
        if number == self.at:
            self.paused.set()
            self.go_on.wait()

    def _run(self) -> None:
        self.driver.run()
        self.paused.set()

    def start(self) -> None:
        """Return when it waits, or has ended."""
        self.thread.start()
        self.paused.wait()

    def finish(self) -> None:
        self.go_on.set()
        self.thread.join()


class WrongError(AssertionError):
    """A history that gave another result, with its text."""


def run_history(faults: Iterable[Fault], undisturbed: dict[str, list[int]] | None) -> World:
    """Run drivers through these faults, one fault per driver, then to the end; check the result.

    A driver with a pause sleeps while all drivers after it run; then it wakes up.
    """
    faults = list(faults)
    world = World(Disk())
    try:
        _run_drivers(world, faults)
        _to_the_end(world)
        _check(world, undisturbed, paused=any(fault.kind in PAUSES for fault in faults))
    except Exception as error:
        said = " ".join(map(str, faults))
        raise WrongError(f"history [{said}]: {type(error).__name__} {error}") from error
    finally:
        for driver in world.drivers:  # errors hold file systems, which hold the world, in C++
            driver.said = None
    return world


def _run_drivers(world: World, faults: list[Fault], *, take_over: bool = False) -> None:
    """Start a driver for the first fault; what comes after it, in its pause or after its end."""
    if not faults:
        return
    fault, *rest = faults
    driver = Driver(world, take_over=take_over)
    if fault.kind in PAUSES:
        baton = Baton(driver, fault.at)
        baton.start()
        world.look()
        if fault.kind == "delayed":
            world.disk.clock.sleep(60)
        try:
            _run_drivers(world, rest, take_over=True)
            if not rest:
                other = Driver(world, take_over=fault.kind != "delayed")
                other.idle = fault.kind == "overtaken"
                other.run()
            world.look()
        finally:
            baton.finish()
    else:
        strike(driver, fault)
        driver.run()
        world.look()
        _run_drivers(world, rest, take_over=True)
    _is_understood(driver)
    world.look()


def _is_understood(driver: Driver) -> None:
    """A driver ends well, dies, or stops with a sentence: of ours, or of the system's."""
    said = driver.said
    assert said is None or isinstance(said, CrashError | TidegateError | OSError), repr(said)


def _to_the_end(world: World) -> None:
    """Start drivers on a disk that is well again; the first one must get to the end."""
    driver = Driver(world, take_over=True)
    driver.run()
    if driver.said is not None:
        raise AssertionError(f"a driver on a disk that is well stops: {driver.said!r}")


def result_of(world: World) -> dict[str, list[int]]:
    """The rows of every kind and car in order, as a reader finds them."""
    mount("sim", pafs.PyFileSystem(View(world.disk)))
    run = open_run("sim://out")
    out: dict[str, list[int]] = {}
    for kind in run.kinds:
        for commit in run.commits:
            for file in commit.files_of(kind):
                content = run.text(file)
                assert content is not None, f"{file} is not there"
                for car, n in _rows_of(content):
                    out.setdefault(f"{kind} {car}", []).append(n)
    return out


@cache
def _rows_of(content: bytes) -> list[tuple[str, int]]:
    """The rows of a Parquet file; the same bytes are read once."""
    rows = pq.read_table(pa.BufferReader(content), use_threads=False).to_pylist()
    return [(row["car"], row["n"]) for row in rows]


def _check(world: World, undisturbed: dict[str, list[int]] | None, *, paused: bool) -> None:
    records = list(world.log())
    numbers = [commit.batch for commit in records]
    assert numbers == list(range(BATCHES)), f"batches {numbers}"
    found = result_of(world)
    if undisturbed is not None:
        for name in sorted({*undisturbed, *found}):
            one, two = found.get(name, []), undisturbed.get(name, [])
            assert one == two, f"{name}: {one} instead of {two}"
    audit = audit_run("sim://out", files=False)
    assert audit.passed, audit.lines()
    for epoch, known in world.fences:
        late = [c for c in records if c.epoch < epoch and c.batch not in known]
        assert not late, f"epoch {late[0].epoch} wrote batch {late[0].batch} after {epoch} claimed"
    listed = [file for commit in records for file in commit.files]
    there = [n.removeprefix("/out/") for n in world.disk.names
             if n.endswith(".parquet") and "/_retired/" not in n]  # fmt: skip
    assert len(listed) == len(set(listed)), "a file is in two records"
    extra = set(there) - set(listed)
    if not paused:
        assert not extra, f"files in no record: {sorted(extra)}"
        left = [n for n in world.disk.names if "/_staging/" in n]
        assert not left, f"staged files are left: {left}"


def undisturbed_run() -> tuple[dict[str, list[int]], int]:
    """The result without faults, and the number of operations of the driver."""
    world = World(Disk())
    driver = Driver(world)
    driver.run()
    if driver.said is not None:
        raise driver.said
    _check(world, None, paused=False)
    return result_of(world), driver.view.calls


def every_single(calls: int) -> Iterator[list[Fault]]:
    """A fault of every kind at every operation."""
    for at, kind in itertools.product(range(1, calls + 1), KINDS):
        yield [Fault(at, kind)]


def random_histories(calls: int, seed: int) -> Iterator[list[Fault]]:
    """Two or three faults, of drivers one after the other or inside each other's pauses."""
    dice = random.Random(seed)
    while True:
        yield [
            Fault(dice.randrange(1, calls + 1), dice.choice(KINDS))
            for _ in range(dice.choice((2, 2, 3)))
        ]


class Report(NamedTuple):
    """What a campaign did. `seconds` are those of the CPU, `elapsed` those of the clock."""

    histories: int
    kinds: Counter[str]
    seconds: float
    wrong: list[str]
    elapsed: float

    def rates(self) -> str:
        """How fast it was, in words."""
        wall, cpu = (60 * self.histories / (s or 1) for s in (self.elapsed, self.seconds))
        return f"{wall:,.0f} per minute, {cpu:,.0f} per minute of CPU"


def campaign(histories: Iterable[list[Fault]], undisturbed: dict[str, list[int]]) -> Report:
    """Run histories; those that go wrong are named in the report."""
    began, since = time.process_time(), time.monotonic()
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    count = 0
    for faults in histories:
        count += 1
        kinds.update(fault.kind for fault in faults)
        try:
            run_history(faults, undisturbed)
        except WrongError as error:
            wrong.append(str(error))
    return Report(count, kinds, time.process_time() - began, wrong, time.monotonic() - since)


def campaign_by(
    jobs: int, histories: Iterable[list[Fault]], undisturbed: dict[str, list[int]]
) -> Report:
    """Run histories in this many processes; each is independent of all others."""
    listed = list(histories)
    parts = [(listed[start::jobs], undisturbed) for start in range(jobs)]
    since = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        done = pool.starmap(campaign, parts)
    return Report(
        sum(one.histories for one in done), sum((one.kinds for one in done), Counter()),
        sum(one.seconds for one in done), [line for one in done for line in one.wrong],
        time.monotonic() - since,
    )  # fmt: skip


def parse(text: str) -> list[Fault]:
    """A history from its text.

    >>> parse("paused@7 killed_after@9")
    [Fault(at=7, kind='paused'), Fault(at=9, kind='killed after')]
    """
    parts = [one.split("@") for one in text.split()]
    return [Fault(int(at), kind.replace("_", " ")) for kind, at in parts]


logging.getLogger("tidegate.spark.sinks.parquet").setLevel(logging.ERROR)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.simulation")
    parser.add_argument(
        "--histories", type=int, default=20_000, help="random ones, after all single"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--every", type=int, default=1, help="only every n-th of the single ones")
    parser.add_argument("--history", help="one history, as a failure names it")
    given = parser.parse_args()
    undisturbed, calls = undisturbed_run()
    if given.history:
        run_history(parse(given.history), undisturbed)
        return 0
    single = campaign_by(
        given.jobs, itertools.islice(every_single(calls), 0, None, given.every), undisturbed
    )
    several = itertools.islice(random_histories(calls, given.seed), given.histories)
    more = campaign_by(given.jobs, several, undisturbed)
    for name, report in (("one fault", single), ("two or three", more)):
        print(f"{name}: {report.histories} histories, {report.rates()}, "
              f"{len(report.wrong)} wrong", dict(report.kinds))  # fmt: skip
        for line in report.wrong[:20]:
            print(" ", line)
    return int(bool(single.wrong or more.wrong))


if __name__ == "__main__":
    sys.exit(main())
