"""Windows against Beam's model: transcripts in our own words, deviations named in the docs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tidegate.core.outcomes import Collection, Late, Outcome, Watermark
from tidegate.pipeline.stages import StageContext
from tidegate.pipeline.window_stage import build_window
from tidegate.windows import outputs

HERE = Path(__file__).parent
TRANSCRIPTS = yaml.safe_load((HERE / "transcripts" / "beam.yaml").read_text())
DOCS = (HERE.parents[1] / "docs" / "explain" / "windows.md").read_text()


BEAM_PYTHON = os.environ.get("TIDEGATE_BEAM_PYTHON") or (
    sys.executable if find_spec("apache_beam") else ""
)
needs_beam = pytest.mark.skipif(
    not BEAM_PYTHON,
    reason="apache-beam is not installed; TIDEGATE_BEAM_PYTHON names a Python that has it",
)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: t["name"])
def test_transcript(transcript: dict[str, Any]) -> None:
    stage = build_window(transcript["stage"], StageContext())
    state = stage.open()
    for event in transcript["events"]:
        out: list[Outcome]
        if "rows" in event:
            times = np.array(event["rows"], np.int64)
            rows = pa.record_batch({"v": times})
            out = stage.process(state, Collection.of(rows, times))
        elif "watermark" in event:
            out = stage.advance(state, Watermark.at(event["watermark"]))
        else:
            out = stage.flush(state)
        panes = [
            [window.start_ns, window.rows.column("v").to_pylist(), window.timing]
            for window in outputs(out)
        ]
        assert panes == event.get("panes", []), event
        aside = [v for o in out if isinstance(o, Late) for v in o.rows.column("v").to_pylist()]
        assert aside == event.get("aside", []), event


def test_every_deviation_is_in_the_documentation() -> None:
    named = {t["deviates"] for t in TRANSCRIPTS if "deviates" in t}
    table = DOCS.partition("## Where we differ from Beam")[2]
    rows = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    assert named <= rows


def ask_beam(*arguments: str) -> str:
    """The last line of `against_beam.py`."""
    program = [BEAM_PYTHON, str(HERE / "against_beam.py"), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@needs_beam
def test_beam_says_what_the_transcripts_say() -> None:
    said = ask_beam()
    assert said == f"{len(TRANSCRIPTS)} of {len(TRANSCRIPTS)} transcripts are as Beam has it"


@needs_beam
def test_beam_agrees_with_random_transcripts(tmp_path: Path) -> None:
    path = tmp_path / "random.yaml"
    with path.open("w") as file:
        program = [sys.executable, str(HERE / "random_transcripts.py"), "200"]
        subprocess.run(program, stdout=file, check=True)
    assert ask_beam(str(path)) == "200 of 200 transcripts are as Beam has it"
