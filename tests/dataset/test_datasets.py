"""Recordings to datasets and back: what was sent is what is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.core import parallel
from tidegate.dataset import (
    LanceWriter,
    LeRobotWriter,
    ParquetWriter,
    lerobot,
    tables,
    write_dataset,
)
from tidegate.errors import ConfigError
from tidegate.mcap import McapFile, Selection
from tidegate.pipeline import PipelineDefinition

pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
from dataset.recordings import START_NS, jpeg, messages, picture, pipeline, record

FEATURES = {"observation.state": ["joint.q", "imu.az"], "action": "action"}


def expected_state(sent: list[Any], t: int) -> tuple[list[float], float]:
    """Joints interpolated and the nearest IMU message at t, in plain Python."""
    joints = sorted((one.stamp_ns, one.value) for one in sent if one.topic == "joint")
    before = [one for one in joints if one[0] <= t][-1]
    after = next(one for one in joints if one[0] >= t)
    share = 0.0 if after[0] == before[0] else (t - before[0]) / (after[0] - before[0])
    q = [a + (b - a) * share for a, b in zip(before[1], after[1], strict=True)]
    imu = min(
        (abs(one.stamp_ns - t), one.stamp_ns, one.value) for one in sent if one.topic == "imu"
    )
    return q, imu[2]


def test_lerobot_without_images_equals_the_messages(tmp_path: Path) -> None:
    """Two episodes around a pause of the joints; states, actions and times to float32."""
    sent = messages(4, pause_s=1)
    path = record(tmp_path / "arm.mcap", sent)
    settings = {"format": "lerobot", "fps": 10, "task": "wave", "features": FEATURES}
    made = write_dataset(PipelineDefinition.of(pipeline(path, settings)), to=tmp_path / "dataset")
    assert made.rows_read == len(sent)
    assert made.written["episodes"] == 2
    assert made.written["left_out"] == 0
    assert made.warnings == []
    data = pq.read_table(tmp_path / "dataset/data/chunk-000/file-000.parquet")
    rows = data.to_pylist()
    assert len(rows) == made.written["frames"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    episodes = pq.read_table(
        tmp_path / "dataset/meta/episodes/chunk-000/file-000.parquet"
    ).to_pylist()
    for episode in episodes:
        mine = rows[episode["dataset_from_index"] : episode["dataset_to_index"]]
        assert {row["episode_index"] for row in mine} == {episode["episode_index"]}
        assert [row["frame_index"] for row in mine] == list(range(episode["length"]))
        for n, row in enumerate(mine):
            assert row["timestamp"] == pytest.approx(n / 10, abs=1e-6)
            q, az = expected_state(sent, row["time_ns"])
            assert row["observation.state"] == pytest.approx([*q, az], rel=1e-6)
            following, _ = expected_state(sent, row["time_ns"] + 100_000_000)
            assert row["action"] == pytest.approx(following, rel=1e-6)
            assert (row["time_ns"] - START_NS) % 100_000_000 == 0
        states = np.array([row["observation.state"] for row in mine])
        assert episode["stats/observation.state/mean"] == pytest.approx(states.mean(axis=0))
    joined = json.loads((tmp_path / "dataset/meta/stats.json").read_text())
    states = np.array(data["observation.state"].to_pylist())
    for name, value in (("min", states.min(0)), ("max", states.max(0)),
                        ("mean", states.mean(0)), ("std", states.std(0))):  # fmt: skip
        assert joined["observation.state"][name] == pytest.approx(value, rel=1e-5)
    assert joined["observation.state"]["count"] == [len(rows)]


def test_lerobot_layout_is_the_published_one(tmp_path: Path) -> None:
    """Names, types and counts as LeRobot's own writer leaves them (version 0.4.4, v3.0)."""
    writer = LeRobotWriter(
        tmp_path / "d", fps=10, features={"observation.state": "q", "action": "a"},
        task={"column": "task"}, robot_type="arm", key="robot",
        names={"observation.state": ["x", "y"]},
    )  # fmt: skip
    writer.write(
        pa.table(
            {
                "robot": ["b", "a", "b", "a", "b"], "time_ns": [1, 2, 3, 4, 5],
                "episode": [0, 0, 0, 0, 1], "q": [[1.0, 2.0]] * 5, "a": [1.0] * 5,
                "task": ["pick", "place", "pick", "place", "pick"],
            }
        )
    )  # fmt: skip
    assert writer.close() == {"episodes": 3, "frames": 5, "left_out": 0, "reasons": {}}
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 5, 2)
    assert info["splits"] == {"train": "0:3"}
    assert info["data_path"] == "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    assert info["features"]["observation.state"] == {
        "dtype": "float32", "shape": [2], "names": ["x", "y"],
    }  # fmt: skip
    assert info["features"]["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    data = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet")
    assert data.schema.field("observation.state").type == pa.list_(pa.float32(), 2)
    assert data.schema.field("action").type == pa.float32()
    for name in ("frame_index", "episode_index", "index", "task_index", "time_ns"):
        assert data.schema.field(name).type == pa.int64()
    tasks = pq.read_table(tmp_path / "d/meta/tasks.parquet").to_pandas()
    assert tasks.loc["place", "task_index"] == list(tasks.index).index("place")
    episodes = pq.read_table(tmp_path / "d/meta/episodes/chunk-000/file-000.parquet")
    assert {
        "episode_index", "tasks", "length", "data/chunk_index", "data/file_index",
        "dataset_from_index", "dataset_to_index", "stats/action/q99",
        "meta/episodes/chunk_index", "meta/episodes/file_index",
    } <= set(episodes.column_names)  # fmt: skip


def test_videos_show_what_was_sent(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="pip install 'tidegate[video]'")
    sent = messages(2)
    path = record(tmp_path / "arm.mcap", sent)
    settings = {
        "format": "lerobot", "fps": 10, "task": "wave",
        "features": {**FEATURES, "observation.images.front": "camera.image"},
    }  # fmt: skip
    made = write_dataset(PipelineDefinition.of(pipeline(path, settings)), to=tmp_path / "d")
    assert made.written["episodes"] == 1
    rows = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet").to_pylist()
    video = tmp_path / "d/videos/observation.images.front/chunk-000/file-000.mp4"
    with av.open(str(video)) as file:
        frames = [
            (float(frame.pts * frame.time_base), frame.to_ndarray(format="rgb24"))
            for frame in file.decode(video=0)
        ]
    assert len(frames) == len(rows)
    for (at, image), row in zip(frames, rows, strict=True):
        assert at == pytest.approx(row["timestamp"], abs=1e-4)
        number = (row["time_ns"] - START_NS) // 100_000_000
        assert np.abs(image.astype(int) - picture(number)).mean() < 6
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    camera = info["features"]["observation.images.front"]
    assert (camera["dtype"], camera["shape"]) == ("video", [48, 64, 3])
    assert camera["info"]["video.codec"] == "h264"
    seen = json.loads((tmp_path / "d/meta/stats.json").read_text())["observation.images.front"]
    pictures = np.stack(
        [picture((row["time_ns"] - START_NS) // 100_000_000) for row in rows]
    ).reshape(-1, 3)
    assert np.ravel(seen["mean"]) == pytest.approx(pictures.mean(0) / 255, abs=0.02)


def test_images_in_rows_and_broken_ones(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="pip install 'tidegate[video]'")
    from dataset.recordings import jpeg

    good = jpeg(picture(3))
    writer = LeRobotWriter(
        tmp_path / "d", fps=10, features={"x": "v", "observation.images.front": "image"},
        images="image",
    )  # fmt: skip
    writer.write(
        pa.table(
            {
                "time_ns": range(5),
                "v": [1.0, None, 2.0, 3.0, 4.0],
                "image": [good, good, b"\xff\xd8\xffno", None, good],
            }
        )
    )
    made = writer.close()
    assert (made["frames"], made["left_out"]) == (2, 3)
    assert "v is null" in made["reasons"]
    rows = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet").to_pylist()
    assert [row["observation.images.front"]["bytes"] for row in rows] == [good, good]


def test_a_whole_topic_is_an_image_too(tmp_path: Path) -> None:
    """As MCAP rows have it: the bytes are `image`, raw ones with their size and `pixels`."""
    pytest.importorskip("av", reason="pip install 'tidegate[video]'")
    from dataset.recordings import jpeg

    good = jpeg(picture(3))
    rows = pa.table({"time_ns": [0, 1], "camera": [{"image": good, "offset_ns": 3}] * 2})
    writer = LeRobotWriter(
        tmp_path / "d", fps=10, features={"observation.images.front": "camera"}, images="image"
    )
    writer.write(rows)
    assert writer.close()["frames"] == 2
    found = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet").to_pylist()
    assert [row["observation.images.front"]["bytes"] for row in found] == [good, good]
    raw = picture(3)[:, :, ::-1].tobytes()
    message = {"image": raw, "height": 48, "width": 64, "step": 192, "pixels": "bgr8"}
    writer = LeRobotWriter(tmp_path / "e", fps=10, features={"observation.images.front": "camera"})
    writer.write(pa.table({"time_ns": [0, 1], "camera": [message] * 2}))
    assert writer.close()["frames"] == 2


def test_lerobot_itself_loads_it(tmp_path: Path) -> None:
    module = pytest.importorskip("lerobot.datasets.lerobot_dataset", reason="pip install lerobot")
    pytest.importorskip("av")
    sent = messages(2)
    path = record(tmp_path / "arm.mcap", sent)
    settings = {
        "format": "lerobot", "fps": 10, "task": "wave",
        "features": {**FEATURES, "observation.images.front": "camera.image"},
    }  # fmt: skip
    made = write_dataset(PipelineDefinition.of(pipeline(path, settings)), to=tmp_path / "d")
    loaded = module.LeRobotDataset("a/b", root=tmp_path / "d", video_backend="pyav")
    assert len(loaded) == made.written["frames"]
    for n in (0, len(loaded) - 1):
        row = loaded[n]
        q, az = expected_state(sent, int(row["time_ns"]))
        assert row["observation.state"].tolist() == pytest.approx([*q, az], rel=1e-6)
        number = (int(row["time_ns"]) - START_NS) // 100_000_000
        image = row["observation.images.front"].numpy().transpose(1, 2, 0) * 255
        assert np.abs(image - picture(number)).mean() < 6
        assert row["task"] == "wave"


def test_parquet_with_bytes_and_with_references(tmp_path: Path) -> None:
    """The bytes are those that were sent; a reference leads to them in the recording."""
    sent = messages(2)
    path = record(tmp_path / "arm.mcap", sent)
    images = {one.stamp_ns: one.value for one in sent if one.topic == "camera"}
    for way in ("bytes", "reference"):
        columns = ["camera.image", "joint.q"] if way == "bytes" else []
        settings = {"format": "parquet", "images": way, "columns": columns}
        made = write_dataset(PipelineDefinition.of(pipeline(path, settings)), to=tmp_path / way)
        assert made.written["files"] == 1
    rows = pq.read_table(tmp_path / "bytes").to_pylist()
    assert len(rows) > 15
    assert set(rows[0]["camera"]) == {"image", "time_ns"}
    assert set(rows[0]["joint"]) == {"q", "time_ns", "offset_ns", "missing"}
    assert [row["camera"]["image"] for row in rows] == [images[row["time_ns"]] for row in rows]
    told = pq.read_table(tmp_path / "reference").to_pylist()
    assert "data" not in told[0]["camera"]
    assert "image" not in told[0]["camera"]
    with McapFile(path) as file:
        there = {
            (row["offset"], row["position"]): row["data"]
            for batch in file.batches(Selection())
            for row in batch.to_pylist()
        }
    for row in told:
        place = row["camera"]["offset"], row["camera"]["position"]
        assert (
            there[place].endswith(images[row["time_ns"]]) or images[row["time_ns"]] in there[place]
        )


def test_lance(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb", reason="pip install 'tidegate[lance]'")
    path = record(tmp_path / "arm.mcap", messages(2))
    made = write_dataset(
        PipelineDefinition.of(pipeline(path, {"format": "lance"})), to=tmp_path / "d"
    )
    table = lancedb.connect(str(tmp_path / "d")).open_table("frames").to_arrow()
    assert table.num_rows == made.written["rows"]
    write_dataset(PipelineDefinition.of(pipeline(path, {"format": "parquet"})), to=tmp_path / "p")
    plain = pq.read_table(tmp_path / "p")
    assert table["joint"].to_pylist() == plain["joint"].to_pylist()
    with pytest.raises(ConfigError, match="frames"):
        LanceWriter(tmp_path / "d")


def test_a_message_that_cannot_be_decoded_is_an_error_row(tmp_path: Path) -> None:
    path = record(tmp_path / "arm.mcap", messages(2), broken=40)
    made = write_dataset(
        PipelineDefinition.of(pipeline(path, {"format": "parquet"})), to=tmp_path / "d"
    )
    assert made.outcomes["error"] == 1
    assert made.rows_read == sum(1 for _ in messages(2))


def test_the_command(tmp_path: Path) -> None:
    path = record(tmp_path / "arm.mcap", messages(2))
    settings = {"format": "lerobot", "fps": 10, "features": FEATURES, "path": str(tmp_path / "d")}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(pipeline(path, settings)))
    ran = CliRunner().invoke(app, ["dataset", str(file)])
    assert ran.exit_code == 0, ran.output
    assert "1 episodes" in ran.output
    ran = CliRunner().invoke(app, ["dataset", str(file), "--out", str(tmp_path / "e"), "--json"])
    assert json.loads(ran.stdout)["written"]["episodes"] == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dataset": None}, "dataset"),
        ({"dataset": {"format": "lerobot"}}, "fps"),
        ({"dataset": {"format": "lerobot", "fps": 3}}, "features"),
        ({"dataset": {"format": "parquet", "fps": 3}}, "fps"),
        ({"dataset": {"format": "parquet", "images": "video"}}, "images"),
        ({"dataset": {"format": "pickle"}}, "format"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = record(tmp_path / "arm.mcap", messages(0.5))
    with pytest.raises(ConfigError, match=field):
        write_dataset(PipelineDefinition.of({**pipeline(path, {}), **change}), to=tmp_path / "out")


def test_without_a_frame_it_says_what_became_of_the_rows(tmp_path: Path) -> None:
    path = record(tmp_path / "arm.mcap", messages(1))
    settings = {"format": "lerobot", "fps": 10, "task": "wave", "features": FEATURES}
    made = pipeline(path, settings)
    made["streams"]["arm"]["eventtime"]["type"] = "unixtimestamp_s"  # all are beyond 2262
    with pytest.raises(ConfigError, match=r"no frame to write: of the rows, \d+ error \(\d+ × "):
        write_dataset(PipelineDefinition.of(made), to=tmp_path / "d")


def test_a_grid_gives_the_rate(tmp_path: Path) -> None:
    path = record(tmp_path / "arm.mcap", messages(2))
    made = pipeline(path, {"format": "lerobot", "features": {"observation.state": "joint.q"}})
    made["stages"][0] = {
        "align": {"grid": "25 Hz", "topics": {"joint": {"linear": "50 ms"}}, "missing": "drop"}
    }
    write_dataset(PipelineDefinition.of(made), to=tmp_path / "d")
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert info["fps"] == 25
    rows = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet").to_pylist()
    for row in rows:
        assert row["time_ns"] - rows[0]["time_ns"] == row["frame_index"] * 40_000_000


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    for writer in (ParquetWriter, lambda p: LeRobotWriter(p, fps=1, features={"a": "b"})):
        with pytest.raises(ConfigError, match="empty"):
            writer(tmp_path)


def test_views_of_images_become_plain_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet has binary columns, JPEG uncompressed, also where structs turn out to be null."""
    monkeypatch.setattr(tables, "GROUP_MB", 0)
    image = b"\xff\xd8\xff" + bytes(range(256)) * 9
    rows = [
        {"n": 1, "camera": {"image": image, "height": 3}, "raw": b"plain" * 9},
        {"n": 2, "camera": {"image": None, "height": 4}, "raw": None},
        {"n": 3, "camera": None, "raw": b"short"},
        {"n": 4, "camera": {"image": image * 2, "height": None}, "raw": b""},
    ]
    camera = pa.struct({"image": pa.binary_view(), "height": pa.int32()})
    table = pa.Table.from_pylist(
        rows, pa.schema({"n": pa.int64(), "camera": camera, "raw": pa.binary_view()})
    )
    writer = ParquetWriter(tmp_path / "d")
    for n in range(4):
        writer.write(table.slice(n, 1))
    assert writer.close() == {"rows": 4, "files": 2}
    found = pq.read_table(tmp_path / "d")
    assert found.to_pylist() == rows
    assert found.schema.field("raw").type == pa.binary()
    assert found.schema.field("camera").type.field("image").type == pa.binary()
    first = pq.ParquetFile(tmp_path / "d/part-00000.parquet").metadata.row_group(0)
    codecs = {
        first.column(n).path_in_schema: first.column(n).compression
        for n in range(first.num_columns)
    }
    assert codecs["camera.image"] == "UNCOMPRESSED"
    assert codecs["raw"] == "ZSTD"


def test_files_by_size(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path / "d", file_mb=1)
    big = pa.table({"n": np.arange(5_000_000)})
    writer.write(big)
    writer.write(big)
    made = writer.close()
    assert made["files"] == 2
    assert pq.read_table(tmp_path / "d")["n"].to_pylist()[:3] == [0, 1, 2]
    assert not list((tmp_path / "d").glob("*.part"))


@pytest.mark.parametrize("images", ["video", "image"])
def test_the_same_rows_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: str
) -> None:
    """Whatever the order of keys, the cuts, the threads, and whether episodes wait on disk."""
    pytest.importorskip("av", reason="pip install 'tidegate[training]'")
    rows = [
        {"robot": robot, "episode": at // 4, "time_ns": at, "q": [at + 0.5, 1.0],
         "front": jpeg(picture(at)), "wrist": jpeg(picture(at + 9))}
        for at in range(12) for robot in ("b", None, "a")
    ]  # fmt: skip
    features = {"state": "q", "images.front": "front", "images.wrist": "wrist"}

    def made(name: str, rows: list[dict[str, Any]], at_once: int) -> dict[str, bytes]:
        writer = LeRobotWriter(
            tmp_path / name, fps=10, features=features, key="robot", task="wave", images=images
        )
        schema = pa.schema(
            [("robot", pa.string()), ("episode", pa.int64()), ("time_ns", pa.int64()),
             ("q", pa.list_(pa.float64())), ("front", pa.binary()), ("wrist", pa.binary())]
        )  # fmt: skip
        for first in range(0, len(rows), at_once):
            writer.write(pa.RecordBatch.from_pylist(rows[first : first + at_once], schema))
        assert writer.close()["episodes"] == 9
        files = [file for file in (tmp_path / name).rglob("*") if file.is_file()]
        return {str(file.relative_to(tmp_path / name)): file.read_bytes() for file in files}

    one = made("one", rows, 100)
    assert len(one) == (5 + 2 * 9 if images == "video" else 5)
    data = pq.read_table(tmp_path / "one" / "data")
    assert data["time_ns"].to_pylist() == [*range(12)] * 3
    monkeypatch.setattr(lerobot, "DATA_MB", 0.0005 if images == "video" else 0.02)
    count = parallel.count()
    parallel.use(1 if count > 1 else 2)
    try:
        by_key = sorted(rows, key=lambda row: str(row["robot"]))
        other = made("other", by_key, 5)
    finally:
        parallel.use(count)
    assert {name for name in other if not name.startswith("data")} == {
        name for name in one if not name.startswith("data")
    }
    again = pq.read_table(tmp_path / "other" / "data")
    assert again.equals(data)
    for name, content in one.items():  # the others say in which files the rows are
        assert name.startswith(("data", "meta")) or other[name] == content, name
    monkeypatch.setattr(lerobot, "DATA_MB", 100)
    assert made("third", by_key, 7) == one
