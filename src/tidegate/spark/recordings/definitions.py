"""Recordings of any kind, for whoever only wants to know what is defined in them."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.mcap import McapFile
from tidegate.mcap.index import Channels
from tidegate.spark.recordings.bags import bag_definitions, bags_of
from tidegate.spark.recordings.listing import files_of

__all__ = ["SUFFIXES", "definitions_of", "recordings_of"]

SUFFIXES = (".mcap",)
"""How the names of MCAP files end."""


def recordings_of(place: str) -> list[str]:
    """The MCAP files and bags that a path names."""
    bags = [bag for bag in bags_of(place) if not bag.endswith(SUFFIXES)]
    return sorted({*files_of(place, SUFFIXES), *bags})


def definitions_of(recording: str) -> Iterator[Channels]:
    """What a recording defines, as far as it is known, and again whenever more is."""
    if recording.endswith(SUFFIXES):
        with McapFile(recording) as opened:
            yield from opened.definitions()
    else:
        yield bag_definitions(recording)
