"""The payloads of many channels as columns: a codec per schema, made once; what fails says why."""

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
    channels: Channels
    _codecs: dict[int, Codec | str] = field(default_factory=dict)

    def add_to(self, columns: dict[str, pa.Array], channel: np.ndarray) -> None:
        """Add the fields to the columns of some messages, and what went wrong to `error`."""
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
        """A column per field, and the reasons of rows that could not be decoded: these are null in
        every column. Rows in `skip` are left alone: something else is wrong with them."""
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
        back = pa.array(np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable"))
        joined = [
            pa.concat_arrays([made[place] for _, made in parts]).take(back)
            for place in range(len(self.fields))
        ]
        return joined, reasons

    def _nulls(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, each.type) for each in self.fields]

    def _codec(self, number: int) -> Codec | str:
        channel = self.channels.by_id[number]
        try:
            return codec_of(channel, self.channels.schemas.get(channel.schema_id))
        except NotDecodableError as error:
            return str(error)

    def _channel(self, number: int, payloads: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
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
    """The column with nulls in all rows that are not good."""
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=~good))
