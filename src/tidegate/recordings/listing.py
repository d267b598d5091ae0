"""Which files a path names, and the columns whose values are in a file's path."""

from __future__ import annotations

import re
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.pipeline.security import expand, refuse_links_out

__all__ = ["PathColumns", "below", "data_files", "files_of", "paths_named"]


def paths_named(path: str | None) -> list[Path]:
    """Return what a path names: itself, or everything that a pattern (`*`, `?`, `[...]`, `{a,b}`)
    matches.

    Raises ConfigError if there is no such path, or it is on a file system that is not mounted.
    """
    if not path:
        raise ConfigError("path", path, "is required")
    plain = path.removeprefix("file://")
    if "://" in plain:
        raise ConfigError("path", path, "must be on a file system that is mounted here")
    found = expand(plain)
    if not found and not any(sign in plain for sign in "*?[{"):
        raise ConfigError("path", path, "does not exist")
    return list(dict.fromkeys(found))


def below(place: Path, pattern: str) -> list[Path]:
    """Return what is in a folder or below it and matches a pattern. Names that begin with a dot or
    an underscore are left out, as Spark does: they are being written."""
    return [
        found
        for found in place.rglob(pattern)
        if not any(part[0] in "._" for part in found.relative_to(place).parts)
    ]


def files_of(path: str | None, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that a path names, sorted: itself, those in a folder and below that end in
    one of `suffixes`, or those a pattern matches."""
    files: set[str] = set()
    for place in paths_named(path):
        if place.is_file():
            files.add(str(place))
        else:
            files |= {str(p) for p in below(place, "*") if p.suffix in suffixes and p.is_file()}
    # Again at every listing: a link may have been put into a stream's folder since it started.
    refuse_links_out(map(Path, files), "path")
    return sorted(files)


def data_files(path: str, *, recursive: bool = False) -> list[str]:
    """Return the files that a path names, sorted by name: itself, those directly in a
    folder (or below it, if `recursive`), or those of everything a pattern matches. Names that begin
    with a dot or an underscore are being written and are left out, as Spark does it.
    """
    found: set[Path] = set()
    for place in paths_named(path):
        if place.is_dir():
            inside = place.rglob("*") if recursive else place.iterdir()
            found |= {
                each
                for each in inside
                if each.is_file()
                and not any(part[0] in "._" for part in each.relative_to(place).parts)
            }
        else:
            found.add(place)
    return [str(each.absolute()) for each in sorted(found, key=lambda one: (one.name, str(one)))]


class PathColumns:
    """Columns whose values stand in a file's path: the named groups of a pattern.

    >>> columns = PathColumns(r"/(?P<vehicle>[^/]+)/[^/]*$")
    >>> columns.names, columns.of("/logs/truck-7/2026-01-01.mcap")
    (('vehicle',), ('truck-7',))
    """

    def __init__(self, pattern: str | None) -> None:
        try:
            self.pattern = re.compile(pattern or "")
        except re.error as error:
            raise ConfigError("columnsFromPath", pattern, f"must be a pattern: {error}") from None
        self.names = tuple(self.pattern.groupindex)
        if pattern is not None and not self.names:
            raise ConfigError("columnsFromPath", pattern, "must name a group: (?P<vehicle>...)")

    def of(self, path: str) -> tuple[str | None, ...]:
        """Return the values for a file; None for all if its path does not match."""
        found = self.pattern.search(path)
        return tuple(found[name] if found else None for name in self.names)
