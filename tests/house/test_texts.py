"""Texts that people read: counts with the right noun, durations in a unit that can be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import tidegate

ROOT = Path(tidegate.__file__).parent

NOUNS = re.compile(
    r" (?:rows|messages|files|keys|topics|batches|shards|columns|records|commits|deltas|values|sets"
    r"|windows|streams|stages|pages|partitions|chunks|vehicles|tasks)\b"
)
"""What may be one: `plural` says "1 row"."""

NEVER_ONE = {
    "profile/inspect.py", "report/headline.py", "report/notebook.py", "demo.py",
    "report/vendor/__main__.py",  # these only speak of several, or of thousands
    "output/commit.py", "windows/stage.py",  # the value is a name
    "core/lazy_rows.py", "core/outcomes.py", "sync/best_sets.py", "sync/in_process.py",
    "mcap/payload/proto.py", "spark/columnar/mcap.py", "spark/columnar/parquet.py",
    # a ContractError speaks to programmers; limits are large; rows of files that have changed
    "spark/progress.py",  # a note in the progress bar, of Spark's tasks
}  # fmt: skip
"""Files whose texts were read one by one: the number is never one, or is none."""


def texts() -> Iterator[tuple[str, int, str, str]]:
    """Every value inside a text with what stands behind it: file, line, the value, the words."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                for value, after in pairwise(node.values):
                    if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                        name = path.relative_to(ROOT).as_posix()
                        yield name, node.lineno, ast.unparse(value.value), str(after.value)


def test_one_row_is_not_called_rows() -> None:
    wrong = [
        f"{name}:{line}: {{{value}}}{words}"
        for name, line, value, words in texts()
        if NOUNS.match(words)
        and not value.isupper()  # a constant
        and name not in NEVER_ONE
    ]
    assert wrong == []


def test_durations_are_not_written_in_raw_nanoseconds() -> None:
    wrong = [
        f"{name}:{line}: {{{value}}}{words}"
        for name, line, value, words in texts()
        if re.match(r" ns\b", words) and name not in ("core/time.py", "core/text.py")
    ]
    assert wrong == []
