"""MCAP recordings in and out, in process and without Spark.

>>> import tempfile, pyarrow as pa
>>> path = tempfile.mkdtemp() + "/log.mcap"
>>> with McapWriter(path) as log:
...     camera = log.channel("camera", schema="Frame", encoding="json")
...     log.message(camera, log_time_ns=5, data=b'{"frame": 1}')
>>> rows = pa.Table.from_batches(read(path, topics=["camera"]))
>>> rows.select(["topic", "log_time_ns", "data"]).to_pylist()
[{'topic': 'camera', 'log_time_ns': 5, 'data': b'{"frame": 1}'}]
"""

from tidegate.mcap.export import export, write_table
from tidegate.mcap.reader import CLOCKS, Clock, McapFile, Selection, read, schema
from tidegate.mcap.writer import McapWriter

__all__ = [
    "CLOCKS",
    "Clock",
    "McapFile",
    "McapWriter",
    "Selection",
    "export",
    "read",
    "schema",
    "write_table",
]
