"""Instrument batches: pulses of a detector and a monitor, grouped by what is expected.

    python examples/instrument_batches.py

A batch closes when the last expected pulse of every gated stream is in: not by a count, which a
lost pulse would upset, and not by a timer, which waits too long when all is well.
"""

from __future__ import annotations

import random

import tidegate as tg

SECOND = 10**9


def a_run(seconds: int = 20, seed: int = 3) -> list[tg.Message]:
    """14 Hz and 5 Hz with jitter and lost pulses, five silent seconds, and a log beside them."""
    rng = random.Random(seed)
    messages = []
    for stream, rate in (("detector", 14), ("monitor", 5)):
        for pulse in range(seconds * rate):
            time_ns = round(pulse * SECOND / rate) + rng.randint(-3, 3) * 10**6
            silent = 10 * SECOND <= time_ns < 15 * SECOND
            if not silent and rng.random() > 0.05:
                messages.append(tg.Message(stream, max(time_ns, 0), pulse, gated=True))
    lines = [(n * SECOND // 2, f"line {n}") for n in range(2 * seconds)]
    messages += [tg.Message("log", time_ns, line, gated=False) for time_ns, line in lines]
    return sorted(messages, key=lambda message: message.time_ns)


def main() -> list[str]:
    batcher = tg.RateAwareBatcher("1 s")
    messages = a_run()
    batches = [*batcher.process(messages), *batcher.flush()]
    for batch in batches:
        report = batch.streams.get("detector")
        missing = "-" if report is None or report.missing is None else report.missing
        print(
            f"batch {batch.id:2d}  {batch.start_ns / SECOND:6.2f} s  closed by {batch.reason:8s}"
            f"{len(batch.messages):4d} messages, detector pulses missing: {missing}"
        )
    assert sum(len(batch.messages) for batch in batches) == len(messages)  # nothing is lost
    return [batch.reason for batch in batches]


if __name__ == "__main__":
    main()
