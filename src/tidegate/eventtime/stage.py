"""The event-time watermark: rows leave in order of their own time, late ones as late.

Clock policy: event time decides order and lateness. Wall time (`collection.wall_ns`, `wake`)
decides only whether a source has gone idle and, if asked to, what is too far in the future.

A watermark W is inclusive: after it no row with time <= W leaves this stage as data.

How a collection goes through (`process`):

    suspects of earlier calls + new rows ──► rules.admit_rows ──► a verdict per row
        accepted  joined with the rows held; those the watermark has passed leave, sorted by
                  (time, arrival); the others are held, in the table `held`
        late      leave as `Late`, each with the watermark it was judged against
        suspect   wait in the table `suspects` for the rows that follow
        skewed, no slot   leave as `StreamError`
    then the watermark, for every lane where it moved

What leaves comes in the order data, watermark, late, errors. A stage that acts on late rows asks
for another order (`Operator.needs_late_in_order`): every late row then comes behind all data up to
the watermark that made it late, behind that watermark, and before all later data. That is the order
in which rows leave if every row is a collection of its own, so such stages obey the cut law.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core import checks
from tidegate.core.arrow import concat, present, take
from tidegate.core.columns import AGAINST, LANE, TIME, TIME_NS
from tidegate.core.lazy_rows import LazyRows, some_rows
from tidegate.core.numba import all_readonly, as_readonly
from tidegate.core.operator import Adopted, Operator
from tidegate.core.outcomes import (
    Collection,
    Int32s,
    Int64s,
    Late,
    Outcome,
    StreamError,
    Watermark,
)
from tidegate.core.sort import arrange
from tidegate.core.state import Column, Layout, State, require_int64
from tidegate.core.text import span
from tidegate.core.time import MAX_NS, UNSET, Duration, format_duration
from tidegate.eventtime.rules import (
    ArrivalVerdict,
    ArrivingRows,
    Decisions,
    Lanes,
    Rules,
    Skew,
    admit_rows,
    admit_single_source,
    settle_all,
)

__all__ = ["EventtimeWatermark"]

_COPY_BELOW = 4
"""If less than one row in this many leaves, the leaving rows are copied at once: as lazy rows they
would keep all that is held in memory, and the next stage would have to read through it."""


@dataclass(frozen=True)
class EventtimeWatermark(Operator):
    """Holds rows back for `late_tolerance` and hands them on in order of event time, per key.

    Args:
        late_tolerance: How far (event time) a row may be behind the newest of its key without being
            late. The watermark stands this far behind the newest time; a row at or below the
            watermark is late. Default 0: rows leave at once, and a row older than the newest is
            late. Larger values hold more rows and delay results by as much.
        late: What happens to a late row. `"side_output"` (default) delivers it as `Late` with its
            lateness and the watermark that made it late; `"drop"` only counts it.
        watermark_per: `"tuple"` (default) moves the watermark with every row, so that results do
            not depend on how input was cut into collections. `"collection"` judges a whole
            collection against the watermark before it: fewer late rows, but which ones depends on
            the cut.
        max_future_skew: A row further ahead than this is suspect and does not move time: one broken
            clock must not make all other rows late. Default None: every row is believed. Too small
            a value makes errors of good rows after a pause in the stream; choose it well above the
            pauses.
        skew_against: Ahead of what: `"rows"` (default), the newest row of the same source so far,
            or `"clock"`, the wall clock of the collection.
        skew_confirm: Against rows: this many suspects in a row that agree with each other (within
            `max_future_skew`) are believed, and all of them leave as data: the stream has really
            moved on. Default 10. Suspects that are not confirmed leave as errors. At most this many
            rows per key are held for it. 1 believes every row.
        source: A column that names the partition, file or device a row came from. Each has a
            watermark of its own, and the key's is the lowest of those not idle. Default None: one
            source per key.
        max_sources: How many sources a key may have (default 16; state is reserved for all of
            them). Rows of further ones leave as errors.
        idle_timeout: A source unseen for longer than this (wall time) is not waited for; when all
            are idle, everything held is released. Default None: sources are waited for without
            limit.
        hold: False hands rows on as they come, late ones still aside, and lets only the watermark
            say what is complete. Default True. `Chain` turns it off where the next stage accepts
            rows in any order.
        late_in_order: True hands late rows on between data and watermarks, see the module's head.
            Default False, because it makes many small collections. `Chain` turns it on where a
            later stage needs it.

    Raises:
        ConfigError: a value that is none of these.

    Example:
        >>> import pyarrow as pa
        >>> stage = EventtimeWatermark(late_tolerance=1000)
        >>> state = stage.open()
        >>> rows = pa.record_batch({"id": ["c", "a", "b"]})
        >>> out = stage.process(state, Collection.of(rows, np.array([3000, 2001, 1000])))
        >>> [(o.kind, o.time_ns.tolist()) for o in out]
        [('watermark', [2000]), ('late', [1000])]
        >>> stage.flush(state)[0].rows.column("id").to_pylist()
        ['a', 'c']
    """

    late_tolerance: Duration = 0
    late: Literal["side_output", "drop"] = "side_output"
    watermark_per: Literal["collection", "tuple"] = "tuple"
    max_future_skew: Duration | None = None
    skew_against: Literal["rows", "clock"] = "rows"
    skew_confirm: int = 10
    source: str | None = None
    max_sources: int = 16
    idle_timeout: Duration | None = None
    hold: bool = True
    late_in_order: bool = False

    name: ClassVar[str] = "eventtime_watermark"
    version: ClassVar[int] = 2
    adopts: ClassVar[Mapping[str, str]] = {
        "late_tolerance": "holds for rows from then on; the watermark stays until it may move",
        "late": "holds for rows from then on",
        "watermark_per": "holds from the next collection on",
        "max_future_skew": "holds for rows from then on; turned off, suspects leave as errors",
        "skew_against": "holds for rows from then on; suspects by rows leave as errors",
        "skew_confirm": "holds from the next suspect on",
        "max_sources": "may grow: further sources get a watermark of their own",
        "idle_timeout": "holds from then on; idle sources stay idle until their next row",
        "hold": "set by the chain; turned off, held rows go to the next stage at once",
        "late_in_order": "set by the chain",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "source": "the newest times in the state are those of the old sources",
    }
    held_tables: ClassVar[tuple[str, ...]] = ("held", "suspects")

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        checks.one_of("late", self.late, ("side_output", "drop"))
        checks.one_of("watermark_per", self.watermark_per, ("collection", "tuple"))
        checks.one_of("skew_against", self.skew_against, ("rows", "clock"))
        checks.boolean("hold", self.hold)
        checks.boolean("late_in_order", self.late_in_order)
        put("late_tolerance", checks.duration("late_tolerance", self.late_tolerance))
        if self.max_future_skew is not None:
            put("max_future_skew", checks.duration("max_future_skew", self.max_future_skew))
        if self.idle_timeout is not None:
            put("idle_timeout", checks.duration("idle_timeout", self.idle_timeout, 1))
        if self.source is not None:
            put("source", checks.names("source", [self.source])[0])
        put("skew_confirm", checks.int_in("skew_confirm", self.skew_confirm, 1))
        put("max_sources", checks.int_in("max_sources", self.max_sources, 1))

    def layout(self) -> Layout:
        """The state: watermark and suspects per lane; time, wall time and idleness per slot of a
        source; counters. Tables: `held`, rows the watermark has not passed, and `suspects`."""
        slots = 1 if self.source is None else self.max_sources
        count = Column(np.int64, merge="sum")
        return Layout(
            {
                "watermark": Column(np.int64, fill=UNSET),
                "newest": Column(np.int64, (slots,), UNSET),
                "source": Column(np.int64, (slots,)),
                "wall": Column(np.int64, (slots,), UNSET),
                "idle": Column(np.int8, (slots,)),
                "suspect_time": Column(np.int64),
                "suspect_count": Column(np.int64),
                "late_count": count,
                "skewed_count": count,
                "no_slot_count": count,
                "discarded_count": count,
                "watermark_count": count,
                "max_lateness": Column(np.int64, merge="max"),
            },
            tables=("held", "suspects"),
        )

    def invariants(self, state: State) -> None:
        """The tables hold a time per row, and suspects what they were compared with: all that
        kernels read by position comes from there."""
        require_int64(state, "held", TIME)
        require_int64(state, "suspects", TIME, AGAINST)

    def refusal(self, setting: str, was: Any, now: Any) -> str | None:
        if setting == "max_sources" and self.source is not None and now < was:
            return "sources beyond the new number have watermarks of their own"
        return super().refusal(setting, was, now)

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """Suspects leave as errors where rows are no longer compared with each other, held rows go
        on where nothing is held any more, and new slots for sources start free."""
        outcomes: list[Outcome] = []
        if self._rules.skew_mode != Skew.ROWS and state.rows("suspects"):
            outcomes += self._flush_suspects(state, None)
        if not self.hold and state.rows("held"):
            held = _cut_out(state, "held", None)
            lane, time, payload = _held_and_new(held, None)
            outcomes.append(Collection(payload, time, lane))
        layout = self.layout()
        for name in ("newest", "source", "wall", "idle"):
            column, found = layout.arrays[name], state.arrays[name]
            if found.ndim == 2 and found.shape[1] < column.shape[0]:
                grown = np.full((state.lanes, *column.shape), column.fill, column.dtype)
                grown[:, : found.shape[1]] = found
                state.arrays[name] = grown
        return Adopted(state.conformed(layout, self.name), outcomes)

    @property
    def needs_time(self) -> bool:
        return True

    def input_columns(self) -> frozenset[str] | None:
        return frozenset() if self.source is None else frozenset({self.source})

    def without_buffering(self) -> Operator:
        return replace(self, hold=False)

    def with_late_in_order(self) -> Operator:
        return replace(self, late_in_order=True)

    def uses_wall_time(self) -> bool:
        return self.idle_timeout is not None or self._rules.skew_mode == Skew.CLOCK

    def compile(self) -> None:
        """Compile the kernels of the usual case: one source, no limit on skew."""
        rows = pa.record_batch({"v": [1, 2]})
        self.process(self.open(), Collection.of(rows, np.array([2, 1])))

    @property
    def _rules(self) -> Rules:
        """The settings as the numbers the kernels take."""

        def as_ns(value: Any, otherwise: int) -> int:
            return otherwise if value is None else int(value)

        mode = Skew.OFF
        if self.max_future_skew is not None:
            mode = Skew.CLOCK if self.skew_against == "clock" else Skew.ROWS
        per_tuple = self.watermark_per == "tuple"
        return Rules(
            tolerance=as_ns(self.late_tolerance, 0),
            tie=int(per_tuple and self.late_tolerance == 0),
            per_tuple=per_tuple,
            skew_mode=int(mode),
            skew=as_ns(self.max_future_skew, 0),
            confirm=self.skew_confirm,
            timeout=as_ns(self.idle_timeout, -1),
        )

    # -- rows -------------------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        """Decide every row, hand on what the watermark has passed, and hold the rest.

        Args:
            state: the state of the stage.
            collection: rows in order of arrival, with their times; `wall_ns` is used for idle
                sources and for `skew_against="clock"` only.

        Returns:
            Data, watermark, late rows, errors, in this order unless `late_in_order` is set.
        """
        collection, waiting = self._with_suspects(state, collection)
        kept = _lanes(state)
        before = kept.watermark.copy()
        lanes = present(collection.lane, state.lanes)
        decided = self._decide(state, collection, waiting, lanes)
        settle_all(lanes, self._rules, kept)
        late = errors = None
        if decided is not None:
            late = self._late(state, collection, decided)
            errors = self._errors(state, collection, decided)
            self._keep_suspects(state, collection, decided)
        verdict = _all_accepted(collection) if decided is None else decided.verdict
        data = self._leaving(state, collection, verdict)
        if data is not None and decided is not None and not self.hold and self._rules.skew_mode:
            data = data._replace(arrival=decided.decided_at[data.arrival])
        out = self._in_sequence(state, data, late, lanes, before)
        return out if errors is None else [*out, errors]

    def _with_suspects(self, state: State, collection: Collection) -> tuple[Collection, int]:
        """The rows that wait as suspects, with the new ones behind them, and how many waited."""
        held = state.tables["suspects"]
        if held is None or held.num_rows == 0:
            return collection, 0
        lane, time, payload = _held_and_new(held.drop_columns([AGAINST]), collection)
        state.touch(lane[: held.num_rows])
        return Collection(payload, time, lane, collection.wall_ns), held.num_rows

    def _decide(
        self, state: State, collection: Collection, waiting: int, lanes: Int64s
    ) -> Decisions | None:
        """Give every row a verdict, by the fast kernel where no source and no clock plays a part.

        Args:
            state: its arrays are changed by the kernel.
            collection: the suspects of earlier calls, then the new rows.
            waiting: how many of the rows are such suspects.
            lanes: the lanes that occur.

        Returns:
            The decisions; None if all rows are accepted, which is the usual case and saves reading
            them.
        """
        n, rules = len(collection.lane), self._rules
        by_rows = rules.skew_mode == Skew.ROWS
        out = Decisions(
            verdict=np.zeros(n, np.int8),
            against=np.empty(n, np.int64),
            decided_at=np.arange(n) if by_rows else np.empty(n, np.int64),
            previous=np.empty(n if by_rows else 0, np.int64),
            last_suspect=np.full(state.lanes if by_rows else 0, -1, np.int64),
        )
        if waiting:
            suspects = state.tables["suspects"]
            assert suspects is not None
            out.against[:waiting] = suspects.column(AGAINST).to_numpy()
        lane, time_ns = all_readonly(collection.lane, collection.time_ns)
        if self.source is None and not self.uses_wall_time():
            state.arrays["wall"][lanes] = collection.wall_ns
            rows = ArrivingRows(lane, time_ns, time_ns)
            return None if admit_single_source(rows, waiting, rules, _lanes(state), out) else out
        rows = ArrivingRows(lane, time_ns, as_readonly(self._sources(collection)))
        admit_rows(rows, waiting, collection.wall_ns, rules, _lanes(state), out)
        return out if waiting or out.verdict.any() else None

    def _sources(self, collection: Collection) -> Int64s:
        """A number per row for its source: an integer column as it is, other columns by a digest of
        the text.

        Null is -1 in an integer column; without a source column, or where this collection lacks it,
        all rows have source 0.
        """
        rows = collection.rows
        if self.source is None or rows.schema.get_field_index(self.source) < 0:
            return np.zeros(rows.num_rows, np.int64)
        column = rows.column(self.source)
        if pa.types.is_integer(column.type):
            return np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy(), np.int64)
        names = column.dictionary_encode()
        digests = [_digest(name) for name in names.dictionary.to_pylist()] or [0]
        codes = names.indices.fill_null(0).to_numpy()
        return np.asarray(np.array(digests, np.int64)[codes], np.int64)

    # -- rows that are refused --------------------------------------------------------------------

    def _late(self, state: State, collection: Collection, decided: Decisions) -> _LateRows | None:
        """The late rows, counted; None if there are none or if they are to be dropped."""
        which = np.flatnonzero(decided.verdict == ArrivalVerdict.LATE)
        if len(which) == 0:
            return None
        lane, time_ns = collection.lane[which], collection.time_ns[which]
        watermark = decided.against[which]
        lateness = _span_between(watermark, time_ns)
        np.add.at(state["late_count"], lane, 1)
        np.maximum.at(state["max_lateness"], lane, lateness)
        if self.late == "drop":
            return None
        rows = take(collection.rows, which)
        return _LateRows(Late(rows, time_ns, lane, lateness, watermark), which)

    def _errors(
        self, state: State, collection: Collection, decided: Decisions
    ) -> StreamError | None:
        """Rows refused as skewed or for want of a slot, counted; None if there are none."""
        verdict = decided.verdict
        which = np.flatnonzero(
            (verdict == ArrivalVerdict.SKEWED) | (verdict == ArrivalVerdict.NO_SLOT)
        )
        if len(which) == 0:
            return None
        # In order of decision: then it makes no difference where a collection ends.
        which = which[np.lexsort((which, decided.decided_at[which]))]
        lane, skewed = collection.lane[which], verdict[which] == ArrivalVerdict.SKEWED
        np.add.at(state["skewed_count"], lane[skewed], 1)
        np.add.at(state["no_slot_count"], lane[~skewed], 1)
        ahead = _span_between(collection.time_ns[which], decided.against[which])
        return self._error_rows(collection, which, skewed, ahead)

    def _error_rows(
        self, collection: Collection, which: Int64s, skewed: NDArray[np.bool_], ahead: Int64s
    ) -> StreamError:
        """Make errors of rows.

        Args:
            collection: the rows of the call.
            which: the refused ones.
            skewed: true for rows that are too far ahead, false for rows of one source too many.
            ahead: how far ahead (ns) each skewed row is.
        """
        limit = format_duration(self._rules.skew)
        reason = [
            f"{span(distance)} ahead, more than max_future_skew ({limit})"
            if is_skewed else f"more than max_sources ({self.max_sources}) sources"
            for is_skewed, distance in zip(skewed, ahead.tolist(), strict=True)
        ]  # fmt: skip
        return StreamError(
            take(collection.rows, which),
            pa.array(np.where(skewed, TIME_NS, self.source or ""), pa.string()),
            pa.array(collection.time_ns[which]).cast(pa.string()),
            pa.array(reason, pa.string()),
            collection.lane[which],
        )

    def _keep_suspects(self, state: State, collection: Collection, decided: Decisions) -> None:
        """Replace the table `suspects` by the rows that are still suspect."""
        which = np.flatnonzero(decided.verdict == ArrivalVerdict.SUSPECT)
        if len(which):
            columns = {
                LANE: collection.lane[which],
                TIME: collection.time_ns[which],
                AGAINST: decided.against[which],
            }
            state.tables["suspects"] = _beside(take(collection.rows, which), columns)
        elif state.tables["suspects"] is not None:
            state.tables["suspects"] = None

    # -- rows that leave --------------------------------------------------------------------------

    def _leaving(
        self, state: State, collection: Collection | None, verdict: NDArray[np.int8]
    ) -> _LeavingData | None:
        """Split accepted rows, held and new, into those that leave now and those that are held.

        Args:
            state: its table `held` is replaced.
            collection: the new rows; None: only those held are looked at (a source went idle).
            verdict: one entry per new row; only accepted ones take part.

        Returns:
            The rows at or before the watermark, sorted by (lane, time, arrival); None if there are
            none. With a tolerance of 0 the rows at the newest time leave as well, although the
            watermark stands 1 ns below them.
        """
        if not self.hold:
            return None if collection is None else _as_they_came(collection, verdict)
        held = state.tables["held"]
        lane, time, payload = _held_and_new(held, collection)
        waited = len(lane) - len(verdict)
        verdict = np.concatenate([np.zeros(waited, np.int8), verdict])
        passed = state.arrays["watermark"]
        if self._rules.tie:
            passed = np.where(passed == UNSET, UNSET, passed + 1)
        # Lanes and times are sorted and decided first; the payload of what stays is then copied,
        # and that of what leaves when the next stage asks for it.
        leaving, staying = arrange(lane, time, verdict, passed, state.lanes)
        if len(leaving.rows) or len(staying.rows) > waited:
            kept = None
            if len(staying.rows):
                columns = {LANE: staying.lane, TIME: staying.time_ns}
                kept = _beside(take(payload, staying.rows), columns)
            state.tables["held"] = kept
        if len(leaving.rows) == 0:
            return None
        wall_ns = 0 if collection is None else collection.wall_ns
        rows = LazyRows(payload, *leaving, wall_ns)
        few = _COPY_BELOW * len(leaving.rows) < payload.num_rows
        return _LeavingData(rows.copied() if few else rows, leaving.rows - waited)

    def _in_sequence(
        self,
        state: State,
        data: _LeavingData | None,
        late: _LateRows | None,
        lanes: Int64s,
        before: Int64s,
    ) -> list[Outcome]:
        """Put data, late rows and watermarks in the order in which they leave.

        Args:
            state: holds the watermarks as they are now.
            data: rows that leave, or None.
            late: late rows, or None.
            lanes: the lanes whose watermark may have moved.
            before: per lane the watermark that was handed on last.
        """
        out: list[Outcome] = []
        if late is not None and self.late_in_order:
            before = before.copy()
            out = _between(data, late, before, by_time=self.hold, tie=self._rules.tie)
        elif data is not None:
            out = [data.rows]
        watermark = state.arrays["watermark"]
        moved = lanes[watermark[lanes] > before[lanes]]
        if len(moved):
            state.arrays["watermark_count"][moved] += 1
            out.append(Watermark(watermark[moved], moved.astype(np.int32)))
        if late is not None and not self.late_in_order:
            out.append(late.rows)
        return out

    # -- wall time, the end, metrics --------------------------------------------------------------

    def wake_at(self, state: State) -> int | None:
        """The wall time at which the source that has been silent longest becomes idle; None without
        a timeout, or if no source is waited for."""
        if self.idle_timeout is None:
            return None
        waiting = (state["wall"] != UNSET) & (state["idle"] == 0)
        if not waiting.any():
            return None
        return int(state["wall"][waiting].min()) + self._rules.timeout + 1

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        """Mark sources as idle that have been silent for longer than the timeout. They no longer
        hold the watermark back, so rows may leave."""
        if self.idle_timeout is None:
            return []
        seen = state["wall"]
        due = (seen != UNSET) & (state["idle"] == 0) & (seen < wall_ns - self._rules.timeout)
        lanes = np.flatnonzero(due.any(axis=1))
        if len(lanes) == 0:
            return []
        state["idle"][due] = 1
        state.touch(lanes)
        before = state["watermark"].copy()
        settle_all(lanes, self._rules, _lanes(state))
        data = self._leaving(state, None, np.zeros(0, np.int8))
        return self._in_sequence(state, data, None, lanes, before)

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        """Take a promise from outside: no row at or before this time will come any more.

        Rows up to it leave now, and a row that comes all the same is late. A promise below the
        watermark of the lane changes nothing.

        Args:
            state: the state of the stage.
            watermark: one time per lane.

        Returns:
            The rows that leave, and the watermark where it moved.
        """
        lanes = present(watermark.lane, state.lanes)
        state.touch(lanes)
        before = state["watermark"].copy()
        np.maximum.at(state["watermark"], watermark.lane, watermark.time_ns)
        data = self._leaving(state, None, np.zeros(0, np.int8))
        return self._in_sequence(state, data, None, lanes, before)

    def resume(self, state: State, wall_ns: int) -> None:
        """Begin the wait for every source again: while nothing ran, no source was silent."""
        if self.idle_timeout is not None:
            waiting = (state["wall"] != UNSET) & (state["idle"] == 0)
            state["wall"][waiting] = wall_ns
            state.touch(np.flatnonzero(waiting.any(axis=1)))

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        """Deliver what is held, in order. Suspects that were never confirmed are errors."""
        out: list[Outcome] = []
        held = _cut_out(state, "held", lanes)
        if held is not None:
            lane, time, payload = _held_and_new(held, None)
            out.append(Collection(payload, time, lane))
        return out + self._flush_suspects(state, lanes)

    def _flush_suspects(self, state: State, lanes: Int32s | None) -> list[Outcome]:
        """Make errors of the suspects of these lanes (None: all): nothing confirmed them."""
        suspects = _cut_out(state, "suspects", lanes)
        if suspects is None:
            return []
        against = suspects.column(AGAINST).to_numpy()
        lane, time, payload = _held_and_new(suspects.drop_columns([AGAINST]), None)
        np.add.at(state["skewed_count"], lane, 1)
        state["suspect_count"][lane] = 0
        rows, which = Collection(payload, time, lane), np.arange(len(lane))
        skewed = np.ones(len(lane), np.bool_)
        return [self._error_rows(rows, which, skewed, _span_between(time, against))]

    def discard(self, state: State) -> dict[str, int]:
        """Forget what is held and what is suspect, and count it per lane."""
        gone = 0
        for name in state.tables:
            table = _cut_out(state, name, None)
            if table is not None:
                lane = table.column(LANE).to_numpy()
                np.add.at(state["discarded_count"], lane, 1)
                state["suspect_count"][lane] = 0
                gone += len(lane)
        return {"discarded_count": gone}

    def metrics(self, state: State) -> dict[str, int | float]:
        """Counters over all lanes, and the lowest, median and highest watermark (ns since 1970;
        UNSET before the first row)."""
        known = state["watermark"][state["watermark"] != UNSET]
        middle = np.sort(known)[(len(known) - 1) // 2] if len(known) else UNSET
        return {
            "rows_held": state.rows("held") + state.rows("suspects"),
            "late_dropped_count": int(state["late_count"].sum()),
            "watermark_emitted_count": int(state["watermark_count"].sum()),
            "max_timestamp_seen": int(state["newest"].max(initial=UNSET)),
            "watermark_lowest": int(known.min(initial=MAX_NS)) if len(known) else UNSET,
            "watermark_median": int(middle),
            "current_watermark": int(known.max(initial=UNSET)),
            "max_lateness": int(state["max_lateness"].max(initial=0)),
            "future_skew_count": int(state["skewed_count"].sum()),
            "refused_source_count": int(state["no_slot_count"].sum()),
            "discarded_count": int(state["discarded_count"].sum()),
        }

    def watermarks(self, state: State) -> Int64s:
        return state["watermark"]


# -- parts of a call -------------------------------------------------------------------------------


class _LeavingData(NamedTuple):
    """Data that leaves, and for each row the position in the collection of the row whose arrival
    decided it: usually itself; negative for rows of earlier collections."""

    rows: Collection
    """The rows, in the order in which they leave."""
    arrival: Int64s
    """The deciding row of each."""


class _LateRows(NamedTuple):
    """Late rows, and their positions in the collection."""

    rows: Late
    """The late rows in order of arrival."""
    arrival: Int64s
    """Their positions in the collection."""


def _between(
    data: _LeavingData | None, late: _LateRows, handed: Int64s, *, by_time: bool, tie: int
) -> list[Outcome]:
    """Late rows between the data, each behind its watermark, in the order in which they would leave
    if every row were a collection of its own. `handed` are the watermarks handed on so far, by
    lane, and are moved.

    Before a late row leave, of its lane: where data leaves in order of time (`by_time`), the rows
    at or before its watermark and, with `tie`, those 1 ns behind it that had arrived, because they
    left at once; where data leaves as it came, the rows that had arrived. Late rows with
    the same data and the same watermark before them form a group, numbered from 0 in each lane, and
    the data between two groups a segment. Segment k of all lanes leaves before group k.
    """
    rows = late.rows
    group = np.zeros(len(rows), np.int64)
    segment = np.zeros(0 if data is None else len(data.rows), np.int64)
    for lane in np.unique(rows.lane):
        mine = np.flatnonzero(rows.lane == lane)
        watermark, arrival = rows.watermark_ns[mine], late.arrival[mine]
        before = np.zeros(len(mine), np.int64)  # data rows of this lane before each late row
        own = np.zeros(0, np.int64)
        if data is not None:
            own = np.flatnonzero(data.rows.lane == lane)
            if by_time:
                time, came = data.rows.time_ns[own], data.arrival[own]
                before = np.searchsorted(time, watermark, side="right")
                # Equal times are in order of arrival, so the tied rows that had come are a run.
                tied = np.searchsorted(time, watermark + tie, side="right")
                for k in np.flatnonzero(tied > before).tolist():
                    run = came[before[k] : tied[k]]
                    before[k] += np.searchsorted(run, arrival[k])
            else:
                before = np.searchsorted(data.arrival[own], arrival)
        new = (np.diff(watermark) > 0) | (np.diff(before) > 0)
        group[mine] = np.concatenate([[0], np.cumsum(new)])
        first = before[np.concatenate([[0], np.flatnonzero(new) + 1])]
        segment[own] = np.searchsorted(first, np.arange(len(own)), side="right")
    out: list[Outcome] = []
    last = max(int(group.max()), int(segment.max(initial=0)))
    for number in range(last + 1):
        if data is not None and len(which := np.flatnonzero(segment == number)):
            out.append(data.rows if len(which) == len(segment) else data.rows.take(which))
        which = np.flatnonzero(group == number)
        if len(which) == 0:
            continue
        lanes, at = np.unique(rows.lane[which], return_index=True)
        times = rows.watermark_ns[which[at]]
        moved = times > handed[lanes]
        if moved.any():
            handed[lanes[moved]] = times[moved]
            out.append(Watermark(times[moved], lanes[moved]))
        out.append(rows if len(which) == len(rows) else rows.take(which))
    return out


def _as_they_came(collection: Collection, verdict: NDArray[np.int8]) -> _LeavingData | None:
    """The accepted rows in order of arrival, for `hold=False`; None if there are none."""
    if not verdict.any():
        return _LeavingData(collection, np.arange(len(collection)))
    kept = verdict == ArrivalVerdict.ACCEPTED
    if not kept.any():
        return None
    return _LeavingData(some_rows(collection, kept), np.flatnonzero(kept))


def _held_and_new(
    held: pa.RecordBatch | None, collection: Collection | None
) -> tuple[Int32s, Int64s, pa.RecordBatch]:
    """Join the rows held with new ones behind them.

    Args:
        held: a state table with the columns LANE and TIME, or None.
        collection: the new rows, or None.

    Returns:
        Lanes, times, and the rows without those two columns. Nothing is copied if only one of the
        two has rows.
    """
    if held is None or held.num_rows == 0:
        if collection is None:
            return np.zeros(0, np.int32), np.zeros(0, np.int64), pa.record_batch({})
        return collection.lane, collection.time_ns, collection.rows
    lane, time = held.column(LANE).to_numpy(), held.column(TIME).to_numpy()
    payload = held.drop_columns([LANE, TIME])
    if collection is None:
        return lane, time, payload
    return (
        np.concatenate([lane, collection.lane]),
        np.concatenate([time, collection.time_ns]),
        concat([payload, collection.rows]),
    )


def _beside(rows: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """`rows` with internal columns behind them: a state table."""
    arrays = [*rows.columns, *(pa.array(values) for values in columns.values())]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, *columns])


def _cut_out(state: State, name: str, lanes: Int32s | None) -> pa.RecordBatch | None:
    """Take the rows of these lanes (None: all) out of a state table; None if there are none."""
    table = state.tables[name]
    if table is None or table.num_rows == 0:
        return None
    lane = table.column(LANE).to_numpy()
    leaving = np.ones(len(lane), np.bool_) if lanes is None else np.isin(lane, lanes)
    if not leaving.any():
        return None
    state.touch(np.unique(lane[leaving]))
    state.tables[name] = None if leaving.all() else table.filter(pa.array(~leaving))
    return table if leaving.all() else table.filter(pa.array(leaving))


def _lanes(state: State) -> Lanes:
    """The state arrays as the kernels take them: views, so that kernels write to the state."""
    arrays = state.arrays
    return Lanes(*(arrays[name] for name in Lanes._fields))


def _all_accepted(collection: Collection) -> NDArray[np.int8]:
    """The verdict ACCEPTED for every row."""
    return np.zeros(len(collection.lane), np.int8)


def _span_between(later: Int64s, earlier: Int64s) -> Int64s:
    """later - earlier in ns, for later >= earlier, at most MAX_NS.

    Two times may be 584 years apart, a span of 64 bits only 292: where the difference wraps around
    it is cut off there.
    """
    with np.errstate(over="ignore"):
        distance = later - earlier
    return np.where(distance < 0, MAX_NS, distance)


def _digest(name: object) -> int:
    """The same number for the same name in every process, which Python's own hash is not."""
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), signed=True)
