"""Images in the lanes: found in payloads, made small, bounded, and shown by the policy."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import Browser
from mcap.writer import Writer
from runs import store

from ros_messages import any_message, definition, serialised
from ros_messages import store as ros_store
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.profile.roles import Roles
from tidegate.report import thumbnails
from tidegate.report.look import write_look
from tidegate.report.page import first_view, write_page
from tidegate.report.rows import gather_messages
from tidegate.report.thumbnails import image_in, run_payloads, thumbnails_of
from tidegate.sync.stage import Synchronize

RED = (230, 20, 20)


def png(width: int = 32, height: int = 24, colour: tuple[int, int, int] = RED) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    lines = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines))
            + chunk(b"IEND", b""))  # fmt: skip


def frames(rows: int = 40, payload: bytes | None = None) -> pa.Table:
    """A camera with an image in every message, and a lidar with other bytes."""
    n = np.arange(rows)
    times = 1_700_000_000_000_000_000 + n * 50_000_000
    is_camera = n % 2 == 0
    image = png() if payload is None else payload
    return pa.table({
        "vehicle": ["car"] * rows, "topic": np.where(is_camera, "camera", "lidar"),
        "stamp": times, "log_time": times + 1_000_000,
        "payload": pa.array([image if camera else b"points" * 9 for camera in is_camera]),
    })  # fmt: skip


def in_order() -> EventtimeWatermark:
    return EventtimeWatermark("200 ms", watermark_per="tuple")


def test_the_images_of_a_run_are_in_its_lane_and_beside_a_click(
    tmp_path: Path, browser: Browser, screenshots: Path
) -> None:
    store(tmp_path, [in_order()], frames())
    write_page(str(tmp_path), str(tmp_path / "page.html"), Roles())
    browser.problems.clear()
    for width, theme in ((1440, "light"), (420, "dark")):
        browser.resize(width, 860)
        browser.open(tmp_path / "page.html", f"#theme={theme}")
        red = browser.evaluate(
            """(() => { const c = document.getElementById('lanes'); let n = 0;
            const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            for (let i = 0; i < p.length; i += 4) if (p[i] === 230 && p[i + 1] === 20) n++;
            return n; })()"""
        )
        assert red > 2_000
        browser.screenshot(screenshots / f"images-{theme}.png")
    browser.resize(1440, 860)
    assert browser.evaluate("[...tidegate.run.pictures.values()].map((l) => l.length)") == [20]
    browser.evaluate(
        "tidegate.timeline.select({ message: tidegate.run.thumbnails[3][0], group: -1 })"
    )
    browser.until("document.querySelector('#details img.picture') !== null")
    assert browser.evaluate("document.querySelector('#details img').naturalWidth") == 32
    browser.evaluate("tidegate.timeline.select({ message: tidegate.run.n - 1, group: -1 })")
    assert browser.evaluate("document.querySelector('#details img') === null")
    assert browser.problems == []


def test_among_many_lanes_those_with_images_are_high_enough_to_show_them(
    tmp_path: Path, browser: Browser
) -> None:
    """Of seven lanes on a common screen each was 90 pixels high, and no image was seen."""
    table = frames(70)
    topics = [
        t if t == "camera" else f"t{n % 12}" for n, t in enumerate(table["topic"].to_pylist())
    ]
    place = table.column_names.index("topic")
    store(tmp_path, [in_order()], table.set_column(place, "topic", pa.array(topics)))
    write_page(str(tmp_path), str(tmp_path / "page.html"), Roles())
    browser.resize(1440, 860)
    browser.open(tmp_path / "page.html")
    found = browser.evaluate(
        """(() => { const t = tidegate.timeline;
        return t.rows.map((row) => [row.stream === t.run.c.stream[t.run.thumbnails[0][0]], row.h,
                                    t.hasPictures(row)]); })()"""
    )
    assert len(found) == 7
    assert [shown for camera, _, shown in found if camera] == [True]
    assert sum(height for _, height, _ in found) < 860
    assert min(height for _, height, _ in found) >= 56


def test_the_images_of_sets(tmp_path: Path) -> None:
    stage = Synchronize(("camera", "lidar"), queue_size=10, keys=("vehicle",))
    store(tmp_path, [in_order(), stage], frames())
    run = open_run(str(tmp_path))
    messages = gather_messages(run, Roles())
    assert messages.groups is not None
    found = thumbnails_of(messages, first_view(messages), run_payloads(run, messages))
    assert len(found) == 20
    assert {messages.topics[int(messages.topic[each.message])] for each in found} == {"camera"}
    assert {each.mime for each in found} == {"image/png"}


def test_compressed_images_of_an_mcap_in_look(tmp_path: Path) -> None:
    kind = "sensor_msgs/msg/CompressedImage"
    message = any_message(kind, random.Random(4))
    message.data = np.frombuffer(png(64, 48), np.uint8)
    message.format = "png"
    log = tmp_path / "log.mcap"
    with log.open("wb") as file:
        writer = Writer(file, chunk_size=2_000)
        writer.start()
        schema = writer.register_schema(kind, "ros2msg", definition(kind))
        camera, other = (writer.register_channel(t, "cdr", schema) for t in ("/camera", "/other"))
        for n in range(30):
            at = 10**18 + n * 10**8
            writer.add_message(camera, at, serialised(message), at, n)
            writer.add_message(other, at + 5, b"\0\1\0\0" + bytes(40), at + 5, n)
        writer.finish()
    page = tmp_path / "page.html"
    write_look(str(log), str(page))
    assert page.read_text().count('"image/png"') == 30


def test_compressed_images_of_a_bag_in_look(tmp_path: Path) -> None:
    rosbag1 = pytest.importorskip("rosbags.rosbag1", reason="pip install 'tidegate[rosbag]'")
    kind = "sensor_msgs/msg/CompressedImage"
    message = any_message(kind, random.Random(4), ros1=True)
    message.data = np.frombuffer(png(64, 48), np.uint8)
    with rosbag1.Writer(tmp_path / "log.bag") as bag:
        camera = bag.add_connection("/camera", kind, typestore=ros_store(ros1=True))
        for n in range(30):
            bag.write(camera, 10**18 + n * 10**8, serialised(message, ros1=True))
    page = tmp_path / "page.html"
    write_look(str(tmp_path / "log.bag"), str(page))
    assert page.read_text().count('"image/png"') == 30


@pytest.mark.parametrize("inside", [False, True], ids=["bytes", "struct"])
def test_images_of_parquet_files_in_look(tmp_path: Path, inside: bool) -> None:
    """Each image is that of its own message: rows out of order, files, row groups, rows without."""
    times = np.random.default_rng(3).permutation(90) * 50_000_000 + 10**18
    images = [None if n % 9 == 4 else png(8, 6, (n, 2 * n, 7)) for n in range(90)]
    for file in range(3):
        own = slice(file * 30, file * 30 + 30)
        column = [{"bytes": each, "path": "x"} for each in images[own]] if inside else images[own]
        table = pa.table({"stamp": times[own], "image": pa.array(column)})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=7)
    page = tmp_path / "page.html"
    made = write_look(str(tmp_path), str(page))
    assert made.proof.in_order == 90
    facts = json.loads(re.search(r'id="facts"[^>]*>(.*?)</script>', page.read_text(), re.S)[1])
    found = {message: text for message, _, text in facts["thumbnails"]}
    wanted = [images[n] for n in np.argsort(times)]
    assert {n: base64.b64encode(each).decode() for n, each in enumerate(wanted) if each} == found


def test_only_images_are_found_and_only_their_bytes() -> None:
    image = png()
    assert image_in(image) == ("image/png", image)
    assert image_in(b"\0\1\0\0" + bytes(60) + image + bytes(8)) == ("image/png", image)
    assert image_in(bytes(600) + image) is None
    assert image_in(b"\xff\xd8\xff without an end") is None
    assert image_in(b"<svg onload=alert(1)>") is None
    assert image_in(b"") is None


def test_what_is_too_large_or_broken_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = bytearray(png())
    claims[16:24] = struct.pack(">II", 60_000, 60_000)
    noise = np.random.default_rng(1).integers(0, 255, 300_000, np.uint8).tobytes()
    broken = png()[:40] + noise + b"IEND" + bytes(4)
    for number, payload in enumerate((bytes(claims), broken)):
        out = tmp_path / str(number)
        store(out, [in_order()], frames(payload=payload))
        run = open_run(str(out))
        messages = gather_messages(run, Roles())
        assert thumbnails_of(messages, first_view(messages), run_payloads(run, messages)) == []
    monkeypatch.setitem(sys.modules, "av", None)  # not installed
    assert thumbnails._small("image/png", png()) == ("image/png", png())
    assert thumbnails._small("image/png", broken) is None


def test_a_large_image_is_scaled(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV scales images: pip install 'tidegate[video]'")
    noise = np.random.default_rng(1).integers(0, 255, (480, 640 * 3), np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in noise)
    large = png(640, 480)
    start = large.index(b"IDAT") - 4
    data = zlib.compress(lines)
    body = struct.pack(">I", len(data)) + b"IDAT" + data
    body += struct.pack(">I", zlib.crc32(b"IDAT" + data))
    small = thumbnails._small("image/png", large[:start] + body + png()[-12:])
    assert small is not None
    assert small[0] == "image/jpeg"
    assert thumbnails._dimensions(*small) == (212, 160)
    assert len(small[1]) < 60_000


def test_their_number_is_bounded_and_they_cover_the_run(tmp_path: Path) -> None:
    store(tmp_path, [in_order()], frames(2_000))
    run = open_run(str(tmp_path))
    messages = gather_messages(run, Roles())
    view = first_view(messages)
    found = thumbnails_of(messages, view, run_payloads(run, messages))
    assert len(found) == thumbnails.MOST
    times = messages.time_ns[[each.message for each in found]]
    whole = np.histogram(times, bins=8, range=(messages.time_ns.min(), messages.time_ns.max()))[0]
    assert whole.min() >= 4
    seen = (times >= view.start_ns) & (times < view.end_ns)
    assert seen.sum() >= 10


def test_few_bytes_are_read(tmp_path: Path) -> None:
    store(tmp_path, [in_order()], frames(400), cuts=8)
    run = open_run(str(tmp_path))
    rows = np.array([399, 0, 100])
    everything = [place for place, _ in run.payloads("data", ["payload"], rows)]
    assert everything == [0, 1, 2]
    least = [place for place, _ in run.payloads("data", ["payload"], rows, most_bytes=1)]
    assert least == [0]
    assert list(run.payloads("data", ["nothing"], rows)) == []
