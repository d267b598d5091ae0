"""The operators. Pure: no I/O, no clock, no Spark; numpy, pyarrow and numba only."""
