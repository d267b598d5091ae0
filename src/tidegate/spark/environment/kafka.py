"""Kafka from this machine: whether a broker answers, and which connector a session gets.

Spark publishes its connector apart from itself. A session gets the one that the tests run against
a broker, from `PINNED`: Java runs what is in a jar, so every jar is known by its SHA-256, and one
that is named without a checksum is refused.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.errors import ConfigError
from tidegate.spark.environment.jars import Jar, fetch, here, repository

__all__ = [
    "PACKAGE_VARIABLE",
    "PINNED",
    "check_broker",
    "check_connector",
    "connector_settings",
]

PACKAGE_VARIABLE = "TIDEGATE_KAFKA_PACKAGE"
"""Names another connector: jars with commas between them, each a file (`/opt/connector.jar`) or
coordinates with the SHA-256 of the file (`group:artifact:version@0a1b...`)."""

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
"""Spark's connector, without a version."""

TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
"""What the connector depends on beside Kafka's client, published by Spark too."""

PINNED = (
    Jar(f"{CONNECTOR}:4.2.0", "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"),
    Jar(f"{TOKENS}:4.0.0", "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767"),
    Jar(
        "org.apache.kafka:kafka-clients:3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons:commons-pool2:2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
"""The newest connector that runs on Spark 4.3, the only Spark this package runs on, and what it
needs beside Spark's own jars. Connector 4.0.0 does not run there; a token provider of 4.2.0 was not
to be had, that of 4.0.0 does."""

ANSWER_WITHIN_S = 5.0
"""A broker on the same network answers in milliseconds. Spark alone would try for minutes and end
in a Java stack."""

log = logging.getLogger(__name__)


def connector_settings() -> dict[str, str]:
    """Return what `session(settings=...)` needs for Kafka: the files of the connector's jars.

    What was fetched before is used again without asking, so a machine needs a network only once and
    a pipeline does not change its connector between two runs.

    Raises:
        ConfigError: A jar cannot be fetched, is not the file that was tested, or is named in
            `PACKAGE_VARIABLE` without its checksum.
    """
    named = os.environ.get(PACKAGE_VARIABLE)
    if named:
        return {"spark.jars": ",".join(_named_jar(name.strip()) for name in named.split(","))}
    kept = here(PINNED)
    if kept is None:
        log.info("Kafka: fetching the connector %s from %s", PINNED[0].coordinates, repository())
        try:
            kept = fetch(PINNED)
        except ConfigError as error:
            raise ConfigError(
                "source.format", "kafka", f"{error.expected}; {PACKAGE_VARIABLE} can name jar files"
            ) from error
    return {"spark.jars": ",".join(str(file) for file in kept)}


def _named_jar(name: str) -> str:
    """Return the file of a jar that `PACKAGE_VARIABLE` names; coordinates are fetched.

    Raises ConfigError for coordinates without a checksum: whoever controls the repository, or the
    way to it, would choose what Java runs.
    """
    if name.endswith(".jar"):
        return name
    jar = Jar.parse(name)
    if jar is None:
        raise ConfigError(
            PACKAGE_VARIABLE, name,
            "must be a jar file, or group:artifact:version@SHA256 with the 64 digits of its "
            "checksum (sha256sum FILE)",
        )  # fmt: skip
    (file,) = fetch([jar])
    return str(file)


def check_broker(
    options: Mapping[str, str], field: str, name: str = "kafka.bootstrap.servers"
) -> None:
    """Raise ConfigError if no broker answers: one sentence, before Spark says it in many.

    Args:
        options: The options of a source or sink.
        field: Where in the definition they are, for errors.
        name: The option that lists brokers, as `host:port` with commas between them; one that
            accepts a connection is enough.
    """
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
    """Raise ConfigError, with how to get the connector, if this session was made without it."""
    asked = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
    try:  # the columns of a topic are the same for all, so no broker is asked for them
        _ = asked.option("subscribe", "any").load().schema
    except PySparkException as error:
        raise ConfigError(
            f"{field}.format", "kafka",
            "needs a session with the connector: session(settings=connector_settings()), from "
            "tidegate.spark.environment.kafka",
        ) from error  # fmt: skip
