"""Options of the data source: accepted and refused ones, and that no secret is repeated."""

from __future__ import annotations

import pickle

import pytest

from batchkeeper import (
    BatchingConfig,
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    UnsupportedError,
)
from batchkeeper.pipeline.options import SourceOptions, parse_options

URL = "etcd://127.0.0.1:2379"


def test_options_come_as_text_and_in_any_case() -> None:
    """Spark's options, with names in lower case and values as text, become typed options."""
    assert parse_options(
        {
            "URL": URL,
            "prefix": "/topics",
            "revision": "17",
            "rate_limit": "2.5e3",
            "batching": "TRUE",
            "max_ops": "64",
            "max_delay": "250ms",
            "linger": "fixed",
            "on_error": "collect",
        }
    ) == SourceOptions(
        url=URL,
        prefix="/topics",
        revision=17,
        rate_limit=2500.0,
        batching=BatchingConfig(max_ops=64, max_delay=0.25, linger="fixed"),
        on_error="collect",
    )


def test_options_come_as_values_too() -> None:
    """A call in Python may give numbers and bools; None is an option that is not given."""
    given = parse_options({"url": URL, "batching": False, "partitions": 3, "revision": None})
    assert given == SourceOptions(url=URL, batching=BatchingConfig(enabled=False), partitions=3)


def test_every_batch_setting_is_an_option() -> None:
    """Each setting of the engine can be given, and reaches it."""
    config = BatchingConfig(
        enabled=False,
        max_ops=2,
        max_bytes=3,
        max_delay=0.5,
        read_queue_size=4,
        write_queue_size=5,
        max_queued_bytes=6,
        max_in_flight=7,
        max_singles=8,
        on_full="raise",
        linger="fixed",
    )
    names = [name for name in BatchingConfig.__slots__ if name != "enabled"]
    options = {name: str(getattr(config, name)) for name in names}
    assert parse_options({"url": URL, "batching": "false", **options}).batching == config


def test_what_spark_adds_to_a_stream_is_no_option_of_ours() -> None:
    """The options that Spark adds for itself are ignored."""
    given = {"url": URL, "checkpointLocation": "/tmp/x", "queryName": "q"}
    assert parse_options(given) == SourceOptions(url=URL)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, InvalidSettingError, "'url', the store's URL, is missing"),
        ({"url": ""}, InvalidSettingError, "not a store's URL"),
        ({"url": 3}, InvalidSettingError, "must be a str, not int"),
        ({"url": "memory://x"}, UnsupportedError, "lives in one process"),
        ({"url": "MEMORY://x"}, UnsupportedError, "lives in one process"),
        ({"colour": "red"}, InvalidSettingError, "unknown option 'colour' .*max_in_flight"),
        ({"path": "/topics"}, InvalidSettingError, "in the option 'prefix'"),
        ({"prefix": "topics"}, InvalidPathError, "must start with '/'"),
        ({"prefix": 5}, InvalidPathError, "must be a str, not int"),
        ({"revision": "0"}, InvalidSettingError, "revision must be a whole number of 1 or more"),
        ({"revision": "1.5"}, InvalidSettingError, "revision .* not '1.5'"),
        ({"revision": str(2**63)}, InvalidSettingError, "revision must be a whole number"),
        ({"partitions": True}, InvalidSettingError, "partitions .* not True"),
        ({"partitions": "100001"}, InvalidSettingError, "partitions .* from 1 to 100000"),
        (
            {"rate_limit": "0"},
            InvalidSettingError,
            "rate_limit must be a number of operations per second",
        ),
        (
            {"rate_limit": "nan"},
            InvalidSettingError,
            "rate_limit must be a number of operations per second",
        ),
        (
            {"operation_timeout": "soon"},
            InvalidSettingError,
            "operation_timeout must be a number of seconds",
        ),
        (
            {"operation_timeout": "inf"},
            InvalidSettingError,
            "operation_timeout must be a number of seconds",
        ),
        ({"on_error": "ignore"}, InvalidSettingError, "must be one of fail, collect, skip"),
        ({"batching": "maybe"}, InvalidSettingError, "batching must be true or false"),
        ({"max_ops": "0"}, InvalidSettingError, "max_ops must be an int from 1 to"),
        ({"max_ops": "many"}, InvalidSettingError, "max_ops must be a whole number"),
        ({"max_delay": "long"}, InvalidSettingError, "max_delay must be a number"),
        ({"max_delay": "nan"}, InvalidSettingError, "max_delay must be from 0 to 60 seconds"),
        ({"linger": "fix"}, InvalidSettingError, "linger must be one of"),
        ({"username": ""}, InvalidSettingError, "username must be a text"),
        ({"password_env": "A", "password_file": "b"}, InvalidSettingError, "exclude each other"),
        ({"username": "a", "username_env": "b"}, InvalidSettingError, "exclude each other"),
    ],
)
def test_a_bad_option_is_named(
    options: dict[str, object], kind: type[MetadataStoreError], message: str
) -> None:
    """A wrong option is one error, which names it and what it may be."""
    with pytest.raises(kind, match=message):
        parse_options({"url": URL, **options} if options else {})


@pytest.mark.parametrize(
    "options",
    [
        {"url": "etcd://me:geheim@127.0.0.1:2379"},
        {"url": f"{URL}?password=geheim"},
        {"url": URL, "password": "geheim"},
        {"url": URL, "auth_token": "geheim"},
    ],
)
def test_a_secret_is_refused_and_not_repeated(options: dict[str, str]) -> None:
    """A password given as an option, or in a URL, is refused by an error that does not show it."""
    with pytest.raises(InvalidSettingError) as caught:
        parse_options(options)
    assert "geheim" not in str(caught.value)


def test_options_pickle() -> None:
    """Options go to the executors as they are."""
    options = parse_options({"url": URL, "password_env": "SECRET", "max_ops": "5"})
    assert pickle.loads(pickle.dumps(options)) == options
