"""Queues of another size: the state of a synchroniser moved into rings of new settings.

    approximate   a message with the running number `at` of topic j stands in place
                  j * ring + at mod ring; moving it is computing that with the new ring
    exact         open stamps stand in order of time; they are written from place 0 on, each with
                  the slot of its own number

A message that the new queue has no place for leaves, oldest first. The state comes from outside: no
number of it is used as an index before it is known to be one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.columns import PLACE
from tidegate.core.outcomes import Int64s, with_columns
from tidegate.core.state import Layout, State
from tidegate.errors import StateError
from tidegate.sync.lane import HIGHEST, LOWEST, LeaveReason
from tidegate.sync.matchers import EXACT, Matcher
from tidegate.sync.rows import held_places
from tidegate.sync.settings import SyncSettings

__all__ = ["forget_old_rules", "resize_approximate", "resize_exact", "stamps_of_held"]

_DAMAGED = StateError("the state of synchronize is damaged: its queues do not fit its rings")


def resize_approximate(
    settings: SyncSettings, matcher: Matcher, state: State, layout: Layout
) -> tuple[State, pa.RecordBatch, Int64s]:
    """Move the queues of the approximate search into rings of the size that `settings` has.

    Args:
        settings: The new settings; the topics are those of the state.
        matcher: `APPROXIMATE`.
        state: The state with rings of the old size.
        layout: The layout of the result.

    Returns:
        The state, the rows of the table `held` that no queue has room for, and their stamps. A
        queue that lost a message is flagged, as after any overflow.

    Raises:
        StateError: A queue is longer than its ring, or a row has no place in one.
    """
    n, ring = len(settings.topics), settings.ring
    old_ring = state["stamps"].shape[1] // n
    topics = state["topics"].view(matcher.topic)[:, :, 0]
    head, tail = topics["head"], topics["tail"]
    if old_ring * n != state["stamps"].shape[1] or old_ring & (old_ring - 1) or not old_ring:
        raise _DAMAGED
    length = tail - head
    if (head < 0).any() or (length < 0).any() or (length > old_ring).any():
        raise _DAMAGED
    lane, place = _checked_places(state, n * old_ring)
    topic = place // old_ring
    first = head[lane, topic]
    at = first + (place % old_ring - first) % old_ring  # its running number
    stamps = state["stamps"][lane, place]
    kept_from = np.maximum(head, tail - settings.queue)
    stays = at >= kept_from[lane, topic]
    new_stamps = np.zeros((state.lanes, n * ring), np.int64)
    new_place = topic * ring + at % ring
    new_stamps[lane[stays], new_place[stays]] = stamps[stays]
    lost = kept_from - head
    topics["dropped"][:, :, LeaveReason.OVERFLOW] += lost
    topics["flag"][lost > 0] = 1
    topics["head"][:] = kept_from
    waiting = tail > kept_from
    fronts = new_stamps[np.arange(state.lanes)[:, None], np.arange(n) * ring + kept_from % ring]
    corrected = _corrected(fronts, settings.topic_rules["offset"])
    topics["front"][:] = np.where(waiting, corrected, topics["front"])
    # A candidate without its first member is none.
    matcher.searches(state)["pivot"][(lost > 0).any(axis=1)] = 0
    return _moved(state, layout, new_stamps, new_place, stays, stamps)


def resize_exact(
    settings: SyncSettings, matcher: Matcher, state: State, layout: Layout
) -> tuple[State, pa.RecordBatch, Int64s]:
    """Move the open stamps of the exact search into rings of the size that `settings` has.

    Arguments, result and errors are those of `resize_approximate`; `matcher` is `EXACT`.
    """
    n, ring = len(settings.topics), settings.ring
    old_ring = state["stamps"].shape[1] // 2
    if old_ring & (old_ring - 1) or not old_ring:
        raise _DAMAGED
    search = matcher.searches(state)
    head, count = search["head"].copy(), search["count"].copy()
    if (head < 0).any() or (count < 0).any() or (count > old_ring).any():
        raise _DAMAGED
    # Per lane, the open stamps in order and the slot of each.
    order = (head[:, None] + np.arange(old_ring)) % old_ring
    open_stamps = np.take_along_axis(state["stamps"][:, :old_ring], order, axis=1)
    slots = np.take_along_axis(state["stamps"][:, old_ring:], order, axis=1)
    is_open = np.arange(old_ring) < count[:, None]
    if ((slots < 0) | (slots >= old_ring))[is_open].any():
        raise _DAMAGED
    number = np.full((state.lanes, old_ring), -1, np.int64)  # by slot: its stamp, oldest first
    lanes, k = np.nonzero(is_open)
    number[lanes, slots[lanes, k]] = k
    lane, place = _checked_places(state, n * old_ring)
    slot, topic = place // n, place % n
    mine = number[lane, slot]
    if (mine < 0).any():
        raise _DAMAGED
    lost = np.maximum(count - settings.queue, 0)
    stays = mine >= lost[lane]
    topics = matcher.topics(state)
    np.add.at(topics["dropped"][:, :, LeaveReason.OVERFLOW], (lane[~stays], topic[~stays]), 1)
    np.subtract.at(topics["held"], (lane[~stays], topic[~stays]), 1)
    new_stamps = np.zeros((state.lanes, 2 * ring), np.int64)
    new_stamps[:, ring:] = np.where(search["open"][:, None] != 0, np.arange(ring), 0)
    still = k >= lost[lanes]
    new_stamps[lanes[still], (k - lost[lanes])[still]] = open_stamps[lanes[still], k[still]]
    search["head"][:], search["count"][:] = 0, count - lost
    new_place = (mine - lost[lane]) * n + topic
    delivered = open_stamps[lane, mine] - settings.topic_rules["offset"][topic]
    return _moved(state, layout, new_stamps, new_place, stays, delivered)


def forget_old_rules(settings: SyncSettings, matcher: Matcher, state: State) -> None:
    """Set what the approximate search keeps about optional topics and learned bounds back to what
    follows from the queues and the new settings. Candidates are undone.

    Args:
        settings: The new settings.
        matcher: `APPROXIMATE`.
        state: The state, in the layout of `settings`. Changed.
    """
    search, topics = matcher.searches(state), matcher.topics(state)
    search["pivot"] = 0
    search["wait"] = 0
    search["hurry"] = 0
    search["deadline"] = LOWEST
    topics["absent"] = 0
    waiting = topics["tail"] > topics["head"]
    search["present"] = waiting.sum(axis=1)
    topics["takes_part"] = topics["started"]
    if not settings.learn_bounds:
        for name in ("bound", "gap", "gap_before", "gaps"):
            topics[name] = 0


def stamps_of_held(matcher: Matcher, state: State, settings: Mapping[str, Any]) -> Int64s:
    """The stamps, as delivered, of the rows in the table `held`, whatever the settings are now.

    Args:
        matcher: The search of the stage that made the state.
        state: Its state, untrusted.
        settings: Its settings, as plain values.

    Raises:
        StateError: A row has no place.
    """
    n = len(settings["topics"])
    offsets = np.array([int(value) for value in settings["offsets"]] or [0] * n, np.int64)
    width = state["stamps"].shape[1]
    if matcher is not EXACT:
        lane, place = _checked_places(state, width)
        return np.asarray(state["stamps"][lane, place], np.int64)
    ring = width // 2
    lane, place = _checked_places(state, n * ring)
    stamp_of = np.zeros((state.lanes, ring), np.int64)
    slots = state["stamps"][:, ring : 2 * ring]
    if ((slots < 0) | (slots >= ring)).any():
        raise _DAMAGED
    np.put_along_axis(stamp_of, slots, state["stamps"][:, :ring], axis=1)
    return np.asarray(stamp_of[lane, place // n] - offsets[place % n], np.int64)


def _checked_places(state: State, places: int) -> tuple[Any, Int64s]:
    """Lane and place of every held row; a StateError unless each is one of `places`."""
    held = state.tables["held"]
    if held is None or not held.num_rows:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    if PLACE not in held.schema.names or held.column(PLACE).type != pa.int64():
        raise _DAMAGED
    lane, place = held_places(held)
    if held.column(PLACE).null_count or not 0 <= place.min() <= place.max() < places:
        raise _DAMAGED
    return lane, place


def _corrected(stamps: Int64s, offsets: Int64s) -> Int64s:
    """Stamps with the offsets of their topics added, stopping at the ends of int64."""
    made = stamps + offsets
    over = (offsets > 0) & (made < stamps)
    under = (offsets < 0) & (made > stamps)
    return np.where(over, HIGHEST, np.where(under, LOWEST, made))


def _moved(
    state: State, layout: Layout, stamps: Int64s, place: Int64s, stays: Any, times: Int64s
) -> tuple[State, pa.RecordBatch, Int64s]:
    """The state with new rings and new places of the rows that stay; the rows that do not, and
    their stamps."""
    state.arrays["stamps"] = stamps
    held = state.tables["held"]
    if held is None or not held.num_rows:
        return state.conformed(layout, "synchronize"), pa.record_batch({}), times
    moved = with_columns(held, {PLACE: pa.array(place)})
    state.tables["held"] = moved if stays.all() else moved.filter(pa.array(stays))
    gone = held.filter(pc.invert(pa.array(stays)))
    return state.conformed(layout, "synchronize"), gone, times[~stays]
