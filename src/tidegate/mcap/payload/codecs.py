"""Choose the codec that reads the payloads of a channel.

Codecs are imported on first use: rosbags is an optional package, protobuf is slow to import, and
most recordings need one of them at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.errors import ConfigError
from tidegate.mcap.payload.values import NotDecodableError, Path
from tidegate.mcap.records import Channel, Schema

__all__ = ["Codec", "codec_of"]


class Codec(Protocol):
    """Reads the payloads that belong to one schema. A new encoding is one class of this shape.

    A codec is made once per channel and then called with many batches. It never raises for a bad
    payload: that is a reason in the result of `columns`.
    """

    def type_of(self, path: Path) -> pa.DataType | None:
        """Return the type of a field. Called before the first message is read, and for every batch.

        Args:
            path: Names from the message down to the field; empty for the whole message.

        Returns:
            None if there is no such field; the null type if the schema does not tell its type.
        """

    def names_in(self, path: Path) -> tuple[str, ...]:
        """Return the names of the fields of a message, in the order of its schema.

        Args:
            path: Names from the message down to a message in it; empty for the message itself.

        Returns:
            Nothing if there is no single message at the path, or the schema does not tell.
        """

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode some fields of payloads. Called with fields that `type_of` knows.

        Args:
            payloads: Binary array without nulls.
            wanted: Path and column type of each field.

        Returns:
            One column per field, and for every row that cannot be decoded the reason. What such a
            row holds in the columns does not matter: the caller sets it to null.
        """


ENCODINGS = ("cdr", "ros1", "protobuf", "json")
"""Message encodings that can be decoded, as channels name them."""


def codec_of(channel: Channel, schema: Schema | None) -> Codec:
    """Make the codec of a channel.

    Args:
        channel: Its encoding decides which codec.
        schema: The definition of its payloads; only JSON can do without.

    Raises:
        NotDecodableError: the encoding is unknown, or the schema is missing or cannot be read.
        ConfigError: ROS payloads need the package rosbags, which is not installed.
    """
    if channel.encoding == "json":
        from tidegate.mcap.payload.json_text import JsonCodec

        return JsonCodec(schema)
    if channel.encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise NotDecodableError(f"payloads of encoding {channel.encoding!r}; known are {known}")
    if schema is None:
        raise NotDecodableError(f"payloads of encoding {channel.encoding!r} without a schema")
    if channel.encoding == "protobuf":
        from tidegate.mcap.payload.proto import ProtobufCodec

        return ProtobufCodec(schema)
    try:
        from tidegate.mcap.payload.ros_codec import RosCodec
    except ImportError as error:
        raise ConfigError(
            "decode", channel.topic, "needs the package rosbags: pip install 'tidegate[rosbag]'"
        ) from error
    return RosCodec(schema, cdr=channel.encoding == "cdr")
