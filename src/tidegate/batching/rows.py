# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Rows that wait: lists in arrival order, a heap for overflow far ahead, and sorting what leaves.

All of it by row numbers in the packed array of a call. Nothing here knows what a batch is.
"""

from __future__ import annotations

from tidegate.batching.grid import AHEAD_LENGTHS
from tidegate.batching.layout import (
    HEAP,
    LEFT,
    NEXT,
    OVER,
    RANK,
    RIGHT,
    TIME,
    WHERE,
)
from tidegate.core.numba import lean_kernel


@lean_kernel
def append(rows, lists, n, place, row):
    rows[row, NEXT] = -1
    rows[row, WHERE] = place
    tail = lists[n, 2 * place + 1]
    if tail < 0:
        lists[n, 2 * place] = row
    else:
        rows[tail, NEXT] = row
    lists[n, 2 * place + 1] = row


@lean_kernel
def take_list(lists, n, place):
    """Empty a list; gives back its first row, from which NEXT leads on."""
    head = lists[n, 2 * place]
    lists[n, 2 * place] = -1
    lists[n, 2 * place + 1] = -1
    return head


@lean_kernel
def meld(rows, one, other):
    """Two leftist heaps (earliest time, then arrival, on top) become one.

    Written as a walk down the right spines and back up: the spine is at most log2(n) long, and
    numba compiles loops better than recursion. While walking down, LEFT of a spine row keeps its
    child; RANK is borrowed to find the way up.
    """
    if one < 0:
        return other
    if other < 0:
        return one
    up = -1
    while one >= 0 and other >= 0:
        if rows[other, TIME] < rows[one, TIME] or (
            rows[other, TIME] == rows[one, TIME] and other < one
        ):
            one, other = other, one
        below = rows[one, RIGHT]
        rows[one, RIGHT] = up  # the way back
        up = one
        one = below
    root = one if one >= 0 else other
    while up >= 0:
        above = rows[up, RIGHT]
        left = rows[up, LEFT]
        left_rank = rows[left, RANK] if left >= 0 else 0
        root_rank = rows[root, RANK] if root >= 0 else 0
        if left_rank >= root_rank:
            rows[up, RIGHT] = root
            rows[up, RANK] = root_rank + 1
        else:
            rows[up, LEFT] = root
            rows[up, RIGHT] = left
            rows[up, RANK] = left_rank + 1
        root = up
        up = above
    return root


@lean_kernel
def push_heap(rows, lists, n, place, row):
    rows[row, LEFT] = -1
    rows[row, RIGHT] = -1
    rows[row, RANK] = 1
    rows[row, WHERE] = place
    lists[n, HEAP] = meld(rows, lists[n, HEAP], row)


@lean_kernel
def pop_heap(rows, lists, n):
    top = lists[n, HEAP]
    lists[n, HEAP] = meld(rows, rows[top, LEFT], rows[top, RIGHT])
    return top


@lean_kernel
def _after(rows, one, other, by_time):
    if by_time and rows[one, TIME] != rows[other, TIME]:
        return rows[one, TIME] > rows[other, TIME]
    return one > other


@lean_kernel
def sort_rows(rows, numbers, first, last, spare, by_time):
    """Sort `numbers[first:last]` by time, then arrival, or by arrival alone. Merges runs: linear if
    already sorted."""
    while True:
        runs = 0
        at = first
        while at < last:
            middle = at + 1
            while middle < last and not _after(rows, numbers[middle - 1], numbers[middle], by_time):
                middle += 1
            if middle == last:
                runs += 1
                break
            end = middle + 1
            while end < last and not _after(rows, numbers[end - 1], numbers[end], by_time):
                end += 1
            for i in range(at, middle):
                spare[i] = numbers[i]
            i, j, k = at, middle, at
            while i < middle:
                if j < end and _after(rows, spare[i], numbers[j], by_time):
                    numbers[k] = numbers[j]
                    j += 1
                else:
                    numbers[k] = spare[i]
                    i += 1
                k += 1
            runs += 1
            at = end
        if runs <= 1:
            return


@lean_kernel
def anchor_of(rows, numbers, first, last, length):
    """The newest time of the largest group of sorted rows, groups being cut at gaps of more than
    three batch lengths; of two equally large ones, the later."""
    best = 0
    anchor = rows[numbers[last - 1], TIME]
    begun = first
    for i in range(first, last):
        here = rows[numbers[i], TIME]
        if i + 1 == last or rows[numbers[i + 1], TIME] - here > AHEAD_LENGTHS * length:
            if i + 1 - begun >= best:
                best = i + 1 - begun
                anchor = here
            begun = i + 1
    return anchor


@lean_kernel
def empty_heap(rows, lists, n, numbers, spare, at):
    """All overflow into its list, in order of arrival, so that it does not matter what had been in
    the heap. `numbers` from `at` on is free to use."""
    if lists[n, HEAP] < 0:
        return
    last = at
    row = take_list(lists, n, OVER)
    while row >= 0:
        numbers[last] = row
        last += 1
        row = rows[row, NEXT]
    while lists[n, HEAP] >= 0:
        numbers[last] = pop_heap(rows, lists, n)
        last += 1
    sort_rows(rows, numbers, at, last, spare, False)
    for i in range(at, last):
        append(rows, lists, n, OVER, numbers[i])
