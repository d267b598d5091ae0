"""Raw images of ROS messages: read from both serialisations, every encoding, and shown."""

from __future__ import annotations

import random
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mcap.writer import Writer
from runs import store

from ros_messages import any_message, definition, serialised
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.profile.roles import Roles
from tidegate.report import thumbnails
from tidegate.report.look import write_look
from tidegate.report.raw_images import Pixels, png_bytes, raw_image_in, shown_pixels
from tidegate.report.rows import gather_messages
from tidegate.report.serve import LiveServer
from tidegate.report.thumbnails import LiveThumbnails, run_payloads

KIND = "sensor_msgs/msg/Image"


def ros1(lines: np.ndarray, encoding: str, width: int, *, frame: str = "cam") -> bytes:
    """An image as ROS 1 writes it: one line of `lines` is one line of the image, as bytes."""
    height, step = lines.shape
    head = struct.pack("<IIII", 5, 1, 2, len(frame)) + frame.encode()
    head += struct.pack("<III", height, width, len(encoding)) + encoding.encode()
    return head + struct.pack("<BII", 0, step, lines.size) + lines.tobytes()


def ros2(lines: np.ndarray, encoding: str, width: int, frame: str = "cam") -> bytes:
    """An image as ROS 2 writes it, by an independent writer."""
    message = any_message(KIND, random.Random(1))
    message.header.frame_id, message.encoding = frame, encoding
    message.height, message.width, message.step = lines.shape[0], width, lines.shape[1]
    message.is_bigendian, message.data = 0, lines.reshape(-1)
    return serialised(message)


def pixels_of(png: bytes) -> Pixels:
    """A PNG as `png_bytes` writes it, read again."""
    width, height, _, colour = struct.unpack(">IIBB", png[16:26])
    size = struct.unpack(">I", png[33:37])[0]
    lines = np.frombuffer(zlib.decompress(png[41 : 41 + size]), np.uint8).reshape(height, -1)[:, 1:]
    return lines.reshape(height, width, 3) if colour == 2 else lines


RED, GREEN, BLUE = 200, 120, 40


def flat(pattern: list[int], times: int = 8, rows: int = 6) -> np.ndarray:
    return np.tile(np.array(pattern, np.uint8), (rows, times))


@pytest.mark.parametrize("write", [ros1, ros2])
@pytest.mark.parametrize(
    ("encoding", "lines", "shown"),
    [
        ("rgb8", flat([RED, GREEN, BLUE]), [RED, GREEN, BLUE]),
        ("bgr8", flat([BLUE, GREEN, RED]), [RED, GREEN, BLUE]),
        ("8UC3", flat([BLUE, GREEN, RED]), [RED, GREEN, BLUE]),
        ("rgba8", flat([RED, GREEN, BLUE, 255]), [RED, GREEN, BLUE]),
        ("bgra8", flat([BLUE, GREEN, RED, 255]), [RED, GREEN, BLUE]),
        ("mono8", flat([77]), 77),
        ("uyvy", flat([128, 77]), 77),
        ("yuv422_yuy2", flat([77, 128]), 77),
        *((f"bayer_{order}8", np.tile(np.array([[square[0], square[1]], [square[2], square[3]]],
                                               np.uint8), (3, 4)), [RED, GREEN, BLUE])
          for order in ("rggb", "bggr", "gbrg", "grbg")
          for square in [[{"r": RED, "g": GREEN, "b": BLUE}[c] for c in order]]),
    ],
)  # fmt: skip
def test_colours_are_where_they_belong(
    write: object, encoding: str, lines: np.ndarray, shown: list[int] | int
) -> None:
    found = raw_image_in(write(lines, encoding, 8))  # type: ignore[operator]
    assert found is not None
    assert (found.width, found.height, found.encoding) == (8, 6, encoding)
    pixels = shown_pixels(found, (240, 160))
    assert np.all(pixels == shown)
    assert pixels.ndim == (3 if isinstance(shown, list) else 2)
    assert np.array_equal(pixels_of(png_bytes(pixels)), pixels)


def test_depth_is_stretched_and_what_is_not_known_is_black() -> None:
    depth = np.linspace(500, 4_000, 64 * 48).astype(np.uint16).reshape(48, 64)
    depth[:4] = 0
    for encoding, values in (("16UC1", depth), ("32FC1", depth.astype(np.float32) / 1_000)):
        lines = values.view(np.uint8).reshape(48, -1)
        found = raw_image_in(ros2(lines, encoding, 64))
        assert found is not None
        grey = shown_pixels(found, (240, 160)).astype(int)
        assert grey[:4].max() == 0
        assert 32 <= grey[4].min() < 60
        assert grey[-1].max() == 255
    nothing = raw_image_in(ros2(np.zeros((4, 8), np.uint8), "16UC1", 4))
    assert nothing is not None
    assert shown_pixels(nothing, (240, 160)).max() == 0


def test_lines_may_be_padded_and_large_images_become_means() -> None:
    lines = np.full((400, 3 * 600 + 8), 9, np.uint8)
    lines[:, : 3 * 600] = 100
    lines[:200, : 3 * 600] = 50
    found = raw_image_in(ros2(lines, "rgb8", 600, frame="a"))
    assert found is not None
    pixels = shown_pixels(found, (240, 160))
    assert pixels.shape == (133, 200, 3)
    assert (pixels[0].min(), pixels[-1].max()) == (50, 100)


def test_other_bytes_are_no_image() -> None:
    image = ros1(flat([1, 2, 3]), "rgb8", 8)
    assert raw_image_in(image) is not None
    assert raw_image_in(image[:-1]) is None
    assert raw_image_in(image.replace(b"rgb8", b"rgb9")) is None
    assert raw_image_in(ros1(flat([1, 2, 3]), "rgb8", 9)) is None  # lines too short for that width
    assert raw_image_in(b"") is None
    noise = np.random.default_rng(3)
    for _ in range(2_000):
        data = noise.integers(0, 4, int(noise.integers(0, 200)), np.uint8).tobytes()
        assert raw_image_in(data) is None
    for end in range(0, len(image), 7):
        assert raw_image_in(image[:end]) is None


def test_raw_images_of_an_mcap_are_in_the_page_of_look(tmp_path: Path) -> None:
    log = tmp_path / "log.mcap"
    rows = np.tile(np.arange(320 * 3, dtype=np.uint8), (240, 1))
    with log.open("wb") as file:
        writer = Writer(file, chunk_size=500_000)
        writer.start()
        schema = writer.register_schema(KIND, "ros2msg", definition(KIND))
        camera = writer.register_channel("/camera", "cdr", schema)
        for n in range(5):
            at = 10**18 + n * 10**8
            writer.add_message(camera, at, ros2(rows, "bgr8", 320), at, n)
        writer.finish()
    write_look(str(log), str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert text.count('"image/jpeg"') + text.count('"image/png"') == 5


def test_without_pyav_they_are_small_png_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)  # not installed
    found = raw_image_in(ros1(np.full((480, 640 * 3), 7, np.uint8), "rgb8", 640))
    assert found is not None
    made = thumbnails._small_raw(found)
    assert made is not None
    assert made[0] == "image/png"
    assert pixels_of(made[1]).shape == (80, 106, 3)


def frames(rows: int = 60) -> pa.Table:
    """A camera with a raw image in every message."""
    times = 1_700_000_000_000_000_000 + np.arange(rows) * 50_000_000
    image = ros1(flat([RED, GREEN, BLUE]), "rgb8", 8)
    return pa.table({
        "vehicle": ["car"] * rows, "topic": ["camera"] * rows, "stamp": times,
        "log_time": times + 1_000_000, "payload": pa.array([image] * rows),
    })  # fmt: skip


def test_a_live_page_has_images_and_reads_few_payloads_at_a_commit(tmp_path: Path) -> None:
    store(tmp_path, [EventtimeWatermark("200 ms", watermark_per="tuple")], frames(), cuts=6)
    whole = open_run(str(tmp_path))
    images, read, shown = LiveThumbnails(), [], []
    for commits in range(1, len(whole.commits) + 1):
        run = replace(whole, commits=whole.commits[:commits])
        messages = gather_messages(run, Roles())
        source = run_payloads(run, messages)
        asked: list[int] = []

        def counted(wanted, source=source, asked=asked):  # type: ignore[no-untyped-def]
            asked += wanted.tolist()
            return source(wanted)

        found = images.update(messages, counted)
        read.append(len(asked))
        shown.append(len(found))
        assert [each.message for each in found] == sorted({each.message for each in found})
    assert max(read) <= thumbnails.LIVE_NEW + 1
    assert shown[0] < shown[-1] <= thumbnails.LIVE_MOST
    live = LiveServer(str(tmp_path))
    try:
        assert b'"image/' in live.page()
        assert b'"image/' in live.data()
    finally:
        live._http.server_close()
