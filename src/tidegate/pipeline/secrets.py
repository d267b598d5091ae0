"""Secrets of a definition: references such as `${env:NAME}`, and what may be shown of any value.

Rules:

1. A definition holds a reference (`${env:NAME}`, `${file:path}`), not the secret. It is resolved
   when a source or sink is opened, and only for that. A file must be inside `TIDEGATE_ROOTS`.
2. Whatever shows a definition (`explain`, the run record, the page, errors) shows the reference.
   `scrub` replaces a resolved value by its reference in text that others wrote.
3. A secret that is written out in full is hidden. Values of options are shown only if the option
   is known to be harmless (`tidegate.pipeline.formats`); in all other text, passwords and query
   strings of URLs, `password=...` pairs, headers and keys are hidden.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.pipeline.security import ENVIRONMENT, resolve_path, variable_allowed

__all__ = [
    "HIDDEN",
    "hidden",
    "is_reference",
    "is_whole_reference",
    "names_secret",
    "resolve",
    "scrub",
    "show_hidden",
    "show_text",
    "shown",
]

HIDDEN = "***"
"""What is shown instead of a secret."""

_REFERENCE = re.compile(r"\$\{([a-z]+):([^}]+)\}")

_SECRET_WORDS = (
    r"pass(?:w(?:or)?d|phrase)?s?(?![a-z])|pwd|passw|passphrase|secret|token|credential|cookie|"
    r"api.?key|access.?key|private.?key|account.?key|sas.?key|shared.?key|state.?key|key\.pem|"
    r"keystore\.key|jaas|authorization|(?<![a-z])sig(?:nature)?(?![a-z])|connection.?string"
)
_SECRET_NAME = re.compile(_SECRET_WORDS, re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"authorization\s*[:=]|\bbearer\s+\S{6}|BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE
)
"""A secret under any name: a header for a server, a key in full."""
_PAIR = re.compile(
    rf"([\w.\-]*(?:{_SECRET_WORDS})[\w.\-]*\s*=\s*)(?!\$\{{)(?:\"[^\"]*\"|'[^']*'|[^\s;&,#]+)",
    re.IGNORECASE,
)
"""`password=hunter2` inside a longer text: connection strings, settings of a client."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-:]*://(?:\$\{[^}]*\}|[^\s'\"<>])*")
_WEB = re.compile(r"https?://", re.IGNORECASE)

_resolved: dict[str, str] = {}
"""Values that references stood for in this process, and the references."""

SHORTEST_SCRUBBED = 4
"""Shorter values are not replaced by `scrub`: a secret `1` would tear every number apart."""


def is_reference(text: object) -> bool:
    """Return whether a value contains a reference.

    >>> is_reference("${env:KAFKA_PASSWORD}"), is_reference("plain")
    (True, False)
    """
    return isinstance(text, str) and _REFERENCE.search(text) is not None


def is_whole_reference(text: object) -> bool:
    """Return whether a value is one reference to a variable or a file, and nothing else.

    >>> is_whole_reference("${env:STATE_KEY}"), is_whole_reference("a${env:STATE_KEY}")
    (True, False)
    """
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    return match is not None and match[1] in ("env", "file")


def names_secret(name: str) -> bool:
    """Return whether a name looks like that of a secret.

    >>> [names_secret(n) for n in ("sasl.password", "pwd", "connectionString", "key", "passenger")]
    [True, True, True, False, False]
    """
    return _SECRET_NAME.search(name) is not None


def resolve(text: str, field: str = "option", env: Mapping[str, str] | None = None) -> str:
    """Replace every reference by the value it stands for. Call this only to use the result.

    Args:
        text: The text of the definition.
        field: The field it is from, for errors.
        env: The environment variables; those of the process if not given.

    Raises:
        ConfigError: A variable is not set or not among those of TIDEGATE_ENV, or a file is not
            readable or outside TIDEGATE_ROOTS.

    >>> resolve("user:${env:PASSWORD}@db", env={"PASSWORD": "x"})
    'user:x@db'
    """
    variables = os.environ if env is None else env

    def value(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if not variable_allowed(name):
                raise ConfigError(
                    field, match[0], f"the variable must be named in {ENVIRONMENT} for this run"
                )
            if name not in variables:
                raise ConfigError(
                    field, match[0], f"the environment variable {name} must be set for this run"
                )
            found = variables[name]
        elif kind == "file":
            path = resolve_path(name, field, env)
            try:
                found = Path(path).read_text().rstrip("\n")
            except (OSError, UnicodeDecodeError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "is not text"
                raise ConfigError(field, match[0], f"file must be readable: {reason}") from error
        else:
            raise ConfigError(field, match[0], "must be ${env:NAME} or ${file:path}")
        if len(found) >= SHORTEST_SCRUBBED:
            _resolved[found] = match[0]
        return found

    return _REFERENCE.sub(value, text)


def scrub(text: str) -> str:
    """Return a text with every value that a reference stood for replaced by the reference.

    >>> _ = resolve("${env:PASSWORD}", env={"PASSWORD": "hunter2-of-the-doctest"})
    >>> scrub("cannot log in with hunter2-of-the-doctest")
    'cannot log in with ${env:PASSWORD}'
    """
    for value in sorted(_resolved, key=len, reverse=True):
        text = text.replace(value, _resolved[value])
    return text


def show_hidden(value: object) -> str:
    """Return what may be shown of a secret: its references, and nothing of the text around them.

    >>> show_hidden("hunter2"), show_hidden("${env:P}"), show_hidden("ada:hunter2${env:P}")
    ('***', '${env:P}', '***${env:P}')
    """
    parts = []
    end = 0
    text = str(value)
    for match in _REFERENCE.finditer(text):
        parts += [HIDDEN if match.start() > end else "", match[0]]
        end = match.end()
    parts.append(HIDDEN if end < len(text) or not text else "")
    return "".join(parts)


def show_text(value: object) -> object:
    """Return what may be shown of a value that need not be a secret.

    References stay. Hidden are passwords and query strings of URLs, `password=...` pairs,
    authorization headers and private keys.

    >>> show_text("s3a://ada:hunter2@bucket/in?sig=abc#x")
    's3a://ada:***@bucket/in?sig=***#***'
    >>> show_text("Server=db;Pwd=hunter2"), show_text("/data/key=7/"), show_text(7)
    ('Server=db;Pwd=***', '/data/key=7/', 7)
    """
    if not isinstance(value, str):
        return value
    if _SECRET_VALUE.search(_REFERENCE.sub("", value)):
        return show_hidden(value)
    return _PAIR.sub(rf"\1{HIDDEN}", _URL.sub(lambda match: _show_url(match[0]), value))


def _show_url(url: str) -> str:
    """A URL without its password, and with the names but not the values of its query."""
    scheme, _, rest = url.partition("://")
    rest, mark, fragment = rest.partition("#")
    rest, question, query = rest.partition("?")
    place, semicolon, settings = rest.partition(";")
    authority, slash, path = place.partition("/")
    user, at, host = authority.rpartition("@")
    if at:
        name, colon, password = user.partition(":")
        if colon:
            user = f"{name}:{show_hidden(password)}"
        elif _WEB.match(url):  # a token in place of a user name
            user = show_hidden(user)
    query = "&".join(_show_pair(pair) for pair in query.split("&")) if question else ""
    settings = ";".join(_show_pair(pair) for pair in settings.split(";")) if semicolon else ""
    shown = f"{scheme}://{user}{at}{host}{slash}{path}{semicolon}{settings}{question}{query}"
    return f"{shown}{mark}{show_hidden(fragment) if mark else ''}"


def _show_pair(pair: str) -> str:
    """`name=value` of a query with its value hidden; a bare word is hidden whole."""
    name, equals, value = pair.partition("=")
    return f"{name}={show_hidden(value)}" if equals else (show_hidden(name) if name else "")


def shown(name: str, value: object) -> object:
    """Return a setting as it may be shown, judged by its name and its value.

    For options of sources and sinks use `tidegate.pipeline.formats.show_option`, which knows them.

    >>> shown("password", "hunter2"), shown("password", "${env:P}"), shown("path", "out/")
    ('***', '${env:P}', 'out/')
    """
    return show_hidden(value) if names_secret(name) else show_text(value)


def hidden(text: str, options: Mapping[str, str]) -> str:
    """Return a text that a client library wrote, without the values of options that are secrets.

    >>> hidden("cannot log in with hunter2", {"sasl.password": "hunter2", "topic": "in"})
    'cannot log in with ***'
    """
    for name, value in options.items():
        if value and names_secret(name):
            text = text.replace(value, HIDDEN)
    return scrub(text)
