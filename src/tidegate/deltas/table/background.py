"""Compaction beside the appends: one thread that looks after many chains.

An append never waits for a compaction: the compaction works on a snapshot and only its swap takes
the chain's lock. Except at the hard limit, where the append itself compacts first.

A chain is compacted when an append made it long enough, or when it has become old: every `interval`
the thread looks at the age of all chains it knows. It knows a chain from the first append, or from
`watch`, for as long as somebody else holds it.

With a memory tracker a compaction asks for the bytes of its chain from the budget of compaction
first. What does not fit now waits; what never can is left as it is, and counted.

Clock policy: the wall clock of this process (`time.time_ns`, or the one handed in) decides age. How
often the thread looks goes by the monotonic clock of the system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Condition, Thread
from types import TracebackType
from typing import Any, Protocol
from weakref import WeakSet

from tidegate.core.checks import duration
from tidegate.core.time import Duration
from tidegate.deltas.compactor import CompactionResult, Compactor, Urgency
from tidegate.deltas.delta_chain import DeltaChain, Refusal
from tidegate.deltas.operations import VectorDelta

__all__ = ["BackgroundCompactor"]

MEMORY_WAIT_S = 0.5
"""How long a compaction waits for memory, in seconds, before the next chain has its turn. Shorter,
and a busy budget is asked all the time; longer, and one large chain holds up the others."""

RESULTS_KEPT = 1000
"""How many results are kept: enough for a picture of what went on, bounded for a process that runs
for months."""


class MemoryBudget(Protocol):
    """What a compaction asks for memory: `tidegate.windows.MemoryTracker` is one."""

    def wait(self, size: int, component: str, timeout_s: float, /) -> Any:
        """Wait until `size` bytes fit, at most `timeout_s` seconds."""

    def allocate(self, size: int, component: str, /) -> tuple[Any, Any]:
        """A verdict, an enum with a member TOO_LARGE for what can never fit, and a context manager
        that gives the bytes back (None if they do not fit)."""


class BackgroundCompactor:
    """Appends to chains, and compacts them in a thread of its own when they are long or old.

    Args:
        compactor: when to compact, and how.
        interval: how often the thread looks at the age of the chains (wall time, at least 1 ms).
            A chain is compacted at most this much after `time_threshold`. Shorter looks cost a few
            microseconds per chain.
        memory: a budget to ask for the bytes of each chain (component `compaction`); None: none.
        clock: the wall clock in nanoseconds, by which age counts.

    Example:
        >>> from tidegate.deltas import FullMerge, Offset
        >>> chain = DeltaChain("v", dims=1)
        >>> with BackgroundCompactor(Compactor(FullMerge(), delta_threshold=5)) as background:
        ...     for n in range(20):
        ...         refused = background.push(chain, VectorDelta(f"d{n}", "v", Offset(1.0), n))
        >>> len(chain) < 5, chain.compose().tolist()
        (True, [20.0])
    """

    def __init__(
        self,
        compactor: Compactor,
        *,
        interval: Duration = "1 s",
        memory: MemoryBudget | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.compactor = compactor
        self.interval_s = duration("interval", interval, minimum=1_000_000) / 1e9
        self.memory = memory
        self.clock = clock
        self.refused = 0
        """Compactions for which the budget is too small, however long they wait."""
        self.results: list[CompactionResult] = []
        """What the last `RESULTS_KEPT` compactions brought, oldest first."""
        self.failure: BaseException | None = None
        """What ended the thread, if anything did; `close` raises it."""
        self._known: WeakSet[DeltaChain] = WeakSet()
        self._due: dict[int, DeltaChain] = {}
        self._woken = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, name="tidegate-compaction", daemon=True)
        self._thread.start()

    def push(self, chain: DeltaChain, delta: VectorDelta) -> list[Refusal]:
        """Append one delta; compacts first if the chain is at its hard limit.

        Args:
            chain: the chain to append to.
            delta: the delta.

        Returns:
            What was refused, each with its reason.
        """
        return self.process(chain, [delta])

    def process(self, chain: DeltaChain, deltas: Iterable[VectorDelta]) -> list[Refusal]:
        """Append deltas, never more at once than the hard limit leaves room for.

        Args:
            chain: the chain to append to.
            deltas: the deltas, in arrival order.

        Returns:
            What was refused, each with its reason.
        """
        refused: list[Refusal] = []
        left = list(deltas)
        while left:
            if len(chain) >= self.compactor.max_chain_length:
                self._compact_within_memory(chain)
            room = self.compactor.max_chain_length - len(chain)
            if room <= 0:
                text = "the chain is full and cannot be compacted"
                return refused + [Refusal(delta, text) for delta in left]
            refused += chain.process(left[:room], self.clock())
            left = left[room:]
        if len(chain) >= self.compactor.delta_threshold:
            self.submit(chain)
        else:
            self.watch(chain)
        return refused

    def watch(self, chain: DeltaChain) -> None:
        """Look at the age of this chain from now on. Not needed after a `push` of ours.

        Args:
            chain: a chain that somebody else appends to.
        """
        with self._woken:
            self._known.add(chain)

    def submit(self, chain: DeltaChain) -> None:
        """Have this chain looked at as soon as possible, and watched from now on.

        Args:
            chain: the chain.
        """
        with self._woken:
            self._known.add(chain)
            self._due[id(chain)] = chain
            self._woken.notify()

    def tick(self, wall_ns: int | None = None) -> None:
        """Submit all known chains that are due by length or by age. The thread does this itself
        every `interval`; a test with a clock of its own need not wait for it.

        Args:
            wall_ns: the time by the clock; None: that of `clock`.
        """
        now = self.clock() if wall_ns is None else wall_ns
        with self._woken:
            known = list(self._known)
        for chain in known:
            if self.compactor.urgency(chain, now) is not Urgency.NONE:
                self.submit(chain)

    def close(self) -> None:
        """Finish what is due, then stop. Raises what went wrong in the thread, if anything did."""
        with self._woken:
            self._closing = True
            self._woken.notify()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> BackgroundCompactor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        timeout = None if self.compactor.time_threshold_ns is None else self.interval_s
        looked = time.monotonic()
        try:
            while True:
                with self._woken:
                    if not self._due and not self._closing:
                        self._woken.wait(timeout)
                    if self._closing and not self._due:
                        return
                    chain = self._due.pop(next(iter(self._due))) if self._due else None
                if timeout is not None and time.monotonic() - looked >= timeout:
                    self.tick()
                    looked = time.monotonic()
                if (
                    chain is not None
                    and self.compactor.urgency(chain, self.clock()) is not Urgency.NONE
                ):
                    result = self._compact_within_memory(chain)
                    if result is not None and result.conflict:
                        self.submit(chain)  # deltas came in before the folded place: once more
                chain = None  # do not keep a chain alive that nobody else holds
        except BaseException as error:
            self.failure = error

    def _compact_within_memory(self, chain: DeltaChain) -> CompactionResult | None:
        """Compact within the budget of memory, for which it waits a moment; else the chain stays
        as it is, and is looked at again if the budget could ever do."""
        with ExitStack() as stack:
            if self.memory is not None:
                self.memory.wait(chain.nbytes, "compaction", MEMORY_WAIT_S)
                verdict, guard = self.memory.allocate(chain.nbytes, "compaction")
                if guard is None:
                    if verdict.name == "TOO_LARGE":
                        self.refused += 1
                        with self._woken:  # until it is appended to, looking again is no use
                            self._known.discard(chain)
                    elif not self._closing:
                        self.submit(chain)
                    return None
                stack.enter_context(guard)
            result = self.compactor.compact(chain, wall_ns=self.clock())
        self.results = [*self.results[1 - RESULTS_KEPT :], result]
        return result
