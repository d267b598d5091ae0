"""What is inside a message: chosen fields of ROS 1, ROS 2, protobuf and JSON payloads as columns.

values.py       what all codecs share: paths, errors, columns from plain values, values as JSON text
json_text.py    JSON
proto.py        protobuf
ros.py          ROS definitions, and the program that a kernel runs over payloads
ros_walk.py     that kernel, and from offsets in bytes to columns
ros_codec.py    ROS payloads: fields by the kernel, everything else value by value
codecs.py       which of these reads a channel
fields.py       the fields that a user names, and their types
decoder.py      the payloads of many channels, each by its own codec; what fails gets a reason

Imports go upwards in this list only: a module uses those above it.
"""

from tidegate.mcap.payload.decoder import PayloadDecoder
from tidegate.mcap.payload.fields import Field, parse_fields, resolve_fields

__all__ = ["Field", "PayloadDecoder", "parse_fields", "resolve_fields"]
