"""The pipelines of the examples, the README and the docs, and the recorded plan of each.

`python -m golden` records them again. A plan that changes without being meant to is then seen in
the difference of the files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, explain_json, plan

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "explain"
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pipelines() -> dict[str, str]:
    """Every whole pipeline that users are shown, by the name of its file and its number there."""
    found = {path.stem: path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = [text for text in _BLOCK.findall(page.read_text()) if "streams:" in text]
        for number, text in enumerate(blocks):
            try:
                PipelineDefinition.from_yaml(text)
            except ConfigError:  # a part of one, or one that shows a mistake
                continue
            name = page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "-")
            found[f"{name}-{number}"] = text
    return found


def explained(text: str) -> str:
    """What `tidegate explain --json` prints for a pipeline; a plan that needs data says so."""
    try:
        facts: object = explain_json(plan(PipelineDefinition.from_yaml(text)))
    except ConfigError as error:
        facts = {"refused": str(error)}
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def write() -> None:
    """Record the plans of all pipelines, and forget those that are gone."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, text in pipelines().items():
        (FOLDER / f"{name}.json").write_text(explained(text))
