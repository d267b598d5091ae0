"""Text is written as dictionary codes, numbers are not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.output.parquet_columns import text_columns


def test_arrow_codes_just_these(tmp_path: Path) -> None:
    inner = pa.struct({"name": pa.string(), "x": pa.float64()})
    one = {"name": "q", "x": 1.0}
    rows = pa.table(
        {
            "a.b": ["x", "y"],
            "n": [1, 2],
            "s": pa.array([one, None], inner),
            "texts": [["a"], ["b"]],
            "numbers": pa.array([[1], [2]], pa.large_list(pa.int64())),
            "named": pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
            "several": pa.array([[one], []], pa.list_(inner)),
            "fixed": pa.array([["a"], ["b"]], pa.list_(pa.string(), 1)),
            "bytes": [b"a", b"b"],
            "nothing": pa.nulls(2),
        }
    )
    file = tmp_path / "rows.parquet"
    pq.write_table(rows, file, use_dictionary=text_columns(rows.schema))
    found = pq.ParquetFile(file).metadata
    group = found.row_group(0)
    coded = [
        group.column(leaf).path_in_schema
        for leaf in range(found.num_columns)
        if "RLE_DICTIONARY" in group.column(leaf).encodings
    ]
    assert coded == text_columns(rows.schema)
    assert coded == [
        "a.b", "s.name", "texts.list.element", "named.key_value.key", "named.key_value.value",
        "several.list.element.name", "fixed.list.element",
    ]  # fmt: skip
    assert pq.read_table(file).equals(rows)


def test_without_text_nothing_is_coded(tmp_path: Path) -> None:
    rows = pa.table({"n": [1, 1]})
    pq.write_table(rows, tmp_path / "rows.parquet", use_dictionary=text_columns(rows.schema))
    group = pq.ParquetFile(tmp_path / "rows.parquet").metadata.row_group(0)
    assert "RLE_DICTIONARY" not in group.column(0).encodings
