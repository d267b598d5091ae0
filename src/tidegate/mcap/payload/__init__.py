"""What is inside a message: chosen fields of ROS 1, ROS 2, protobuf and JSON payloads as columns.

fields.py       what was asked for, and its types
decoder.py      the payloads of many channels, each by its own codec; what fails gets a reason
ros.py          ROS definitions, and the program that a kernel runs over payloads
ros_walk.py     that kernel, and from places in bytes to columns
ros_codec.py    ROS payloads: fields by the kernel, everything else value by value
proto.py        protobuf
json_text.py    JSON
values.py       columns from plain values, and values as JSON text
"""

from tidegate.mcap.payload.decoder import PayloadDecoder
from tidegate.mcap.payload.fields import Field, parse_fields, resolve_fields

__all__ = ["Field", "PayloadDecoder", "parse_fields", "resolve_fields"]
