"""Align: every row takes one value per topic; a line leads to the message it is from."""

from __future__ import annotations

from typing import Any

from scenarios.gallery import scenario
from tidegate import align
from tidegate.report.picture import ALTERNATING, Picture

MS = 10**6


def run(messages: list[tuple[str, int]], **settings: Any) -> Picture:
    """Align (topic, milliseconds) and draw, per row, from where its values are."""
    names = list(dict.fromkeys(topic for topic, _ in messages))
    table = [{"topic": topic, "t": ms * MS, "v": float(ms)} for topic, ms in messages]
    rows = align.rows(table, topic="topic", time="t", **settings).to_pylist()
    lane = {name: n for n, name in enumerate(names)}
    picture = Picture(names, 0, 1000 * MS, lane_height=44, axis="one second, event time")
    used = set()
    for number, row in enumerate(rows):
        colour = ALTERNATING[number % len(ALTERNATING)]
        picture.dot(0, row["time_ns"], colour, "dot", f"row {number}")
        for name in settings["topics"]:
            value = row[name]
            if value["missing"] is not None:
                picture.dot(lane[name], row["time_ns"], "dropped", "ring", value["missing"])
                continue
            used.add((name, value["time_ns"]))
            picture.link([(0, row["time_ns"]), (lane[name], value["time_ns"])], colour)
            said = f"row {number}: {value['v']:g}, {value['offset_ns'] / MS:+g} ms"
            picture.dot(lane[name], value["time_ns"], colour, "dot", said)
    for topic, ms in messages:
        if lane[topic] and (topic, ms * MS) not in used:
            picture.dot(lane[topic], ms * MS, "set", "dot", "the closest message of no row")
    picture.explain_used({
        ("data", "dot"): "row of the camera, and the message closest to each value",
        ("data", "link"): "from the row to that message",
        ("dropped", "ring"): "no value within the tolerance",
        ("set", "dot"): "other message",
    })  # fmt: skip
    picture.facts = {
        "rows": [row["time_ns"] // MS for row in rows],
        "values": {n: [row[n]["v"] for row in rows] for n in settings["topics"]},
        "missing": [
            (n, row["time_ns"] // MS)
            for n in settings["topics"]
            for row in rows
            if row[n]["missing"] is not None
        ],
    }
    return picture


@scenario("align", "one aligned second")
def one_second() -> Picture:
    """Ten camera frames, joints at 25 Hz interpolated, a gripper at 4 Hz taken as it last was; the
    joints are silent for 300 ms, and rows there say so instead of showing old angles."""
    camera = [("camera", 50 + 100 * n) for n in range(10)]
    joint = [("joint", 20 + 40 * n) for n in range(25) if not 480 < 20 + 40 * n < 780]
    gripper = [("gripper", 10 + 250 * n) for n in range(4)]
    return run(
        [*camera, *joint, *gripper],
        reference="camera",
        topics={"joint": align.linear("60 ms"), "gripper": align.latest("400 ms")},
    )
