"""MQTT to a spool: acknowledged when on disk, not before.

The broker keeps what was not acknowledged for a client with a name and sends it again, so nothing
of quality of service 1 or 2 is lost when this process dies. What had reached the disk just before
may then come a second time; it is marked as a duplicate by the broker and kept as such.

Clock policy: the wall clock stamps receipt, and nothing else.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import ConfigError
from tidegate.spool.log import DUPLICATE, Landed, Spool

__all__ = ["Landing"]

MOST_PER_SYNC = 10_000
"""Messages per fsync at most: bounds the memory held back and what a broker sends again."""


@dataclass
class Landing:
    """Subscribes, spools, acknowledges; runs until it is stopped."""

    spool: Spool
    host: str = "127.0.0.1"
    port: int = 1883
    topics: tuple[str, ...] = ("#",)
    client_id: str = "tidegate-spool"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    landed: int = 0
    _waiting: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    def run(self) -> None:
        """Until `stop`, or until the disk refuses: then nothing more is acknowledged."""
        try:
            import paho.mqtt.client as mqtt
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError as error:
            raise ConfigError(
                "mqtt", self.host, "needs the package paho-mqtt: pip install 'tidegate[mqtt]'"
            ) from error
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, self.client_id, clean_session=False, manual_ack=True
        )
        if self.username is not None:
            client.username_pw_set(self.username, self.password)
        client.on_connect = self._subscribe
        client.on_message = self._received
        try:
            client.connect(self.host, self.port)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                "mqtt", f"{self.host}:{self.port}", f"no broker answers ({reason})"
            ) from error
        client.loop_start()
        try:
            while not self._stop.is_set():
                self._land(client)
        finally:
            client.disconnect()
            client.loop_stop()

    def stop(self) -> None:
        self._stop.set()

    def _subscribe(self, client: Any, *_: Any) -> None:
        client.subscribe([(topic, 1) for topic in self.topics])

    def _received(self, client: Any, _: Any, message: Any) -> None:
        self._waiting.put((message, time.time_ns()))

    def _land(self, client: Any) -> None:
        """Everything that waits, with one fsync; then the acknowledgements, in order."""
        try:
            some = [self._waiting.get(timeout=0.1)]
        except queue.Empty:
            return
        while len(some) < MOST_PER_SYNC:
            try:
                some.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        self.spool.append(
            [
                Landed(m.topic, received_ns, bytes(m.payload), DUPLICATE if m.dup else 0)
                for m, received_ns in some
            ]
        )
        self.landed += len(some)
        for message, _ in some:
            if message.qos:
                client.ack(message.mid, message.qos)
