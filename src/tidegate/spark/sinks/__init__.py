"""Where outcomes go: Parquet files, Delta tables or Kafka topics, each exactly once."""

from tidegate.spark.sinks.registry import SINKS, Sink, SinkSettings, open_sink

__all__ = ["SINKS", "Sink", "SinkSettings", "open_sink"]
