"""What a run leaves on disk, read and written without Spark.

- `filesystem`: local paths and URIs; small files that appear whole or not at all.
- `commit`: the record of a finished micro-batch, and the only reader of such records.
- `reader`: the tables of a run (`open_run`), for the page, exports and delta tables.
- `maintenance`: removing what an interrupted run left behind.

Sinks (`tidegate.spark.sinks`) write what these modules read.
"""
