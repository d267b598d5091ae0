"""The spool keeps what it said it has, and nothing that it did not."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import spool
from tidegate.errors import ConfigError, StateError
from tidegate.spool import Landed, Spool
from tidegate.spool.log import DUPLICATE
from tidegate.spool.mqtt import Landing

MESSAGES = [Landed(f"t/{n % 3}", n, b"payload %d" % n * (n % 4)) for n in range(50)]


def rows_of(folder: Path, *span: int) -> list[dict[str, Any]]:
    return [row for batch in spool.read(folder, *span) for row in batch.to_pylist()]


def landed(rows: list[dict[str, Any]]) -> list[Landed]:
    return [
        Landed(r["topic"], r["received_ns"], r["payload"], DUPLICATE if r["duplicate"] else 0)
        for r in rows
        if r["error"] is None
    ]


some = st.lists(
    st.builds(
        Landed, st.text(max_size=10), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40),
        st.sampled_from([0, DUPLICATE]),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(some, max_size=5), st.integers(1, 400), st.integers(0, 60))
def test_what_goes_in_comes_out(tmp_path_factory, parts, segment_bytes, torn) -> None:  # type: ignore[no-untyped-def]
    """In any cuts, over any segments, with a torn tail between any two openings, from any place."""
    folder = tmp_path_factory.mktemp("spool")
    ends = [0]
    for part in parts:
        with Spool(folder, segment_bytes=segment_bytes) as one:
            ends.append(one.append(part))
        newest = max(folder.glob("*.spool"))
        with open(newest, "ab") as file:
            file.write(os.urandom(torn))
    wanted = [message for part in parts for message in part]
    assert landed(rows_of(folder)) == wanted
    for number, (start, end) in enumerate(pairwise(ends)):
        assert landed(rows_of(folder, start, end)) == parts[number]
    offsets = [row["offset"] for row in rows_of(folder)]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("size", range(0, 60, 7))
def test_a_record_that_was_cut_off_is_gone_and_the_next_takes_its_place(
    tmp_path: Path, size: int
) -> None:
    with Spool(tmp_path) as one:
        end = one.append(MESSAGES[:5])
        one.append(MESSAGES[5:6])
    (file,) = tmp_path.glob("*.spool")
    os.truncate(file, min(end + size, file.stat().st_size - 1))
    with Spool(tmp_path) as one:
        assert one.end == end
        one.append(MESSAGES[7:8])
    assert landed(rows_of(tmp_path)) == [*MESSAGES[:5], MESSAGES[7]]


def test_readers_do_not_see_what_is_not_durable(tmp_path: Path) -> None:
    with Spool(tmp_path) as one:
        end = one.append(MESSAGES[:3])
        (file,) = tmp_path.glob("*.spool")
        whole = file.read_bytes()
        file.write_bytes(whole + whole)  # written, but not synced and not published
        assert len(rows_of(tmp_path)) == 3
        assert spool.durable_end(tmp_path) == end


def test_damage_is_an_error_row_and_costs_one_segment(tmp_path: Path) -> None:
    with Spool(tmp_path, segment_bytes=200) as one:
        for message in MESSAGES:
            one.append([message])
    files = sorted(tmp_path.glob("*.spool"))
    assert len(files) > 4
    data = bytearray(files[2].read_bytes())
    data[len(data) // 2] ^= 255
    files[2].write_bytes(bytes(data))
    rows = rows_of(tmp_path)
    errors = [row for row in rows if row["error"] is not None]
    assert len(errors) == 1
    begin = int(files[2].stem)
    assert begin <= errors[0]["offset"] < begin + len(data)
    assert 40 < len(landed(rows)) < 50
    assert landed(rows)[-1] == MESSAGES[-1]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with Spool(tmp_path), pytest.raises(StateError, match="another process"):
        Spool(tmp_path)
    Spool(tmp_path).close()


def test_deleted_segments_are_not_skipped_in_silence(tmp_path: Path) -> None:
    with Spool(tmp_path, segment_bytes=1) as one:
        for message in MESSAGES[:4]:
            one.append([message])
    files = sorted(tmp_path.glob("*.spool"))
    files[0].unlink()
    with pytest.raises(StateError, match="was deleted"):
        rows_of(tmp_path)
    assert landed(rows_of(tmp_path, int(files[1].stem))) == MESSAGES[1:4]


def test_a_full_disk_leaves_the_spool_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path) as one:
        end = one.append(MESSAGES[:3])
        real = os.write

        def full(handle: int, data: Any) -> int:
            if len(data) > 10:
                return real(handle, bytes(data)[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            one.append([Landed("t", 1, b"x" * 9)])
        monkeypatch.undo()
        assert one.end == end
        one.append(MESSAGES[3:5])
    assert landed(rows_of(tmp_path)) == MESSAGES[:5]


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    with Spool(tmp_path) as one, pytest.raises(ConfigError, match="too large"):
        one.append([Landed("t" * 70_000, 1, b"")])
    with pytest.raises(ConfigError, match="segment_bytes"):
        Spool(tmp_path, segment_bytes=0)
    assert struct.calcsize("<IIqBH") == 19


# -- MQTT ---------------------------------------------------------------------------------------


def test_no_broker_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("paho.mqtt", reason="pip install 'tidegate[mqtt]'")
    with Spool(tmp_path) as one, pytest.raises(ConfigError, match="no broker answers"):
        Landing(one, port=_free_port()).run()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def mosquitto(tmp_path: Path) -> Any:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        pytest.skip("no MQTT broker: mosquitto is not installed (apt-get install mosquitto)")
    pytest.importorskip("paho.mqtt", reason="pip install 'tidegate[mqtt]'")
    port = _free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    yield port
    process.kill()
    process.wait(timeout=10)


def _landing(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tidegate.spool", str(folder), "--port", str(port)]
    return subprocess.Popen([*command, "--topic", "fleet/#"])


def _until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_a_landing_killed_again_and_again_loses_nothing(tmp_path: Path, mosquitto: int) -> None:
    """kill -9 in the middle of a stream: everything the broker took is in the spool at the end, in
    order; what is there twice is marked."""
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    folder = tmp_path / "spool"
    running = _landing(folder, mosquitto)
    _until(lambda: (folder / "durable").exists())
    time.sleep(2)  # the subscription must stand before the first message
    sender = mqtt.Client(CallbackAPIVersion.VERSION2, "sender")
    sender.max_inflight_messages_set(0)
    sender.connect("127.0.0.1", mosquitto)
    sender.loop_start()
    count = 600
    for n in range(count):
        sender.publish("fleet/v1", b"%d" % n, qos=1).wait_for_publish(30)
        if n in (150, 300, 450):
            running.kill()
            running.wait(timeout=10)
            running = _landing(folder, mosquitto)
    _until(lambda: len({row["payload"] for row in rows_of(folder)}) == count)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 0
    sender.loop_stop()
    rows = rows_of(folder)
    first: dict[bytes, int] = {}
    for place, row in enumerate(rows):
        first.setdefault(row["payload"], place)
    assert list(first) == [b"%d" % n for n in range(count)]
    again = [row for place, row in enumerate(rows) if first[row["payload"]] != place]
    assert all(row["duplicate"] for row in again)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:7],
        lambda data: data[:8],
        lambda data: data + b"x",
        lambda data: b"\xff" * 12,
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
)
def test_a_damaged_durable_file_is_a_state_error(tmp_path: Path, damage: Any) -> None:
    with Spool(tmp_path) as out:
        out.append([Landed("a", 1, b"x")])
    mark = tmp_path / "durable"
    whole = mark.read_bytes()
    mark.write_bytes(damage(whole))
    with pytest.raises(StateError, match="durable is damaged"):
        spool.durable_end(tmp_path)
    with pytest.raises(StateError, match="durable is damaged"):
        list(spool.read(tmp_path))
    Spool(tmp_path).close()
    assert mark.read_bytes() == whole
    assert sum(batch.num_rows for batch in spool.read(tmp_path)) == 1


def test_a_mark_behind_the_segments_is_a_state_error(tmp_path: Path) -> None:
    with Spool(tmp_path) as out:
        out.append([Landed("a", 1, b"x"), Landed("a", 2, b"y")])
    [segment] = tmp_path.glob("*.spool")
    segment.write_bytes(segment.read_bytes()[:-5])
    with pytest.raises(StateError, match="but the segments end at"):
        spool.durable_end(tmp_path)
