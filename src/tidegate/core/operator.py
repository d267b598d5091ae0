"""The protocol every operator follows.

An operator is a frozen config. Its state is a `State` (arrays with a lane axis, tables with a lane
column) that the caller owns. Columns go in, outcomes come out: in order, and all that a call
implies. An operator does no I/O and reads no clock: time comes in with the call (`wall_ns`).

Which call comes when:

    planning    input_columns, schema, side_schemas, needs_time, uses_wall_time, ...
                accepts_any_order ─► Chain calls without_buffering() of the stage before
                needs_late_in_order ─► Chain calls with_late_in_order() of those before
                compile()                    on the driver, so that no worker has to

    start       open()                       a new state, or
                restore(blob) ─► invariants  a snapshot; then resume(wall_ns)

    running     process(collection)          rows came, in order of arrival
                process_late(late)           rows came that were too late for a stage before
                advance(watermark)           no row at or before this will come, per lane
                wake_at() ─► wake(wall_ns)   a deadline by the wall clock has come
                control(signal)              a setting changes
                metrics(), snapshot()        at any time between calls

    leaving     forget(lanes)                keys were silent for too long; their lanes are freed
                flush(lanes)                 the stream ends: deliver everything
                discard()                    the stream ends at once: forget and count everything

Only `layout` and `process` must be written; everything else has a default that does nothing, or
passes on what it gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.core import snapshot
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    End,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Watermark,
)
from tidegate.core.state import Layout, State
from tidegate.errors import StateError

__all__ = ["Operator", "check_state"]


class Operator(ABC):
    """A stage: frozen settings, and transitions over a state that it does not own.

    Subclasses are frozen dataclasses whose fields are their settings. They check them in
    `__post_init__` with `core.checks`.
    """

    name: ClassVar[str]
    """One word, used in snapshots, `explain()` and metrics. Unique among operators."""
    version: ClassVar[int] = 1
    """The version of the state. Raise it whenever the layout or its meaning changes: a snapshot of
    another version is refused instead of being misread."""

    @abstractmethod
    def layout(self) -> Layout:
        """The arrays and tables the state consists of. Depends on the settings only."""

    def invariants(self, state: State) -> None:  # noqa: B027  (nothing to check by default)
        """Raise a StateError unless the state is one the kernels can run on.

        Called once after a snapshot was decoded and before anything runs, by `restore` and by
        `Flow.load`. Names, types, shapes and lanes of arrays and tables are checked by then; what
        is left is what the kernels assume of the values: indices in range, sizes that agree, sorted
        offsets, columns of state tables. Kernels run without bounds checks, so a restored state is
        untrusted until this has passed: it may come from anybody.
        """

    @abstractmethod
    def process(self, state: State, collection: Collection) -> list[Outcome]:
        """Rows came, in order of arrival. Never empty: the caller leaves empty collections out.

        Return what leaves now: `Collection` (data), `Late`, `Dropped`, `StreamError`, `Side` and
        `Watermark`, in the order in which the next stage must see them. Every row must leave once
        or be held in the state. The result must not depend on how rows are cut into collections.
        """

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        """No row at or before these times will come any more, one entry per lane. Return what that
        releases, then the watermark, or a lower one if rows at or before it are still to leave."""
        return [watermark]

    def process_late(self, state: State, late: Late) -> list[Outcome]:
        """Rows came too late for a stage before. The default passes them on."""
        return [late]

    def wake_at(self, state: State) -> int | None:
        """The wall time (ns since 1970) of the next deadline, or None. Asked after every call."""
        return None

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        """Deadlines up to `wall_ns` are due. Must not be called again for the same one."""
        return []

    def resume(self, state: State, wall_ns: int) -> None:  # noqa: B027  (few stages wait)
        """The stage runs again after a break. Timeouts by the wall clock start anew at `wall_ns`:
        nobody read the streams meanwhile, so their silence means nothing."""

    def uses_wall_time(self) -> bool:
        """Whether `wake_at` may ever name a deadline. Asked before there is a state; on Spark only
        such stages make empty micro-batches run."""
        return type(self).wake_at is not Operator.wake_at

    @property
    def needs_time(self) -> bool:
        """Whether this stage decides by the time of rows. A flow, a DataFrame pipeline or a
        definition in which such a stage gets no time is refused (`core.chain.check_time`)."""
        return False

    @property
    def gives_time(self) -> bool:
        """Whether rows leave this stage with a time that it gave them."""
        return False

    def unbounded(self) -> str | None:
        """Why this operator, with these settings, must not run in a stream: what it waits for may
        never come, and its state would grow for ever. None: it may. Frames and the planner refuse
        a stream with this sentence."""
        return None

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        """The values that settings expect in columns of the input, by column: topics, streams. A
        run says which of them never occurred."""
        return {}

    @property
    def accepts_any_order(self) -> bool:
        """Whether rows may come in any order, as long as none is at or before the watermark. The
        stage before then need not buffer rows to sort them."""
        return False

    def input_columns(self) -> frozenset[str] | None:
        """The columns this stage reads; None: possibly all."""
        return None

    @property
    def outputs_only_read_columns(self) -> bool:
        """Whether data that leaves is made of `input_columns` alone, so that no other column need
        be carried to it."""
        return False

    def without_buffering(self) -> Operator:
        """Return a copy of this stage that does not buffer rows in order to sort them. Called by
        Chain where the next stage accepts rows in any order. The default returns itself."""
        return self

    @property
    def needs_late_in_order(self) -> bool:
        """Whether late rows must come between the data: each behind all data up to the watermark
        that made it late, behind that watermark, and before all later data. False: they may come
        behind the collection's last watermark, which is cheaper. Asked by Chain."""
        return False

    def with_late_in_order(self) -> Operator:
        """A copy of this stage that hands late rows on in the order described there. Called by
        Chain where a later stage needs it. A stage without late rows of its own returns itself."""
        return self

    def compile(self) -> None:  # noqa: B027  (a stage without kernels has nothing to do)
        """Compile the kernels by calling each with the types it will see. Run on the driver: the
        result is cached on disk, and no worker has to compile in a step a user waits for."""

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        """The stream ends: deliver what these lanes (None: all) still hold, in order. The state of
        the lanes is then empty."""
        return []

    def forget(self, state: State, lanes: Int32s) -> list[Outcome]:
        """The keys of these lanes were silent for too long: deliver what they hold. Called instead
        of `flush`, so that a stage can give `forgotten` as the reason where it would say that the
        stream ended. The lanes are freed afterwards."""
        return self.flush(state, lanes)

    def discard(self, state: State) -> dict[str, int]:
        """The stream ends at once: forget what is buffered, and return how much that was."""
        return {}

    def control(self, state: State, signal: ControlSignal) -> list[Outcome]:
        """A setting changes while running. Ignore unknown names: another stage may know them."""
        return []

    def metrics(self, state: State) -> dict[str, int | float]:
        """Counters and levels by name, numbers only. Rows that wait are `rows_held`."""
        return {}

    def watermarks(self, state: State) -> Int64s | None:
        """The watermark of every lane, UNSET where there is none yet; None if this stage does not
        make one. For the keys furthest behind."""
        return None

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The schema of the data rows that leave, given that of the rows that come."""
        return rows

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """The schemas of the side tables this stage delivers (`Side`), by name."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The config as plain JSON values: for `explain()`, and to match a snapshot with a plan."""
        config: Any = self
        return {f.name: _plain_setting(getattr(self, f.name)) for f in fields(config) if f.init}

    def identity(self) -> dict[str, Any]:
        """What a snapshot must agree with to be restored: name, version and settings."""
        return {"name": self.name, "version": self.version, "config": self.settings()}

    def open(self, lanes: int = 1) -> State:
        """A new, empty state."""
        return State(self.layout(), lanes)

    def snapshot(self, state: State) -> bytes:
        """The state as bytes; `restore` gives it back, or a StateError."""
        return snapshot.encode([(self.identity(), state)], {})

    def restore(self, blob: bytes) -> State:
        """The reverse of `snapshot`. Nothing is restored in part."""
        states, _ = snapshot.decode(blob, [(self.identity(), self.layout())])
        check_state(self, states[0])
        return states[0]


def check_state(operator: Operator, state: State) -> None:
    """Check the invariants of a decoded state; whatever goes wrong is a StateError."""
    try:
        operator.invariants(state)
    except StateError:
        raise
    except Exception as error:
        # An invariant that stumbles over the state has found something no snapshot of ours has.
        text = f"state of {operator.name} is corrupt: {type(error).__name__}: {error}"
        raise StateError(text) from error


def _plain_setting(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain_setting(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain_setting(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, End):
        return value.value
    if hasattr(value, "settings"):
        return {"name": getattr(value, "name", type(value).__name__), **value.settings()}
    return repr(value)
