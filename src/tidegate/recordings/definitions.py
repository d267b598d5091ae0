"""Which topics and schemas recordings of any kind define, without reading their messages."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.mcap import McapFile
from tidegate.mcap.index import Channels
from tidegate.recordings.bags import bag_definitions, bags_of
from tidegate.recordings.listing import files_of

__all__ = ["SUFFIXES", "definitions_of", "recordings_of"]

SUFFIXES = (".mcap",)
"""How the names of MCAP files end."""


def recordings_of(place: str) -> list[str]:
    """Return the MCAP files and bags that a path names, sorted."""
    bags = [bag for bag in bags_of(place) if not bag.endswith(SUFFIXES)]
    return sorted({*files_of(place, SUFFIXES), *bags})


def definitions_of(recording: str) -> Iterator[Channels]:
    """Yield the channels of a recording, again whenever more of them are known."""
    if recording.endswith(SUFFIXES):
        with McapFile(recording) as opened:
            yield from opened.definitions()
    else:
        yield bag_definitions(recording)
