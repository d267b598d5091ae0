"""What a run did, added up from its commit records.

Every row that came in is in exactly one place:

    rows in = used in results + late + errors + dropped + discarded + held

`held` is what stages still wait with, stage by stage, and how each lets go of it. `in order` is
what the event-time stage has handed on, by its own counters, whatever stages come behind it.

Watermarks are per key. A single highest one would hide a vehicle that has fallen silent, so the
summary has the lowest, the median over keys and the highest, and the keys furthest behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidegate.core.flow import never_seen, newest_time, wrong_unit
from tidegate.core.time import UNSET
from tidegate.output.commit import Commit

__all__ = ["HIGHEST", "LOWEST", "RELEASE", "Behind", "Summary"]

HIGHEST = frozenset(
    {"current_watermark", "watermark_median", "max_timestamp_seen", "max_lateness", "duration_ns",
     "memory_percent", "memory_level"}
)  # fmt: skip
"""Metrics of which the highest over all shards counts."""

LOWEST = frozenset({"watermark_lowest"})
"""Metrics of which the lowest over all shards counts; of all others it is the sum."""

RELEASE = {
    "eventtime_watermark": "later rows of the same key release it, an idle timeout, or an end",
    "synchronize": "messages of the other topics release it, or an end",
    "batch": "the last expected pulse releases it, a timeout, or an end",
    "window": "the end of its windows releases it, or an end",
}
"""How a stage lets go of what it holds."""

END = 'an end is a control row {"name": "end", "value": "graceful"}'
"""How to announce an end, for people who are told that a stage waits for one."""

_HELD = ("rows_held", "held")
"""The names that stages give to the number of rows they hold."""

_EVENT_TIME = "eventtime_watermark"
"""The label of the event-time stage in the names of metrics."""

_REFUSED_BY_EVENT_TIME = (
    "late_dropped_count", "future_skew_count", "refused_source_count", "discarded_count",
    "rows_held",
)  # fmt: skip
"""Metrics of rows that came into the event-time stage and were not handed on."""


class Behind(NamedTuple):
    """A key and how far its watermark is behind the highest one.

    Args:
        key: Its columns, with slashes between them.
        watermark_ns: Its watermark, in ns since 1970.
        lag_ns: The distance to the highest watermark, in ns.
    """

    key: str
    watermark_ns: int
    lag_ns: int


@dataclass
class Summary:
    """What a run did, from its commits; more of them may be added while it goes on.

    Args:
        out: Where its tables are.
        seconds: How long it ran, by the wall clock; 0 if that is not known.
        batches: The number of micro-batches.
        steady: Rows and seconds after the first micro-batch, which starts workers.
        rows: Rows that came out, per kind.
        watermark_ns: The highest watermark; None before there is one.
        shards: The metrics of every shard, as it last reported them. They count from the start of
            the state, so the newest report replaces the one before and is never added to it.
        behind: Of every shard, the keys whose watermarks are lowest, with their watermarks.
        seen: Values that occurred, by column.
        expected: Values that settings name (topics), by column; see `warnings`.
        before: The metrics of every shard when the run began, because it goes on from an earlier
            one or from a savepoint. What they counted then is not counted here.
    """

    out: str
    seconds: float = 0.0
    batches: int = 0
    steady: tuple[int, float] = (0, 0.0)
    rows: dict[str, int] = field(default_factory=dict)
    watermark_ns: int | None = None
    shards: dict[int, dict[str, int]] = field(default_factory=dict)
    behind: dict[int, dict[str, int]] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=dict)
    expected: Mapping[str, Sequence[str]] = field(default_factory=dict)
    before: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin_with(self.before)

    @classmethod
    def of(cls, out: str, commits: Iterable[Commit]) -> Summary:
        """Return the summary of a stored run.

        >>> Summary.of("out", [Commit(0, "q", {"late": 2}, shards={0: {"rows_in": 5}})]).used
        3
        """
        made = cls(out)
        for commit in commits:
            made.add(commit)
        return made

    def begin_with(self, before: Mapping[int, Mapping[str, int]]) -> None:
        """Set `before`. A shard without rows in this run stands where it stood then.

        >>> summary = Summary("out", before={0: {"rows_in": 5, "window.rows_held": 2}})
        >>> summary.add(Commit(3, "q", {"data": 4}, shards={0: {"rows_in": 8}}))
        >>> summary.rows_in, summary.held_before, summary.used
        (3, 2, 5)
        """
        self.before = before
        self.shards = {shard: dict(metrics) for shard, metrics in before.items()} | self.shards

    def add(self, commit: Commit) -> None:
        """Add one micro-batch."""
        self.batches += 1
        for kind, rows in commit.rows.items():
            self.rows[kind] = self.rows.get(kind, 0) + rows
        if commit.watermark_ns is not None:
            self.watermark_ns = max(self.watermark_ns or commit.watermark_ns, commit.watermark_ns)
        self.shards |= commit.shards
        self.behind |= commit.behind
        for column, names in commit.seen.items():
            self.seen.setdefault(column, set()).update(names)

    def __add__(self, later: Summary) -> Summary:
        """This run and the one after it, into the same place."""
        both = Summary(self.out, self.seconds + later.seconds, self.batches + later.batches)
        both.steady = (self.steady[0] + later.steady[0], self.steady[1] + later.steady[1])
        for kind in {**self.rows, **later.rows}:
            both.rows[kind] = self.rows.get(kind, 0) + later.rows.get(kind, 0)
        both.watermark_ns = self.watermark_ns if later.watermark_ns is None else later.watermark_ns
        both.shards = {**self.shards, **later.shards}
        both.behind = {**self.behind, **later.behind}
        both.before = self.before
        both.expected = {**self.expected, **later.expected}
        for each in (self, later):
            for column, names in each.seen.items():
                both.seen.setdefault(column, set()).update(names)
        return both

    def warnings(self) -> list[str]:
        """Return a sentence for every value that a setting names and the data never had, and one if
        event times look as if they were read in a wrong unit.

        >>> summary = Summary("out", shards={0: {"rows_in": 1}}, seen={"topic": {"lidar"}},
        ...                   expected={"topic": ("lidr",)})
        >>> summary.warnings()
        ["topic 'lidr' was never seen; seen: lidar"]
        """
        if not self.rows_in:
            return []
        newest = max(map(newest_time, self.shards.values()), default=0)
        return never_seen(self.expected, self.seen) + wrong_unit(newest)

    # -- metrics ----------------------------------------------------------------------------------

    def total(self, metric: str) -> int:
        """Return the sum of a metric over all shards, as each last reported it."""
        return sum(metrics.get(metric, 0) for metrics in self.shards.values())

    def highest(self, metric: str) -> int:
        """Return the highest value of a metric over all shards; 0 if there is none."""
        return max((metrics.get(metric, 0) for metrics in self.shards.values()), default=0)

    def metrics(self) -> dict[str, int]:
        """Return every metric over all shards: the highest, the lowest or the sum, as it makes
        sense."""
        out = {}
        for name in sorted({name for metrics in self.shards.values() for name in metrics}):
            short = name.rpartition(".")[2]
            if short in LOWEST:
                values = [m[name] for m in self.shards.values() if m.get(name, UNSET) != UNSET]
                out[name] = min(values, default=UNSET)
            else:
                out[name] = self.highest(name) if short in HIGHEST else self.total(name)
        return out

    # -- rows, each in one place ------------------------------------------------------------------

    def since(self, metric: str) -> int:
        """Return by how much a counter has grown since the run began, over all shards."""
        return self.total(metric) - sum(found.get(metric, 0) for found in self.before.values())

    @property
    def rows_in(self) -> int:
        """Rows that came in, unreadable ones included."""
        return self.since("rows_in")

    @property
    def held_before(self) -> int:
        """Rows that stages held when the run began."""
        return sum(_held(self.before).values())

    @property
    def late(self) -> int:
        """Rows that came too late: those in the table, and those a policy only counts."""
        return max(self.rows.get("late", 0), self.since(f"{_EVENT_TIME}.late_dropped_count"))

    @property
    def errors(self) -> int:
        """Rows that could not be used."""
        return self.rows.get("error", 0)

    @property
    def dropped(self) -> int:
        """Rows that a stage let go, with a reason."""
        return self.rows.get("dropped", 0)

    @property
    def discarded(self) -> int:
        """Rows that a quick end discarded."""
        return self._over_stages("discarded_count")

    @property
    def held_by(self) -> dict[str, int]:
        """Rows that each stage holds, by its name; stages that hold none are left out."""
        return _held(self.shards)

    @property
    def held(self) -> int:
        """Rows that stages still hold."""
        return sum(self.held_by.values())

    @property
    def used(self) -> int:
        """Rows that went into results: as rows of `data`, members of sets, parts of aggregates."""
        there = self.rows_in + self.held_before
        return there - self.late - self.errors - self.dropped - self.discarded - self.held

    @property
    def in_order(self) -> int:
        """Rows the event-time stage has handed on, in order; all readable ones without it."""
        readable = self.rows_in - self.since("parse_error_count")
        return readable - sum(self.since(f"{_EVENT_TIME}.{n}") for n in _REFUSED_BY_EVENT_TIME)

    def _over_stages(self, metric: str) -> int:
        """Return the sum of a metric over all stages and shards."""
        names = {name for metrics in self.shards.values() for name in metrics}
        return sum(self.since(name) for name in names if name.endswith(f".{metric}"))

    # -- time -------------------------------------------------------------------------------------

    @property
    def rows_per_second(self) -> float:
        """Rows in per second of wall time; 0 if the time is not known."""
        return self.rows_in / self.seconds if self.seconds else 0.0

    @property
    def steady_rows_per_second(self) -> float | None:
        """Rows in per second after the first micro-batch of a run; None if there was but one."""
        rows, seconds = self.steady
        return rows / seconds if rows and seconds else None

    @property
    def lowest_watermark_ns(self) -> int | None:
        """The watermark of the key that is furthest behind."""
        found = self.metrics().get(f"{_EVENT_TIME}.watermark_lowest", UNSET)
        return None if found == UNSET else found

    @property
    def median_watermark_ns(self) -> int | None:
        """The median of the watermarks of all keys: of shards, weighted by their keys."""
        name = f"{_EVENT_TIME}.watermark_median"
        found = sorted(
            (m[name], m.get("keys", 1)) for m in self.shards.values() if m.get(name, UNSET) != UNSET
        )
        half, seen = sum(keys for _, keys in found) / 2, 0
        for mark, keys in found:
            seen += keys
            if seen >= half:
                return mark
        return None

    def furthest_behind(self, count: int = 5) -> list[Behind]:
        """Return the keys whose watermarks are lowest, the lowest first, with their lag."""
        if self.watermark_ns is None:
            return []
        marks = sorted((mark, key) for keys in self.behind.values() for key, mark in keys.items())
        return [Behind(key, mark, self.watermark_ns - mark) for mark, key in marks[:count]]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain values, for `tidegate run --json`."""
        return {
            "out": self.out,
            "seconds": round(self.seconds, 3),
            "batches": self.batches,
            "rows_in": self.rows_in,
            "held_before": self.held_before,
            "used": self.used,
            "late": self.late,
            "errors": self.errors,
            "dropped": self.dropped,
            "discarded": self.discarded,
            "held": self.held,
            "held_by": self.held_by,
            "in_order": self.in_order,
            "rows": self.rows,
            "watermark_ns": self.watermark_ns,
            "watermarks": {
                "lowest_ns": self.lowest_watermark_ns,
                "median_ns": self.median_watermark_ns,
                "highest_ns": self.watermark_ns,
                "furthest_behind": [one._asdict() for one in self.furthest_behind()],
            },
            "rows_per_second": round(self.rows_per_second),
            "steady_rows_per_second": None
            if self.steady_rows_per_second is None
            else round(self.steady_rows_per_second),
            "warnings": self.warnings(),
            "metrics": self.metrics(),
        }


def _held(shards: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Return the rows that each stage holds, by its name, over shards; nothing for none."""
    held: dict[str, int] = {}
    for metrics in shards.values():
        for name, rows in metrics.items():
            stage, _, metric = name.rpartition(".")
            if metric in _HELD and rows:
                held[stage] = held.get(stage, 0) + rows
    return dict(sorted(held.items()))
