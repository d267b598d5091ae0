"""What a run leaves on disk, read and written without Spark.

- `filesystem`: local paths and URIs; small files that appear whole or not at all.
- `commit`: the record of a finished micro-batch, and the only reader of such records.
- `reader`: the tables of a run (`open_run`), for the page, exports and delta tables.
- `epochs`: who may write: claims, leases, and the fence against drivers of the past.
- `tally`, `audit`: counts and order-free hashes of rows; the proof that every row is in one place.
- `maintenance`, `upkeep`: removing what an interrupted run left behind, folding records, merging
  files; the command that does so.

Sinks (`tidegate.spark.sinks`) write what these modules read.
"""
