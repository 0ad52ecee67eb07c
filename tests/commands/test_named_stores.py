"""The configuration file, and the stores that it names."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper import opening
from batchkeeper.commands import named_stores
from batchkeeper.stores import ConnectOptions, registry

from ..programs import TINY_BENCH
from .conftest import Run


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file at its usual place, with a store on disk."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("BATCHKEEPER_STORE", raising=False)
    file = tmp_path / "settings" / "batchkeeper" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'[stores]\ndisk = "rocksdb://{tmp_path}/disk"\n')
    return file


def test_a_name_stands_for_a_url(
    run: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As --store and in the environment; --config and a variable name other files."""
    assert run("put", "/a", "1", "--store", "disk")[0] == 0
    monkeypatch.setenv("BATCHKEEPER_STORE", "disk")
    assert run("get", "/a") == (0, b"1", [])
    other = tmp_path / "other.toml"
    other.write_text(f'[stores.disk]\nurl = "rocksdb://{tmp_path}/other"\n')
    assert run("put", "/a", "2", "--config", str(other))[0] == 0
    assert run("get", "/a") == (0, b"1", [])
    monkeypatch.setenv("BATCHKEEPER_CONFIG", str(other))
    assert run("get", "/a") == (0, b"2", [])
    assert run("--config", str(config), "get", "/a") == (0, b"1", [])


def test_a_name_that_is_unknown(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the names that there are, and the file that was read."""
    config.write_text('[stores]\nprod = "etcd://127.0.0.1:1"\ndev = "memory://x"\n')
    code, output, (error,) = run("ls", "--store", "pord")
    assert (code, output) == (3, b"")
    assert "'pord'" in error
    assert f"no store in {config} has this name (known: dev, prod)" in error
    config.unlink()
    assert "(it names none)" in run("ls", "--store", "prod")[2][0]
    monkeypatch.setenv("BATCHKEEPER_CONFIG", str(config))
    assert run("ls", "--store", "prod")[::2] == (
        3,
        [f"batchkeeper: there is no configuration file {config}"],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stores]\na = =\n", "is not TOML: Invalid value (at line 2"),
        ('store = "a"', "the file has no key 'store' (known: stores)"),
        ("stores = 3", "stores must be a table, not 3"),
        ("[stores]\na = 3", "stores.a must be a URL or a table, not 3"),
        ('[stores.a]\nulr = "memory://x"', "stores.a has no key 'ulr' (known: url, username"),
        ("[stores.a]\n", "stores.a has no url"),
        ("[stores.a]\nurl = 3", "stores.a.url must be a text, not 3"),
        ('[stores]\na = "x"', "stores.a.url: not a store's URL"),
        ('[stores]\na = "etcd://me:secret@x"', "stores.a.url: a store's URL must not contain"),
        ('[stores.a]\nurl = "memory://x"\npassword = "secret"', "must not hold a password"),
        ('[stores.a]\nurl = "memory://x"\ntimeout = "soon"', "stores.a.timeout must be a duration"),
        ('[stores.a]\nurl = "memory://x"\ntimeout = true', "stores.a.timeout must be a duration"),
        ('[stores]\netcd = "memory://x"', "'etcd' cannot name a store"),
        ('[stores]\n"a/b" = "memory://x"', "'a/b' cannot name a store"),
    ],
)
def test_a_file_with_a_mistake(run: Run, config: Path, text: str, message: str) -> None:
    """Bad input: one line with the file and what is wrong with it, without a password."""
    config.write_text(text)
    code, output, (error,) = run("ls", "--store", "a")
    assert (code, output) == (3, b"")
    assert error.startswith(f"batchkeeper: {config}")
    assert message in error
    assert "secret" not in error


def test_the_settings_of_a_named_store(
    run: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its login and its time-outs hold unless an option gives others.

    The file of its password is read again at each login, also after a change of the directory.
    """
    seen: list[ConnectOptions] = []

    def connect(text: str, options: ConnectOptions) -> object:
        seen.append(options)
        return registry.connect("memory://x", options)

    monkeypatch.setattr(opening, "connect", connect)
    secret = tmp_path / "secret"
    secret.write_text("geheim\n", "utf-8-sig")
    secret.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHKEEPER_PASSWORD", "another's")
    config.write_text(
        '[stores.prod]\nurl = "zk://127.0.0.1:1"\nusername = "hub"\nsasl = "digest-md5"\n'
        'acl = ["auth::cdrwa", "world:anyone:r"]\n'
        'password_file = "secret"\nconnect_timeout = "1m30s"\n',
        "utf-8-sig",  # Either file may begin with a byte order mark.
    )
    assert run("put", "/a", "", "--store", "prod")[::2] == (0, [])
    assert run("put", "/a", "", "--store", "prod", "--connect-timeout", "100ms")[::2] == (0, [])
    options = Namespace(store="prod")
    with named_stores.in_place(options, "store"):
        bk.open_store(options.store).close()
    monkeypatch.delenv("BATCHKEEPER_PASSWORD")
    assert run("put", "/a", "", "--store", "etcd://127.0.0.1:1")[::2] == (0, [])
    monkeypatch.chdir("/")
    secret.write_text("new\n")
    assert (seen[0].acl, seen[2].acl) == (
        ("auth::cdrwa", "world:anyone:r"),
        "auth::cdrwa,world:anyone:r",
    )
    assert [o.password_now() for o in seen] == ["new", "new", "new", None]
    assert [(o.username, o.password, o.sasl, o.connect_timeout) for o in seen] == [
        ("hub", "geheim", "digest-md5", 90.0),
        ("hub", "geheim", "digest-md5", 0.1),
        ("hub", "geheim", "digest-md5", 10.0),
        (None, None, None, 10.0),
    ]


def test_a_password_that_others_can_read(run: Run, config: Path, tmp_path: Path) -> None:
    """A warning says how to mend it, and the command goes on; without the file it ends with 3."""
    secret = tmp_path / "secret"
    config.write_text(f'[stores.a]\nurl = "memory://x"\npassword_file = "{secret}"\n')
    code, _, (error,) = run("ls", "--store", "a")
    assert code == 3
    assert f"{secret}" in error
    secret.write_text("geheim\n")
    secret.chmod(0o644)
    code, _, errors = run("put", "/a", "", "--store", "a")
    assert code == 0
    assert errors[0] == f"batchkeeper: others can read {secret}: chmod 600 {secret}"


@pytest.mark.full
@pytest.mark.xdist_group("bench")
def test_a_bench_on_a_named_store(
    run: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name works where the bench takes a URL, and the measured store has that URL."""
    monkeypatch.chdir(tmp_path)
    code, output, _ = run("bench", "disk", *TINY_BENCH, "-o", "json")
    assert code == 0
    assert json.loads(output)["conditions"]["target"] == f"rocksdb://{tmp_path}/disk"


def test_the_sides_of_a_job(config: Path) -> None:
    """Each gets the login and the time-outs of its own store; its own options come after them."""
    config.write_text(
        '[stores.old]\nurl = "zk://a"\ntimeout = 7\nsasl = "gssapi"\n'
        '[stores.new]\nurl = "etcd://b"\nusername = "me"\npassword_file = "/p"\n'
    )
    job = Namespace(store=None, config=None, connect_timeout=None, timeout=None)
    job.source, job.from_option, job.target, job.to_option = "old", [], "new", ["username=you"]
    named_stores.for_spark(job)
    assert (job.source, job.from_option) == ("zk://a", ["sasl=gssapi", "operation_timeout=7.0"])
    assert (job.target, job.to_option) == (
        "etcd://b",
        ["username=me", "password_file=/p", "username=you"],
    )
    assert (job.connect_timeout, job.timeout) == (10.0, 30.0)
    diff = Namespace(store=None, config=None, connect_timeout=None, timeout=3.0)
    diff.left, diff.left_option, diff.right, diff.right_option = "old", [], "folder", []
    named_stores.for_spark(diff)
    assert (diff.left, diff.left_option, diff.right) == ("zk://a", ["sasl=gssapi"], "folder")


def test_a_jobs_store_comes_from_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The variable may hold a name, for jobs as for other commands."""
    monkeypatch.setenv("BATCHKEEPER_STORE", "disk")
    job = Namespace(store=None, config=None, connect_timeout=None, timeout=None, option=[])
    named_stores.for_spark(job)
    assert job.store == f"rocksdb://{tmp_path}/disk"
    job.store = "dsik"
    with pytest.raises(named_stores.InputError, match="known: disk"):
        named_stores.for_spark(job)


def test_the_file_in_the_documents(config: Path) -> None:
    """The example has no mistake, and names two stores."""
    document = Path(__file__).parents[2] / "docs" / "command.md"
    (example,) = re.findall(r"```toml\n(.*?)```", document.read_text(), re.DOTALL)
    config.write_text(example)
    assert named_stores.find("dev", None).url == "etcd://127.0.0.1:2379"
    assert named_stores.find("prod", None).timeout == 60.0


def test_memory_stays_what_it_is(run: Run, config: Path) -> None:
    """A URL needs no file, not even one that can be read."""
    config.write_text("[stores")
    assert run("put", "/a", "", "--store", "memory://x")[0] == 0
    assert bk.store_kind("memory://x").in_process
