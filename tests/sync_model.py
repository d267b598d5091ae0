"""The approximate-time rules as the page tells them: queues, a past buffer, one move at a time.

Slow, and shares nothing with the kernel: deques, Python integers and Fractions. The tests hold the
kernel to it, in members, in the input that decides, and in what leaves without a set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random


@dataclass
class Model:
    topics: int
    queue_size: int
    age_penalty: float = 0.1
    max_interval: int | None = None
    bounds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bounds = self.bounds or [0] * self.topics
        self.queues = [deque() for _ in range(self.topics)]
        self.past = [deque() for _ in range(self.topics)]
        self.dropped = [False] * self.topics
        self.candidate: list[tuple[int, int]] | None = None
        self.pivot = -1
        self.start = self.end = self.pivot_time = 0
        self.sets: list[tuple[tuple[int, ...], int]] = []
        self.gone: list[tuple[int, str, int]] = []
        self.now = -1

    def play(self, messages: list[tuple[int, int]]) -> Model:
        for topic, time_ns in messages:
            self.push(topic, time_ns)
        return self

    def push(self, topic: int, time_ns: int) -> None:
        self.now += 1
        queue = self.queues[topic]
        queue.append((time_ns, self.now))
        if len(queue) == 1 and all(self.queues):
            self.search()
        if len(queue) + len(self.past[topic]) > self.queue_size:
            had = self.candidate is not None
            self.restore()
            self.let_go(queue.popleft(), "overflow")
            self.dropped[topic] = True
            self.candidate = None
            if had:
                self.search()

    def let_go(self, message: tuple[int, int], why: str) -> None:
        self.gone.append((message[1], why, self.now))

    def restore(self) -> None:
        for queue, past in zip(self.queues, self.past, strict=True):
            queue.extendleft(reversed(past))
            past.clear()

    def aged(self, distance: int) -> int:
        return int(distance * Fraction(1 + self.age_penalty))  # int() cuts toward zero

    def bounds_of(self, times: list[int]) -> tuple[int, int, int, int]:
        start, end = min(times), max(times)
        first = times.index(start)
        last = len(times) - 1 - times[::-1].index(end)
        return start, first, end, last

    def to_past(self, topic: int) -> None:
        self.past[topic].append(self.queues[topic].popleft())

    def take(self, start: int, end: int) -> None:
        """The fronts are the candidate; whatever was passed before is of no more use."""
        for past in self.past:
            for message in past:
                self.let_go(message, "superseded")
            past.clear()
        self.candidate = [queue[0] for queue in self.queues]
        self.start, self.end = start, end

    def publish(self) -> None:
        self.restore()
        members = [queue.popleft() for queue in self.queues]
        assert members == self.candidate
        self.sets.append((tuple(m[1] for m in members), self.now))
        self.candidate = None

    def search(self) -> None:
        while all(self.queues):
            start, first, end, last = self.bounds_of([queue[0][0] for queue in self.queues])
            for topic in range(self.topics):
                if topic != last:
                    self.dropped[topic] = False
            if self.candidate is None:
                if self.max_interval is not None and end - start > self.max_interval:
                    self.let_go(self.queues[first].popleft(), "too_old")
                    continue
                if self.dropped[last]:
                    self.let_go(self.queues[first].popleft(), "unproven")
                    continue
                self.take(start, end)
                self.pivot, self.pivot_time = last, end
            elif self.aged(end - self.end) < start - self.start:
                self.take(start, end)
            self.to_past(first)
            if first == self.pivot or self.aged(end - self.end) >= self.pivot_time - self.start:
                self.publish()
            elif not all(self.queues):
                self.look_ahead()

    def look_ahead(self) -> None:
        moved = []
        while True:
            times = []
            for topic, queue in enumerate(self.queues):
                if queue:
                    times.append(queue[0][0])
                else:
                    soonest = self.past[topic][-1][0] + self.bounds[topic]
                    # Stamps end with int64; a bound that leads beyond is no later than that.
                    times.append(max(min(soonest, 2**63 - 1), self.pivot_time))
            start, first, end, _ = self.bounds_of(times)
            age = self.aged(end - self.end)
            if age >= self.pivot_time - self.start:
                self.publish()
                return
            if age < start - self.start:
                for topic in reversed(moved):
                    self.queues[topic].appendleft(self.past[topic].pop())
                return
            self.to_past(first)
            moved.append(first)


@dataclass(frozen=True)
class Trace:
    """A random input and settings for it."""

    topics: int
    queue_size: int
    age_penalty: float
    max_interval: int | None
    bounds: list[int]
    messages: list[tuple[int, int]]

    def model(self) -> Model:
        model = Model(
            self.topics, self.queue_size, self.age_penalty, self.max_interval, self.bounds
        )
        return model.play(self.messages)


def random_trace(rnd: Random, longest: int = 150) -> Trace:
    """Ties, overflow, skewed topics, unequal rates, disorder, bounds, intervals: all of them."""
    n = rnd.choice([2, 2, 3, 3, 4, 5, 9])
    bounds = [rnd.choice([0, 0, 5, 20]) if rnd.random() < 0.5 else 0 for _ in range(n)]
    count = rnd.randrange(5, longest)
    kind = rnd.choice(["plain", "plain", "skewed", "disordered", "rates"])
    raster = rnd.choice([1, 5, 50])
    offsets = [rnd.choice([0, 0, 30, -200]) for _ in range(n)]
    messages: list[tuple[int, int]] = []
    if kind == "rates":
        events = []
        for topic in range(n):
            period, t = 5 * rnd.choice([1, 1, 5, 20]), rnd.randrange(20)
            while t < 3 * count:
                events.append((t + rnd.randrange(4), topic, t))
                t += period + rnd.randrange(-2, 3)
        messages = [(topic, t) for _, topic, t in sorted(events)]
    else:
        now, newest = 0, [-(10**9)] * n
        for _ in range(count):
            now += rnd.randrange(8)
            topic = rnd.randrange(n)
            t = now
            if kind == "skewed":
                t += offsets[topic]
            if kind == "disordered":
                t += rnd.randrange(-30, 30)
            t = t // raster * raster
            if kind != "disordered":
                t = newest[topic] = max(t, newest[topic])
            messages.append((topic, t))
    return Trace(
        n,
        rnd.choice([1, 2, 3, 5, 10, 30]),
        rnd.choice([0.0, 0.1, 0.2, 0.5, 1.0, 3.7]),
        rnd.choice([None, None, 0, 5, 20, 100]),
        bounds,
        messages,
    )
