"""Every source and sink of a pipeline file, and datasets, on a Spark Connect server; started by
`test_connect.py`.

    python -m spark.connect_formats ADDRESS FOLDER

Runs the definitions that `write_definitions` put into the folder, each into FOLDER/NAME/connect,
and prints one JSON object: why each that failed did.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from rich.console import Console

from dataset.recordings import messages, pipeline, record
from faults import outputs, recording
from tidegate.dataset import write_dataset
from tidegate.errors import sentence_of
from tidegate.mcap import McapWriter
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.runner import run_definition
from tidegate.spool import Landed, Spool

SOURCE = """
streams:
  s:
    source: {source}
    key: {key}
    arrival: {arrival}
    eventtime: {{column: {time}, type: unixtimestamp_ns}}
options: {{mode: {mode}, eventtime: {{enabled: true, lateTolerance: 10 ns, watermarkPer: tuple}}}}
"""
ROWS = pa.table(
    {"vehicle": [f"v{n % 3}" for n in range(90)], "stamp": [n ^ 5 for n in range(90)],
     "x": [n * 0.5 for n in range(90)], "n": list(range(90))}
)  # fmt: skip


def _csv(folder: Path) -> str:
    pc_csv.write_csv(ROWS, folder / "a.csv")
    return (
        f"{{format: csv, path: {folder}, schema: 'vehicle string, stamp long, x double, n long', "
        "options: {header: true}}"
    )


def _json(folder: Path) -> str:
    (folder / "a.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()))
    return f"{{format: json, path: {folder}}}"


def _mcap(folder: Path) -> str:
    with McapWriter(folder / "a.mcap") as log:
        channel = log.channel("/a")
        for row in ROWS.to_pylist():
            log.message(channel, row["stamp"], json.dumps({"x": row["x"]}).encode())
    return f"{{format: mcap, path: {folder}, options: {{settle: 0 s}}}}"


def _rosbag(folder: Path) -> str:
    from rosbags import rosbag2
    from rosbags.typesys import Stores, get_typestore

    store, kind = get_typestore(Stores.LATEST), "std_msgs/msg/Float64"
    with rosbag2.Writer(folder / "bag", version=9) as bag:
        channel = bag.add_connection("/a", kind, typestore=store)
        for row in ROWS.to_pylist():
            message = store.types[kind](data=row["x"])
            bag.write(channel, row["stamp"], store.serialize_cdr(message, kind))
    return f"{{format: rosbag, path: {folder}, options: {{decode: data as x}}}}"


def _spool(folder: Path) -> str:
    with Spool(folder / "spool") as spool:
        spool.append([Landed("t", r["stamp"], b"%d" % r["n"]) for r in ROWS.to_pylist()])
    return f"{{format: spool, path: {folder / 'spool'}}}"


FILE = {"key": "file", "arrival": "[log_time_ns, offset]", "time": "log_time_ns"}
SOURCES: dict[str, tuple[Callable[[Path], str], dict[str, str]]] = {
    "csv": (_csv, {"key": "vehicle", "arrival": "n", "time": "stamp"}),
    "json": (_json, {"key": "vehicle", "arrival": "n", "time": "stamp"}),
    "mcap": (_mcap, FILE),
    "rosbag": (_rosbag, FILE),
    "spool": (_spool, {"key": "topic", "arrival": "offset", "time": "received_ns"}),
}
DATASETS = {"by file": "file", "by rows": "encoding"}
"""How a dataset is made on Spark, and the key that has it so."""

SINKS = {"delta": outputs.read_delta, "mcap": outputs.read_mcap}


def read(name: str, out: Path) -> outputs.Rows:
    """What the definition of this name has written."""
    kind, _, form = name.partition(" ")
    if kind == "dataset":
        return outputs.arranged([("data", pq.read_table(out).to_pylist())])
    return SINKS[form](out) if kind == "sink" else outputs.read_parquet(out)


def write_definitions(folder: Path) -> list[str]:
    """Write recordings and a definition of each source and mode and of each sink; their names."""
    texts = {}
    for form, (write, fields) in SOURCES.items():
        (folder / "in" / form).mkdir(parents=True)
        source = write(folder / "in" / form)
        for mode in ("batch", "streaming"):
            texts[f"{mode} {form}"] = SOURCE.format(source=source, mode=mode, **fields)
    recording.record(folder / "in" / "fleet", files=2)
    source = recording.from_folder(folder / "in" / "fleet")
    for form in SINKS:
        texts[f"sink {form}"] = recording.pipeline(source, folder / "unused", form)
    (folder / "in" / "arm").mkdir()
    for number in range(2):
        record(folder / "in" / "arm" / f"{number}.mcap", messages(2 + number))
    for how, key in DATASETS.items():
        made = pipeline(folder / "in" / "arm", {"format": "parquet"})
        made["streams"]["arm"]["key"] = key
        texts[f"dataset {how}"] = json.dumps(made)  # which is YAML
    for name, text in texts.items():
        (folder / name).mkdir()
        (folder / name / "pipeline.yaml").write_text(text)
    return list(texts)


def run(folder: Path, name: str, where: str, master: str | None) -> None:
    """Run one of them into FOLDER/NAME/WHERE."""
    out = folder / name / where
    if name.startswith("dataset"):
        write_dataset(folder / name / "pipeline.yaml", to=out, spark=master is not None)
        return
    definition = PipelineDefinition.load(folder / name / "pipeline.yaml")
    run_definition(definition, master=master, out=str(out), console=Console(file=io.StringIO()))
    shutil.rmtree(out / "_checkpoint", ignore_errors=True)


def main(address: str, folder: Path) -> dict[str, str]:
    failed = {}
    os.environ["SPARK_REMOTE"] = address  # for datasets, which take no master
    for file in sorted(folder.glob("*/pipeline.yaml")):
        try:
            run(folder, file.parent.name, "connect", address)
        except Exception as error:
            failed[file.parent.name] = f"{type(error).__name__}: {sentence_of(error)}"
    return failed


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
