"""What a pipeline file may make this machine do: the rules for files from strangers.

1. **Formats.** A definition may use the formats and options listed in `tidegate.pipeline.formats`.
   Any other format, and any other option of a listed one, must be allowed by whoever starts the
   run: `--allow-format NAME`, or the variable TIDEGATE_ALLOW_FORMATS with names and commas.
2. **Code.** Options that make a client load a library, run a command or a statement, or create an
   object of a class are refused, in allowed formats too, unless TIDEGATE_ALLOW_CODE=1. The same
   holds for functions named on a definition's behalf (`module:function`).
3. **Folders.** With TIDEGATE_ROOTS set to directories (`:` between them), every path of a
   definition must be inside one of them: sources, sinks, the checkpoint, files of secrets, and
   options that name a place. `resolve_path` alone decides, and it returns the path to use:
   `file:` URIs become plain paths, and with roots set, links and `..` are resolved. What was
   checked is what is opened. Links inside a source's or sink's folder that lead out are refused.

Without TIDEGATE_ROOTS, paths are not restricted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from tidegate.errors import ConfigError

__all__ = [
    "ALLOW_CODE",
    "ALLOW_FORMATS",
    "ENVIRONMENT",
    "ROOTS",
    "allow_formats",
    "allowed_formats",
    "check_files_read",
    "code_allowed",
    "current_roots",
    "expand",
    "is_local",
    "names_code",
    "refuse_code",
    "refuse_links_out",
    "resolve_path",
    "variable_allowed",
]

ALLOW_CODE = "TIDEGATE_ALLOW_CODE"
"""Set to 1, the options of a definition may name code."""

ALLOW_FORMATS = "TIDEGATE_ALLOW_FORMATS"
"""Formats that definitions may use beyond the listed ones, with commas between them."""

ENVIRONMENT = "TIDEGATE_ENV"
"""Environment variables that `${env:NAME}` in a definition may name, with commas between them; not
set: any. A file from a stranger could send another one to a server it names."""

ROOTS = "TIDEGATE_ROOTS"
"""Directories that definitions may read from and write to, with `:` between them."""

LINKS_SHOWN = 3
"""Links named in an error; the rest are counted."""

MOST_CHOICES = 1_000
"""Patterns that the braces of one path may stand for: twenty pairs of braces are a million."""

_NAMES_CODE = re.compile(
    r"(^|\.)(class|classes|reporters|providers?|library\.paths|kinit\.cmd|engine\.location|"
    r"assignment\.strategy|driver|sessioninitstatement|preparequery|connectionprovider)$",
    re.IGNORECASE,
)
"""Of Kafka's two clients: plug-ins, commands for tickets, handlers, interceptors, reporters. Of
JDBC: the driver, statements that run before the query, the provider of connections."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_FILE_URI = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>/.*)$", re.IGNORECASE | re.DOTALL)
_SIGNS = "*?[{"
"""Characters that make a path a pattern."""


# -- formats and code ------------------------------------------------------------------------------


def allowed_formats(env: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the formats that whoever started this process allows beyond the listed ones.

    >>> sorted(allowed_formats({"TIDEGATE_ALLOW_FORMATS": "jdbc, iceberg"}))
    ['iceberg', 'jdbc']
    """
    given = (os.environ if env is None else env).get(ALLOW_FORMATS, "")
    return frozenset(name.strip().lower() for name in given.split(",") if name.strip())


def allow_formats(names: Iterable[str]) -> None:
    """Allow further formats for the rest of this process: `--allow-format` calls this."""
    os.environ[ALLOW_FORMATS] = ",".join(sorted({*allowed_formats(), *names}))


def variable_allowed(name: str, env: Mapping[str, str] | None = None) -> bool:
    """Return whether a definition may refer to an environment variable.

    >>> variable_allowed("AWS_SECRET", {"TIDEGATE_ENV": "KAFKA_PASSWORD, STATE_KEY"})
    False
    >>> variable_allowed("AWS_SECRET", {})
    True
    """
    given = (os.environ if env is None else env).get(ENVIRONMENT)
    return given is None or name in (each.strip() for each in given.split(","))


def code_allowed(env: Mapping[str, str] | None = None) -> bool:
    """Return whether definitions may name code (TIDEGATE_ALLOW_CODE=1)."""
    return (os.environ if env is None else env).get(ALLOW_CODE) == "1"


def names_code(option: str) -> bool:
    """Return whether an option makes a client run code that its value names.

    >>> names_code("sessionInitStatement"), names_code("kafka.interceptor.classes")
    (True, True)
    >>> names_code("subclass")
    False
    """
    return _NAMES_CODE.search(option) is not None


def refuse_code(names: Iterable[str], field: str) -> None:
    """Raise a ConfigError for the first of these options that names code.

    >>> refuse_code(["topic", "plugin.library.paths"], "sink.options")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: sink.options: got 'plugin.library.paths', names code to run; only \
with TIDEGATE_ALLOW_CODE=1
    """
    if code_allowed():
        return
    for name in names:
        if names_code(name):
            raise ConfigError(field, name, f"names code to run; only with {ALLOW_CODE}=1")


# -- paths -----------------------------------------------------------------------------------------


def _roots(env: Mapping[str, str] | None) -> list[Path]:
    """The directories of TIDEGATE_ROOTS, links resolved; empty if it is not set."""
    given = (os.environ if env is None else env).get(ROOTS)
    return [Path(root).resolve() for root in (given or "").split(os.pathsep) if root]


def is_local(path: str) -> bool:
    """Return whether a path is on a mounted file system, not a URI of something remote.

    >>> is_local("out"), is_local("file:/out"), is_local("s3://bucket/out")
    (True, True, False)
    """
    return _SCHEME.match(path) is None or path[:5].lower() == "file:"


def resolve_path(
    path: str,
    field: str,
    env: Mapping[str, str] | None = None,
    *,
    pattern: bool = False,
    written: str | None = None,
) -> str:
    """Return the path to use for a path of a definition, or raise a ConfigError.

    Args:
        path: A local path, a `file:` URI, or the URI of remote storage.
        field: The field it is from, for errors.
        env: The environment variables; those of the process if not given.
        pattern: Whether `*`, `?`, `[...]` and `{a,b}` are signs of a pattern.
        written: The text of the definition, for errors, where `path` has its references resolved.

    Returns:
        A `file:` URI as a plain path. With TIDEGATE_ROOTS set, an absolute path without links and
        `..`; of a pattern, the part before its first sign is resolved like that.

    Raises:
        ConfigError: The path leaves the roots, or is remote while roots are set.

    >>> resolve_path("file:///data/in", "path", {})
    '/data/in'
    >>> resolve_path("/data/fleet/../../etc", "sink.path", {"TIDEGATE_ROOTS": "/data"})
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: sink.path: got '/data/fleet/../../etc', must be inside /data \
(TIDEGATE_ROOTS)
    """
    shown = path if written is None else written
    if "\0" in path:
        raise ConfigError(field, shown, "must not contain a NUL character")
    plain = path
    if path[:5].lower() == "file:":
        match = _FILE_URI.match(path)
        if match is None or (match["host"] or "").lower() not in ("", "localhost"):
            raise ConfigError(field, shown, "must be file:///absolute/path")
        plain = "/" + match["path"].lstrip("/")
    roots = _roots(env)
    if not roots:
        return plain
    expected = f"must be inside {', '.join(map(str, roots))} ({ROOTS})"
    if _SCHEME.match(plain):
        raise ConfigError(field, shown, expected)
    before, after = _split(plain) if pattern else (plain, "")
    # Spark takes a backslash for the escape of a pattern: a folder called \\.\\. is ".." to it.
    if pattern and "\\" in plain:
        raise ConfigError(field, shown, expected)
    # After the first sign nothing may climb, in whatever way a pattern can write "..".
    if ".." in re.split(r"[/{},\[\]]", after):
        raise ConfigError(field, shown, expected)
    try:
        place = Path(before or ".").resolve()
    except (OSError, RuntimeError) as error:  # links that lead to themselves
        raise ConfigError(field, shown, f"cannot be resolved: {error}") from error
    if not any(place.is_relative_to(root) for root in roots):
        raise ConfigError(field, shown, expected)
    return str(place / after) if after else str(place)


def _split(pattern: str) -> tuple[str, str]:
    """The folder before the first sign of a pattern, and the rest."""
    first = min((pattern.find(sign) for sign in _SIGNS if sign in pattern), default=-1)
    if first < 0:
        return pattern, ""
    cut = pattern.rfind("/", 0, first) + 1
    return pattern[:cut], pattern[cut:]


def expand(path: str, field: str = "path") -> list[Path]:
    """Return what a local path names: itself if it exists, also with the signs of a pattern in its
    name (`run [2].csv`), or everything a pattern matches.

    Raises ConfigError for a pattern whose braces stand for more than `MOST_CHOICES` patterns.
    """
    if _is_there(path):
        return [Path(path)]
    if not any(sign in path for sign in _SIGNS):
        return []
    found: list[Path] = []
    choices = list(islice(_braces(path), MOST_CHOICES + 1))
    if len(choices) > MOST_CHOICES:
        raise ConfigError(field, path, f"stands for more than {MOST_CHOICES:,} patterns")
    for each in choices:
        place = Path(each)
        base, rest = (Path("/"), each.lstrip("/")) if place.is_absolute() else (Path(), each)
        found += base.glob(rest) if any(s in rest for s in _SIGNS) else [place]
    return [place for place in found if place.exists()]


def _is_there(path: str) -> bool:
    """Return whether there is a file or folder of exactly that name."""
    try:
        return Path(path).exists()
    except OSError:  # a pattern that is too long for a name
        return False


def _braces(pattern: str) -> Iterator[str]:
    """`a{b,c}` as `ab` and `ac`, as Spark reads it. Braces inside braces are not expanded."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        yield pattern
        return
    for choice in match[1].split(","):
        yield from _braces(pattern[: match.start()] + choice + pattern[match.end() :])


def refuse_links_out(
    places: Iterable[Path],
    field: str,
    env: Mapping[str, str] | None = None,
    *,
    written: str | None = None,
) -> None:
    """Raise a ConfigError if one of these places is, or contains, a link that leaves the roots.

    Spark follows links when it lists a folder. Costs a walk over the folder, and nothing without
    roots. Links that are put there later, while a stream runs: see `check_files_read`.
    """
    roots = _roots(env)
    if not roots:
        return
    out = [link for place in places for link in _links(place) if not _is_inside_roots(link, roots)]
    if out:
        more = f" and {len(out) - LINKS_SHOWN} more" if len(out) > LINKS_SHOWN else ""
        named = ", ".join(str(link) for link in out[:LINKS_SHOWN])
        shown = str(out[0]) if written is None else written
        raise ConfigError(
            field, shown,
            f"contains links that lead out: {named}{more}; everything must be inside "
            f"{', '.join(map(str, roots))} ({ROOTS})",
        )  # fmt: skip


def check_files_read(files: Iterable[str], roots: Iterable[str]) -> None:
    """Raise a ConfigError if a file that a stream has just read is outside the roots.

    A link that somebody puts into the folder of a running stream is followed by Spark when it lists
    the folder; its rows come by here before anything is made of them.

    Args:
        files: Paths or `file:` URIs, as Spark names files; the signs of a URI may be escaped.
        roots: Resolved directories, from `current_roots`.

    >>> check_files_read(["file:///data/a%20b.csv"], ["/data"])
    >>> check_files_read(["file:///etc/passwd"], ["/data"])
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: source: got '/etc/passwd', leads out of /data (TIDEGATE_ROOTS)
    """
    known = [Path(root) for root in roots]
    for file in files:
        match = _FILE_URI.match(file)
        place = unquote(match["path"]) if match else file
        if not _is_inside_roots(Path(place), known):
            named = ", ".join(map(str, known))
            raise ConfigError("source", place, f"leads out of {named} ({ROOTS})")


def current_roots() -> tuple[str, ...]:
    """Return the directories of TIDEGATE_ROOTS, resolved; empty if paths are not restricted."""
    return tuple(str(root) for root in _roots(None))


def _is_inside_roots(place: Path, roots: list[Path]) -> bool:
    """Whether a place, links followed, is in one of the roots. What cannot be resolved is not."""
    try:
        target = place.resolve()
    except (OSError, RuntimeError):
        return False
    return any(target.is_relative_to(root) for root in roots)


def _links(place: Path) -> Iterator[Path]:
    """The place itself, and all links below it. Links are not followed."""
    yield place
    if place.is_dir():
        for folder, folders, files in os.walk(place, followlinks=False):
            for name in (*folders, *files):
                path = Path(folder, name)
                if path.is_symlink():
                    yield path
