"""The formats and options that a pipeline file may use: a closed list, with a type per option.

A format of Spark can do more than read rows. JDBC runs statements, a class name loads any class,
options of Kafka's client load libraries. So a definition may use what is listed here and nothing
else, unless whoever starts the run allows more (`--allow-format NAME`, see
`tidegate.pipeline.security`). The list also says which values may be shown: options that are not
listed, and those of type `secret`, are hidden in `explain`, in the run record and in errors.

Sources and sinks that installed code registers (`tidegate.spark.register_sink`) are known by
`register_format`, with or without a list of options.

To add an option: one word in the table of its format below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tidegate.errors import ConfigError
from tidegate.pipeline.definition import PipelineDefinition, SinkDefinition, SourceDefinition
from tidegate.pipeline.errors import unknown
from tidegate.pipeline.secrets import resolve, show_hidden, show_text
from tidegate.pipeline.security import (
    ALLOW_FORMATS,
    allowed_formats,
    expand,
    is_local,
    refuse_code,
    refuse_links_out,
    resolve_path,
)

__all__ = [
    "SINKS",
    "SOURCES",
    "Format",
    "OptionType",
    "refusals",
    "register_format",
    "show_option",
    "sink_options",
    "sink_path",
    "source_settings",
]

Direction = Literal["source", "sink"]
OptionType = str
"""What a value must be: `text`, `integer`, `number`, `boolean`, `path` (must be inside the roots),
`secret` (text that is never shown), `login` (the login of Kafka's Java client: only its own login
modules), or the allowed values with `|` between them."""

_WHOLE = re.compile(r"[+-]?\d{1,30}")
_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{0,30})?([eE][+-]?\d{1,3})?")
_LOGIN = re.compile(
    r"\s*org\.apache\.kafka\.common\.security\.(plain\.PlainLoginModule|scram\.ScramLoginModule)"
    r"\s+required(\s+\w+\s*=\s*(\"[^\"]*\"|[\w.\-]+))*\s*;\s*"
)
"""Other login modules look names up on servers of the file's choosing and load what these
answer."""


@dataclass(frozen=True)
class Format:
    """A format that definitions may use.

    Attributes:
        name: What `format:` says.
        options: Type per option; None if the format checks its own options, as formats of other
            packages may.
    """

    name: str
    options: Mapping[str, OptionType] | None = field(default_factory=dict)

    @cached_property
    def _types(self) -> dict[str, OptionType]:
        return {name.lower(): kind for name, kind in (self.options or {}).items()}

    def type_of(self, option: str) -> OptionType | None:
        """Return the type of an option, None if it is not listed. Case does not matter."""
        return self._types.get(option.lower())


def _option_types(**types: str) -> dict[str, OptionType]:
    """Return the type of each option, from the names of each type separated by spaces.

    >>> _option_types(integer="a b", text="c")
    {'a': 'integer', 'b': 'integer', 'c': 'text'}
    """
    return {name: kind for kind, names in types.items() for name in names.split()}


_FILES = {
    **_option_types(
        text="pathGlobFilter modifiedBefore modifiedAfter timeZone maxFileAge datetimeRebaseMode",
        boolean="recursiveFileLookup ignoreCorruptFiles ignoreMissingFiles latestFirst "
        "fileNameOnly",
        integer="maxFilesPerTrigger maxCachedFiles",
        number="discardCachedInputRatio",
        path="sourceArchiveDir basePath",
    ),
    "maxBytesPerTrigger": "text",
    # `delete` is left out: a file from a stranger must not remove what it has read.
    "cleanSource": "off|archive",
}
"""Of all file formats of Spark, batch and streaming."""

_TEXT_LINES = _option_types(
    text="encoding charset lineSep mode columnNameOfCorruptRecord dateFormat timestampFormat "
    "timestampNTZFormat locale compression",
    boolean="multiLine enableDateTimeParsingFallback",
    number="samplingRatio",
)
"""Of the text formats of Spark: JSON, CSV and XML."""

_CSV = _option_types(
    text="sep delimiter quote escape comment nullValue nanValue positiveInf negativeInf emptyValue "
    "charToEscapeQuoteEscaping unescapedQuoteHandling singleVariantColumn",
    boolean="header inferSchema preferDate enforceSchema ignoreLeadingWhiteSpace "
    "ignoreTrailingWhiteSpace",
    integer="maxColumns maxCharsPerColumn inputBufferSize skipRows skipRowsAfterHeader",
)

_JSON = _option_types(
    text="singleVariantColumn records",
    boolean="primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames "
    "allowSingleQuotes allowNumericLeadingZeros allowBackslashEscapingAnyCharacter "
    "allowUnquotedControlChars allowNonNumericNumbers dropFieldIfAllNull",
)

_XML = _option_types(
    text="rowTag attributePrefix valueTag nullValue singleVariantColumn wildcardColName",
    boolean="inferSchema ignoreSurroundingSpaces ignoreNamespace excludeAttribute",
)
"""`rowValidationXSDPath` is left out: Java's reader of such a schema follows what it includes, to
any file and any server."""

_RECORDING = _option_types(
    text="topics clock decode columnsFromPath settle",
    integer="startNs endNs partitionBytes maxFilesPerTrigger maxBytesPerTrigger",
    boolean="crc",
)
"""Of `mcap` and `rosbag`. Their values are checked by the sources themselves as well."""

_KAFKA_CLIENT = {
    **_option_types(
        text="bootstrap.servers client.id client.rack client.dns.lookup group.id sasl.mechanism "
        "sasl.mechanisms sasl.username sasl.kerberos.service.name sasl.kerberos.principal "
        "ssl.endpoint.identification.algorithm ssl.protocol ssl.enabled.protocols "
        "ssl.cipher.suites ssl.keystore.type ssl.truststore.type ssl.certificate.pem ssl.ca.pem "
        "ssl.keystore.certificate.chain ssl.truststore.certificates compression.type "
        "compression.codec acks auto.offset.reset isolation.level broker.address.family",
        integer="session.timeout.ms request.timeout.ms max.poll.records max.poll.interval.ms "
        "heartbeat.interval.ms fetch.min.bytes fetch.max.bytes fetch.max.wait.ms "
        "max.partition.fetch.bytes receive.buffer.bytes send.buffer.bytes reconnect.backoff.ms "
        "reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms connections.max.idle.ms "
        "metadata.max.age.ms default.api.timeout.ms batch.size batch.num.messages "
        "queue.buffering.max.messages queue.buffering.max.kbytes message.timeout.ms "
        "delivery.timeout.ms message.max.bytes transaction.timeout.ms socket.timeout.ms "
        "message.send.max.retries retries topic.metadata.refresh.interval.ms log_level "
        "max.in.flight.requests.per.connection socket.connection.setup.timeout.ms "
        "statistics.interval.ms",
        number="linger.ms queue.buffering.max.ms",
        boolean="enable.ssl.certificate.verification enable.idempotence check.crcs "
        "allow.auto.create.topics socket.keepalive.enable",
        path="ssl.ca.location ssl.certificate.location ssl.key.location ssl.keystore.location "
        "ssl.truststore.location ssl.crl.location sasl.kerberos.keytab",
        secret="sasl.password ssl.key.password ssl.keystore.password ssl.truststore.password "
        "ssl.key.pem ssl.keystore.key",
        login="sasl.jaas.config",
    ),
    "security.protocol": "text",
}
"""Settings of Kafka's clients that load no code and open no address but the brokers'. The options
of OAuth are left out: their addresses may be files, and their answers are shown in errors."""

SOURCES: dict[str, Format] = {
    "parquet": Format(
        "parquet", {**_FILES, **_option_types(boolean="mergeSchema", text="int96RebaseMode")}
    ),
    "orc": Format("orc", {**_FILES, **_option_types(boolean="mergeSchema")}),
    "json": Format("json", {**_FILES, **_TEXT_LINES, **_JSON}),
    "csv": Format("csv", {**_FILES, **_TEXT_LINES, **_CSV}),
    "xml": Format("xml", {**_FILES, **_TEXT_LINES, **_XML}),
    "text": Format(
        "text", {**_FILES, **_option_types(boolean="wholetext", text="lineSep encoding")}
    ),
    "avro": Format(
        "avro",
        {
            **_FILES,
            **_option_types(
                text="avroSchema mode", path="avroSchemaUrl",
                boolean="ignoreExtension positionalFieldMatching",
            ),
        },
    ),
    "delta": Format(
        "delta",
        _option_types(
            text="timestampAsOf startingTimestamp endingTimestamp startingVersion endingVersion "
            "maxBytesPerTrigger excludeRegex",
            integer="versionAsOf maxFilesPerTrigger",
            boolean="readChangeFeed readChangeData ignoreDeletes ignoreChanges skipChangeCommits "
            "withEventTimeOrder failOnDataLoss mergeSchema",
            path="schemaTrackingLocation",
        ),
    ),
    "kafka": Format(
        "kafka",
        {
            **_option_types(
                text="assign subscribe subscribePattern startingOffsets endingOffsets "
                "startingOffsetsByTimestamp endingOffsetsByTimestamp "
                "startingOffsetsByTimestampStrategy groupIdPrefix maxTriggerDelay",
                integer="startingTimestamp endingTimestamp kafkaConsumer.pollTimeoutMs "
                "fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger "
                "minOffsetsPerTrigger minPartitions maxRecordsPerPartition",
                boolean="failOnDataLoss includeHeaders",
            ),
            **{f"kafka.{name}": kind for name, kind in _KAFKA_CLIENT.items()},
        },
    ),
    "mcap": Format("mcap", _RECORDING),
    "rosbag": Format("rosbag", _RECORDING),
    "spool": Format("spool", _option_types(integer="maxRowsPerTrigger")),
    "rate": Format("rate", _option_types(text="rampUpTime", integer="rowsPerSecond numPartitions")),
}  # fmt: skip
"""The sources that a definition may use. `rate` is Spark's generator of numbered rows, for
tests."""

SINKS: dict[str, Format] = {
    "parquet": Format("parquet", {"compression": "zstd|snappy|gzip|lz4|none"}),
    "delta": Format("delta"),
    "mcap": Format("mcap", _option_types(text="compression key", path="schemasPath")),
    "kafka": Format("kafka", {**_option_types(text="topic key"), **_KAFKA_CLIENT}),
}
"""The sinks that a definition may use."""


def register_format(
    direction: Direction,
    name: str,
    options: Mapping[str, OptionType] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Let definitions use a format that installed code provides.

    Args:
        direction: "source" or "sink".
        name: What `format:` says.
        options: Type per option (see `OptionType`). None: the format checks its own options, and
            their values are never shown.
        replace: Whether a format of this name may be there already.

    Raises:
        ConfigError: The name is taken, and `replace` is not set.
    """
    known = SOURCES if direction == "source" else SINKS
    if name in known and not replace:
        raise ConfigError(f"{direction}.format", name, "is registered already; pass replace=True")
    known[name] = Format(name, None if options is None else dict(options))


# -- what may be shown -----------------------------------------------------------------------------


def show_option(direction: Direction, format: str, name: str, value: object) -> object:
    """Return the value of an option as it may be shown.

    >>> show_option("source", "csv", "header", True)
    True
    >>> show_option("source", "kafka", "kafka.sasl.password", "hunter2")
    '***'
    >>> show_option("source", "jdbc", "anything", "hunter2")
    '***'
    """
    known = (SOURCES if direction == "source" else SINKS).get(format)
    kind = None if known is None else known.type_of(name)
    if kind in (None, "secret", "login"):
        return show_hidden(value)
    return show_text(value)


# -- what may be used ------------------------------------------------------------------------------


def source_settings(source: SourceDefinition, field: str) -> tuple[str | None, dict[str, str]]:
    """Return path and options of a source, checked, with references resolved. May hold secrets.

    Args:
        source: The source of a definition.
        field: Its place in the definition, such as `streams.fleet.source`.

    Raises:
        ConfigError: A format, option or path that is not allowed, not of its type, or not there.
    """
    options = _checked_options("source", source.format, source.options, field)
    if source.path is None:
        return None, options
    where = f"{field}.path"
    path = resolve_path(resolve(source.path, where), where, pattern=True, written=source.path)
    if is_local(path):
        places = expand(path, where)
        if not places:
            raise ConfigError(where, source.path, "does not exist")
        refuse_links_out(places, where, written=source.path)
    return path, options


def sink_options(sink: SinkDefinition, field: str = "sink") -> dict[str, str]:
    """Return the options of a sink, checked, with references resolved. May hold secrets."""
    return _checked_options("sink", sink.format, sink.options, field)


def sink_path(path: str, field: str = "sink.path") -> str:
    """Return the path of a sink or a checkpoint, checked, with references resolved."""
    place = resolve_path(resolve(path, field), field, written=path)
    if is_local(place):
        refuse_links_out([Path(place)], field, written=path)
    return place


def _checked_options(
    direction: Direction, format: str, options: Mapping[str, object], field: str
) -> dict[str, str]:
    """Return the options of a source or sink as text, checked, with references resolved.

    Args:
        direction: Which list of formats counts.
        format: The format of the source or sink.
        options: What the definition says.
        field: Its place in the definition, for errors.

    Raises:
        ConfigError: The format or an option is not allowed, names code, or is not of its type.
            Errors show the text of the definition, never what a reference stands for.
    """
    known = _format(direction, format, f"{field}.format")
    free = format.lower() in allowed_formats() or (known is not None and known.options is None)
    refuse_code(options, f"{field}.options")
    made = {}
    for name, given in options.items():
        where = f"{field}.options.{name}"
        if name.lower() == "path":
            raise ConfigError(f"{field}.options", name, f"is {direction}.path, not an option")
        kind = None if known is None else known.type_of(name)
        if kind is None and not free:
            text = unknown(name, (known.options or {}) if known else ())
            raise ConfigError(
                where, show_hidden(given),
                f"{text}; others need --allow-format {format} or {ALLOW_FORMATS}={format}",
            )  # fmt: skip
        value = resolve(_option_text(given), where)
        shown = show_option(direction, format, name, given)
        made[name] = _check_option(value, kind or "text", where, shown)
    return made


def _format(direction: Direction, format: str, field: str) -> Format | None:
    """Return the listed format, or None for one that whoever started the run allows.

    Raises:
        ConfigError: The format is neither listed nor allowed.
    """
    known = SOURCES if direction == "source" else SINKS
    if format in known:
        return known[format]
    if format.lower() in allowed_formats():
        return None
    raise ConfigError(
        field, format,
        f"is not among the formats a pipeline file may use ({', '.join(sorted(known))}); allow it "
        f"for this run with --allow-format {format} or {ALLOW_FORMATS}={format}",
    )  # fmt: skip


def _option_text(value: object) -> str:
    """Return an option as text, which is all that Spark takes; true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_option(value: str, kind: OptionType, field: str, shown: object) -> str:
    """Return the value if it is of its type, else raise a ConfigError.

    Args:
        value: The text to use, with references resolved. May be a secret.
        kind: Its type; several paths have commas between them, and each must be inside the roots.
        field: Its place in the definition, for errors.
        shown: What an error may show of it.
    """
    plain = value.strip()
    if kind == "integer" and not _WHOLE.fullmatch(plain):
        raise ConfigError(field, shown, "must be a whole number")
    if kind == "number" and not _NUMBER.fullmatch(plain):
        raise ConfigError(field, shown, "must be a number")
    if kind == "boolean" and plain.lower() not in ("true", "false"):
        raise ConfigError(field, shown, "must be true or false")
    if kind == "login" and not _LOGIN.fullmatch(value):
        raise ConfigError(
            field, shown,
            "must be a PlainLoginModule or ScramLoginModule of Kafka, as in "
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="..." '
            'password="...";',
        )  # fmt: skip
    if kind == "path":
        return ",".join(
            resolve_path(part.strip(), field, pattern=True, written=str(shown))
            for part in value.split(",")
        )
    if "|" in kind and plain not in kind.split("|"):
        raise ConfigError(field, shown, f"must be one of {', '.join(kind.split('|'))}")
    return value


def refusals(definition: PipelineDefinition) -> Iterator[str]:
    """Yield a sentence for everything in a definition that a run would refuse by its format.

    `explain` shows them: a file from a stranger can be looked at before anything is allowed.
    """
    parts: list[tuple[Direction, Any, str]] = [
        ("source", stream.source, f"streams.{name}.source")
        for name, stream in definition.streams.items()
        if stream.source is not None
    ]
    if definition.sink is not None:
        parts.append(("sink", definition.sink, "sink"))
    for direction, part, field_name in parts:
        known = (SOURCES if direction == "source" else SINKS).get(part.format)
        free = part.format.lower() in allowed_formats()
        if known is None and not free:
            yield (
                f"a run refuses {field_name}.format {part.format} unless it is started with "
                f"--allow-format {part.format}"
            )
            continue
        for name in part.options:
            listed = known is None or known.options is None or known.type_of(name) is not None
            if not listed and not free:
                yield f"a run refuses the option {field_name}.options.{name}"
