"""With TIDEGATE_ROOTS set, nothing a pipeline file names lies outside of these directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.secrets import resolve
from tidegate.pipeline.security import inside_roots, option_inside_roots


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one directory allowed, with a secret and a link that leads out of it."""
    made = tmp_path / "root"
    made.mkdir()
    (made / "secret").write_text("inside\n")
    (tmp_path / "secret").write_text("hunter2\n")
    (made / "link").symlink_to(tmp_path)
    (made / "odd*name").symlink_to(tmp_path)
    monkeypatch.setenv("TIDEGATE_ROOTS", str(made))
    return made


@pytest.mark.parametrize("name", ["../secret", "link/secret", "odd*name/secret", "/etc/hostname"])
def test_a_secret_outside_is_not_read(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"must lie in .*root \(TIDEGATE_ROOTS\)") as caught:
        resolve(f"${{file:{root / name}}}", "sink.options.password")
    assert caught.value.field == "sink.options.password"
    assert "hunter2" not in str(caught.value)


def test_a_secret_inside_is_read(root: Path) -> None:
    assert resolve(f"${{file:{root / 'secret'}}}") == "inside"


def test_without_roots_secrets_lie_anywhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_ROOTS")
    assert resolve(f"${{file:{root / 'link' / 'secret'}}}") == "hunter2"


def test_a_name_with_a_star_is_a_pattern_only_for_sources(root: Path) -> None:
    inside_roots(str(root / "odd*name"), "source.path", pattern=True)
    with pytest.raises(ConfigError, match="must lie in"):
        inside_roots(str(root / "odd*name"), "sink.path")


@pytest.mark.parametrize("name", ["sourceArchiveDir", "ssl.ca.location", "badRecordsPath"])
def test_options_that_name_a_place(root: Path, name: str) -> None:
    option_inside_roots(name, str(root / "x"), "source.options")
    with pytest.raises(ConfigError, match=rf"source\.options\.{name}: .* must lie in"):
        option_inside_roots(name, "/etc/x", "source.options")
    option_inside_roots("topic", "/etc/x", "source.options")


DEFINITION = """
streams:
  fleet: {{source: {{path: {source}, options: {{{options}}}}}, key: vehicle}}
options: {{mode: streaming, trigger: available_now, checkpoint: {checkpoint}}}
sink: {{path: {root}/out, options: {{{sink_options}}}}}
"""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"checkpoint": "/tmp/elsewhere"}, r"options\.checkpoint"),
        ({"checkpoint": "'{root}/link/checkpoint'"}, r"options\.checkpoint"),
        ({"checkpoint": "s3://bucket/checkpoint"}, r"options\.checkpoint"),
        ({"source": "'{root}/od*'"}, r"streams\.fleet\.source\.path"),
        (
            {"options": "sourceArchiveDir: /tmp"},
            r"streams\.fleet\.source\.options\.sourceArchiveDir",
        ),
        ({"sink_options": "ssl.ca.location: /etc/x"}, r"sink\.options\.ssl\.ca\.location"),
    ],
)
def test_a_run_is_refused_before_spark_starts(
    root: Path, change: dict[str, str], field: str
) -> None:
    report = pytest.importorskip("tidegate.spark.runner")
    plain = {
        "source": "'{root}'", "options": "", "checkpoint": "'{root}/c'", "sink_options": "",
    }  # fmt: skip
    filled = {name: text.format(root=root) for name, text in {**plain, **change}.items()}
    definition = PipelineDefinition.from_yaml(DEFINITION.format(root=root, **filled))
    with pytest.raises(ConfigError, match=rf"^{field}: .*must lie in"):
        report.open_definition(definition, master="no such master")
    assert not (root / "out").exists()
