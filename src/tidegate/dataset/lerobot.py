"""LeRobot datasets, layout v3.0: what `LeRobotDataset` loads.

    data/chunk-000/file-000.parquet              a row per frame: features, timestamp, indices
    videos/NAME/chunk-000/file-000.mp4           one file per episode and camera
    meta/info.json                               features with shapes, rate, counts, path templates
    meta/stats.json                              statistics of every feature over the dataset
    meta/episodes/chunk-000/file-000.parquet     a row per episode: where it is, its statistics
    meta/tasks.parquet                           the tasks, numbered

Theory of operation. Rows come with `episode` and `time_ns`, by key in order (the stages `align` and
`episodes` see to that). Vectors of an open episode are kept in memory, a few bytes per frame; its
images are encoded at once into one file per camera, so memory does not grow with the recording. An
episode ends when the next one of its key begins, or at `close`. Nothing is a dataset before `close`
has written meta/info.json, which is written last.

The same rows give the same bytes, however they come. Episodes are numbered by key, then by number
within the key: in which order episodes of several keys end depends on how rows were cut into
batches, and on Spark's shards. So finished episodes wait until `end_episodes`, those beyond DATA_MB
on disk; without a key nothing waits. Every encoder has a single thread, as the bytes of x264 depend
on how many there are; cameras are encoded side by side instead.

Times. LeRobot wants frame n of an episode at n / fps, to a tenth of a millisecond. That is what
`timestamp` says; the event time of the row is kept beside it as the feature `time_ns`. On a grid
both agree. Rows that lack a value, or whose image cannot be read, are left out and told: the
summary has their number and the first reasons. Where rows are missing in the middle of an episode,
its later frames are shown too early, so cut episodes by a `gap` of one and a half periods.

Quantiles in stats.json are means of those of the episodes, weighted by frames, as LeRobot itself
joins them; everything else is exact.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidegate.core import parallel
from tidegate.core.arrow import column_of_path, factorize, type_of_path
from tidegate.core.checks import names, one_of
from tidegate.dataset.features import Feature, features_of
from tidegate.dataset.images import ImageError, Pixels, pixels, require_av
from tidegate.dataset.tables import without_views
from tidegate.errors import ConfigError

__all__ = ["LeRobotWriter"]

VERSION = "v3.0"
"""The layout that is written, as info.json names it."""
CHUNK_FILES = 1000
"""Files per folder `chunk-...`, LeRobot's own figure: a folder stays quick to list."""
DATA_MB = 100
"""Size of a data file after which a new one is begun, in MB of Arrow memory; LeRobot's default.
Finished episodes that wait for their number are put on disk beyond it."""
FRAMES_AHEAD = 4
"""Frames per camera that may wait for their encoder: enough to keep its thread busy while the next
ones are decoded, little memory even for large images."""
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
"""The quantiles LeRobot normalises with."""
SAMPLED_FRAMES = 100
"""Frames per episode from which statistics of an image are taken, evenly spaced in pixels and
taken as they come: more would cost as much as the encoder, fewer would miss changes of light."""
SAMPLED_SIDE = 150
"""Images are thinned to about this many pixels per side for statistics."""
SHOWN_REASONS = 3
"""Reasons for rows left out that the summary repeats; the rest is counted."""

_INDICES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that LeRobot gives every frame."""


_NUMBERED = ("episode_index", "index", "task_index")
"""Those of them that depend on the episodes before."""


@dataclass
class _Episode:
    """An episode that is open: its vectors so far, and the encoders of its cameras."""

    key: tuple[Any, ...]
    number: int
    """Its number within its key."""
    task: str
    vectors: dict[str, list[NDArray[np.float32]]]
    time_ns: list[NDArray[np.int64]] = field(default_factory=list)
    stored: dict[str, list[bytes]] = field(default_factory=dict)
    """Encoded images, where they are kept in the rows."""
    videos: dict[str, _Video] = field(default_factory=dict)
    looks: dict[str, _Look] = field(default_factory=dict)
    """What was seen of the images, for the statistics."""
    frames: int = 0


class _EndedEpisode(NamedTuple):
    """An episode that waits for its number in the dataset."""

    order: tuple[Any, ...]
    """Sorts episodes: the values of the key, nulls first, then the number within the key."""
    task: str
    statistics: dict[str, Any]
    videos: dict[str, Path]
    """Per camera the file, under the name it has while it is written."""
    rows: pa.Table | None
    """Its frames, without the indices that depend on the episodes before; None: on disk."""
    file: Path | None = None
    """Where they are on disk."""
    batches: tuple[int, int] = (0, 0)
    """Which batches of that file."""


class _Look:
    """Statistics of the images of one camera in one episode, from thinned frames."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros((3, 256), np.int64)
        self.frames = 0
        self.seen = 0
        self.every = 1

    def add(self, image: Pixels) -> None:
        """Look at a frame; every second one from SAMPLED_FRAMES on, then every fourth, ..."""
        self.seen += 1
        if (self.seen - 1) % self.every:
            return
        step = max(1, min(image.shape[:2]) // SAMPLED_SIDE)
        thin = image[::step, ::step]
        for channel in range(3):
            self.counts[channel] += np.bincount(thin[:, :, channel].ravel(), minlength=256)
        self.frames += 1
        if self.frames % SAMPLED_FRAMES == 0:
            self.every *= 2

    def statistics(self) -> dict[str, Any]:
        """Per channel, of values from 0 to 1, in LeRobot's shape (3, 1, 1)."""
        values = np.arange(256) / 255
        total = np.maximum(self.counts.sum(axis=1), 1)
        mean = (self.counts * values).sum(axis=1) / total
        variance = (self.counts * values**2).sum(axis=1) / total - mean**2
        below = np.cumsum(self.counts, axis=1)
        some = self.counts > 0

        def shaped(numbers: Any) -> list[list[list[float]]]:
            return [[[float(number)]] for number in numbers]

        out: dict[str, Any] = {
            "min": shaped(values[some.argmax(axis=1)]),
            "max": shaped(values[255 - some[:, ::-1].argmax(axis=1)]),
            "mean": shaped(mean),
            "std": shaped(np.sqrt(np.maximum(variance, 0))),
            "count": [self.seen],
        }
        for name, share in QUANTILES.items():
            out[name] = shaped(values[(below >= share * total[:, None]).argmax(axis=1)])
        return out


class _Video:
    """The encoder of one camera in one episode."""

    def __init__(
        self, path: Path, fps: int, codec: str, shape: tuple[int, int], thread: Executor | None
    ) -> None:
        if codec == "libsvtav1":
            os.environ.setdefault("SVT_LOG", "1")  # only errors: else it prints 30 lines per video
        av = require_av()
        self.path, self.shape = path, shape
        self._thread = thread
        """Of one worker, so frames stay in order; None: the caller encodes."""
        self._waiting: deque[Future[None]] = deque()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = av.open(str(path), "w", format="mp4")
        try:
            self._stream = self._file.add_stream(codec, rate=fps)
        except Exception as error:
            raise ConfigError("codec", codec, f"cannot be used by this PyAV: {error}") from error
        self._stream.height, self._stream.width = shape
        odd = shape[0] % 2 or shape[1] % 2
        self._stream.pix_fmt = "yuv444p" if odd else "yuv420p"
        # A key frame every second frame, as LeRobot has it: training reads frames at random.
        options = {"g": "2", "crf": "23"}
        if codec == "libx264":
            # Without mbtree: it looks ahead of the key frame, which is of no use here, and of 400
            # videos of the same frames 18 had other bytes (PyAV 18; none without assembly).
            options |= {"preset": "veryfast", "bf": "0", "mbtree": "0"}
        self._stream.options = options
        self._stream.codec_context.thread_count = 1
        self._av = av

    @property
    def pix_fmt(self) -> str:
        """How the pixels are stored."""
        return str(self._stream.pix_fmt)

    def add(self, image: Pixels) -> None:
        """Encode one frame, or have it encoded. Raises what went wrong with earlier ones."""
        if self._thread is None:
            self._encode(image)
            return
        self._waiting.append(self._thread.submit(self._encode, image))
        self._wait(FRAMES_AHEAD)

    def _wait(self, most: int) -> None:
        """Wait until at most this many frames wait for the encoder."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _encode(self, image: Pixels) -> None:
        """Encode one frame."""
        frame = self._av.VideoFrame.from_ndarray(image, format="rgb24")
        for packet in self._stream.encode(frame):
            self._file.mux(packet)

    def close(self) -> None:
        """Write what the encoder holds back, and the end of the file."""
        self._wait(0)
        for packet in self._stream.encode(None):
            self._file.mux(packet)
        self._file.close()


class LeRobotWriter:
    """Writes rows of episodes as a LeRobot dataset.

    Args:
        path: The folder of the dataset. It must not exist, or be empty.
        fps: Frames per second, a whole number: LeRobot places frames by it.
        features: Per feature its column or columns, see `features_of`. `action` and
            `observation.state` are what policies look for; images are `observation.images.NAME`.
        task: What the robot does, one sentence; or a column that says it, as `{"column": path}`.
        robot_type: The kind of robot, for info.json. Default None.
        images: `video` (default; MP4 files, by PyAV) or `image` (the JPEG or PNG of the message in
            the rows as it is: nothing is encoded again; raw images need `video`).
        codec: The video encoder: `libx264` (default, fast) or `libsvtav1` (LeRobot's default,
            smaller and slower).
        key: The columns that tell robots apart; episodes of each are numbered by themselves.
        names: Per vector feature the names of its elements. Default: none.

    Raises:
        ConfigError: A setting is wrong, the folder is not empty, or PyAV is needed and missing.

    Example:
        >>> import tempfile
        >>> rows = pa.record_batch({"time_ns": [0, 100_000_000], "episode": [0, 0],
        ...                         "q": [[0.0, 1.0], [2.0, 3.0]]})
        >>> folder = tempfile.mkdtemp()
        >>> writer = LeRobotWriter(folder, fps=10, features={"observation.state": "q"}, task="wave")
        >>> writer.write(rows)
        >>> writer.close()["frames"]
        2
    """

    def __init__(
        self,
        path: str | Path,
        *,
        fps: int,
        features: Mapping[str, str | Sequence[str]],
        task: str | Mapping[str, str] = "",
        robot_type: str | None = None,
        images: str = "video",
        codec: str = "libx264",
        key: str | Sequence[str] = (),
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if not isinstance(fps, int) or isinstance(fps, bool) or fps < 1:
            raise ConfigError("fps", fps, "must be a whole number of frames per second, from 1 on")
        one_of("images", images, ("video", "image"))
        self.path = Path(path)
        if self.path.exists() and any(self.path.iterdir()):
            raise ConfigError("path", str(path), "must be a new or an empty folder")
        if isinstance(task, Mapping) and set(task) != {"column"}:
            raise ConfigError("task", task, 'must be a sentence, or {"column": name}')
        self.fps, self._given, self._task = fps, dict(features), task
        self.robot_type, self.images, self.codec = robot_type, images, codec
        self._keys = _robot_columns("key", key)
        self._element_names = {n: list(v) for n, v in (names or {}).items()}
        self._features: tuple[Feature, ...] | None = None
        self._open: dict[Any, _Episode] = {}
        self._episodes: list[dict[str, Any]] = []
        self._tasks: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._video_info: dict[str, dict[str, Any]] = {}
        self._data: list[pa.Table] = []
        self._data_bytes, self._file, self._index, self._begun = 0, 0, 0, 0
        self._ended: list[_EndedEpisode] = []
        self._spilled: list[Path] = []
        self._threads: list[ThreadPoolExecutor] = []
        self._encoders = 0
        self.left_out = 0
        """Rows that lacked a value or whose image could not be read."""
        self.reasons: dict[str, int] = {}
        """Why, with how many rows each."""

    # -- rows -------------------------------------------------------------------------------------

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows, which must come by key in the order of their times.

        Args:
            rows: With `time_ns`, `episode` (a single episode per key if there is no such column),
                the columns of the features and of the key.

        Raises:
            ConfigError: A column is missing, a vector changes its length, or an image its size.
        """
        if isinstance(rows, pa.Table):
            for batch in rows.combine_chunks().to_batches():
                self.write(batch)
            return
        if not rows.num_rows:
            return
        self._check(rows.schema)
        episode = np.zeros(rows.num_rows, np.int64)
        if rows.schema.get_field_index("episode") >= 0:
            episode = np.asarray(rows.column("episode").to_numpy(zero_copy_only=False), np.int64)
        codes = np.zeros(rows.num_rows, np.int64)
        if self._keys:
            codes = factorize([rows.column(name) for name in self._keys]).codes
        # Runs of rows of one key and episode: keys may be mixed, each is in order by itself.
        order = np.lexsort((np.arange(rows.num_rows), episode, codes))
        code, number = codes[order], episode[order]
        edges = np.flatnonzero((np.diff(code) != 0) | (np.diff(number) != 0)) + 1
        runs = np.split(order, edges)
        if any(part[-1] - part[0] >= len(part) for part in runs):
            rows = without_views(rows)  # Arrow cannot take rows of views, only slices
        for part in runs:
            some = rows.slice(int(part[0]), len(part))
            if part[-1] - part[0] >= len(part):
                some = rows.take(pa.array(part))
            self._add(some, int(episode[part[0]]))

    def _check(self, schema: pa.Schema) -> None:
        """Resolve the features at the first rows, and look for the columns at every one."""
        if self._features is None:
            self._features = features_of(self._given, schema)
            for feature in self._features:
                if feature.name in (*_INDICES, "time_ns"):
                    raise ConfigError("features", feature.name, "is a name of LeRobot's or ours")
                if feature.image and self.images == "video":
                    require_av()
        wanted = [("time", "time_ns"), *(("key", name) for name in self._keys)]
        if isinstance(self._task, Mapping):
            wanted.append(("task", self._task["column"]))
        for setting, path in wanted:
            if type_of_path(schema, path) is None:
                have = ", ".join(schema.names)
                raise ConfigError(setting, path, f"must be a column of the rows: {have}")

    def _add(self, some: pa.RecordBatch, number: int) -> None:
        """Add the rows of one key and one episode."""
        assert self._features is not None
        key = tuple(some.column(name)[0].as_py() for name in self._keys)
        episode = self._open.get(key)
        if episode is not None and episode.number != number:
            self._end(self._open.pop(key))
            episode = None
        reasons: list[str | None] = [None] * some.num_rows
        vectors: dict[str, NDArray[np.float32]] = {}
        for feature in self._features:
            if feature.image:
                continue
            values, wrong = feature.vectors(some)
            reasons = [a or b for a, b in zip(reasons, wrong, strict=True)]
            if all(wrong):
                continue
            known = self._shapes.setdefault(feature.name, (values.shape[1],))
            if known != (values.shape[1],):
                text = f"has {values.shape[1]} numbers, and {known[0]} before"
                raise ConfigError("features", feature.name, text)
            vectors[feature.name] = values
        if episode is None:
            if all(reasons):
                self._leave_out(reasons)
                return
            episode = self._begin(key, number, some)
        reasons = self._add_images(episode, some, reasons)
        kept = np.flatnonzero([reason is None for reason in reasons])
        self._leave_out(reasons)
        for name, values in vectors.items():
            episode.vectors[name].append(values[kept])
        times = np.asarray(some.column("time_ns").to_numpy(zero_copy_only=False), np.int64)
        episode.time_ns.append(times[kept])
        episode.frames += len(kept)

    def _leave_out(self, reasons: Sequence[str | None]) -> None:
        """Count the rows that are left out, by reason."""
        for reason in reasons:
            if reason is not None:
                self.left_out += 1
                self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def _begin(self, key: Any, number: int, rows: pa.RecordBatch) -> _Episode:
        """Open an episode; its task is that of its first row."""
        assert self._features is not None
        task = self._task
        if isinstance(task, Mapping):
            task = str(column_of_path(rows, task["column"])[0].as_py())
        vectors: dict[str, list[NDArray[np.float32]]] = {
            feature.name: [] for feature in self._features if not feature.image
        }
        made = self._open[key] = _Episode(key, number, task, vectors)
        self._begun += 1
        for feature in self._features:
            if feature.image:
                made.looks[feature.name] = _Look()
                made.stored[feature.name] = []
        return made

    def _add_images(
        self, episode: _Episode, rows: pa.RecordBatch, reasons: list[str | None]
    ) -> list[str | None]:
        """Decode and encode the images of rows, one row after the other.

        Returns:
            The reasons, with those of rows whose images cannot be used.
        """
        assert self._features is not None
        images = [feature for feature in self._features if feature.image]
        if not images:
            return reasons
        columns = [column_of_path(rows, feature.paths[0]) for feature in images]
        out = list(reasons)
        for row in range(rows.num_rows):
            if out[row] is not None:
                continue
            # All cameras first: a row is taken whole or not at all.
            taken: list[tuple[bytes, Pixels]] = []
            for feature, column in zip(images, columns, strict=True):
                payload = column[row].as_py()
                if payload is None:
                    out[row] = f"{feature.paths[0]} is null"
                    break
                try:
                    taken.append(self._image(feature, payload))
                except ImageError as error:
                    out[row] = f"{feature.paths[0]} {error}"
                    break
            else:
                for feature, (stored, image) in zip(images, taken, strict=True):
                    self._keep_image(episode, feature.name, stored, image)
        return out

    def _image(self, feature: Feature, payload: Any) -> tuple[bytes, Pixels]:
        """The bytes to store and the pixels of an image."""
        image = pixels(payload)
        known = self._shapes.setdefault(feature.name, image.shape)
        if known != image.shape:
            size, before = "x".join(map(str, image.shape)), "x".join(map(str, known))
            raise ImageError(f"is {size}, and {before} before")
        stored = b""
        if self.images == "image":
            stored = payload
            if isinstance(payload, Mapping):
                stored = payload["image"] if "image" in payload else payload["data"]
            if stored[:2] != b"\xff\xd8" and stored[:4] != b"\x89PNG":
                raise ConfigError("images", "image", "needs JPEG or PNG; raw images need `video`")
        return stored, image

    def _keep_image(self, episode: _Episode, name: str, stored: bytes, image: Pixels) -> None:
        """Encode an image, or keep it for the rows."""
        episode.looks[name].add(image)
        if self.images == "image":
            episode.stored[name].append(stored)
            return
        video = episode.videos.get(name)
        if video is None:
            path = self.path / "videos" / name / f"open-{self._begun:06d}.mp4"
            shape = (int(image.shape[0]), int(image.shape[1]))
            thread = self._encoder_thread()
            video = episode.videos[name] = _Video(path, self.fps, self.codec, shape, thread)
            self._video_info[name] = {
                "video.height": shape[0], "video.width": shape[1],
                "video.codec": {"libx264": "h264", "libsvtav1": "av1"}.get(self.codec, self.codec),
                "video.pix_fmt": video.pix_fmt, "video.is_depth_map": False,
                "video.fps": self.fps, "video.channels": 3, "has_audio": False,
            }  # fmt: skip
        video.add(image)

    def _encoder_thread(self) -> Executor | None:
        """The thread of the next encoder: they take turns; None where there is but one thread."""
        if parallel.count() < 2:
            return None
        if len(self._threads) < parallel.count():
            self._threads.append(ThreadPoolExecutor(1, "tidegate-encoder"))
        self._encoders += 1
        return self._threads[self._encoders % len(self._threads)]

    # -- episodes ---------------------------------------------------------------------------------

    def _end(self, episode: _Episode) -> None:
        """Close the videos of an episode, and let it wait for its number."""
        n = episode.frames
        for video in episode.videos.values():
            video.close()
        if n == 0:
            return
        frame = np.arange(n)
        columns: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for name, parts in episode.vectors.items():
            arrays[name] = np.concatenate(parts)
            columns[name] = _vector_column(arrays[name])
        for name, stored in episode.stored.items():
            if self.images == "image":
                columns[name] = pa.StructArray.from_arrays(
                    [pa.array(stored, pa.binary()), pa.nulls(n, pa.string())], ["bytes", "path"]
                )
        arrays["time_ns"] = np.concatenate(episode.time_ns)
        arrays["timestamp"] = (frame / self.fps).astype(np.float32)
        arrays["frame_index"] = frame
        for name in ("time_ns", "timestamp", "frame_index"):
            columns[name] = pa.array(arrays[name])
        statistics = {name: _statistics(values) for name, values in arrays.items()}
        statistics |= {name: look.statistics() for name, look in episode.looks.items()}
        videos = {name: video.path for name, video in episode.videos.items()}
        order = (*((value is not None, value) for value in episode.key), episode.number)
        rows = pa.table(columns)
        self._ended.append(_EndedEpisode(order, episode.task, statistics, videos, rows))
        if not self._keys:
            self._number_episodes()
        elif sum(one.rows.nbytes for one in self._ended if one.rows) > DATA_MB * 10**6:
            self._spill()

    def _spill(self) -> None:
        """Put the rows of the episodes that wait on disk."""
        file = self.path / "data" / f"ended-{len(self._spilled):06d}.arrow"
        file.parent.mkdir(parents=True, exist_ok=True)
        self._spilled.append(file)
        first = next(one.rows for one in self._ended if one.rows is not None)
        written = 0
        with pa.ipc.new_file(file, first.schema) as out:
            for place, one in enumerate(self._ended):
                if one.rows is None:
                    continue
                batches = one.rows.to_batches()
                for batch in batches:
                    out.write_batch(batch)
                span = (written, written + len(batches))
                self._ended[place] = one._replace(rows=None, file=file, batches=span)
                written = span[1]

    def _number_episodes(self) -> None:
        """Give the episodes that wait their numbers in the dataset, and write their rows."""
        opened = {file: pa.ipc.open_file(pa.memory_map(str(file))) for file in self._spilled}
        for one in sorted(self._ended, key=lambda one: one.order):
            rows = one.rows
            if rows is None:
                assert one.file is not None
                batches = [opened[one.file].get_batch(n) for n in range(*one.batches)]
                rows = pa.Table.from_batches(batches)
            self._append(rows, one.task, one.statistics, one.videos)
        if self._spilled:
            self._write_data()  # what is left in memory is a view of these files
        for file in self._spilled:
            file.unlink()
        self._ended, self._spilled = [], []

    def _append(
        self,
        rows: pa.Table,
        task_text: str,
        statistics: dict[str, Any],
        videos: Mapping[str, Path],
    ) -> None:
        """Add a finished episode to the dataset, under its next number.

        Args:
            rows: Its frames, without the indices that depend on the episodes before.
            task_text: Its task.
            statistics: Of the columns of `rows` and of the images.
            videos: Per camera the file, which is moved to its place.
        """
        n, number = rows.num_rows, len(self._episodes)
        task = self._tasks.setdefault(task_text, len(self._tasks))
        indices = {
            "episode_index": np.full(n, number), "index": self._index + np.arange(n),
            "task_index": np.full(n, task),
        }  # fmt: skip
        table = rows
        for name, values in indices.items():
            table = table.append_column(name, pa.array(values))
        statistics = statistics | {name: _statistics(each) for name, each in indices.items()}
        if self._data and self._data_bytes + table.nbytes > DATA_MB * 10**6:
            self._write_data()
        record: dict[str, Any] = {
            "episode_index": number,
            "tasks": [task_text],
            "length": n,
            **_place("data", self._file),
            "dataset_from_index": self._index,
            "dataset_to_index": self._index + n,
        }
        for name, file in videos.items():
            place = _place(f"videos/{name}", number)
            record |= place
            record[f"videos/{name}/from_timestamp"] = 0.0
            record[f"videos/{name}/to_timestamp"] = n / self.fps
            final = self.path / "videos" / name / f"{_chunk_file(number)}.mp4"
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, final)
        record["statistics"] = statistics
        self._episodes.append(record)
        self._data.append(table)
        self._data_bytes += table.nbytes
        self._index += n

    @property
    def is_empty(self) -> bool:
        """Whether no frame has come, so that there is nothing to close."""
        ended = self._episodes or self._ended
        return not ended and not any(one.frames for one in self._open.values())

    def absorb(self, folder: str | Path) -> None:
        """Add the episodes of another dataset behind those of this one; its files are moved.

        Datasets that several processes wrote become one this way.

        Args:
            folder: A dataset written with the same settings, closed. It is of no use afterwards.

        Raises:
            ConfigError: A feature has another shape there.
        """
        other = Path(folder)
        told = json.loads((other / "meta" / "info.json").read_text())["features"]
        if self._features is None:
            self._features = tuple(
                Feature(name, _robot_columns(name, paths), told[name]["dtype"] != "float32")
                for name, paths in self._given.items()
            )
        for feature in self._features:
            shape = tuple(told[feature.name]["shape"])
            known = self._shapes.setdefault(feature.name, shape)
            if known != shape:
                raise ConfigError("features", feature.name, f"is {shape}, and {known} before")
            if "info" in told[feature.name]:
                self._video_info.setdefault(feature.name, told[feature.name]["info"])
        episodes = pq.read_table(other / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
        data, opened, first = pa.table({}), "", 0
        for row in episodes.to_pylist():
            place = _file_at(row, "data")
            if place != opened:
                data, opened = pq.read_table(other / "data" / f"{place}.parquet"), place
                first = row["dataset_from_index"]
            rows = data.slice(row["dataset_from_index"] - first, row["length"])
            statistics: dict[str, Any] = {}
            for name, value in row.items():
                if name.startswith("stats/"):
                    of, which = name.removeprefix("stats/").rsplit("/", 1)
                    statistics.setdefault(of, {})[which] = value
            videos = {
                name: other / "videos" / name / f"{_file_at(row, f'videos/{name}')}.mp4"
                for name in self._video_info
            }
            kept = [name for name in rows.column_names if name not in _NUMBERED]
            self._append(rows.select(kept), row["tasks"][0], statistics, videos)

    def _write_data(self) -> None:
        """Write the rows of the finished episodes as the next data file."""
        if not self._data:
            return
        path = self.path / "data" / f"{_chunk_file(self._file)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(self._data), path, compression="snappy")
        self._data, self._data_bytes = [], 0
        self._file += 1

    def end_episodes(self) -> None:
        """End all open episodes: no further row belongs to them, and no episode still to come is
        numbered before one of them. Called at the end of a file whose keys occur in no other."""
        for key in list(self._open):
            self._end(self._open.pop(key))
        self._number_episodes()

    def close(self) -> dict[str, Any]:
        """End the open episodes and write the metadata: only now it is a dataset.

        Returns:
            `episodes`, `frames`, `left_out` (rows) and `reasons` (the most frequent ones).

        Raises:
            ConfigError: There is no frame at all.
        """
        self.end_episodes()
        for thread in self._threads:
            thread.shutdown()
        if not self._episodes:
            reason = next(iter(self.reasons), "no row came")
            raise ConfigError("features", self._given, f"leave no frame to write: {reason}")
        self._write_data()
        meta = self.path / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True, exist_ok=True)
        pq.write_table(
            self._episode_table(), meta / "episodes" / "chunk-000" / "file-000.parquet",
            compression="snappy",
        )  # fmt: skip
        pq.write_table(_task_table(list(self._tasks)), meta / "tasks.parquet")
        (meta / "stats.json").write_text(json.dumps(self._joined_statistics(), indent=4))
        info = meta / "info.json.part"
        info.write_text(json.dumps(self._info(), indent=4))
        os.replace(info, meta / "info.json")
        most = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_REASONS]
        return {
            "episodes": len(self._episodes), "frames": self._index,
            "left_out": self.left_out, "reasons": dict(most),
        }  # fmt: skip

    def _episode_table(self) -> pa.Table:
        """meta/episodes: a row per episode, its statistics as columns of their own."""
        rows = []
        for record in self._episodes:
            row = {name: value for name, value in record.items() if name != "statistics"}
            for feature, numbers in record["statistics"].items():
                row |= {f"stats/{feature}/{name}": value for name, value in numbers.items()}
            rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        return pa.Table.from_pylist(rows)

    def _joined_statistics(self) -> dict[str, Any]:
        """meta/stats.json: the statistics of the episodes joined, weighted by their counts."""
        out: dict[str, Any] = {}
        for name in self._episodes[0]["statistics"]:
            parts = [record["statistics"][name] for record in self._episodes]
            count = np.array([part["count"][0] for part in parts], np.float64)

            def of(which: str, parts: list[dict[str, Any]] = parts) -> NDArray[np.float64]:
                return np.array([part[which] for part in parts], np.float64)

            weight = (count / count.sum()).reshape(-1, *[1] * (of("mean").ndim - 1))
            mean = (of("mean") * weight).sum(axis=0)
            variance = ((of("std") ** 2 + (of("mean") - mean) ** 2) * weight).sum(axis=0)
            out[name] = {
                "min": of("min").min(axis=0).tolist(), "max": of("max").max(axis=0).tolist(),
                "mean": mean.tolist(), "std": np.sqrt(variance).tolist(),
                "count": [int(count.sum())],
                **{q: (of(q) * weight).sum(axis=0).tolist() for q in QUANTILES},
            }  # fmt: skip
        return out

    def _info(self) -> dict[str, Any]:
        """meta/info.json."""
        assert self._features is not None
        features: dict[str, Any] = {}
        for feature in self._features:
            shape = self._shapes[feature.name]
            if feature.image:
                kind = self.images
                named: Any = ["height", "width", "channels"]
            else:
                kind = "float32"
                named = self._element_names.get(feature.name)
            features[feature.name] = {"dtype": kind, "shape": list(shape), "names": named}
            if feature.name in self._video_info:
                features[feature.name]["info"] = self._video_info[feature.name]
        for name in ("time_ns", *_INDICES):
            kind = "float32" if name == "timestamp" else "int64"
            features[name] = {"dtype": kind, "shape": [1], "names": None}
        videos = bool(self._video_info)
        pattern = "chunk-{chunk_index:03d}/file-{file_index:03d}"
        return {
            "codebase_version": VERSION,
            "robot_type": self.robot_type,
            "total_episodes": len(self._episodes),
            "total_frames": self._index,
            "total_tasks": len(self._tasks),
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": 200,
            "fps": self.fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": f"data/{pattern}.parquet",
            "video_path": f"videos/{{video_key}}/{pattern}.mp4" if videos else None,
            "features": features,
        }


def _robot_columns(setting: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Column names, one or several; here because an argument is called `names` too."""
    return names(setting, given)


def _vector_column(values: NDArray[np.float32]) -> pa.Array:
    """Vectors as LeRobot stores them: a list of fixed size, or plain numbers if it has one."""
    flat = pa.array(values.ravel(), pa.float32())
    if values.shape[1] == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _chunk_file(number: int) -> str:
    """The folder and name of file `number`, without its ending."""
    return f"chunk-{number // CHUNK_FILES:03d}/file-{number % CHUNK_FILES:03d}"


def _place(prefix: str, number: int) -> dict[str, int]:
    """Where file `number` is, as the episodes say it."""
    return {
        f"{prefix}/chunk_index": number // CHUNK_FILES,
        f"{prefix}/file_index": number % CHUNK_FILES,
    }


def _file_at(record: Mapping[str, Any], prefix: str) -> str:
    """The folder and name of the file of an episode, as `_place` says it."""
    return f"chunk-{record[f'{prefix}/chunk_index']:03d}/file-{record[f'{prefix}/file_index']:03d}"


def _statistics(values: NDArray[Any]) -> dict[str, Any]:
    """Statistics of one feature in one episode, one number per element."""
    table = (values if values.ndim == 2 else values[:, None]).astype(np.float64)
    out: dict[str, Any] = {
        "min": table.min(axis=0).tolist(), "max": table.max(axis=0).tolist(),
        "mean": table.mean(axis=0).tolist(), "std": table.std(axis=0).tolist(),
        "count": [len(table)],
    }  # fmt: skip
    for name, share in QUANTILES.items():
        out[name] = np.quantile(table, share, axis=0).tolist()
    return out


def _task_table(tasks: Sequence[str]) -> pa.Table:
    """meta/tasks.parquet: the task is the index of the table, as pandas marks it."""
    table = pa.table(
        {
            "task_index": pa.array(range(len(tasks)), pa.int64()),
            "__index_level_0__": pa.array(tasks, pa.string()),
        }
    )
    described = [
        {"name": None, "field_name": "task_index", "numpy_type": "int64"},
        {"name": None, "field_name": "__index_level_0__", "numpy_type": "object"},
    ]
    described[0]["name"] = "task_index"
    columns = [
        {**one, "pandas_type": kind, "metadata": None}
        for one, kind in zip(described, ("int64", "unicode"), strict=True)
    ]
    pandas = {"index_columns": ["__index_level_0__"], "column_indexes": [], "columns": columns}
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
