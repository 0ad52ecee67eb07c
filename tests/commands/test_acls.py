"""The command ``acl``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import batchkeeper as bk

from .conftest import Run


def test_lists_are_shown_and_set(
    run: Run,
    url: str,
    fresh_url: Callable[[str], str],
    zookeeper_server: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one path or of all below it; a path without permission does not hold up the others.

    Other stores have none.
    """
    monkeypatch.setenv("BATCHKEEPER_STORE", fresh_url("zookeeper"))
    assert run("put", "/a/b", "1")[0] == 0
    assert run("acl", "/a", "-o", "jsonl") == (
        0,
        b'{"path": "/a", "acl": ["world:anyone:cdrwa"], "version": 0}\n',
        [],
    )
    entries = "world:anyone:r,ip:10.0.0.1:cdrwa"
    assert run("acl", "/a/b", "--set", entries)[:2] == (0, b"/a/b\tversion 1\n")
    assert run("acl", "/", "-r")[1] == (
        f"/\tworld:anyone:cdrwa\n/a\tworld:anyone:cdrwa\n/a/b\t{entries}\n".encode()
    )
    code, output, errors = run("acl", "/a", "-r", "--set", "open", "-o", "json")
    assert code == 1
    assert json.loads(output) == [{"path": "/a", "version": 1}]
    assert errors == ["batchkeeper: ZooKeeper denies access to '/a/b'"]
    assert run("acl", "/a/b", "--set", "open")[0] == 1
    code, _, errors = run("acl", "/a", "-r", "--set", "mine")
    assert (code, len(errors)) == (3, 1)
    assert "creator-all" in errors[0]
    with pytest.raises(bk.UnsupportedError, match=r"'acls'.*ZooKeeper"):
        bk.open_store(url, acl="open")
    assert run("acl", "/a", "--store", url)[0] == 3
