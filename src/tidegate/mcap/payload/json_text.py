"""JSON payloads.

A JSON Schema, where there is one, gives the types of fields. Values are taken as they are; one that
does not fit the type of its column gets a reason. Bytes are base64 text, as Foxglove's schemas have
them (`contentEncoding: base64`), and become bytes again. Without a schema every field may exist,
and the user gives its type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.mcap.payload.values import (
    NotDecodableError,
    Path,
    TooLargeError,
    check_payload_size,
    column,
    follow,
)
from tidegate.mcap.records import Schema

__all__ = ["JsonCodec"]

_TYPES = {
    "number": pa.float64(), "integer": pa.int64(), "string": pa.string(), "boolean": pa.bool_(),
    "object": pa.string(),
}  # fmt: skip
"""Column types by JSON Schema type; an object becomes its JSON text."""


class JsonCodec:
    """Payloads of encoding `json`.

    Args:
        schema: With the encoding `jsonschema`, its `properties` give the types of fields. One of
            another encoding, or one that is not JSON, is ignored.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.schema: Any = {}
        if schema is not None and schema.encoding == "jsonschema":
            try:
                self.schema = json.loads(schema.data or b"{}")
            except (ValueError, RecursionError):
                self.schema = {}  # the payloads themselves say what they hold

    def type_of(self, path: Path) -> pa.DataType | None:
        """Return the type of a field; null if the schema does not tell. Never None: JSON may hold
        more."""
        if not path:
            return pa.string()
        try:
            return _type_from_json_schema(self._schema_of(path))
        except RecursionError:  # arrays of arrays, as deep as JSON can be read at all
            return pa.null()

    def names_in(self, path: Path) -> tuple[str, ...]:
        """Return the names of the fields that the schema gives an object. See `Codec.names_in`."""
        at = self._schema_of(path)
        inside = at.get("properties") if isinstance(at, dict) else None
        return tuple(inside) if isinstance(inside, dict) else ()

    def _schema_of(self, path: Path) -> Any:
        """Return the part of the schema for a field; None if it tells nothing."""
        at = self.schema
        for name in path:
            inside = at.get("properties") if isinstance(at, dict) else None
            at = inside.get(name) if isinstance(inside, dict) else None
        return at

    def columns(
        self, payloads: pa.Array, wanted: Sequence[tuple[Path, pa.DataType]]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Parse every payload and take the fields. See `Codec.columns`.

        A field that is missing is null. A payload that is not JSON, or has a number or text where
        the path goes on, gets a reason.
        """
        found: list[list[Any]] = [[] for _ in wanted]
        reasons: dict[int, str] = {}
        for row, payload in enumerate(payloads.to_pylist()):
            values: list[Any] = [None] * len(wanted)
            try:
                check_payload_size(payload)
                text = payload.decode()
                message = json.loads(text)
                values = [follow(message, path) if path else text for path, _ in wanted]
            except TooLargeError as error:
                reasons[row] = f"JSON that is too large: {error}"
            except NotDecodableError as error:
                reasons[row] = f"JSON of another shape: {error}"
            except (ValueError, RecursionError) as error:
                reasons[row] = f"not JSON: {str(error) or type(error).__name__}"
            for place, value in enumerate(values):
                found[place].append(value)
        made = []
        for values, (path, kind) in zip(found, wanted, strict=True):
            if pa.types.is_binary(kind):
                values = [_from_base64(value) for value in values]
            made.append(column(values, kind, reasons, ".".join(path)))
        return made, reasons


def _from_base64(value: Any) -> Any:
    """Bytes from base64 text; what is no such text is returned as it is, and does not fit then."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return value


def _type_from_json_schema(told: Any) -> pa.DataType:
    """Return the column type for a part of a JSON Schema; null if it tells none.

    Of a list of types, the first that is not "null" counts. An array of plain values is a list; an
    array of anything else is JSON text.
    """
    if not isinstance(told, dict):
        return pa.null()
    name = told.get("type")
    if isinstance(name, list):
        name = next((one for one in name if one != "null"), None)
    if name == "string" and told.get("contentEncoding") == "base64":
        return pa.binary()
    if name == "array":
        inside = told.get("items")
        kind = _type_from_json_schema(inside)
        plain = isinstance(inside, dict) and inside.get("type") not in ("object", "array", None)
        return pa.list_(kind) if plain and not pa.types.is_null(kind) else pa.string()
    return _TYPES.get(name, pa.null()) if isinstance(name, str) else pa.null()
