"""Operators one behind the other.

    process / advance ─► stage 0 ─► stage 1 ─► ... ─► out
                           │ data, late rows and watermarks go to the next stage,
                           │ in the order in which they were returned
                           └ errors, dropped rows and side tables go out at once

Everything a call implies comes out of that call: each outcome of a stage is pushed through all
later stages before the next one is looked at, so the order between data, late rows and watermarks
is kept from end to end.

Every stage is counted at its borders (`StageCounts`), so that what a run says adds up: a row that
entered a stage left it as data, late, error or dropped, was used up in something else (a set, a
window), or is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tidegate.core.adoption import SettingChange, StageMatch, match_stages, setting_difference
from tidegate.core.columns import PREFIX
from tidegate.core.operator import Operator, operator_named
from tidegate.core.outcomes import Collection, ControlSignal, End, Int32s, Late, Outcome, Watermark
from tidegate.core.snapshot import FoundStage
from tidegate.core.state import State
from tidegate.errors import ConfigError, ContractError, StateError

__all__ = ["Chain", "StageCounts", "check_time", "stage_labels"]

STAGE_COUNTERS = ("rows_in", "late_in", "rows_out", "late_out", "error_out", "dropped_out",
                  "discarded_count")  # fmt: skip
"""The names in `StageCounts`."""

StageCounts = dict[str, int]
"""Rows that crossed the borders of one stage: `rows_in` and `late_in` came, `rows_out`, `late_out`,
`error_out` and `dropped_out` left, `discarded_count` were held when the stream ended quickly."""


def stage_labels(names: Sequence[str]) -> tuple[str, ...]:
    """Return a name per stage, all different; metrics of stages begin with them.

    >>> stage_labels(["eventtime_watermark", "window", "window"])
    ('eventtime_watermark', 'window', 'window_2')
    """
    return tuple(
        name if (number := names[:at].count(name)) == 0 else f"{name}_{number + 1}"
        for at, name in enumerate(names)
    )


@dataclass(frozen=True)
class Chain:
    """Operators one behind the other. Data, late rows and watermarks go on; all else goes out.

    The stages are adapted to each other: none buffers rows for a stage that accepts them in any
    order, and late rows come between the data where a later stage needs that.
    """

    stages: tuple[Operator, ...]

    def __post_init__(self) -> None:
        stages = [
            a.without_buffering() if b.accepts_any_order else a for a, b in pairwise(self.stages)
        ]
        stages += self.stages[-1:]
        ordered = False
        for number in reversed(range(len(stages))):
            if ordered:
                stages[number] = stages[number].with_late_in_order()
            ordered = ordered or stages[number].needs_late_in_order
        object.__setattr__(self, "stages", tuple(stages))

    @property
    def labels(self) -> tuple[str, ...]:
        """A name per stage, all different: the second `window` is `window_2`."""
        return stage_labels([stage.name for stage in self.stages])

    def open(self, lanes: int = 1) -> list[State]:
        """New, empty states, one per stage."""
        return [stage.open(lanes) for stage in self.stages]

    def open_counts(self) -> list[StageCounts]:
        """Counters to be passed to the calls below, one per stage, all zero."""
        return [dict.fromkeys(STAGE_COUNTERS, 0) for _ in self.stages]

    # -- calls: each takes the states and, if rows are to be counted, the counters ----------------

    def process(
        self, states: Sequence[State], collection: Collection, counts: Counts = None
    ) -> list[Outcome]:
        """Rows came: through all stages."""
        return self._push(states, 0, [collection], counts)

    def advance(
        self, states: Sequence[State], watermark: Watermark, counts: Counts = None
    ) -> list[Outcome]:
        """Time has passed: through all stages."""
        return self._push(states, 0, [watermark], counts)

    def wake_at(self, states: Sequence[State]) -> int | None:
        """The wall time of the earliest deadline of any stage."""
        due = [s.wake_at(state) for s, state in zip(self.stages, states, strict=True)]
        return min((at for at in due if at is not None), default=None)

    def wake(self, states: Sequence[State], wall_ns: int, counts: Counts = None) -> list[Outcome]:
        """Deadlines up to `wall_ns` are due: stage by stage, each through the later ones."""
        out: list[Outcome] = []
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.wake(states[number], wall_ns), counts)
        return out

    def resume(self, states: Sequence[State], wall_ns: int) -> None:
        """The chain runs again after a break."""
        for stage, state in zip(self.stages, states, strict=True):
            stage.resume(state, wall_ns)

    def control(
        self, states: Sequence[State], signal: ControlSignal, counts: Counts = None
    ) -> list[Outcome]:
        """Hand a signal to every stage. The end flushes (gracefully) or discards (quickly)."""
        out: list[Outcome] = []
        if signal.name == "end" and signal.value is End.QUICK:
            for number, (stage, state) in enumerate(zip(self.stages, states, strict=True)):
                held = int(stage.metrics(state).get("rows_held", 0))
                stage.discard(state)
                if counts is not None:
                    counts[number]["discarded_count"] += held
            return out
        if signal.name == "end":
            return self.flush(states, signal.lane, counts)
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.control(states[number], signal), counts)
        return out

    def flush(
        self, states: Sequence[State], lanes: Int32s | None = None, counts: Counts = None
    ) -> list[Outcome]:
        """The stream ends: flush the first stage through the rest, then the second, and so on."""
        out: list[Outcome] = []
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.flush(states[number], lanes), counts)
        return out

    def forget(
        self, states: Sequence[State], lanes: Int32s, counts: Counts = None
    ) -> list[Outcome]:
        """The keys of these lanes are forgotten: like `flush`, with reasons that say so."""
        out: list[Outcome] = []
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.forget(states[number], lanes), counts)
        return out

    # -- states that were restored ----------------------------------------------------------------

    def check_held(self, states: Sequence[State]) -> None:
        """Check that the rows which restored states hold can be read by the stage they will go to.

        Raises:
            StateError: they have a column of a type that no run of this chain has let pass.
        """
        for number, (stage, behind) in enumerate(pairwise(self.stages)):
            for name in stage.held_tables:
                held = states[number].tables.get(name)
                if held is None:
                    continue
                own = [field for field in held.schema if not field.name.startswith(PREFIX)]
                try:
                    leaves = stage.schema(pa.schema(own))
                except (ConfigError, KeyError):
                    continue  # they lack a column: not for this check
                try:
                    behind.check_input(leaves)
                except ConfigError as error:
                    text = f"state of {stage.name} is corrupt: it holds rows with {error}"
                    raise StateError(text) from error

    # -- states of other settings -----------------------------------------------------------------

    def identities(self) -> list[dict[str, Any]]:
        """Name, version and settings of every stage: what a state of this chain records."""
        return [stage.identity() for stage in self.stages]

    def changes(self, identities: Sequence[Mapping[str, Any]]) -> list[SettingChange]:
        """The settings of stages in a state that differ now, refused ones with their reason.

        Args:
            identities: the stages of the state, as from `identities`.

        Raises:
            StateError: the stages stand in another order.
        """
        kept = self._matched(identities).kept
        out: list[SettingChange] = []
        for stage, found in zip(self.stages[:kept], identities, strict=False):
            out += stage.changes(found["config"])
        return out

    def check_adoption(self, identities: Sequence[Mapping[str, Any]]) -> StageMatch:
        """Check, before anything runs, that a state of these stages can be adopted.

        Args:
            identities: the stages of the state, as from `identities`.

        Returns:
            Which stages are kept, removed and appended.

        Raises:
            StateError: with all settings that cannot change in two columns; for stages in another
                order; for a state of a newer version.
        """
        match = self._matched(identities)
        refused: list[SettingChange] = []
        spans: list[str] = []
        for stage, found in zip(self.stages[: match.kept], identities, strict=False):
            if found["version"] > stage.version:
                stage.check_changes(found["config"], found["version"])
            elif found["version"] == stage.version:  # an older one is compared when migrated
                refused += [each for each in stage.changes(found["config"]) if each.refusal]
                spans += stage.durations()
        if refused:
            raise StateError(
                "the state cannot be adopted with these settings:\n"
                f"{setting_difference(refused, spans)}\n"
                "use the old values, or a new output and checkpoint"
            )
        return match

    def adopt(
        self, found: Sequence[FoundStage], lanes: int, counts: Counts = None
    ) -> tuple[list[State], list[Outcome]]:
        """Take up the states of other settings, older versions, or other stages at the end.

        Args:
            found: the stages of the state, in order.
            lanes: how many lanes they have.
            counts: counters for the rows that leave.

        Returns:
            A state per stage of this chain, and what leaves: first what removed stages held, then
            what no longer fits into a kept one, run through the stages behind it.

        Raises:
            StateError: see `Operator.adopt` and `adoption.match_stages`.
        """
        match = self.check_adoption([stage.identity for stage in found])
        made = [
            stage.adopt(old.settings, old.version, old.state)
            for stage, old in zip(self.stages[: match.kept], found, strict=False)
        ]
        states = [each.state for each in made]
        states += [stage.open(lanes) for stage in self.stages[match.kept :]]
        self.check_held(states)
        out: list[Outcome] = []
        for old in found[match.kept :]:
            out += operator_named(old.name).release(old.state, old.settings)
        for number, each in enumerate(made):
            out += self._push(states, number + 1, each.outcomes, counts)
        return states, out

    def _matched(self, identities: Sequence[Mapping[str, Any]]) -> StageMatch:
        """Which stages of a state are those of this chain."""
        return match_stages(
            [each["name"] for each in identities], [stage.name for stage in self.stages]
        )

    # -- what can be told without running ----------------------------------------------------------

    def metrics(self, states: Sequence[State]) -> dict[str, int | float]:
        """The metrics of all stages, each behind the label of its stage."""
        out: dict[str, int | float] = {}
        for label, stage, state in zip(self.labels, self.stages, states, strict=True):
            out |= {f"{label}.{key}": value for key, value in stage.metrics(state).items()}
        return out

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The schema of the data that leaves, given that of the rows that come."""
        for stage in self.stages:
            rows = stage.schema(rows)
        return rows

    def input_columns(self) -> frozenset[str] | None:
        """The input columns that data is made of; None if it may be all of them. Rows that are
        refused leave whole, so this is only of use to a caller who wants nothing but data."""
        names: frozenset[str] = frozenset()
        for stage in self.stages:
            read = stage.input_columns()
            if read is None:
                return None
            names |= read
            if stage.outputs_only_read_columns:
                return names
        return None

    def decision_columns(self) -> frozenset[str] | None:
        """The input columns that any stage looks at; None if it may be all of them. The others are
        payload: rows may come without them and be given them when they leave."""
        names: frozenset[str] = frozenset()
        for stage in self.stages:
            read = stage.input_columns()
            if read is None:
                return None
            names |= read
            if stage.outputs_only_read_columns:
                break
        return names

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """Every side table of the chain. Two stages that share a name must share its schema."""
        out: dict[str, pa.Schema] = {}
        for stage in self.stages:
            for name, schema in stage.side_schemas(rows).items():
                if name in out and not out[name].equals(schema):
                    raise ContractError(f"two stages deliver different tables called {name}")
                out[name] = schema
            rows = stage.schema(rows)
        return out

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        """The values that settings expect to find in columns of the input, by column."""
        out: dict[str, tuple[str, ...]] = {}
        for stage in self.stages:
            for column, names in stage.expected_names().items():
                out[column] = tuple(dict.fromkeys((*out.get(column, ()), *names)))
            if stage.outputs_only_read_columns:
                break
        return out

    def _push(
        self,
        states: Sequence[State],
        number: int,
        items: Iterable[Outcome],
        counts: Counts,
    ) -> list[Outcome]:
        """Run `items`, which leave stage `number - 1`, through stage `number` and those behind."""
        out: list[Outcome] = []
        for item in items:
            if counts is not None and number > 0:
                name = _LEAVES.get(item.kind)
                if name is not None:
                    counts[number - 1][name] += len(item.lane)
            if number == len(self.stages) or not isinstance(item, (Collection, Late, Watermark)):
                out.append(item)
                continue
            rows = len(item.lane)
            if rows == 0:
                continue
            state = states[number]
            top = int(item.lane.max()) + 1
            if top > state.lanes:
                state.grow(top)
            state.touch(item.lane)
            stage = self.stages[number]
            if isinstance(item, Collection):
                if counts is not None:
                    counts[number]["rows_in"] += rows
                made = stage.process(state, item)
            elif isinstance(item, Late):
                if counts is not None:
                    counts[number]["late_in"] += rows
                made = stage.process_late(state, item)
            else:
                made = stage.advance(state, item)
            out += self._push(states, number + 1, made, counts)
        return out


Counts = Sequence[StageCounts] | None

_LEAVES = {
    "data": "rows_out",
    "late": "late_out",
    "error": "error_out",
    "dropped": "dropped_out",
}


def check_time(stages: Sequence[Operator], has_time: bool, add: str) -> None:
    """Refuse a chain in which a stage needs the time of rows and nothing gives it.

    `has_time` says whether rows come with a time of their own. `add` is the line a user has to add;
    it ends the sentence of the `ConfigError`. Called by `Flow`, `frames` and the planner: no run
    ever has all stamps 0.

    >>> from tidegate.eventtime import EventtimeWatermark, ProcessTimeWatermark
    >>> check_time([EventtimeWatermark()], True, "")
    >>> check_time([ProcessTimeWatermark()], False, "")
    >>> check_time([EventtimeWatermark()], False, 'add .event_time(type="iso8601")')
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: EventtimeWatermark needs the time of each row, and none is \
declared: add .event_time(type="iso8601")
    """
    for stage in stages:
        if stage.needs_time and not has_time:
            text = f"{type(stage).__name__} needs the time of each row, and none is declared: {add}"
            raise ConfigError("time", None, add, message=text)
        has_time = has_time or stage.gives_time
