"""tidegate look: the page of a recording, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tidegate import cli
from tidegate.profile.roles import Roles
from tidegate.report.look import write_look
from tidegate.testing.fleet import facts, fleet


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("look") / "fleet.parquet"
    pq.write_table(fleet(3, 20, seed=11), path)
    return path


def test_the_page_shows_what_a_pipeline_would_do(recording: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    made = write_look(str(recording), str(page))
    table = fleet(3, 20, seed=11)
    known = facts(table, made.proof.profile.late_tolerance_ns or 0)
    assert made.proof.late == known.late
    assert sum(made.proof.errors.values()) == known.unreadable + known.skewed
    assert made.proof.in_order + known.late + known.unreadable + known.skewed == table.num_rows
    assert made.shown == made.total == table.num_rows
    text = page.read_text(encoding="utf-8")
    assert str(recording) in text
    assert made.headline.split(";")[0] in text
    assert made.bytes == len(text.encode())


def test_the_sentence_says_that_rows_were_left_out(recording: Path, tmp_path: Path) -> None:
    rows = fleet(3, 20, seed=11).num_rows
    made = write_look(str(recording), str(tmp_path / "p.html"), limit=500)
    assert made.headline.startswith(f"Read: the first 500 of {rows:,} rows. ")
    assert made.shown == 500


def test_numbers_inside_records_are_plotted(tmp_path: Path) -> None:
    lines = [{"p": {"time": 1_700_000_000 + n, "q": {"mag": n % 7 / 2}}} for n in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_look(str(tmp_path / "a.jsonl"), str(tmp_path / "p.html"))
    assert '"p.q.mag"' in (tmp_path / "p.html").read_text()


def test_roles_may_be_named(recording: Path, tmp_path: Path) -> None:
    made = write_look(str(recording), str(tmp_path / "p.html"), Roles(("topic",), "vehicle"))
    assert made.proof.profile.roles.key == ("topic",)


def test_the_command_says_what_it_found_and_starts_no_spark(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tidegate", "look", str(recording)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert (tmp_path / "fleet.look.html").stat().st_size > 10_000
    for words in ("key vehicle", "event time stamp", "camera", "out of order", "tried in process",
                  "lateTolerance", "fleet.look.html"):  # fmt: skip
        assert words in " ".join(said.split())
    code = (
        "import sys; from tidegate.report.look import write_look; "
        f"write_look({str(recording)!r}, 'b.html'); print('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "False", done.stderr


def test_numbers_for_scripts(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    page = str(tmp_path / "x.html")
    monkeypatch.setattr(sys, "argv", ["tidegate", "look", str(recording), "--page", page, "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == page
    assert said["pipeline"]["rows"] == said["profile"]["rows"]
