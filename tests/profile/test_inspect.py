"""inspect and init: what they say about a recording whose troubles are known."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tidegate import cli
from tidegate.core.time import format_time
from tidegate.errors import ConfigError
from tidegate.mcap import McapWriter
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.profile.inspect import inspect
from tidegate.profile.roles import Roles, guess_roles
from tidegate.profile.show import print_profile
from tidegate.profile.starter import no_time, starter
from tidegate.profile.statistics import histogram, topic_statistics
from tidegate.profile.time_columns import time_candidates
from tidegate.sync import Synchronize
from tidegate.testing.fleet import TOPICS, facts, fleet

START = 1_767_225_600 * 10**9


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording")
    table = fleet(3, 20, seed=11)
    half = table.num_rows // 2
    pq.write_table(table.slice(0, half), path / "000.parquet")
    pq.write_table(table.slice(half), path / "001.parquet")
    return path


def test_a_fleet_is_read_without_being_told_anything(recording: Path) -> None:
    look = inspect(str(recording))
    table = fleet(3, 20, seed=11)
    assert look.roles == Roles(("vehicle",), "topic", "stamp", "log_time")
    assert look.time_type == "unixtimestamp_ns"
    assert look.rows == look.rows_read == table.num_rows
    assert look.keys == 3
    rates = {stream.topic: stream.rate_hz for stream in look.streams}
    assert rates == {name: pytest.approx(hz, rel=0.02) for name, hz in TOPICS.items()}
    known = facts(table)
    assert sum(look.errors.values()) == known.unreadable + known.skewed
    assert look.wrong_clocks == known.skewed
    assert sum(n for reason, n in look.errors.items() if "ahead of its key" in reason) == (
        known.skewed
    )


def test_the_suggested_tolerance_does_what_it_says(recording: Path) -> None:
    look = inspect(str(recording))
    assert look.late_tolerance_ns is not None
    table = fleet(3, 20, seed=11)
    usable = look.rows_read - sum(look.errors.values())
    for tolerance, share in look.late_share:
        assert facts(table, tolerance).late == round(share * usable)
    assert 150_000_000 < look.late_tolerance_ns <= 200_000_000  # the recording's disorder
    assert dict(look.late_share)[look.late_tolerance_ns] <= 0.005


def test_lower_bounds_hold_for_every_neighbour(recording: Path) -> None:
    look = inspect(str(recording))
    assert set(look.lower_bounds_ns) == set(TOPICS)
    for stream in look.streams:
        assert 0 < look.lower_bounds_ns[stream.topic] <= stream.period_ns


def test_a_topic_whose_clock_runs_behind_shows_as_skew(tmp_path: Path) -> None:
    times = START + np.arange(500) * 10**7
    rows = {
        "topic": ["a", "b"] * 500,
        "stamp": np.repeat(times, 2) - np.tile([0, 3_000_000], 500),
        "log_time": np.repeat(times, 2) + np.tile([10**6, 10**6], 500),
    }
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    delays = {d.topic: d for d in inspect(str(tmp_path / "t.parquet")).delays}
    assert delays["a"].skew_ns == 0
    assert delays["b"].skew_ns == 3_000_000


def test_gaps_missing_messages_and_duplicates_are_counted() -> None:
    times = np.array([0, 10, 20, 20, 40, 50, 110, 120], np.int64)  # one missing, one gap of five
    nothing = np.zeros(len(times), np.int64)
    (look,) = topic_statistics(nothing, nothing, times, ["t"])
    assert (look.period_ns, look.gaps, look.longest_gap_ns) == (10, 1, 60)
    assert (look.missing, look.duplicates, look.jitter.max) == (1 + 5, 1, 0)


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_a_histogram_loses_no_value(values: list[int]) -> None:
    edges, counts = histogram(np.array(values, np.int64))
    assert sum(counts) == len(values)
    assert edges == sorted(set(edges))


@pytest.mark.parametrize(
    ("factor", "name"),
    [(10**9, "unixtimestamp_s"), (10**6, "unixtimestamp_ms"), (10**3, "unixtimestamp_us"),
     (1, "unixtimestamp_ns")],
)  # fmt: skip
def test_the_unit_of_a_time_column_is_found(factor: int, name: str) -> None:
    found = time_candidates(
        pa.table({"n": [1, 2, 3], "at": [START // factor + n for n in range(3)]})
    )
    assert [(c.column, c.type) for c in found] == [("at", name)]
    assert found[0].first_ns == START


def test_text_times_in_csv_are_read_as_the_run_will_read_them(tmp_path: Path) -> None:
    table = pa.table(
        {"car": ["x", "y"] * 10, "at": [format_time(START + n * 10**9) for n in range(20)]}
    )
    pacsv.write_csv(table, tmp_path / "t.csv")
    look = inspect(str(tmp_path / "t.csv"))
    assert (look.roles.time, look.time_type) == ("at", "iso8601")
    (tmp_path / "t.json").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    look = inspect(str(tmp_path / "t.json"))
    assert (look.roles.time, look.time_type) == ("at", "iso8601")
    assert look.first_ns == START


def test_an_mcap_recording_is_read_without_its_payloads(tmp_path: Path) -> None:
    path = tmp_path / "log.mcap"
    with McapWriter(path) as log:
        channels = [log.channel(t, schema="Reading", encoding="json") for t in ("/imu", "/gps")]
        for n in range(400):
            every = channels[0] if n % 4 else channels[1]
            log.message(every, log_time_ns=n * 10**7 + 3_000_000, publish_time_ns=n * 10**7,
                        data=b"{}")  # fmt: skip
    look = inspect(str(path))
    assert (look.roles.topic, look.roles.time) == ("topic", "publish_time_ns")
    assert (look.roles.arrival, look.rows, look.rows_read) == ("log_time_ns", 400, 400)
    assert {s.topic: s.rows for s in look.streams} == {"/imu": 300, "/gps": 100}
    assert {d.delay.p50 for d in look.delays} == {3_000_000}
    stream = PipelineDefinition.from_yaml(starter(look)).streams["messages"]
    assert stream.source is not None
    assert stream.source.format == "mcap"


def test_the_stage_that_init_proposes_fits_once_uncommented(recording: Path) -> None:
    text = starter(inspect(str(recording)))
    lines = text.splitlines()
    at = lines.index("# stages:")
    lines[at : at + 2] = [line.removeprefix("# ").removeprefix("#") for line in lines[at : at + 2]]
    definition = PipelineDefinition.from_yaml("\n".join(lines))
    columns = {"messages": pq.read_schema(recording / "000.parquet")}
    made = plan(definition, columns)
    (stage,) = [s for s in made.flow_stages() if isinstance(s, Synchronize)]
    assert set(stage.topics) == set(TOPICS)
    assert stage.queue_size == 40  # two periods of 5 Hz hold forty messages at 100 Hz


def test_what_the_columns_are_is_found_by_their_values_too() -> None:
    rows = pa.table({"what": ["a", "b"] * 50, "who": [f"car {n % 10}" for n in range(100)]})
    assert guess_roles(rows) == Roles(("who",), "what", None, None)


def test_init_writes_what_the_planner_accepts(recording: Path, tmp_path: Path) -> None:
    text = starter(inspect(str(recording)), out=str(tmp_path / "out"))
    definition = PipelineDefinition.from_yaml(text)
    stream = definition.streams["messages"]
    assert (stream.key, stream.topic, stream.arrival) == (["vehicle"], "topic", ["log_time"])
    assert definition.options.eventtime.late_tolerance == inspect(str(recording)).late_tolerance_ns
    columns = {"messages": pq.read_schema(recording / "000.parquet")}
    assert plan(definition, columns) is not None


def test_names_that_yaml_would_misread_are_quoted(tmp_path: Path) -> None:
    odd = tmp_path / "yes: [no] #1"
    odd.mkdir()
    rows = {
        "on": ["a", "b"] * 40,
        "1e3": ["x", "y", "z", "w"] * 20,
        "null": [START + n for n in range(80)],
    }
    pq.write_table(pa.table(rows), odd / "t.parquet")
    look = inspect(str(odd), Roles(("1e3",), "on", "null"))
    stream = PipelineDefinition.from_yaml(starter(look)).streams["messages"]
    assert stream.source is not None
    assert stream.source.path == str(odd)
    assert (stream.key, stream.topic, stream.eventtime.column) == (["1e3"], "on", "null")  # type: ignore[union-attr]


def test_an_empty_table_and_one_without_times_are_no_exception(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    assert inspect(str(tmp_path / "empty.parquet")).rows == 0
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "none.parquet")
    look = inspect(str(tmp_path / "none.parquet"))
    assert look.time_type is None
    with pytest.raises(ConfigError, match="no column can be read as a time"):
        starter(look)


def test_bursts_and_messages_by_chance_have_a_mean_rate_and_no_gaps() -> None:
    nothing = np.zeros(2_000, np.int64)
    bursts = np.repeat(np.arange(1_000) * 10**7, 2) + np.tile([0, 10**5], 1_000)
    chance = np.cumsum(np.random.default_rng(1).exponential(10**9, 2_000)).astype(np.int64)
    for times, rate in ((bursts, 200), (chance, 1)):
        (look,) = topic_statistics(nothing, nothing, times, ["t"])
        assert (look.regular, look.gaps, look.missing) == (False, 0, 0)
        assert look.rate_hz == pytest.approx(rate, rel=0.1)
    few = np.array([0, 1, 2, 3, 10**6, 10**6 + 1], np.int64)
    (look,) = topic_statistics(nothing[:6], nothing[:6], few, ["t"])
    assert not look.regular


def _tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "{recording}", "--topic", "nope"], "is not a column of the table"),
        (["inspect", "{recording}", "--time", "value"], "cannot be read as a time"),
        (["init", "{recording}", "--to", "{tmp}/broken.parquet"], "exists already"),
        (["view", "{tmp}"], "holds no run"),
        (["view"], "Missing argument"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    recording: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "{tmp}" not in arguments:
        (tmp_path / "broken.parquet").write_text("this is no parquet")
    given = [a.format(tmp=tmp_path, recording=recording) for a in arguments]
    monkeypatch.setattr(sys, "argv", ["tidegate", *given])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = " ".join(capfd.readouterr().err.split())
    assert stopped.value.code == 2
    assert words in said
    assert "Traceback" not in said


def test_inspect_speaks_json_and_text(recording: Path) -> None:
    done = _tidegate("inspect", str(recording), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["suggested"]["late_tolerance"].endswith("ms")
    console = Console(width=100, record=True, file=io.StringIO())
    print_profile(inspect(str(recording)), console)
    text = console.export_text()
    for words in ("camera", "jitter", "lateTolerance", "lowerBounds", "unusable"):
        assert words in text


def test_what_settles_a_doubt_is_what_the_sentence_says(tmp_path: Path) -> None:
    (tmp_path / "us.csv").write_text("date,v\n03/04/2024,1\n03/05/2024,2\n03/06/2024,3\n")
    doubt = inspect(str(tmp_path / "us.csv"))
    assert doubt.time is None
    assert '--time date --format "%d/%m/%Y" or --format "%m/%d/%Y"' in no_time(doubt)
    told = inspect(str(tmp_path / "us.csv"), format="%m/%d/%Y")
    assert told.time is not None
    assert told.time.format == "%m/%d/%Y"
    lines = "".join(f"2024-03-01 00:00:0{n} CEST,{n}\n" for n in range(5))
    (tmp_path / "zone.csv").write_text(f"time,v\n{lines}")
    assert "--zone Europe/Berlin" in no_time(inspect(str(tmp_path / "zone.csv")))
    named = inspect(str(tmp_path / "zone.csv"), zone="Europe/Berlin")
    assert named.time is not None
    assert named.time.zone == "Europe/Berlin"
    assert named.first_ns == 1_709_247_600_000_000_000  # an hour before midnight in UTC
