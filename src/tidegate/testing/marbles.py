"""Drawings that run: what goes into a stage and what comes out, step by step, as text.

    in:    b   a   d   f   e   c   |
    data:  .   .   ab  d   .   .   ef
    late:  .   .   .   .   .   c   .

Each column is one step. A word in the `in` line is a collection of messages in order of arrival;
each letter is a message, and its time is its place in the alphabet (a = 1 tick, b = 2, ...). `.` is
a step without input, and `|` is the end of the stream. The other lines say what leaves in each
step, one line per kind of outcome; kinds that are not drawn are not compared. A `watermark` line
has the letter of the time, or ticks as a number.

Clock policy: the wall clock is simulated. It starts at 0 and moves on by one tick per step; what is
due is woken before the input of the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.core.chain import Chain
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Outcome, Watermark
from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = ["assert_marbles", "collection_of", "draw"]

_NOTHING, _END = ".", "|"
"""The words for a step without input or output, and for the end of the stream."""


def assert_marbles(
    operators: Operator | Sequence[Operator], drawing: str, *, tick: Duration = "1 s"
) -> None:
    """Run the `in` line and compare what leaves with the other lines.

    Args:
        operators: One stage, or several in order.
        drawing: Lines of `kind: step step ...`, all with the same number of steps.
        tick: Time between two letters, and of one step on the wall clock; more than 0.

    Raises:
        AssertionError: a line differs; the message shows both.
        ConfigError: the drawing is malformed.

    Example:
        >>> from tidegate.eventtime import EventtimeWatermark
        >>> assert_marbles(EventtimeWatermark("2 s"), '''
        ...     in:         b  a  d   f   |
        ...     data:       .  .  ab  d   f
        ...     watermark:  0  .  b   d   .
        ... ''')
    """
    lines = _lines(drawing)
    found = draw(operators, " ".join(lines.pop("in")), tick=tick)
    for kind, wanted in lines.items():
        got = found.get(kind, [_NOTHING] * len(wanted))
        assert got == wanted, f"{kind}: drawn {' '.join(wanted)}, came {' '.join(got)}"


def draw(
    operators: Operator | Sequence[Operator], steps: str, *, tick: Duration = "1 s"
) -> dict[str, list[str]]:
    """Run steps and draw what leaves. Useful to write a drawing in the first place.

    Args:
        operators: One stage, or several in order.
        steps: The words of the `in` line.
        tick: Time between two letters, and of one step on the wall clock; more than 0.

    Returns:
        By kind: one word per step, `.` where nothing leaves. Kinds that never occur are left out.
    """
    span = parse_duration(tick, "tick", minimum=1)
    chain = Chain((operators,) if isinstance(operators, Operator) else tuple(operators))
    states = chain.open()
    words = steps.split()
    out: dict[str, list[str]] = {}
    for step, word in enumerate(words):
        wall_ns = step * span
        outcomes: list[Outcome] = []
        due = chain.wake_at(states)
        if due is not None and due <= wall_ns:
            outcomes += chain.wake(states, wall_ns)
        if word == _END:
            outcomes += chain.flush(states)
        elif word != _NOTHING:
            outcomes += chain.process(states, collection_of(word, tick=span, wall_ns=wall_ns))
        for kind, text in _drawn(outcomes, span).items():
            out.setdefault(kind, [_NOTHING] * len(words))[step] = text
    return out


def collection_of(word: str, *, tick: Duration = "1 s", wall_ns: int = 0) -> Collection:
    """Return the messages of one word, in order of arrival, with the letters in the column `id`.

    Args:
        word: Letters from a to z.
        tick: Time between two letters; more than 0.
        wall_ns: Wall time of the collection.

    Raises:
        ConfigError: the word has other characters.

    Example:
        >>> collection_of("ca", tick="1 s").time_ns
        array([3000000000, 1000000000])
    """
    if not (word.isascii() and word.isalpha() and word.islower()):
        raise ConfigError("drawing", word, "must be letters from a to z, `.` or `|`")
    span = parse_duration(tick, "tick", minimum=1)
    rows = pa.record_batch({"id": pa.array(list(word))})
    times = np.array([(ord(letter) - ord("a") + 1) * span for letter in word], np.int64)
    return Collection.of(rows, times, wall_ns)


def _drawn(outcomes: Sequence[Outcome], span: int) -> dict[str, str]:
    """Draw the outcomes of one step: letters, a number of rows, or the watermark."""
    out: dict[str, str] = {}
    for outcome in outcomes:
        if isinstance(outcome, Watermark):
            text = _moment(int(outcome.time_ns[-1]), span)
            out[outcome.kind] = text
        elif "id" in outcome.rows.schema.names:
            out[outcome.kind] = out.get(outcome.kind, "") + "".join(
                outcome.rows.column("id").to_pylist()
            )
        elif len(outcome):
            out[outcome.kind] = str(len(outcome))
    return out


def _moment(time_ns: int, span: int) -> str:
    """Draw a time: a letter if there is one for it, else ticks as a number."""
    ticks, rest = divmod(time_ns, span)
    if rest == 0 and 1 <= ticks <= 26:
        return chr(ord("a") + ticks - 1)
    return str(ticks) if rest == 0 else f"{time_ns / span:g}"


def _lines(drawing: str) -> dict[str, list[str]]:
    """Parse a drawing into words by kind; all lines must have the same number of steps."""
    lines: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, drawing.splitlines())):
        kind, colon, words = line.partition(":")
        if not colon:
            raise ConfigError("drawing", line, "must be a kind, a colon and its steps")
        lines[kind] = words.split()
    if "in" not in lines:
        raise ConfigError("drawing", drawing, "must have an `in` line")
    odd = [kind for kind, words in lines.items() if len(words) != len(lines["in"])]
    if odd:
        raise ConfigError("drawing", odd[0], "must have as many steps as the `in` line")
    return lines
