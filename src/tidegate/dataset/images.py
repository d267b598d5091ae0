"""Image payloads as arrays of pixels: JPEG and PNG by PyAV, raw ROS images by numpy.

What is not an image is an `ImageError` with a reason, which the writers count and tell: a broken
frame must not end a run of hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import ConfigError

__all__ = ["ImageError", "pixels", "require_av"]

Pixels = NDArray[np.uint8]

_RAW = {
    "rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)), "mono8": (1, (0, 0, 0)), "8uc1": (1, (0, 0, 0)),
    "8uc3": (3, (2, 1, 0)),
}  # fmt: skip
"""Raw encodings of ROS: bytes per pixel, and where red, green and blue are."""

MOST_PIXELS = 1 << 27
"""The most pixels of an image, 134 million: a damaged header must not ask for all memory."""


class ImageError(Exception):
    """A payload is not an image that can be read. The message says why."""


def require_av() -> Any:
    """The module `av`.

    Raises:
        ConfigError: PyAV is not installed.
    """
    try:
        import av  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError("images", "video", "needs PyAV: pip install 'tidegate[video]'") from error
    return av


def pixels(payload: bytes | Mapping[str, Any]) -> Pixels:
    """An image as an array of (height, width, 3), red first.

    Args:
        payload: The bytes of a JPEG or PNG, or a mapping with `data` and, for a raw image,
            `height`, `width`, `encoding` and `step` (bytes per line), as `sensor_msgs/Image` has
            them. MCAP rows have columns `data` and `encoding` of their own, so there the fields
            are decoded as `image` and `pixels`, which come first.

    Raises:
        ImageError: It is not an image, is cut off, or has an encoding that is not known here.

    Example:
        >>> raw = {"height": 1, "width": 2, "encoding": "bgr8", "step": 6,
        ...        "data": bytes([0, 0, 255, 9, 8, 7])}
        >>> pixels(raw).tolist()
        [[[255, 0, 0], [7, 8, 9]]]
    """
    if isinstance(payload, Mapping):
        data = payload.get("image", payload.get("data"))
        if data is None:
            raise ImageError("there is no image")
        encoding = payload.get("pixels", payload.get("encoding"))
        if payload.get("height") is not None and encoding is not None:
            return _raw_pixels(payload, data, str(encoding).lower())
        return _compressed_pixels(data)
    return _compressed_pixels(payload)


def _compressed_pixels(payload: bytes) -> Pixels:
    """The pixels of a JPEG or PNG."""
    if payload[:3] == b"\xff\xd8\xff":
        return _decoded(payload, "mjpeg")
    if payload[:8] == b"\x89PNG\r\n\x1a\n":
        return _decoded(payload, "png")
    raise ImageError("is neither JPEG nor PNG")


def _raw_pixels(image: Mapping[str, Any], content: bytes, encoding: str) -> Pixels:
    """The pixels of a raw image; lines may be padded."""
    if encoding not in _RAW:
        raise ImageError(f"has encoding {encoding}, known are {', '.join(_RAW)}")
    depth, order = _RAW[encoding]
    height, width = int(image["height"]), int(image["width"])
    if height < 1 or width < 1 or height * width > MOST_PIXELS:
        raise ImageError(f"has {height} x {width} pixels")
    step = int(image.get("step") or width * depth)
    data = np.frombuffer(content, np.uint8)
    if step < width * depth or len(data) < (height - 1) * step + width * depth:
        raise ImageError(f"has {len(data)} bytes for {height} lines of {step}")
    lines = np.zeros(height * step, np.uint8)
    lines[: min(len(data), len(lines))] = data[: len(lines)]
    grid = lines.reshape(height, step)[:, : width * depth].reshape(height, width, depth)
    return np.ascontiguousarray(grid[:, :, list(order)])


def _decoded(payload: bytes, codec: str) -> Pixels:
    """The pixels of a compressed image, by a decoder of its own."""
    av = require_av()
    try:
        context = av.CodecContext.create(codec, "r")
        frames = [*context.decode(av.Packet(payload)), *context.decode(None)]
    except (av.FFmpegError, ValueError) as error:
        raise ImageError(f"cannot be decoded: {error}") from error
    if not frames:
        raise ImageError("cannot be decoded: it has no picture")
    # One thread: by default as many as there are cores start and end for every image.
    return np.asarray(frames[0].to_ndarray(format="rgb24", threads=1), np.uint8)
