"""Jars from a Maven repository, by coordinates and checksum, kept for the next run.

Spark can resolve packages itself, but takes whatever the repository hands out. Here the jars that
really are needed are fetched one by one, and a jar whose bytes are not those that were tested is
refused: Java runs what is in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Self

from tidegate.errors import ConfigError

__all__ = ["REPOSITORY_VARIABLE", "Jar", "fetch", "here", "repository"]

CENTRAL = "https://repo1.maven.org/maven2"
"""The repository that is used unless `REPOSITORY_VARIABLE` names another."""

REPOSITORY_VARIABLE = "TIDEGATE_MAVEN"
"""Names another Maven repository by its address: a mirror behind a firewall."""

ANSWER_WITHIN_S = 20.0
"""Seconds a repository has to answer. Above, a machine without a network would wait for minutes;
below, a slow mirror would be given up."""


MOST_BYTES = 256 * 2**20
"""Bytes read of a jar at most: ten times the largest one there is. A repository that sends more
does not fill the memory; what was read has another checksum and is refused."""


_PINNED = re.compile(r"(?P<name>[^:@\s]+:[^:@\s]+:[^:@\s]+)@(?P<sha256>[0-9A-Fa-f]{64})")
"""Coordinates of a jar, and the checksum of its file."""


@dataclass(frozen=True)
class Jar:
    """A jar, by what it is called and what is in it.

    Args:
        coordinates: `group:artifact:version`.
        sha256: The SHA-256 of the file that was tested, in hex.
    """

    coordinates: str
    sha256: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the jar that `group:artifact:version@SHA256` names; None for any other text."""
        match = _PINNED.fullmatch(text)
        return None if match is None else cls(match["name"], match["sha256"].lower())

    @property
    def file(self) -> str:
        """The name of the file: `artifact-version.jar`."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


def repository() -> str:
    """Return the address of the repository in use. Raises ConfigError if it is no address."""
    address = os.environ.get(REPOSITORY_VARIABLE, CENTRAL)
    if "://" not in address:
        raise ConfigError(REPOSITORY_VARIABLE, address, f"must be an address such as {CENTRAL}")
    return address.rstrip("/")


def here(jars: Iterable[Jar]) -> list[Path] | None:
    """Return the files of these jars if all of them were fetched before, else None.

    Each is checked against its checksum again: Java runs what is in it, and the cache is a folder.
    """
    wanted = list(jars)
    return [_kept(jar) for jar in wanted] if all(map(_is_whole, wanted)) else None


def _is_whole(jar: Jar) -> bool:
    """Return whether the jar is in the cache and is the file that was tested."""
    kept = _kept(jar)
    return kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == jar.sha256


def fetch(jars: Iterable[Jar]) -> list[Path]:
    """Return the files of these jars, fetching those that are not in the cache.

    Raises ConfigError if one cannot be fetched or is not the file that was tested.
    """
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_fetch, jars))


def _fetch(jar: Jar) -> Path:
    """Return the file of a jar, from the cache or the repository; see `fetch`."""
    kept = _kept(jar)
    if _is_whole(jar):
        return kept
    address = _address(jar.coordinates)
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_WITHIN_S) as answer:
            content = answer.read(MOST_BYTES)
    except (OSError, HTTPException) as error:
        reason = f"{address} cannot be fetched: {getattr(error, 'reason', None) or error}"
        raise ConfigError("jar", jar.coordinates, reason) from error
    found = hashlib.sha256(content).hexdigest()
    if found != jar.sha256:
        raise ConfigError(
            "jar", jar.coordinates, f"{address} is not the file that was tested (SHA-256 {found})"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(kept)
    return kept


def _kept(jar: Jar) -> Path:
    """The place of a jar in the cache. Its checksum is part of the path, so that no other file is
    taken for it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "tidegate" / "jars" / jar.sha256[:12] / jar.file


def _address(coordinates: str) -> str:
    """Return where a Maven repository keeps a jar."""
    group, artifact, version = coordinates.split(":")
    folder = f"{group.replace('.', '/')}/{artifact}/{version}"
    return f"{repository()}/{folder}/{artifact}-{version}.jar"
