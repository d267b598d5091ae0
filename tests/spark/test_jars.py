"""Jars by coordinates and checksum, from a repository on disk; which connector a session gets."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyspark
import pytest

from tidegate.errors import ConfigError
from tidegate.spark.environment import kafka as connector
from tidegate.spark.environment.jars import Jar, fetch, here
from tidegate.spark.environment.kafka import connector_settings


def publish(repository: Path, coordinates: str, content: bytes = b"jar") -> Jar:
    group, artifact, version = coordinates.split(":")
    folder = repository.joinpath(*group.split("."), artifact, version)
    folder.mkdir(parents=True)
    (folder / f"{artifact}-{version}.jar").write_bytes(content)
    return Jar(coordinates, hashlib.sha256(content).hexdigest())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository on disk, and an empty cache."""
    monkeypatch.setenv("TIDEGATE_MAVEN", (tmp_path / "maven").as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TIDEGATE_KAFKA_PACKAGE", raising=False)
    return tmp_path / "maven"


def test_a_jar_is_fetched_once(repository: Path) -> None:
    jars = [publish(repository, "org.a:one:1.0"), publish(repository, "org.b.c:two:2.0", b"two")]
    assert here(jars) is None
    one, two = fetch(jars)
    assert (one.name, two.name, two.read_bytes()) == ("one-1.0.jar", "two-2.0.jar", b"two")
    next(repository.rglob("one-1.0.jar")).unlink()
    assert fetch(jars) == here(jars) == [one, two]


def test_other_bytes_than_those_that_were_tested_are_refused(repository: Path) -> None:
    publish(repository, "org.a:one:1.0", b"something else")
    jar = Jar("org.a:one:1.0", "0" * 64)
    with pytest.raises(ConfigError, match="not the file that was tested"):
        fetch([jar])
    assert here([jar]) is None


def test_a_repository_must_have_an_address(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_MAVEN", "repo1.maven.org")
    with pytest.raises(ConfigError, match=r"TIDEGATE_MAVEN.*must be an address"):
        fetch([Jar("org.a:one:1.0", "0" * 64)])


def test_only_jars_with_a_known_checksum_are_taken(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository has the connector of this very Spark: it is not asked for it."""
    publish(repository, f"{connector.CONNECTOR}:{pyspark.__version__}")
    publish(repository, f"{connector.TOKENS}:{pyspark.__version__}")
    jars = tuple(publish(repository, jar.coordinates) for jar in connector.PINNED)
    monkeypatch.setattr(connector, "PINNED", jars)
    settings = connector_settings()
    assert set(settings) == {"spark.jars"}
    found = settings["spark.jars"].split(",")
    assert [Path(file).name for file in found] == [jar.file for jar in jars]
    assert connector_settings() == settings


def test_a_repository_that_hands_out_something_else_is_refused(repository: Path) -> None:
    for jar in connector.PINNED:
        publish(repository, jar.coordinates, b"evil")
    with pytest.raises(ConfigError, match="not the file that was tested"):
        connector_settings()


def test_none_to_be_had_is_one_sentence(repository: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be fetched.*TIDEGATE_KAFKA_PACKAGE can name"):
        connector_settings()


def test_a_connector_that_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA_PACKAGE", "a.jar,b.jar")
    assert connector_settings() == {"spark.jars": "a.jar,b.jar"}
    jar = publish(repository, "org.a:one:1.0")
    monkeypatch.setenv("TIDEGATE_KAFKA_PACKAGE", f"a.jar, org.a:one:1.0@{jar.sha256.upper()}")
    first, second = connector_settings()["spark.jars"].split(",")
    assert (first, Path(second).read_bytes()) == ("a.jar", b"jar")


@pytest.mark.parametrize("named", ["org.a:one:1.0", "org.a:one:1.0@", "org.a:one:1.0@123", "one"])
def test_a_connector_without_a_checksum_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    publish(repository, "org.a:one:1.0")
    monkeypatch.setenv("TIDEGATE_KAFKA_PACKAGE", named)
    with pytest.raises(ConfigError, match=r"TIDEGATE_KAFKA_PACKAGE.*@SHA256"):
        connector_settings()


def test_a_connector_with_another_checksum_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(repository, "org.a:one:1.0")
    monkeypatch.setenv("TIDEGATE_KAFKA_PACKAGE", "org.a:one:1.0@" + "0" * 64)
    with pytest.raises(ConfigError, match="not the file that was tested"):
        connector_settings()


def test_a_jar_that_was_changed_in_the_cache_is_fetched_again(repository: Path) -> None:
    jar = publish(repository, "org.a:one:1.0")
    (kept,) = fetch([jar])
    assert here([jar]) == [kept]
    kept.write_bytes(b"something else")
    assert here([jar]) is None
    assert fetch([jar]) == [kept]
    assert here([jar]) == [kept]
