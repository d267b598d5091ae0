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
                restore(blob) ─► invariants  a snapshot; then resume(wall_ns), or
                adopt(settings, version, state) ─► migrate, carry_over ─► invariants
                                             a state made with other settings or an older version

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
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from tidegate.core import snapshot
from tidegate.core.adoption import (
    STAGE_REMOVED,
    SettingChange,
    changed_settings,
    setting_difference,
)
from tidegate.core.columns import LANE, PREFIX, TIME
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Watermark,
)
from tidegate.core.state import Layout, State
from tidegate.errors import StateError, TidegateError

__all__ = [
    "Adopted",
    "Operator",
    "check_state",
    "left_behind",
    "operator_named",
    "plain_setting",
]


class Adopted(NamedTuple):
    """A state taken over from other settings, and what no longer fitted into it."""

    state: State
    """The state, in the layout of the settings that hold now."""
    outcomes: list[Outcome]
    """Rows that leave because of the change, each with its reason; they go to the next stage."""


class Operator(ABC):
    """A stage: frozen settings, and transitions over a state that it does not own.

    Subclasses are frozen dataclasses whose fields are their settings. They check them in
    `__post_init__` with `core.checks`.
    """

    name: ClassVar[str]
    """One word, used in snapshots, `explain()` and metrics. Unique among operators."""
    version: ClassVar[int] = 1
    """The version of the state. Raise it whenever the layout or its meaning changes, and write a
    `migrate` from the version before; a snapshot of a newer version is refused, never misread."""
    adopts: ClassVar[Mapping[str, str]] = {}
    """Settings that may change under a state, each with what the change does. See `adopt`."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Settings that may not, each with the reason: what in the state depends on it."""
    held_tables: ClassVar[tuple[str, ...]] = ("held",)
    """State tables whose rows wait to leave; `release` delivers them when the stage is removed."""

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
        """The stage runs again after a break, or the clock was set back. Timeouts that take silence
        for something start anew at `wall_ns`: nobody read the streams meanwhile. What must leave
        after a time at the latest is overdue, unless it came in what is the future now."""

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

    def check_input(self, rows: pa.Schema) -> None:  # noqa: B027  (most stages read no types)
        """Raise a ConfigError if a column has a type that this stage cannot read. Columns may be
        missing. Called by `schema`, and for rows that a restored state holds for this stage."""

    def notes(self, rows: pa.Schema) -> list[str]:
        """Sentences about settings that are allowed for these rows and probably not meant."""
        return []

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """The schemas of the side tables this stage delivers (`Side`), by name."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The config as plain JSON values: for `explain()`, and to match a snapshot with a plan."""
        config: Any = self
        return {f.name: plain_setting(getattr(self, f.name)) for f in fields(config) if f.init}

    def identity(self) -> dict[str, Any]:
        """What a snapshot must agree with to be restored: name, version and settings."""
        return {"name": self.name, "version": self.version, "config": self.settings()}

    # -- other settings, older versions -----------------------------------------------------------

    def adopt(self, old_settings: Mapping[str, Any], old_version: int, state: State) -> Adopted:
        """Take up a state that was made with other settings, or by an older version.

        Nothing that was decided before is decided again: the settings hold for what comes from now
        on, and a watermark never moves back. With the same settings and version nothing changes.

        Args:
            old_settings: `settings` of the operator that made the state. One that is missing there
                did not exist then, and had the effect of its default.
            old_version: its `version`.
            state: the state, in the layout of its maker. Untrusted, and given away: its arrays may
                be used again.

        Returns:
            The state in the layout of this operator, checked, and the rows that no longer fit into
            it, as outcomes with a reason.

        Raises:
            StateError: with a two-column difference of the settings that cannot be adopted; where
                there is no way from the old version; and where the state is damaged.

        Example:
            >>> from tidegate.eventtime import EventtimeWatermark
            >>> old, new = EventtimeWatermark("1 s"), EventtimeWatermark("5 s")
            >>> new.adopt(old.settings(), old.version, old.open()).outcomes
            []
            >>> other = EventtimeWatermark("1 s", source="device")
            >>> other.adopt(old.settings(), old.version, old.open())  # doctest: +ELLIPSIS
            Traceback (most recent call last):
                ...
            tidegate.errors.StateError: the state cannot be adopted with these settings:
              setting                       in the state  now
              eventtime_watermark: source   -             device  the newest times in the state ...
        """
        settings = dict(old_settings)
        try:
            for version in range(old_version, self.version):
                settings, state = self.migrate(version, settings, state)
            self.check_changes(settings, old_version)
            made = self.carry_over(self._with_defaults(settings), state)
        except StateError:
            raise
        except Exception as error:
            text = f"state of {self.name} is corrupt: {type(error).__name__}: {error}"
            raise StateError(text) from error
        check_state(self, made.state)
        return made

    def changes(self, old_settings: Mapping[str, Any]) -> list[SettingChange]:
        """The settings that differ from those of a state, each with the reason it is refused for,
        if it is. Needs no state, so that a run can be refused before it starts."""
        old = self._with_defaults(old_settings)
        new = self.settings()
        out = []
        for each in changed_settings(old, new, self.name):
            top = each.setting.partition(".")[0]
            out.append(each._replace(refusal=self.refusal(top, old.get(top), new.get(top))))
        return out

    def refusal(self, setting: str, was: Any, now: Any) -> str | None:
        """Why a setting cannot change from `was` to `now` (plain values) under a state; None: it
        can. The default looks it up in `adopts` and `refuses`."""
        if setting in self.adopts:
            return None
        return self.refuses.get(setting, "the state depends on it")

    def check_changes(self, old_settings: Mapping[str, Any], old_version: int) -> None:
        """Raise a StateError, with a difference in two columns, if a setting cannot be adopted, or
        if the state is of a newer version."""
        if old_version > self.version:
            raise StateError(
                f"state of {self.name}: version {old_version} is newer than the {self.version} "
                "this version reads; upgrade tidegate"
            )
        refused = [each for each in self.changes(old_settings) if each.refusal is not None]
        if refused:
            raise StateError(
                "the state cannot be adopted with these settings:\n"
                f"{setting_difference(refused, self.durations())}\n"
                "use the old values, or a new output and checkpoint"
            )

    def migrate(
        self, version: int, settings: dict[str, Any], state: State
    ) -> tuple[dict[str, Any], State]:
        """Bring settings and state of an older version one version further, to `version + 1`.

        Called by `adopt` once per version. An operator whose `version` is raised overrides it.

        Raises:
            StateError: there is no way; the default.
        """
        raise StateError(
            f"state of {self.name}: version {version} is older than {self.version} and has no "
            "migration; use a new output and checkpoint"
        )

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """Bring a state of this version, made with other settings, into the layout of this one.

        Called by `adopt` with settings that are all allowed to change. The default is for settings
        that no array depends on: it keeps the state as it is. Override it where a change moves
        something, and touch nothing else: the result for equal settings is the state unchanged.

        Args:
            old: the old settings, those that did not exist filled in with their defaults.
            state: the state in its old layout.

        Raises:
            StateError: the arrays or tables are not those of the layout.
        """
        return Adopted(state.conformed(self.layout(), self.name), [])

    @classmethod
    def release(cls, state: State, settings: Mapping[str, Any]) -> list[Outcome]:
        """Deliver what the state of a removed stage holds, as dropped rows with the reason
        `stage_removed`. A class method: of a stage that was removed there is only its state.

        Args:
            state: its state, untrusted.
            settings: the settings it was made with.

        Raises:
            StateError: a table lacks what it must have.
        """
        out: list[Outcome] = []
        for name in cls.held_tables:
            table = state.tables.get(name)
            if table is None or not table.num_rows:
                continue
            if TIME not in table.schema.names:
                raise StateError(f"state table {name} of {cls.name} has no times")
            time_ns = table.column(TIME).to_numpy()
            out.append(left_behind(table, time_ns))
        return out

    @classmethod
    def durations(cls) -> tuple[str, ...]:
        """The settings that are spans of time, in nanoseconds: for messages."""
        config: Any = cls
        return tuple(f.name for f in fields(config) if f.init and "Duration" in str(f.type))

    def _with_defaults(self, old: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a state; those that did not exist then have the value of their default."""
        config: Any = self
        out = dict(old)
        for f in fields(config):
            if not f.init or f.name in out:
                continue
            default: Any = f.default
            if f.default_factory is not MISSING:
                default = f.default_factory()
            if default is MISSING:
                continue
            try:  # as a stage with this default would write it
                out[f.name] = replace(config, **{f.name: default}).settings()[f.name]
            except TidegateError:
                out[f.name] = plain_setting(default)
        return out

    # -- states -----------------------------------------------------------------------------------

    def open(self, lanes: int = 1) -> State:
        """A new, empty state."""
        return State(self.layout(), lanes)

    def snapshot(self, state: State) -> bytes:
        """The state as bytes; `restore` gives it back, or a StateError."""
        return snapshot.encode([(self.identity(), state)], {})

    def restore(self, blob: bytes) -> State:
        """The reverse of `snapshot`, also of one that an older version has made. Nothing is
        restored in part. Other settings are refused: `adopt` takes them up."""
        found = snapshot.identities(blob)
        if found is not None and len(found) == 1 and self.reads_older(found[0]):
            stages, _ = snapshot.read_stages(blob, [(self.identity(), self.layout())])
            return self.adopt(stages[0].settings, stages[0].version, stages[0].state).state
        states, _ = snapshot.decode(blob, [(self.identity(), self.layout())])
        check_state(self, states[0])
        return states[0]

    def reads_older(self, identity: Mapping[str, Any]) -> bool:
        """Whether an identity is that of this very stage in an older version: an older state, or
        settings that lack what was added since and is at its default now."""
        if identity["name"] != self.name or identity == self.identity():
            return False
        if identity["version"] > self.version:
            return False
        try:
            return identity["version"] < self.version or not self.changes(identity["config"])
        except StateError:
            raise
        except Exception as error:
            # Settings that no version of ours has written.
            text = f"state of {self.name} is corrupt: {type(error).__name__}: {error}"
            raise StateError(text) from error


def left_behind(table: pa.RecordBatch, time_ns: Int64s, reason: str = STAGE_REMOVED) -> Dropped:
    """Rows of a state table as dropped ones: our columns are taken off.

    Args:
        table: rows with the column LANE.
        time_ns: the event time of each.
        reason: why they leave.
    """
    own = [name for name in table.schema.names if not name.startswith(PREFIX)]
    why = pa.array([reason] * table.num_rows, pa.string())
    return Dropped(table.select(own), time_ns, table.column(LANE).to_numpy(), why)


def operator_named(name: str) -> type[Operator]:
    """The class of operators of this name, among those that are imported; `Operator` itself, which
    releases what is in a table `held`, if there is none."""
    waiting: list[Any] = [Operator]
    while waiting:
        found = waiting.pop()
        if getattr(found, "name", None) == name:
            return found  # type: ignore[no-any-return]
        waiting += found.__subclasses__()
    return Operator


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


def plain_setting(value: Any) -> Any:
    """The plain JSON value that stands for a setting: numbers, texts, lists and mappings. A value
    of its own class is its name and its own settings."""
    if isinstance(value, (list, tuple)):
        return [plain_setting(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_setting(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return value.value
    # An inherited name would not tell two subclasses apart.
    own = {**vars(type(value)), **getattr(value, "__dict__", {})}.get("name")
    name = own if isinstance(own, str) and own else type(value).__name__
    if hasattr(value, "settings"):
        return {"name": name, **value.settings()}
    if is_dataclass(value) and not isinstance(value, type):
        # What is left out of its repr (a function, whose address changes) is no setting.
        shown = [f.name for f in fields(value) if f.init and f.repr]
        return {"name": name, **{each: plain_setting(getattr(value, each)) for each in shown}}
    return repr(value)
