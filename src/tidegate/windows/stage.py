"""The window stage.

Clock policy: event time places rows and, through the watermark, closes windows; wall time (from the
collection) drives `Time` triggers and `Fixed` windows, nothing else.

The cut law. Rows are decided one after the other, so where a collection is cut changes nothing.
Watermarks are another matter: behind an event-time stage, where they fall between the rows depends
on the cuts. With the default trigger that changes nothing either: a window emits once, when
complete, and windows of a key emit in the order of their ends. With triggers that fire on rows, an
early pane of a later window could overtake the closing of an earlier one. `in_order=True` promises
that the rows of a key come in time order (as they do behind the event-time stage); then a row at t
itself says that nothing before t is missing and closes what ends there, so the sequence of
emissions is a function of the rows alone. Late rows that are allowed to change windows
(`NextWindow`, `Reemit`) are judged against the watermark by definition and are outside the law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Watermark,
)
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import MAX_NS, MIN_NS, UNSET
from tidegate.errors import ConfigError
from tidegate.windows import numbers as k
from tidegate.windows.aggregates import INCREMENTAL, parse_aggregates
from tidegate.windows.kinds import (
    Adaptive,
    CountWindow,
    Everything,
    Fixed,
    LookBack,
    Session,
    Sliding,
    StateWindow,
    Tumbling,
    WindowKind,
    ns,
)
from tidegate.windows.late import (
    Accumulation,
    Discard,
    LatePolicy,
    NextWindow,
    Reemit,
    SideOutput,
    accumulation_for,
)
from tidegate.windows.memory import Level, Memory, MemoryPolicy
from tidegate.windows.plan import Plan, make_plan
from tidegate.windows.settling import COUNTERS, count, dropped_late
from tidegate.windows.stepping import Stepping
from tidegate.windows.triggers import AtWatermark, Program, Trigger, compile_trigger

__all__ = ["Window"]

ROW_OVERHEAD = 40
"""Bytes the state adds to a buffered row: lane, window, time, lateness and size (28), and the
offsets of up to three texts. Without it many small rows would hold more than the budget says."""

_SEQUENTIAL = (CountWindow, StateWindow, Everything, Adaptive)


@dataclass(frozen=True)
class Window(Operator):
    """Windows as a stage of a pipeline: what, when, what with late rows, and what comes out.

    Without `aggregates` the rows themselves come out with the columns of their window; with them,
    one row per window and group. `keys` are input columns (constant per lane) to carry along.
    """

    window: WindowKind = field(default_factory=Adaptive)
    trigger: Trigger = field(default_factory=AtWatermark)
    late: LatePolicy = field(default_factory=SideOutput)
    aggregates: Any = ()
    group_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    accumulation: Accumulation | None = None
    deduplicate_by: str | None = None
    stats: bool = False
    affected: str | None = None
    size_column: str | None = None
    memory: Memory | None = None
    in_order: bool = False

    name: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "group_by", _names("group_by", self.group_by))
        put(self, "keys", _names("keys", self.keys))
        put(self, "aggregates", parse_aggregates(self.aggregates))
        if not isinstance(self.window, WindowKind):
            raise ConfigError("window", self.window, "must be a window such as Tumbling(...)")
        if not isinstance(self.late, LatePolicy):
            raise ConfigError(
                "late", self.late, "must be Discard, SideOutput, NextWindow or Reemit"
            )
        if self.group_by and not self.aggregates:
            raise ConfigError("group_by", self.group_by, "needs aggregates")
        mode = accumulation_for(self.late, self.accumulation)
        sequential = isinstance(self.window, (*_SEQUENTIAL, LookBack))
        if sequential and mode is not Accumulation.DISCARDING:
            what = "late" if isinstance(self.late, Reemit) else "accumulation"
            raise ConfigError(
                what, mode.value, f"{type(self.window).__name__} windows never emit a second pane"
            )
        budget = None if self.memory is None else self.memory.budget
        program = compile_trigger(self.trigger, budget)
        if isinstance(self.window, LookBack) and len(program.early):
            raise ConfigError("trigger", self.trigger, "LookBack windows are triggered by rows")
        if len(program.late) and not isinstance(self.late, Reemit):
            raise ConfigError("trigger", self.trigger, "late firings need late=Reemit(...)")
        if self.affected is not None and not self.stats:
            raise ConfigError("affected", self.affected, "needs stats=True")
        if isinstance(self.window, Fixed) and not isinstance(self.late, (SideOutput, Discard)):
            raise ConfigError("late", self.late, "Fixed windows live in wall time: no row is late")
        put(self, "mode", mode)
        put(self, "program", program)
        put(self, "stepping", Stepping(self))
        put(self, "_plans", {})

    mode: Accumulation = field(init=False, repr=False, compare=False)
    program: Program = field(init=False, repr=False, compare=False)
    stepping: Stepping = field(init=False, repr=False, compare=False)
    _plans: dict[Any, Plan] = field(init=False, repr=False, compare=False)

    # -- what the kernels need to know ------------------------------------------------------------

    @property
    def kind(self) -> int:
        """The family of kernels."""
        if isinstance(self.window, (Tumbling, Sliding, Fixed)):
            return k.KIND_ALIGNED
        for number, cls in (
            (k.KIND_SESSION, Session),
            (k.KIND_EVERYTHING, Everything),
            (k.KIND_COUNT, CountWindow),
            (k.KIND_STATE, StateWindow),
        ):
            if isinstance(self.window, cls):
                return number
        return k.KIND_ADAPTIVE

    @property
    def combining(self) -> bool:
        """Overlapping windows that emit once, when complete: rows are accumulated in sub-windows
        that do not overlap, and these are put together at the end."""
        return (
            isinstance(self.window, Sliding)
            and ns(self.window.step) < ns(self.window.size)
            and self.program.plain
            and self.memory is None
            and isinstance(self.late, (Discard, SideOutput))
        )

    @property
    def accepts_any_order(self) -> bool:
        """Windows by the row's time that emit once, when the watermark completes them, and
        aggregates that are kept up to date: rows may then come in any order."""
        return (
            isinstance(self.window, (Tumbling, Sliding))
            and (isinstance(self.window, Tumbling) or self.combining)
            and self.program.plain
            and self.memory is None
            and isinstance(self.late, (Discard, SideOutput))
            and not self.stats
            and self.deduplicate_by is None
            and bool(self.aggregates)
            and all(aggregate.function in INCREMENTAL for _, aggregate in self.aggregates)
        )

    @property
    def outputs_only_read_columns(self) -> bool:
        return bool(self.aggregates)

    def input_columns(self) -> frozenset[str] | None:
        conditions = isinstance(self.window, StateWindow) or bool(self.program.predicates)
        sizes = self.program.sized or self.memory is not None or self.stats
        if conditions or (sizes and self.size_column is None):
            return None  # conditions of the user's own, and the size of a whole row
        named = (self.affected, self.deduplicate_by, self.size_column)
        columns = (aggregate.column for _, aggregate in self.aggregates)
        return frozenset(filter(None, (*self.keys, *self.group_by, *named, *columns)))

    def config(self, plan: Plan, wall_ns: int) -> Int64s:
        """The settings of a call, as a kernel reads them."""
        cfg = np.zeros(k.SETTINGS, np.int64)
        w = self.window
        cfg[k.C_KIND] = self.kind
        if isinstance(w, Tumbling):
            cfg[k.C_SIZE] = cfg[k.C_STEP] = ns(w.size)
            cfg[k.C_OFFSET] = ns(w.offset) % ns(w.size)
        elif isinstance(w, Sliding):
            cfg[k.C_SIZE], cfg[k.C_STEP] = ns(w.size), ns(w.step)
            cfg[k.C_OFFSET] = ns(w.offset) % ns(w.step)
            if self.combining:
                cfg[k.C_SPAN], cfg[k.C_STRIDE] = ns(w.size), ns(w.step)
                cfg[k.C_SIZE] = cfg[k.C_STEP] = gcd(ns(w.size), ns(w.step))
        elif isinstance(w, Fixed):
            cfg[k.C_SIZE] = cfg[k.C_STEP] = ns(w.interval)
        elif isinstance(w, Session):
            cfg[k.C_SIZE] = ns(w.gap)
        elif isinstance(w, CountWindow):
            cfg[k.C_TARGET] = w.rows
        elif isinstance(w, Adaptive):
            cfg[k.C_TARGET], cfg[k.C_MIN], cfg[k.C_MAX] = w.target, ns(w.min), ns(w.max)
        if isinstance(self.late, Reemit):
            cfg[k.C_LATENESS] = ns(self.late.max_lateness)
        cfg[k.C_POLICY] = k.POLICY_ASIDE
        if isinstance(self.late, Discard):
            cfg[k.C_POLICY] = k.POLICY_DISCARD
        elif isinstance(self.late, NextWindow):
            cfg[k.C_POLICY] = k.POLICY_NEXT
        cfg[k.C_ACCUMULATE] = self.mode is not Accumulation.DISCARDING
        # Where only the watermark emits, and nothing is flushed for memory, rows need not close.
        early = not self.program.plain or self.memory is not None
        cfg[k.C_IN_ORDER] = self.in_order and early
        cfg[k.C_WALL] = wall_ns
        reach = min(self.reach, MAX_NS)
        cfg[k.C_EARLIEST], cfg[k.C_LATEST] = MIN_NS + reach, MAX_NS - reach
        cfg[k.C_BUFFERED] = plan.buffered
        cfg[k.C_OVERHEAD] = ROW_OVERHEAD if plan.buffered else 0
        if self.memory is not None:
            cfg[k.C_BUDGET] = min(self.memory.budget, self.memory.part("ingestion"))
            cfg[k.C_LIMIT] = self.memory.limit
            cfg[k.C_REJECT] = self.memory.policy is MemoryPolicy.REJECT
        if self.program.rate is not None:
            cfg[k.C_PERIOD] = ns(self.program.rate.period)
            cfg[k.C_CHANGE] = int(self.program.rate.threshold * 1_000_000)
        return cfg

    @property
    def reach(self) -> int:
        """How near to the ends of int64 time a row may come: windows must fit around it."""
        names = ("size", "gap", "interval", "max", "back", "ahead")
        spans = sum(ns(getattr(self.window, name, 0)) for name in names)
        lateness = ns(self.late.max_lateness) if isinstance(self.late, Reemit) else 0
        return 4 * spans + lateness + 4

    def plan(self, rows: pa.Schema) -> Plan:
        """What this stage does with rows of this schema."""
        key = rows.remove_metadata().to_string(show_schema_metadata=False)
        if key not in self._plans:
            self._plans[key] = make_plan(
                rows,
                keys=self.keys,
                group_by=self.group_by,
                aggregates=self.aggregates,
                stats=self.stats,
                affected=self.affected,
                deduplicate_by=self.deduplicate_by,
                numbered=isinstance(self.window, (*_SEQUENTIAL, LookBack)),
                look_back=isinstance(self.window, LookBack),
                sized=self.program.sized or self.memory is not None,
                names=self.program.names,
            )
        return self._plans[key]

    # -- the operator protocol --------------------------------------------------------------------

    def layout(self) -> Layout:
        arrays = {
            "watermark": Column(np.int64, (), UNSET),
            "handed": Column(np.int64, (), UNSET),
            "clock": Column(np.int64, (), UNSET),
            "serial": Column(np.int64),
            "counters": Column(np.int64, (len(COUNTERS),)),
        }
        if self.program.rate is not None:
            arrays["rates"] = Column(np.int64, (3,))
        if isinstance(self.window, Adaptive):
            arrays["recent"] = Column(np.int64, (4,))
            arrays["duration"] = Column(np.float64)
        return Layout(arrays, ("open", "slots", "rows", "sent"))

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        return self.stepping.process(state, collection)

    def process_late(self, state: State, late: Late) -> list[Outcome]:
        """Rows the event-time stage found late: taken into windows where the policy says so."""
        if isinstance(self.late, SideOutput):
            return [late]
        if isinstance(self.late, Discard):
            count(state, "late_count", late.lane)
            return dropped_late(self, state, late)
        return self.process(state, Collection(late.rows, late.time_ns, late.lane))

    def uses_wall_time(self) -> bool:
        return bool(self.program.intervals) or isinstance(self.window, (Fixed, Adaptive))

    def compile(self) -> None:
        """Run two rows of the columns that matter through a window."""
        names = {*self.keys, *self.group_by} | {a.column for _, a in self.aggregates if a.column}
        if isinstance(self.window, StateWindow) or self.program.predicates:
            return  # conditions of the user's own want their own columns
        for value, lanes in ((1.0, [0, 0]), (1, [0, 1])):
            rows = pa.record_batch({name: [value, value] for name in names | {"v"}})
            state = self.open(2 if lanes[1] else 1)
            times = np.array([1, 2], np.int64)
            self.process(state, Collection(rows, times, np.array(lanes, np.int32)))
            self.advance(state, Watermark.at(2))
            self.flush(state)

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        return self.stepping.advance(state, watermark)

    def wake_at(self, state: State) -> int | None:
        return self.stepping.wake_at(state)

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        return self.stepping.wake(state, wall_ns)

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        return self.stepping.flush(state, lanes)

    def discard(self, state: State) -> dict[str, int]:
        return self.stepping.discard(state)

    def control(self, state: State, signal: ControlSignal) -> list[Outcome]:
        """`fire` emits what is open now, with the reason `shutdown`; windows then go on."""
        return self.flush(state, signal.lane) if signal.name == "fire" else []

    def schema(self, rows: pa.Schema) -> pa.Schema:
        return self.plan(rows).output

    def metrics(self, state: State) -> dict[str, int | float]:
        totals = state["counters"].sum(axis=0)
        out: dict[str, int | float] = dict(zip(COUNTERS, totals.tolist(), strict=True))
        out["open_windows"] = state.rows("open")
        out["rows_held"] = state.rows("rows")
        used = self.stepping.buffered_bytes(state)
        out["buffered_bytes"] = used
        tables = (state.tables[name] for name in ("open", "slots"))
        out["window_metadata_bytes"] = sum(table.nbytes for table in tables if table is not None)
        if "recent" in state.arrays:
            out["rate_bytes"] = state["recent"].nbytes + state["duration"].nbytes
        if self.memory is not None:
            out["memory_ratio"] = used / self.memory.budget
            out["memory_level"] = list(Level).index(self.memory.level(used))
        if "duration" in state.arrays:
            known = state["duration"][state["duration"] > 0]
            out["duration_ns"] = float(known.mean()) if len(known) else float(MAX_NS)
        return out


def _names(field: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Mapping) or not hasattr(given, "__iter__"):
        raise ConfigError(field, given, "must be column names")
    names = tuple(given)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ConfigError(field, given, "must be different column names")
    return names
