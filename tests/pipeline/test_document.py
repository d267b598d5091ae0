"""YAML from strangers: bounded before it is built, and every fault a sentence with a line."""

from __future__ import annotations

import time

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.document import MAX_BYTES, read_yaml

ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "m0: &m0 {a: 1, b: 2}\n" + "".join(
    f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: 1}}\n" for n in range(1, 40)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ALIASES, r"line \d+: has more than 50,000 values, with aliases expanded"),
        (MERGES, r"line \d+: has more than 50,000 values, with aliases expanded"),
        ("a: " + "[" * 100_000, "line 1: is nested more than 32 levels deep"),
        ("a: " + "{b: " * 5_000, "line 1: is nested more than 32 levels deep"),
        ("- " * 100_000, "line 1: is nested more than 32 levels deep"),
        ("? " * 100_000, "line 1: is nested more than 32 levels deep"),
        ("a: &a [*a]", r"line 1: the alias \*a is inside its own value"),
        ("a: &a {b: {c: *a}}", r"line 1: the alias \*a is inside its own value"),
        ("a: " + "x" * MAX_BYTES, "line 1: has 262,147 bytes, at most 262,144 are read"),
        ("a: [" + "1," * 60_000 + "]", "line 1: has more than 50,000 values"),
        ("b: 1\na: !!timestamp 2026-99-99", r"line 2: cannot be read as YAML"),
        ("b: 1\na: !!int x", "line 2: cannot be read as YAML: 'x' cannot be read"),
        ("b: 1\na: !!bool perhaps", "line 2: cannot be read as YAML"),
        ("b: 1\na: " + "9" * 5_000, "line 2: cannot be read as YAML"),
        ("a: !!binary aGk=", "line 1: cannot be read as YAML"),
        ("a: !!set {b}", "line 1: cannot be read as YAML"),
        ("a: !!python/object/apply:os.getcwd []", "line 1: cannot be read as YAML"),
        ("? [1]\n: 2", "line 1: cannot be read as YAML: found unhashable key"),
        ("<<: 1", "line 1: cannot be read as YAML"),
        ("a: *b", "line 1: cannot be read as YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", "line 2: cannot be read as YAML"),
        ("a: \ud800", "cannot be read as YAML: unacceptable character"),
        ("a\0b: 1", r"x\.yaml: cannot be read as YAML: unacceptable"),
        ("%YAML 9.9\n---\na: 1", "line 1: cannot be read as YAML"),
    ],
)
def test_bombs_and_nonsense_are_one_sentence_each(text: str, says: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=says) as caught:
        read_yaml(text, "x.yaml")
    assert time.monotonic() - began < 10
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_plain_values_stay_what_they_look_like() -> None:
    text = (
        "{a: 2026-99-99, b: 12:30:45, c: 010, d: 7, e: 1.5, f: yes, g: 0x10, h: 1_000, i: ~, j: =}"
    )
    assert read_yaml(text).value == {
        "a": "2026-99-99", "b": "12:30:45", "c": "010", "d": 7, "e": 1.5, "f": True, "g": 16,
        "h": 1000, "i": None, "j": "=",
    }  # fmt: skip


def test_aliases_and_merge_keys_within_reason_work() -> None:
    text = """\
streams:
  a: &a {key: vehicle, columns: [vehicle, t]}
  b: {<<: *a, topic: t}
"""
    streams = PipelineDefinition.from_yaml(text).streams
    assert (streams["b"].key, streams["b"].topic) == (["vehicle"], "t")


def test_what_is_found_wrong_later_has_its_line_too() -> None:
    text = "streams:\n  s:\n    source:\n      options: {a.b: 1}\nsink:\n  format: delta\n"
    pipeline = PipelineDefinition.from_yaml(text, "x.yaml")
    for field, line in (("sink.format", 6), ("streams.s.source.options.a.b", 4)):
        with pytest.raises(ConfigError, match=rf"\(x\.yaml, line {line}\)$"), pipeline.located():
            raise ConfigError(field, 1, "is wrong")
    with pytest.raises(ConfigError, match=r"is wrong$"), pipeline.located():
        raise ConfigError("spark.jars", 1, "is wrong")
