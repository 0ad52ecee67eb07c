"""The values of managers, and how they are stored."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError
from batchkeeper.hubs.managers import (
    HubInfo,
    HubLoad,
    LedgerRange,
    LedgerRanges,
    MessageSeqId,
    SubscriptionPreferences,
    SubscriptionState,
)
from batchkeeper.hubs.tables import DamagedRecordError, Version

numbers = st.integers(0, 2**64 - 1)
texts = st.text(max_size=5)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | finite,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
unknown = st.dictionaries(
    st.text(min_size=1, max_size=5).map("new-{}".format), json_values, max_size=2
)
ids = st.builds(MessageSeqId, numbers, st.dictionaries(texts, numbers, max_size=2), unknown=unknown)
amounts = st.floats(0, 2**63) | numbers
ranges = st.builds(LedgerRange, numbers, st.none() | ids, st.none() | ids, unknown=unknown)
values = st.one_of(
    st.builds(HubInfo, st.text(min_size=1, max_size=9), numbers, unknown=unknown),
    st.builds(HubLoad, numbers, amounts, numbers, amounts, unknown=unknown),
    st.builds(LedgerRanges, st.lists(ranges, max_size=2).map(tuple), unknown=unknown),
    st.builds(
        SubscriptionPreferences,
        st.dictionaries(texts, st.binary(max_size=5), max_size=2),
        st.none() | numbers,
        st.none() | texts,
        st.none() | numbers,
        unknown=unknown,
    ),
    st.builds(SubscriptionState, ids, unknown=unknown),
)


@given(values)
def test_a_value_survives(value: Any) -> None:
    """All of its members come back, those that this program does not know included."""
    assert type(value).decoded(value.encoded(), "here") == value
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value


def test_what_is_stored() -> None:
    """The format is a promise to programs of other versions, and of others."""
    assert HubInfo("hub-1:4080", 7).encoded() == b'{"v":1,"address":"hub-1:4080","incarnation":7}'
    assert LedgerRanges((LedgerRange(5, MessageSeqId(9)), LedgerRange(6))).encoded() == (
        b'{"v":1,"ranges":[{"ledger_id":5,"end":{"local":9}},{"ledger_id":6}]}'
    )
    assert SubscriptionState(MessageSeqId(3, {"eu": 2})).encoded() == (
        b'{"v":1,"mark":{"local":3,"remote":{"eu":2}}}'
    )
    preferences = SubscriptionPreferences({"a": b"x", "b": b"\xff"}, message_filter="f")
    assert preferences.encoded() == (
        b'{"v":1,"options":{"a":"x","b":["base64","/w=="]},"message_filter":"f"}'
    )


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (HubInfo, b""),
        (HubInfo, b"[]"),
        (HubInfo, b'{"address":"a","incarnation":1}'),
        (HubInfo, b'{"v":1}'),
        (HubInfo, b'{"v":1,"address":"a","incarnation":"1"}'),
        (HubInfo, b'{"v":1,"address":"a","incarnation":true}'),
        (HubInfo, b'{"v":1,"address":"a","incarnation":null}'),
        (HubInfo, b'\xef\xbb\xbf{"v":1,"address":"a","incarnation":1}'),
        (HubLoad, b'{"v":1,"message_rate":-1}'),
        (HubLoad, b'{"v":1,"message_rate":Infinity}'),
        (LedgerRanges, b'{"v":1,"ranges":{}}'),
        (LedgerRanges, b'{"v":1,"ranges":"12"}'),
        (LedgerRanges, b'{"v":1,"ranges":[5]}'),
        (SubscriptionState, b'{"v":1,"mark":5}'),
        (SubscriptionState, b'{"v":1,"mark":{"local":18446744073709551616}}'),
        (SubscriptionPreferences, b'{"v":1,"options":{"a":["base64","!"]}}'),
        (SubscriptionPreferences, b'{"v":1,"message_filter":"\\ud800"}'),
        (SubscriptionState, b'{"v":1,"mark":' + b"[" * 100_000),
    ],
)
def test_damaged_values_are_named(kind: Any, raw: bytes) -> None:
    """The error says where, and what kind of value should be there."""
    with pytest.raises(bk.ValueDecodeError, match=f"here is no {kind.__name__}"):
        kind.decoded(raw, "here")


def test_a_later_format_is_named() -> None:
    """Its reader knows then that the program is too old."""
    with pytest.raises(bk.ValueDecodeError, match="format 2; this program knows format 1"):
        HubInfo.decoded(b'{"v":2,"address":"a"}', "here")


def test_null_is_as_if_left_out() -> None:
    """Programs in other languages may write it."""
    raw = b'{"v":1,"ledger_id":5,"end":null,"start":null}'
    assert LedgerRange.decoded(raw, "here") == LedgerRange(5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HubInfo("", 1),
        lambda: HubInfo(b"hub", 1),  # type: ignore[arg-type]
        lambda: HubInfo("hub", -1),
        lambda: HubInfo("hub", True),
        lambda: HubInfo("hub", 10**5000),
        lambda: HubInfo("\ud800", 1),
        lambda: HubLoad(message_rate=float("nan")),
        lambda: HubLoad(capacity=10**5000),
        lambda: HubLoad(topics=1.5),  # type: ignore[arg-type]
        lambda: MessageSeqId(1, {"eu": -1}),
        lambda: MessageSeqId(2**64),
        lambda: LedgerRanges([LedgerRange(1)]),  # type: ignore[arg-type]
        lambda: LedgerRange(1, 5),  # type: ignore[arg-type]
        lambda: SubscriptionPreferences({"a": "text"}),  # type: ignore[dict-item]
        lambda: SubscriptionState(5),  # type: ignore[arg-type]
        lambda: HubInfo("hub", 1, unknown={"v": 2}),
        lambda: HubInfo("hub", 1, unknown={"address": "other"}),
        lambda: HubInfo("hub", 1, unknown={"new": object()}),
        lambda: HubInfo("hub", 1, unknown={5: 1}),  # type: ignore[dict-item]
    ],
)
def test_bad_members_are_refused(make: Any) -> None:
    """They are named before anything is written."""
    with pytest.raises(IllegalOperationError, match=r"of a .* must be"):
        make()


def test_a_damaged_record_can_be_copied() -> None:
    """As all errors can."""
    error = DamagedRecordError("m", path="/a", at=Version(1, 2))
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(twin), twin.path, twin.at) == (str(error), "/a", Version(1, 2))
