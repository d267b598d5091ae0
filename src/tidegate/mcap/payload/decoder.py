"""Decode the payloads of many channels into columns: one codec per channel, made once.

A batch holds messages of several channels in file order. The rows are grouped by channel, each
group is decoded by its codec, and the results are put back into the order of the batch. A channel
that has no codec is remembered with the reason, which then stands in every row of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.mcap.index import Channels
from tidegate.mcap.payload.codecs import Codec, codec_of
from tidegate.mcap.payload.fields import Field
from tidegate.mcap.payload.values import NotDecodableError

__all__ = ["PayloadDecoder"]


@dataclass
class PayloadDecoder:
    """Reads chosen fields. A field that a channel's schema does not have is null there."""

    fields: tuple[Field, ...]
    """The fields, each with its type (see `resolve_fields`)."""
    channels: Channels
    """Definitions of the file; may grow between calls."""
    _codecs: dict[int, Codec | str] = field(default_factory=dict)
    """By channel id: its codec, or the reason why it has none."""

    def add_to(self, columns: dict[str, pa.Array], channel: np.ndarray) -> None:
        """Add the fields to the columns of some messages, in place.

        Args:
            columns: Must have `data` (the payloads) and `error`. Rows with an error are not
                decoded; for those that fail here, `error` gets the reason.
            channel: The channel id of each row.
        """
        skip = ~np.asarray(columns["error"].is_null())
        made, reasons = self.columns(columns["data"], channel, skip)
        for each, column in zip(self.fields, made, strict=True):
            columns[each.name] = column
        if reasons:
            said = [
                reasons.get(row, before) for row, before in enumerate(columns["error"].to_pylist())
            ]
            columns["error"] = pa.array(said, pa.string())

    def columns(
        self, payloads: pa.Array, channel: np.ndarray, skip: np.ndarray
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode the fields of some payloads.

        Args:
            payloads: Binary array.
            channel: The channel id of each payload. Ids of rows that are not skipped must be known.
            skip: Per row: True to leave it alone, because something else is wrong with it.

        Returns:
            One column per field, and the reasons of rows that could not be decoded. These rows and
            the skipped ones are null in every column.
        """
        count = len(payloads)
        parts: list[tuple[np.ndarray, list[pa.Array]]] = []
        reasons: dict[int, str] = {}
        left = np.flatnonzero(skip)
        if len(left):
            parts.append((left, self._nulls(len(left))))
        for number in np.unique(channel[~skip]).tolist():
            rows = np.flatnonzero((channel == number) & ~skip)
            some = payloads if len(rows) == count else payloads.take(pa.array(rows))
            made, wrong = self._channel(number, some)
            parts.append((rows, made))
            reasons |= {int(rows[row]): reason for row, reason in wrong.items()}
        if len(parts) == 1 and len(parts[0][0]) == count:
            return parts[0][1], reasons
        if not parts:
            return self._nulls(0), reasons
        # The inverse of the order in which the groups follow each other.
        back = pa.array(np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable"))
        joined = [
            pa.concat_arrays([made[place] for _, made in parts]).take(back)
            for place in range(len(self.fields))
        ]
        return joined, reasons

    def _nulls(self, count: int) -> list[pa.Array]:
        """One column of nulls per field."""
        return [pa.nulls(count, each.type) for each in self.fields]

    def _codec(self, number: int) -> Codec | str:
        """Make the codec of a channel, or return the reason why there is none."""
        channel = self.channels.by_id[number]
        try:
            return codec_of(channel, self.channels.schemas.get(channel.schema_id))
        except NotDecodableError as error:
            return str(error)

    def _channel(self, number: int, payloads: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode the payloads of one channel; the result is that of `columns`."""
        count = len(payloads)
        if number not in self._codecs:
            self._codecs[number] = self._codec(number)
        codec = self._codecs[number]
        if isinstance(codec, str):
            return self._nulls(count), dict.fromkeys(range(count), codec)
        there = [each for each in self.fields if codec.type_of(each.path) is not None]
        made, wrong = codec.columns(payloads, [(each.path, each.type) for each in there])
        if wrong:
            good = np.ones(count, bool)
            good[list(wrong)] = False
            made = [_only(column, good) for column in made]
        found = {each.name: column for each, column in zip(there, made, strict=True)}
        return [
            found[each.name] if each.name in found else pa.nulls(count, each.type)
            for each in self.fields
        ], wrong


def _only(column: pa.Array, good: np.ndarray) -> pa.Array:
    """Return the column with nulls in all rows that are not good."""
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=~good))
