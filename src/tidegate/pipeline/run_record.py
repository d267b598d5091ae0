"""The record of a run, beside its tables: the definition that ran, and the roles of its columns.

`tidegate view` and `tidegate export` read it, so that key, topic and arrival need not be guessed.
It holds references such as `${env:NAME}`, never secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.errors import StateError
from tidegate.pipeline.definition import PipelineDefinition, SinkDefinition, SourceDefinition
from tidegate.pipeline.formats import Direction, show_option
from tidegate.pipeline.secrets import shown
from tidegate.version import __version__

__all__ = ["RECORD", "RunRecord", "record_text"]

RECORD = "_tidegate/pipeline.json"
"""The path of the record below the output of a run."""

FORMAT = 1
"""Version of the record. A reader refuses a greater one, and reads all smaller ones."""


@dataclass(frozen=True)
class RunRecord:
    """The definition that ran, as plain values without secrets, and the columns it named.

    Args:
        definition: As a pipeline file would have it, in camel case; references stay references.
        key: The key columns; empty if all rows share one key.
        topic: The topic column, if any.
        arrival: The arrival columns, most significant first.
        time: The column with the event time, the first one of several; None for processing time or
            times inside messages.
    """

    definition: Mapping[str, Any]
    key: tuple[str, ...]
    topic: str | None
    arrival: tuple[str, ...]
    time: str | None

    @classmethod
    def read(cls, text: bytes, name: str) -> RunRecord:
        """Read a record from its bytes, which may come from a stranger.

        Args:
            text: The bytes of the file.
            name: Its name, for errors.

        Raises:
            StateError: It is not a record, is damaged, or was written by a newer version.
        """
        try:
            said = json.loads(text)
            version = said["format"]
            if not isinstance(version, int) or isinstance(version, bool):
                raise ValueError("its format is not a number")
            if version > FORMAT:
                raise StateError(f"{name} was written by a newer version; upgrade tidegate")
            definition, roles = said["definition"], said["roles"]
            if not isinstance(definition, dict):
                raise ValueError("its definition is not a mapping")
            return cls(
                definition,
                _name_list(roles, "key"),
                _optional_name(roles, "topic"),
                _name_list(roles, "arrival"),
                _optional_name(roles, "time"),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(f"{name} is not a record of tidegate: {error}") from error


def _optional_name(roles: Any, name: str) -> str | None:
    """Return a column name or None; anything else is a ValueError."""
    found = roles[name]
    if found is not None and not isinstance(found, str):
        raise ValueError(f"its {name} is not text")
    return found


def _name_list(roles: Any, name: str) -> tuple[str, ...]:
    """Return a list of column names as a tuple; anything else is a ValueError."""
    found = roles[name]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"its {name} is not a list of names")
    return tuple(found)


def record_text(definition: PipelineDefinition) -> str:
    """Return the record of a run of this definition, as JSON text.

    >>> fleet = {"key": "car", "source": {"options": {"password": "hunter2", "user": "${env:U}"}}}
    >>> said = json.loads(record_text(PipelineDefinition.of({"streams": {"fleet": fleet}})))
    >>> said["roles"]["key"], said["definition"]["streams"]["fleet"]["source"]["options"]
    (['car'], {'password': '***', 'user': '${env:U}'})
    """
    first = next(iter(definition.streams.values()))
    time = first.eventtime.column if first.eventtime else None
    made = {
        "format": FORMAT,
        "tidegate": __version__,
        "definition": _shown(definition),
        "roles": {
            "key": first.key,
            "topic": first.topic,
            "arrival": first.arrival,
            "time": time[0] if isinstance(time, list) else time,
        },
    }
    return json.dumps(made, indent=1)


def _shown(definition: PipelineDefinition) -> Any:
    """The definition as plain values, without secrets."""
    values = definition.model_dump(mode="json", by_alias=True, exclude_none=True)
    made: dict[str, Any] = _hide("", values)
    for name, stream in definition.streams.items():
        if stream.source is not None:
            made["streams"][name]["source"]["options"] = _recorded_options("source", stream.source)
    if definition.sink is not None:
        made["sink"]["options"] = _recorded_options("sink", definition.sink)
    return made


def _recorded_options(
    direction: Direction, part: SourceDefinition | SinkDefinition
) -> dict[str, Any]:
    """Return the options of a source or sink as they may be stored, secrets hidden."""
    return {
        name: show_option(direction, part.format, name, value)
        for name, value in part.options.items()
    }


def _hide(name: str, value: Any) -> Any:
    """Return a value with every setting inside it as it may be stored, judged by its name."""
    if isinstance(value, Mapping):
        return {key: _hide(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hide(name, inner) for inner in value]
    return shown(name, value)
