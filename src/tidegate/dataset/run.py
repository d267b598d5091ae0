"""A pipeline file to a dataset, in one call: `tidegate dataset run.yaml`.

The pipeline is that of `tidegate run`: a source, event time, `align`, `episodes`. Its section
`dataset` says what to make of the rows:

    dataset:
      format: lerobot                 # or parquet, lance
      path: out/
      fps: 30                         # lerobot only, and all below
      task: pick up the cube          # or {column: status.task}
      features:
        observation.state: joint.position
        observation.images.front: camera
        action: action

It runs in this process (`in_process`), or on Spark (`on_spark`). Both give the same frames.
"""

from __future__ import annotations

from pathlib import Path

from tidegate.dataset.in_process import DatasetSummary, make_dataset_here
from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition

__all__ = ["write_dataset"]


def write_dataset(
    definition: PipelineDefinition | str | Path,
    *,
    to: str | Path | None = None,
    spark: bool = False,
) -> DatasetSummary:
    """Run a pipeline to a dataset.

    Args:
        definition: The pipeline, or the path of its file.
        to: The folder of the dataset, instead of `dataset.path`.
        spark: Run the pipeline on Spark. Default: in process, which reads Parquet, CSV, JSON
            lines, MCAP and bags.

    Returns:
        What was written, and what was not.

    Raises:
        ConfigError: There is no section `dataset`, a setting is wrong, or the source cannot be
            read without Spark.
    """
    if not isinstance(definition, PipelineDefinition):
        definition = PipelineDefinition.load(definition)
    wanted = definition.dataset
    if wanted is None:
        raise ConfigError("dataset", None, "is needed: say format, path and features")
    path = to if to is not None else wanted.path
    if path is None:
        raise ConfigError("dataset.path", None, "is needed, or --out")
    if not spark:
        return make_dataset_here(definition, wanted, path)
    from tidegate.dataset.on_spark import make_dataset_on_spark

    return make_dataset_on_spark(definition, wanted, path)
