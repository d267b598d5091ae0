"""A recording of a robot arm for tests: ROS 2 messages in MCAP, and what was sent."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ros_messages as ros
from tidegate.mcap import McapWriter

START_NS = 1_700_000_000_000_000_000
KINDS = {
    "camera": "sensor_msgs/msg/CompressedImage",
    "joint": "sensor_msgs/msg/JointState",
    "imu": "sensor_msgs/msg/Imu",
}


class Sent(NamedTuple):
    """One message: topic, stamp, and what it says."""

    topic: str
    stamp_ns: int
    value: Any


def jpeg(image: np.ndarray) -> bytes:
    """A picture as JPEG, by PyAV; any bytes where it is not installed."""
    try:
        import av
    except ImportError:
        return b"\xff\xd8\xff" + image.tobytes()[:50]
    context = av.CodecContext.create("mjpeg", "w")
    context.height, context.width = image.shape[:2]
    context.pix_fmt, context.time_base = "yuvj420p", Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def picture(number: int) -> np.ndarray:
    """A frame whose brightness tells its number."""
    image = np.full((48, 64, 3), 10 + 5 * (number % 40), np.uint8)
    image[:16, :16] = (200, 30, 30)
    return image


def messages(seconds: float, pause_s: float = 0) -> list[Sent]:
    """Camera at 10 Hz, joints at 50 Hz, IMU at 100 Hz; the joints fall silent in the middle."""
    out = [
        Sent("camera", START_NS + number * 100_000_000, jpeg(picture(number)))
        for number in range(int(seconds * 10))
    ]
    for number in range(int(seconds * 50)):
        stamp = START_NS + number * 20_000_000 - 5_000_000
        middle = abs(number / 50 - seconds / 2) * 2 < pause_s
        if not middle:
            out.append(Sent("joint", stamp, [number / 50, float(np.sin(number / 10))]))
    out += [
        Sent("imu", START_NS + number * 10_000_000 + 1_000_000, 9.81 + number / 1000)
        for number in range(int(seconds * 100))
    ]
    return out


def payload(sent: Sent) -> bytes:
    """The message as ROS 2 serialises it."""
    types = ros.store().types
    stamp = types["builtin_interfaces/msg/Time"](
        sec=sent.stamp_ns // 10**9, nanosec=sent.stamp_ns % 10**9
    )
    header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="base")
    none = np.array([], np.float64)
    if sent.topic == "camera":
        data = np.frombuffer(sent.value, np.uint8)
        made = types[KINDS["camera"]](header=header, format="jpeg", data=data)
    elif sent.topic == "joint":
        made = types[KINDS["joint"]](
            header=header, name=["a", "b"], position=np.array(sent.value), velocity=none,
            effort=none,
        )  # fmt: skip
    else:
        vector = types["geometry_msgs/msg/Vector3"]
        zeros = np.zeros(9)
        made = types[KINDS["imu"]](
            header=header,
            orientation=types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0),
            orientation_covariance=zeros, angular_velocity=vector(x=0.0, y=0.0, z=0.0),
            angular_velocity_covariance=zeros,
            linear_acceleration=vector(x=0.0, y=0.0, z=sent.value),
            linear_acceleration_covariance=zeros,
        )  # fmt: skip
    return ros.serialised(made)


def record(path: Path, sent: list[Sent], broken: int | None = None) -> Path:
    """Write messages in the order of arrival, up to 30 ms after their stamps and out of order.

    A topic without messages is not in the file at all.
    """
    rng = np.random.default_rng(5)
    delay = rng.integers(0, 30_000_000, len(sent))
    order = np.argsort([one.stamp_ns + by for one, by in zip(sent, delay, strict=True)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with McapWriter(path, chunk_bytes=20_000) as log:
        channels = {
            topic: log.channel(
                topic=topic, schema=kind, schema_encoding="ros2msg",
                schema_data=ros.definition(kind), encoding="cdr",
            )
            for topic, kind in KINDS.items()
            if any(one.topic == topic for one in sent)
        }  # fmt: skip
        for place, number in enumerate(order.tolist()):
            one = sent[number]
            data = payload(one) if place != broken else b"\x00\x01\x00\x00"
            log.message(channels[one.topic], one.stamp_ns + int(delay[number]), data)
    return path


def pipeline(path: Path, dataset: dict[str, Any], **align: Any) -> dict[str, Any]:
    """The definition that makes a dataset of such a recording."""
    decode = "position as q, data as image, linear_acceleration.z as az"
    return {
        "name": "arm",
        "streams": {
            "arm": {
                "source": {
                    "format": "mcap", "path": str(path),
                    "options": {"clock": "header", "decode": decode},
                },
                "topic": "topic",
                "eventtime": {"column": "header_stamp_ns", "type": "unixtimestamp_ns"},
            }
        },
        "options": {
            "mode": "batch", "eventtime": {"enabled": True, "lateTolerance": "100 ms"},
        },
        "stages": [
            {
                "align": {
                    "reference": "camera", "missing": "drop", "unused": False,
                    "topics": {"joint": {"linear": "50 ms"}, "imu": {"nearest": "20 ms"}},
                    **align,
                }
            },
            {"episodes": {"gap": "150 ms", "actions": {"action": {"next": "joint.q"}}}},
        ],
        "dataset": dataset,
    }  # fmt: skip
