"""Synchronisation: a line joins the members of a set; a ring left without one, and says why."""

from __future__ import annotations

from typing import Any

from scenarios.gallery import scenario
from tidegate.report.picture import ALTERNATING, Picture
from tidegate.sync import ApproximateTime, EpsilonTime, ExactTime, LatestTime

MS = 10**6


def run(
    sync: Any, messages: list[tuple[str, float]], end_ms: int, *, flush: bool = True
) -> Picture:
    """Push (topic, milliseconds) in this order; draw the sets and what left without one."""
    picture = Picture(list(sync.topics), 0, end_ms * MS, lane_height=40)
    lane = {name: n for n, name in enumerate(sync.topics)}
    sets: list[Any] = []
    gone: list[Any] = []
    decided: list[float | None] = []
    for topic, ms in messages:
        made = sync.push(topic, round(ms * MS))
        sets += made
        decided += [ms] * len(made)
        gone += sync.unmatched
    if flush:
        made = sync.flush()
        sets += made
        decided += [None] * len(made)
        gone += sync.unmatched
    for number, (one, at) in enumerate(zip(sets, decided, strict=True)):
        colour = ALTERNATING[number % len(ALTERNATING)]
        points = [(n, t) for n, t in enumerate(one.times_ns) if t is not None]
        when = "by the end" if at is None else f"by the message at {at:g} ms"
        picture.link(points, colour)
        if not flush and at is not None:
            picture.note(0, points[0][1], f"decided at {at:g} ms")
        for n, t in points:
            picture.dot(
                n, t, colour, "dot", f"set {number}, spread {one.spread_ns / MS:g} ms, {when}"
            )
    for one in gone:
        picture.dot(lane[one.topic], one.time_ns, "dropped", "ring", one.reason)
    taken = {(n, t) for s in sets for n, t in enumerate(s.times_ns)}
    taken |= {(lane[g.topic], g.time_ns) for g in gone}
    for topic, ms in messages:
        if (lane[topic], round(ms * MS)) not in taken:
            picture.dot(lane[topic], round(ms * MS), "set", "dot", "still waiting")
    picture.explain_used({
        ("data", "link"): "a set",
        ("data", "dot"): "message, in the colour of its set",
        ("dropped", "ring"): "left without a set",
        ("set", "dot"): "still waiting",
    })  # fmt: skip
    picture.facts = {
        "sets": [tuple(None if t is None else t / MS for t in s.times_ns) for s in sets],
        "spreads": [s.spread_ns / MS for s in sets],
        "decided": decided,
        "unmatched": [(g.topic, g.time_ns / MS, g.reason) for g in gone],
    }
    return picture


def merged(**streams: list[float]) -> list[tuple[str, float]]:
    """Messages of several topics in order of time."""
    return sorted(((n, ms) for n, times in streams.items() for ms in times), key=lambda m: m[1])


@scenario("synchronisation", "The smallest spread")
def smallest() -> Picture:
    """Of all sets of one message per topic, the one with the smallest spread is taken; no message
    is in two sets, and sets never cross."""
    times = merged(
        camera=[10, 43, 76, 110, 143], lidar=[5, 55, 105, 155], imu=list(range(2, 160, 10))
    )
    return run(ApproximateTime(["camera", "lidar", "imu"], queue_size=20), times, 165)


@scenario("synchronisation", "Decided as soon as it is proven")
def proven() -> Picture:
    """A set is handed out once no later message could make a better one: here the message at 40 ms
    proves the set of 10 and 14 ms, because anything newer lies further away."""
    times = merged(camera=[10, 40, 70], lidar=[14, 44, 74])
    return run(ApproximateTime(["camera", "lidar"], queue_size=10), times, 90, flush=False)


@scenario("synchronisation", "Lower bounds decide earlier")
def bounds() -> Picture:
    """Knowing that a topic's messages are at least 25 ms apart, the same set is proven without
    waiting for the next message of that topic."""
    sync = ApproximateTime(
        ["camera", "lidar"], queue_size=10, lower_bounds={"camera": "25 ms", "lidar": "25 ms"}
    )
    return run(sync, merged(camera=[10, 40, 70], lidar=[14, 44, 74]), 90, flush=False)


@scenario("synchronisation", "A largest interval")
def interval() -> Picture:
    """Sets wider than maxInterval are not formed; the messages leave with their reason."""
    times = merged(camera=[10, 40, 70, 100], lidar=[12, 55, 72, 118])
    return run(
        ApproximateTime(["camera", "lidar"], queue_size=10, max_interval="10 ms"), times, 130
    )


@scenario("synchronisation", "A fast and a slow topic")
def rates() -> Picture:
    """The slow topic sets the pace; of the fast one the nearest is taken, the others leave with
    their reason."""
    times = merged(gps=[25, 75, 125], imu=list(range(4, 150, 10)))
    return run(ApproximateTime(["gps", "imu"], queue_size=20), times, 155)


@scenario("synchronisation", "The queue is full")
def full() -> Picture:
    """A topic that falls silent cannot make the others grow without end: beyond queueSize the
    oldest leaves, and says so."""
    times = merged(camera=[10, 30, 50, 70, 90, 110], lidar=[12, 95, 112])
    return run(ApproximateTime(["camera", "lidar"], queue_size=3), times, 130)


@scenario("synchronisation", "An optional topic falls silent")
def optional() -> Picture:
    """An optional topic that has been silent for longer than its timeout is not waited for: sets
    come without it, and with it again when it is back."""
    sync = ApproximateTime(
        ["camera", "lidar", "gps"], queue_size=20, optional=["gps"], timeout="60 ms"
    )
    camera = [float(t) for t in range(10, 330, 30)]
    lidar = [t + 4 for t in camera]
    return run(sync, merged(camera=camera, lidar=lidar, gps=[13, 43, 250, 280, 310]), 340)


@scenario("synchronisation", "A clock jumps back")
def jump() -> Picture:
    """A stamp far behind its topic's newest is a restart: what lies ahead of it is cleared, and
    matching goes on from there."""
    sync = ApproximateTime(["camera", "lidar"], queue_size=10, max_jump_back="50 ms")
    before = merged(camera=[150, 180, 210], lidar=[154, 184])
    after = merged(camera=[20, 50, 80], lidar=[24, 54, 84])
    return run(sync, [*before, *after], 230)


@scenario("synchronisation", "Equal stamps")
def exact() -> Picture:
    """ExactTime joins messages with the same stamp; what never gets its partner leaves once a
    newer stamp is complete."""
    times = merged(left=[10, 40, 70, 100], right=[10, 70, 100])
    return run(ExactTime(["left", "right"], queue_size=5), times, 120)


@scenario("synchronisation", "Within an epsilon, at once")
def epsilon() -> Picture:
    """EpsilonTime delivers the oldest messages of all topics as soon as they lie within
    maxInterval, without waiting for a better set; otherwise the oldest of all leaves."""
    times = merged(camera=[10, 40, 70, 100], lidar=[12, 55, 72, 104])
    sync = EpsilonTime(["camera", "lidar"], queue_size=10, max_interval="10 ms")
    return run(sync, times, 120, flush=False)


@scenario("synchronisation", "The newest of every topic")
def latest() -> Picture:
    """LatestTime makes a set at every message of its pivot, with the newest message of each other
    topic: slow topics are repeated, and nothing waits."""
    times = merged(imu=[10, 30, 50, 70, 90], camera=[5, 45, 85])
    return run(LatestTime(["imu", "camera"], pivot="imu"), times, 100)
