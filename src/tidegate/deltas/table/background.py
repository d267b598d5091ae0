"""Compaction beside the appends: one thread that looks after many chains.

An append never waits for a compaction: the compaction works on a snapshot and only its swap takes
the chain's lock. Except at the hard limit, where the append itself compacts first.

With a memory tracker a compaction asks for the bytes of its chain from the budget of compaction
first. What does not fit now waits; what never can is left as it is, and counted.

Clock policy: the wall clock of this process (`time.time_ns`, or the one handed in) decides age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Condition, Thread
from types import TracebackType

from tidegate.deltas import (
    CompactionResult,
    Compactor,
    DeltaChain,
    Level,
    Refusal,
    VectorDelta,
)
from tidegate.windows.memory import Admission, MemoryTracker

__all__ = ["BackgroundCompactor"]

PATIENCE_S = 0.5
"""How long a compaction waits for memory before the next chain has its turn."""


class BackgroundCompactor:
    """Appends to chains, and compacts them in a thread of its own when they have become long.

    >>> from tidegate.deltas import FullMerge, Offset
    >>> chain = DeltaChain("v", dims=1)
    >>> with BackgroundCompactor(Compactor(FullMerge(), delta_threshold=5)) as background:
    ...     for n in range(20):
    ...         refused = background.append(chain, VectorDelta(f"d{n}", "v", Offset(1.0), n))
    >>> len(chain) < 5, chain.compose().tolist()
    (True, [20.0])
    """

    def __init__(
        self,
        compactor: Compactor,
        *,
        memory: MemoryTracker | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.compactor = compactor
        self.memory = memory
        self.clock = clock
        self.refused = 0
        """Compactions for which the budget is too small, however long they wait."""
        self.results: list[CompactionResult] = []
        """What the last thousand compactions brought, oldest first."""
        self.failure: BaseException | None = None
        self._due: dict[int, DeltaChain] = {}
        self._woken = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, name="tidegate-compaction", daemon=True)
        self._thread.start()

    def append(self, chain: DeltaChain, delta: VectorDelta) -> list[Refusal]:
        """Append one delta; compacts first if the chain is at its hard limit."""
        return self.extend(chain, [delta])

    def extend(self, chain: DeltaChain, deltas: Iterable[VectorDelta]) -> list[Refusal]:
        """Append deltas, never more at once than the hard limit leaves room for."""
        refused: list[Refusal] = []
        left = list(deltas)
        while left:
            if len(chain) >= self.compactor.max_chain_length:
                self._compact(chain)
            room = self.compactor.max_chain_length - len(chain)
            if room <= 0:
                text = "the chain is full and cannot be compacted"
                return refused + [Refusal(delta, text) for delta in left]
            refused += chain.extend(left[:room], self.clock())
            left = left[room:]
        if len(chain) >= self.compactor.delta_threshold:
            self.submit(chain)
        return refused

    def submit(self, chain: DeltaChain) -> None:
        """Have this chain looked at soon."""
        with self._woken:
            self._due[id(chain)] = chain
            self._woken.notify()

    def look(self, chains: Iterable[DeltaChain]) -> None:
        """Submit those of these chains that are due, by length or by age."""
        for chain in chains:
            if self.compactor.level(chain, self.clock()) is not Level.NONE:
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
        try:
            while True:
                with self._woken:
                    while not self._due and not self._closing:
                        self._woken.wait()
                    if not self._due:
                        return
                    chain = self._due.pop(next(iter(self._due)))
                if self.compactor.level(chain, self.clock()) is not Level.NONE:
                    result = self._compact(chain)
                    if result is not None and result.conflict:
                        self.submit(chain)  # deltas came in before the folded place: once more
        except BaseException as error:
            self.failure = error

    def _compact(self, chain: DeltaChain) -> CompactionResult | None:
        """Compact within the budget of memory, for which it waits a moment; else the chain stays
        as it is, and is looked at again if the budget could ever do."""
        with ExitStack() as stack:
            if self.memory is not None:
                self.memory.wait(chain.nbytes, "compaction", PATIENCE_S)
                verdict, guard = self.memory.allocate(chain.nbytes, "compaction")
                if guard is None:
                    if verdict is Admission.TOO_LARGE:
                        self.refused += 1
                    elif not self._closing:
                        self.submit(chain)
                    return None
                stack.enter_context(guard)
            result = self.compactor.compact(chain, wall_ns=self.clock())
        self.results = [*self.results[-999:], result]
        return result
