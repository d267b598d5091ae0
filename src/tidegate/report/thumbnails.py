"""Images in the payloads of a run: which to show, where their bytes are, and how they are made
small.

    which      of every topic that has images: those in the view the page opens with first, then
               ever finer steps over the whole run, so that any number of them covers it evenly
    where      rows of a run carry their payload in a column of bytes, or in one inside the struct
               of a topic (sets); only the row groups that hold a chosen row are read
    what       JPEG and PNG, alone or inside a message (`sensor_msgs/CompressedImage`,
               `foxglove.CompressedImage`): found by their first bytes, cut at their last; raw
               images (`sensor_msgs/Image`, see `raw_images`)
    how        scaled by PyAV if it is installed (`tidegate[video]`); without it small images are
               shown as they are, large ones are not, and raw ones become small PNG files
    live       a live page keeps the images it has, and at every commit reads a few of the new rows

Payloads come from strangers: the size in the header of an image is read before anything decodes it,
and all numbers are bounded. What reaches the page is base64 under one of two types that are named
here; what is not an image is left out without a word, because most payloads are none.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.output.reader import StoredRun
from tidegate.report.headline import DATA, Opening
from tidegate.report.raw_images import RawImage, png_bytes, raw_image_in, shown_pixels
from tidegate.report.rows import RunMessages

__all__ = [
    "LiveThumbnails",
    "Payloads",
    "Thumbnail",
    "image_in",
    "run_payloads",
    "thumbnails_of",
]

MOST = 120
"""Images in a page. Fewer leave most of a lane empty; more make the page slow to open, and do not
fit the screen anyway."""

MOST_PROBED = 60
"""Topics whose first payload is looked at: a recording may have hundreds, of which few are images.
"""

SIZE = (240, 160)
"""Largest width and height in pixels of what is shown, in the panel beside the timeline."""

LIVE_MOST = 48
"""Images in a live page, which is sent anew at every commit."""

LIVE_NEW = 12
"""Payloads that a live page reads at a commit: of a raw camera, some tens of megabytes."""

PNG_SIZE = (120, 80)
"""As `SIZE`, for raw images where PyAV is missing: a PNG of a photograph has ten times the bytes of
a JPEG."""

SMALL_BYTES = 12_000
"""An image of fewer bytes is shown as it is: to scale it would save nothing."""

UNSCALED_BYTES = 100_000
"""Without PyAV, an image of more bytes is left out: 120 of them would be a page of 16 MB."""

MOST_PIXELS = 40_000_000
"""An image of more pixels is not decoded: a few bytes can claim gigabytes."""

MAGIC_WITHIN = 512
"""Bytes of a payload in which an image may begin: behind a header with a stamp, a frame name and a
format."""

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"

Payloads = Callable[[Int64s], Iterator[tuple[int, bytes]]]
"""Takes numbers of messages, most wanted first, and yields payloads with the number of their
message; it may leave out some, and stop early when it has read enough."""


class Thumbnail(NamedTuple):
    """An image of a page."""

    message: int
    """Number of the message in `RunMessages`."""
    mime: str
    """`image/jpeg` or `image/png`."""
    text: str
    """The image in base64."""


def thumbnails_of(messages: RunMessages, view: Opening, payloads: Payloads) -> list[Thumbnail]:
    """Return the images to show, at most `MOST`, by message.

    Args:
        messages: The messages of the page.
        view: What the page opens with.
        payloads: Where their bytes are.
    """
    probed = _first_of_topics(messages)
    topics = sorted({int(messages.topic[i]) for i, found in payloads(probed) if _has_image(found)})
    if not topics:
        return []
    made: dict[int, Thumbnail] = {}
    for message, payload in payloads(_wanted(messages, topics, view)):
        small = _thumbnail_text(payload)
        if small is not None and message not in made:
            made[message] = Thumbnail(message, *small)
    return [made[message] for message in sorted(made)]


class LiveThumbnails:
    """The images of a live page, from one commit to the next.

    Images that were made are kept while their messages are in the page. At a commit, up to
    `LIVE_NEW` payloads of rows that it brought are read, however long the run has been going on.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, int], tuple[str, str]] = {}
        self._has_images: dict[str, bool] = {}
        self._last = -2

    def update(self, messages: RunMessages, payloads: Payloads) -> list[Thumbnail]:
        """Return the images to show, at most `LIVE_MOST`, by message.

        Args:
            messages: The messages of the page, with the new ones.
            payloads: Where their bytes are.
        """
        new = (messages.kind == DATA) & (messages.row >= 0) & (messages.micro > self._last)
        self._last = max(self._last, int(messages.micro.max(initial=-1)))
        unknown = [n for n, name in enumerate(messages.topics) if name not in self._has_images]
        first = _first_of_topics(messages, new & np.isin(messages.topic, unknown))
        for message, found in payloads(first):
            self._has_images[messages.topics[int(messages.topic[message])]] = _has_image(found)
        topics = [n for n, name in enumerate(messages.topics) if self._has_images.get(name)]
        if not topics:
            return []
        own = np.isin(messages.topic, topics)
        for message, payload in payloads(_finer(np.flatnonzero(new & own))[:LIVE_NEW]):
            small = _thumbnail_text(payload)
            if small is not None:
                self._made[self._identity(messages, message)] = small
        here = np.flatnonzero(own & (messages.kind == DATA))
        kept = [n for n in here.tolist() if self._identity(messages, n) in self._made]
        kept = sorted(_finer(np.array(kept, np.int64))[:LIVE_MOST].tolist())
        made = [Thumbnail(n, *self._made[self._identity(messages, n)]) for n in kept]
        self._made = {self._identity(messages, each.message): each[1:] for each in made}
        return made

    @staticmethod
    def _identity(messages: RunMessages, message: int) -> tuple[str, str, int]:
        """Return what names a message from one commit to the next: its number may change."""
        key, topic = messages.keys[messages.key[message]], messages.topics[messages.topic[message]]
        return key, topic, int(messages.time_ns[message])


def _has_image(payload: bytes) -> bool:
    """Is there an image in a payload?"""
    return image_in(payload) is not None or raw_image_in(payload) is not None


def _thumbnail_text(payload: bytes) -> tuple[str, str] | None:
    """Return the image in a payload as it is shown: type and base64; None if there is none."""
    found, raw = image_in(payload), None
    if found is None:
        raw = raw_image_in(payload)
    small = _small(*found) if found is not None else _small_raw(raw) if raw is not None else None
    return None if small is None else (small[0], base64.b64encode(small[1]).decode())


def image_in(payload: bytes) -> tuple[str, bytes] | None:
    """Return the type and the bytes of the image in a payload; None if there is none.

    >>> image_in(b"header" + PNG + b"...IEND" + bytes(4) + b"tail")
    ('image/png', b'\\x89PNG\\r\\n\\x1a\\n...IEND\\x00\\x00\\x00\\x00')
    >>> image_in(b"no image") is None
    True
    """
    head = payload[: MAGIC_WITHIN + len(PNG)]
    for mime, magic, tail, after in (
        ("image/jpeg", JPEG, b"\xff\xd9", 0),
        ("image/png", PNG, b"IEND", 4),
    ):
        start = head.find(magic)
        end = payload.rfind(tail)
        if 0 <= start < end:
            return mime, payload[start : end + len(tail) + after]
    return None


def run_payloads(run: StoredRun, messages: RunMessages) -> Payloads:
    """Return where the payloads of a run's messages are: in its table `data`.

    Args:
        run: The run the messages are from.
        messages: From `gather_messages` of the same run.
    """
    schema = run.schema("data") if "data" in run.kinds else pa.schema([])
    top = [field.name for field in schema if _is_bytes(field.type)]
    inner = {
        field.name: [f"{field.name}.{each.name}" for each in field.type if _is_bytes(each.type)]
        for field in schema
        if pa.types.is_struct(field.type)
    }
    top += [
        name for names in inner.values() for name in names
    ]  # {bytes, path}, as datasets have it
    is_sets = messages.groups is not None and messages.groups.what == "set"

    def read(wanted: Int64s) -> Iterator[tuple[int, bytes]]:
        by_columns: dict[tuple[str, ...], list[int]] = {}
        for message in wanted.tolist():
            topic = messages.topics[int(messages.topic[message])]
            columns = tuple(inner.get(topic, ())) if is_sets else tuple(top)
            if columns and messages.row[message] >= 0:
                by_columns.setdefault(columns, []).append(message)
        for columns, chosen in by_columns.items():
            rows = messages.row[chosen]
            for place, payload in run.payloads("data", columns, rows):
                yield chosen[place], payload

    return read


def _is_bytes(kind: pa.DataType) -> bool:
    """Is this a column of bytes?"""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _first_of_topics(messages: RunMessages, among: NDArray[np.bool_] | None = None) -> Int64s:
    """Return the first message in order of the first `MOST_PROBED` topics.

    Args:
        messages: The messages of the page.
        among: Which messages may be taken; without, all that are in order.
    """
    own = np.flatnonzero((messages.kind == DATA) & (messages.row >= 0) if among is None else among)
    _, first = np.unique(messages.topic[own], return_index=True)
    return own[first[:MOST_PROBED]]


def _wanted(messages: RunMessages, topics: Sequence[int], view: Opening) -> Int64s:
    """Return at most `MOST` messages of these topics, most wanted first.

    Half of them are for the view that the page opens with.
    """
    own = (messages.kind == DATA) & (messages.row >= 0) & np.isin(messages.topic, topics)
    seen = own & (messages.time_ns >= view.start_ns) & (messages.time_ns < view.end_ns)
    seen &= messages.key == view.key
    first = _finer(np.flatnonzero(seen))[: MOST // 2]
    rest = _finer(np.flatnonzero(own))
    order = np.concatenate([first, rest[~np.isin(rest, first)]])
    return order[:MOST]


def _finer(numbers: Int64s) -> Int64s:
    """Return numbers in an order of which every beginning is spread evenly over all of them.

    >>> _finer(np.arange(8)).tolist()
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    count = len(numbers)
    if count == 0:
        return numbers
    bits = max(int(count - 1).bit_length(), 1)
    places = np.arange(2**bits)
    turned = np.zeros_like(places)
    for bit in range(bits):
        turned |= ((places >> bit) & 1) << (bits - 1 - bit)
    return numbers[turned[turned < count]]


def _small(mime: str, image: bytes) -> tuple[str, bytes] | None:
    """Return an image as it is shown, scaled if that is possible; None if it is too large."""
    width, height = _dimensions(mime, image)
    if not 0 < width * height <= MOST_PIXELS:
        return None
    if len(image) <= SMALL_BYTES:
        return mime, image
    with contextlib.suppress(ImportError):
        return _scaled_jpeg(mime, image, width, height)
    return (mime, image) if len(image) <= UNSCALED_BYTES else None


def _small_raw(image: RawImage) -> tuple[str, bytes] | None:
    """Return a raw image as it is shown: JPEG by PyAV, else a PNG; None if it is too large."""
    if image.width * image.height > MOST_PIXELS:
        return None
    try:
        import av
    except ImportError:
        return "image/png", png_bytes(shown_pixels(image, PNG_SIZE))
    pixels = shown_pixels(image, SIZE)
    if min(pixels.shape[:2]) < 2:
        return "image/png", png_bytes(pixels)
    even = pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2]
    frame = av.VideoFrame.from_ndarray(
        np.ascontiguousarray(even), format="rgb24" if pixels.ndim == 3 else "gray"
    )
    return "image/jpeg", _jpeg(frame, even.shape[1], even.shape[0])


def _dimensions(mime: str, image: bytes) -> tuple[int, int]:
    """Return width and height as the header of an image says; (0, 0) if it has none.

    >>> _dimensions("image/png", PNG + bytes(8) + bytes([0, 0, 0, 3, 0, 0, 0, 2]))
    (3, 2)
    """
    if mime == "image/png":
        if len(image) < 24:
            return 0, 0
        width, height = struct.unpack(">II", image[16:24])
        return int(width), int(height)
    at = 2
    while at + 9 <= len(image) and image[at] == 0xFF:
        marker = image[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of a frame
            height, width = struct.unpack(">HH", image[at + 5 : at + 9])
            return int(width), int(height)
        at += 2 + int(struct.unpack(">H", image[at + 2 : at + 4])[0])
    return 0, 0


def _scaled_jpeg(mime: str, image: bytes, width: int, height: int) -> tuple[str, bytes] | None:
    """Return an image as a JPEG that fits `SIZE`; None if it cannot be decoded.

    Raises ImportError if PyAV is not installed.
    """
    import av  # type: ignore[import-not-found,unused-ignore]

    share = min(SIZE[0] / width, SIZE[1] / height, 1.0)
    # chroma has half the resolution: even sizes
    to = [max(2, round(side * share) // 2 * 2) for side in (width, height)]
    try:
        decoder = av.CodecContext.create("png" if mime == "image/png" else "mjpeg", "r")
        frames: list[Any] = [*decoder.decode(av.Packet(image)), *decoder.decode(None)]
        if not frames:
            return None
        return "image/jpeg", _jpeg(frames[0], *to)
    except (av.FFmpegError, ValueError):
        return None


def _jpeg(frame: Any, width: int, height: int) -> bytes:
    """Return a frame of PyAV as a JPEG of this size; both sides must be even."""
    import av

    encoder: Any = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height = width, height
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 1)
    small = frame.reformat(width=width, height=height, format="yuvj420p")
    return b"".join(bytes(packet) for packet in [*encoder.encode(small), *encoder.encode(None)])
