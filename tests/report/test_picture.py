"""The one drawing: its shapes, its escaping, its contrast."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tidegate.report.picture import PALETTE, Curve, Picture

SURFACES = ("bg", "panel", "line", "row")


def luminance(colour: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [name for name in PALETTE if name not in SURFACES])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("surface", ["panel", "bg", "row"])
def test_small_text_can_be_read_in_every_colour(name: str, dark: bool, surface: str) -> None:
    assert contrast(PALETTE[name][dark], PALETTE[surface][dark]) >= (
        4.5 if surface == "panel" else 4
    )


def test_names_cannot_become_markup() -> None:
    evil = "<script>x</script>&\"'"
    picture = Picture([evil], 0, 100, axis=evil, lanes_title=evil)
    picture.span(0, 10, evil)
    picture.dot(0, 5, "data", text=evil)
    picture.line(5, evil)
    picture.note(0, 5, evil)
    picture.panel(evil, [Curve(evil, "data", np.array([1, 2]), np.array([3, 4]))])
    picture.explain("data", "dot", evil)
    root = ET.fromstring(picture.svg())
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert "".join(root.itertext()).count("</script>") >= 6


def test_a_mark_far_away_is_an_arrow_and_one_just_outside_is_left_out() -> None:
    picture = Picture(["a"], 0, 100)
    picture.dot(0, 10**9, "data")
    picture.dot(0, 150, "data")
    assert picture.svg().count("<circle") == 0
    assert picture.svg().count("Z") == 1


def test_only_what_is_drawn_is_in_the_legend() -> None:
    picture = Picture(["a"], 0, 100)
    picture.dot(0, 50, "late", "diamond")
    picture.dot(0, 500, "error", "cross")
    picture.explain_used({("late", "diamond"): "late", ("error", "cross"): "error"})
    assert [text for *_, text in picture.legend] == ["late"]


def test_a_picture_that_is_moved_is_the_same_picture() -> None:
    picture = Picture(["a"], 0, 100)
    picture.dot(0, 50, "data")
    picture.link([(0, 10), (0, 20)], "mark")
    picture.line(5, "x")
    assert picture.shifted(10**9).shifted(-(10**9)) == picture


@pytest.mark.parametrize("length", [1, 10, 10**3, 10**6, 10**9, 10**12, 10**15, 4 * 10**18])
def test_ticks_are_few_and_have_a_unit(length: int) -> None:
    texts = [
        t for t in ET.fromstring(Picture(["a"], 0, length).svg()).itertext() if t[:1].isdigit()
    ]
    assert 1 <= len(texts) <= 11
    assert all(" " in text for text in texts)
