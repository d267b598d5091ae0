"""The row-by-row rules of the event-time watermark, for all lanes in one call.

A lane (one key) has one or more sources, each in a slot of its own. Per slot the state keeps the
newest time, the wall time of the last row and whether the source is idle; per lane the watermark
and the run of suspects. Rows are decided in order of arrival:

    1. no free slot for the source                      -> NO_SLOT, an error
    2. time <= watermark                                -> LATE
    3. further ahead than allowed, of the wall clock    -> SKEWED, an error
    4. further ahead than allowed, of the source's own rows
                                                        -> SUSPECT, decided by the rows that follow:
         `confirm` suspects in a row that agree with each other   -> all ACCEPTED
         a row that is not ahead, or one that disagrees           -> those before it SKEWED
    5. otherwise                                        -> ACCEPTED, moves the newest time

The watermark a lane may stand at (`settled_watermark`) is the newest time of its slowest source
that is not idle, less the tolerance. When all are idle nothing is waited for and it is the newest
time of all. It never moves back. With a tolerance of 0 and a watermark per row it stands one
nanosecond lower (`tie`), so that a row with the same time as the newest is on time (rule 15 of the
specification).

Kernels run without bounds checks: `EventtimeWatermark.invariants` checks what they assume.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from tidegate.core.numba import kernel
from tidegate.core.time import MAX_NS, MIN_NS, UNSET

__all__ = [
    "ArrivalVerdict",
    "ArrivingRows",
    "Decisions",
    "Lanes",
    "Rules",
    "Skew",
    "admit_rows",
    "admit_single_source",
    "beyond",
    "settle_all",
]


class ArrivalVerdict(IntEnum):
    """What becomes of a row. ACCEPTED is 0, as `core.sort` expects."""

    ACCEPTED = 0
    """On time: it leaves as data, now or when the watermark has passed it."""
    LATE = 1
    """At or below the watermark of its lane."""
    SKEWED = 2
    """Too far ahead: an error."""
    NO_SLOT = 3
    """Its lane has as many sources as allowed, and this is another one: an error."""
    SUSPECT = 4
    """Too far ahead of its source, and not confirmed or rejected yet."""


class Skew(IntEnum):
    """What a row must not be too far ahead of."""

    OFF = 0
    """Every row is believed."""
    ROWS = 1
    """The newest row of its source."""
    CLOCK = 2
    """The wall clock of the call."""


# numba reads module constants faster than enum members; the enums stay the one definition.
_ACCEPTED, _LATE, _SKEWED = (
    int(ArrivalVerdict.ACCEPTED),
    int(ArrivalVerdict.LATE),
    int(ArrivalVerdict.SKEWED),
)
_NO_SLOT, _SUSPECT = int(ArrivalVerdict.NO_SLOT), int(ArrivalVerdict.SUSPECT)
_SKEW_ROWS, _SKEW_CLOCK = int(Skew.ROWS), int(Skew.CLOCK)
_ONLY = 0
"""The slot of the source of a lane that has just one."""


class Rules(NamedTuple):
    """The settings of a stage as numbers. Spans in nanoseconds."""

    tolerance: int
    """How far the watermark stands behind the newest time."""
    tie: int
    """1 if the watermark stands 1 ns below the time that decides it, else 0."""
    per_tuple: bool
    """Whether the watermark moves with every row; if not, the caller moves it per collection."""
    skew_mode: int
    """A `Skew`."""
    skew: int
    """How far ahead a row may be; inclusive. Not read if the mode is OFF."""
    confirm: int
    """How many agreeing suspects in a row are believed; at least 1."""
    timeout: int
    """Wall time after which a silent source is idle; -1: never."""


class Lanes(NamedTuple):
    """The state arrays, all with the lane as first axis; `newest`, `source`, `wall` and `idle` have
    the slot as second."""

    watermark: Any
    """The watermark of the lane; UNSET before the first row."""
    newest: Any
    """The newest time of the slot; UNSET before its first row."""
    source: Any
    """The source that holds the slot."""
    wall: Any
    """Wall time of the last row of the slot; UNSET marks a free slot."""
    idle: Any
    """1 if the source is not waited for."""
    suspect_time: Any
    """The time of the last suspect."""
    suspect_count: Any
    """How many suspects there are in a row."""


class ArrivingRows(NamedTuple):
    """The rows of a call, in order of arrival."""

    lane: Any
    """The lane of each row."""
    time_ns: Any
    """Its event time."""
    source: Any
    """A number per source, stable between processes. Not read by `admit_single_source`."""


class Decisions(NamedTuple):
    """Room for what is decided, one entry per row."""

    verdict: Any
    """A `ArrivalVerdict`. Must start as ACCEPTED (0): the fast kernel writes only what differs."""
    against: Any
    """LATE: the watermark. SKEWED: the time the row was ahead of. Otherwise not written."""
    decided_at: Any
    """The row whose arrival decided this one: itself, or a later one if it was suspect. Starts as
    the row itself where rows may be suspect; else written for NO_SLOT and SKEWED only."""
    previous: Any
    """SUSPECT: the suspect of the same lane before it, or -1."""
    last_suspect: Any
    """Per lane: its last suspect, or -1."""


@kernel
def minus(time: int, span: int) -> int:
    """time - span, stopping at the earliest time instead of wrapping around."""
    return time - span if time >= MIN_NS + span else MIN_NS


@kernel
def beyond(time: int, other: int) -> int:
    """time - other for time >= other, stopping at the largest span instead of wrapping around: two
    times may be 584 years apart, a span of 64 bits only 292."""
    if other < 0 and time > MAX_NS + other:
        return MAX_NS
    return time - other


@kernel
def settled_watermark(lane: Any, rules: Rules, lanes: Lanes) -> Any:
    """The watermark a lane may stand at, never below the one it has.

    Args:
        lane: the lane.
        rules: tolerance and tie.
        lanes: the state; not changed.
    """
    slowest, top, active = UNSET, UNSET, 0
    for slot in range(lanes.newest.shape[1]):
        if lanes.wall[lane, slot] == UNSET:
            continue
        if lanes.newest[lane, slot] > top:
            top = lanes.newest[lane, slot]
        if lanes.idle[lane, slot] == 0:
            active += 1
            if active == 1 or lanes.newest[lane, slot] < slowest:
                slowest = lanes.newest[lane, slot]
    target = UNSET
    if active > 0 and slowest != UNSET:
        target = minus(slowest, rules.tolerance + rules.tie)
    elif active == 0 and top != UNSET:
        target = minus(top, rules.tie)
    return max(target, lanes.watermark[lane])


@kernel
def settle_all(which: Any, rules: Rules, lanes: Lanes) -> None:
    """Move the watermark of the lanes `which` as far as it may go."""
    for lane in which:
        lanes.watermark[lane] = settled_watermark(lane, rules, lanes)


@kernel
def slot_of(lane: Any, source: Any, lanes: Lanes) -> int:
    """The slot of a source in a lane, or the first free one for a new source; -1 if all are taken.

    Slots are filled from the front and never freed alone, so the first free slot ends the search.
    """
    for slot in range(lanes.source.shape[1]):
        if lanes.wall[lane, slot] == UNSET or lanes.source[lane, slot] == source:
            return slot
    return -1


@kernel
def find_idle(lane: Any, slot: Any, wall_ns: int, timeout: int, lanes: Lanes) -> None:
    """Mark the other sources of a lane that have been silent for longer than the timeout.

    Args:
        lane: the lane.
        slot: the slot that a row has just come for; it is not looked at.
        wall_ns: the wall time of the call.
        timeout: wall time in ns, exclusive: silent for exactly this long is not idle.
        lanes: the state; `idle` is written.
    """
    for other in range(lanes.wall.shape[1]):
        seen = lanes.wall[lane, other]
        if other != slot and seen != UNSET and wall_ns - seen > timeout:
            lanes.idle[lane, other] = 1


# -- suspects -------------------------------------------------------------------------------------


@kernel
def is_ahead(time: int, newest: int, skew: int) -> bool:
    """Whether a row is too far ahead of the newest of its source. The first row never is."""
    return newest != UNSET and time > newest and beyond(time, newest) > skew


@kernel
def agrees(lane: Any, time: int, skew: int, lanes: Lanes) -> bool:
    """Whether a row that is ahead lies within `skew` of the last suspect of its lane, in either
    direction."""
    if lanes.suspect_count[lane] == 0:
        return False
    last = lanes.suspect_time[lane]
    return beyond(max(time, last), min(time, last)) <= skew


@kernel
def reject_suspects(lane: Any, by: int, lanes: Lanes, out: Decisions) -> None:
    """The suspects of a lane are errors: row `by` has shown that the stream has not moved on."""
    row = out.last_suspect[lane]
    while row >= 0:
        out.verdict[row] = _SKEWED
        out.decided_at[row] = by
        row = out.previous[row]
    out.last_suspect[lane] = -1
    lanes.suspect_count[lane] = 0


@kernel
def add_suspect(lane: Any, row: int, time: int, lanes: Lanes, out: Decisions) -> None:
    """Make `row` the last suspect of its lane: linked to the one before it, counted, and its time
    kept."""
    out.verdict[row] = _SUSPECT
    out.previous[row] = out.last_suspect[lane]
    out.last_suspect[lane] = row
    lanes.suspect_time[lane] = time
    lanes.suspect_count[lane] += 1


@kernel
def link_suspects(waiting: int, rows: ArrivingRows, out: Decisions) -> None:
    """Restore the linked lists of suspects after a call boundary.

    The first `waiting` rows are the suspects of earlier calls; their count and last time are in the
    state already.
    """
    for row in range(waiting):
        lane = rows.lane[row]
        out.verdict[row] = _SUSPECT
        out.previous[row] = out.last_suspect[lane]
        out.last_suspect[lane] = row


# -- all rules ------------------------------------------------------------------------------------


@kernel
def admit_rows(
    rows: ArrivingRows, waiting: int, wall_ns: int, rules: Rules, lanes: Lanes, out: Decisions
) -> None:
    """Decide every row in order of arrival.

    If the watermark moves with every row, it stands after each row where `settled_watermark` puts
    it, so that it makes no difference where a collection ends.

    A row that is refused as skewed, or still suspect, leaves its source as it was: it neither moves
    time nor keeps a source with a broken clock from being found idle, which would hold up all
    others. A source whose rows are all late is behind, not silent: its time counts, or it would
    hold the watermark of the others for ever.

    Args:
        rows: the rows; the first `waiting` are suspects of earlier calls.
        waiting: how many of them there are.
        wall_ns: the wall time of the call.
        rules: the settings.
        lanes: the state; written.
        out: written.
    """
    link_suspects(waiting, rows, out)
    for row in range(waiting, rows.lane.shape[0]):
        lane, time = rows.lane[row], rows.time_ns[row]
        slot = slot_of(lane, rows.source[row], lanes)
        if slot < 0:
            out.verdict[row] = _NO_SLOT
            out.decided_at[row] = row
            continue
        was_idle, known = lanes.idle[lane, slot], lanes.wall[lane, slot] != UNSET
        moved = rules.timeout >= 0 and (lanes.wall[lane, slot] != wall_ns or was_idle == 1)
        if moved and known:
            find_idle(lane, slot, wall_ns, rules.timeout, lanes)
            lanes.idle[lane, slot] = 0
            if rules.per_tuple:
                lanes.watermark[lane] = settled_watermark(lane, rules, lanes)
        verdict = _ACCEPTED
        if lanes.watermark[lane] != UNSET and time <= lanes.watermark[lane]:
            verdict = _LATE
            out.against[row] = lanes.watermark[lane]
        elif rules.skew_mode == _SKEW_CLOCK:
            if time > wall_ns and beyond(time, wall_ns) > rules.skew:
                verdict = _SKEWED
                out.against[row] = wall_ns
                out.decided_at[row] = row
        elif rules.skew_mode == _SKEW_ROWS:
            newest = lanes.newest[lane, slot]
            ahead = is_ahead(time, newest, rules.skew)
            if not ahead or not agrees(lane, time, rules.skew, lanes):
                reject_suspects(lane, row, lanes, out)
            if ahead:
                verdict = _SUSPECT
                out.against[row] = newest
                add_suspect(lane, row, time, lanes, out)
                if lanes.suspect_count[lane] >= rules.confirm:
                    # This row is the last of the run, so its own slot is updated below.
                    verdict = _ACCEPTED
                    other = row
                    while other >= 0:
                        out.verdict[other] = _ACCEPTED
                        out.decided_at[other] = row
                        place = slot_of(lane, rows.source[other], lanes)
                        lanes.idle[lane, place] = 0
                        lanes.wall[lane, place] = wall_ns
                        lanes.newest[lane, place] = max(
                            lanes.newest[lane, place], rows.time_ns[other]
                        )
                        other = out.previous[other]
                    out.last_suspect[lane] = -1
                    lanes.suspect_count[lane] = 0
                    moved = True
        out.verdict[row] = verdict
        if verdict in (_SKEWED, _SUSPECT):
            lanes.idle[lane, slot] = was_idle
        else:
            lanes.source[lane, slot] = rows.source[row]
            lanes.wall[lane, slot] = wall_ns
            lanes.idle[lane, slot] = 0
            newer = time > lanes.newest[lane, slot]
            if newer:
                lanes.newest[lane, slot] = time
            if moved and not known:
                find_idle(lane, slot, wall_ns, rules.timeout, lanes)
            if not newer and not moved:
                continue
        if rules.per_tuple:
            lanes.watermark[lane] = settled_watermark(lane, rules, lanes)


@kernel
def admit_single_source(
    rows: ArrivingRows, waiting: int, rules: Rules, lanes: Lanes, out: Decisions
) -> bool:
    """`admit_rows` where every lane has one source that is never idle and no clock plays a part.

    The usual case, with few questions per row. Arguments as for `admit_rows`.

    Returns:
        Whether every row was accepted; then `out` need not be read.
    """
    link_suspects(waiting, rows, out)
    watermark, newest = lanes.watermark, lanes.newest
    below, by_rows = rules.tolerance + rules.tie, rules.skew_mode == _SKEW_ROWS
    all_accepted = waiting == 0
    for row in range(waiting, rows.lane.shape[0]):
        lane, time = rows.lane[row], rows.time_ns[row]
        if time <= watermark[lane] and watermark[lane] != UNSET:
            out.verdict[row] = _LATE
            out.against[row] = watermark[lane]
            all_accepted = False
            continue
        if by_rows:
            ahead = is_ahead(time, newest[lane, _ONLY], rules.skew)
            if lanes.suspect_count[lane] > 0 and not (
                ahead and agrees(lane, time, rules.skew, lanes)
            ):
                reject_suspects(lane, row, lanes, out)
            if ahead:
                out.against[row] = newest[lane, _ONLY]
                add_suspect(lane, row, time, lanes, out)
                all_accepted = False
                if lanes.suspect_count[lane] < rules.confirm:
                    continue
                other = row
                while other >= 0:
                    out.verdict[other] = _ACCEPTED
                    out.decided_at[other] = row
                    time = max(time, rows.time_ns[other])
                    other = out.previous[other]
                out.last_suspect[lane] = -1
                lanes.suspect_count[lane] = 0
        if time > newest[lane, _ONLY]:
            newest[lane, _ONLY] = time
            if rules.per_tuple:
                watermark[lane] = max(minus(time, below), watermark[lane])
    return all_accepted
