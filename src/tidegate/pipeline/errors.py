"""Turn what pydantic finds in a definition into one ConfigError: field, value, what is allowed,
line."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from tidegate.errors import ConfigError
from tidegate.pipeline.document import Document, Path, dotted

__all__ = ["config_error", "unknown"]

_VALIDATOR = re.compile(r"(function-\w+|list|dict|nullable|union|chain|model)\[.+\]$")
"""How pydantic names a validator in the path of an error."""

MOST_NAMES = 30
"""Names listed in an error. A hundred options of a client would hide the sentence."""


def config_error(error: ValidationError, model: type[BaseModel], source: Document) -> ConfigError:
    """Return the first mistake, in the order of the document, and how many more there are.

    Args:
        error: What pydantic found.
        model: The model that was validated, for the names that are allowed.
        source: The document, for the lines.
    """

    # A misspelt field is also a missing one: the spelling is what to say.
    def rank(each: ErrorDetails) -> tuple[bool, int]:
        return each["type"] == "missing", source.line(_path(each["loc"]))

    found = sorted(error.errors(), key=rank)
    first = found[0]
    path = _path(first["loc"])
    value = first["input"]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        if inner.field not in ("", "duration", *path[-1:]):
            path = (*path, inner.field)
        expected, value = inner.expected, inner.value
        text = f"got {_short(value)}, {expected}"
    elif first["type"] == "extra_forbidden":
        expected = unknown(str(path[-1]), _fields_at(model, path[:-1]))
        text = expected
    elif first["type"] == "missing":
        expected = "is required and missing"
        text = expected
    else:
        expected = _expected(first)
        text = f"got {_short(value)}, {expected}"
    more = f"; {len(found) - 1} more after this" if len(found) > 1 else ""
    field = dotted(path) or "definition"
    return ConfigError(field, value, expected, message=f"{field}: {text}{source.where(path)}{more}")


def unknown(name: str, known: Iterable[str]) -> str:
    """Return what an error says about an unknown name: the most similar known one, and all of them.

    >>> unknown("lateTolerence", ["lateTolerance", "late"])
    'is not known here; did you mean lateTolerance? allowed are late, lateTolerance'
    """
    names = sorted(known)
    listed = names if len(names) <= MOST_NAMES else []
    spelled = {to_camel(each): each for each in names} | {each: each for each in names}
    near = difflib.get_close_matches(name, spelled, n=1)
    hint = f" did you mean {spelled[near[0]]}?" if near else ""
    if names and not listed:
        return f"is not known here{';' if hint else ''}{hint}"
    return f"is not known here;{hint} allowed are {', '.join(names) or 'none'}"


def _expected(error: ErrorDetails) -> str:
    """Return what a field must be, in the words of this package, for an error of pydantic.

    Errors without words here get pydantic's own, in lower case, to follow the value in the
    sentence.
    """
    context = error.get("ctx", {})
    match error["type"]:
        case "literal_error":
            return f"must be one of {context['expected']}".replace("'", "").replace(" or ", ", ")
        case "string_type":
            return "must be text"
        case "bool_type" | "bool_parsing":
            return "must be true or false"
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "must be a mapping of names to values"
        case "list_type":
            return "must be a list"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "too_short" | "string_too_short":
            return "must not be empty"
        case _:
            message = error["msg"]
            return message[0].lower() + message[1:]


def _path(loc: tuple[str | int, ...]) -> Path:
    """The path without what pydantic adds: the branch of a union it tried, the validator it
    called."""
    branches = {"str", "int", "float", "bool"}
    kept = list(loc)
    if len(kept) > 1 and kept[-1] in branches:
        kept.pop()
    return tuple(p for p in kept if not (isinstance(p, str) and _VALIDATOR.match(p)))


def _fields_at(model: Any, path: Path) -> list[str]:
    """Return the names that are allowed at `path` in a definition.

    Follows the annotations from `model` down: a part of the path is a field of a model, or a key or
    index of a container, whose last type argument is the type of its values.

    Returns:
        The names as files spell them (camel case); empty if there is no model at `path`.
    """
    here = model
    for part in path:
        here = _bare_type(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            fields = here.model_fields
            named = [info for name, info in fields.items() if part in (name, info.alias)]
            here = named[0].annotation if named else None
        else:
            inside = typing.get_args(here)
            here = inside[-1] if inside else None
    here = _bare_type(here)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return [info.alias or name for name, info in here.model_fields.items()]
    return []


def _bare_type(kind: Any) -> Any:
    """Return a type without `Annotated` and `| None`."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        given = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return given[0] if len(given) == 1 else kind
    return kind


def _short(value: object) -> str:
    """Return a value for an error text, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
