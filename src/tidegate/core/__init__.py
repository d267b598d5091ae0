"""Shared ground of all operators: outcomes, the operator protocol, chains, flows, state, snapshots.

Pure: no I/O, no clock, no Spark; numpy, pyarrow and numba only. Nothing here imports an operator.
Read `outcomes`, then `operator`, `chain` and `flow`.
"""
