"""Sinks by the name a definition gives them: `sink: {format: delta, path: ...}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.errors import ConfigError
from tidegate.pipeline.definition import SinkDefinition, StreamDefinition
from tidegate.pipeline.formats import sink_options
from tidegate.pipeline.secrets import resolve
from tidegate.pipeline.security import resolve_path
from tidegate.spark.sink import Commit, ParquetSink

__all__ = ["SINKS", "Sink", "SinkSettings", "open_sink"]


class Sink(Protocol):
    """What a run needs of a sink."""

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        """Write one micro-batch. Called again for the same (query, batch) it changes nothing."""

    def check_unused(self) -> None:
        """Refuse an output that holds another run's rows, before anything starts."""


@dataclass(frozen=True)
class SinkSettings:
    """Format and options, with references resolved. Never shown: it may hold secrets."""

    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.format not in SINKS:
            raise ConfigError("sink.format", self.format, f"must be one of {', '.join(SINKS)}")

    @classmethod
    def of(
        cls,
        definition: SinkDefinition | None,
        streams: Mapping[str, StreamDefinition] | None = None,
    ) -> SinkSettings:
        """The settings of a definition; what the streams say that feed the sink is its default."""
        if definition is None:
            return cls()
        options = sink_options(definition)
        if definition.format == "mcap" and streams:
            options = {**_of_streams(streams), **options}
        return cls(definition.format, options)


def _of_streams(streams: Mapping[str, StreamDefinition]) -> dict[str, str]:
    """Topics begin with the key; recordings that are read say what their payloads look like."""
    sources = [stream.source for stream in streams.values() if stream.source is not None]
    paths = [s.path for s in sources if s.path is not None and s.format in ("mcap", "rosbag")]
    found = {"key": ",".join(next(iter(streams.values())).key)}
    if paths:
        found["schemasPath"] = ",".join(
            resolve_path(resolve(path, "path"), "path", pattern=True, written=path)
            for path in paths
        )
    return {name: value for name, value in found.items() if value}


def open_sink(settings: SinkSettings, path: str, schemas: dict[str, pa.Schema]) -> Sink:
    """The sink of these settings. A wrong option is a ConfigError before anything has run."""
    return SINKS[settings.format](path, schemas, settings.options)


def _parquet(path: str, schemas: dict[str, pa.Schema], options: Mapping[str, str]) -> Sink:
    allowed = ("zstd", "snappy", "gzip", "lz4", "none")
    _only(options, ("compression",))
    compression = options.get("compression", "zstd")
    if compression not in allowed:
        raise ConfigError("sink.options.compression", compression, f"must be one of {allowed}")
    return ParquetSink(path, schemas, compression=compression)


def _delta(path: str, schemas: dict[str, pa.Schema], options: Mapping[str, str]) -> Sink:
    from tidegate.spark.sinks.delta import DeltaSink

    _only(options, ())
    return DeltaSink(path, schemas)


def _mcap(path: str, schemas: dict[str, pa.Schema], options: Mapping[str, str]) -> Sink:
    from tidegate.spark.sinks.mcap import McapSink

    _only(options, ("compression", "key", "schemasPath"))
    return McapSink(path, schemas, options)


def _kafka(path: str, schemas: dict[str, pa.Schema], options: Mapping[str, str]) -> Sink:
    from tidegate.spark.sinks.kafka import KafkaSink

    return KafkaSink(schemas, options)


def _only(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name, value in options.items():
        if name not in known:
            expected = f"allowed are {', '.join(known)}" if known else "there are no options"
            raise ConfigError(f"sink.options.{name}", value, expected)


Factory = Callable[[str, dict[str, pa.Schema], Mapping[str, str]], Sink]

SINKS: dict[str, Factory] = {
    "parquet": _parquet,
    "delta": _delta,
    "kafka": _kafka,
    "mcap": _mcap,
}
"""What `sink.format` may be."""
