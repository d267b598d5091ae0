"""A durable place to land messages from sources that cannot be asked again, such as MQTT.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> with Spool(folder) as spool:
...     spool.append([Landed("speed", 5, b"2.5")])
27
>>> [(row["topic"], row["payload"]) for batch in read(folder) for row in batch.to_pylist()]
[('speed', b'2.5')]
"""

from tidegate.spool.log import Landed, Spool, durable_end, read, schema

__all__ = ["Landed", "Spool", "durable_end", "read", "schema"]
