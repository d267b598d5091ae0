"""Windows in process: the same stage with its state, deliveries, a memory budget and a log.

Clock policy: none is read. Wall time comes in as `wall_ns`; `AfterTime` and `Fixed` need it, so a
call without it is then a ConfigError.

A *delivery* is one table of emitted windows. It is delivered at least once: it stays until it is
accepted. With `emit` that is when the function returns; if it raises, the delivery is kept and
tried again by the next call. Without `emit` a call returns its deliveries, and they count as
accepted when the next call comes, or, with `manual=True`, when `acknowledge()` says so.

Memory. The stage itself admits every row against the budget of buffered rows, and flushes open
windows as early panes before it refuses one. What this class adds is what the stage cannot know:
deliveries that nobody has accepted yet, and the budgets of the other components. Where these leave
no room it offers pending deliveries again, then emits early panes, and then does what the policy
says: refuse, spill, or retry for at most `block_for`.

With a `log` every call is written down before it is carried out. After a crash the calls are
carried out again from the last checkpoint, and deliveries already accepted are left out: since the
same input always gives the same output, nothing is lost, and nothing accepted comes twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidegate.core.chain import Chain
from tidegate.core.checks import boolean, duration, int_in
from tidegate.core.ipc import read_collection, write_collection
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    End,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Watermark,
)
from tidegate.core.time import Duration
from tidegate.errors import ConfigError
from tidegate.windows.kernels.layout import FiringReason
from tidegate.windows.kinds import Adaptive, Fixed, WindowKind
from tidegate.windows.memory import Memory, MemoryPolicy, MemoryTracker
from tidegate.windows.rate import RateMonitor
from tidegate.windows.results import WindowOutput, outputs
from tidegate.windows.stage import Window

__all__ = ["Log", "Spill", "Windows"]


class Log(Protocol):
    """A write-ahead log: see `tidegate.windows.durable.WriteAheadLog`."""

    def append(self, kind: str, body: bytes) -> None:
        """Write a call down before it is carried out; on disk when this returns.

        Args:
            kind: which call: `rows`, `watermark`, `wake`, `fire` or `flush`.
            body: its arguments as bytes.
        """

    def acknowledge(self, deliveries: int) -> None:
        """Note that further deliveries of the logged calls were accepted.

        Args:
            deliveries: how many, in the order in which they were made.
        """

    def checkpoint(self, snapshot: bytes) -> None:
        """Forget all calls: the snapshot contains them, and all their deliveries were accepted.

        Args:
            snapshot: the state as bytes.
        """

    def load(self) -> tuple[bytes | None, list[tuple[str, bytes]], int]:
        """The last snapshot (None: there is none), the calls since then in order, and how many of
        their deliveries were accepted."""


class Spill(Protocol):
    """A queue of rows on disk: see `tidegate.windows.durable.SpillStore`."""

    def put(self, body: bytes) -> None:
        """Add a collection at the end.

        Args:
            body: the collection as bytes.
        """

    def first(self) -> bytes | None:
        """The oldest collection, which stays until `drop_first`; None: there is none."""

    def drop_first(self) -> None:
        """Remove the oldest collection, once its rows are in the windows."""

    def __len__(self) -> int:
        """How many collections wait."""


FIRST_PAUSE_S = 0.02
"""The first pause of policy `block`, in seconds; each next one is twice as long. Shorter would busy
a processor while a sink is down, longer would delay a sink that recovers at once."""

Returned = WindowOutput | Late | Dropped
"""What calls for single rows return: emitted windows, and the rows that no window took."""


class Windows:
    """Windows over rows that you hand in: `process` for many at once, `push` for one.

    Everything a call implies is returned by that call: windows that emit (unless `emit` takes
    them), and late, refused, too large and outside rows.

    Example:
        >>> from tidegate.windows import AfterCount, Everything
        >>> windows = Windows(Everything(), trigger=AfterCount(2))
        >>> [len(windows.push({"v": v}, time_ns=v)) for v in (1, 2, 3)]
        [0, 1, 0]
        >>> [(w.trigger, w.start_ns, w.rows.column("v").to_pylist()) for w in windows.flush()]
        [('shutdown', 3, [3])]
    """

    def __init__(
        self,
        window: WindowKind | None = None,
        *,
        memory: Memory | None = None,
        emit: Callable[[Collection], None] | None = None,
        manual: bool = False,
        log: Log | None = None,
        spill: Spill | None = None,
        checkpoint_every: int = 1000,
        block_for: Duration = "30 s",
        **settings: Any,
    ) -> None:
        """Open windows without rows, or as the log left them.

        Args:
            window: which window a row belongs to; adaptive by default.
            memory: budget and policy; 100 MB and flushing by default.
            emit: called with every delivery; a delivery it raises on is kept and tried again.
                Without it calls return their deliveries.
            manual: deliveries count as accepted only when `acknowledge()` says so. False by
                default: when the next call comes.
            log: a `WriteAheadLog`; what it holds is replayed first. None by default.
            spill: a `SpillStore`, for the memory policy `spill`.
            checkpoint_every: logged calls after which the log is cut to a snapshot, at least 1.
                More makes the log longer to replay, less writes snapshots more often.
            block_for: how long the memory policy `block` retries a failing `emit` (or waits for
                `acknowledge`) before rows are refused: ns, text or timedelta.
            settings: those of `Window`; `stats` is True unless there are `aggregates`.

        Raises:
            ConfigError: a setting is wrong.
            StateError: the log is of other settings.
        """
        self.memory = memory or Memory()
        if self.memory.policy is MemoryPolicy.SPILL and spill is None:
            raise ConfigError("spill", None, "must be a store for memory policy spill")
        int_in("checkpoint_every", checkpoint_every, 1)
        self.block_for_ns = duration("block_for", block_for)
        boolean("manual", manual)
        if not settings.get("aggregates"):
            settings.setdefault("stats", True)
        try:
            self.operator = Window(window or Adaptive(), memory=self.memory, **settings)
        except TypeError as error:
            raise ConfigError("settings", sorted(settings), str(error)) from error
        self.tracker = MemoryTracker(self.memory)
        self.rate = RateMonitor("10 s")
        self._chain = Chain((self.operator,))
        self._state = self.operator.open()
        self._emit, self._manual, self._spill = emit, manual, spill
        self._pending: deque[Collection] = deque()
        self._returned = 0
        self._handing_over = RLock()
        """Held while deliveries change hands: another thread may acknowledge them meanwhile."""
        self._schema: pa.Schema | None = None
        self._wall = 0
        self._every, self._logged = checkpoint_every, 0
        self._log: Log | None = None
        self.attempts = 0
        """Calls of `emit` so far, failed ones included."""
        if log is not None:
            self._replay(log)
            self._log = log

    # -- what users call --------------------------------------------------------------------------

    def process(
        self,
        rows: pa.RecordBatch,
        time_ns: Int64s,
        wall_ns: int | None = None,
        lane: Int32s | None = None,
    ) -> list[Outcome]:
        """Take in rows, in the order of arrival.

        Args:
            rows: a batch.
            time_ns: the event time of each row.
            wall_ns: the wall time; `AfterTime` and `Fixed` need it.
            lane: the number of each row's key, int32; None: all have key 0.

        Returns:
            What leaves: windows (unless `emit` takes them), late and dropped rows.

        Raises:
            ConfigError: there is no wall time, but a setting needs it.
        """
        wall = self._wall_time(wall_ns)
        lanes = np.zeros(rows.num_rows, np.int32) if lane is None else lane
        self.rate.record(wall, rows.num_rows)
        collection = Collection(rows, np.asarray(time_ns, np.int64), lanes, wall)
        self._accept_returned()
        out: list[Outcome] = []
        if self._spill is not None and self.memory.policy is MemoryPolicy.SPILL:
            out += self._unspill()
        for piece in self._pieces(collection):
            out += self._admit(piece)
        return out + self._deliver()

    def push(
        self, row: Mapping[str, Any], time_ns: int, wall_ns: int | None = None, lane: int = 0
    ) -> list[Returned]:
        """Take in one row.

        Args:
            row: its columns.
            time_ns: its event time.
            wall_ns: the wall time; `AfterTime` and `Fixed` need it.
            lane: the number of its key.

        Returns:
            The windows it made emit, and the row itself as late or dropped where none took it.
        """
        rows = pa.RecordBatch.from_pylist([dict(row)], schema=self._schema)
        self._schema = rows.schema
        lanes = np.full(1, lane, np.int32)
        return _returned(self.process(rows, np.array([time_ns], np.int64), wall_ns, lanes))

    def advance(self, time_ns: int, lane: int = 0) -> list[Returned]:
        """Move the watermark of a key: no row at or before this time will come any more.

        Args:
            time_ns: the watermark.
            lane: the number of the key.

        Returns:
            The windows that are complete.
        """
        self._accept_returned()
        made = self._carry_out("watermark", f"{time_ns} {lane}".encode())
        return _returned(made + self._deliver())

    def tick(self, wall_ns: int) -> list[Returned]:
        """Tell the wall time: deadlines fire, refused deliveries are tried again.

        Args:
            wall_ns: the wall time.

        Returns:
            The windows that were due.
        """
        self._accept_returned()
        self._wall = max(self._wall, wall_ns)
        due, made = self.operator.wake_at(self._state), []
        if due is not None and due <= wall_ns:
            made += self._carry_out("wake", str(wall_ns).encode())
        if self._spill is not None and len(self._spill):
            made += self._unspill()
        return _returned(made + self._deliver())

    def wake_at(self) -> int | None:
        """The wall time at which `tick` is next due."""
        return self.operator.wake_at(self._state)

    def flush(self) -> list[Returned]:
        """End: emit what is open, with the reason `shutdown`."""
        self._accept_returned()
        made: list[Outcome] = []
        while self._spill is not None and len(self._spill):
            before = len(self._spill)
            made += self._unspill()
            if len(self._spill) == before:
                made += self._carry_out("flush", b"")
                if not self._try_emit() and self._pending:
                    break
        made += self._carry_out("flush", b"")
        return _returned(made + self._deliver())

    def acknowledge(self, deliveries: int | None = None) -> None:
        """Accept the oldest deliveries: memory and log are released. Another thread may call this
        while a call waits for room (policy `block`).

        Args:
            deliveries: how many to accept, of those that calls have already returned; None: all of
                these.
        """
        with self._handing_over:
            known = self._returned if self._emit is None else len(self._pending)
            count = known if deliveries is None else min(deliveries, known)
            for _ in range(count):
                self._pending.popleft()
            self._returned = max(0, self._returned - count)
            self._accepted(count)

    def metrics(self) -> dict[str, int | float]:
        """Counters of the stage, and the memory in use by level and component."""
        self._measure()
        spilled = 0 if self._spill is None else len(self._spill)
        return {
            **self.operator.metrics(self._state),
            **self.tracker.metrics(),
            "rate_hz": self.rate.rate(self._wall),
            "pending_deliveries": len(self._pending),
            "spilled_collections": spilled,
        }

    def snapshot(self) -> bytes:
        """The state as bytes. Deliveries not yet accepted are not part of it."""
        return self.operator.snapshot(self._state)

    def restore(self, blob: bytes) -> None:
        """Go on from a snapshot of windows with the same settings.

        Args:
            blob: made by `snapshot`.

        Raises:
            StateError: it is damaged, or of other settings.
        """
        self._state = self.operator.restore(blob)

    def _wall_time(self, wall_ns: int | None) -> int:
        """The wall time of a call; without one, a ConfigError where a setting needs it."""
        needs = self.operator.program.intervals_ns or isinstance(self.operator.window, Fixed)
        if wall_ns is None and needs:
            raise ConfigError("wall_ns", None, "must be given: AfterTime and Fixed count wall time")
        self._wall = max(self._wall, wall_ns or 0)
        return wall_ns or 0

    # -- admission --------------------------------------------------------------------------------

    def _pieces(self, collection: Collection) -> list[Collection]:
        """Collections too large for the budget, in parts that are not."""
        size = max(1, collection.rows.nbytes)
        limit = max(1, self.memory.limit // 4)
        if size <= limit or len(collection) < 2:
            return [collection] if len(collection) else []
        step = max(1, len(collection) * limit // size)
        return [
            collection.take(np.arange(first, min(first + step, len(collection))))
            for first in range(0, len(collection), step)
        ]

    def _admit(self, piece: Collection) -> list[Outcome]:
        """Take a collection in, or spill or refuse it.

        First pending deliveries are offered again, then open windows are flushed (not with
        `reject`); what still does not fit is spilled, waits, or is returned as dropped, as the
        policy says.

        Args:
            piece: small against the budget, see `_pieces`.
        """
        size = int(piece.rows.nbytes)
        policy = self.memory.policy
        room = self._room(size)
        if not room:
            self._try_emit()
            room = self._room(size)
        if not room and policy is not MemoryPolicy.REJECT:
            self._carry_out("fire", b"")
            self._try_emit()
            room = self._room(size)
        if not room and size <= self.memory.limit:
            if policy is MemoryPolicy.SPILL and self._spill is not None:
                self._spill.put(write_collection(piece))
                return []
            waits = policy is MemoryPolicy.BLOCK and (self._manual or self._emit is not None)
            held_up = self._pending and (self._manual or self._emit is not None)
            if not (waits and self._wait_for_room(size)) and (waits or held_up):
                return [_refused(piece)]
        if self.tracker.over():  # and nothing that could be flushed for it
            return [_refused(piece)]
        return self._carry_out(
            "rows", write_collection(piece) if self._log is not None else b"", piece
        )

    def _wait_for_room(self, size: int) -> bool:
        """Policy `block`: offer pending deliveries again, with growing pauses, until there is room
        for `size` bytes; false when `block_for` is over."""
        waited, pause = 0.0, FIRST_PAUSE_S
        while not self._room(size):
            self._try_emit()
            if self._room(size):
                return True
            left = self.block_for_ns / 1e9 - waited
            if left <= 0:
                return False
            pause = min(pause, left)
            self.tracker.wait(size, timeout=pause)
            waited, pause = waited + pause, 2 * pause
        return True

    def _room(self, size: int) -> bool:
        """Whether `size` more bytes fit below the mark at which windows are flushed, and no
        component is over its own budget."""
        self._measure()
        return self.tracker.used + size <= self.memory.limit and not self.tracker.over()

    def _unspill(self) -> list[Outcome]:
        """Bring spilled rows back, oldest first, as long as there is room."""
        out: list[Outcome] = []
        assert self._spill is not None
        while (body := self._spill.first()) is not None:
            collection = read_collection(body)
            if not self._room(int(collection.rows.nbytes)):
                self._carry_out("fire", b"")
                if not self._try_emit() and not self._room(int(collection.rows.nbytes)):
                    break
            out += self._carry_out("rows", body, collection)
            self._spill.drop_first()
        return out

    def _measure(self) -> None:
        """Tell the tracker what is held now: rows and pending deliveries, open windows, rates."""
        # What a call returned is in the caller's hands, unless they acknowledge by hand.
        with self._handing_over:
            mine = 0 if self._manual or self._emit is not None else self._returned
            waiting = 0
            if len(self._pending) > mine:
                waiting = sum(int(pending.rows.nbytes) for pending in list(self._pending)[mine:])
        operator, state = self.operator, self._state
        self.tracker.hold_all(
            {
                "ingestion": operator.buffered_bytes(state) + waiting,
                "window_metadata": operator.metadata_bytes(state),
                "rate": operator.rate_bytes(state) + self.rate.nbytes,
            }
        )

    # -- carrying out, delivering, logging --------------------------------------------------------

    def _carry_out(self, kind: str, body: bytes, collection: Any = None) -> list[Outcome]:
        """Write the call down, then do it. Windows become deliveries; the rest is returned."""
        if self._log is not None:
            self._log.append(kind, body)
            self._logged += 1
        states = [self._state]
        if kind == "rows":
            made = self._chain.process(states, collection)
        elif kind == "watermark":
            time_ns, lane = body.decode().split()
            made = self._chain.advance(states, Watermark.at(int(time_ns), int(lane)))
        elif kind == "wake":
            made = self._chain.wake(states, int(body))
        elif kind == "fire":
            made = self.operator.fire_open_windows(self._state, None, FiringReason.MEMORY_PRESSURE)
        else:
            made = self._chain.flush(states)
        data = [item for item in made if isinstance(item, Collection)]
        with self._handing_over:
            self._pending.extend(data)
        return [item for item in made if not isinstance(item, (Collection, Watermark))]

    def _deliver(self) -> list[Outcome]:
        """Hand deliveries to `emit`, or return those not returned yet."""
        if self._emit is not None:
            self._try_emit()
            return []
        with self._handing_over:
            fresh = list(self._pending)[self._returned :]
            self._returned = len(self._pending)
        return list(fresh)

    def _try_emit(self) -> bool:
        """Offer pending deliveries in order; true when all were accepted."""
        if self._emit is None:
            return not self._pending
        while self._pending:
            self.attempts += 1
            try:
                self._emit(self._pending[0])
            except Exception:  # whatever the user's function raises: the window stays
                return False
            self._pending.popleft()
            self._accepted(1)
        return True

    def _accept_returned(self) -> None:
        """Without `emit` or `manual`: the next call accepts what the one before returned."""
        if not self._manual and self._emit is None and self._returned:
            count, self._returned = self._returned, 0
            for _ in range(count):
                self._pending.popleft()
            if self._log is not None:
                self._accepted(count)

    def _accepted(self, count: int) -> None:
        """Note accepted deliveries in the log; write a checkpoint where nothing is pending and no
        window is open, or enough calls were logged."""
        if count == 0:
            return
        self._measure()
        if self._log is None:
            return
        self._log.acknowledge(count)
        idle = self._state.tables["open"] is None
        if not self._pending and (idle or self._logged >= self._every):
            self._log.checkpoint(self.snapshot())
            self._logged = 0

    def _replay(self, log: Log) -> None:
        """Carry out the calls of the log again; what was accepted then is not delivered again."""
        snapshot, calls, accepted = log.load()
        if snapshot is not None:
            self.restore(snapshot)
        for kind, body in calls:
            self._carry_out(kind, body, read_collection(body) if kind == "rows" else None)
        for _ in range(min(accepted, len(self._pending))):
            self._pending.popleft()
        self._logged = len(calls)
        self._measure()

    def end(self, how: End = End.GRACEFUL) -> list[Returned]:
        """`flush`, or with a quick end forget what is open and count it.

        Args:
            how: graceful or quick.
        """
        if how is End.QUICK:
            self.operator.discard(self._state)
            return []
        return self.flush()


def _returned(outcomes: list[Outcome]) -> list[Returned]:
    """Windows one by one, and beside them the rows that no window took."""
    refused = [o for o in outcomes if isinstance(o, (Late, Dropped))]
    return [*outputs(outcomes), *refused]


def _refused(piece: Collection) -> Dropped:
    reason = pa.array(["memory_pressure"] * len(piece), pa.string())
    return Dropped(piece.rows, piece.time_ns, piece.lane, reason)
