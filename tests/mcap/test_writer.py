"""Files we write are read by the format's own reader, with all checksums checked."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import NonSeekingReader, make_reader

from mcap_files import messages_in
from tidegate import mcap
from tidegate.errors import ConfigError, ContractError

rows = st.lists(
    st.tuples(
        st.sampled_from(["/a", "/b", "/c"]), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1),
        st.integers(0, 2**32 - 1), st.binary(max_size=300),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from(["zstd", "lz4", "none"]), st.integers(1, 3_000), st.booleans())
def test_any_messages(tmp_path_factory, messages, compression, chunk_bytes, at_once) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("w") / "log.mcap"
    with mcap.McapWriter(path, compression=compression, chunk_bytes=chunk_bytes) as log:
        ids = {topic: log.channel(topic, schema="S") for topic in ("/a", "/b", "/c")}
        if at_once:
            topics, logged, sent, numbers, data = (
                zip(*messages, strict=True) if messages else [()] * 5
            )
            log.messages(
                [ids[t] for t in topics], np.array(logged, np.int64), pa.array(data, pa.binary()),
                np.array(sent, np.int64), np.array(numbers, np.int64),
            )  # fmt: skip
        else:
            for topic, logged, sent, number, data in messages:
                log.message(ids[topic], logged, data, sent, number)
    good, errors = messages_in(mcap.read(path, crc=True))
    assert good == messages
    assert errors == []
    for reader in (
        make_reader(io.BytesIO(path.read_bytes()), validate_crcs=True),
        NonSeekingReader(io.BytesIO(path.read_bytes()), validate_crcs=True),
    ):
        found = [
            (channel.topic, m.log_time, m.publish_time, m.sequence, m.data)
            for schema, channel, m in reader.iter_messages(log_time_order=False)
        ]
        assert found == messages
    summary = make_reader(io.BytesIO(path.read_bytes())).get_summary()
    assert summary is not None
    assert summary.statistics is not None
    assert summary.statistics.message_count == len(messages)


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), mcap.McapWriter(tmp_path / "log.mcap") as log:  # noqa: PT012
        log.message(log.channel("/a"), 1, b"x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    log = mcap.McapWriter(tmp_path / "log.mcap")
    log.message(log.channel("/a"), 1, b"x")
    assert not (tmp_path / "log.mcap").exists()
    log.close()
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.mcap"]


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compression"):
        mcap.McapWriter(tmp_path / "x", compression="rar")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="chunk_bytes"):
        mcap.McapWriter(tmp_path / "x", chunk_bytes=0)
    with pytest.raises(ContractError, match="before 1970"), mcap.McapWriter(tmp_path / "x") as log:
        log.message(log.channel("/a"), -1, b"")
