"""Sinks by the name a definition gives them: `sink: {format: delta, path: ...}`.

To add one: write a module with a class that has the methods of `Sink` and is made from a
`SinkRequest`, and add one line to `SINKS`, or, from another package, call `register_sink` or
publish an entry point in the group `tidegate.sinks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.errors import ConfigError
from tidegate.output.commit import Commit
from tidegate.output.epochs import Claim
from tidegate.pipeline.definition import SINK_FORMATS, SinkDefinition, StreamDefinition
from tidegate.pipeline.formats import register_format, sink_options
from tidegate.spark.pack import Attaches

__all__ = [
    "SINKS",
    "Sink",
    "SinkRequest",
    "SinkSettings",
    "check_output_is_free",
    "claim_output",
    "commit_state_only",
    "join_output",
    "open_sink",
    "register_sink",
]


class Sink(Protocol):
    """What a run needs of a sink. Any class with these two methods will do; it need not inherit.

    Args:
        args, kwargs: Up to the class that implements it; `register_sink` needs something that takes
            a `SinkRequest`.
    """

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        """Write one micro-batch and return its record. Called on the driver, once per micro-batch.

        Called again for the same (query, batch), after a crash, it must change nothing but still
        run `outcomes` (see `commit_state_only`), or Spark's state would not be committed.

        Args:
            outcomes: Packed results: see `tidegate.spark.stateful_step.STEP_DDL`.
            batch: Spark's number of the micro-batch; 0 for a backfill.
            query: The id of the query, kept in its checkpoint; `batch` for a backfill.
        """

    def check_unused(self) -> None:
        """Raise ConfigError if the output holds another run's rows. Called before a backfill."""


@dataclass(frozen=True)
class SinkRequest:
    """What a sink is made from.

    Args:
        path: The output path, absolute or a URI.
        schemas: The Arrow schema of every kind.
        options: `sink.options` as text, with references resolved. May hold secrets: never shown.
        payload: Gives rows the payload that they did not carry, on the workers; None: they carry
            it. A sink that uses it says so with `attaches_payload = True`; others get rows that
            have it.
        take_over: Write even if another driver holds the lease on the output; it is fenced off.
            Default False: such a run is refused.
    """

    path: str
    schemas: dict[str, pa.Schema]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    payload: Attaches | None = None
    take_over: bool = False

    def check_options(self, *known: str) -> None:
        """Raise ConfigError for an option that is not among `known`."""
        for name, value in self.options.items():
            if name not in known:
                expected = f"allowed are {', '.join(known)}" if known else "there are no options"
                raise ConfigError(f"sink.options.{name}", value, expected)

    def check_local(self, format: str) -> None:
        """Raise ConfigError if the path is a URI: for formats that write local files only."""
        if "://" in self.path:
            raise ConfigError("sink.path", self.path, f"must be a local path for format {format}")


class _Nothing:
    """What holds an output that knows no epochs (Kafka fences off producers itself)."""

    def keep(self, active: Callable[[], bool]) -> None:
        """Do nothing while a run goes on."""

    def release(self) -> None:
        """Do nothing when it has ended."""


def claim_output(sink: Sink) -> Claim | _Nothing:
    """Claim the output of a sink for a run that is about to start.

    Call `keep` with a function that says whether the run goes on, or `release` when it is over.

    Raises:
        ConfigError: If another driver is writing there; see `tidegate.output.epochs`.
    """
    claim: Callable[[], Claim] | None = getattr(sink, "claim", None)
    return _Nothing() if claim is None else claim()


def join_output(sink: Sink, epoch: int | None) -> None:
    """Let a sink write under an epoch that another process has claimed for the same run.

    Args:
        sink: A sink that was opened on the server of Spark Connect.
        epoch: What the client claimed; None: nothing, because the sink knows no epochs.

    Raises:
        StateError: If that epoch is not there: the path means another place here.
    """
    join: Callable[[int], None] | None = getattr(sink, "join", None)
    if join is not None and epoch is not None:
        join(epoch)


def check_output_is_free(sink: Sink) -> None:
    """Raise ConfigError if `claim_output` would because of another driver; claims nothing."""
    check: Callable[[], None] | None = getattr(sink, "check_free", None)
    if check is not None:
        check()


SinkFactory = Callable[[SinkRequest], Sink]
"""What makes a sink; usually its class. Raises ConfigError for a wrong option."""

SINKS: dict[str, SinkFactory | str] = {
    "parquet": "tidegate.spark.sinks.parquet:ParquetSink",
    "delta": "tidegate.spark.sinks.delta:DeltaSink",
    "kafka": "tidegate.spark.sinks.kafka:KafkaSink",
    "mcap": "tidegate.spark.sinks.mcap:McapSink",
}
"""What `sink.format` may be: a function of a `SinkRequest`, or the `module:Class` of one, which is
imported when the format is used."""

ENTRY_POINTS = "tidegate.sinks"
"""The entry-point group in which other packages publish formats."""


def register_sink(name: str, make: SinkFactory, *, replace: bool = False) -> None:
    """Make a format known under `name`, for definitions and `tidegate run` in this process.

    Args:
        name: What `sink.format` says.
        make: Returns a `Sink` for a `SinkRequest`, or raises ConfigError for a wrong option;
            usually
            the sink's class.
        replace: Whether a format of that name may be replaced.

    Raises:
        ConfigError: If the name is taken and `replace` is false.

    Example:
        >>> class Discard:
        ...     def __init__(self, request): self.request = request
        ...     def check_unused(self): pass
        ...     def write(self, outcomes, batch, query):
        ...         commit_state_only(outcomes)
        ...         return Commit(batch, query)
        >>> register_sink("discard", Discard)
        >>> type(open_sink(SinkSettings("discard"), "/tmp/out", {})).__name__
        'Discard'
    """
    if name in SINKS and not replace:
        raise ConfigError("name", name, "is taken; give replace=True to replace it")
    SINKS[name] = make
    register_format("sink", name, replace=True)
    if name not in SINK_FORMATS:
        SINK_FORMATS.append(name)


def _factory(format: str) -> SinkFactory | None:
    """Return what makes the sinks of a format: registered, else published by a package; None if
    neither. A `module:Class` is imported here, so a missing package is noticed only when it is
    used.
    """
    found: SinkFactory | str | None = SINKS.get(format)
    if found is None:
        published = entry_points(group=ENTRY_POINTS, name=format)
        found = next(iter(published)).load() if published else None
    if isinstance(found, str):
        module, _, name = found.partition(":")
        made: SinkFactory = getattr(import_module(module), name)
        return made
    return found


@dataclass(frozen=True)
class SinkSettings:
    """Format and options of a sink, with references resolved. Never shown: it may hold secrets.

    - `format`: a name in `SINKS`, registered, or published by a package; default `parquet`, which
      needs no further package and which every other tool reads.
    - `options`: as the sink's module documents them; an unknown one is a ConfigError when the sink
      is opened.
    - `take_over`: take the output over from another driver that holds the lease on it; default
      False: such a run is refused. See `tidegate.output.epochs`.
    """

    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    take_over: bool = False

    def __post_init__(self) -> None:
        if self.format not in SINKS and not entry_points(group=ENTRY_POINTS, name=self.format):
            raise ConfigError("sink.format", self.format, f"must be one of {', '.join(SINKS)}")

    @classmethod
    def of(
        cls,
        definition: SinkDefinition | None,
        streams: Mapping[str, StreamDefinition] | None = None,
    ) -> SinkSettings:
        """Return the settings of a definition; what its streams say is the default of options."""
        if definition is None:
            return cls()
        options = sink_options(definition)
        if streams:
            defaults = getattr(_factory(definition.format), "defaults_of_streams", None)
            if defaults is not None:
                options = {**defaults(streams), **options}
        return cls(definition.format, options)

    def factory(self) -> SinkFactory:
        """Return what makes the sink. Raises ConfigError if a package that it needs is missing."""
        make = _factory(self.format)
        assert make is not None  # the format was checked when these settings were made
        return make

    def request(
        self, path: str, schemas: dict[str, pa.Schema], payload: Attaches | None = None
    ) -> SinkRequest:
        """Return what the sink is made from; see `SinkRequest`."""
        return SinkRequest(path, schemas, self.options, payload, take_over=self.take_over)


def open_sink(
    settings: SinkSettings,
    path: str,
    schemas: dict[str, pa.Schema],
    payload: Attaches | None = None,
) -> Sink:
    """Return the sink of these settings, writing to `path`. For `payload` see `SinkRequest`.

    Raises ConfigError for a wrong option or a missing package, before anything has run.
    """
    return settings.factory()(settings.request(path, schemas, payload))


def commit_state_only(outcomes: DataFrame) -> None:
    """Run a batch that is written already, and write nothing.

    A driver that died between our commit and Spark's runs the batch again. Spark then wants to see
    the state of every partition committed again, or refuses to go on, now and at every restart.
    """
    outcomes.write.format("noop").mode("overwrite").save()
