"""The drop-in for message_filters, against a stand-in of the rclpy calls it uses, and against the
recorded callbacks of the C++ policy. Where ROS is installed, against the real one."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cases import load
from tidegate.errors import ConfigError, ContractError
from tidegate.ros2 import ApproximateTimeSynchronizer, Subscriber, TimeSynchronizer


class Node:
    """As much of rclpy's node as a synchroniser sees."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    def create_subscription(self, kind: type, topic: str, callback: Any, qos: Any) -> str:
        self.callbacks[topic] = callback
        return f"subscription of {topic}"

    def publish(self, topic: str, message: Any) -> None:
        self.callbacks[topic](message)


def stamped(ns: int, **fields: Any) -> Any:
    stamp = SimpleNamespace(sec=ns // 10**9, nanosec=ns % 10**9)
    return SimpleNamespace(header=SimpleNamespace(stamp=stamp), ns=ns, **fields)


def test_the_calls_and_callbacks_of_the_original() -> None:
    node = Node()
    image, scan = Subscriber(node, object, "image"), Subscriber(node, object, "scan", 5)
    assert (image.getTopic(), scan.sub) == ("image", "subscription of scan")
    sync = ApproximateTimeSynchronizer([image, scan], 10, 0.05)
    got: list[Any] = []
    dropped: list[Any] = []
    sync.registerCallback(lambda a, b, tag: got.append((a.ns, b.ns, tag)), "mine")
    sync.registerDropCallback(lambda u: dropped.append((u.topic, u.payload.ns, u.reason)))
    for topic, ms in [("image", 0), ("scan", 10), ("image", 100), ("scan", 200), ("image", 205),
                      ("scan", 300)]:  # fmt: skip
        node.publish(topic, stamped(ms * 10**6))
    assert got == [(0, 10 * 10**6, "mine"), (205 * 10**6, 200 * 10**6, "mine")]
    assert dropped == [("0", 100 * 10**6, "too_old")]
    assert sync.counters["0"]["matched"] == 2
    assert sync.diagnose().problem in ("healthy", "starting")


def test_slop_is_seconds_and_not_a_penalty() -> None:
    node = Node()
    inputs = [Subscriber(node, object, name) for name in "ab"]
    sync = ApproximateTimeSynchronizer(inputs, 10, 0.05)
    assert sync._sync.settings.max_interval == 50_000_000
    assert sync._sync.settings.age_penalty == 0.1
    for slop in (-1, "0.1 s", float("nan"), None):
        with pytest.raises(ConfigError, match="slop"):
            ApproximateTimeSynchronizer(inputs, 10, slop)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queue_size"):
        TimeSynchronizer(inputs, 0)


def test_exact_stamps() -> None:
    node = Node()
    sync = TimeSynchronizer([Subscriber(node, object, name) for name in "ab"], 10)
    got: list[Any] = []
    sync.registerCallback(lambda *messages: got.append([m.ns for m in messages]))
    for topic, ns in [("a", 1), ("b", 2), ("a", 2), ("b", 3)]:
        node.publish(topic, stamped(ns))
    assert got == [[2, 2]]


def test_a_message_without_a_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ModuleType("rclpy.clock")
    times = iter([5, 6, 50, 51])
    clock.ROSClock = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        now=lambda: SimpleNamespace(nanoseconds=next(times))
    )
    monkeypatch.setitem(sys.modules, "rclpy", ModuleType("rclpy"))
    monkeypatch.setitem(sys.modules, "rclpy.clock", clock)
    node = Node()
    inputs = [Subscriber(node, object, name) for name in "ab"]
    strict = ApproximateTimeSynchronizer(inputs, 10, 0.1)
    dropped: list[Any] = []
    strict.registerDropCallback(lambda one: dropped.append((one.topic, one.reason)))
    with pytest.warns(UserWarning, match="input 0 has no header.stamp") as warned:
        node.publish("a", SimpleNamespace())  # no exception: it would end the node
    node.publish("b", SimpleNamespace())  # and no second warning: pytest would raise it
    assert (dropped, len(warned)) == ([("0", "no_stamp"), ("1", "no_stamp")], 1)
    loose = ApproximateTimeSynchronizer([_silent(), _silent()], 10, 0.1, allow_headerless=True)
    got: list[Any] = []
    loose.registerCallback(lambda a, b: got.append((a, b)))
    for number, text in [(0, "a5"), (1, "b6"), (0, "a50")]:
        loose.add(text, None, number)
    assert got == [("a5", "b6")]
    by_arrival = TimeSynchronizer([_silent(), _silent()], 10, sync_arrival_time=True)
    by_arrival.add(stamped(7), None, 0)
    assert by_arrival._sync.held == {"0": 1, "1": 0}
    with pytest.raises(ContractError, match="no input 2"):
        by_arrival.add(stamped(7), None, 2)


def _silent() -> Any:
    return SimpleNamespace(registerCallback=lambda callback, *args: None)


def test_a_synchroniser_can_be_the_input_of_another_filter() -> None:
    node = Node()
    inner = TimeSynchronizer([Subscriber(node, object, name) for name in "ab"], 10)
    got: list[Any] = []
    inner.registerCallback(lambda a, b: got.append((a.ns, b.ns)))
    node.publish("a", stamped(1))
    node.publish("b", stamped(1))
    assert got == [(1, 1)]
    # As message_filters' Chain takes a filter out of the middle again.
    inner.callbacks.pop(inner.registerCallback(got.append))
    node.publish("a", stamped(2))
    node.publish("b", stamped(2))
    assert got == [(1, 1), (2, 2)]


@pytest.mark.parametrize("case", load("sync/approximate_time__*.json"))
def test_the_recorded_callbacks_of_the_reference(case: Any) -> None:
    if any(case["lower_bounds_ns"] or []):
        pytest.skip("the Python package has no lower bounds")
    node = Node()
    names = [f"t{k}" for k in range(case["topics"])]
    inputs = [Subscriber(node, object, name) for name in names]
    limit = case["max_interval_ns"]
    sync = ApproximateTimeSynchronizer(
        inputs,
        case["queue_size"],
        10**9 if limit is None else limit / 10**9,
        age_penalty=case["age_penalty"],
    )
    got: list[Any] = []
    sync.registerCallback(lambda *messages: got.append([m.row for m in messages]))
    for row, (topic, ns) in enumerate(case["input"]):
        node.publish(names[topic], stamped(ns, row=row))
    assert got == case["expected_input_index"]


def test_with_the_real_rclpy() -> None:
    rclpy = pytest.importorskip("rclpy")
    filters = pytest.importorskip("message_filters")
    assert rclpy
    sync = ApproximateTimeSynchronizer([filters.SimpleFilter(), filters.SimpleFilter()], 10, 0.1)
    assert len(sync.input_connections) == 2


def test_the_example_node_runs_without_ros(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "ros2_node.py"
    runpy.run_path(str(path))["without_ros"]()
    assert capsys.readouterr().out.splitlines()[:3] == [
        "set 0 ms 12 ms",
        "lost 0 100 ms too_old",
        "set 210 ms 205 ms",
    ]
