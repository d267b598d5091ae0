"""Which columns of a stored run are its key, topic and arrival.

In this order: what the user asked for, what the run wrote down about itself, what a pipeline file
in the output or beside it says, and a guess from names and values.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tidegate.core import checks
from tidegate.errors import ConfigError
from tidegate.output.reader import StoredRun
from tidegate.pipeline import document
from tidegate.profile.roles import ARRIVAL_NAMES, Roles, guess_roles

__all__ = ["check_roles", "declared_roles", "roles_in"]


def check_roles(run: StoredRun, roles: Roles) -> None:
    """Raise ConfigError if a role names a column that no table of the run has.

    The columns of the members of sets count too.

    Args:
        run: The stored run.
        roles: What the user named.
    """
    names: dict[str, None] = {}
    for kind in run.kinds:
        for f in run.schema(kind):
            names |= dict.fromkeys([f.name, *_inner(f.type)])
    roles.check(pa.schema([(name, pa.null()) for name in names]))


def _inner(kind: pa.DataType) -> list[str]:
    """Return the names of the fields of a struct; none for other types."""
    return [f.name for f in kind] if pa.types.is_struct(kind) else []


def roles_in(run: StoredRun, kind: str, asked: Roles) -> Roles:
    """Return the roles in one table: those asked for, else those the run declares, else a guess.

    A run that wrote down that it has no key has none, and no topic but a column of that name: only
    arrival is guessed then.

    Args:
        run: The stored run.
        kind: The table: data, late, dropped or error.
        asked: What the user named; columns that this table lacks are ignored.
    """
    schema = run.schema(kind)
    named = asked.over(declared_roles(run))
    there = Roles(
        tuple(name for name in named.key if name in schema.names),
        named.topic if named.topic in schema.names else None,
        None,
        named.arrival,
    )
    guess = guess_roles(run.sample(kind))
    if run.record() is not None:
        # What the run declared is all there is: a column of dates in turns is no topic.
        topic = guess.topic if guess.topic and guess.topic.lower() == "topic" else None
        guess = replace(guess, key=(), topic=topic)
    roles = there.over(guess)
    if roles.arrival is None:
        inside = dict.fromkeys(name for f in schema for name in _inner(f.type))
        roles = replace(roles, arrival=next((n for n in ARRIVAL_NAMES if n in inside), None))
    return roles


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
        # Bounded: a few lines of aliases from a stranger would take minutes otherwise.
        said = document.read_yaml(text.decode(errors="replace")).value
        stream = next(iter(said["streams"].values()))
        key, arrival = stream.get("key") or (), stream.get("arrival") or ()
        keys = checks.names("key", key)
        topic = stream.get("topic")
        return Roles(
            keys,
            topic if isinstance(topic, str) else None,
            None,
            next(iter(checks.names("arrival", arrival)), None),
        )
    except (ConfigError, KeyError, TypeError, AttributeError, StopIteration):
        return Roles()
