"""Raw images in payloads: `sensor_msgs/Image` of ROS 1 and ROS 2, made small without a codec.

A payload is taken for an image only if everything in it fits together: a known encoding, lines long
enough for their pixels, and exactly as many bytes as lines times their length. So no schema is
needed, and other bytes are not mistaken for one.

    rgb8 bgr8 rgba8 bgra8 8UC3 8UC4      colours
    mono8 8UC1                           grey
    mono16 16UC1 32FC1                   grey between the lowest and the highest value (2 and 98 %);
                                         0 and what is no number are black: depth that is not known
    bayer_{rggb,bggr,gbrg,grbg}8, ...16  colours, one pixel from each square of four
    yuv422 uyvy yuv422_yuy2 yuyv         grey: their brightness

Larger images are made smaller by the mean of squares of pixels.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["RawImage", "png_bytes", "raw_image_in", "shown_pixels"]

Pixels = NDArray[np.uint8]
"""Height, width and, for colours, 3."""

_PIXEL_BYTES = {
    "rgb8": 3, "bgr8": 3, "8UC3": 3, "rgba8": 4, "bgra8": 4, "8UC4": 4, "mono8": 1, "8UC1": 1,
    "mono16": 2, "16UC1": 2, "32FC1": 4, "yuv422": 2, "uyvy": 2, "yuv422_yuy2": 2, "yuyv": 2,
    **{f"bayer_{order}{bits}": bits // 8 for order in ("rggb", "bggr", "gbrg", "grbg")
       for bits in (8, 16)},
}  # fmt: skip
"""Bytes of a pixel, by encoding."""

MOST_TEXT = 200
"""Bytes of a frame name or an encoding. No real one is longer; it bounds what is looked at."""


class RawImage(NamedTuple):
    """An image as a message holds it."""

    height: int
    width: int
    encoding: str
    big_end: bool
    step: int
    """Bytes of a line."""
    data: memoryview


def raw_image_in(payload: bytes) -> RawImage | None:
    """Return the image of a serialised `sensor_msgs/Image`; None if the payload is none.

    >>> head = struct.pack("<IIII", 7, 1, 2, 3) + b"cam" + struct.pack("<III", 1, 2, 5) + b"mono8"
    >>> made = raw_image_in(head + struct.pack("<BII", 0, 2, 2) + b"ab")
    >>> made.width, made.encoding, bytes(made.data)
    (2, 'mono8', b'ab')
    """
    if len(payload) < 32:
        return None
    # The first four bytes of CDR say its byte order; ROS 1 has none, and is always little-endian.
    if payload[0] == 0 and payload[1] in (0, 1):
        found = _image_message(payload, 4, "<" if payload[1] else ">", cdr=True)
        if found is not None:
            return found
    return _image_message(payload, 4, "<", cdr=False)


def _image_message(payload: bytes, start: int, order: str, *, cdr: bool) -> RawImage | None:
    """Return the image whose fields begin at `start`, behind the byte order or the sequence number.

    Args:
        payload: The message.
        start: Where the stamp begins.
        order: Byte order, as `struct` writes it.
        cdr: Whether numbers are aligned and texts end in a zero, as in ROS 2.
    """

    def aligned(at: int) -> int:
        return start + -(-(at - start) // 4) * 4 if cdr else at

    def number(at: int) -> int:
        return int(struct.unpack_from(f"{order}I", payload, at)[0])

    try:
        frame = number(start + 8)
        if frame > MOST_TEXT:
            return None
        at = aligned(start + 12 + frame)
        height, width, length = number(at), number(at + 4), number(at + 8)
        if length > MOST_TEXT:
            return None
        encoding = payload[at + 12 : at + 12 + length].rstrip(b"\0").decode("ascii", "replace")
        at += 12 + length
        big_end = payload[at] == 1
        at = aligned(at + 1)
        step, size = number(at), number(at + 4)
    except (struct.error, IndexError):
        return None
    wide = _PIXEL_BYTES.get(encoding)
    if wide is None or height < 1 or width < 1 or step < width * wide or step * height != size:
        return None
    if at + 8 + size > len(payload):
        return None
    return RawImage(height, width, encoding, big_end, step, memoryview(payload)[at + 8 :][:size])


def shown_pixels(image: RawImage, most: tuple[int, int]) -> Pixels:
    """Return the image as grey or red, green and blue of 8 bits, no larger than `most`.

    Args:
        image: From `raw_image_in`.
        most: Largest width and height.
    """
    name, wide = image.encoding, _PIXEL_BYTES[image.encoding]
    lines = np.frombuffer(image.data, np.uint8).reshape(image.height, image.step)
    lines = lines[:, : image.width * wide]
    if name.startswith(("bayer", "mono16", "16UC1", "32FC1")) and wide > 1:
        kind = ("f" if name == "32FC1" else "u") + str(wide)
        lines = np.ascontiguousarray(lines).view(f"{'>' if image.big_end else '<'}{kind}")
    if name.startswith("bayer"):
        if wide == 2:
            lines = (lines >> 8).astype(np.uint8)
        return _smaller(_colours_of_squares(lines, name), most)
    if name in ("mono16", "16UC1", "32FC1"):
        return _smaller(_stretched(lines), most)
    if name in ("yuv422", "uyvy"):
        return _smaller(lines[:, 1::2], most)
    if name in ("yuv422_yuy2", "yuyv"):
        return _smaller(lines[:, 0::2], most)
    if wide == 1:
        return _smaller(lines, most)
    colours = lines.reshape(image.height, image.width, wide)[:, :, :3]
    # OpenCV's names without an order of colours are blue first, as it keeps them.
    return _smaller(colours if name.startswith("rgb") else colours[:, :, ::-1], most)


def _colours_of_squares(lines: Pixels, name: str) -> Pixels:
    """Return one pixel for each square of four sensors: red, the first green, blue."""
    height, width = (side // 2 * 2 for side in lines.shape)
    order = name.removeprefix("bayer_")[:4]
    if height == 0 or width == 0:
        return np.zeros((1, 1, 3), np.uint8)
    parts = []
    for colour in "rgb":
        row, column = divmod(order.index(colour), 2)
        parts.append(lines[row:height:2, column:width:2])
    return np.stack(parts, axis=2)


def _stretched(values: Any) -> Pixels:
    """Return values as grey between their 2 % and 98 % quantiles; 0 and no number are black."""
    stride = max(1, int((values.size / 200_000) ** 0.5))
    some = values[::stride, ::stride].astype(np.float64)
    known = some[np.isfinite(some) & (some != 0)]
    if len(known) == 0:
        return np.zeros(values.shape, np.uint8)
    low, high = np.quantile(known, [0.02, 0.98])
    scaled = (values.astype(np.float32) - low) / max(high - low, 1e-12)
    is_known = np.isfinite(scaled) & (values != 0)
    grey = np.where(is_known, np.clip(np.nan_to_num(scaled), 0, 1), 0)
    made: Pixels = (grey * 223 + 32 * is_known).astype(np.uint8)  # the nearest is not black either
    return made


def _smaller(pixels: Pixels, most: tuple[int, int]) -> Pixels:
    """Return pixels that fit into `most`, each the mean of a square of them."""
    height, width = pixels.shape[:2]
    factor = max(1, -(-width // most[0]), -(-height // most[1]))
    skip = max(1, factor // 4)  # sixteen of a square make its mean; all of a large one are slow
    factor = -(-factor // skip)
    pixels = pixels[::skip, ::skip]
    height, width = (max(side // factor, 1) for side in pixels.shape[:2])
    pixels = pixels[: height * factor, : width * factor]
    if factor == 1 or pixels.shape[0] < factor or pixels.shape[1] < factor:
        return np.ascontiguousarray(pixels)
    squares = pixels.reshape(height, factor, width, factor, -1)
    means: Pixels = squares.mean(axis=(1, 3)).astype(np.uint8)
    return means.reshape(height, width, *pixels.shape[2:])


def png_bytes(pixels: Pixels) -> bytes:
    """Return pixels as a PNG file.

    >>> png_bytes(np.zeros((2, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    height, width = pixels.shape[:2]
    flat = pixels.reshape(height, -1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), flat], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", body), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
