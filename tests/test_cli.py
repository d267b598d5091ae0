"""The command line, through its real entry point: in a process of its own where that is what a test
is about, else in this one. (What needs Spark and no process of its own is in
tests/spark/test_commands.py.)"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rich.console

import tidegate as tg
from tidegate import cli
from tidegate.pipeline import secrets
from tidegate.pipeline.stages import STAGES
from tidegate.warm import PARTS

QUICK = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "COLUMNS": "60",
    "NO_COLOR": "1",
}


def tidegate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, **QUICK, **environment},
    )


def in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same without a new interpreter, which takes a second of CPU to import the package."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["tidegate", *arguments]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


PIPELINE = """\
name: cars
streams:
  cars:
    source: {{format: parquet, path: {root}/in}}
    key: car
    arrival: n
    eventtime: {{column: t, type: unixtimestamp_s}}
options:
  eventtime: {{enabled: true, lateTolerance: 2 s, watermarkPer: tuple}}
sink: {{path: {root}/out}}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    rows = pa.table({"car": ["a"] * 5, "t": [3, 9, 8, 1, None], "n": [0, 1, 2, 3, 4]})
    pq.write_table(rows, tmp_path / "in" / "0.parquet")
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(root=tmp_path))
    return file


def refused(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """Exit code 2 and one line on standard error, with these words and no stack."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tidegate: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0], (word, lines[0])
    assert done.stdout == ""
    return lines[0]


def test_help_needs_none_of_the_heavy_ones() -> None:
    """The shell's completion and a typing error must not wait for Spark."""
    code = (
        "import sys, tidegate.cli; "
        "print([m for m in ('pyspark', 'numba', 'pyarrow', 'numpy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
    shown = tidegate("--help")
    assert shown.returncode == 0
    for command in ("explain", "schema", "dry-run", "run", "demo"):
        assert command in shown.stdout
        assert in_process(command, "--help").returncode == 0


def test_the_version_is_told_without_importing_what_is_heavy() -> None:
    said = tidegate("--version")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"tidegate {tg.__version__} (Python 3.")
    assert "PySpark " in said.stdout


def test_version_and_script_are_installed() -> None:
    script = Path(sys.executable).with_name("tidegate")
    assert subprocess.run([script, "--help"], capture_output=True, timeout=60).returncode == 0


def test_explain_as_text_and_json(pipeline: Path) -> None:
    text = in_process("explain", str(pipeline))
    assert text.returncode == 0, text.stderr
    assert "PhysicalEventtimeWatermark" in text.stdout
    made = in_process("explain", str(pipeline), "--json")
    assert "PhysicalEventtimeWatermark" in json.dumps(json.loads(made.stdout))


@pytest.mark.long
def test_warm_compiles_every_part() -> None:
    lines = tidegate("warm").stdout.splitlines()
    assert {line.split()[0] for line in lines} == set(PARTS)


def test_every_stage_has_a_part_to_warm() -> None:
    assert set(STAGES.list()) <= {*PARTS, "episodes"}  # which align compiles as well


def test_schema_is_json_schema() -> None:
    schema = json.loads(in_process("schema").stdout)
    assert {"streams", "options", "stages", "sink"} <= set(schema["properties"])


WRONG = {
    "a field that does not exist": (
        ("key: car", "kee: car"),
        ["kee", "did you mean key?", "line 5"],
    ),
    "a type that is not registered": (
        ("unixtimestamp_s", "unixtimestamp_m"),
        ["unixtimestamp_m", "unixtimestamp_ms", "stream `cars`", "line 7"],
    ),
    "a duration that is none": (
        ("lateTolerance: 2 s", "lateTolerance: two"),
        ["lateTolerance", "'two'", "line 9"],
    ),
    "an unknown stage": (
        ("sink:", "stages: [{synchronise: {}}]\nsink:"),
        ["synchronise", "did you mean synchronize?", "line 10"],
    ),
    "words in brackets": (
        ("lateTolerance: 2 s", 'lateTolerance: "[bold]x[/nothing]"'),
        ["[bold]x[/nothing]"],
    ),
    "no YAML": (("name: cars", "name: [cars"), ["pipeline.yaml"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_definition_is_one_sentence(pipeline: Path, case: str) -> None:
    (old, new), words = WRONG[case]
    text = pipeline.read_text()
    assert old in text
    pipeline.write_text(text.replace(old, new))
    refused(in_process("explain", str(pipeline)), *words)


def test_a_missing_file_is_one_sentence_and_debug_shows_the_stack(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    refused(tidegate("run", missing), missing, "cannot be read")
    shown = tidegate("--debug", "run", missing)
    assert shown.returncode != 0
    assert "Traceback" in shown.stderr
    assert "ConfigError" in shown.stderr


def test_a_wrong_option_is_told_by_the_parser() -> None:
    done = tidegate("run", "--nothing")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--nothing" in done.stderr
    assert tidegate().returncode in (0, 2)


def run_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_run_says_what_came_out_and_refuses_to_run_again(pipeline: Path) -> None:
    out = pipeline.parent / "out"
    summary = run_json(tidegate("run", str(pipeline), "--json"))
    assert summary["rows"] == {"data": 3, "late": 1, "error": 1}
    assert summary["rows_in"] == 5
    assert summary["out"] == str(out)
    table = pq.read_table(out / "data")
    assert table["t"].to_pylist() == [3, 8, 9]
    assert pq.read_table(out / "late")["t"].to_pylist() == [1]
    record = (out / "_tidegate" / "pipeline.json").read_text()
    assert json.loads(record)["roles"]["key"] == ["car"]
    pipeline.write_text(pipeline.read_text().replace("2 s", "3 s"))
    refused(tidegate("run", str(pipeline)), "sink.path", "must be empty")
    # what lies there is still described by the run that wrote it
    assert (out / "_tidegate" / "pipeline.json").read_text() == record
    shown = run_json(tidegate("view", str(out), "--json"))
    assert (shown["messages"], shown["keys"]) == (5, 1)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_stream_goes_on_until_it_is_interrupted(pipeline: Path) -> None:
    """Ctrl-C is no error: one sentence, exit code 130, and the next run goes on."""
    text = pipeline.read_text().replace("options:", "options:\n  mode: streaming\n  trigger: 1 s")
    pipeline.write_text(text)
    out = pipeline.parent / "out"
    running = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "run", str(pipeline)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **QUICK},
    )
    try:
        deadline = time.monotonic() + 250
        while not (out / "_commits" / "00000000.json").exists():
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=200)
    finally:
        running.kill()
    assert running.returncode == 130, stderr
    assert (
        stderr.strip().splitlines()[-1]
        == "stopped; run the same command again to continue from the last commit"
    )
    assert "Traceback" not in stderr
    assert pq.read_table(out / "data")["t"].to_pylist() == [3]


def test_what_a_reference_stood_for_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path of an output may have a reference in it, and a run prints where its tables are."""
    monkeypatch.setenv("BUCKET_KEY", "hunter2-of-a-bucket")
    secrets.resolve("s3a://${env:BUCKET_KEY}@bucket/out")
    console = rich.console.Console(file=io.StringIO())
    console.push_render_hook(cli._Visible())
    console.print("look at it with: tidegate view s3a://hunter2-of-a-bucket@bucket/out")
    assert "view s3a://${env:BUCKET_KEY}@bucket/out" in console.file.getvalue()  # type: ignore[attr-defined]
    cli._print('{"out": "s3a://hunter2-of-a-bucket@bucket/out"}')
    assert capsys.readouterr().out == '{"out": "s3a://${env:BUCKET_KEY}@bucket/out"}\n'


def test_names_of_strangers_do_not_command_the_terminal(tmp_path: Path) -> None:
    """`\\x1b]0;..` sets the title of the window, `\\x1b[2J` clears it, `\\u202e` turns
    text round."""
    evil = "k\x1b[2J\u202e"
    table = pa.table({evil: ["a\x1b[31m"] * 50, "stamp": range(1_700_000_000, 1_700_000_050)})
    pq.write_table(table, tmp_path / "in.parquet")
    text = (
        'name: "n\\e]0;owned\\a"\nstreams: {"s\\e[2J": {source: {format: csv, path: "a\\e[5m"}, '
        "eventtime: {column: t, type: iso8601}}}\noptions: {eventtime: {enabled: true}}\n"
    )
    (tmp_path / "p.yaml").write_text(text)
    for arguments, shown in [
        (("inspect", str(tmp_path / "in.parquet"), "--key", evil), r"k\x1b[2J\u202e"),
        (("inspect", str(tmp_path / "in.parquet"), "--key", "no\x1b[2J"), r"no\x1b[2J"),
        (("explain", str(tmp_path / "p.yaml")), r"n\x1b]0;owned\x07"),
    ]:
        done = in_process(*arguments)
        printed = done.stdout + done.stderr
        assert shown in printed
        assert not {"\x1b", "\x07", "\u202e"} & set(printed)
