"""The roles of columns that a stored run declares: its key, topic and arrival."""

from __future__ import annotations

import yaml

from tidegate.output.reader import StoredRun
from tidegate.profile.roles import Roles

__all__ = ["declared_roles"]


def declared_roles(run: StoredRun) -> Roles:
    """Return what the run wrote down, else what a pipeline file in the output or beside it says.

    Roles that nothing declares are unset; the page guesses those from the data.
    """
    record = run.record()
    if record is not None:
        return Roles(record.key, record.topic, None, next(iter(record.arrival), None))
    for name in ("pipeline.yaml", "../pipeline.yaml"):
        text = run.text(name)
        if text is not None:
            return _roles_of(text)
    return Roles()


def _roles_of(text: bytes) -> Roles:
    """A file that is not ours, or broken, says nothing here: `tidegate explain` is for that."""
    try:
        streams = yaml.safe_load(text)["streams"]
        stream = next(iter(streams.values()))
        key, arrival = stream.get("key") or (), stream.get("arrival") or ()
        keys = (key,) if isinstance(key, str) else tuple(key)
        first = arrival if isinstance(arrival, str) else next(iter(arrival), None)
        return Roles(keys, stream.get("topic"), None, first)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, StopIteration):
        return Roles()
