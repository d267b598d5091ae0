"""Secrets are shown nowhere: not by explain, not in the record of a run, not in an error."""

from __future__ import annotations

import json

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, explain, explain_json, plan
from tidegate.pipeline.run_record import record_text
from tidegate.pipeline.secrets import hidden, resolve, scrub, show_text, shown


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
        ("url", "https://hunter2@host/x"),
        ("url", "https://host/x?sig=hunter2&x=hunter2"),
        ("url", "https://host/x?hunter2"),
        ("url", "https://host/x#hunter2"),
        ("url", "jdbc:postgresql://host/db?user=ada&password=hunter2"),
        ("url", "jdbc:sqlserver://host;user=ada;password=hunter2"),
        ("passphrase", "hunter2"),
        ("pwd", "hunter2"),
        ("pass", "hunter2"),
        ("sig", "hunter2"),
        ("connectionString", "AccountName=x;AccountKey=hunter2"),
        ("x", "AccountName=x;AccountKey=hunter2==;Suffix=y"),
        ("x", "Server=db;PWD = 'hunter2'"),
        ("cookie", "hunter2"),
        ("password", "hunter2${env:P}"),
        ("password", "${env:P}hunter2${env:Q}hunter2"),
        ("path", "s3a://ada:hunter2${env:P}@bucket/x"),
    ],
)
def test_secrets_are_not_shown(name: str, value: str) -> None:
    assert "hunter2" not in str(shown(name, value))
    for reference in ("${env:P}", "${env:Q}"):
        assert (reference in value) == (reference in str(shown(name, value)))


def test_plain_words_are() -> None:
    for name, value in (
        ("name", "Basic fleet, bearer of news"), ("key", "vehicle"), ("path", "/data/key=7/in"),
        ("topic", "passengers"), ("path", "s3://bucket/in"), ("design", "signal"),
        ("path", "abfss://container@account.dfs.core.windows.net/in"),
    ):  # fmt: skip
        assert shown(name, value) == value


def test_what_a_client_says_has_no_secrets() -> None:
    said = 'Invalid value "hunter2" for "sasl.password"'
    assert hidden(said, {"sasl.password": "hunter2"}) == 'Invalid value "***" for "sasl.password"'


def test_what_a_reference_stood_for_is_shown_as_the_reference() -> None:
    resolve("${env:DB}", env={"DB": "hunter2-from-the-test"})
    assert scrub("no such host: hunter2-from-the-test.") == "no such host: ${env:DB}."


SECRETS = ("hunter2", "hunter3", "hunter4", "hunter5", "hunter6", "hunter7")

DEFINITION = {
    "streams": {
        "s": {
            "source": {
                "format": "kafka",
                "path": "s3a://ada:hunter2@bucket/in?sig=hunter2",
                "options": {
                    "kafka.bootstrap.servers": "${env:BROKER}:9092",
                    "kafka.sasl.password": "hunter3${env:PASSWORD}hunter3",
                    "whatever": "hunter4",
                    "kafka.ssl.truststore.password": "hunter4",
                },
            }
        }
    },
    "options": {"mode": "streaming", "checkpoint": "abfss://c@a/x?sig=hunter5"},
    "sink": {"path": "https://host/x?token=hunter6", "options": {"cookie": "hunter7"}},
}


def test_nothing_that_shows_a_definition_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    definition = PipelineDefinition.of(DEFINITION)
    made = plan(definition)
    for text in (explain(made), json.dumps(explain_json(made)), record_text(definition)):
        assert not [secret for secret in SECRETS if secret in text]
        assert "${env:BROKER}:9092" in text
        assert "***${env:PASSWORD}***" in text


def test_an_error_about_a_field_does_not_show_what_it_resolved_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLACE", "hunter2-place")
    definition = PipelineDefinition.from_yaml("streams: {s: {}}\nsink: {path: out}")
    resolve("${env:PLACE}")
    with pytest.raises(ConfigError) as caught, definition.located():
        raise ConfigError("sink.path", "hunter2-place/x", "must be hunter2-place/y")
    assert str(caught.value) == (
        "sink.path: got '${env:PLACE}/x', must be ${env:PLACE}/y (pipeline.yaml, line 2)"
    )
    assert "hunter2" not in f"{caught.value.value}{caught.value.expected}"


def test_numbers_stay_numbers() -> None:
    assert show_text(5) == 5
    assert show_text(None) is None


STREAM = {"s": {"columns": ["t"]}}


def with_state_key(value: object, **options: object) -> PipelineDefinition:
    return PipelineDefinition.of(
        {"streams": STREAM, "options": {"mode": "streaming", "stateKey": value, **options}}
    )


@pytest.mark.parametrize(
    "value", ["hunter2-hunter2-hunter2", "x${env:STATE_KEY}", "${vault:hunter2-x}", 7, ["hunter2"]]
)
def test_a_state_key_is_a_reference_and_never_shown(value: object) -> None:
    with pytest.raises(ConfigError, match=r"options\.stateKey.*reference") as told:
        with_state_key(value)
    assert "hunter2" not in str(told.value)
    both = {"state_key": "hunter2-hunter2", "stateKey": "${env:STATE_KEY}"}
    with pytest.raises(ConfigError, match="also given") as told:
        PipelineDefinition.of({"streams": STREAM, "options": {"mode": "streaming", **both}})
    assert "hunter2" not in str(told.value)


def test_what_is_shown_of_a_state_key_is_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_KEY", "hunter2-hunter2-hunter2")
    made = with_state_key("${env:STATE_KEY}")
    for text in (json.dumps(explain_json(plan(made))), record_text(made), repr(made)):
        assert "${env:STATE_KEY}" in text
        assert "hunter2" not in text
    with pytest.raises(ConfigError, match="needs mode: streaming"):
        with_state_key("${env:STATE_KEY}", mode="batch")
