"""References to secrets: `${env:NAME}` and `${file:path}`.

A definition holds the reference, never the value. It is resolved when a source or sink is opened,
and whatever shows a definition (`explain`, logs, the page) shows the reference. A file must lie in
the directories given (`TIDEGATE_ROOTS`), as any path of a definition.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.pipeline.security import inside_roots

__all__ = ["hidden", "is_reference", "resolve", "shown"]

_REFERENCE = re.compile(r"\$\{([a-z]+):([^}]+)\}")
_SECRET_NAME = re.compile(
    r"passw|secret|token|credential|api.?key|access.?key|private.?key|jaas|key\.pem|keystore\.key|"
    r"authorization|sas.?key|account.?key",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"authorization\s*[:=]|\bbearer\s+\S{6}|BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE
)
"""What is a secret under whatever name: a header for a server, a key in full."""
_IN_ADDRESS = re.compile(r"(://[^/@:\s]*:)(?!\$\{)[^/@\s]+@")
"""`scheme://user:password@host`"""

HIDDEN = "***"


def is_reference(text: object) -> bool:
    """Whether a value holds a reference.

    >>> is_reference("${env:KAFKA_PASSWORD}"), is_reference("plain")
    (True, False)
    """
    return isinstance(text, str) and _REFERENCE.search(text) is not None


def resolve(text: str, field: str = "option", env: Mapping[str, str] | None = None) -> str:
    """The text with every reference replaced by what it names. Only call this to use it.

    >>> resolve("user:${env:PASSWORD}@db", env={"PASSWORD": "x"})
    'user:x@db'
    """
    variables = os.environ if env is None else env

    def value(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in variables:
                raise ConfigError(
                    field, match[0], f"the environment variable {name} must be set for this run"
                )
            return variables[name]
        if kind == "file":
            inside_roots(name, field, env)
            try:
                return Path(name).read_text().rstrip("\n")
            except OSError as error:
                reason = error.strerror or "unreadable"
                raise ConfigError(field, match[0], f"file must be readable: {reason}") from error
        raise ConfigError(field, match[0], "must be ${env:NAME} or ${file:path}")

    return _REFERENCE.sub(value, text)


def shown(name: str, value: object) -> object:
    """An option as it may be shown: references as they stand, and what looks like a secret written
    out in full is hidden.

    >>> shown("password", "hunter2"), shown("password", "${env:P}"), shown("path", "out/")
    ('***', '${env:P}', 'out/')
    """
    if _SECRET_NAME.search(name):
        return value if is_reference(value) else HIDDEN
    if isinstance(value, str) and _SECRET_VALUE.search(value) and not is_reference(value):
        return HIDDEN
    return _IN_ADDRESS.sub(rf"\1{HIDDEN}@", value) if isinstance(value, str) else value


def hidden(text: str, options: Mapping[str, str]) -> str:
    """A text of someone else's, without the values of those options that are secrets.

    >>> hidden("cannot log in with hunter2", {"sasl.password": "hunter2", "topic": "in"})
    'cannot log in with ***'
    """
    for name, value in options.items():
        if value and shown(name, value) == HIDDEN:
            text = text.replace(value, HIDDEN)
    return text
