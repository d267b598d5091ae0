"""Gate 1: files that can be read again go into the step as columns, not as rows.

    files ─► pieces (row groups, chunks) ─► log beside the checkpoint ─► offset: a counter
    piece ─► columns that decide, by Arrow ─► event time, shard ─► blobs ─► the step
    outcomes ─► payload fetched by address, where rows leave

    pieces.py   the log of files and pieces, and the order in which they are taken
    format.py   what a file format does for this gate; parquet.py is one
    source.py   Spark's side: the data source that yields packed blobs, batch and stream
    payload.py  addresses, and the payload attached to what leaves

Everything else (Kafka, Delta, a DataFrame of the user's) comes through gate 2,
`tidegate.spark.pack.Packer`, row by row.
"""
