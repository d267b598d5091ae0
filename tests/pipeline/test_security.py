"""What a definition may not do: name code, show secrets."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.document import read
from tidegate.pipeline.secrets import hidden, shown
from tidegate.pipeline.security import refuse_code


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths",  # librdkafka loads it
        "kafka.sasl.kerberos.kinit.cmd",  # both clients run it
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "kafka.sasl.login.callback.handler.class",
        "kafka.interceptor.classes",
        "kafka.metric.reporters",
        "kafka.security.providers",
        "kafka.partition.assignment.strategy",
        "kafka.config.providers",
    ],
)
def test_options_that_name_code_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="names code to run"):
        refuse_code(["topic", name], "sink.options")
    monkeypatch.setenv("TIDEGATE_ALLOW_CODE", "1")
    refuse_code([name], "sink.options")


def test_other_options_are_not() -> None:
    refuse_code(
        ["kafka.bootstrap.servers", "sasl.mechanism", "ssl.ca.location", "subclass", "path"], "o"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.ssl.keystore.key", "hunter2"),
        ("ssl.key.pem", "hunter2"),
        ("kafka.sasl.jaas.config", 'Plain required password="hunter2";'),
        ("headers", "Authorization: Basic hunter2"),
        ("extra", "Bearer hunter2"),
        ("pem", "-----BEGIN PRIVATE KEY-----hunter2"),
        ("url", "https://me:hunter2@host/x"),
    ],
)
def test_secrets_are_not_shown(name: str, value: str) -> None:
    assert "hunter2" not in str(shown(name, value))


def test_plain_words_are() -> None:
    assert shown("name", "Basic fleet, bearer of news") == "Basic fleet, bearer of news"
    assert shown("key", "vehicle") == "vehicle"


def test_what_a_client_says_has_no_secrets() -> None:
    said = 'Invalid value "hunter2" for "sasl.password"'
    assert hidden(said, {"sasl.password": "hunter2"}) == 'Invalid value "***" for "sasl.password"'


def test_a_character_no_yaml_may_have() -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml: cannot be read as YAML: unacceptable"):
        read("a\0b: 1", "x.yaml")


def test_what_is_found_wrong_later_has_its_line_too() -> None:
    text = "streams:\n  s:\n    source:\n      options: {a.b: 1}\nsink:\n  format: delta\n"
    pipeline = PipelineDefinition.from_yaml(text, "x.yaml")
    for field, line in (("sink.format", 6), ("streams.s.source.options.a.b", 4)):
        with pytest.raises(ConfigError, match=rf"\(x\.yaml, line {line}\)$"), pipeline.located():
            raise ConfigError(field, 1, "is wrong")
    with pytest.raises(ConfigError, match=r"is wrong$"), pipeline.located():
        raise ConfigError("spark.jars", 1, "is wrong")
