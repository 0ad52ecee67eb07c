"""Logs in files: what is in them is decided by the order of the file."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.hubs import AsyncFileLogs, Claim, FileLogs, HubInfo, Message, StaleEpochError


def claim(epoch: int, topic: str = "t") -> Claim:
    return Claim(topic, HubInfo(f"hub-{epoch}", epoch), epoch, bk.Check("/epoch", epoch))


def bodies(logs: FileLogs, topic: str = "t") -> list[bytes]:
    messages = logs.read(topic, 0, 1_000_000)
    assert [message.number for message in messages] == [*range(1, len(messages) + 1)]
    return [message.body for message in messages]


def test_messages_have_numbers_without_gaps(tmp_path: Path) -> None:
    """They begin with 1, and reads return those after a number."""
    logs = FileLogs(tmp_path)
    assert logs.read("t", 0, 10) == []
    assert logs.begin(claim(1)) == 0
    assert logs.append(claim(1), [b"a", b""]) == 2
    assert logs.append(claim(1), [b"c"]) == 3
    assert logs.read("t", 1, 1) == [Message(2, b"")]
    assert logs.read("t", 1, 9) == [Message(2, b""), Message(3, b"c")]
    assert logs.read("t", 3, 9) == []


def test_large_messages_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read returns as many as its bound of bytes allows, and one at least."""
    monkeypatch.setattr("batchkeeper.hubs.serving.file_logs._MOST_BYTES", 10)
    logs = FileLogs(tmp_path)
    logs.begin(claim(1))
    logs.append(claim(1), [b"12345", b"67890", b"1", b"x" * 11, b""])
    numbers = [[message.number for message in logs.read("t", after, 9)] for after in range(5)]
    assert numbers == [[1, 2], [2, 3], [3], [4], [5]]


def test_a_later_epoch_shuts_out_those_before(tmp_path: Path) -> None:
    """Whoever owned the topic before adds nothing more, and cannot begin again."""
    one, two = FileLogs(tmp_path), FileLogs(tmp_path)
    one.begin(claim(1))
    one.append(claim(1), [b"a"])
    assert two.begin(claim(3)) == 1
    with pytest.raises(StaleEpochError, match="epoch 3"):
        one.append(claim(1), [b"late"])
    with pytest.raises(StaleEpochError):
        one.begin(claim(2))
    assert two.append(claim(3), [b"b"]) == 2
    for logs in (one, two, FileLogs(tmp_path)):
        assert bodies(logs) == [b"a", b"b"]


def test_a_message_that_comes_behind_the_next_epoch_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that is paused between its look and its write has lost, and learns it."""
    one, two = FileLogs(tmp_path), FileLogs(tmp_path)
    one.begin(claim(1))
    write = os.write

    def paused(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        two.begin(claim(2))
        return write(file, data)

    monkeypatch.setattr(os, "write", paused)
    with pytest.raises(StaleEpochError):
        one.append(claim(1), [b"late"])
    assert two.append(claim(2), [b"b"]) == 1
    assert bodies(one) == bodies(two) == [b"b"]


def test_a_void_message_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the next owner has written messages of the same numbers by then."""
    one, two = FileLogs(tmp_path), FileLogs(tmp_path)
    one.begin(claim(1))
    write = os.write

    def paused(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        two.begin(claim(2))
        two.append(claim(2), [b"x", b"y"])
        return write(file, data)

    monkeypatch.setattr(os, "write", paused)
    with pytest.raises(StaleEpochError):
        one.append(claim(1), [b"late"])
    assert bodies(one) == bodies(two) == [b"x", b"y"]


def test_a_message_that_is_in_the_log_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the next epochs have begun behind it before its writer looks."""
    one, two = FileLogs(tmp_path, sync=False), FileLogs(tmp_path)
    one.begin(claim(1))
    write = os.write

    def overtaken(file: int, data: bytes) -> int:
        written = write(file, data)
        monkeypatch.setattr(os, "write", write)
        for epoch in (2, 3):
            two.begin(claim(epoch))
            two.append(claim(epoch), [b"%d" % epoch])
        return written

    monkeypatch.setattr(os, "write", overtaken)
    assert one.append(claim(1), [b"1"]) == 1
    assert bodies(one) == [b"1", b"2", b"3"]
    with pytest.raises(StaleEpochError):
        one.append(claim(1), [b"late"])


@pytest.mark.parametrize("piece", [4, 30, 64, 1000])
def test_a_log_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Wherever they end: in magic bytes, in a record, in a body that looks like a record."""
    monkeypatch.setattr("batchkeeper.hubs.serving.file_logs._PIECE", piece)
    logs = FileLogs(tmp_path)
    logs.begin(claim(1))
    forged = next(tmp_path.iterdir()).read_bytes()  # a record of its own
    sent = [b"x" * size for size in range(0, 90, 7)] + [forged * 3, b"\xabkp\x01" * 9, b"end"]
    for body in sent:
        logs.append(claim(1), [body])
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    assert bodies(FileLogs(tmp_path)) == sent
    path.write_bytes(whole[:50] + b"\xabk" + whole[:20] + b"torn" + whole[50:])
    again = FileLogs(tmp_path)
    assert again.begin(claim(2)) == len(bodies(FileLogs(tmp_path)))


def test_the_name_of_a_new_log_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a loss of power could take the whole file."""
    synced: list[int] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    FileLogs(tmp_path).begin(claim(1))
    assert tmp_path.stat().st_ino in synced
    synced.clear()
    FileLogs(tmp_path, sync=False).begin(claim(2))
    assert synced == []


def test_a_torn_record_is_skipped(tmp_path: Path) -> None:
    """What a crash has left of a write does not count, at the end or in the middle."""
    logs = FileLogs(tmp_path)
    logs.begin(claim(1))
    logs.append(claim(1), [b"a", b"b"])
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    for cut in range(1, 30):
        path.write_bytes(whole[:-cut])
        again = FileLogs(tmp_path)
        assert again.begin(claim(2)) == 1
        assert again.append(claim(2), [b"c"]) == 2
        assert bodies(FileLogs(tmp_path)) == [b"a", b"c"]


def test_a_record_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    """A reader that sees half of a record waits for the rest, whatever its body looks like."""
    logs = FileLogs(tmp_path)
    logs.begin(claim(1))
    logs.append(claim(1), [b"a"])
    path = next(tmp_path.iterdir())
    before = path.read_bytes()
    logs.append(claim(1), [b"\xabkp\x01" * 3])
    after = path.read_bytes()
    for seen in range(len(before), len(after)):
        path.write_bytes(after[:seen])
        reader = FileLogs(tmp_path)
        assert bodies(reader) == [b"a"]
        path.write_bytes(after)
        assert bodies(reader) == [b"a", b"\xabkp\x01" * 3]


def test_a_disk_that_is_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits of a write may count or not; the log goes on behind it."""
    logs = FileLogs(tmp_path)
    logs.begin(claim(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:-1]))
    with pytest.raises(OSError, match="takes only"):
        logs.append(claim(1), [b"a", b"b"])
    monkeypatch.undo()
    assert logs.append(claim(1), [b"c"]) == 2
    assert bodies(logs) == [b"a", b"c"]


def test_names_of_topics_do_not_collide(tmp_path: Path) -> None:
    """Any name has a file of its own, however long it is."""
    names: list[str | bytes] = [
        "t",
        "T",
        "a/b",
        "a.b",
        "..",
        ".",
        "x" * 1000,
        "x" * 1001,
        "\n",
        "~long-",
        b"\xff",
    ]
    logs = FileLogs(tmp_path)
    for number, name in enumerate(names, 1):
        text = name if isinstance(name, str) else os.fsdecode(name)
        logs.begin(claim(1, text))
        logs.append(claim(1, text), [b"%d" % number])
    for number, name in enumerate(names, 1):
        text = name if isinstance(name, str) else os.fsdecode(name)
        assert bodies(logs, text) == [b"%d" % number]


def test_many_writers_of_one_epoch(tmp_path: Path) -> None:
    """Each message is there once, and each call gets its own number."""
    logs = FileLogs(tmp_path, sync=False)
    logs.begin(claim(1))
    with ThreadPoolExecutor(8) as pool:
        numbers = [*pool.map(lambda n: logs.append(claim(1), [b"%d" % n]), range(200))]
    assert sorted(numbers) == [*range(1, 201)]
    assert [int(body) for body in bodies(logs)] == sorted(range(200), key=lambda n: numbers[n])


def test_what_is_forgotten_is_read_again(tmp_path: Path) -> None:
    """The end of an owner changes nothing in the log."""
    logs = FileLogs(tmp_path)
    logs.begin(claim(1))
    logs.append(claim(1), [b"a"])
    logs.end(claim(1))
    assert bodies(logs) == [b"a"]
    assert logs.append(claim(1), [b"b"]) == 2


def test_tasks(tmp_path: Path) -> None:
    """The same files, for tasks."""

    async def work() -> list[Message]:
        logs = AsyncFileLogs(tmp_path)
        assert await logs.begin(claim(1)) == 0
        assert await logs.append(claim(1), [b"a"]) == 1
        await logs.end(claim(1))
        return await logs.read("t", 0, 9)

    assert asyncio.run(work()) == [Message(1, b"a")]
    assert bodies(FileLogs(tmp_path)) == [b"a"]
