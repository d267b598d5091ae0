"""A ROS 2 node that synchronises a camera and a lidar, and says why messages are lost.

    source /opt/ros/jazzy/setup.bash
    python examples/ros2_node.py

Only the import differs from a node that uses message_filters. Without ROS, the node is played by a
stand-in with made-up messages, so that the example runs anywhere:

    python examples/ros2_node.py --without-ros
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from tidegate.ros2 import ApproximateTimeSynchronizer, Subscriber


class CameraAndLidar:
    """The part of the node that synchronises: give it any node that can subscribe."""

    def __init__(self, node: Any, image_type: Any, cloud_type: Any) -> None:
        inputs = [Subscriber(node, image_type, "/image"), Subscriber(node, cloud_type, "/points")]
        self.sync = ApproximateTimeSynchronizer(inputs, queue_size=10, slop=0.05)
        self.sync.registerCallback(self.both)
        self.sync.registerDropCallback(self.lost)

    def both(self, image: Any, cloud: Any) -> None:
        """Called with every set."""
        print("set", _ms(image), _ms(cloud))

    def lost(self, message: Any) -> None:
        """Called with every message that leaves without a set."""
        print("lost", message.topic, _ms(message.payload), message.reason)


def _ms(message: Any) -> str:
    stamp = message.header.stamp
    return f"{stamp.sec * 1000 + stamp.nanosec // 10**6} ms"


def with_ros() -> None:
    import rclpy
    from rclpy.node import Node
    from sensor_msgs.msg import Image, PointCloud2

    rclpy.init()
    node = Node("camera_and_lidar")
    together = CameraAndLidar(node, Image, PointCloud2)
    node.create_timer(10.0, lambda: node.get_logger().info(str(together.sync.diagnose())))
    rclpy.spin(node)


def without_ros() -> None:
    subscribed: dict[str, Any] = {}

    def create_subscription(kind: Any, topic: str, callback: Any, qos: Any) -> None:
        subscribed[topic] = callback

    together = CameraAndLidar(SimpleNamespace(create_subscription=create_subscription), None, None)
    for topic, ms in [("/image", 0), ("/points", 12), ("/image", 100), ("/points", 205),
                      ("/image", 210), ("/points", 305), ("/image", 310)]:  # fmt: skip
        stamp = SimpleNamespace(sec=0, nanosec=ms * 10**6)
        subscribed[topic](SimpleNamespace(header=SimpleNamespace(stamp=stamp)))
    print(together.sync.diagnose())


if __name__ == "__main__":
    without_ros() if "--without-ros" in sys.argv else with_ros()
