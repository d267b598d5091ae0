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

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812

from tidegate.errors import ConfigError
from tidegate.spark.environment.kafka import check_broker, check_connector, connector_settings
from tidegate.spark.sources.registry import Source, SourceRequest

__all__ = ["KafkaSource", "kafka_columns"]

UNPARSED = "kafka_unparsed"
"""The text of a value that is not JSON of the schema; null for all others."""


class KafkaSource(Source):
    """Registered as `kafka`. Options are those of Spark's connector; see its documentation."""

    def check(self, options: Mapping[str, str], field: str) -> None:
        """Raise ConfigError if no broker is named or none answers."""
        check_broker(options, field)

    def session_settings(self) -> dict[str, str]:
        """Return the settings that load the connector; may fetch its jars."""
        return connector_settings()

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        """Return the messages with the columns of `kafka_columns`."""
        check_connector(spark, request.field)
        opened = (spark.readStream if request.streaming else spark.read).format("kafka")
        opened = opened.options(**request.options)
        rows = opened.load(request.path) if request.path is not None else opened.load()
        return kafka_columns(rows, request.ddl)


def kafka_columns(df: DataFrame, ddl: str | None) -> DataFrame:
    """Return Kafka's own columns under our names, and those of the JSON in the value.

    Args:
        df: What Spark's connector reads.
        ddl: The schema of the JSON in the value; None: the column `value` stays, as bytes.

    Returns:
        `kafka_topic`, `kafka_partition`, `kafka_offset`, `kafka_timestamp_ns`, `kafka_key` (as
            text),
        then the columns of the schema. A value that does not fit has nulls, and its text is in
        `kafka_unparsed`.

    Raises:
        ConfigError: If the schema is not that of a row, or uses one of these names.
    """
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
