"""Decode the payloads of many channels into columns: one codec per channel, made once.

A batch holds messages of several channels in file order. The rows are grouped by channel, each
group is decoded by its codec, and the results are put back into the order of the batch. A channel
that has no codec is remembered with the reason, which then stands in every row of it.

A field of the type `REFERENCE` is not read: its column says where the bytes are. Where a codec
cannot tell that, because bytes are base64 or the field is built by a library, they are decoded and
given to `keep`, which answers with the number of a block made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.mcap.index import Channels
from tidegate.mcap.payload.codecs import Codec, codec_of
from tidegate.mcap.payload.fields import Field
from tidegate.mcap.payload.values import NotDecodableError
from tidegate.mcap.spans import REFERENCE, PayloadSpans, references

__all__ = ["PayloadDecoder"]


@dataclass
class PayloadDecoder:
    """Reads chosen fields. A field that a channel's schema does not have is null there."""

    fields: tuple[Field, ...]
    """The fields, each with its type (see `resolve_fields`)."""
    channels: Channels
    """Definitions of the file; may grow between calls."""
    keep: Callable[[int, Field, pa.Array, int], int] | None = None
    """Called with channel id, field, decoded bytes and the number of the block they are from;
    returns the number of the block that holds the bytes. Needed for fields of type `REFERENCE`."""
    _codecs: dict[int, Codec | str] = field(default_factory=dict)
    """By channel id: its codec, or the reason why it has none."""

    def add_to(
        self,
        columns: dict[str, pa.Array],
        channel: np.ndarray,
        payloads: pa.Array | PayloadSpans,
    ) -> None:
        """Add the fields to the columns of some messages, in place.

        Args:
            columns: Must have `error`. Rows with an error are not decoded; for those that fail
                here, `error` gets the reason.
            channel: The channel id of each row.
            payloads: The payload of each row.
        """
        skip = ~np.asarray(columns["error"].is_null())
        made, reasons = self.columns(payloads, channel, skip)
        for each, column in zip(self.fields, made, strict=True):
            columns[each.name] = column
        if reasons:
            said = [
                reasons.get(row, before) for row, before in enumerate(columns["error"].to_pylist())
            ]
            columns["error"] = pa.array(said, pa.string())

    def columns(
        self, payloads: pa.Array | PayloadSpans, channel: np.ndarray, skip: np.ndarray
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode the fields of some payloads.

        Args:
            payloads: Binary array, or where the payloads are.
            channel: The channel id of each payload. Ids of rows that are not skipped must be known.
            skip: Per row: True to leave it alone, because something else is wrong with it.

        Returns:
            One column per field, and the reasons of rows that could not be decoded. These rows and
            the skipped ones are null in every column.
        """
        spans = payloads if isinstance(payloads, PayloadSpans) else PayloadSpans.of(payloads)
        count = len(channel)
        parts: list[tuple[np.ndarray, list[pa.Array]]] = []
        reasons: dict[int, str] = {}
        left = np.flatnonzero(skip)
        if len(left):
            parts.append((left, self._nulls(len(left))))
        for number in np.unique(channel[~skip]).tolist():
            rows = np.flatnonzero((channel == number) & ~skip)
            made, wrong = self._channel(number, spans.select(rows))
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

    def _channel(self, number: int, spans: PayloadSpans) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode the payloads of one channel; the result is that of `columns`."""
        count = len(spans.starts)
        if number not in self._codecs:
            self._codecs[number] = self._codec(number)
        codec = self._codecs[number]
        if isinstance(codec, str):
            return self._nulls(count), dict.fromkeys(range(count), codec)
        topic = self.channels.by_id[number].topic
        left = [
            each
            for each in self.fields
            if each.is_of(topic) and codec.type_of(each.path) is not None
        ]
        found: dict[str, pa.Array] = {}
        wrong: dict[int, str] = {}
        while True:  # a codec reads a path into one column: the same one again is another pass
            now = list({each.path: each for each in reversed(left)}.values())
            made, faults = self._read(number, codec, now, spans)
            found |= {each.name: column for each, column in zip(now, made, strict=True)}
            wrong = faults | wrong
            left = [each for each in left if each.name not in found]
            if not left:
                break
        if wrong:
            good = np.ones(count, bool)
            good[list(wrong)] = False
            found = {name: _only(column, good) for name, column in found.items()}
        return [
            found[each.name] if each.name in found else pa.nulls(count, each.type)
            for each in self.fields
        ], wrong

    def _read(
        self, number: int, codec: Codec, fields: list[Field], spans: PayloadSpans
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Decode some fields of payloads of one channel, as `Codec.columns` does."""
        inside = getattr(codec, "columns_in", None)
        direct = {
            each.name
            for each in fields
            if each.type == REFERENCE and inside is not None and codec.holds_bytes(each.path)  # type: ignore[attr-defined]
        }
        decoded = [each for each in fields if each.type == REFERENCE and each.name not in direct]
        kinds = [pa.binary() if each in decoded else each.type for each in fields]
        wanted = [(each.path, kind) for each, kind in zip(fields, kinds, strict=True)]
        if inside is not None:
            made, wrong = inside(spans, wanted)
        else:
            made, wrong = codec.columns(spans.array(), wanted)
        for each in decoded:
            place = fields.index(each)
            assert self.keep is not None
            made[place] = _references_into(
                made[place], self.keep(number, each, made[place], spans.block)
            )
        return made, wrong


def _references_into(column: pa.Array, block: int) -> pa.Array:
    """References to the bytes of a column, which are a block of their own."""
    edges = np.frombuffer(column.buffers()[1], np.int32)[: len(column) + 1].astype(np.int64)
    good = np.asarray(column.is_valid())
    return references(block, edges[:-1], np.diff(edges), good)


def _only(column: pa.Array, good: np.ndarray) -> pa.Array:
    """Return the column with nulls in all rows that are not good."""
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=~good))
