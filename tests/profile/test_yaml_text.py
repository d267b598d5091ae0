"""Text in YAML comes back as it was, whatever characters it has."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.profile.yaml_text import quoted


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\U0001f550")
@example("\U0001f550\u200d\u2028")
@example("\\ud83d\\ude00 \"'\\")
@example("ü: [a, b] #\x85\x00\x7f")
def test_text_comes_back_from_yaml(text: str) -> None:
    assert yaml.safe_load(f"{{a: {quoted(text)}}}") == {"a": text}
