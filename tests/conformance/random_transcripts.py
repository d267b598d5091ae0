"""Writes random transcripts with what our windows make of them, for `against_beam.py` to judge.

    python tests/conformance/random_transcripts.py 2000 > /tmp/random.yaml
    /tmp/beam/bin/python tests/conformance/against_beam.py /tmp/random.yaml

Differences that are meant (see the table in docs/explain/windows.md) are left out: no row is beyond
the allowed lateness, the gap of Beam's sessions is 1 ns longer, as ours includes its end, no window
begins with a late row where a late trigger is set, and no session with a trigger goes on after it
was complete.
"""

from __future__ import annotations

import json
import sys
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Collection, Late, Outcome, Watermark
from tidegate.pipeline.stages import StageContext
from tidegate.pipeline.window_stage import build_window
from tidegate.windows import outputs

GAP = 5


def draw_stage(rng: Random) -> dict[str, Any]:
    """A stage that both models have."""
    stage: dict[str, Any] = rng.choice(
        [{"tumbling": 10}, {"sliding": {"size": 20, "step": 10}}, {"session": GAP}]
    )
    stage = dict(stage)
    reemit = rng.random() < 0.6
    if reemit:
        stage["late"] = {"reemit": 10**6}
        stage["accumulation"] = rng.choice(["accumulating", "discarding"])
    elif rng.random() < 0.5:
        stage["accumulation"] = "accumulating"

    def draw_trigger() -> dict[str, Any]:
        counts: list[Any] = [{"count": rng.randint(1, 4)}, {"size": 8 * rng.randint(1, 4)}]
        return rng.choice([counts[0], {"any": counts}, {"all": counts}])  # type: ignore[no-any-return]

    parts: dict[str, Any] = {}
    if rng.random() < 0.6:
        parts["early"] = draw_trigger()
    if reemit and rng.random() < 0.5:
        parts["late"] = draw_trigger()
    if parts:
        stage["trigger"] = {"watermark": parts}
    return stage


def is_common(stage: dict[str, Any], seen: set[int], watermark: int, at: int) -> bool:
    """Whether both models do the same with a row: see the head of this file."""
    trigger = stage.get("trigger", {}).get("watermark", {})
    if "session" in stage:
        return not trigger or at > watermark
    if "late" not in trigger:
        return True
    size, step = (20, 10) if "sliding" in stage else (10, 10)
    starts = range(at // step * step, at - size, -step)
    return all(
        start + size - 1 > watermark or any(start <= other < start + size for other in seen)
        for start in starts
    )


def play(stage: dict[str, Any], rng: Random) -> list[dict[str, Any]] | None:
    """Random events and what leaves; None if something happened that the models differ in."""
    made = build_window(stage, StageContext())
    state = made.open()
    events: list[dict[str, Any]] = []
    watermark, seen = -1, set[int]()
    late_rows = "late" in stage
    for _ in range(rng.randint(4, 14)):
        out: list[Outcome]
        if rng.random() < 0.7:
            low = 0 if late_rows else watermark + 1
            at = rng.randint(low, max(low, watermark) + 25)
            if at in seen or not is_common(stage, seen, watermark, at):
                continue
            seen.add(at)
            event: dict[str, Any] = {"rows": [at]}
            rows = pa.record_batch({"v": np.array([at])})
            out = made.process(state, Collection.of(rows, np.array([at])))
        else:
            watermark += rng.randint(1, 20)
            event = {"watermark": watermark}
            out = made.advance(state, Watermark.at(watermark))
        if any(isinstance(o, Late) for o in out):
            return None
        event["panes"] = [
            [w.start_ns, w.rows.column("v").to_pylist(), w.timing] for w in outputs(out)
        ]
        events.append(event)
    return events


def main() -> None:
    """Print as many transcripts as asked for, 200 unless told."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    made: list[dict[str, Any]] = []
    seed = 0
    while len(made) < n:
        rng = Random(seed)
        stage = draw_stage(rng)
        if (events := play(stage, rng)) is not None:
            made.append({"name": f"seed {seed}", "stage": stage, "events": events})
            made[-1]["as_beam"] = {"session": GAP + 1} if "session" in stage else {}
        seed += 1
    json.dump(made, sys.stdout)  # every JSON text is a YAML text


if __name__ == "__main__":
    main()
