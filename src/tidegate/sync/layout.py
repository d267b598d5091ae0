"""The columns of what the kernels of both policies hand back."""

from __future__ import annotations

# Of a set: N row numbers, N stamps, then these.
(S_INDEX, S_SPREAD, S_TIME, S_LANE, S_DECIDED, SET_SIZE) = range(6)
# Of a message that leaves without a set (or of a jump of a clock).
(D_ROW, D_REASON, D_TOPIC, D_INDEX, D_AMOUNT, D_TIME, DROP_SIZE) = range(7)

# Of the one array `push` works in: its first entries say where each part begins.
(M_SETTINGS, M_CORE, M_RING, M_ROWS, M_COUNT, M_SETS, M_DROPS, M_END, M_SIZE) = range(9)
