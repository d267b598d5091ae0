"""The scenarios of the rate-aware batching document. Colours alternate from batch to batch; a ring
is a slot in which nothing came; orange spans were closed by timeout."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from scenarios.gallery import scenario
from tidegate.batching import Message, MessageBatch, RateAwareBatcher
from tidegate.report.picture import ALTERNATING, Picture

SECOND = 10**9


def pulses(
    stream: str,
    rate: float,
    first: float,
    last: float,
    *,
    offset: float = 0.0,
    without: Iterable[int] = (),
) -> list[Message]:
    """The pulses of a steady gated stream from `first` to `last` seconds."""
    lost = set(without)
    numbers = range(math.ceil(first * rate - 1e-9), math.ceil(last * rate - 1e-9))
    return [
        Message(stream, round(n * SECOND / rate + offset * SECOND), n, gated=True)
        for n in numbers
        if n not in lost
    ]


def log(*seconds: float) -> list[Message]:
    return [Message("log", round(s * SECOND), None, gated=False) for s in seconds]


def in_order(*streams: list[Message]) -> list[Message]:
    return sorted((m for stream in streams for m in stream), key=lambda m: m.time_ns)


def draw(
    batches: list[MessageBatch],
    waiting: list[Message],
    lanes: dict[str, str],
    start: float,
    end: float,
) -> Picture:
    """Batches as spans, their messages in their colour; what still waits in grey."""
    picture = Picture(list(lanes.values()), round(start * SECOND), round(end * SECOND))
    number = {name: n for n, name in enumerate(lanes)}
    for batch in batches:
        colour = ALTERNATING[batch.id % len(ALTERNATING)]
        empty = sum(report.missing or 0 for report in batch.streams.values())
        text = f"{batch.reason}: {len(batch.messages)}" + (
            f", {empty} slots empty" if empty else ""
        )
        shade = "late" if batch.reason == "timeout" else colour
        picture.span(batch.start_ns, batch.end_ns, text, shade)
        for m in batch.messages:
            late = m.time_ns < batch.start_ns
            text = f"batch {batch.id}, {m.stream}" + (", from before it" if late else "")
            picture.dot(number[m.stream], m.time_ns, colour, "diamond" if late else "dot", text)
        for stream in batch.streams:
            for at in _empty_slots(batch, stream):
                picture.dot(number[stream], at, "error", "ring", "nothing came in this slot")
    for m in waiting:
        picture.dot(number[m.stream], m.time_ns, "set", "dot", "still waiting")
    shown = [b for b in batches if b.end_ns > picture.start_ns and b.start_ns < picture.end_ns]
    picture.explain_used({
        ("data", "dot"): "message, in the colour of its batch",
        ("data", "diamond"): "message from before its batch",
        ("error", "ring"): "empty slot",
        ("set", "dot"): "still waiting",
        ("late", "span"): "closed by timeout",
        ("mark", "line"): "deadline",
    })  # fmt: skip
    picture.facts = {
        "reasons": [b.reason for b in shown],
        "sizes": [len(b.messages) for b in shown],
        "lengths": [b.end_ns - b.start_ns for b in shown],
        "missing": [sum(r.missing or 0 for r in b.streams.values()) for b in shown],
        "batches": shown,
        "waiting": len(waiting),
    }
    return picture


def _empty_slots(batch: MessageBatch, stream: str) -> list[int]:
    """Where the slots lie in which nothing came; none if jitter leaves that open."""
    report = batch.streams[stream]
    times = sorted(m.time_ns for m in batch.messages if m.stream == stream)
    if not report.missing or not report.rate_hz or not times:
        return []
    period = SECOND / report.rate_hz
    first = times[0] - round((times[0] - batch.start_ns) / period) * period
    places = [round(first + slot * period) for slot in range(report.expected or 0)]
    empty = [at for at in places if all(abs(at - t) > period / 2 for t in times)]
    return empty if len(empty) == report.missing else []


def run(
    messages: list[Message],
    lanes: dict[str, str],
    start: float,
    end: float,
    batcher: RateAwareBatcher | None = None,
) -> Picture:
    batcher = batcher or RateAwareBatcher("1 s")
    batches = batcher.process(messages)
    left = {id(m) for b in batches for m in b.messages}
    waiting = [m for m in messages if id(m) not in left]
    return draw(batches, waiting, lanes, start, end)


DET = {"det": "det 14 Hz"}


@scenario("batching", "Happy path")
def happy() -> Picture:
    """A steady stream: every batch closes when its last slot is reached."""
    return run(pulses("det", 14, 0, 8.02), DET, 4.9, 8.1)


@scenario("batching", "Missing pulse")
def missing() -> Picture:
    """A pulse that never comes does not block: the batch closes on the last slot, not on a
    count."""
    return run(pulses("det", 14, 0, 8.02, without=[14 * 6 + 6]), DET, 4.9, 8.1)


@scenario("batching", "Split messages")
def split() -> Picture:
    """A second message in the same slot is no further slot: the batch goes on waiting for its
    last one."""
    messages = pulses("det", 14, 0, 6.45)
    double = next(n for n, m in enumerate(messages) if m.payload == 14 * 6 + 2)
    return run([*messages[: double + 1], messages[double], *messages[double + 1 :]], DET, 4.9, 7.1)


@scenario("batching", "Overflow")
def overflow() -> Picture:
    """A pulse past the last slot that comes while another stream is still waited for is kept, and
    goes into the next batch."""
    det, mon = pulses("det", 14, 0, 8.02), pulses("mon", 5, 0, 8.02)
    slow = [m for m in mon if m.payload in (34, 35)]
    messages = in_order(det, [m for m in mon if m not in slow])
    at = 1 + next(n for n, m in enumerate(messages) if m.time_ns > 7.1 * SECOND)
    messages[at:at] = slow
    made = run(messages, {**DET, "mon": "mon 5 Hz"}, 4.9, 8.1)
    made.note(1, slow[0].time_ns, "came after det 7.14 s")
    return made


@scenario("batching", "Several gated streams")
def several() -> Picture:
    """A batch closes only when every gated stream has reached its last slot."""
    both = in_order(pulses("det", 14, 0, 8.02), pulses("mon", 5, 0, 8.02))
    return run(both, {**DET, "mon": "mon 5 Hz"}, 4.9, 8.1)


@scenario("batching", "Phase offset")
def phase() -> Picture:
    """The grid stands on real pulses, not on the window's start: a stream that begins 40 ms
    into the window has all its slots."""
    messages = [*log(0.0), *pulses("det", 14, 0, 8.02, offset=0.04)]
    return run(messages, {**DET, "log": "log"}, 3.9, 7.1)


@scenario("batching", "Gap recovery")
def gap() -> Picture:
    """After five silent batches the window is moved to where traffic goes on; no empty batch is
    emitted."""
    return run([*pulses("det", 14, 0, 6), *pulses("det", 14, 11, 14.02)], DET, 4.9, 14.1)


@scenario("batching", "Timeout")
def timeout() -> Picture:
    """The gate stays open, but a later message moves the high-water mark past 1.2 batch
    lengths: the batch closes as it is."""
    messages = [*pulses("det", 14, 0, 6.4), *log(6.6, 7.25)]
    made = run(messages, {**DET, "log": "log"}, 4.9, 7.6)
    made.line(round(7.2 * SECOND), "1.2 batch lengths")
    return made


@scenario("batching", "Non-gated ride-along")
def ride_along() -> Picture:
    """Log messages never gate: they go into the batch that their time falls in, and the
    detector alone closes it."""
    logs = log(*(n / 3 + 0.05 for n in range(25)))
    return run(in_order(pulses("det", 14, 0, 8.02), logs), {**DET, "log": "log"}, 4.9, 8.1)


@scenario("batching", "Sub-Hz stream")
def sub_hz() -> Picture:
    """A stream slower than one message per batch gets no grid and gates nothing."""
    both = in_order(pulses("det", 14, 0, 12.02), pulses("mon", 0.5, 0, 12.02))
    return run(both, {**DET, "mon": "mon 0.5 Hz"}, 6.9, 12.1)


@scenario("batching", "Ahead of the window")
def ahead() -> Picture:
    """A log message stamped for the next window waits for it instead of leaving with the wrong
    data."""
    messages = pulses("det", 14, 0, 8.02)
    at = next(n for n, m in enumerate(messages) if m.payload == 14 * 6 + 3)
    made = run([*messages[:at], *log(6.1, 7.1), *messages[at:]], {**DET, "log": "log"}, 4.9, 8.1)
    made.note(1, round(7.1 * SECOND), "came at 6.2 s")
    return made


@scenario("batching", "Jitter")
def jitter() -> Picture:
    """Each pulse belongs to its nearest slot: half a period of jitter does no harm, and a pulse
    on the edge moves by one batch at most."""
    rng = random.Random(4)
    messages = [
        Message(m.stream, m.time_ns + rng.randint(-30, 30) * 10**6, m.payload, True)
        for m in pulses("det", 14, 0.1, 9.02)
    ]
    return run(messages, {"det": "det ~14 Hz"}, 4.9, 9.1)


# -- faults: clocks of another epoch, streams that come and go, lengths that change ---------------

YEAR = 365 * 86_400
"""In seconds."""


@scenario("batching", "Broken stream")
def broken() -> Picture:
    """A monitor whose clock is 43 years behind is delivered but never waited for; the good
    stream closes every batch."""
    good = pulses("det", 14, 0, 8.02, offset=50 * YEAR)
    bad = [Message("mon", m.time_ns - 43 * YEAR * SECOND, m.payload, True) for m in good]
    mixed = [m for pair in zip(good, bad, strict=True) for m in pair]
    begin = 50 * YEAR
    made = run(mixed, {**DET, "mon": "mon, 1983"}, begin + 4.9, begin + 8.1)
    made.note(1, made.start_ns, "43 years to the left")
    return made.shifted(-begin * SECOND)


@scenario("batching", "One wrong time")
def outlier() -> Picture:
    """A message a year ahead cannot move the high-water mark further than three batch lengths:
    no flood of empty batches."""
    messages = pulses("det", 14, 0, 9.02)
    at = next(n for n, m in enumerate(messages) if m.payload == 14 * 6 + 3)
    made = run([*messages[:at], *log(float(YEAR)), *messages[at:]], {**DET, "log": "log"}, 4.9, 9.1)
    made.note(1, made.end_ns, "a year to the right")
    return made


@scenario("batching", "Join, absent, evicted, back")
def lifecycle() -> Picture:
    """A stream gates once its rate is known; absent for five batches it is not waited for; it
    may come back."""
    mon = [*pulses("mon", 5, 5, 10), *pulses("mon", 5, 25, 30)]
    messages = in_order(pulses("det", 14, 0, 30.02), mon)
    return run(messages, {**DET, "mon": "mon 5 Hz"}, 3.9, 30.1)


@scenario("batching", "Batch length changes")
def length() -> Picture:
    """set_batch_length applies at the next close; the grid keeps its origin, and 14 slots
    become 28."""
    batcher = RateAwareBatcher("1 s")
    batches = batcher.process(pulses("det", 14, 0, 6.5))
    batcher.set_batch_length("2 s")
    rest = pulses("det", 14, 6.5, 11.02)
    batches += batcher.process(rest)
    left = {id(m) for b in batches for m in b.messages}
    made = draw(batches, [m for m in rest if id(m) not in left], DET, 4.9, 11.1)
    made.line(round(6.5 * SECOND), "set_batch_length(2 s)")
    return made


@scenario("batching", "Far ahead without a grid")
def far() -> Picture:
    """A log message more than three batch lengths ahead cannot be kept for ever: it leaves with
    the batch it came in."""
    messages = pulses("det", 14, 0, 8.02)
    at = next(n for n, m in enumerate(messages) if m.payload == 14 * 6 + 3)
    made = run([*messages[:at], *log(106.0), *messages[at:]], {**DET, "log": "log"}, 4.9, 8.1)
    made.note(1, made.end_ns, "100 s to the right")
    return made


# -- settings: rates that are no whole number, clocks that run ahead, quiet ends -------------------


@scenario("batching", "Any rate")
def any_rate() -> Picture:
    """With rates="any" a stream of 2.5 Hz gates too: its batches of 1 s have two or three slots in
    turn, and no pulse is expected twice or never."""
    batcher = RateAwareBatcher("1 s", rates="any")
    return run(pulses("det", 2.5, 0, 14.1), {"det": "det 2.5 Hz"}, 6.9, 14.1, batcher)


@scenario("batching", "A clock that runs ahead, corrected")
def skewed() -> Picture:
    """With correct_skew=True the measured offset of a clock two seconds ahead is taken off its
    times: after the first batches both streams share their batch again. Rows keep their stamps."""
    ahead_of = [
        Message("mon", m.time_ns + 2 * SECOND, m.payload, True) for m in pulses("mon", 5, 0, 12.02)
    ]
    det = pulses("det", 14, 0, 12.02)
    arrived = [(m.time_ns, m) for m in det] + [(m.time_ns - 2 * SECOND, m) for m in ahead_of]
    messages = [m for _, m in sorted(arrived, key=lambda pair: pair[0])]
    batcher = RateAwareBatcher("1 s", correct_skew=True)
    return run(messages, {**DET, "mon": "mon 5 Hz, 2 s ahead"}, 6.9, 14.1, batcher)


@scenario("batching", "A quiet end")
def quiet() -> Picture:
    """With idle_close="30 s" the rest of a stream that has stopped leaves after half a minute of
    wall time, without another message."""
    batcher = RateAwareBatcher("1 s", idle_close="30 s")
    messages = pulses("det", 14, 0, 7.5)
    batches = batcher.process(messages)
    batches += batcher.tick(31 * SECOND)
    made = draw(batches, [], DET, 4.9, 8.6)
    made.line(round(7.5 * SECOND), "the stream stops")
    return made
