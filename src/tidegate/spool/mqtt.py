"""MQTT to a spool: acknowledged when on disk, not before.

The broker keeps what was not acknowledged for a client with a name and sends it again, so no
message of quality of service 1 or 2 is lost when this process dies. What had reached the disk just
before may then come a second time; the broker marks it as a duplicate, and so does the spool.

Two threads: paho's network thread puts messages into a queue, the thread of `run` takes all that
wait, writes them with one fsync and acknowledges them in order. The slower the disk, the more
messages share an fsync.

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
"""Limit of messages per fsync. It bounds the memory of one write and how many messages a broker
sends again after a crash; much smaller values make the disk the bottleneck."""


@dataclass
class Landing:
    """Subscribes, spools, acknowledges; runs until it is stopped."""

    spool: Spool
    """Where messages go. The caller closes it."""
    host: str = "127.0.0.1"
    """Name or address of the broker."""
    port: int = 1883
    """Port of the broker; 1883 is MQTT without TLS."""
    topics: tuple[str, ...] = ("#",)
    """Topic filters to subscribe to, with quality of service 1; `#` is everything."""
    client_id: str = "tidegate-spool"
    """Name of the session at the broker. Keep it across restarts, else the broker forgets what was
    not acknowledged; never use it twice at a time."""
    username: str | None = None
    """User name for the broker; None for no login."""
    password: str | None = field(default=None, repr=False)
    """Used with `username` only; never shown in the representation."""
    landed: int = 0
    """Messages on disk so far."""
    _waiting: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue, repr=False)
    """Messages received and not yet on disk, each with its time of receipt."""
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    def run(self) -> None:
        """Land messages until `stop` is called, or until the disk fails: then no more is
        acknowledged.

        Raises:
            ConfigError: paho-mqtt is not installed, or no broker answers at the start. A connection
                that is lost later is opened again by paho.
            OSError: the spool cannot be written to.
        """
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
        """Make `run` return after the write at hand. May be called from a signal handler or any
        thread."""
        self._stop.set()

    def _subscribe(self, client: Any, *_: Any) -> None:
        """Subscribe. Called by paho after every connect, so that a lost session is set up again."""
        client.subscribe([(topic, 1) for topic in self.topics])

    def _received(self, client: Any, _: Any, message: Any) -> None:
        """Stamp a message and queue it. Called by paho in its network thread."""
        self._waiting.put((message, time.time_ns()))

    def _land(self, client: Any) -> None:
        """Write everything that waits with one fsync; then acknowledge in order. Waits 0.1 s at
        most."""
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
