"""inspect → init → run over a corpus of files: what a person says of each, and nothing is lost.

The whole corpus goes through the flow in process, to the page of `look`; through Spark it goes in
`tests/spark/test_corpus_runs.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegate import cli
from tidegate.core.time import format_time
from tidegate.pipeline import PipelineDefinition
from tidegate.profile.inspect import Profile, inspect_rows
from tidegate.profile.rows import LoadedRows
from tidegate.profile.starter import prove

# `profile` is a module of Python, so that this folder cannot be imported under its name.
sys.path.insert(0, str(Path(__file__).parent))
from corpus import CASES, REAL, Case

Made = tuple[Profile, LoadedRows]
"""A profile and the rows it was made from."""

RIGHT_SHARE = 0.9
"""Share of the corpus of which every role must be right."""


@dataclass
class Found:
    """What was found of one case."""

    wrong: list[str] = field(default_factory=list)
    sure: list[str] = field(default_factory=list)
    """Roles that are wrong although the confidence is high."""


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Made | None]:
    """Return a function that inspects the file of a case, once; None if the file is not there."""
    made: dict[str, Made | None] = {}

    def inspect_once(case: Case) -> Made | None:
        if case.name not in made:
            path = case.make(tmp_path_factory.mktemp("case"))
            made[case.name] = inspect_rows(str(path)) if path.exists() else None
        return made[case.name]

    return inspect_once


def _compare(case: Case, profile: Profile) -> Found:
    """Compare a profile with what a person says."""
    found = Found()

    def check(role: str, got: object, wanted: object) -> None:
        if got == wanted:
            return
        found.wrong.append(f"{role}: {got!r} instead of {wanted!r}")
        guess = profile.guesses.get(role)
        if guess is not None and guess.confidence == "high":
            found.sure.append(found.wrong[-1])

    time = profile.time
    check("time", None if time is None else time.columns, case.time)
    if time is None or case.time is None:
        return found
    check("time", time.type if time.type not in case.type else case.type, case.type)
    check("time", time.format, case.format)
    check("key", profile.roles.key, case.key)
    check("topic", profile.roles.topic, case.topic)
    check("arrival", profile.roles.arrival, case.arrival)
    if case.first is not None:
        check("time", format_time(profile.first_ns)[:19], case.first)
    for name, wanted in case.options:
        check("options", profile.options.get(name), wanted)
    for name, kind in case.types:
        check("types", str(profile.schema.field(name).type), kind)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_confidently_wrong_and_no_row_is_lost(
    case: Case, inspected: Callable[[Case], Made | None]
) -> None:
    found = inspected(case)
    if found is None:
        pytest.skip(f"{REAL} is not on this machine")
    profile, loaded = found
    assert _compare(case, profile).sure == []
    if profile.time is None:
        return
    proof = prove(profile, loaded)
    assert proof.rows == profile.rows
    assert proof.in_order + proof.late + sum(proof.errors.values()) == proof.rows
    assert proof.in_order >= 0.99 * proof.rows
    assert proof.profile.late_tolerance_ns != 0
    definition = PipelineDefinition.from_yaml(proof.text)
    assert definition.options.eventtime.max_future_skew is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_command_says_what_a_person_would(
    case: Case,
    inspected: Callable[[Case], Made | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """inspect, init and look as commands: exit codes, and no sentence that a reader stumbles on."""
    path = case.make(tmp_path)
    if not path.exists():
        pytest.skip(f"{REAL} is not on this machine")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capfd.readouterr()
        return int(stopped.value.code or 0), said.out + said.err

    told = case.time is not None
    for command in (["inspect"], ["init", "--to", "made.yaml"], ["look", "--no-open"]):
        code, said = run(command[0], str(path), *command[1:])
        assert code == (0 if told or command == ["inspect"] else 2), said
        assert not re.search(r"\b1 (rows|files|columns|topics|keys|gaps|messages)\b", said)
        assert not re.search(r"[0-9]{10,} ns|0{6}Z|Traceback|None|nan\b", said)
        if not told:
            # the sentence ends with what to type, and names the column
            assert "--time" in said or "no year" in said or "add a column" in said
    if told:
        assert PipelineDefinition.load(tmp_path / "made.yaml").name
        assert list(tmp_path.glob("*.look.html"))


def test_the_corpus_is_large_and_nine_in_ten_are_right(
    inspected: Callable[[Case], Made | None],
) -> None:
    assert len(CASES) >= 60
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md").read_text()
    assert f"`tests/profile/corpus.py` holds {len(CASES)} files" in page
    there = {case.name: (case, made) for case in CASES if (made := inspected(case)) is not None}
    wrong = {
        name: found
        for name, (case, (profile, _)) in there.items()
        if (found := _compare(case, profile).wrong)
    }
    assert len(there) - len(wrong) >= RIGHT_SHARE * len(there), wrong
    assert wrong == {} or "all of them are right" not in " ".join(page.split())
