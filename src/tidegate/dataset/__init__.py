"""Training datasets from aligned rows: LeRobot v3, Lance, and plain Parquet.

features    which columns become which features, and of which shape
images      image payloads (JPEG, PNG, raw) as arrays of pixels
lerobot     LeRobotWriter: data, episodes, statistics and videos in LeRobot's v3 layout
tables      ParquetWriter, LanceWriter: the rows as they are, with image bytes or references
image_file  a Parquet file whose images are copied once; direct_file, footer: how it is written
run         a pipeline file to a dataset: in_process, or on_spark

PyAV is imported where pixels are needed, lancedb where Lance is written: `tidegate[video]`,
`tidegate[lance]`.
"""

from tidegate.dataset.features import Feature, features_of
from tidegate.dataset.in_process import DatasetSummary
from tidegate.dataset.lerobot import LeRobotWriter
from tidegate.dataset.run import write_dataset
from tidegate.dataset.tables import LanceWriter, ParquetWriter

__all__ = [
    "DatasetSummary",
    "Feature",
    "LanceWriter",
    "LeRobotWriter",
    "ParquetWriter",
    "features_of",
    "write_dataset",
]
