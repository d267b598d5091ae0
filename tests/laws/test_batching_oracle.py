"""The kernel against the rules written a second time: slow, plain, and apart from it.

The oracle below keeps lists and dicts and follows the specification sentence by sentence. Random
traffic (jitter, missing pulses, splits, silence, broken clocks, changed lengths) must give the same
batches from both, call by call and message by message.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tidegate.batching import Message, RateAwareBatcher

AHEAD, FAR, STALL, EVICT = 3, 1000, 10, 5
SECOND = 10**9
DAY = 86400 * SECOND


class Item(NamedTuple):
    stream: str
    gated: bool
    t: int
    number: int


Result = tuple[int, int, list[Item]]


def rounded(a: int, b: int) -> int:
    q, r = divmod(a, b)
    return q + 1 if 2 * r > b or (2 * r == b and q % 2) else q


def anchor(items: list[Item], length: int) -> int:
    times = sorted(item.t for item in items)
    groups = [[times[0]]]
    for t in times[1:]:
        if t - groups[-1][-1] > AHEAD * length:
            groups.append([])
        groups[-1].append(t)
    return max(groups, key=lambda group: (len(group), group[-1]))[-1]


class Stream:
    def __init__(self) -> None:
        self.diffs: list[int] = []
        self.last: int | None = None
        self.absent = 0
        self.grid: tuple[int, int, int] | None = None

    def observe(self, t: int) -> None:
        if self.last is not None and t > self.last:
            self.diffs = [*self.diffs, t - self.last][-32:]
        self.last = t if self.last is None else max(self.last, t)

    def period(self) -> float | None:
        if len(self.diffs) < 4:
            return None
        seed = statistics.median(self.diffs)
        return statistics.median([d / k for d in self.diffs if (k := round(d / seed)) >= 1])

    def refresh(self, bucket: list[int], start: int, length: int) -> None:
        period = self.period()
        if period is None:
            return
        exact = 1e9 / period
        rate = round(exact)
        if rate < 1 or abs(exact - rate) > max(0.1 * rate, 0.1):
            if exact < 1:
                self.grid = None
            return
        if rate * (length + 1) < 10**9:
            self.grid = None
            return
        if self.grid is not None and abs(self.grid[0] - start) <= FAR * length:
            origin = self.grid[0]
        else:
            assert self.last is not None
            first = bucket[0] if bucket else self.last
            origin = next((t for t in bucket if t >= start), first)
            if abs(origin - start) > FAR * length:
                self.grid = None
                return
        self.grid = (origin, round(1e9 / rate), max(1, round(rate * (length / 1e9))))


class Oracle:
    def __init__(self, length: int, timeout: float) -> None:
        self.length, self.timeout = length, timeout
        self.start: int | None = None
        self.hwm = self.mark = self.wall = self.closed_at = 0
        self.pending: int | None = None
        self.streams: dict[str, Stream] = {}
        self.suspects: list[int] = []
        self.strayed: list[int] = []
        self.patient = False
        self.clear()

    def clear(self) -> None:
        self.active: list[Item] = []
        self.over: list[Item] = []
        self.held: list[Item] = []
        self.reached: dict[str, int] = {}
        self.bucket: dict[str, list[int]] = {}

    @property
    def end(self) -> int:
        assert self.start is not None
        return self.start + self.length

    def gating(self) -> list[str]:
        return [name for name, stream in self.streams.items() if stream.grid]

    def grid(self, item: Item) -> tuple[int, int, int] | None:
        stream = self.streams.get(item.stream)
        return stream.grid if item.gated and stream else None

    def observe(self, item: Item) -> None:
        self.streams.setdefault(item.stream, Stream()).observe(item.t)

    def lift(self, item: Item) -> None:
        assert self.start is not None
        cap = self.start + AHEAD * self.length
        reach = min(item.t, cap)
        grid = self.grid(item)
        if not self.gating():
            self.hwm = self.mark = max(self.hwm, reach)
        elif grid and item.t > self.end + FAR * self.length:
            self.strayed.append(item.t)
            if not self.patient:
                self.hwm, self.mark = max(self.hwm, cap), max(self.mark, cap)
            elif max(self.strayed) - min(self.strayed) >= self.length:
                self.hwm = max(self.hwm, cap)
        elif grid or item.t <= self.end + AHEAD * self.length:
            if grid:
                self.suspects, self.strayed = [], []
            self.hwm, self.mark = max(self.hwm, reach), max(self.mark, reach)
        else:
            self.suspects.append(item.t)
            if not self.patient or max(self.suspects) - min(self.suspects) >= self.length:
                self.hwm = max(self.hwm, cap)

    def route(self, item: Item, stalled: bool = False) -> None:
        assert self.start is not None
        ahead = item.t > self.end + AHEAD * self.length
        if item.t > self.end + FAR * self.length or (stalled and ahead):
            self.active.append(item)
            return
        grid = self.grid(item)
        if grid is None:
            if item.t > self.end and not ahead:
                self.held.append(item)
                return
            self.active.append(item)
            if item.gated:
                self.observe(item)
                self.bucket.setdefault(item.stream, []).append(item.t)
            return
        self.observe(item)
        origin, period, slots = grid
        q, r = divmod(self.start - origin, period)
        first = q if r <= min(1_000_000, period // 2) else q + 1
        slot = rounded(item.t - origin, period) - first
        if slot >= slots:
            self.over.append(item)
            if slot < (1 + AHEAD) * slots:
                self.reached[item.stream] = slots - 1
        else:
            self.active.append(item)
            self.bucket.setdefault(item.stream, []).append(item.t)
            self.reached[item.stream] = max(self.reached.get(item.stream, -1), slot)

    def complete(self) -> bool:
        assert self.start is not None
        waits = math.inf if math.isinf(self.timeout) else round(self.timeout * self.length)
        if self.hwm - self.start >= waits:
            return True
        last = {name: s.grid[2] - 1 for name, s in self.streams.items() if s.grid}
        return bool(last) and all(self.reached.get(n, -1) >= slot for n, slot in last.items())

    def place(self, start: int, stalled: bool = False) -> None:
        items = self.active + self.over + self.held
        self.clear()
        self.start = start
        for item in items:
            self.route(item, stalled)

    def gap(self) -> None:
        assert self.start is not None
        if self.over and not any(self.bucket.get(name) for name in self.gating()):
            steps = (min(item.t for item in self.over) - self.start) // self.length
            if steps > 0:
                self.place(self.start + steps * self.length)

    def stall(self) -> bool:
        items = self.active  # the rows in the window alone (corrected rule 12)
        if self.wall - self.closed_at < STALL * self.length or not items:
            return False
        assert self.start is not None
        self.closed_at = self.wall
        at = anchor(items, self.length)
        if self.start <= at < self.end:
            return False
        self.hwm = self.mark = at
        self.suspects, self.strayed = [], []
        reach = at + FAR * self.length
        self.streams = {n: s for n, s in self.streams.items() if s.last is None or s.last <= reach}
        self.place(at, stalled=True)
        return True

    def jumped(self, beyond: list[Item], rest: list[Item]) -> bool:
        if len(self.strayed) < 2:
            return False
        if self.patient:
            return max(self.strayed) - min(self.strayed) >= self.length
        return bool(beyond) and not rest

    def begin(self, items: list[Item]) -> Result:
        if self.start is not None and self.pending is not None:
            self.length, self.pending = self.pending, None
        at = anchor(items, self.length)
        for stream in self.streams.values():
            stream.grid = None
        for item in items:
            if item.gated and item.t <= at:
                self.observe(item)
        self.clear()
        self.suspects, self.strayed = [], []
        self.start = self.hwm = self.mark = at
        self.closed_at = self.wall
        for stream in self.streams.values():
            stream.refresh([], at, self.length)
        return min(item.t for item in items if item.t >= at - FAR * self.length), at, items

    def close(self) -> Result:
        assert self.start is not None
        start, end = self.start, self.end
        horizon = end + FAR * self.length
        beyond = [item for item in self.active if item.t > horizon]
        rest = [item for item in self.active if item.t <= horizon]
        epoch: list[Item] = []
        if self.jumped(beyond, rest):
            if beyond and not rest:
                return self.begin(beyond + self.over + self.held)
            self.active, epoch = rest, beyond
        for name, stream in self.streams.items():
            if self.bucket.get(name):
                stream.absent = 0
                stream.refresh(self.bucket[name], start, self.length)
            else:
                stream.absent += 1
                if stream.absent >= EVICT:
                    stream.grid = None
        if self.pending is not None:
            self.length, self.pending = self.pending, None
            for stream in self.streams.values():
                if stream.absent < EVICT:
                    stream.refresh([], start, self.length)
        out = self.active
        if not self.gating():
            out = self.active + self.over + self.held
            taught = set()
            for item in self.held:
                if item.gated:
                    self.observe(item)
                    self.bucket.setdefault(item.stream, []).append(item.t)
                    taught.add(item.stream)
            self.over, self.held = [], []
            if out:
                end = max(end, anchor(out, self.length))
                if end - start > FAR * self.length:
                    start = min(item.t for item in out if item.t >= end - FAR * self.length)
            for name in taught:
                self.streams[name].absent = 0
                self.streams[name].refresh(self.bucket[name], self.start, self.length)
        self.streams = {n: s for n, s in self.streams.items() if s.absent < EVICT}
        waiting = self.over + self.held
        self.clear()
        self.start, self.hwm, self.closed_at = end, self.mark, self.wall
        for item in epoch:
            self.lift(item)
            self.route(item)
        for item in waiting:
            self.route(item)
        return start, end, out

    def poll(self, items: list[Item]) -> list[Result]:
        self.patient = False
        if self.start is None:
            return [self.begin(items)] if items else []
        for item in items:
            self.lift(item)
            self.route(item)
        self.gap()
        if self.complete():
            return [self.close()]
        self.stall()
        return []

    def process(self, items: list[Item]) -> list[Result]:
        self.patient = True
        out = []
        for item in items:
            if self.start is None:
                out.append(self.begin([item]))
                continue
            self.lift(item)
            self.route(item)
            while True:
                self.gap()
                if self.complete():
                    out.append(self.close())
                elif not self.stall():
                    break
        return out

    def set_length(self, length: int) -> None:
        if self.start is None:
            self.length = length
        else:
            self.pending = length


def traffic(rng: random.Random) -> tuple[int, list[tuple[int, Item]]]:
    """A batch length, and messages of one to five streams with their arrival times."""
    length = rng.choice([SECOND, SECOND // 2, 2 * SECOND, SECOND // 10])
    base = rng.choice([0, 1_780_000_000 * SECOND, -5 * SECOND])
    out = []
    for number in range(rng.randint(1, 5)):
        gated = rng.random() < 0.7
        rate = rng.choice([14, 5, 1, 7, 2, 0.5, 20, 3.3])
        skew = rng.choice([0, 0, 2 * SECOND, -43 * 365 * DAY, 240 * SECOND])
        skew = skew if rng.random() < 0.3 else 0
        count, jitter = rng.randint(5, 120), rng.choice([0, 0.01, 0.3, 0.5])
        silence, silent_at = rng.choice([0, 0, 5, 2000, 3]) * length, rng.randrange(count)
        t = base + rng.randrange(SECOND)
        for pulse in range(count):
            t += int(SECOND / rate) + (silence if pulse == silent_at else 0)
            if rng.random() < 0.05:
                continue
            stamp = t + skew + int(rng.uniform(-jitter, jitter) * SECOND / rate)
            if rng.random() < 0.01:
                stamp += rng.choice(
                    [365 * DAY, -43 * 365 * DAY, *(n * length for n in (4, 100, 1001))]
                )
            item = Item(f"s{number}", gated, stamp, 0)
            copies = 2 if rng.random() < 0.05 else 1
            out += [(t + rng.randrange(SECOND // 3), item) for _ in range(copies)]
    out.sort(key=lambda entry: entry[0])
    return length, [(at, item._replace(number=n)) for n, (at, item) in enumerate(out)]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), call_by_call=st.booleans())
@example(seed=164228, call_by_call=True)  # a shorter length puts waiting overflow out of reach
def test_the_kernel_follows_the_rules(seed: int, call_by_call: bool) -> None:
    rng = random.Random(seed)
    length, arrivals = traffic(rng)
    timeout = rng.choice([1.2, 0.8, 3.0, math.inf, 0.1])
    wall = [0]
    oracle, batcher = Oracle(length, timeout), RateAwareBatcher(length, timeout, lambda: wall[0])
    seen: set[int] = set()
    at = 0
    while at < len(arrivals):
        part = arrivals[at : at + rng.choice([0, 1, 2, 5, 20, 100])]
        at += len(part)
        wall[0] = oracle.wall = arrivals[min(at, len(arrivals) - 1)][0] - arrivals[0][0]
        if rng.random() < 0.02:
            new = rng.choice([SECOND, 2 * SECOND, SECOND // 2])
            oracle.set_length(new)
            batcher.set_batch_length(new)
        items = [item for _, item in part]
        messages = [Message(i.stream, i.t, i.number, i.gated) for i in items]
        if call_by_call:
            want = oracle.poll(items)
            batch = batcher.poll(messages)
            got = [] if batch is None else [batch]
        else:
            want, got = oracle.process(items), batcher.process(messages)
        assert [(b.start_ns, b.end_ns, sorted(m.payload for m in b.messages)) for b in got] == [
            (start, end, sorted(item.number for item in out)) for start, end, out in want
        ]
        for b in got:
            numbers = {m.payload for m in b.messages}
            assert not numbers & seen
            seen |= numbers
    seen |= {m.payload for b in batcher.flush() for m in b.messages}
    assert seen == set(range(len(arrivals)))
    assert batcher.waiting == 0
