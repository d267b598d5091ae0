"""Runs the transcripts of `transcripts/beam.yaml` through Beam itself and compares.

Beam is no dependency of ours, not even of the tests: run this with an environment that has it.

    python -m venv /tmp/beam && /tmp/beam/bin/pip install apache-beam
    /tmp/beam/bin/python tests/conformance/against_beam.py

Another file of transcripts may be named behind it: `random_transcripts.py` writes such files. They
say `as_beam`, settings that are others in Beam, and are compared without on-time panes in which
nothing is new: Beam emits those.

Rows are given one at a time (Beam may evaluate a trigger once per bundle, however large; the model
is the same), and our watermark w, "everything up to w is here", is w + 1 in Beam. Panes of one
event are compared in the order of their windows: Beam promises none between windows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from apache_beam.runners.direct.clock import TestClock
from apache_beam.transforms import trigger, window
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.window import TimestampCombiner, WindowedValue, WindowFn
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP
from apache_beam.utils.windowed_value import PaneInfoTiming

TRANSCRIPTS = Path(__file__).parent / "transcripts" / "beam.yaml"
ROW_BYTES = 8  # a row of a transcript is one int64
TIMINGS = {
    PaneInfoTiming.EARLY: "early",
    PaneInfoTiming.ON_TIME: "on_time",
    PaneInfoTiming.LATE: "late",
}


def beam_trigger(given: Any) -> Any:
    """A trigger of ours, as Beam writes it."""
    ((name, value),) = given.items()
    if name == "count":
        return trigger.AfterCount(value)
    if name == "size":
        return trigger.AfterCount(-(-value // ROW_BYTES))
    if name == "once":
        return beam_trigger(value)
    if name in ("any", "all"):
        kind = trigger.AfterAny if name == "any" else trigger.AfterAll
        return kind(*(beam_trigger(each) for each in value))
    raise ValueError(f"no trigger of Beam's is like {name}")


def beam_windowing(stage: dict[str, Any]) -> Windowing:
    """A window stage of ours, as Beam writes it."""
    late = stage.get("late")
    lateness = late["reemit"] if isinstance(late, dict) else 0
    if isinstance(lateness, dict):
        lateness = lateness["maxLateness"]
    mode = stage.get("accumulation", "accumulating" if lateness else "discarding")
    given = stage.get("trigger")
    if "tumbling" in stage:
        kind: Any = window.FixedWindows(stage["tumbling"])
    elif "sliding" in stage:
        kind = window.SlidingWindows(stage["sliding"]["size"], stage["sliding"]["step"])
    elif "session" in stage:
        kind = window.Sessions(stage["session"])
    else:
        kind = window.GlobalWindows()
    if given is None:
        made: Any = trigger.DefaultTrigger()
    elif "watermark" in given:
        parts = {name: beam_trigger(each) for name, each in given["watermark"].items()}
        if lateness and "late" not in parts:
            parts["late"] = trigger.AfterCount(1)
        made = trigger.AfterWatermark(**parts)
    elif "once" in given:
        made = beam_trigger(given)
    elif "everything" in stage:
        made = trigger.Repeatedly(beam_trigger(given))
    else:
        made = trigger.AfterWatermark(early=beam_trigger(given))
    combiner = {"end": "OUTPUT_AT_EOW", "earliest": "OUTPUT_AT_EARLIEST",
                "latest": "OUTPUT_AT_LATEST"}[stage.get("timestamp", "end")]  # fmt: skip
    modes = {
        "accumulating": trigger.AccumulationMode.ACCUMULATING,
        "discarding": trigger.AccumulationMode.DISCARDING,
    }
    return Windowing(kind, made, modes[mode], getattr(TimestampCombiner, combiner), lateness)


class Beam:
    """One key of Beam's trigger driver, which its direct runner is made of."""

    def __init__(self, stage: dict[str, Any]) -> None:
        self.windowing = beam_windowing(stage)
        self.driver = trigger.GeneralTriggerDriver(self.windowing, TestClock())
        self.state = trigger.InMemoryUnmergedState()
        self.watermark: Any = MIN_TIMESTAMP
        self.seen: dict[Any, list[int]] = {}
        """Rows of every window that have been in a pane."""

    def play(self, event: dict[str, Any]) -> list[list[Any]]:
        """What Beam emits at an event: [window start, rows, timing] per pane."""
        out: list[Any] = []
        for at in event.get("rows", ()):
            windows = self.windowing.windowfn.assign(WindowFn.AssignContext(at, at))
            row = WindowedValue(at, at, windows)
            out += self.driver.process_elements(self.state, [row], self.watermark, self.watermark)
            out += self.fire()
        if "watermark" in event:
            self.watermark = event["watermark"] + 1
            out += self.fire()
        if "end" in event:
            self.watermark = MAX_TIMESTAMP
            out += self.fire()
        return [self.pane(each) for each in out]

    def is_news(self, pane: list[Any]) -> bool:
        """Whether an on-time pane has rows that no pane before it had."""
        start, rows, timing = pane
        old = self.seen.get(start, [])
        self.seen[start] = [*old, *rows]
        return timing != "on_time" or not set(rows) <= set(old)

    def fire(self) -> list[Any]:
        """The timers that are due."""
        out: list[Any] = []
        while due := self.state.get_and_clear_timers(self.watermark):
            for of, (name, domain, at, _) in due:
                out += self.driver.process_timer(of, name, domain, at, self.state)
        return out

    def pane(self, value: Any) -> list[Any]:
        """A pane as the transcripts write it."""
        (of,) = value.windows
        start = None if isinstance(of, window.GlobalWindow) else int(of.start)
        return [start, sorted(value.value), TIMINGS[value.pane_info.timing]]


def main() -> int:
    """Compare every transcript; print those where Beam differs. Returns 1 if there are any."""
    wrong = 0
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else TRANSCRIPTS
    transcripts = yaml.safe_load(path.read_text())
    for transcript in transcripts:
        beam = Beam({**transcript["stage"], **transcript.get("as_beam", {})})
        emitted = [beam.play(event) for event in transcript["events"]]
        if "as_beam" in transcript:
            emitted = [[pane for pane in panes if beam.is_news(pane)] for panes in emitted]
        if "deviates" in transcript:
            found: Any = [pane for panes in emitted for pane in panes]
            expected: Any = transcript["beam"]
        else:
            found = [sorted(panes, key=lambda pane: pane[0] or 0) for panes in emitted]
            expected = [
                [[start, sorted(rows), timing] for start, rows, timing in event.get("panes", ())]
                for event in transcript["events"]
            ]
            expected = [sorted(panes, key=lambda pane: pane[0] or 0) for panes in expected]
        if found != expected:
            wrong += 1
            print(f"{transcript['name']}\n  Beam: {found}\n  here: {expected}")
    print(f"{len(transcripts) - wrong} of {len(transcripts)} transcripts are as Beam has it")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
