"""The nodes of a physical plan, in the order in which rows pass them: source, decoder, stages,
sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.core.operator import Operator
from tidegate.core.time import format_duration
from tidegate.eventtime import Decoder, EventtimeWatermark, ProcessTimeWatermark
from tidegate.pipeline.definition import SinkDefinition, SourceDefinition
from tidegate.pipeline.formats import Direction, show_option
from tidegate.pipeline.secrets import show_text, shown

__all__ = [
    "Node",
    "PhysicalDataSource",
    "PhysicalDecoder",
    "PhysicalEventtimeWatermark",
    "PhysicalProcessTimeWatermark",
    "PhysicalSink",
    "PhysicalStage",
    "milliseconds",
]

MAY_LACK_A_ZONE = ("date", "date_time", "iso8601", "timestamp", "year_month_day")
"""Event-time types whose values may come without a zone. They are then in the declared zone or in
UTC, never in the zone of the machine or the session; `explain` says so."""

_DURATIONS = ("late_tolerance", "max_future_skew", "idle_timeout", "interval", "offset")
"""Settings in ns that are shown as users write them, such as `200 ms`."""


@dataclass(frozen=True)
class Node:
    """One node of a plan. Immutable; `facts` describes it."""

    @property
    def name(self) -> str:
        """Its name in `explain`."""
        return type(self).__name__

    @property
    def operator(self) -> Operator | None:
        """The operator that runs in this node; sources, decoders and sinks have none."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return what `explain` shows, in order. Never a secret."""
        return {}


@dataclass(frozen=True)
class PhysicalDataSource(Node):
    """The rows of one stream, in order of arrival.

    Args:
        stream: The name of the stream in the definition.
        source: Where its rows come from; None for a plan that is only explained.
        columns: Names of its columns, in order; None if they are not known yet.
        key: The columns that identify a vehicle, an instrument, a shard; may be empty.
        topic: The column that names the topic of a message; None without one.
        arrival: The columns that give the order of arrival, most significant first; may be empty.
    """

    stream: str
    source: SourceDefinition | None
    columns: tuple[str, ...] | None
    key: tuple[str, ...]
    topic: str | None
    arrival: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"stream": self.stream}
        if self.source is not None:
            facts |= {"format": self.source.format, "path": show_text(self.source.path)}
            facts |= _option_facts("source", self.source)
        facts |= {"key": list(self.key), "topic": self.topic, "arrival": list(self.arrival)}
        if self.columns is not None:
            facts["columns"] = list(self.columns)
        return facts


@dataclass(frozen=True)
class PhysicalDecoder(Node):
    """Gives every row its time: read from a column, or the time at which the row is seen.

    Args:
        stream: The name of the stream in the definition.
        decoder: What reads the times; without time columns it is processing time.
        columns: Names of the columns of the rows, for the index that `explain` shows.
    """

    stream: str
    decoder: Decoder
    columns: tuple[str, ...] | None

    def facts(self) -> dict[str, Any]:
        if not self.decoder.times:
            return {"stream": self.stream, "time": "processing time"}
        facts: dict[str, Any] = {"stream": self.stream}
        several = len(self.decoder.times) > 1
        for time in self.decoder.times:
            prefix = f"{time.message}.eventtime" if several else "eventtime"
            facts[f"{prefix}.column"] = time.path
            facts[f"{prefix}.type"] = time.type
            place = time.columns[0] if time.message is None else time.message
            if time.type in MAY_LACK_A_ZONE:
                facts[f"{prefix}.zone"] = f"{time.zone or 'UTC'} where a time has none"
            if self.columns is not None:
                outer = place if place in self.columns else place.split(".")[0]
                facts[f"{prefix}.index"] = self.columns.index(outer)
        return facts


@dataclass(frozen=True)
class PhysicalEventtimeWatermark(Node):
    """Puts rows in order of event time. Time moves with the data.

    Settings that have no effect (how skew is judged without a limit, how many sources without a
    source column) are not shown.

    Args:
        watermark: The operator with its settings.
    """

    watermark: EventtimeWatermark

    @property
    def operator(self) -> Operator:
        return self.watermark

    def facts(self) -> dict[str, Any]:
        settings = self.watermark.settings()
        if self.watermark.max_future_skew is None:
            del settings["skew_against"], settings["skew_confirm"]
        if self.watermark.source is None:
            del settings["max_sources"]
        if self.watermark.hold:
            del settings["hold"]
        if not self.watermark.late_in_order:
            del settings["late_in_order"]
        return {
            "mode": "event_time",
            "late_tolerance_ms": milliseconds(settings["late_tolerance"]),
            **_readable(settings),
        }


@dataclass(frozen=True)
class PhysicalProcessTimeWatermark(Node):
    """Gives rows the time at which they are seen. Time moves with the clock.

    Args:
        watermark: The operator with its settings.
    """

    watermark: ProcessTimeWatermark

    @property
    def operator(self) -> Operator:
        return self.watermark

    def facts(self) -> dict[str, Any]:
        return {"mode": "processing_time", **_readable(self.watermark.settings())}


@dataclass(frozen=True)
class PhysicalStage(Node):
    """A stage of the definition.

    Args:
        title: Its name in `explain`, such as PhysicalSynchronize.
        stage: The operator with its settings.
    """

    title: str
    stage: Operator

    @property
    def name(self) -> str:
        return self.title

    @property
    def operator(self) -> Operator:
        return self.stage

    def facts(self) -> dict[str, Any]:
        return _readable(self.stage.settings())


@dataclass(frozen=True)
class PhysicalSink(Node):
    """Writes the tables, one per kind of outcome.

    Args:
        sink: Format, path and options, with references that are not resolved.
    """

    sink: SinkDefinition

    def facts(self) -> dict[str, Any]:
        return {
            "format": self.sink.format,
            "path": show_text(self.sink.path),
            **_option_facts("sink", self.sink),
        }


def milliseconds(ns: int) -> int | float:
    """Return milliseconds for display: an int if they are whole, else a float.

    >>> milliseconds(5_000_000), milliseconds(1_500_000)
    (5, 1.5)
    """
    return ns // 10**6 if ns % 10**6 == 0 else ns / 10**6


def _option_facts(direction: Direction, part: SourceDefinition | SinkDefinition) -> dict[str, Any]:
    """Return the options of a source or sink for `explain`, secrets hidden."""
    return {
        f"option.{name}": show_option(direction, part.format, name, value)
        for name, value in part.options.items()
    }


def _readable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without unset ones, with durations as users write them, without secrets."""
    return {
        name: format_duration(value)
        if name in _DURATIONS and isinstance(value, int)
        else shown(name, value)
        for name, value in settings.items()
        if value is not None
    }
