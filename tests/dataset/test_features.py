"""Features and images: what becomes a vector or a picture, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.dataset.features import Feature, features_of
from tidegate.dataset.images import ImageError, pixels
from tidegate.errors import ConfigError


def test_vectors_of_several_columns() -> None:
    rows = pa.record_batch(
        {
            "joint": [{"q": [1.0, 2.0]}, {"q": [3.0, 4.0]}, {"q": None}, None, {"q": [5.0]}],
            "grip": pa.array([7, None, 8, 9, 10], pa.int16()),
        }
    )
    values, reasons = Feature("observation.state", ("joint.q", "grip")).vectors(rows)
    assert values[0].tolist() == [1.0, 2.0, 7.0]
    assert values.shape == (5, 3)
    assert values.dtype == np.float32
    assert reasons == [
        None, "grip is null", "joint.q is null", "joint.q is null", "joint.q is a list of 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        pa.array([[1, 2], [3, 4]], pa.large_list(pa.float32())),
        pa.array([[0, 0], [1, 2], [3, 4]], pa.list_(pa.int8())).slice(1),
    ],
)
def test_lists_of_any_kind(column: pa.Array) -> None:
    values, reasons = Feature("s", ("q",)).vectors(pa.record_batch({"q": column}))
    assert values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert reasons == [None, None]


def test_a_null_inside_a_list_and_no_list_at_all() -> None:
    rows = pa.record_batch({"q": pa.array([[1.0, None], [1.0, 2.0]])})
    assert Feature("s", ("q",)).vectors(rows)[1][0] is not None
    rows = pa.record_batch({"q": pa.array([None, None], pa.list_(pa.float64()))})
    values, reasons = Feature("s", ("q",)).vectors(rows)
    assert values.shape == (2, 0)
    assert all(reasons)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "features"),
        ({"a/b": "x"}, "slash"),
        ({"a": "y"}, "must be a column"),
        ({"a": "name"}, "numbers"),
        ({"a": ["x", "image"]}, "single column"),
    ],
)
def test_wrong_features_are_named(given: dict[str, Any], word: str) -> None:
    rows = pa.schema({"x": pa.float64(), "name": pa.string(), "image": pa.binary()})
    with pytest.raises(ConfigError, match=word):
        features_of(given, rows)


def raw(
    encoding: str, data: bytes, height: int = 1, width: int = 2, step: int = 0
) -> dict[str, Any]:
    return {"height": height, "width": width, "encoding": encoding, "step": step, "data": data}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (raw("rgb8", bytes(range(6))), [[[0, 1, 2], [3, 4, 5]]]),
        (raw("bgr8", bytes(range(6))), [[[2, 1, 0], [5, 4, 3]]]),
        (raw("rgba8", bytes(range(8))), [[[0, 1, 2], [4, 5, 6]]]),
        (raw("bgra8", bytes(range(8))), [[[2, 1, 0], [6, 5, 4]]]),
        (raw("mono8", b"\x05\x06"), [[[5, 5, 5], [6, 6, 6]]]),
        (raw("mono8", b"\x05\x06\xff\x07\x08", 2, 2, 3), [[[5] * 3, [6] * 3], [[7] * 3, [8] * 3]]),
    ],
)
def test_raw_images(image: dict[str, Any], expected: list[Any]) -> None:
    """Padded lines too, also where the last one lacks its padding."""
    assert pixels(image).tolist() == expected


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (raw("rgb8", b"\x00"), "has 1 bytes"),
        (raw("bayer_rggb8", b"\x00"), "has encoding"),
        (raw("rgb8", b"", 0), "0 x 2"),
        (raw("rgb8", b"", 2**20, 2**20), "pixels"),
        (b"GIF89a", "neither JPEG nor PNG"),
        ({"data": None}, "no image"),
    ],
)
def test_what_is_no_image(image: Any, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        pixels(image)


def test_damaged_compressed_images() -> None:
    pytest.importorskip("av", reason="pip install 'tidegate[video]'")
    with pytest.raises(ImageError, match="decoded"):
        pixels(b"\x89PNG\r\n\x1a\n" + b"\x00" * 40)
    with pytest.raises(ImageError, match="decoded"):
        pixels(b"\xff\xd8\xff" + b"\x11" * 40)
