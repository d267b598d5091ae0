"""Whether there is a Spark that this package runs on. Imports nothing of it.

pyspark is an extra: on Databricks, EMR or a cluster image the platform's own must not be replaced,
and the operators in process, `inspect`, `look` and `view` need none. `tidegate.spark` imports this
module first, which raises MissingPackageError if there is none, or one that is too old.
"""

from __future__ import annotations

from importlib.util import find_spec

from tidegate.errors import MissingPackageError

__all__ = ["NEWEST_TRIED", "OLDEST_SPARK", "check_version", "require_spark", "version_of"]

OLDEST_SPARK = (4, 1)
"""The oldest Spark that runs it: transformWithState for rows came with 4.1."""

NEWEST_TRIED = (4, 3)
"""The newest Spark that the tests run on (`make matrix`). A newer one is not refused: its platform
may know better."""


def require_spark() -> None:
    """Raise MissingPackageError, with the line to install it, if there is no pyspark, or one that
    is too old. Called before anything of it is imported."""
    if find_spec("pyspark") is None:
        raise MissingPackageError(
            "pyspark", None, "not installed",
            message="this needs Spark, and the package pyspark is not installed: "
            "pip install 'tidegate[spark]' (on Databricks, EMR or a cluster image use the pyspark "
            "that is there)",
        )  # fmt: skip
    from pyspark.version import __version__ as installed

    check_version(installed)


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor of a version of Spark.

    >>> version_of("4.2.0.dev3"), version_of("4.1.4-amzn-1")
    ((4, 2), (4, 1))
    """
    major, minor = text.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def check_version(text: str) -> None:
    """Raise MissingPackageError if a version of pyspark is too old.

    Args:
        text: What `pyspark.__version__` says.

    Example:
        >>> check_version("4.3.0")
        >>> check_version("4.0.2")
        Traceback (most recent call last):
            ...
        tidegate.errors.MissingPackageError: pyspark: got '4.0.2', needs Spark 4.1 or later: \
pip install 'tidegate[spark]', or a platform with such a Spark
    """
    if version_of(text) < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        raise MissingPackageError(
            "pyspark", text,
            f"needs Spark {oldest} or later: pip install 'tidegate[spark]', or a platform with "
            "such a Spark",
        )  # fmt: skip


require_spark()
