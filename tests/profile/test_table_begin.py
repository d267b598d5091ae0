"""Where a table begins in a text file, and that no row of data is skipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.profile.table_begin import TableBegin, find_table

DATA = [["2024-03-01 10:00", "1.5", "ok"], ["2024-03-01 10:01", "2.5", "ok"]] * 5
WORDS = [[f"Mar 3 2024 10:{n:02d}", str(n), "ok"] for n in range(20)]
"""Times that no reader takes for values."""


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([["t", "v", "s"], *DATA], TableBegin()),
        (DATA, TableBegin(header=False)),
        ([["Log"], ["a", "b"], ["t", "v", "s"], *DATA], TableBegin(2)),
        ([["t", "v", "s"], ["UTC", "[V]", "-"], *DATA], TableBegin(below=1)),
        ([["t", "v", "s"], ["", "", ""], *DATA], TableBegin(below=1)),
        ([["Log"], ["began"], *DATA], TableBegin(2, header=False)),
        ([["v", "s"], *DATA], TableBegin(short=True)),
        # a few rows
        ([["Log"], ["t", "v", "s"], *DATA[:1]], TableBegin(1)),
        ([["t", "v", "s"], ["UTC", "[V]", "-"], *DATA[:1]], TableBegin(below=1)),
        ([["t", "v"], ["x", "y"], ["1", "2"]], TableBegin()),
        ([["a", "b"], ["x", "y"], *([["1", "2"]] * 9)], TableBegin(below=1)),
        ([["Device", "ABC"], ["Site", "North"], ["Time", "V"], *([["1", "2"]] * 9)],
         TableBegin(2)),
        # data that look otherwise are data
        ([["t", "v", "s"], ["Mar 3 2024 10:59", "off", "ok"], *WORDS], TableBegin()),
        ([["t", "v", "s"], ["Mar 3 2024 10:59", "NA", "NA"], *WORDS], TableBegin()),
        ([["t", "v", "s"], ["2024-03-01", "off", "-"], *DATA], TableBegin()),
        ([["a", "b"], ["off", "off"], *([["1", "2"]] * 9)], TableBegin()),
        ([["a", "b"], *([["off", "on"]] * 9), *([["1", "2"]] * 99)], TableBegin()),
        ([["2024-03-01 09:59", "1"], *DATA], TableBegin(header=False)),
        ([["$A", "12", "4.5", "N"], *([["$B", "12", "5", "4", "N"]] * 9)],
         TableBegin(header=False)),
        # a header that comes again, or a second table
        ([["t", "v", "s"], *DATA, ["t", "v", "s"], *DATA], TableBegin()),
        ([["t", "v", "s"], *DATA[:3], ["u", "v", "s"], *DATA], TableBegin()),
        # a text with commas in it
        ([["time", "text"], *([["2024-03-01 10:00", "a", "b"]] * 9)],
         TableBegin(short=True, doubt=True)),
        ([["when", "text"], *([["Mar 3", "a", "b"]] * 9)], TableBegin(1, doubt=True)),
    ],
)  # fmt: skip
def test_where_a_table_begins(rows: list[list[str]], wanted: TableBegin) -> None:
    assert find_table(rows) == wanted


FIELD = st.sampled_from(
    ["", "a", "off", "NA", "-", "s", "V", "1", "2.5", "2024-03-01", "Mar 3 10:00", "[s]"]
)


@given(
    rows=st.lists(st.lists(FIELD, min_size=3, max_size=3), max_size=12),
    good=st.integers(3, 30),
)
def test_no_row_with_a_value_is_skipped_below_a_header(rows: list[list[str]], good: int) -> None:
    data = [[f"2024-03-01 10:{n:02d}", str(n), "x"] for n in range(good)]
    every = [["t", "v", "s"], *rows, *data]
    begin = find_table(every)
    skipped = every[begin.above + begin.header : begin.above + begin.header + begin.below]
    for row in skipped:
        assert not any(field in ("1", "2.5", "2024-03-01") for field in row[:2])
    assert len(skipped) <= 5
