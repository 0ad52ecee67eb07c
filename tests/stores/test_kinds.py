"""The records of the kinds of stores: built-in ones, those of other packages, and their users."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import cli
from batchkeeper.bench.target import BARE_TARGETS
from batchkeeper.ops.capabilities import STORES_WITH
from batchkeeper.stores.kinds import BUILT_IN
from batchkeeper.testing.servers import ALL_SERVERS

from ..programs import run_python


def test_our_stores_state_what_they_can_do() -> None:
    """The capabilities of each kind are a promise; ``tests/conformance`` tries each of them."""
    promised = {
        "etcd": {
            "ephemerals",
            "expected_revisions",
            "history",
            "linearizable_reads",
            "sequences",
            "snapshots",
            "transactions",
            "watches",
        },
        "memory": {
            "ephemerals",
            "expected_revisions",
            "linearizable_reads",
            "sequences",
            "times",
            "transactions",
            "watches",
        },
        "rocksdb": {
            "ephemerals",
            "expected_revisions",
            "linearizable_reads",
            "sequences",
            "times",
            "transactions",
            "watches",
        },
        "zookeeper": {"acls", "ephemerals", "sequences", "times", "transactions", "watches"},
        "hbase": {"ephemerals", "expected_revisions", "linearizable_reads", "sequences"},
    }
    assert {name: set(BUILT_IN[name].capabilities) for name in promised} == promised
    titles = {BUILT_IN[name].title: stated for name, stated in promised.items()}
    for capability, named in STORES_WITH.items():
        assert set(named) == {title for title, stated in titles.items() if capability in stated}


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("etcds://h", "etcd"),
        ("zk://h", "zookeeper"),
        ("ZooKeeper://h", "zookeeper"),
        ("memory://n", "memory"),
        ("rocksdb:///d", "rocksdb"),
    ],
)
def test_an_alias_has_the_record_of_its_kind(url: str, scheme: str) -> None:
    """Every spelling of a scheme stands for the same kind."""
    assert bk.store_kind(url) is BUILT_IN[scheme]


def test_every_record_names_what_is_there() -> None:
    """The functions that open stores can be imported."""
    for name, kind in BUILT_IN.items():
        assert callable(kind.load())
        assert kind.url_form.startswith(f"{name}://")
        # The bench and the tests have one way to make a store of each kind.
        assert [kind.in_process, kind.local_directory, name in ALL_SERVERS].count(True) == 1


def test_what_reads_the_records_knows_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's help, the message for a bad URL and the bench name all kinds that fit."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    help_text = capsys.readouterr().out
    for kind in BUILT_IN.values():
        assert (kind.url_form in help_text) is not kind.in_process
    with pytest.raises(bk.InvalidSettingError) as caught:
        bk.open_store("nonsense")
    assert all(kind.url_form in str(caught.value) for kind in BUILT_IN.values())
    assert set(BARE_TARGETS) == set(BUILT_IN)


def test_the_records_are_read_without_the_back_ends() -> None:
    """The capabilities of a store are known without importing its package or the bench."""
    program = (
        "import sys, batchkeeper as bk\n"
        "kind = bk.store_kind('etcd://h')\n"
        "assert 'history' in kind.capabilities\n"
        "print(*sorted(sys.modules))"
    )
    modules = run_python("-c", program, check=True).stdout.split()
    parts = {f"batchkeeper.{part}" for part in ("bench", "testing")}
    assert not {"etcd3", "grpc", "kazoo", "rocksdict", *parts} & set(modules)
    assert not [name for name in modules if name.startswith("batchkeeper.stores.etcd")]


FIELDS: dict[str, Any] = {
    "scheme": "x",
    "title": "X",
    "url_form": "x://HOST",
    "connect": "x:connect",
    "capabilities": frozenset({"times"}),
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"capabilities": {"times", "telepathy"}}, "unknown capabilities: telepathy"),
        ({"scheme": "X"}, "not a valid URL scheme in lower case: 'X'"),
        ({"aliases": ("ok", "n t")}, "not a valid URL scheme in lower case: 'n t'"),
    ],
)
def test_a_record_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    """A misspelt capability would never be found, nor a URL with such a scheme."""
    with pytest.raises(bk.InvalidSettingError, match=said):
        bk.StoreKind(**{**FIELDS, **change})


def test_a_record_holds_a_frozen_set() -> None:
    """Any set of capabilities is accepted, and the record keeps an immutable one."""
    assert bk.StoreKind(**{**FIELDS, "capabilities": {"times"}}) == bk.StoreKind(**FIELDS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"package": "xdb"},
            r"needs the package xdb, .*; install it with: pip install --upgrade xdb",
        ),
        ({"package": "xdb", "extra": "x"}, r"pip install --upgrade 'batchkeeper\[x\]'"),
        ({}, r"the x store needs the package batchkeeper_missing:connect, which"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    fields: dict[str, Any], said: str
) -> None:
    """The message names the package to install, or the extra of this package."""
    kind = bk.StoreKind(**{**FIELDS, "connect": "batchkeeper_missing:connect", **fields})
    with pytest.raises(bk.UnsupportedError, match=said):
        kind.load()


# Stores of other packages. The package is installed for real: its metadata lie on the path.

OTHER = '''
from batchkeeper.stores import ConnectOptions, PassingBackend, StoreKind, StoreURL, connect

opened = []

class Other(PassingBackend):
    """Memory under another name."""

def open_other(url, options):
    opened.append((url.text, options.username))
    return Other(connect("memory://behind-" + url.hosts[0], options))

KIND = StoreKind(
    scheme="other",
    aliases=("oth",),
    title="Other",
    url_form="other://NAME",
    connect="other_store:open_other",
    capabilities={"linearizable_reads", "times"},
    in_process=True,
)
NOT_A_STORE = 7
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Install a package with a store, with these entry points; returns its module."""

    def install(*entries: str) -> Any:
        (tmp_path / "other_store.py").write_text(textwrap.dedent(OTHER))
        info = tmp_path / "other_store-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-store\nVersion: 1.0\n")
        lines = ("[batchkeeper.stores]", *entries)
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "other_store", raising=False)

    return install


@pytest.mark.parametrize("scheme", ["other", "oth"])
def test_another_package_adds_a_store_by_its_record(
    scheme: str, install: Callable[..., Any]
) -> None:
    """Its stores open like built-in ones, by all its schemes, and state its capabilities."""
    install("other = other_store:KIND", "oth = other_store:KIND")
    url = f"{scheme}://there"
    with bk.open_store(url, username="u", password="p") as store:
        assert store.put("/a", b"1").result().version == 0
        assert [found.path for found in store.scan("/")] == ["/a"]
        assert store.capabilities == {"linearizable_reads", "times"}
        with pytest.raises(bk.UnsupportedError, match="'snapshots'"):
            store.scan("/", revision=1)
    kind = bk.store_kind(url)
    assert (kind.title, kind.in_process) == ("Other", True)
    assert sys.modules["other_store"].opened == [(url, "u")]


def test_another_package_may_give_a_bare_function(install: Callable[..., Any]) -> None:
    """Then the kind states no capability, and is taken for a server that processes can share."""
    install("bare = other_store:open_other")
    with bk.open_store("bare://there") as store:
        assert store.put("/a", b"1").result().version == 0
        assert [found.path for found in store.scan("/")] == ["/a"]
        assert store.capabilities == frozenset()
    kind = bk.store_kind("bare://there")
    assert (kind.scheme, kind.title) == ("bare", "bare")
    assert not any((kind.in_process, kind.local_directory, kind.parents_count))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mine = other_store:KIND", "is the record for other, oth, not for mine"),
        ("mine = other_store:NOT_A_STORE", "neither a StoreKind nor a function"),
        ("mine = other_store_missing:KIND", "cannot be imported .*other_store_missing:KIND"),
        ("mine = other_store:MISSING", "cannot be imported .*other_store:MISSING"),
    ],
)
def test_an_entry_point_that_is_none_is_refused(
    entry: str, said: str, install: Callable[..., Any]
) -> None:
    """The message names the entry and what is wrong with it."""
    install(entry)
    with pytest.raises(bk.UnsupportedError, match=said):
        bk.open_store("mine://there")


def test_nobody_takes_a_scheme_of_ours_over(install: Callable[..., Any]) -> None:
    """Other packages cannot replace a scheme of this package."""
    install("memory = other_store:KIND")
    assert bk.store_kind("memory://x") is BUILT_IN["memory"]


def test_an_unknown_scheme_is_answered_with_those_that_are_known(
    install: Callable[..., Any],
) -> None:
    """Ours, their aliases, and those of entry points."""
    install("other = other_store:KIND")
    known = sorted(["other", *(scheme for kind in BUILT_IN.values() for scheme in kind.schemes)])
    assert {"etcds", "zk"} < set(known)
    with pytest.raises(bk.InvalidSettingError, match=rf"\(known: {', '.join(known)}\)"):
        bk.store_kind("nope://x")
