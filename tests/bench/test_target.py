"""Targets: created before the measurement, and removed afterwards."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.bench.disk import Disk, examine
from batchkeeper.bench.target import BARE_TARGETS, open_target
from batchkeeper.testing.servers import SERVERS


def listening(url: str) -> bool:
    """Whether a process holds the port of a URL on loopback."""
    host, _, port = url.rpartition("//")[2].rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.server] if name in SERVERS else [])
        for name in BARE_TARGETS
        if name not in {"memory", "hbase"}
    ],
)
def test_what_was_made_is_gone_even_after_a_failure(name: str, tmp_path: Path) -> None:
    """A failure, or Ctrl-C, stops the server and removes its data."""
    with ExitStack() as stack:
        target = stack.enter_context(open_target(name, tmp_path, pytest.fail))
        with target.open() as store:
            store.put(f"{target.root}/x", b"1").result()
        assert target.disk is not None
        assert target.disk.directory.is_relative_to(tmp_path)
        assert any(tmp_path.iterdir())
        held = stack.pop_all()
    with pytest.raises(KeyboardInterrupt), held:
        raise KeyboardInterrupt
    assert not any(tmp_path.iterdir())
    if name in SERVERS:
        assert not listening(target.url.text)


def test_a_store_in_memory_outlives_its_openers(tmp_path: Path) -> None:
    """The next client of the store reads the values of the previous one."""
    with open_target("memory", tmp_path, pytest.fail) as target:
        with target.open() as store:
            store.put("/x", b"1").result()
        with target.open() as store:
            assert store.exists("/x").result()
    assert target.disk is None


def test_of_a_given_store_only_the_bench_s_own_is_removed(store_url: str, tmp_path: Path) -> None:
    """An existing store is unchanged afterwards."""
    with bk.open_store(store_url) as keeper:
        keeper.put("/kept", b"1").result()
        if bk.store_kind(store_url).local_directory:
            keeper.close()  # One opener at a time.
        told: list[str] = []
        with open_target(store_url, tmp_path, told.append) as target, target.open() as store:
            store.put(f"{target.root}/a/b", b"1").result()
        assert ["its data is lost" in line for line in told] == (
            [True] if bk.store_kind(store_url).in_process else []
        )
        with bk.open_store(store_url) as store:
            left = store.get_children("/").result()
    assert "kept" in left
    # A store in memory goes with its last opener, so nothing is removed from it.
    assert left == ["kept"] or bk.store_kind(store_url).in_process


def test_what_cannot_be_removed_is_said(fresh_url: Callable[[str], str], tmp_path: Path) -> None:
    """A failure of the cleanup is only a warning, because the figures are valid."""
    warnings: list[str] = []
    url = fresh_url("rocksdb")
    with open_target(url, tmp_path, warnings.append) as target:
        blocker = target.open()
    blocker.close()
    (warning,) = warnings
    assert target.root in warning
    assert "only one opener" in warning


def test_a_bare_name_that_is_none_is_refused(tmp_path: Path) -> None:
    """A misspelt target is an error that lists the known names."""
    with (
        pytest.raises(bk.InvalidSettingError, match="zookeeper, hbase, memory: 'etdc'"),
        open_target("etdc", tmp_path, pytest.fail),
    ):
        pytest.fail("opened")


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """A file where the directory should be gives a clear error."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(
            bk.InvalidSettingError, match=f"cannot be used: {os.strerror(errno.ENOTDIR)}"
        ),
        open_target("rocksdb", tmp_path / "file", pytest.fail),
    ):
        pytest.fail("opened")


def test_memory_in_place_of_a_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system in memory causes a warning, because a sync costs nothing there."""
    monkeypatch.setattr(
        "batchkeeper.bench.target.examine", lambda directory: Disk(directory, "tmpfs", 0.0)
    )
    warnings: list[str] = []
    with open_target("rocksdb", tmp_path, warnings.append):
        pass
    assert warnings == [f"{tmp_path} is in memory (tmpfs): no sync reaches a disk there"]


def test_a_disk_is_examined_and_left_as_it_was(tmp_path: Path) -> None:
    """The file system has a name, an fsync takes time, and no file stays behind."""
    disk = examine(tmp_path)
    assert disk.file_system != "unknown"
    assert 0 < disk.fsync < 60
    assert not any(tmp_path.iterdir())
