"""ROS messages with any values, for tests: made from the definitions that `rosbags` ships and
serialised by it, so that what we read was written by somebody else."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore

TYPES = (
    "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage",
    "sensor_msgs/msg/Imu", "sensor_msgs/msg/JointState", "sensor_msgs/msg/PointCloud2",
    "sensor_msgs/msg/NavSatFix", "sensor_msgs/msg/BatteryState", "tf2_msgs/msg/TFMessage",
    "diagnostic_msgs/msg/DiagnosticArray", "std_msgs/msg/Empty", "std_msgs/msg/Bool",
    "std_msgs/msg/ByteMultiArray", "std_msgs/msg/UInt64MultiArray", "nav_msgs/msg/Odometry",
    "shape_msgs/msg/Mesh", "trajectory_msgs/msg/JointTrajectory",
)  # fmt: skip


@cache
def store(ros1: bool = False) -> Any:
    return get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.LATEST)


@cache
def definition(kind: str, ros1: bool = False) -> bytes:
    text = store(ros1).generate_msgdef(kind, ros_version=1 if ros1 else 2)[0]
    return str(text).encode()


def any_message(kind: str, rng: random.Random, ros1: bool = False) -> Any:
    """A message of this type; sequences have up to three elements."""
    types = store(ros1)
    values = {name: _value(desc, rng, ros1) for name, desc in types.fielddefs[kind][1]}
    return types.types[kind](**values)


def serialised(message: Any, ros1: bool = False, little_endian: bool = True) -> bytes:
    types, kind = store(ros1), message.__msgtype__
    if ros1:
        return bytes(types.serialize_ros1(message, kind))
    return bytes(types.serialize_cdr(message, kind, little_endian=little_endian))


def plain(value: Any) -> Any:
    """A message as the values that our JSON text should hold."""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype in (np.uint8, np.int8) else value.tolist()
    if isinstance(value, list):
        return [plain(inside) for inside in value]
    if hasattr(value, "__msgtype__"):
        # constants are among the fields of the class: their names are in capitals
        names = [n for n in value.__dataclass_fields__ if n.islower() and not n.startswith("_")]
        names = [n for n in names if n != "structure_needs_at_least_one_member"]  # of no field
        return {name: plain(getattr(value, name)) for name in names}
    return value


def as_json(message: Any) -> Any:
    from base64 import b64encode

    return json.loads(json.dumps(plain(message), default=lambda data: b64encode(data).decode()))


_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "byte": (0, 127), "char": (0, 255),
           "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1),
           "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1),
           "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**63 - 1)}  # fmt: skip


def _value(desc: Any, rng: random.Random, ros1: bool) -> Any:
    kind, of = desc
    if kind == Nodetype.NAME:
        return any_message(of, rng, ros1)
    if kind == Nodetype.BASE:
        return _base(of[0], rng)
    inner, size = of
    count = size if kind == Nodetype.ARRAY else rng.randrange(4)
    made = [_value(inner, rng, ros1) for _ in range(count)]
    if inner[0] == Nodetype.NAME or inner[1][0] == "string":
        return made
    name = {"bool": "bool_", "byte": "uint8", "char": "uint8"}.get(inner[1][0], inner[1][0])
    return np.array(made, getattr(np, name))


def _base(name: str, rng: random.Random) -> Any:
    if name == "string":
        return "".join(rng.choice("aé漢 ") for _ in range(rng.randrange(9)))
    if name == "bool":
        return rng.random() < 0.5
    if name.startswith("float"):
        return float(np.float32(rng.uniform(-1e6, 1e6)))
    return rng.randint(*_RANGES[name])
