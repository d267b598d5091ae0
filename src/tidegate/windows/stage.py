"""The window stage: its settings, and what it does when rows come and time passes.

Clock policy: event time places rows and, through the watermark, closes windows; wall time (from the
collection) drives `AfterTime` triggers and `Fixed` windows, nothing else.

The cut law. Rows are decided one after the other, so where a collection is cut changes nothing.
Watermarks are another matter: behind an event-time stage, where they fall between the rows depends
on the cuts. With the default trigger that changes nothing either: a window emits once, when
complete, and windows of a key emit in the order of their ends. With triggers that fire on rows, an
early pane of a later window could overtake the closing of an earlier one. `in_order=True` promises
that the rows of a key come in time order (as they do behind the event-time stage); then a row at t
itself says that nothing before t is missing and closes what ends there, so the sequence of
emissions is a function of the rows alone. A late row brings the watermark it was late for and is
judged by that one, so that what `NextWindow` and `Reemit` make of it is a function of the rows too.

How a call runs. Every transition opens a `WindowDecision` on the state: the open panes as arrays,
with room for new ones. A kernel decides (`kernels/`): which rows join which pane, which panes fire,
which are closed for good. Then the decision is applied: accumulators or rows move, fired panes
become output, what lives on becomes the state again. Nothing in this file looks at a single row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.adoption import STAGE_REMOVED, SettingChange
from tidegate.core.arrow import concat, factorize, ranges, take
from tidegate.core.checks import boolean, column_name, names
from tidegate.core.columns import IS_LATE, LANE, SERIAL, TIME, WAITS, output_names
from tidegate.core.numba import as_readonly, compile_at_once, interpret_first
from tidegate.core.operator import Adopted, Operator, left_behind, plain_setting
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Side,
    Watermark,
)
from tidegate.core.state import Column, Layout, State, require_int64
from tidegate.core.text import plural
from tidegate.core.time import MAX_NS, MIN_NS, UNSET, format_time
from tidegate.errors import ConfigError, StateError
from tidegate.windows.aggregates import (
    AGGREGATE_FUNCTIONS,
    Accumulators,
    ArrowFunction,
    Need,
    RowSlots,
    column_type,
    parse_aggregates,
)
from tidegate.windows.held import (
    LANE_STRIDE,
    NEWER,
    ROWS_SCHEMA,
    HeldPanes,
    HeldSlots,
    held_panes,
    held_slots,
    hold_panes,
    hold_slots,
    table_keys,
)
from tidegate.windows.invariants import (
    check_flags,
    check_numbers,
    check_slots,
    check_spans,
    require_columns,
)
from tidegate.windows.kernels.aggregate_runs import split_groups
from tidegate.windows.kernels.aligned import assign_aligned, seems_ascending
from tidegate.windows.kernels.any_order import DENSE, Slots, as_steps, place_rows, split_rows
from tidegate.windows.kernels.assign import link_panes
from tidegate.windows.kernels.firing import (
    close_panes,
    find_expired,
    fire_all,
    fire_due,
    fire_panes,
)
from tidegate.windows.kernels.ids import join_numbers
from tidegate.windows.kernels.layout import (
    KEPT,
    MAX_LEAVES,
    STACK,
    Call,
    Family,
    FiringReason,
    KernelRows,
    LaneState,
    LateRows,
    Panes,
    RowVerdict,
    Settings,
    Step,
    Steps,
    Timing,
    Totals,
    Verdicts,
    empty_steps,
)
from tidegate.windows.kernels.sequential import assign_sequential
from tidegate.windows.kernels.sessions import assign_sessions
from tidegate.windows.kinds import (
    Adaptive,
    Calendar,
    Cumulate,
    Fixed,
    LookBack,
    Sliding,
    StateWindow,
    Tumbling,
    When,
    WindowKind,
    condition_holds,
)
from tidegate.windows.late import LATE_POLICIES, Accumulation, LatePolicy, SideOutput
from tidegate.windows.look_back import RowWindows
from tidegate.windows.memory import Level, Memory, MemoryPolicy
from tidegate.windows.results import (
    COMPLETE_COLUMNS,
    Emits,
    Emitted,
    OutputPlan,
    Wanted,
    emit_rows,
    emit_slots,
    make_plan,
    no_slots,
    retract,
    row_bytes,
)
from tidegate.windows.sub_windows import SubWindows, combine_sub_windows
from tidegate.windows.triggers import AtWatermark, Trigger, TriggerProgram

__all__ = ["Window"]

ROW_OVERHEAD = 40
"""Bytes the state adds to a buffered row: lane, window, time, lateness and size (28), and the
offsets of up to three texts. Without it many small rows would hold more than the budget says."""

NEW_PANES = 1 << 14
"""New panes per kernel call (2.5 MB of arrays). A collection that opens more is decided in several
calls; fewer would cost a call each, more would no longer fit into the cache."""

SMALL_CALL = 1 << 12
"""Up to this many rows a call reserves room for `NEW_PANES_SMALL` panes only: few rows open few
windows, and clearing room for one per row would cost more than deciding them."""

NEW_PANES_SMALL = 1 << 7
"""New panes per kernel call of a small collection (20 kB of arrays)."""

GROUPED_ROWS = 1 << 19
"""Rows decided at once where groups split them: a step per row (32 bytes) must still fit into the
cache."""

TIMESTAMPS = ("end", "earliest", "latest")
"""What `Window.timestamp` may be."""

COUNTERS = (
    "rows_in",
    "windows_emitted",
    "rows_emitted",
    "late_count",
    "late_dropped_count",
    "rejected_count",
    "too_large_count",
    "outside_count",
    "discarded_count",
)
"""The columns of the state's array `counters`."""

NOT_PLACED = (
    (RowVerdict.DISCARDED, "late", "late_dropped_count"),
    (RowVerdict.TOO_LARGE, "too_large", "too_large_count"),
    (RowVerdict.REFUSED, "memory_pressure", "rejected_count"),
    (RowVerdict.OUTSIDE, "no_open_window", "outside_count"),
    (RowVerdict.OUT_OF_RANGE, "time_out_of_range", "outside_count"),
)
"""Rows that are dropped: the reason they leave with, and the counter they count in."""

# Nearly all of what windows compile. Small calls on a new machine run without.
_assign_aligned = interpret_first(assign_aligned, lambda first, rows, *_: len(rows.time) - first)
_assign_sessions = interpret_first(assign_sessions, lambda first, rows, *_: len(rows.time) - first)
_assign_sequential = interpret_first(
    assign_sequential, lambda first, rows, *_: len(rows.time) - first
)
_close_panes = interpret_first(close_panes, lambda call, settings, order, *_: len(order) + 1)
_fire_panes = interpret_first(fire_panes, lambda call, settings, order, *_: len(order) + 1)
_place_rows = interpret_first(place_rows, lambda first, rows, *_: len(rows.time) - first)

_NO_INTS = as_readonly(np.zeros(0, np.int64))
_NO_FLAGS = as_readonly(np.zeros(0, np.bool_))
_NO_HOLDS = as_readonly(np.zeros((1, 0), np.bool_))


class Given(NamedTuple):
    """The rows of a collection, as they are applied to the state."""

    rows: pa.RecordBatch
    """The rows, with the column of their sizes where statistics need it."""
    times: Int64s
    """Event times, also for `Fixed` windows."""
    late: NDArray[np.bool_] | None
    """Which rows joined a window late; None: none did."""


@dataclass
class WindowDecision:
    """The arrays of one kernel call, and what it decided."""

    call: Call
    """Panes and lists; the kernel writes into them."""
    settings: Settings
    """The settings of this call."""
    n_held: int
    """Panes that the state held; those behind them are new."""
    block: NDArray[np.int64]
    """The columns of `KEPT` of all panes, one line each: the memory of `call.panes`."""
    partitions: dict[str, pa.Array] = field(default_factory=dict)
    """State windows: the partition columns of every pane."""
    late_trigger: bool = False
    """The trigger says itself when late rows make a revision."""
    row_panes: Int32s | None = None
    """Where rows are not told in steps: the pane each joins, or -1 (`kernels/any_order.py`)."""
    first: int = 0
    """The row that `row_panes` begins with."""
    ended: bool = False
    """The windows end with the stream or the key, complete or not."""

    # Set by `trimmed`, when the kernel has decided:
    n: int = 0
    """How many panes there are now."""
    keys: Int64s = field(default_factory=lambda: _NO_INTS)
    """(lane, serial) of every pane as one number."""
    alive: NDArray[np.bool_] = field(default_factory=lambda: _NO_FLAGS)
    """Panes that stay in the state."""

    def trimmed(self) -> WindowDecision:
        """Cut the lists to what the kernel has written."""
        n, s = int(self.call.totals.panes[0]), int(self.call.totals.steps[0])
        panes = Panes(*(column[:n] for column in self.call.panes))
        steps = Steps(*(column[:s] for column in self.call.steps))
        fires = self.call.fires[: int(self.call.totals.fires[0])]
        self.call = self.call._replace(panes=panes, steps=steps, fires=fires)
        self.n = n
        self.keys = panes.lane * LANE_STRIDE + panes.serial
        self.alive = panes.dead == 0
        return self

    def keeps(self) -> NDArray[np.bool_]:
        """Panes whose rows or accumulators stay: not closed, and not emitted unless later panes
        accumulate on them."""
        keep: NDArray[np.bool_] = self.alive
        return keep if self.settings.accumulate else keep & (self.call.panes.fired == 0)

    def pane_of(self, wanted: Int64s) -> Int64s:
        """For each window, given by its key: its pane, of those the state held."""
        held = self.keys[: self.n_held]
        if len(held) == len(wanted) and (held == wanted).all():
            return np.arange(len(held))
        order = np.argsort(held, kind="stable")
        at = np.searchsorted(held, wanted, sorter=order)
        return order[np.minimum(at, len(order) - 1)].astype(np.int64)

    def emits(self) -> Emits:
        """The emitted panes, in order. Whether one is final follows from why it was emitted and
        from the settings, never from how far the watermark has come: that would depend on the cut.
        """
        p, fired, settings = self.call.panes, self.call.fires, self.settings
        mask, timing = p.fired[fired], p.timing[fired]
        final = (mask & (FiringReason.SHUTDOWN | FiringReason.FORGOTTEN)) != 0
        if settings.family >= Family.EVERYTHING:
            final[:] = True
        elif settings.lateness == 0:
            final |= timing == Timing.ON_TIME
        elif self.late_trigger:  # what late firings left over, when the window expired
            final |= mask == FiringReason.LATE
        return Emits(
            p.lane[fired], p.start[fired], p.end[fired], p.serial[fired],
            p.pane[fired], p.revision[fired], mask, timing, final,
        )  # fmt: skip

    def merges(self) -> Iterable[tuple[int, int]]:
        """Sessions that became part of another: (the one that stays, the one that is gone)."""
        steps = self.call.steps
        which = np.flatnonzero(steps.what == Step.MERGE)
        return zip(steps.pane[which].tolist(), steps.first[which].tolist(), strict=True)


@dataclass(frozen=True)
class Window(Operator):
    """Windows as a stage of a pipeline: which, when they emit, what with late rows, what comes out.

    Without `aggregates` the rows themselves leave, with the columns of their window behind their
    own; with them, one row per window and group. Either way these columns say what an output row is
    of: `window_id`, `window_start_ns`, `window_end_ns`, `pane`, `revision`, `trigger`,
    `timing` (early, on_time, late), `final` (no further pane can come), `retraction`.

    Raises:
        ConfigError: settings that contradict each other; when the schema is known, columns that are
            missing or of the wrong type.

    Example:
        >>> from tidegate.windows import AfterCount, Tumbling
        >>> stage = Window(Tumbling("10 s"), AtWatermark(early=AfterCount(100)),
        ...                aggregates={"n": "count", "speed": ("mean", "v")}, group_by="topic")
        >>> stage.schema(pa.schema([("topic", pa.string()), ("v", pa.float64())])).names[-2:]
        ['n', 'speed']
    """

    window: WindowKind = field(default_factory=Adaptive)
    """Which window a row belongs to. Adaptive by default: 10 ms to 5 s, 100 rows."""
    trigger: Trigger = field(default_factory=AtWatermark)
    """When a window emits, besides by the watermark, which closes every window. By default nothing
    else does, so that each window is emitted once, when it is complete."""
    late: LatePolicy = field(default_factory=SideOutput)
    """What becomes of rows whose windows are closed. By default they are delivered beside the data:
    foreign rows do not belong in a sum unasked."""
    aggregates: Any = ()
    """What to work out per window and group, such as `{"n": "count", "speed": ("mean", "v")}`; see
    `Aggregate`. Nothing by default: the rows themselves leave."""
    group_by: tuple[str, ...] = ()
    """Columns by whose values a window is divided in the output. Needs `aggregates`."""
    keys: tuple[str, ...] = ()
    """Input columns that are constant per key, to carry along and put into `window_id`. Pipelines
    set it."""
    accumulation: Accumulation | None = None
    """What a second pane of a window contains. None takes what fits `late`: accumulating (or
    retracting) with `Reemit`, otherwise discarding."""
    deduplicate_by: str | None = None
    """A column of identifiers: of the rows of a pane with equal ones only the first (by time, then
    arrival) counts. None by default; it makes the stage buffer rows."""
    stats: bool = False
    """Add columns about each pane: `delta_count`, `total_bytes`, `avg_delta_size`, `duration_ns`,
    and with `affected` `vectors_affected`."""
    affected: str | None = None
    """The column whose distinct values `vectors_affected` counts. Needs `stats`."""
    size_column: str | None = None
    """A column that states the bytes of each row, for `AfterSize`, `memory` and `stats`. None
    measures the row itself."""
    memory: Memory | None = None
    """A budget for buffered rows. None by default: no limit but the machine's."""
    timestamp: str = "end"
    """The event time of an aggregated row, for the stages behind: `end`, the last moment of its
    window (the default: what is behind waits least), `earliest` or `latest`, the time of the first
    or last row in it. With the latter two the watermark is held back until the window has left."""
    complete: bool = False
    """Also deliver a side table `complete`: a row for every window when the watermark completes it,
    even if early panes took all its rows, saying whether it is final or until when late rows can
    change it; and one more when it is closed for good. For windows that the watermark closes."""
    in_order: bool = False
    """The rows of a key come in time order, so that a row at t closes what ends before it. Makes
    the sequence of early panes independent of how the input is cut. A definition sets it behind an
    event-time stage. Rows that break the promise are late."""

    mode: Accumulation = field(init=False, repr=False, compare=False)
    """`accumulation`, or what follows from `late` where that is None."""
    program: TriggerProgram = field(init=False, repr=False, compare=False)
    """The compiled triggers."""
    row_windows: RowWindows | None = field(init=False, repr=False, compare=False)
    """The transitions of `LookBack`; None for every other kind."""
    _plans: dict[Any, OutputPlan] = field(init=False, repr=False, compare=False)
    """Plans by schema, and by the bytes of a schema: each is worked out once."""
    _settings: dict[bool, Settings] = field(init=False, repr=False, compare=False)
    """Kernel settings without the wall time, by whether rows are buffered."""

    name: ClassVar[str] = "window"
    version: ClassVar[int] = 3
    adopts: ClassVar[Mapping[str, str]] = {
        "window": "the numbers of adaptive and count windows hold from the next row on; of other "
        "kinds nothing can change",
        "trigger": "holds for open windows, too; a once-only trigger may fire again in them",
        "late": "holds from then on, unless windows would have to contain more than was kept",
        "aggregates": "hold for windows that open from then on; in those that are open, new ones "
        "are null, and removed ones end at once",
        "memory": "another budget holds from the next row on; a first or no budget is refused",
        "in_order": "holds from the next row on",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "group_by": "the accumulators of open windows are divided by the old columns",
        "keys": "the state is kept by key",
        "accumulation": "open windows kept what the old one needs",
        "deduplicate_by": "open windows kept what the old one needs",
        "stats": "open windows kept what the old one needs",
        "affected": "open windows kept what the old one needs",
        "size_column": "the sizes of open windows were measured by the old column",
        "timestamp": "the watermark was handed on by the old one",
        "complete": "the keys of open windows were kept, or not, by the old one",
    }

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "group_by", names("group_by", self.group_by))
        put(self, "keys", names("keys", self.keys))
        put(self, "aggregates", parse_aggregates(self.aggregates))
        for setting in ("deduplicate_by", "affected", "size_column"):
            column_name(setting, getattr(self, setting))
        boolean("stats", self.stats)
        boolean("in_order", self.in_order)
        boolean("complete", self.complete)
        if not isinstance(self.window, WindowKind):
            raise ConfigError("window", self.window, "must be a window such as Tumbling(...)")
        if not isinstance(self.late, LatePolicy):
            raise ConfigError(
                "late", self.late, "must be Discard, SideOutput, NextWindow or Reemit"
            )
        if self.group_by and not self.aggregates:
            raise ConfigError("group_by", self.group_by, "needs aggregates")
        if self.affected is not None and not self.stats:
            raise ConfigError("affected", self.affected, "needs stats=True")
        if self.timestamp not in TIMESTAMPS:
            known = ", ".join(TIMESTAMPS)
            raise ConfigError("timestamp", self.timestamp, f"must be one of {known}")
        if self.timestamp != "end" and (not self.aggregates or isinstance(self.window, LookBack)):
            text = "is for aggregates; rows, and the windows of single rows, keep their own times"
            raise ConfigError("timestamp", self.timestamp, text)
        mode = self.late.accumulation(self.accumulation)
        if self.window.emits_once and mode is not Accumulation.DISCARDING:
            what = "late" if self.late.lateness_ns else "accumulation"
            kind = type(self.window).__name__
            raise ConfigError(what, mode.value, f"{kind} windows never emit a second pane")
        program = TriggerProgram(
            self.trigger, None if self.memory is None else self.memory.row_budget
        )
        if self.window.family is Family.LOOK_BACK and program.fires_on_rows:
            raise ConfigError("trigger", self.trigger, "LookBack windows are triggered by rows")
        if program.fires_late and not self.late.lateness_ns:
            raise ConfigError("trigger", self.trigger, "late firings need late=Reemit(...)")
        if isinstance(self.window, Fixed) and self.late.takes_late_rows:
            raise ConfigError("late", self.late, "Fixed windows live in wall time: no row is late")
        row_windows = None
        if isinstance(self.window, LookBack):
            row_windows = RowWindows(self.window.back, self.window.ahead, bool(self.aggregates))
        if isinstance(self.window, Cumulate) and (
            program.fires_on_rows or self.late.takes_late_rows
        ):
            field = "trigger" if program.fires_on_rows else "late"
            text = "Cumulate windows are emitted by the watermark, once"
            raise ConfigError(field, getattr(self, field), text)
        if self.complete and (
            self.window.emits_once
            or isinstance(self.window, (Fixed, Cumulate))
            or self.window.family not in (Family.ALIGNED, Family.SESSION)
        ):
            text = f"every pane of {type(self.window).__name__} windows is final as it is"
            raise ConfigError("complete", True, text)
        put(self, "mode", mode)
        put(self, "program", program)
        put(self, "row_windows", row_windows)
        put(self, "_plans", {})
        put(self, "_settings", {})

    # -- what kind of stage this is ---------------------------------------------------------------

    @property
    def combines(self) -> bool:
        """Overlapping windows that emit once, when complete: rows are accumulated in sub-windows
        that do not overlap, and these are put together at the end."""
        window = self.window
        if isinstance(window, Cumulate):
            return True
        return (
            isinstance(window, Sliding)
            and window.step != window.size
            and self._only_watermark_emits
            and not self.complete
        )

    @property
    def _only_watermark_emits(self) -> bool:
        """Every window is emitted once, by the watermark: no trigger, budget or late row does."""
        return (
            not self.program.fires_on_rows and self.memory is None and not self.late.takes_late_rows
        )

    @property
    def accepts_any_order(self) -> bool:
        """Windows by the row's time that emit once, when the watermark completes them, and
        aggregates that are kept up to date: rows may then come in any order."""
        return (
            isinstance(self.window, (Tumbling, Calendar, Sliding, Cumulate))
            and (isinstance(self.window, (Tumbling, Calendar)) or self.combines)
            and self._only_watermark_emits
            and self.timestamp == "end"
            and self.mode is Accumulation.DISCARDING
            and not self.stats
            and self.deduplicate_by is None
            and bool(self.aggregates)
            and all(
                aggregate.implementation.need not in (Need.ROWS, Need.FOLD)
                for _, aggregate in self.aggregates
            )
        )

    @property
    def needs_late_in_order(self) -> bool:
        """Late rows change windows: each must come right behind the watermark it is late for."""
        return self.late.takes_late_rows

    @property
    def outputs_only_read_columns(self) -> bool:
        return bool(self.aggregates)

    def input_columns(self) -> frozenset[str] | None:
        conditions = isinstance(self.window, StateWindow) or bool(self.program.predicates)
        sizes = self.program.sized or self.memory is not None or self.stats
        if conditions or (sizes and self.size_column is None):
            return None  # conditions of the user's own, and the size of a whole row
        named = (self.affected, self.deduplicate_by, self.size_column)
        columns = [name for _, each in self.aggregates for name in (each.column, each.by)]
        return frozenset(filter(None, (*self.keys, *self.group_by, *named, *columns)))

    def plan(self, rows: pa.Schema) -> OutputPlan:
        """What this stage does with rows of this schema.

        Args:
            rows: the schema of the rows.

        Raises:
            ConfigError: a column that a setting names is missing or of the wrong type.
        """
        found = self._plans.get(rows)
        if found is None:
            self._check_conditions(rows)
            family = self.window.family
            wanted = Wanted(
                keys=self.keys,
                group_by=self.group_by,
                aggregates=self.aggregates,
                stats=self.stats,
                affected=self.affected,
                deduplicate_by=self.deduplicate_by,
                size_column=self.size_column,
                numbered=self.window.emits_once,
                look_back=family is Family.LOOK_BACK,
                sized=self.program.sized,
                budgeted=self.memory is not None,
                timestamp=self.timestamp,
                inclusive_end=self.window.inclusive_end,
                names=tuple(self.program.names),
            )
            found = self._plans[rows] = make_plan(rows.remove_metadata(), wanted)
        return found

    def _check_conditions(self, rows: pa.Schema) -> None:
        """Comparisons and partitions must be of columns that exist, with values of their type.

        Raises:
            ConfigError: one is not.
        """
        conditions: list[tuple[str, Any]] = [("trigger", f) for _, f in self.program.predicates]
        if isinstance(self.window, StateWindow):
            conditions += [("open", self.window.open), ("emit", self.window.emit)]
            for name in self.window.partition_by:
                column_type(rows, name, "partition_by")
        for setting, condition in conditions:
            if not isinstance(condition, When):
                continue
            kind = column_type(rows, condition.column, setting)
            try:
                condition(pa.RecordBatch.from_pylist([], schema=rows))
            except (pa.ArrowException, TypeError) as error:
                text = f"must be comparable with column {condition.column}, which is {kind}"
                raise ConfigError(setting, condition.value, text) from error

    def kernel_settings(self, plan: OutputPlan, wall_ns: int) -> Settings:
        """The settings as the kernels read them, for a call at this wall time."""
        base = self._settings.get(plan.buffered)
        if base is None:
            base = self._settings[plan.buffered] = self._make_settings(plan)
        return base._replace(wall=wall_ns)

    def _make_settings(self, plan: OutputPlan) -> Settings:
        """The settings of all calls, but for the wall time.

        Where overlapping windows are combined, the kernels work on sub-windows: the greatest common
        divisor of size and step is the largest length of which both are multiples.
        """
        values: dict[str, Any] = {**self.window.kernel_settings()}
        if self.combines and not isinstance(self.window, Cumulate):
            values["span"], values["stride"] = values["size"], values["step"]
            values["size"] = values["step"] = gcd(values["size"], values["step"])
        if self.memory is not None:
            values["budget"] = self.memory.row_budget
            values["limit"] = self.memory.limit
        if self.program.rate is not None:
            assert isinstance(self.program.rate.period, int)
            values["period"] = self.program.rate.period
            values["change"] = int(self.program.rate.threshold * 1_000_000)
        # Windows must fit around a row, with room for the arithmetic of the kernels.
        reach = min(4 * self.window.reach_ns + self.late.lateness_ns + 4, MAX_NS)
        return Settings(
            **values,
            family=int(self.window.family),
            lateness=self.late.lateness_ns,
            policy=int(self.late.rows),
            accumulate=self.mode is not Accumulation.DISCARDING,
            # Where only the watermark emits, and no row is flushed, rows need not close.
            in_order=self.in_order and (self.program.fires_on_rows or self.memory is not None),
            buffered=plan.buffered,
            overhead=ROW_OVERHEAD if plan.buffered else 0,
            # Windows put together from sub-windows have no early panes to flush.
            reject=self.memory is not None
            and (self.memory.policy is MemoryPolicy.REJECT or self.combines),
            tracked=plan.buffered or self.timestamp != "end",
            complete=self.complete,
            once=self.program.once,
            earliest=MIN_NS + reach,
            latest=MAX_NS - reach,
        )

    # -- the operator protocol --------------------------------------------------------------------

    def layout(self) -> Layout:
        arrays = {
            "watermark": Column(np.int64, (), UNSET),
            # The watermark that was handed on, and the latest wall time; neither goes back.
            "handed": Column(np.int64, (), UNSET),
            "clock": Column(np.int64, (), UNSET),
            "serial": Column(np.int64),
            "counters": Column(np.int64, (len(COUNTERS),), merge="sum"),
        }
        if self.program.rate is not None:
            arrays |= {name: Column(np.int64) for name in LaneState._fields[2:5]}
        if self.window.family is Family.ADAPTIVE:
            arrays |= {name: Column(np.int64) for name in LaneState._fields[5:9]}
            arrays["duration"] = Column(np.float64)
        tables: tuple[str, ...] = ("open", "slots", "rows", "sent", "unknown")
        if self.complete and self.keys:
            arrays["keyed"] = Column(np.bool_)
            tables = (*tables, "keys")
        return Layout(arrays, tables)

    def settings(self) -> dict[str, Any]:
        plain = super().settings()
        return {**plain, "aggregates": dict(plain["aggregates"])}

    # -- other settings ---------------------------------------------------------------------------

    def changes(self, old_settings: Mapping[str, Any]) -> list[SettingChange]:
        """As in `Operator`; what may change in a window or a late policy depends on the others."""
        out = []
        for each in super().changes(old_settings):
            setting = each.setting.partition(".")[0]
            if setting == "window":
                kind = (old_settings.get("window") or {}).get("name")
                if kind != self.window.name or kind not in ("adaptive", "count"):
                    each = each._replace(refusal="open windows have the old extent")
            elif setting == "late" and not self._can_adopt_late(old_settings):
                each = each._replace(refusal="open windows kept what the old one needs")
            elif setting == "memory" and None in (old_settings.get("memory"), self.memory):
                each = each._replace(refusal="the sizes of open windows are known only with one")
            elif setting == "aggregates" and not isinstance(
                old_settings.get("aggregates"), Mapping
            ):
                raise StateError("the state was written with aggregates that are none")
            elif setting == "aggregates" and self._kept_rows(old_settings) != self._kept_rows(None):
                each = each._replace(refusal="open windows kept either their rows or their sums")
            out.append(each)
        return out

    def _can_adopt_late(self, old: Mapping[str, Any]) -> bool:
        """Whether open windows contain what the new late policy needs: the same mode, or no window
        can have emitted a pane before its end."""
        try:
            late = LATE_POLICIES[old["late"]["name"]]
            given = {name: value for name, value in old["late"].items() if name != "name"}
            was = late(**given).accumulation(
                None if old["accumulation"] is None else Accumulation(old["accumulation"])
            )
        except (KeyError, TypeError, ValueError):
            return False
        if was is self.mode:
            return True
        only_watermark = plain_setting(AtWatermark())
        return (
            Accumulation.RETRACTING not in (was, self.mode)
            and old["trigger"] == only_watermark
            and old["memory"] is None
        )

    def _kept_rows(self, old: Mapping[str, Any] | None) -> bool:
        """Whether windows keep their rows, with these settings (None: those of now)."""
        own = {name: each.implementation for name, each in self.aggregates}
        every, unique = list(own.values()), self.deduplicate_by
        if old is not None:
            now, unique, every = self.settings()["aggregates"], old.get("deduplicate_by"), []
            for name, was in old.get("aggregates", {}).items():
                if not isinstance(was, Mapping) or not isinstance(was.get("name"), str):
                    raise StateError(f"the state was written with an unknown aggregate {name!r}")
                known = AGGREGATE_FUNCTIONS.get(was["name"]) or ArrowFunction(was["name"])
                every.append(own[name] if was == now.get(name) else known)
        return not every or unique is not None or any(each.need is Need.ROWS for each in every)

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """Arrays that triggers on rates need come and go; open windows forget which trigger emitted
        them if triggers changed; their accumulators get the columns that the aggregates now need.
        """
        layout = self.layout()
        for name in {*state.arrays, *layout.arrays} - (set(state.arrays) & set(layout.arrays)):
            if name not in LaneState._fields[2:5]:
                raise StateError(f"state of window: array {name} is missing or unknown")
            state.arrays.pop(name, None)
            if name in layout.arrays:
                state.arrays[name] = np.zeros(state.lanes, np.int64)
        made = state.conformed(layout, self.name)
        held = made.tables["open"]
        if held is not None and held.num_rows and old["trigger"] != self.settings()["trigger"]:
            made.tables["open"] = _without_triggers(held)
        if old["aggregates"] != self.settings()["aggregates"]:
            self._adopt_aggregates(old["aggregates"], made)
        return Adopted(made, [])

    def _adopt_aggregates(self, old: Mapping[str, Any], state: State) -> None:
        """Give the accumulators of open windows the columns of the new aggregates, and note which
        results are not known for these windows.

        The table `unknown` has a row per lane and new aggregate: `serial`, below which windows were
        open already, and `end`, before which such windows may reach.

        Raises:
            StateError: open windows kept their rows and now need sums, or the reverse.
        """
        held, slots = state.tables["open"], state.tables["slots"]
        if held is None or not held.num_rows or self.row_windows is not None:
            return
        self._check_tables(state)  # all but the columns that are given to accumulators below
        plan = self._plan_of(_schema_of(held))
        if plan.buffered:
            if slots is not None and slots.num_rows:
                raise StateError("open windows have not kept the rows that an aggregate now needs")
            return
        if state.rows("rows"):
            raise StateError("open windows have kept rows, not the sums that are now needed")
        now = self.settings()["aggregates"]
        new = [name for name in now if old.get(name) != now[name]]
        if slots is not None and slots.num_rows:
            empty = Accumulators(plan.slots, slots.num_rows)
            blank = empty.blank(slots.column(LANE), slots.column(SERIAL), plan.rows)
            names = slots.schema.names
            columns = [
                slots.column(name)
                if name in names and slots.schema.field(name).type == blank.schema.field(name).type
                else blank.column(name)
                for name in blank.schema.names
            ]
            state.tables["slots"] = pa.RecordBatch.from_arrays(columns, names=blank.schema.names)
        if not new:
            return
        lanes = np.unique(held.column(LANE).to_numpy())
        end = np.full(state.lanes, MIN_NS, np.int64)
        np.maximum.at(end, held.column(LANE).to_numpy(), held.column("end").to_numpy())
        table = pa.record_batch(
            {
                LANE: pa.array(np.tile(lanes, len(new)).astype(np.int32)),
                "name": pa.array([name for name in new for _ in lanes], pa.string()),
                SERIAL: pa.array(np.tile(state["serial"][lanes], len(new))),
                "end": pa.array(np.tile(end[lanes], len(new))),
            }
        )
        state.tables["unknown"] = concat([state.tables["unknown"], table])

    def _hide_unknown(self, state: State, emits: Emits, made: Emitted) -> Emitted:
        """Make the results null that open windows could not work out: see `_adopt_aggregates`.
        Rows of `unknown` that no window can need any more are removed."""
        table = state.tables["unknown"]
        if table is None or not table.num_rows or not made.rows.num_rows:
            return made
        lane = emits.lane[made.emit]
        by_time = self.combines or self.window.family is Family.SESSION
        rows = made.rows
        for name in table.column("name").unique().to_pylist():
            at = rows.schema.get_field_index(name)
            if at < 0:
                continue
            mine = table.filter(pc.equal(table.column("name"), name))
            bound = np.full(state.lanes, MIN_NS, np.int64)
            column = mine.column("end" if by_time else SERIAL).to_numpy()
            np.maximum.at(bound, mine.column(LANE).to_numpy(), column)
            given = (emits.start if by_time else emits.serial)[made.emit]
            hide = pa.array(given < bound[lane])
            values = pc.if_else(hide, pa.scalar(None, rows.column(at).type), rows.column(at))
            rows = rows.set_column(at, rows.schema.field(at), values)
        gone = table.column("end").to_numpy() <= state["handed"][table.column(LANE).to_numpy()]
        if self.window.closes_by_watermark and not self.late.lateness_ns and gone.any():
            state.tables["unknown"] = None if gone.all() else table.filter(pa.array(~gone))
        return made._replace(rows=rows)

    @classmethod
    def release(cls, state: State, settings: Mapping[str, Any]) -> list[Outcome]:
        """Rows that wait to be emitted; of windows that keep sums, one row per window that says how
        many rows it has taken in."""
        held = dict(state.tables.items()).get("open")
        out: list[Outcome] = []
        fresh, waiting = held, np.zeros(0, np.int64)
        if held is not None:
            fresh = held.filter(pc.equal(held.column("fired"), 0))
            lane = fresh.column(LANE).to_numpy().astype(np.int64)
            waiting = lane * LANE_STRIDE + fresh.column("serial").to_numpy()
        rows = state.tables.get("rows")
        if rows is not None and rows.num_rows:
            look_back = (settings.get("window") or {}).get("name") == "look_back"
            if not look_back:
                rows = rows.filter(pa.array(np.isin(table_keys(rows), waiting)))
            out.append(left_behind(rows, rows.column(TIME).to_numpy()))
        elif fresh is not None and fresh.num_rows:
            count, start, end = (fresh.column(n).to_pylist() for n in ("rows", "start", "end"))
            reasons = pa.array(
                [f"{STAGE_REMOVED}: a window from {format_time(a)} to {format_time(b)} had taken "
                 f"in {plural(n, 'row')}" for n, a, b in zip(count, start, end, strict=True)],
                pa.string(),
            )  # fmt: skip
            schema = pa.ipc.read_schema(pa.py_buffer(fresh.schema.metadata[ROWS_SCHEMA]))
            nothing = pa.RecordBatch.from_arrays(
                [pa.nulls(len(waiting), f.type) for f in schema], names=schema.names
            )
            lanes = fresh.column(LANE).to_numpy()
            out.append(Dropped(nothing, fresh.column("start").to_numpy(), lanes, reasons))
        return out

    def invariants(self, state: State) -> None:
        """The kernels index by lane and by serial number, and the tables must belong together."""
        self._check_tables(state)
        held, slots = state.tables["open"], state.tables["slots"]
        if slots is not None and slots.num_rows and held is not None and self.row_windows is None:
            check_slots(slots, self._plan_of(_schema_of(held)))

    def _check_tables(self, state: State) -> None:
        """Everything but the columns of accumulators, which a state of other aggregates lacks."""
        require_int64(state, "open", *(name for name in KEPT[1:] if name != NEWER))
        if (table := state.tables["open"]) is not None and NEWER in table.schema.names:
            require_columns(table, "open", pa.schema([(NEWER, pa.int64())]))
        require_int64(state, "slots", SERIAL)
        require_int64(state, "rows", SERIAL, TIME)
        require_int64(state, "sent", SERIAL, TIME)
        require_int64(state, "unknown", SERIAL, "end")
        if (unknown := state.tables["unknown"]) is not None:
            require_columns(unknown, "unknown", pa.schema([("name", pa.string())]))
        serial = state.arrays["serial"]
        if (serial < 0).any() or (serial >= LANE_STRIDE).any():
            raise StateError("a window stage has opened fewer than no windows, or too many")
        known = _NO_INTS
        if table is not None and table.num_rows:
            plan = self._check_schema(table)
            panes = HeldPanes.of_table(table)
            settings = self.kernel_settings(plan, 0)
            check_numbers(panes, serial, len(plan.names), settings.once)
            check_spans(panes, settings, self.window)
            known = panes.keys
            if isinstance(self.window, StateWindow):
                parts = [plan.rows.field(name) for name in self.window.partition_by]
                fields = [pa.field(f"part:{each.name}", each.type) for each in parts]
                require_columns(table, "open", pa.schema(fields))
            if self.complete and self.keys:
                self._check_keys(state, plan, panes["lane"])
            if (sent := state.tables["sent"]) is not None:
                require_columns(sent, "sent", plan.output)
        self._check_rows(state, known)

    def _check_rows(self, state: State, known: Int64s) -> None:
        """Accumulators and buffered rows must belong to windows that are open, and rows must have
        the columns that the stage goes on with.

        Args:
            state: of this stage.
            known: (lane, serial) of every open window as one number.
        """
        for name in ("slots", "rows"):
            table = state.tables[name]
            if table is None or table.num_rows == 0:
                continue
            if self.row_windows is not None:
                plan = self._check_schema(table)
                serial = table.column(SERIAL).to_numpy()
                given = state.arrays["serial"][table.column(LANE).to_numpy()]
                if (serial < 0).any() or (serial >= given).any():
                    raise StateError("a stored row has a number that was never given out")
                time, reach = table.column(TIME).to_numpy(), self.window.reach_ns
                if (time < MIN_NS + reach).any() or (time > MAX_NS - reach).any():
                    raise StateError("a stored row has a time that no row can have")
            elif not np.isin(table_keys(table), known).all():
                raise StateError(f"state table {name} has rows of a window that is not open")
            else:
                plan = self._check_schema(state.tables["open"])
            if name == "rows":
                flags = (IS_LATE,) if self.row_windows is None else (IS_LATE, WAITS)
                check_flags(table, name, flags)
                self._check_columns(table, plan)

    def _check_columns(self, table: pa.RecordBatch, plan: OutputPlan) -> None:
        """Buffered rows must have all columns of the rows that came last, of types the settings
        can take: not always the same ones, as columns may be promoted while a window is open."""
        missing = [name for name in plan.widened.names if name not in table.schema.names]
        if missing:
            raise StateError(f"stored rows have no column {missing[0]}")
        for wanted in plan.rows:
            stored = table.schema.field(wanted.name)
            if stored.type in (wanted.type, pa.string()):
                continue
            try:
                pa.unify_schemas(
                    [pa.schema([stored]), pa.schema([wanted])], promote_options="permissive"
                )
            except pa.ArrowException as error:
                raise StateError(f"stored rows cannot be used: {error}") from error
        try:
            self.plan(pa.schema([table.schema.field(name) for name in plan.rows.names]))
        except ConfigError as error:
            raise StateError(f"stored rows cannot be used: {error}") from error
        if plan.stats:
            size = table.column(plan.widened.names[-1])
            if size.type != pa.int64() or size.null_count:
                raise StateError("stored rows have no sizes")

    def _check_keys(self, state: State, plan: OutputPlan, lanes: Int64s) -> None:
        """With `complete`: the keys of the lanes, which certificates repeat."""
        keys = state.tables["keys"]
        if keys is None:
            raise StateError("the state has no keys of its open windows")
        require_columns(keys, "keys", pa.schema([plan.rows.field(name) for name in plan.keys]))
        of = keys.column(LANE).to_numpy()
        if len(np.unique(of)) < len(of) or not np.isin(lanes, of).all():
            raise StateError("the state has not one key per lane")
        keyed = np.zeros(state.lanes, np.bool_)
        keyed[of] = True
        if (keyed != state.arrays["keyed"]).any():
            raise StateError("the state does not know which keys it has")

    def _check_schema(self, held: pa.RecordBatch | None) -> OutputPlan:
        """The schema that travels with the state must be one that this stage can take."""
        assert held is not None
        try:
            return self._plan_of(_schema_of(held))
        except (KeyError, TypeError, pa.ArrowException, ConfigError, OSError) as error:
            raise StateError(f"the schema stored with open windows is unusable: {error}") from error

    def schema(self, rows: pa.Schema) -> pa.Schema:
        return self.plan(rows).output

    def notes(self, rows: pa.Schema) -> list[str]:
        made = []
        for name, one in self.plan(rows).aggregates:
            place = -1 if one.column is None else rows.get_field_index(one.column)
            kind = rows.field(place).type if place >= 0 else pa.null()
            if one.function in ("min", "max") and (
                pa.types.is_string(kind) or pa.types.is_large_string(kind)
            ):
                made.append(
                    f"window {name}: {one.function} of the text column {one.column} compares "
                    "letter by letter ('9' is above '10'); give it a number type if it holds "
                    "numbers"
                )
        return made

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """With `complete`: the table of that name."""
        if not self.complete:
            return {}
        plan = self.plan(rows)
        fields = [rows.field(name) for name in plan.keys]
        named = output_names([field.name for field in fields], list(COMPLETE_COLUMNS))
        fields += [pa.field(named[name], kind) for name, kind in COMPLETE_COLUMNS.items()]
        return {"complete": pa.schema(fields)}

    @property
    def needs_time(self) -> bool:
        return True

    def uses_wall_time(self) -> bool:
        return self._has_deadlines or isinstance(self.window, Fixed)

    @property
    def _has_deadlines(self) -> bool:
        return bool(self.program.intervals_ns) or self.window.wall_deadline_ns > 0

    def compile(self) -> None:
        """Run two rows through a stage with the same kernels and stand-ins for everything that is
        the user's: columns, conditions and functions are not touched."""
        window = self.window
        if isinstance(window, StateWindow):
            window = StateWindow(True, True, ("g",) if window.partition_by else ())
        aggregates: dict[str, Any] = {}
        if self.aggregates:
            aggregates = {"n": "count", "i": ("max", "i"), "f": ("max", "f"), "t": ("count", "g")}
            if any(each.implementation.need is Need.ROWS for _, each in self.aggregates):
                aggregates["q"] = ("quantile", "f", 0.5)
        stage = replace(
            self,
            window=window,
            aggregates=aggregates,
            group_by=("g",) if self.group_by else (),
            keys=("g",) if self.keys else (),
            deduplicate_by=None if self.deduplicate_by is None else "g",
            affected=None if self.affected is None else "g",
            size_column=None,
        )
        never = [(name, lambda rows: np.zeros(rows.num_rows, np.bool_))
                 for name, _ in self.program.predicates]  # fmt: skip
        stage.program.predicates = never
        with compile_at_once():
            stage._run_every_kernel()

    def _run_every_kernel(self) -> None:
        """Run two rows through the stage, in both orders, with one lane and with two."""
        rows = pa.record_batch({"i": [1, 2], "f": [1.0, 2.0], "g": ["a", "b"]})
        times = np.array([2, 1], np.int64)
        for lanes in (1, 2):
            for order in (times, times[::-1]):
                state = self.open(lanes)
                lane = np.array([0, lanes - 1], np.int32)
                self.process(state, Collection(rows, np.ascontiguousarray(order), lane))
                self.advance(state, Watermark.at(1))
                late = Late(rows, times, lane, times)
                self.process_late(state, late)
                self.fire_open_windows(state, None, FiringReason.FIRE)
                self.wake(state, 10**18)
                self.flush(state)

    def metrics(self, state: State) -> dict[str, int | float]:
        """Counters since the start, and what the state holds now.

        Besides `COUNTERS`: `open_windows`, `rows_held`, `buffered_bytes` (rows),
        `window_metadata_bytes` (open windows and accumulators); for adaptive windows `rate_bytes`
        and `duration_ns` (the longest window that a key would open now; 0 before the first row);
        with a budget `memory_percent` and `memory_level` (0: the first `Level`). These three are
        not added up over shards: the highest counts.
        """
        totals = state.arrays["counters"].sum(axis=0)
        out: dict[str, int | float] = dict(zip(COUNTERS, totals.tolist(), strict=True))
        panes = held_panes(state)
        out["open_windows"] = 0 if panes is None else len(panes)
        out["rows_held"] = state.rows("rows")
        used = self.buffered_bytes(state)
        out["buffered_bytes"] = used
        out["window_metadata_bytes"] = self.metadata_bytes(state)
        if "duration" in state.arrays:
            out["rate_bytes"] = self.rate_bytes(state)
            out["duration_ns"] = max(0, int(state.arrays["duration"].max(initial=0)))
        if self.memory is not None:
            out["memory_percent"] = 100 * used // self.memory.row_budget
            out["memory_level"] = list(Level).index(self.memory.level(used))
        return out

    def buffered_bytes(self, state: State) -> int:
        """Bytes of the rows that wait to be emitted.

        Args:
            state: of this stage.
        """
        rows = state.tables["rows"]
        return 0 if rows is None else int(rows.nbytes)

    def metadata_bytes(self, state: State) -> int:
        """Bytes of the open windows and their accumulators.

        Args:
            state: of this stage.
        """
        panes, slots = held_panes(state), held_slots(state)
        return (0 if panes is None else panes.nbytes) + (0 if slots is None else slots.nbytes)

    def rate_bytes(self, state: State) -> int:
        """Bytes in which adaptive windows keep the rate; 0 for other kinds.

        Args:
            state: of this stage.
        """
        if "duration" not in state.arrays:
            return 0
        return sum(state.arrays[name].nbytes for name in LaneState._fields[5:])

    # -- rows come --------------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        """Decide the rows of a collection, and return the panes, late rows and dropped rows of
        that.

        With deadlines by the wall clock, what is due at the wall time of the collection is emitted
        first.
        """
        return self._process(state, collection, _NO_INTS)

    def process_late(self, state: State, late: Late) -> list[Outcome]:
        """Rows the event-time stage found late: taken into windows where the policy says so, each
        judged by the watermark it was late for."""
        if self.late.takes_late_rows:
            marks = as_readonly(late.watermark_ns)
            return self._process(state, Collection(late.rows, late.time_ns, late.lane), marks)
        if self.late.rows is LateRows.ASIDE:
            return [late]
        count_rows(state, "late_count", late.lane)
        count_rows(state, "late_dropped_count", late.lane)
        why = pa.array(["late"] * len(late), pa.string())
        return [Dropped(late.rows, late.time_ns, late.lane, why)]

    def _process(self, state: State, collection: Collection, marks: Int64s) -> list[Outcome]:
        """`process`, for rows that come on time or late.

        Args:
            state: of this stage.
            collection: the rows.
            marks: the watermark each row was late for; empty for rows that come on time.
        """
        state.grow(int(collection.lane.max()) + 1)
        wall = self._wall(state, collection.wall_ns)
        out: list[Outcome] = []
        if self._has_deadlines or isinstance(self.window, Fixed):
            out += self.wake(state, wall)
        count_rows(state, "rows_in", collection.lane)
        rows = collection.rows
        plan = self.plan(rows.schema)
        if self.complete and self.keys:
            _learn_keys(state, plan, collection)
        if self.row_windows is not None:
            return out + self._process_row_windows(state, plan, collection, marks)
        n = rows.num_rows
        if plan.group_by and n > GROUPED_ROWS and not self.accepts_any_order:
            # Rows are decided one after the other, so cutting here changes nothing.
            for start in range(0, n, GROUPED_ROWS):
                part = slice(start, start + GROUPED_ROWS)
                piece = Collection(
                    rows.slice(start, GROUPED_ROWS),
                    collection.time_ns[part],
                    collection.lane[part],
                    collection.wall_ns,
                )
                out += self._decide_rows(state, plan, piece, marks[part], wall)
            return out
        return out + self._decide_rows(state, plan, collection, marks, wall)

    def _decide_rows(
        self, state: State, plan: OutputPlan, collection: Collection, marks: Int64s, wall: int
    ) -> list[Outcome]:
        """Decide rows one after the other, in as few kernel calls as there is room for.

        Args:
            state: of this stage.
            plan: of the rows.
            collection: the rows.
            marks: as for `_process`.
            wall: the wall time of the call.

        Returns:
            The emitted panes, then rows that joined no window.
        """
        out: list[Outcome] = []
        rows, n = collection.rows, collection.rows.num_rows
        given = self._kernel_rows(plan, collection, marks, wall)
        if plan.stats:
            size = plan.widened.field(len(plan.widened) - 1)
            rows = rows.append_column(size, pa.array(given.size))
        settings = self.kernel_settings(plan, wall)
        verdicts = Verdicts(np.zeros(n, np.int8), np.empty(n, np.int64))
        first = 0
        while first < n:
            decision, first = self._assign(state, plan, settings, rows, given, verdicts, first)
            late = None
            if plan.buffered and (verdicts.status == RowVerdict.PLACED_LATE).any():
                late = verdicts.status == RowVerdict.PLACED_LATE
            out += self._apply(state, plan, decision, Given(rows, collection.time_ns, late))
        return out + self._refused(state, collection, verdicts)

    def _kernel_rows(
        self, plan: OutputPlan, collection: Collection, marks: Int64s, wall: int
    ) -> KernelRows:
        """The collection as the kernels read it: conditions evaluated, sizes measured if a setting
        needs them, and for `Fixed` windows the wall time in place of the rows' own."""
        rows, times = collection.rows, collection.time_ns
        if isinstance(self.window, Fixed):
            times = np.full(rows.num_rows, wall, np.int64)
        sizes = as_readonly(row_bytes(rows, self.size_column)) if plan.sized else _NO_INTS
        holds = [condition_holds(f, rows, name) for name, f in self.program.predicates]
        opens = emits = _NO_FLAGS
        if isinstance(self.window, StateWindow):
            opens = as_readonly(condition_holds(self.window.open, rows, "open"))
            emits = as_readonly(condition_holds(self.window.emit, rows, "emit"))
        return KernelRows(
            as_readonly(collection.lane),
            as_readonly(times),
            sizes,
            as_readonly(np.stack(holds)) if holds else _NO_HOLDS,
            marks,
            _NO_INTS,
            opens,
            emits,
        )

    def _assign(
        self,
        state: State,
        plan: OutputPlan,
        settings: Settings,
        batch: pa.RecordBatch,
        rows: KernelRows,
        verdicts: Verdicts,
        first: int,
    ) -> tuple[WindowDecision, int]:
        """Let the kernel of this kind of window decide rows from `first` on.

        Args:
            state: of this stage.
            plan: of the rows.
            settings: of the call.
            batch: the rows, for the partitions of state windows.
            rows: the same as the kernels read them.
            verdicts: filled by the kernel.
            first: the row to begin with.

        Returns:
            What was decided, and the first row that is still to be decided.
        """
        n, lanes = len(rows.time) - first, kernel_lanes(state)
        if self.window.family is Family.ALIGNED:
            known = lanes.watermark[lanes.watermark != UNSET]
            edges = self.window.edges([rows.time, rows.mark, np.minimum(known, MAX_NS - 1) + 1])
            if edges is not None:
                settings = settings._replace(edges=edges)
        in_order = False
        if self.accepts_any_order and not plan.buffered and not plan.sized:
            # Runs of rows are best where one lane comes in order; else a pane per row
            # (`any_order.py`). The results are the same.
            mixed = bool(plan.group_by) or state.lanes > 1
            in_order = not mixed and seems_ascending(rows.time)
            if not in_order:
                decision = open_decision(state, settings, n, 1)
                decision.first, row_panes = first, np.empty(n, np.int32)
                done = _place_rows(first, rows, settings, lanes, decision.call, verdicts, row_panes)
                decision.row_panes = row_panes[: done - first]
                return decision.trimmed(), int(done)
        family = settings.family
        if family == Family.ALIGNED:
            copies = -(-settings.size // settings.step)
            expected = 0
            if in_order:  # at most, if they really are: the kernel stops early when there are more
                expected = int(rows.time[-1] - rows.time[first]) // settings.step + 2
                expected = max(expected, n >> 6, 1)
            decision = open_decision(state, settings, n, copies, expected=expected)
            assign = _assign_aligned
        elif family == Family.SESSION:
            decision, assign = open_decision(state, settings, n, 1), _assign_sessions
        else:
            part, held = self._partition_codes(state, batch)
            rows = rows._replace(part=as_readonly(part))
            decision = open_decision(state, settings, n, 1, held)
            assign = _assign_sequential
        done = assign(first, rows, settings, self.program.programs, lanes, decision.call, verdicts)
        decision.trimmed()
        if family == Family.STATE:
            decision.partitions = self._partition_columns(state, batch, decision)
        return decision, int(done)

    def _refused(self, state: State, collection: Collection, verdicts: Verdicts) -> list[Outcome]:
        """Rows that joined no window: late ones, and dropped ones with their reason."""
        status = verdicts.status
        if not status.any():
            return []
        out: list[Outcome] = []
        late = np.isin(status, (RowVerdict.PLACED_LATE, RowVerdict.DISCARDED, RowVerdict.ASIDE))
        count_rows(state, "late_count", collection.lane[late])
        aside = np.flatnonzero(status == RowVerdict.ASIDE)
        if len(aside):
            out.append(_late_rows(collection.take(aside), verdicts.behind[aside]))
            if self.late.lateness_ns:
                count_rows(state, "late_dropped_count", collection.lane[aside])
        for verdict, reason, counter in NOT_PLACED:
            which = np.flatnonzero(status == verdict)
            if len(which):
                gone = collection.take(which)
                count_rows(state, counter, gone.lane)
                why = pa.array([reason] * len(which), pa.string())
                out.append(Dropped(gone.rows, gone.time_ns, gone.lane, why))
        return out

    # -- time passes ------------------------------------------------------------------------------

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        """Move the watermarks of lanes, emit the windows that this completes, and hand watermarks
        on.

        A watermark never goes back. `Fixed` windows pass it on and emit nothing: they live in wall
        time.
        """
        state.grow(int(watermark.lane.max()) + 1)
        marks = state.arrays["watermark"]
        if isinstance(self.window, Fixed):  # event time means nothing to windows of wall time
            handed = state.arrays["handed"]
            np.maximum.at(handed, watermark.lane, watermark.time_ns)
            return [Watermark(handed[watermark.lane], watermark.lane)]
        before = marks.copy() if self.combines else None
        np.maximum.at(marks, watermark.lane, watermark.time_ns)
        out: list[Outcome] = []
        if self.row_windows is not None:
            out = self._advance_row_windows(state)
        elif self.window.closes_by_watermark:
            out = self._close(state, marks, before)
        return out + self._hand_on(state, watermark)

    def _close(
        self, state: State, watermark: Int64s, before: Int64s | None, wall: int = 0
    ) -> list[Outcome]:
        """Close what the watermark completes, per lane by end then start.

        Args:
            state: of this stage.
            watermark: the watermark of every lane.
            before: where overlapping windows are combined: the watermarks before this call; else
                None.
            wall: the wall time of the call; 0 where none is known.
        """
        held = held_panes(state)
        if held is None:
            return []
        lane = held["lane"]
        if before is not None:
            # A sub-window matters as long as the watermark moves through windows above it.
            order = np.flatnonzero(watermark[lane] > before[lane])
        else:
            # Spans are half-open, but a row exactly one gap later still belongs to a session.
            open_end = self.window.family is not Family.SESSION
            order = np.empty(len(held), np.int64)
            ends = (held["end"], held["on_time"])
            found = find_expired(lane, *ends, watermark, open_end, self.late.lateness_ns, order)
            order = order[:found]
        if len(order) == 0:
            return []
        if len(order) > 1:
            start, end = held["start"], held["end"]
            order = order[np.lexsort((start[order], end[order], lane[order]))]
        plan = self._plan_of(held.written)
        decision = open_decision(state, self.kernel_settings(plan, wall))
        state.touch(lane[order])
        if before is not None:
            combined = combine_sub_windows(
                decision.trimmed().call.panes, decision.settings, before, watermark,
                int(FiringReason.WATERMARK),
            )  # fmt: skip
            decision.alive = decision.call.panes.dead == 0
            return self._apply(state, plan, decision, None, combined)
        _close_panes(decision.call, decision.settings, order, watermark)
        decision.partitions = held.partitions
        return self._apply(state, plan, decision.trimmed(), None)

    def _hand_on(self, state: State, watermark: Watermark) -> list[Outcome]:
        """The watermark, held back while rows at or before it are still to leave."""
        lanes = watermark.lane if len(watermark.lane) == 1 else np.unique(watermark.lane)
        limit = state.arrays["watermark"].copy()
        held = held_panes(state)
        own_times = (
            not self.aggregates
            or self.window.family >= Family.EVERYTHING
            or self.timestamp != "end"
        )
        if held is not None and own_times:
            waiting = (held["fired"] == 0) & (held["rows"] > 0)
            if self.mode is not Accumulation.DISCARDING:  # its next pane has the old rows again
                waiting |= held["on_time"] == 0
            lane = held["lane"][waiting]
            np.minimum.at(limit, lane, held["first"][waiting] - 1)
        if self.row_windows is not None:
            self.row_windows.hold_back(state, limit)
        handed = state.arrays["handed"]
        limit = np.maximum(limit, handed)
        handed[lanes] = limit[lanes]
        lanes = lanes[limit[lanes] != UNSET]
        return [Watermark(limit[lanes], lanes.astype(np.int32))] if len(lanes) else []

    # -- deadlines --------------------------------------------------------------------------------

    def wake_at(self, state: State) -> int | None:
        """The wall time at which the next pane is due by `AfterTime`, a deadline or the end of a
        `Fixed` window; None if none is. Deadlines at or before the stage's clock have been tried by
        then: a trigger such as `AfterTime(...) & AfterCount(...)` need not have fired at its
        deadline."""
        held = held_panes(state)
        intervals = self._intervals()
        fixed = isinstance(self.window, Fixed)
        if held is None or not (intervals or fixed):
            return None
        waiting = (held["fired"] == 0) & (held["rows"] > 0)
        clock = state.arrays["clock"][held["lane"]]
        first = held["wall"]
        due = [first + interval for interval in intervals]
        if fixed:
            due.append(held["end"])
        times = [at[waiting & (at > clock)] for at in due]
        return min((int(at.min()) for at in times if len(at)), default=None)

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        """Emit what is due at `wall_ns`: `Fixed` windows that have ended, then panes whose triggers
        hold.

        Panes are emitted per lane in the order of their first rows' wall times.
        """
        wall = self._wall(state, wall_ns)
        out: list[Outcome] = []
        if isinstance(self.window, Fixed):
            marks = state.arrays["watermark"]
            np.maximum(marks, wall - 1, out=marks)
            out += self._close(state, marks, None, wall)
        held, intervals = held_panes(state), self._intervals()
        if held is None or not intervals:
            return out
        since = held["wall"]
        due = (held["fired"] == 0) & (wall - since >= min(intervals))
        order = np.flatnonzero(due & (held["rows"] > 0))
        if len(order) == 0:
            return out
        lane = held["lane"][order]
        serial = held["serial"][order]
        order = order[np.lexsort((serial, since[order], lane))]
        plan = self._plan_of(held.written)
        decision = open_decision(state, self.kernel_settings(plan, wall))
        longest = self.window.wall_deadline_ns
        programs = self.program.programs
        fire_due(decision.call, decision.settings, programs, order, _NO_HOLDS, longest)
        state.touch(lane)
        decision.partitions = held.partitions
        return out + self._apply(state, plan, decision.trimmed(), None)

    def resume(self, state: State, wall_ns: int) -> None:
        """Follow a clock that was set back: windows opened in what is the future now were opened
        now. A break alone changes nothing: what is overdue is emitted. `Fixed` windows are spans of
        the clock, which never runs back for them."""
        clock = state.arrays["clock"]
        if isinstance(self.window, Fixed) or int(clock.max(initial=UNSET)) <= wall_ns:
            return
        clock[:] = wall_ns
        held = held_panes(state)
        if held is None:
            return
        block = held.block.copy()  # tables that were made of it stay as they are
        hold_panes(state, replace(held, block=block))
        ahead = held["wall"] > wall_ns
        block[KEPT.index("wall"), ahead] = wall_ns
        state.touch(np.unique(held["lane"][ahead]))

    def _intervals(self) -> list[int]:
        """Wall times after its first row at which a pane may be due."""
        longest = self.window.wall_deadline_ns
        return [*self.program.intervals_ns, *([longest] if longest else [])]

    def _wall(self, state: State, wall_ns: int) -> int:
        """Wall time as this stage sees it: it never goes back, even if the machine's clock does."""
        clock = state.arrays["clock"]
        wall = max(wall_ns, int(clock.max(initial=UNSET)))
        clock[:] = wall
        return wall

    # -- the end, and emitting on request ---------------------------------------------------------

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        """Emit what the lanes still hold, as `shutdown` (`LookBack`: as `row`), and close it for
        good."""
        return self._end(state, lanes, FiringReason.SHUTDOWN)

    def forget(self, state: State, lanes: Int32s) -> list[Outcome]:
        """The same for keys that fell silent, as `forgotten` (`LookBack`: as `row`)."""
        return self._end(state, lanes, FiringReason.FORGOTTEN)

    def control(self, state: State, signal: ControlSignal) -> list[Outcome]:
        """`fire` emits what is open now as early panes; their windows go on."""
        if signal.name != "fire":
            return []
        return self.fire_open_windows(state, signal.lane, FiringReason.FIRE)

    def fire_open_windows(
        self, state: State, lanes: Int32s | None, reason: FiringReason
    ) -> list[Outcome]:
        """Emit what these lanes hold as early panes, without closing a window.

        Windows that only the watermark can emit (`combines`, `LookBack`) emit nothing: they have no
        early panes.

        Args:
            state: of this stage.
            lanes: which lanes; None: all.
            reason: why, in the output.
        """
        held = held_panes(state)
        if held is None or self.combines:
            return []
        lane = held["lane"]
        order = self._by_end(held, lanes)
        plan = self._plan_of(held.written)
        decision = open_decision(state, self.kernel_settings(plan, self._wall(state, 0)))
        _fire_panes(decision.call, decision.settings, order, int(reason))
        state.touch(lane[order])
        decision.partitions = held.partitions
        return self._apply(state, plan, decision.trimmed(), None)

    def _by_end(self, held: HeldPanes, lanes: Int32s | None) -> Int64s:
        """The open panes of these lanes (or all), per lane in the order in which they close."""
        lane = held["lane"]
        order = np.arange(len(held))
        if lanes is not None:
            order = np.flatnonzero(np.isin(lane, lanes))
        serial = held["serial"][order]
        start, end = held["start"][order], held["end"][order]
        if self.window.family >= Family.EVERYTHING:
            return order[np.lexsort((serial, lane[order]))]
        return order[np.lexsort((serial, start, end, lane[order]))]

    def _end(self, state: State, lanes: Int32s | None, reason: FiringReason) -> list[Outcome]:
        """Emit what these lanes (or all) still hold, and close it for good.

        Args:
            state: of this stage.
            lanes: which lanes; None: all.
            reason: why, in the output.
        """
        if self.row_windows is not None:
            return self._flush_row_windows(state, lanes)
        held = held_panes(state)
        if held is None:
            return []
        lane = held["lane"]
        order = self._by_end(held, lanes)
        plan = self._plan_of(held.written)
        decision = open_decision(state, self.kernel_settings(plan, 0))
        state.touch(lane[order])
        if self.combines:
            before = state.arrays["watermark"].copy()
            after = before.copy()
            after[lane[order]] = MAX_NS
            combined = combine_sub_windows(
                decision.trimmed().call.panes, decision.settings, before, after, int(reason)
            )
            decision.alive = decision.call.panes.dead == 0
            return self._apply(state, plan, decision, None, combined)
        fire_all(decision.call, decision.settings, order, int(reason))
        decision.ended = True
        decision.partitions = held.partitions
        return self._apply(state, plan, decision.trimmed(), None)

    def discard(self, state: State) -> dict[str, int]:
        """Forget all open windows. Their rows that were not emitted are counted in
        `discarded_count`.

        Returns:
            `discarded_rows`: how many rows were forgotten.
        """
        held = held_panes(state)
        gone = 0
        if held is not None:
            waiting = held["fired"] == 0
            counts = held["rows"][waiting]
            gone = int(counts.sum())
            column = state.arrays["counters"][:, COUNTERS.index("discarded_count")]
            np.add.at(column, held["lane"][waiting], counts)
        elif self.row_windows is not None:
            gone = self.row_windows.waiting(state)
        for name in state.tables:
            state.tables[name] = None
        return {"discarded_rows": gone}

    # -- a decision becomes state and output ------------------------------------------------------

    def _apply(
        self,
        state: State,
        plan: OutputPlan,
        decision: WindowDecision,
        given: Given | None,
        combined: SubWindows | None = None,
    ) -> list[Outcome]:
        """Move accumulators or rows as decided, emit what fired, write the state back.

        Args:
            state: of this stage.
            plan: of the rows that opened these windows.
            decision: of the kernel, trimmed.
            given: the rows it decided; None: no rows came.
            combined: overlapping windows to put together from their sub-windows.
        """
        retracting = self.mode is Accumulation.RETRACTING
        # First, so that the rows to take back are found under the window that stays.
        if retracting:
            _follow_merges(state, decision)
        decision.late_trigger = self.program.fires_late
        move = self._move_rows if plan.buffered else self._move_slots
        emits, made = move(state, plan, decision, given, combined)
        self._save(state, plan, decision)
        out: list[Outcome] = []
        if made is not None and emits is not None:
            count_rows(state, "windows_emitted", emits.lane)
            made = self._hide_unknown(state, emits, made)
            if retracting:
                made = retract(plan, state, emits, made)
            out = self._deliver(state, emits, made, decision.settings.wall)
        if retracting:
            _forget_sent(state, decision)
        if int(decision.call.totals.marks[0]):
            out.append(self._completions(state, plan, decision))
        return out

    def _completions(self, state: State, plan: OutputPlan, decision: WindowDecision) -> Side:
        """The rows of the side table `complete` for what this decision completed or closed."""
        marks = decision.call.marks[: int(decision.call.totals.marks[0])]
        closed = marks < 0
        which = np.where(closed, -1 - marks, marks)
        p, lateness = decision.call.panes, decision.settings.lateness
        ended = np.full(len(which), decision.ended)
        final = closed | ended | (lateness == 0)
        lane, start, end = p.lane[which], p.start[which], p.end[which]
        until = end - (self.window.family is not Family.SESSION) + lateness + 1
        columns: dict[str, Any] = {}
        texts = []
        if plan.keys:
            table = state.tables["keys"]
            assert table is not None
            row = np.zeros(state.lanes, np.int64)
            row[table.column(LANE).to_numpy()] = np.arange(table.num_rows)
            columns = {name: table.column(name).take(pa.array(row[lane])) for name in plan.keys}
            texts = [column.cast(pa.string()).fill_null("null") for column in columns.values()]
        ids = join_numbers([start, end, p.revision[which]])
        if texts:
            ids = pc.binary_join_element_wise(*texts, ids, "/")
        reason = np.where(ended, "end", np.where(closed, "expired", "watermark"))
        schema = self.side_schemas(plan.rows)["complete"]
        arrays = [
            *columns.values(),
            ids,
            pa.array(start),
            pa.array(end),
            pa.array(p.pane[which] + 1),
            pa.array(reason, pa.string()),
            pa.array(final),
            pa.array(until, mask=final),
        ]
        return Side(
            "complete", pa.RecordBatch.from_arrays(arrays, schema=schema), lane.astype(np.int32)
        )

    def _deliver(self, state: State, emits: Emits, made: Emitted, wall_ns: int) -> list[Outcome]:
        """Output rows as a collection, unless there are none: an empty window is never emitted."""
        lanes = emits.lane[made.emit].astype(np.int32)
        count_rows(state, "rows_emitted", lanes)
        if made.rows.num_rows == 0:
            return []
        return [Collection(made.rows, np.ascontiguousarray(made.time), lanes, wall_ns)]

    def _save(self, state: State, plan: OutputPlan, decision: WindowDecision) -> None:
        """Write the panes that live on back to the state."""
        self._plans.setdefault(plan.written, plan)
        if decision.alive.all():
            kept, parts = decision.block[:, : decision.n].copy(), decision.partitions
        else:
            which = np.flatnonzero(decision.alive)
            kept = decision.block[:, which]
            parts = {name: each.take(pa.array(which)) for name, each in decision.partitions.items()}
        hold_panes(state, HeldPanes(kept, plan.written, parts) if kept.shape[1] else None)

    def _plan_of(self, written: bytes) -> OutputPlan:
        """The plan of the rows that opened windows: their schema travels with the state.

        Args:
            written: the schema as bytes.
        """
        found = self._plans.get(written)
        if found is None:
            found = self.plan(pa.ipc.read_schema(pa.py_buffer(written)))
            self._plans[written] = found
        return found

    def _move_slots(
        self,
        state: State,
        plan: OutputPlan,
        decision: WindowDecision,
        given: Given | None,
        combined: SubWindows | None,
    ) -> tuple[Emits | None, Emitted | None]:
        """Accumulators: rows join, slots of fired panes are emitted.

        Args:
            state: of this stage; its table `slots` is replaced.
            plan: of the rows.
            decision: of the kernel, trimmed.
            given: the rows; None: none came.
            combined: overlapping windows to put together from their sub-windows; None elsewhere.

        Returns:
            The emissions and their rows; None, None where nothing was emitted.
        """
        held = held_slots(state)
        n_held = 0 if held is None else len(held)
        n, steps = decision.n, decision.call.steps
        at = _NO_INTS if held is None else decision.pane_of(held.keys)
        moves: Steps | RowSlots = steps
        if decision.row_panes is not None:
            moves = RowSlots(decision.row_panes, decision.first)
        # Without groups a slot is a pane, by the same number; with groups it is a (pane, group).
        total, code = 1, np.zeros(n, np.int64)
        if plan.group_by:
            slots_of, moves, total = _by_group(plan, held, at, decision, given)
            pane, code, held_at = slots_of.pane, slots_of.code, np.arange(n_held)
        else:
            pane, held_at = np.arange(n), np.full(decision.n_held, -1, np.int64)
            held_at[at] = np.arange(n_held)
        size = len(pane)
        owner = _NO_INTS
        if combined is not None:
            assert isinstance(moves, Steps)
            owner, merges = combined.slots(pane, code, size, total)
            moves = Steps(*(np.concatenate(pair) for pair in zip(moves, merges, strict=True)))
        slots = Accumulators(plan.slots, size + len(owner), held, held_at)
        rows, times = (None, _NO_INTS) if given is None else (given.rows, given.times)
        if isinstance(moves, RowSlots) or len(moves.what):
            slots.add(moves, rows, times)
        filled = slots.rows.n > 0
        emits: Emits | None = None
        made: Emitted | None = None
        if combined is not None:
            if len(combined.emits.lane):
                emits = combined.emits
                which = size + np.flatnonzero(filled[size:])
                made = emit_slots(plan, slots, emits, which, owner[which - size])
        elif len(decision.call.fires):
            emits = decision.emits()
            place = np.full(n, -1, np.int64)
            place[decision.call.fires] = np.arange(len(decision.call.fires))
            of = place[pane]
            which = np.flatnonzero((of >= 0) & filled[:size])
            made = emit_slots(plan, slots, emits, which, of[which])
        stay = np.flatnonzero(decision.keeps()[pane] & filled[:size])
        hold_slots(state, slots.store(stay, decision.keys[pane[stay]]) if len(stay) else None)
        return emits, made

    def _move_rows(
        self,
        state: State,
        plan: OutputPlan,
        decision: WindowDecision,
        given: Given | None,
        combined: SubWindows | None,
    ) -> tuple[Emits | None, Emitted | None]:
        """Buffered rows: new ones join, those of fired panes leave.

        A row that is in several windows is stored once per window. Arguments and result are those
        of `_move_slots`; the table is `rows`.
        """
        held = state.tables["rows"]
        owner = _NO_INTS if held is None else decision.pane_of(table_keys(held))
        steps, panes = decision.call.steps, decision.call.panes
        joining = np.flatnonzero(steps.what == Step.ROWS)
        if len(joining) and given is not None:
            number, step = ranges(steps.first[joining], steps.last[joining])
            pane = steps.pane[joining][step]
            late = np.zeros(len(number), np.bool_) if given.late is None else given.late[number]
            taken = take(given.rows, number)
            columns = {
                LANE: pa.array(panes.lane[pane].astype(np.int32)),
                SERIAL: pa.array(panes.serial[pane]),
                TIME: pa.array(given.times[number]),
                IS_LATE: pa.array(late),
            }
            new = pa.RecordBatch.from_arrays(
                [*taken.columns, *columns.values()], names=[*taken.schema.names, *columns]
            )
            held = concat([held, new])
            owner = np.concatenate([owner, pane])
        for into, gone in decision.merges():
            owner[owner == gone] = into
        if held is None:
            return None, None
        emits: Emits | None = None
        made: Emitted | None = None
        if combined is not None:
            if len(combined.emits.lane):
                emits = combined.emits
                made = emit_rows(plan, emits, held, *combined.rows(owner))
        elif len(decision.call.fires):
            emits = decision.emits()
            made = emit_rows(plan, emits, held, *_rows_of_fired(decision, owner))
        stay = decision.keeps()[owner]
        if decision.settings.accumulate:  # an earlier pane of a living window
            stay = np.isin(decision.keys, decision.keys[decision.alive])[owner]
        if not stay.any():
            state.tables["rows"] = None
        else:
            index = np.flatnonzero(stay)
            kept = held if len(index) == held.num_rows else held.take(pa.array(index))
            state.tables["rows"] = _with_serial(kept, panes.serial[owner[index]])
        return emits, made

    # -- partitions of state windows --------------------------------------------------------------

    def _partition_codes(self, state: State, rows: pa.RecordBatch) -> tuple[Int64s, Int64s | None]:
        """A number per partition of a state window: of the rows, and of the windows held."""
        columns = self._partition_values(state, rows)
        if not columns:
            return _NO_INTS, None
        codes = factorize(list(columns.values())).codes
        n = 0 if (held := held_panes(state)) is None else len(held)
        return codes[n:], codes[:n]

    def _partition_columns(
        self, state: State, rows: pa.RecordBatch, decision: WindowDecision
    ) -> dict[str, pa.Array]:
        """The partition values of every pane: of the table it came from, or of its first row."""
        steps = decision.call.steps
        row = np.arange(decision.n)
        first = np.full(decision.n, -1, np.int64)
        first[steps.pane[::-1]] = steps.first[::-1]
        row[decision.n_held :] = first[decision.n_held :] + decision.n_held
        values = self._partition_values(state, rows)
        return {name: column.take(pa.array(row)) for name, column in values.items()}

    def _partition_values(self, state: State, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The partition columns of the windows held and of the rows, one behind the other."""
        if not isinstance(self.window, StateWindow):
            return {}
        held, out = held_panes(state), {}
        for name in self.window.partition_by:
            parts = [] if held is None else [held.partitions[f"part:{name}"]]
            out[f"part:{name}"] = pa.concat_arrays([*parts, rows.column(name)])
        return out

    # -- a window per row -------------------------------------------------------------------------

    def _process_row_windows(
        self, state: State, plan: OutputPlan, collection: Collection, marks: Int64s
    ) -> list[Outcome]:
        """`LookBack`: judge the rows, then let each open (and perhaps emit) its window."""
        assert self.row_windows is not None
        out: list[Outcome] = []
        settings = self.kernel_settings(plan, 0)
        times, watermark = collection.time_ns, state.arrays["watermark"]
        status = np.zeros(len(times), np.int8)
        late = times <= watermark[collection.lane]
        if not self.late.takes_late_rows:
            aside = self.late.rows is LateRows.ASIDE
            status[late] = RowVerdict.ASIDE if aside else RowVerdict.DISCARDED
        else:
            count_rows(state, "late_count", collection.lane[late])
        status[(times < settings.earliest) | (times > settings.latest)] = RowVerdict.OUT_OF_RANGE
        out += self._refused(
            state, collection, Verdicts(status, watermark[collection.lane] - times)
        )
        kept = np.flatnonzero(status == RowVerdict.PLACED)
        if len(kept) == 0:
            return out
        if len(kept) < len(times):
            collection, late = collection.take(kept), late[kept]
        rows = collection.rows
        if plan.stats:
            size = plan.widened.field(len(plan.widened) - 1)
            rows = rows.append_column(size, pa.array(row_bytes(rows, self.size_column)))
        metadata = {ROWS_SCHEMA: plan.written}
        emits = self.row_windows.add(state, plan, collection, rows, late, metadata)
        return out + self._deliver_row_windows(state, emits, collection.wall_ns)

    def _advance_row_windows(self, state: State) -> list[Outcome]:
        """`LookBack`: emit the windows that the watermark has completed."""
        assert self.row_windows is not None
        held = state.tables["rows"]
        if held is None:
            return []
        emits = self.row_windows.advance(state, self._plan_of(_schema_of(held)))
        return self._deliver_row_windows(state, emits, 0)

    def _flush_row_windows(self, state: State, lanes: Int32s | None) -> list[Outcome]:
        """`LookBack`: emit every window of these lanes (None: all) that waits, and forget their
        rows."""
        assert self.row_windows is not None
        held = state.tables["rows"]
        if held is None:
            return []
        emits = self.row_windows.flush(state, self._plan_of(_schema_of(held)), lanes)
        return self._deliver_row_windows(state, emits, 0)

    def _deliver_row_windows(
        self, state: State, emitted: tuple[Emits, Emitted] | None, wall_ns: int
    ) -> list[Outcome]:
        """`LookBack`: count and deliver emissions, if there are any."""
        if emitted is None:
            return []
        emits, made = emitted
        count_rows(state, "windows_emitted", emits.lane)
        return self._deliver(state, emits, made, wall_ns)


# -- the state as kernels see it ------------------------------------------------------------------


def kernel_lanes(state: State) -> LaneState:
    """The arrays of the state that kernels read and write.

    Args:
        state: of the stage; arrays that its settings do not need are empty ones for the kernels.
    """
    arrays = state.arrays
    none = np.zeros(0, np.int64)
    found: list[NDArray[Any]] = [arrays.get(name, none) for name in LaneState._fields[:-1]]
    return LaneState._make([*found, arrays.get("duration", np.zeros(0))])


def open_decision(
    state: State,
    settings: Settings,
    rows: int = 0,
    copies: int = 1,
    parts: Int64s | None = None,
    expected: int = 0,
) -> WindowDecision:
    """The open panes of the state as arrays, with room for what `rows` rows may open.

    Args:
        state: of the stage.
        settings: of the call.
        rows: how many rows are to be decided; 0: none, and panes are not indexed.
        copies: in how many windows a row may be.
        parts: the partition of every pane the state holds, for state windows.
        expected: how many windows the rows are expected to open; 0: not known.
    """
    held = held_panes(state)
    n = 0 if held is None else len(held)
    new = min(rows, expected or NEW_PANES, NEW_PANES if rows > SMALL_CALL else NEW_PANES_SMALL)
    room = new * copies + copies + 8 if rows else 0
    block = np.empty((len(Panes._fields), n + room), np.int64)
    panes = Panes(*block)
    totals = Totals(*np.zeros((len(Totals._fields), 1), np.int64))
    totals.panes[0] = n
    if held is not None and n:
        block[: len(KEPT), :n] = held.block
        panes.part[:n] = 0 if parts is None else parts
        panes.timing[:n] = 0
        panes.dead[:n] = 0
        if settings.buffered:
            size = panes.bytes[:n] + panes.rows[:n] * settings.overhead
            if not settings.accumulate:
                size = size[panes.fired[:n] == 0]
            totals.used[0] = size.sum()
    lanes = state.lanes if rows else 0
    entries = 16
    while rows and entries < 2 * (n + room):
        entries *= 2
    call = Call(
        panes,
        totals,
        empty_steps(2 * room + 16),
        np.empty(n + room, np.int64),
        np.full(lanes, -1, np.int64),
        np.full(lanes, UNSET, np.int64),
        np.full(entries if rows else 0, -1, np.int64),
        np.empty(n + room, np.int64),
        np.zeros(STACK, np.int64),
        np.empty(2 * (n + room) if settings.complete else 0, np.int64),
    )
    if rows and n:
        order = np.arange(n)
        session = settings.family == Family.SESSION
        if session:  # chained by start, the latest first
            order = np.argsort(panes.start[:n], kind="stable")
        keys = panes.start if settings.family == Family.ALIGNED else panes.part
        link_panes(panes, order, call.head, call.table, keys, not session)
    return WindowDecision(call, settings, n, block[: len(KEPT)])


def _learn_keys(state: State, plan: OutputPlan, collection: Collection) -> None:
    """Keep the key columns of lanes seen for the first time in the state table `keys`."""
    known = state.arrays["keyed"]
    lanes, first = np.unique(collection.lane, return_index=True)
    new = ~known[lanes]
    if new.any():
        keys = take(collection.rows.select(list(plan.keys)), first[new])
        keys = keys.append_column(LANE, pa.array(lanes[new].astype(np.int32)))
        state.tables["keys"] = concat([state.tables["keys"], keys])
        known[lanes[new]] = True


def count_rows(state: State, name: str, lanes: NDArray[Any]) -> None:
    """Add to a counter, once for every lane named.

    Args:
        state: of the stage.
        name: one of `COUNTERS`.
        lanes: the lane of every row (or window) to count.
    """
    column = state.arrays["counters"][:, COUNTERS.index(name)]
    if state.lanes == 1:
        column[0] += len(lanes)
    elif len(lanes):
        seen = np.bincount(lanes)
        column[: len(seen)] += seen


def _late_rows(rows: Collection, behind: Int64s) -> Late:
    """Rows that are delivered as late, and by how many ns each was behind its watermark."""
    return Late(rows.rows, rows.time_ns, rows.lane, behind)


def _by_group(
    plan: OutputPlan,
    held: HeldSlots | None,
    at: Int64s,
    decision: WindowDecision,
    given: Given | None,
) -> tuple[Slots, Steps | RowSlots, int]:
    """All slots (those of the state first), the moves on slots, and how many groups there may be.

    Args:
        plan: of the rows.
        held: the slots of the state.
        at: the pane of each of them.
        decision: of the kernel.
        given: the rows.
    """
    if held is None and given is None:  # early panes have taken every row
        return no_slots(), decision.call.steps, 1
    columns = []
    for name in plan.group_by:
        parts = [] if held is None else [held.values[f"first:{name}"]]
        parts += [] if given is None else [given.rows.column(name)]
        columns.append(pa.concat_arrays(parts) if len(parts) != 1 else parts[0])
    codes, total = factorize(columns)
    n_held = len(at)
    old = no_slots()._replace(pane=at, code=codes[:n_held].copy())
    steps = decision.call.steps
    if decision.row_panes is not None:
        if decision.n * total <= DENSE:
            mine = as_readonly(codes[n_held + decision.first :])
            slots, slot = split_rows(decision.row_panes, mine, total, old, decision.n)
            return slots, RowSlots(slot, decision.first), total
        steps = as_steps(decision.row_panes, decision.first)
    slots, steps = split_groups(steps, as_readonly(codes[n_held:]), total, old, decision.n)
    return slots, steps, total


def _without_triggers(held: pa.RecordBatch) -> pa.RecordBatch:
    """Return open windows for a stage with other triggers: once-only ones start anew, and a window
    that a trigger has emitted stays emitted, by a `FORMER_TRIGGER`."""
    fired = held.column("fired").to_numpy()
    reasons = fired & ~np.int64((1 << MAX_LEAVES) - 1)
    reasons = np.where(fired == reasons, fired, reasons | FiringReason.FORMER_TRIGGER)
    for name, values in (("spent", np.zeros(held.num_rows, np.int64)), ("fired", reasons)):
        at = held.schema.get_field_index(name)
        held = held.set_column(at, held.schema.field(at), pa.array(values))
    return held


def _rows_of_fired(decision: WindowDecision, owner: Int64s) -> tuple[Int64s, Int64s]:
    """The rows of every fired pane: its own, or where panes accumulate all up to it.

    Args:
        decision: of the kernel.
        owner: the pane of every buffered row.

    Returns:
        Indices of rows, and beside each the number of its emission.
    """
    fired = decision.call.fires
    if not decision.settings.accumulate:
        by = np.argsort(owner, kind="stable")
        ranked = owner[by]
        first = np.searchsorted(ranked, fired)
        last = np.searchsorted(ranked, fired, "right")
    else:
        _, window = np.unique(decision.keys, return_inverse=True)
        place = window * np.int64(decision.n) + np.arange(decision.n)
        at = place[owner]
        by = np.argsort(at, kind="stable")
        ranked = at[by]
        first = np.searchsorted(ranked, window[fired] * np.int64(decision.n))
        last = np.searchsorted(ranked, place[fired], "right")
    index, emit = ranges(first, last)
    return by[index], emit


def _with_serial(rows: pa.RecordBatch, serial: Int64s) -> pa.RecordBatch:
    """The rows under the window they now belong to: sessions merge."""
    at = rows.schema.get_field_index(SERIAL)
    return rows.set_column(at, SERIAL, pa.array(np.ascontiguousarray(serial)))


def _follow_merges(state: State, decision: WindowDecision) -> None:
    """What was emitted of a session that became part of another is that one's to take back."""
    sent = state.tables["sent"]
    if sent is None:
        return
    panes = decision.call.panes
    lane, serial = sent.column(LANE).to_numpy(), sent.column(SERIAL).to_numpy().copy()
    for into, gone in decision.merges():
        serial[(lane == panes.lane[gone]) & (serial == panes.serial[gone])] = panes.serial[into]
    state.tables["sent"] = _with_serial(sent, serial)


def _forget_sent(state: State, decision: WindowDecision) -> None:
    """Emissions of windows closed for good can no longer be taken back."""
    sent = state.tables["sent"]
    if sent is None:
        return
    keep = np.isin(table_keys(sent), decision.keys[decision.alive])
    state.tables["sent"] = sent.filter(pa.array(keep)) if keep.any() else None


def _schema_of(table: pa.RecordBatch) -> bytes:
    """The schema of the rows of a state table, as bytes."""
    written: bytes = table.schema.metadata[ROWS_SCHEMA]
    return written
