"""How caches encode and decode values."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import batchkeeper as bk
from batchkeeper.ops.serdes import (
    Serde,
    bytes_serde,
    dataclass_serde,
    json_serde,
    msgspec_serde,
)


@dataclass
class Endpoint:
    host: str
    port: int = 80


@dataclass(frozen=True)
class Topic:
    owner: Endpoint
    weight: float
    backups: list[Endpoint] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    parts: tuple[int, ...] = ()
    note: str | None = None
    parent: Topic | None = None
    extra: Any = None
    active: bool = True


class Owner(msgspec.Struct):
    host: str
    port: int = 80


def test_bytes() -> None:
    """Bytes stay as they are."""
    value = b"\x00\xff"
    assert bytes_serde.encode(value) is value
    assert bytes_serde.decode(value) is value


def test_json() -> None:
    """JSON is compact and in UTF-8, and each decoding makes new objects."""
    value = {"name": "ü", "parts": [1, 2.5, None, True]}
    encoded = json_serde.encode(value)
    assert encoded == '{"name":"ü","parts":[1,2.5,null,true]}'.encode()
    assert json_serde.decode(encoded) == value
    assert json_serde.decode(encoded) is not json_serde.decode(encoded)
    with pytest.raises(TypeError):
        json_serde.encode(object())
    with pytest.raises(ValueError, match="JSON"):
        json_serde.encode(float("nan"))  # Other readers of JSON refuse what Python would write.


def test_msgspec_types() -> None:
    """A type of msgspec travels as JSON, and is checked when it is decoded."""
    serde = msgspec_serde(Owner)
    assert serde.encode(Owner("a")) == b'{"host":"a","port":80}'
    assert serde.decode(b'{"host":"a","port":1,"later":2}') == Owner("a", 1)
    with pytest.raises(msgspec.ValidationError):
        serde.decode(b'{"host":1}')


def test_msgspec_is_needed_only_by_those_who_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the call fails with an error that names it."""
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(bk.UnsupportedError, match="msgspec"):
        msgspec_serde(Owner)


def test_dataclasses() -> None:
    """Nested dataclasses, lists, tuples, dictionaries and optional fields come back equal."""
    serde = dataclass_serde(Topic)
    small = Topic(Endpoint("a"), 1.5)
    large = Topic(
        owner=Endpoint("a", 1),
        weight=2.0,
        backups=[Endpoint("b"), Endpoint("c", 3)],
        labels={"k": "v"},
        parts=(1, 2),
        note="ü",
        parent=small,
        extra={"any": [1]},
        active=False,
    )
    for topic in (small, large):
        assert serde.decode(serde.encode(topic)) == topic
    assert json.loads(serde.encode(small))["owner"] == {"host": "a", "port": 80}


def test_dataclasses_of_other_versions() -> None:
    """Unknown fields are ignored, a missing field takes its default, and an int is a float."""
    serde = dataclass_serde(Topic)
    assert serde.decode(b'{"owner":{"host":"a","new":1},"weight":2,"new":{}}') == Topic(
        Endpoint("a"), 2.0
    )


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"nothing",
        b"[]",
        b"{}",
        b'{"owner":{"host":"a"}}',
        b'{"owner":null,"weight":1}',
        b'{"owner":{"host":1},"weight":1}',
        b'{"owner":{"host":"a","port":true},"weight":1}',
        b'{"owner":{"host":"a","port":1.5},"weight":1}',
        b'{"owner":{"host":"a"},"weight":"1"}',
        b'{"owner":{"host":"a"},"weight":1,"backups":{}}',
        b'{"owner":{"host":"a"},"weight":1,"labels":{"a":1}}',
        b'{"owner":{"host":"a"},"weight":1,"active":null}',
    ],
)
def test_values_that_are_no_such_dataclass(broken: bytes) -> None:
    """A value of another shape is refused, and never becomes a half-made object."""
    with pytest.raises((TypeError, ValueError)):
        dataclass_serde(Topic).decode(broken)


def test_only_its_own_type_is_encoded() -> None:
    """A value of another class is refused by the writer, and not found by a reader."""
    serde: Serde[Any] = dataclass_serde(Endpoint)
    for wrong in ({"host": "a"}, Topic(Endpoint("a"), 1.0), None, Endpoint):
        with pytest.raises(TypeError, match="Endpoint"):
            serde.encode(wrong)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"weight": "heavy"}, "Topic.weight: must be float, not str"),
        ({"owner": Endpoint("a", True)}, "Topic.owner: Endpoint.port: must be int, not bool"),
        ({"backups": [{"port": 1}]}, "Topic.backups: .*'host'"),
        ({"labels": {"a": 1}}, "Topic.labels: must be str, not int"),
        ({"parts": 3}, "Topic.parts: must be list, not int"),
        ({"active": None}, "Topic.active: must be bool, not NoneType"),
    ],
)
def test_a_field_of_another_type_is_not_encoded(fields: dict[str, Any], told: str) -> None:
    """The writer learns which field nobody could decode; readers never see it."""
    usual: dict[str, Any] = {"owner": Endpoint("a"), "weight": 1.0}
    with pytest.raises(TypeError, match=told):
        dataclass_serde(Topic).encode(Topic(**usual | fields))


def test_types_without_json() -> None:
    """A type that is not a dataclass, or has a field without JSON, is refused before any value
    is."""

    @dataclass
    class Odd:
        odd: Any

    not_dataclasses: list[Any] = [int, Endpoint("a"), "Endpoint", Owner]
    for wrong in not_dataclasses:
        with pytest.raises(bk.InvalidSettingError, match="needs a dataclass"):
            dataclass_serde(wrong)
    odd: Any
    for odd in (bytes, set[str], dict[int, str], int | str, tuple[int, int], list, complex):
        Odd.__annotations__["odd"] = odd
        with pytest.raises(bk.InvalidSettingError, match="no JSON"):
            dataclass_serde(Odd)
