"""Everything Tidegate raises.

    TidegateError
    ├── ConfigError     a definition or an option is wrong; says field, value and what is allowed
    │   └── MissingPackageError   a package is not installed, or too old; says how to get it
    ├── ContractError   a caller broke the protocol (a bug in code, never in data)
    ├── DataError       a file is damaged, or is not what its name says
    ├── StateError      a snapshot or a checkpoint cannot be used; nothing was overwritten
    └── RunError        Spark failed while a pipeline ran; says the cause in one sentence

Bad data is never an exception: it is an outcome (`Late`, `StreamError`, `Dropped`), counted and
delivered. DataError is about a whole file, before any row of it is there.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConfigError",
    "ContractError",
    "DataError",
    "MissingPackageError",
    "RunError",
    "StateError",
    "TidegateError",
    "sentence_of",
]


class TidegateError(Exception):
    """The root of all errors that Tidegate raises."""


class ConfigError(TidegateError, ValueError):
    """A definition or an option is wrong: what, which value, and what would be right.

    >>> raise ConfigError("queue_size", 0, "must be at least 1")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: queue_size: got 0, must be at least 1
    """

    def __init__(
        self, field: str, value: object, expected: str, *, message: str | None = None
    ) -> None:
        super().__init__(message or f"{field}: got {value!r}, {expected}")
        self.field = field
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it with its text: worker processes send errors home.

        >>> import pickle
        >>> pickle.loads(pickle.dumps(ConfigError("a", 1, "must be 2", message="a is 1"))).args
        ('a is 1',)
        """
        return _restored, (type(self), str(self), self.field, self.value, self.expected)


def _restored(
    kind: type[ConfigError], text: str, field: str, value: object, expected: str
) -> ConfigError:
    """Return an error that was pickled."""
    return kind(field, value, expected, message=text)


class MissingPackageError(ConfigError, ImportError):
    """What was asked for needs a package that is not installed, or another version of it.

    An ImportError too, because that is what `import tidegate.spark` is expected to raise.

    >>> raise MissingPackageError("pyspark", None, "pip install 'tidegate[spark]'")
    Traceback (most recent call last):
        ...
    tidegate.errors.MissingPackageError: pyspark: got None, pip install 'tidegate[spark]'
    """


class ContractError(TidegateError):
    """A caller broke the operator protocol. Always a bug in code, never in data."""


class DataError(TidegateError):
    """A file is damaged, or is not what its name says: nothing of it can be read.

    Raised by `tidegate inspect`, `init` and `look`, which end with exit code 1.
    """


class StateError(TidegateError):
    """A snapshot or checkpoint is corrupt, newer than this version, or made by another plan."""


class RunError(TidegateError):
    """Spark failed while a pipeline ran: the first Python or Java cause, in one sentence.

    What was committed stays; run it again to go on from there.
    """


def sentence_of(error: Exception) -> str:
    """The sentence inside a Java or Python stack that says what happened: ours if there is one.

    >>> sentence_of(RuntimeError("Job aborted\\n  at ...\\ntidegate.errors.StateError: no state"))
    'no state'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    for line in reversed(lines):
        for name in ("StateError: ", "ConfigError: ", "ContractError: "):
            if name in line:
                return line.split(name, 1)[1]
    return lines[0]
