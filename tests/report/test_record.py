"""What a run wrote down about itself is what the page goes by; it guesses only without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import store

from tidegate.errors import StateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.run_record import RECORD, record_text
from tidegate.profile.roles import Roles
from tidegate.report.rows import gather_messages
from tidegate.testing.fleet import fleet

STREAM = {
    "source": {"path": "in", "options": {"sasl.password": "hunter2", "user": "${env:WHO}"}},
    "key": "which",
    "topic": "about",
    "arrival": ["heard", "n"],
    "eventtime": {"column": "when", "type": "unixtimestamp_ns"},
}


def write_down(out: Path, stream: dict[str, object]) -> str:
    text = record_text(PipelineDefinition.of({"streams": {"cars": stream}}))
    (out / RECORD).parent.mkdir()
    (out / RECORD).write_text(text)
    return text


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run whose columns have names that nobody would guess."""
    recording = fleet(2, 6, seed=3)
    names = {"vehicle": "which", "topic": "about", "log_time": "heard", "stamp": "when"}
    recording = recording.rename_columns([names.get(n, n) for n in recording.column_names])
    stage = EventtimeWatermark("200 ms", watermark_per="tuple")
    return store(tmp_path / "out", [stage], recording, key="which", time="when")


def test_the_roles_are_those_of_the_run(out: Path) -> None:
    # a file beside it says something else: it may have been edited since
    (out.parent / "pipeline.yaml").write_text("streams: {cars: {key: about}}")
    guessed = gather_messages(open_run(str(out)), Roles())
    assert guessed.roles.key == ("about",)
    write_down(out, STREAM)
    known = gather_messages(open_run(str(out)), Roles())
    assert known.roles == Roles(("which",), "about", "time_ns", "heard")
    assert known.keys == ["car-00000", "car-00001"]
    assert gather_messages(open_run(str(out)), Roles(key=("about",))).roles.key == ("about",)


def test_a_run_that_has_no_key_is_not_given_one(out: Path) -> None:
    write_down(out, {name: value for name, value in STREAM.items() if name != "key"})
    assert gather_messages(open_run(str(out)), Roles()).keys == [""]


def test_secrets_are_not_written_down(out: Path) -> None:
    text = write_down(out, STREAM)
    assert "hunter2" not in text
    options = json.loads(text)["definition"]["streams"]["cars"]["source"]["options"]
    assert options == {"sasl.password": "***", "user": "${env:WHO}"}
    record = open_run(str(out)).record()
    assert record is not None
    assert record.arrival == ("heard", "n")


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not a record"), ("{}", "is not a record"), ('{"format": 9}', "newer version")],
)
def test_a_broken_or_newer_record_is_told(out: Path, text: str, words: str) -> None:
    write_down(out, STREAM)
    (out / RECORD).write_text(text)
    with pytest.raises(StateError, match=words):
        gather_messages(open_run(str(out)), Roles())
