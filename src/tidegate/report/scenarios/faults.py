"""Batching under faults: clocks of another epoch, streams that come and go, lengths that change."""

from __future__ import annotations

from tidegate.batching import Message, RateAwareBatcher
from tidegate.report.scenarios.batching import DET, SECOND, draw, in_order, log, pulses, run
from tidegate.report.scenarios.gallery import scenario
from tidegate.report.scenarios.picture import Picture

YEAR = 365 * 86_400


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
    return _from_zero(made, begin * SECOND)


def _from_zero(picture: Picture, origin: int) -> Picture:
    """The same picture with its axis counted from `origin`."""
    picture.start_ns -= origin
    picture.end_ns -= origin
    picture.spans = [(a - origin, b - origin, *rest) for a, b, *rest in picture.spans]  # type: ignore[misc]
    picture.dots = [(lane, t - origin, *rest) for lane, t, *rest in picture.dots]  # type: ignore[misc]
    picture.notes = [(lane, t - origin, text) for lane, t, text in picture.notes]
    return picture


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
