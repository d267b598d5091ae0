"""Which number stands in which column of the packed arrays that the kernel works on.

State is three arrays with a lane axis (`lane`, `stream`, `ring`) and a small table to find a stream
by its name; rows, batches and parts live for one call. Packed, because a kernel call costs more per
argument than per row when calls are small.
"""

from __future__ import annotations

# fmt: off
# -- one lane -------------------------------------------------------------------------------------
OPEN = 0          # 1 once the first batch has left and a window stands
START = 1         # the window is [START, START + LENGTH]
LENGTH = 2
PENDING = 3       # a length that applies at the next close; 0 for none
TIMEOUT = 4       # ns from the window's start; NEVER for gates only
HWM = 5           # high-water mark, capped
MARK = 6          # the same without what implausible messages added: survives a close
CLOSED_AT = 7     # wall time of the last close or stall check
BATCHES = 8       # batches so far = the id of the next
GATING = 9        # streams with a grid
WAITING = 10      # of these, the ones whose last slot was not reached yet
PULSES = 11       # rows of gating streams inside the window
STREAMS = 12      # streams known by name
OVER_MIN = 13     # earliest overflow
STREAK = 14       # implausible rows in a row: their count, earliest and newest time
STREAK_MIN = 15
STREAK_MAX = 16
FAR = 17          # the same for rows of gating streams in another epoch
FAR_MIN = 18
FAR_MAX = 19
MOVED = 20        # how far recovery moved this window (ns), and which
MOVE = 21
ROWS = 22         # rows buffered
LANE_COLUMNS = 23

# -- one stream of a lane -------------------------------------------------------------------------
NAME = 0          # 64-bit digest of the name
LAST = 1          # newest observed time
DIFFS = 2         # how many diffs the ring holds, and where the next one goes
HEAD = 3
ABSENT = 4        # closes in a row without a row
TRACKED = 5
ORIGIN = 6        # the grid; PERIOD 0 means none
PERIOD = 7
SLOTS = 8
FIRST = 9         # pulse index of slot 0 of the window
REACHED = 10      # highest slot reached in this window
COUNT = 11        # rows in this window
FIRST_ANY = 12    # time of the first of them, and of the first at or after the start
FIRST_AFTER = 13
HELD_ROWS = 14    # rows buffered anywhere: the place may not be given away
MEASURED = 15     # measured period in whole ns; 0 for none
SEEN = 16         # its name was written down
STREAM_COLUMNS = 17

# -- one row of a call ----------------------------------------------------------------------------
TIME = 0
LANE = 1
STREAM = 2        # -1: more streams than there is room for; rides along
GATED = 3
SLOT = 4
NEXT = 5          # list of rows that wait in the same place
WHERE = 6
LEFT = 7          # heap of far overflow
RIGHT = 8
RANK = 9
ROW_COLUMNS = 10

# -- places, also the lists of a lane: head and tail of each, then the root of the heap -----------
GONE = -1
ACTIVE = 0
OVER = 1
HELD = 2
PLACES = 3
HEAP = 6
LIST_COLUMNS = 7

# -- one batch ------------------------------------------------------------------------------------
B_LANE = 0
B_ID = 1
B_START = 2
B_END = 3
B_REASON = 4
B_FIRST = 5       # its rows in the output: first and count
B_ROWS = 6
B_LATE = 7
B_EARLY = 8
B_MOVED = 9
B_COMPLETE = 10
B_PART = 11       # its parts: first and count
B_PARTS = 12
BATCH_COLUMNS = 13

# -- one stream of one batch ----------------------------------------------------------------------
P_STREAM = 0
P_NAME = 1
P_ROWS = 2
P_EXPECTED = 3    # -1 without a grid
P_MISSING = 4
P_LATE = 5
P_EARLY = 6
P_SKEW = 7
P_KNOWN = 8       # 1 when the skew was measured
PART_COLUMNS = 9
F_RATE = 0
F_JITTER = 1
PART_FLOATS = 2

# -- work of a call: row 0 counts what is written, row 1 + s is the tally of stream s -------------
N_OUT = 0
N_BATCHES = 1
N_PARTS = 2
N_NAMED = 3
WAS_SLOTS = 6     # the grid of the closing window: slots (-1 for none), time of slot 0, period
WAS_FIRST = 7
WAS_PERIOD = 8
WORK_COLUMNS = 9
# fmt: on

NO_SLOT = -(2**31)
NEVER = 2**62

REASONS = ("first", "gate", "timeout", "gap", "stall", "flush", "limit")
R_FIRST, R_GATE, R_TIMEOUT, R_GAP, R_STALL, R_FLUSH, R_LIMIT = range(7)
