"""Kafka topics, one per kind, exactly once for readers of committed messages.

    sink:
      format: kafka
      path: out                       # the folder of the checkpoint
      options: {bootstrap.servers: "localhost:9092", topic: fleet, key: vehicle}

Rows of kind `data` go to `fleet.data`, as JSON, and so on. A micro-batch is one Kafka transaction,
and its last message goes to `fleet.commits`: query and number of the batch. A batch that runs again
after a crash finds that message and writes nothing; one that was cut off was never committed.
Of that topic the broker keeps the newest message of each query, however old it is.
Messages pass through the driver: what Kafka's transactions need is one producer.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.core.arrow import conform
from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import Commit
from tidegate.pipeline.secrets import hidden
from tidegate.pipeline.security import refuse_code
from tidegate.spark.environment.kafka import check_broker
from tidegate.spark.pack import from_blob
from tidegate.spark.sinks.registry import SinkRequest, commit_state_only

try:
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
except ImportError as missing:  # pragma: no cover
    raise ConfigError(
        "sink.format", "kafka", "needs the package confluent-kafka: pip install 'tidegate[kafka]'"
    ) from missing

__all__ = ["KafkaSink"]

WAIT_S = 30.0
"""Seconds for a broker to answer. Below some ten, a change of the leader would end a run; above a
minute, people take it for dead."""

_OWN = ("topic", "key")
"""Options that are ours and not the client library's."""


class KafkaSink:
    """Writes the packed outcomes of a pipeline to one topic per kind.

    Args:
        request: Its options: `bootstrap.servers` and `topic` (required), `key` (a column whose
            value
            is the key of messages); all others go to the client library.

    Raises:
        ConfigError: For a missing option, a key that is no column, an option that names code or
            that the client refuses, or if no broker answers.
    """

    def __init__(self, request: SinkRequest) -> None:
        schemas, options = request.schemas, request.options
        for name in ("bootstrap.servers", "topic"):
            if not options.get(name):
                raise ConfigError(f"sink.options.{name}", None, "is required for format kafka")
        self.schemas = schemas
        self.topic = options["topic"]
        self.key = options.get("key")
        if self.key is not None and self.key not in schemas["data"].names:
            known = ", ".join(schemas["data"].names)
            raise ConfigError("sink.options.key", self.key, f"must be a column: {known}")
        # Anything else is handed to the client library: security settings, timeouts. It tries
        # again by itself, with a line for each time, and what it gives up we raise.
        others = {name: value for name, value in options.items() if name not in _OWN}
        self.client: dict[str, Any] = {"log_level": "2", **others}
        refuse_code(self.client, "sink.options")
        check_broker(options, "sink", "bootstrap.servers")
        try:
            ck.Producer(self.client)
        except ck.KafkaException as error:
            said = hidden(_words(error), options)
            raise ConfigError("sink.options", sorted(self.client), f"refused: {said}") from error
        self._producer: Any = None
        self._owner: str | None = None
        self._last: int | None = None

    @property
    def commits_topic(self) -> str:
        """The topic of commit records: one message per micro-batch."""
        return f"{self.topic}.commits"

    def check_unused(self) -> None:
        """Refuse topics that hold the batch of another backfill."""
        last = self._last_commit("batch")
        if last is not None:
            expected = f"must be unused; {self.commits_topic} holds a backfill already"
            raise ConfigError("sink.options.topic", self.topic, expected)

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        """Write one micro-batch in one transaction, or find that it is written already.

        Whatever fails before the commit aborts the transaction: readers of committed messages see
        none of it.

        Raises:
            StateError: If Kafka refuses a step, as it does when a newer run of the same query has
                taken over.
        """
        self._open(query)
        if self._last is not None and self._last >= batch:
            commit_state_only(outcomes)
            return Commit(batch, query)
        rows: dict[str, int] = {}
        metrics: list[tuple[int, dict[str, int], int | None]] = []
        self._call("begin_transaction")
        try:
            for row in outcomes.toLocalIterator():
                if row.blob is None:
                    metrics.append((row.shard, row.metrics, row.watermark_ns))
                else:
                    some = conform(from_blob(row.blob), self.schemas[row.kind])
                    rows[row.kind] = rows.get(row.kind, 0) + some.num_rows
                    self._send(row.kind, some)
            commit = Commit.of(batch, query, rows, metrics)
            self._produce(self.commits_topic, query, commit.to_json())
        except BaseException:
            self._call("abort_transaction", WAIT_S)
            raise
        self._call("commit_transaction", WAIT_S)
        self._last = batch
        return commit

    # -- inside ---------------------------------------------------------------------------------

    def _open(self, query: str) -> None:
        """A producer that fences off every earlier one of this query, then where that one got."""
        if self._producer is not None and self._owner == query:
            return
        self._create_commits_topic()
        settings = {**self.client, "transactional.id": f"tidegate-{self.topic}-{query}"}
        self._producer = ck.Producer(settings)
        self._call("init_transactions", WAIT_S)
        self._owner = query
        self._last = self._last_commit(query)

    def _create_commits_topic(self) -> None:
        """Compacted, so that no retention takes away what a restart has to find."""
        made = NewTopic(self.commits_topic, 1, config={"cleanup.policy": "compact"})
        admin = AdminClient(self.client)
        try:
            admin.create_topics([made])[self.commits_topic].result(WAIT_S)
        except ck.KafkaException as error:
            if error.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                raise StateError(
                    f"Kafka refused to create {self.commits_topic}: {_words(error)}"
                ) from error

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of the producer; its refusal is a StateError that names the step."""
        try:
            getattr(self._producer, method)(*arguments)
        except ck.KafkaException as error:
            raise StateError(
                f"Kafka refused {method.replace('_', ' ')}: {_words(error)}"
            ) from error

    def _send(self, kind: str, rows: pa.RecordBatch) -> None:
        """Queue the rows of a kind as JSON messages."""
        topic = f"{self.topic}.{kind}"
        for row in rows.to_pylist():
            key = None if self.key is None else row.get(self.key)
            self._produce(topic, None if key is None else str(key), json.dumps(row, default=_json))

    def _produce(self, topic: str, key: str | None, value: str) -> None:
        """Queue one message; waits while the queue to the broker is full."""
        while True:
            try:
                self._producer.produce(topic, value.encode(), key=None if key is None else key)
                self._producer.poll(0)
                return
            except BufferError:  # the queue to the broker is full: let it drain
                self._producer.poll(0.1)

    def _last_commit(self, query: str) -> int | None:
        """The newest batch of this query that was committed, from the topic of commits."""
        consumer = ck.Consumer(
            {
                **self.client,
                "group.id": "tidegate-none", "enable.auto.commit": False,
                "isolation.level": "read_committed", "enable.partition.eof": True,
            }
        )  # fmt: skip
        try:
            found = consumer.list_topics(self.commits_topic, timeout=WAIT_S)
            parts = found.topics[self.commits_topic].partitions
            if not parts:
                return None
            consumer.assign([ck.TopicPartition(self.commits_topic, p, 0) for p in parts])
            last: int | None = None
            ended: set[int] = set()
            while len(ended) < len(parts):
                message: Any = consumer.poll(WAIT_S)
                if message is None:
                    raise StateError(f"Kafka did not answer within {WAIT_S:g} s")
                if message.error() is None:
                    if message.key() == query.encode():
                        batch = Commit.from_json(message.value(), self.commits_topic).batch
                        last = batch if last is None else max(last, batch)
                elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise StateError(f"Kafka: {message.error().str()}")
            return last
        except ck.KafkaException as error:
            servers = self.client["bootstrap.servers"]
            raise ConfigError(
                "sink.options.bootstrap.servers", servers, f"no broker answers ({_words(error)})"
            ) from error
        finally:
            consumer.close()


def _words(error: Exception) -> str:
    """Return what an error of the client says, without its code."""
    inside = error.args[0] if error.args else error
    return str(inside.str()) if hasattr(inside, "str") else str(error)


def _json(value: object) -> str:
    """Bytes as base64; times and whatever else as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
