"""Tidegate puts the messages of many clocks in order, in step and in batches, on Spark."""
