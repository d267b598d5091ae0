"""Kafka through Spark's own connector, with columns a pipeline can use.

    source:
      format: kafka
      options: {kafka.bootstrap.servers: "localhost:9092", subscribe: readings}
      schema: vehicle string, topic string, stamp long       # of the JSON in the value

Inside a partition, arrival order is the offset; between partitions Kafka has none but the time at
which a message came in: `arrival: [kafka_timestamp_ns, kafka_partition, kafka_offset]`. Partitions
run ahead of each other, so each has its own watermark: `eventtime: {source: kafka_partition}`, with
`idleTimeout` for those that fall silent.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812

from tidegate.errors import ConfigError
from tidegate.pipeline.definition import PipelineDefinition
from tidegate.spark.session import session
from tidegate.spark.sources.connector import PACKAGE_VARIABLE, connector_settings

__all__ = [
    "check_broker",
    "check_connector",
    "kafka_columns",
    "session_for",
    "session_settings",
]

UNPARSED = "kafka_unparsed"
"""The text of a value that is not JSON of the schema; null for all others."""

ANSWER_WITHIN_S = 5.0
"""A broker on the same network answers in milliseconds. Spark alone would try for minutes and end
in a Java stack."""


def session_settings(definition: PipelineDefinition) -> dict[str, str]:
    """What a session needs beyond the usual to run this pipeline."""
    sources = [stream.source for stream in definition.streams.values()]
    named = any(source is not None and source.format == "kafka" for source in sources)
    return connector_settings() if named else {}


def session_for(definition: PipelineDefinition, master: str | None, log: Path) -> SparkSession:
    """A session that can run this pipeline; a connector that cannot be had is one sentence."""
    running = SparkSession.getActiveSession() is not None  # it has a connector, or never will
    settings = {} if running else session_settings(definition)
    try:
        return session(master, definition.name, settings, log=log)
    except PySparkException as error:
        missing = re.findall(r"unresolved dependency: ([^:\]]+)", log.read_text(errors="replace"))
        if not settings or not missing:
            raise
        names = ", ".join(
            dict.fromkeys(name.replace("#", ":").replace(";", ":") for name in missing)
        )
        raise ConfigError(
            "spark.jars.packages", settings.get("spark.jars.packages"),
            f"{names} cannot be fetched; {PACKAGE_VARIABLE} can name another (log: {log})",
        ) from error  # fmt: skip


def check_broker(
    options: Mapping[str, str], field: str, name: str = "kafka.bootstrap.servers"
) -> None:
    """Say in one sentence that no broker answers, before Spark says it in many."""
    servers = options.get(name)
    if not servers:
        raise ConfigError(f"{field}.options.{name}", servers, "is required for format kafka")
    reasons = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            number = int(port)
        except ValueError:
            raise ConfigError(f"{field}.options.{name}", servers, "must be host:port") from None
        try:
            with socket.create_connection((host.strip("[]"), number), ANSWER_WITHIN_S):
                return
        except OSError as error:
            reasons.append(f"{server.strip()}: {error.strerror or error}")
    raise ConfigError(
        f"{field}.options.{name}", servers, f"no broker answers ({'; '.join(reasons)})"
    )


def check_connector(spark: SparkSession, field: str) -> None:
    """Say how to get the connector if this session was made without it."""
    java = spark.sparkContext._jvm
    assert java is not None
    try:
        java.java.lang.Class.forName(
            "org.apache.spark.sql.kafka010.KafkaSourceProvider",
            True,
            java.java.lang.Thread.currentThread().getContextClassLoader(),
        )
    except Exception as error:
        raise ConfigError(
            f"{field}.format", "kafka",
            "needs a session with the connector: session(settings=connector_settings()), from "
            "tidegate.spark.sources.connector",
        ) from error  # fmt: skip


def kafka_columns(df: DataFrame, ddl: str | None) -> DataFrame:
    """Kafka's own columns under our names, and those of the JSON in the value, if a schema says
    what is in it. A value that does not fit has nulls and stands in `kafka_unparsed`."""
    own = [
        F.col("topic").alias("kafka_topic"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        (F.unix_micros("timestamp") * 1000).alias("kafka_timestamp_ns"),
        F.col("key").cast("string").alias("kafka_key"),
    ]
    if ddl is None:
        return df.select(*own, F.col("value"))
    wanted = T._parse_datatype_string(ddl)
    if not isinstance(wanted, T.StructType):
        raise ConfigError("schema", ddl, "must name columns")
    taken = {"kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp_ns", "kafka_key"}
    for name in wanted.names:
        if name in taken | {UNPARSED}:
            raise ConfigError("schema", name, "is the name of one of Kafka's columns")
    inside = T.StructType([*wanted.fields, T.StructField(UNPARSED, T.StringType())])
    parsed = F.from_json(
        F.col("value").cast("string"), inside, {"columnNameOfCorruptRecord": UNPARSED}
    )
    # A value of null (a tombstone) parses to a null struct: its row stays, with nulls.
    return df.select(*own, parsed.alias("parsed")).select(
        *[F.col(name) for name in sorted(taken)], "parsed.*"
    )
