"""The event-time watermark: rows come out in order of their own time, late ones as late.

Clock policy: event time decides order and lateness. Wall time (`collection.wall_ns`, `wake`)
decides only whether a source has gone idle, and, if asked to, what lies too far in the future.

A watermark W is inclusive: after it no row with time <= W leaves this stage.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import concat, present
from tidegate.core.columns import LANE, TIME
from tidegate.core.lazy_rows import LazyRows, some_rows
from tidegate.core.numba import as_readonly
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    Int32s,
    Int64s,
    Late,
    Outcome,
    StreamError,
    Watermark,
    with_columns,
)
from tidegate.core.sort import arrange
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET, Duration, format_duration, parse_duration
from tidegate.errors import ConfigError
from tidegate.eventtime import rules as kernel

__all__ = ["EventtimeWatermark"]

_LATE, _SKEWED, _NO_SLOT, _EMITTED, _MAX_LATENESS, _DISCARDED = range(6)


@dataclass(frozen=True)
class EventtimeWatermark(Operator):
    """Holds rows back for `late_tolerance` and hands them on in order of event time.

    - `late`: what happens to a row at or below the watermark: `"side_output"` delivers it as `Late`
      with its lateness, `"drop"` only counts it.
    - `watermark_per`: `"collection"` judges a whole collection against the watermark before it;
      `"tuple"` moves the watermark with every row, so results do not depend on how input was cut.
    - `max_future_skew`: a row further ahead than this is reported and does not move time. Ahead of
      what: of the newest row so far, or of the wall clock with `skew_against="clock"`. Against the
      rows, `skew_confirm` rows in a row that agree with each other are believed: the stream has
      really moved on, and an hour's pause does not silence it for ever.
    - `source`, `max_sources`: a column that names the partition or file a row came from. Each has a
      watermark of its own; the stage's is the smallest of those not idle.
    - `idle_timeout`: a source unseen for so long (wall time) is not waited for; when all are idle,
      everything held is released.
    - `hold`: False hands rows on as they come, late ones still aside, and lets only the watermark
      say what is complete. A `Chain` turns it off where the next stage takes rows in any order.

    >>> import pyarrow as pa
    >>> stage = EventtimeWatermark(late_tolerance=1000)
    >>> state = stage.open()
    >>> rows = pa.record_batch({"id": ["c", "a", "b"]})
    >>> out = stage.process(state, Collection.of(rows, np.array([3000, 1000, 2000])))
    >>> out[0].rows.column("id").to_pylist(), out[1].time_ns
    (['a', 'b'], array([2000]))
    """

    late_tolerance: Duration = 0
    late: Literal["side_output", "drop"] = "side_output"
    watermark_per: Literal["collection", "tuple"] = "collection"
    max_future_skew: Duration | None = None
    skew_against: Literal["rows", "clock"] = "rows"
    skew_confirm: int = 10
    source: str | None = None
    max_sources: int = 16
    idle_timeout: Duration | None = None
    hold: bool = True

    name: ClassVar[str] = "eventtime_watermark"

    def __post_init__(self) -> None:
        _choice("late", self.late, ("side_output", "drop"))
        _choice("watermark_per", self.watermark_per, ("collection", "tuple"))
        _choice("skew_against", self.skew_against, ("rows", "clock"))
        _choice("hold", self.hold, (True, False))
        for name, minimum in (("late_tolerance", 0), ("max_future_skew", 0), ("idle_timeout", 1)):
            value = getattr(self, name)
            if value is not None or name == "late_tolerance":
                object.__setattr__(self, name, parse_duration(value, name, minimum=minimum))
        for name in ("skew_confirm", "max_sources"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(name, value, "must be a whole number of at least 1")

    def layout(self) -> Layout:
        slots = 1 if self.source is None else self.max_sources
        return Layout(
            {
                "watermark": Column(np.int64, fill=UNSET),
                "newest": Column(np.int64, (slots,), UNSET),
                "source": Column(np.int64, (slots,)),
                "wall": Column(np.int64, (slots,), UNSET),
                "idle": Column(np.int8, (slots,)),
                "suspect": Column(np.int64, (2,)),
                "counters": Column(np.int64, (6,)),
            },
            tables=("held",),
        )

    def input_columns(self) -> frozenset[str] | None:
        return frozenset() if self.source is None else frozenset({self.source})

    def without_buffering(self) -> Operator:
        return replace(self, hold=False)

    # -- transitions ----------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        before = state["watermark"].copy()
        lanes_here = present(collection.lane, state.lanes)
        codes = np.zeros(len(collection), np.int8)
        behind = np.empty(len(collection), np.int64)
        refused: list[Outcome] = []
        if self._admit(state, collection, lanes_here, codes, behind):
            refused = self._refused(state, collection, codes, behind)
        # Late rows go last: the next stage then stands at the watermark that made them late.
        return self._release(state, collection, codes, lanes_here, before) + refused

    def _admit(
        self,
        state: State,
        collection: Collection,
        present: NDArray[Any],
        codes: NDArray[np.int8],
        behind: Int64s,
    ) -> int:
        """Decide every row; how many were refused."""
        lanes, times = as_readonly(collection.lane), as_readonly(collection.time_ns)
        wall_ns = collection.wall_ns
        settings = self._kernel_settings
        by_clock = settings[2] == kernel.SKEW_CLOCK
        if self.source is None and self.idle_timeout is None and not by_clock:
            state["wall"][present] = wall_ns
            refused = kernel.admit_plain(
                lanes, times, settings, state["watermark"], state["newest"].reshape(-1),
                state["suspect"], codes, behind,
            )  # fmt: skip
            return int(refused)
        counts = kernel.admit(
            lanes, times, self._sources(collection.rows), wall_ns, settings,
            state["watermark"], state["newest"], state["source"], state["wall"], state["idle"],
            state["suspect"], codes, behind,
        )  # fmt: skip
        return len(codes) - int(counts[kernel.ACCEPTED])

    def uses_wall_time(self) -> bool:
        by_clock = self.max_future_skew is not None and self.skew_against == "clock"
        return self.idle_timeout is not None or by_clock

    def compile(self) -> None:
        state = self.open()
        self.process(state, Collection.of(pa.record_batch({"v": [1, 2]}), np.array([2, 1])))

    def wake_at(self, state: State) -> int | None:
        if self.idle_timeout is None:
            return None
        waiting = (state["wall"] != UNSET) & (state["idle"] == 0)
        if not waiting.any():
            return None
        return int(state["wall"][waiting].min()) + parse_duration(self.idle_timeout) + 1

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        if self.idle_timeout is None:
            return []
        seen = state["wall"]
        cutoff = wall_ns - parse_duration(self.idle_timeout)
        due = (seen != UNSET) & (state["idle"] == 0) & (seen < cutoff)
        lanes = np.flatnonzero(due.any(axis=1))
        if len(lanes) == 0:
            return []
        state["idle"][due] = 1
        state.touch(lanes)
        return self._release(state, None, _NO_CODES, lanes, state["watermark"].copy())

    def resume(self, state: State, wall_ns: int) -> None:
        if self.idle_timeout is not None:
            waiting = (state["wall"] != UNSET) & (state["idle"] == 0)
            state["wall"][waiting] = wall_ns
            state.touch(np.flatnonzero(waiting.any(axis=1)))

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        held = state.tables["held"]
        if held is None or held.num_rows == 0:
            return []
        lane = held.column(LANE).to_numpy()
        leaving = np.ones(len(lane), np.bool_) if lanes is None else np.isin(lane, lanes)
        if not leaving.any():
            return []
        state.touch(np.unique(lane[leaving]))
        state.tables["held"] = held.filter(pa.array(~leaving))
        return [_unheld(held.filter(pa.array(leaving)))]

    def discard(self, state: State) -> dict[str, int]:
        held = state.tables["held"]
        if held is None:
            return {"discarded_count": 0}
        lane = held.column(LANE).to_numpy()
        np.add.at(state["counters"][:, _DISCARDED], lane, 1)
        state.touch(np.unique(lane))
        state.tables["held"] = held.slice(0, 0)
        return {"discarded_count": int(held.num_rows)}

    def metrics(self, state: State) -> dict[str, int | float]:
        totals = state["counters"].sum(axis=0)
        return {
            "buffer_size": state.rows("held"),
            "late_dropped_count": int(totals[_LATE]),
            "watermark_emitted_count": int(totals[_EMITTED]),
            "max_timestamp_seen": int(state["newest"].max(initial=UNSET)),
            "current_watermark": int(state["watermark"].max(initial=UNSET)),
            "max_lateness": int(state["counters"][:, _MAX_LATENESS].max(initial=0)),
            "future_skew_count": int(totals[_SKEWED]),
            "refused_source_count": int(totals[_NO_SLOT]),
            "discarded_count": int(totals[_DISCARDED]),
        }

    # -- the parts of process -------------------------------------------------------------------

    @property
    def _kernel_settings(self) -> tuple[int, int, int, int, int, int]:
        skew = 0 if self.max_future_skew is None else parse_duration(self.max_future_skew)
        mode = kernel.SKEW_OFF
        if self.max_future_skew is not None:
            mode = kernel.SKEW_CLOCK if self.skew_against == "clock" else kernel.SKEW_BULK
        timeout = -1 if self.idle_timeout is None else parse_duration(self.idle_timeout)
        tolerance = parse_duration(self.late_tolerance)
        per_tuple = int(self.watermark_per == "tuple")
        return tolerance, per_tuple, mode, skew, self.skew_confirm, timeout

    def _sources(self, rows: pa.RecordBatch) -> Int64s:
        if self.source is None or rows.schema.get_field_index(self.source) < 0:
            return np.zeros(rows.num_rows, np.int64)
        column = rows.column(rows.schema.get_field_index(self.source))
        if pa.types.is_integer(column.type):
            return np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy(), np.int64)
        names = column.dictionary_encode()
        digests = [_digest(name) for name in names.dictionary.to_pylist()] or [0]
        places = names.indices.fill_null(0).to_numpy()
        return np.asarray(np.array(digests, np.int64)[places], np.int64)

    def _refused(
        self, state: State, collection: Collection, codes: NDArray[np.int8], behind: Int64s
    ) -> list[Outcome]:
        out: list[Outcome] = []
        counters = state["counters"]
        late = np.flatnonzero(codes == kernel.LATE)
        if len(late):
            lane = collection.lane[late]
            np.add.at(counters[:, _LATE], lane, 1)
            np.maximum.at(counters[:, _MAX_LATENESS], lane, behind[late])
            if self.late == "side_output":
                rows = collection.rows.take(pa.array(late))
                out.append(Late(rows, collection.time_ns[late], lane, behind[late]))
        wrong = np.flatnonzero((codes == kernel.SKEWED) | (codes == kernel.NO_SLOT))
        if len(wrong):
            lane = collection.lane[wrong]
            skewed = codes[wrong] == kernel.SKEWED
            np.add.at(counters[:, _SKEWED], lane[skewed], 1)
            np.add.at(counters[:, _NO_SLOT], lane[~skewed], 1)
            limit = format_duration(self._kernel_settings[3])
            column = pa.array(np.where(skewed, "time_ns", self.source or ""), pa.string())
            reason = [
                f"{ahead} ns ahead, more than max_future_skew ({limit})"
                if bad else f"more than max_sources ({self.max_sources}) sources"
                for bad, ahead in zip(skewed, behind[wrong].tolist(), strict=True)
            ]  # fmt: skip
            value = pa.array(collection.time_ns[wrong]).cast(pa.string())
            rows = collection.rows.take(pa.array(wrong))
            out.append(StreamError(rows, column, value, pa.array(reason, pa.string()), lane))
        return out

    def _release(
        self,
        state: State,
        collection: Collection | None,
        codes: NDArray[np.int8],
        lanes: NDArray[Any],
        before: Int64s,
    ) -> list[Outcome]:
        """Move the watermark of `lanes`, hand on what may leave, then the watermark."""
        watermark = state["watermark"]
        tolerance = self._kernel_settings[0]
        kernel.settle_all(
            lanes, tolerance, watermark, state["newest"], state["wall"], state["idle"]
        )
        moved = lanes[watermark[lanes] > before[lanes]]
        out = self._in_order(state, collection, codes) if self.hold else _in_time(collection, codes)
        if len(moved):
            state["counters"][moved, _EMITTED] += 1
            out.append(Watermark(watermark[moved], moved.astype(np.int32)))
        return out

    def _in_order(
        self, state: State, collection: Collection | None, codes: NDArray[np.int8]
    ) -> list[Outcome]:
        """What the watermark has passed, in order; the rest is held.

        Lanes and times are joined as numbers and decided first; the payload of what stays is then
        copied, and that of what leaves when the next stage wants it.
        """
        watermark = state["watermark"]
        held = state.tables["held"]
        lane, time, payload = _joined(held, collection)
        waiting = len(lane) - len(codes)
        codes = np.concatenate([np.zeros(waiting, np.int8), codes])
        leaving, staying = arrange(lane, time, codes, watermark, state.lanes)
        out: list[Outcome] = []
        if len(leaving.rows) or len(staying.rows) > waiting:
            kept = None
            if len(staying.rows):
                columns = {LANE: staying.lane, TIME: staying.time_ns}
                kept = with_columns(payload.take(pa.array(staying.rows)), columns)
            state.tables["held"] = kept
        if len(leaving.rows):
            wall_ns = 0 if collection is None else collection.wall_ns
            picked = LazyRows(payload, *leaving, wall_ns)
            few = _FEW * len(picked) < payload.num_rows
            out.append(picked.copied() if few else picked)
        return out


_NO_CODES = np.zeros(0, np.int8)

_FEW = 4
"""Where less than one row of so many leaves, it is copied at once: the next stage shall not have to
go through all that is held."""


def _in_time(collection: Collection | None, codes: NDArray[np.int8]) -> list[Outcome]:
    """The accepted rows as they came."""
    if collection is None:
        return []
    if not codes.any():
        return [collection]
    kept = codes == kernel.ACCEPTED
    if not kept.any():
        return []
    return [some_rows(collection, kept)]


def _joined(
    held: pa.RecordBatch | None, collection: Collection | None
) -> tuple[Int32s, Int64s, pa.RecordBatch]:
    """Lanes, times and payload of what is held and, behind it, of what came."""
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


def _unheld(rows: pa.RecordBatch, wall_ns: int = 0) -> Collection:
    lane, time = rows.column(LANE).to_numpy(), rows.column(TIME).to_numpy()
    return Collection(rows.drop_columns([LANE, TIME]), time, lane, wall_ns)


def _digest(name: object) -> int:
    """The same number for the same name in every process, which Python's own hash is not."""
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), signed=True)


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(name, value, f"must be one of {', '.join(map(str, allowed))}")
