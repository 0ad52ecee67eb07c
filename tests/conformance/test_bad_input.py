"""Bad input is refused by the call itself, on every store alike."""

from __future__ import annotations

from typing import Any

import pytest

import batchkeeper as bk

from ..waiting import result


@pytest.mark.call
@pytest.mark.parametrize(
    "path",
    ["", "a", "//", "/a/", "/a//b", "/.", "/a/../b", "/a\x00", "/a\x7f", "/\ue000", "/\U0001f600",
     "/\ud800", "/zookeeper", "/zookeeper/x", "/.batchkeeper/x", None, b"/a", 7],
)  # fmt: skip
def test_a_bad_path_is_refused_by_the_call(store: bk.MetadataStore, path: Any) -> None:
    """A path against the rule raises at once from every operation; the message has the path."""
    for call in (
        lambda: store.get(path),
        lambda: store.put(path, b""),
        lambda: store.delete(path),
        lambda: store.exists(path),
        lambda: store.get_children(path),
        lambda: bk.Put(path, b""),
    ):
        with pytest.raises(bk.InvalidPathError) as caught:
            call()
        assert repr(path) in str(caught.value)
    assert result(store.get_children("/")) == []


@pytest.mark.call
def test_the_root_can_only_be_listed(store: bk.MetadataStore) -> None:
    """The root holds no value, so only get_children takes it."""
    for call in (
        lambda: store.get("/"),
        lambda: store.put("/", b""),
        lambda: store.delete("/"),
        lambda: store.exists("/"),
    ):
        with pytest.raises(bk.InvalidPathError, match="root"):
            call()


@pytest.mark.call
@pytest.mark.parametrize("value", ["text", None, 7, [1]])
def test_a_value_that_is_not_bytes_is_refused_by_the_call(
    store: bk.MetadataStore, value: Any
) -> None:
    """A value is bytes-like; a str is not encoded by guess."""
    with pytest.raises(bk.InvalidSettingError, match="bytes"):
        store.put("/a", value)
    assert result(store.exists("/a")) is False


@pytest.mark.call
@pytest.mark.parametrize("expected", [-2, 2**31, 1.0, "0", True])
def test_a_bad_expected_version_is_refused_by_the_call(
    store: bk.MetadataStore, expected: Any
) -> None:
    """An expected version is None, ABSENT (for a put) or an int of 31 bits."""
    with pytest.raises(bk.InvalidSettingError, match="expected_version"):
        store.put("/a", b"", expected_version=expected)
    with pytest.raises(bk.InvalidSettingError, match="expected_version"):
        store.delete("/a", expected_version=expected)
    with pytest.raises(bk.InvalidSettingError, match="ABSENT"):
        store.delete("/a", expected_version=bk.ABSENT)


@pytest.mark.call
@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "1"])
def test_a_bad_timeout_is_refused_by_the_call(store: bk.MetadataStore, timeout: Any) -> None:
    """A timeout is a positive number of seconds."""
    with pytest.raises(bk.InvalidSettingError, match="timeout"):
        store.get("/a", timeout=timeout)


def test_a_value_too_large_is_refused_by_the_call(store: bk.MetadataStore) -> None:
    """A value beyond the store's limit raises at once with both sizes; the store works on."""
    large = bytes(17 * 1024 * 1024)
    with pytest.raises(bk.ValueTooLargeError, match=str(len(large))) as caught:
        store.put("/a", large)
    assert caught.value.path == "/a"
    (outcome,) = store.apply([bk.Put("/a", large)])
    assert isinstance(outcome.error, bk.ValueTooLargeError)
    assert result(store.put("/a", b"small")).version == 0
