"""Which codec reads the payloads of a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.errors import ConfigError
from tidegate.mcap.payload.values import NotDecodableError, Path
from tidegate.mcap.records import Channel, Schema

__all__ = ["Codec", "codec_of"]


class Codec(Protocol):
    """Reads the payloads that belong to one schema."""

    def type_of(self, path: Path) -> pa.DataType | None:
        """The type of a field; None if there is no such field, null if the schema does not say."""

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """A column per field, and a reason for every row that cannot be decoded."""


ENCODINGS = ("cdr", "ros1", "protobuf", "json")


def codec_of(channel: Channel, schema: Schema | None) -> Codec:
    """The codec of a channel; NotDecodableError says why there is none."""
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
