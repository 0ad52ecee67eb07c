"""Access rules: which one decides, that checks are free, and damaged ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AccessDeniedError,
    AccessRules,
    Action,
    AsyncAccessRules,
    IllegalOperationError,
    Rule,
)
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE, result, until

R = "/hedwig/eu"


def denied(access: AccessRules, action: Action, who: str, topic: str | bytes) -> bool:
    try:
        access.check(action, who, topic)
    except AccessDeniedError:
        return True
    return False


def test_without_rules_everything_is_allowed(store: bk.MetadataStore) -> None:
    """A region is open until somebody sets a rule, and topics that no rule covers stay open."""
    with AccessRules(store, R) as access:
        for action in ("create", "subscribe", "publish"):
            access.check(action, "alice", "orders")  # type: ignore[arg-type]
        assert access.rules() == {}
        access.set_rule("orders", Rule())
        assert denied(access, "publish", "alice", "orders")
        access.check("publish", "alice", "order")
        access.remove_rule("orders")
        access.check("publish", "alice", "orders")
        with pytest.raises(bk.NotFoundError, match="orders"):
            access.remove_rule("orders")


def test_a_rule_lists_principals_per_action(store: bk.MetadataStore) -> None:
    """Each action has its own list; ``"*"`` is everyone; clients not in the list are denied."""
    with AccessRules(store, R) as access:
        access.set_rule("a", Rule(create=("alice", "bob"), subscribe=("*",)))
        found = {
            (action, who): denied(access, action, who, "abc")
            for action in ("create", "subscribe", "publish")
            for who in ("alice", "carol", "*")
        }
        assert [key for key, no in found.items() if not no] == [
            ("create", "alice"),
            ("subscribe", "alice"),
            ("subscribe", "carol"),
            ("subscribe", "*"),
        ]
        with pytest.raises(AccessDeniedError, match=r"'carol' must not publish to .*'abc'.*'a'"):
            access.check("publish", "carol", "abc")


def test_the_longest_prefix_decides_alone(store: bk.MetadataStore) -> None:
    """It neither adds to shorter ones nor falls back to them; the empty prefix covers the rest."""
    everybody, nobody = Rule(("*",), ("*",), ("*",)), Rule()
    with AccessRules(store, R) as access:
        access.set_rule("", nobody)
        access.set_rule("a", everybody)
        access.set_rule("a/b", nobody)
        access.set_rule("a/b/c", everybody)
        open_topics = {"a", "a/", "aa", "a/c", "a/b/c", "a/b/cc", "a.b"}
        closed = {"b", "A", "a/b", "a/bb", "a/b/", "/a", ".default", "d"}
        for topic in open_topics | closed:
            assert denied(access, "publish", "alice", topic) == (topic in closed), topic
        access.remove_rule("a/b")
        access.check("publish", "alice", "a/bb")


def test_prefixes_are_any_names(store: bk.MetadataStore) -> None:
    """No two prefixes share a rule, and a text and its bytes are the same prefix."""
    prefixes = ["", ".default", ".", "/", "a/b", "a.1b", "\x00", "é", "!", "~", "日本", " "]
    with AccessRules(store, R) as access:
        for number, prefix in enumerate(prefixes):
            access.set_rule(prefix, Rule(publish=(f"p{number}",)))
        assert access.rules() == {
            prefix: Rule(publish=(f"p{number}",)) for number, prefix in enumerate(prefixes)
        }
        for number, prefix in enumerate(prefixes[1:], 1):
            access.check("publish", f"p{number}", prefix)
            access.check("publish", f"p{number}", prefix.encode() + b"x")
        access.set_rule(b"\xc3", Rule(publish=("half",)))  # the first byte of an é
        access.check("publish", f"p{prefixes.index('é')}", "é")
        access.check("publish", "half", "è")
        access.check("publish", "half", b"\xc3\xff")


def test_other_clients_changes_arrive(store: bk.MetadataStore) -> None:
    """A rule that somebody sets, changes or removes is in force soon."""
    with AccessRules(store, R) as access, AccessRules(store, R) as other:
        access.check("create", "alice", "t")
        other.set_rule("t", Rule())
        until(lambda: denied(access, "create", "alice", "t"))
        other.set_rule("t", Rule(create=("alice",)))
        until(lambda: not denied(access, "create", "alice", "t"))
        other.set_rule("", Rule())
        other.remove_rule("t")
        until(lambda: denied(access, "create", "alice", "t"))


def test_own_changes_are_in_force_at_once(store: bk.MetadataStore) -> None:
    """After ``set_rule`` and ``remove_rule``, the next check of the same object knows them."""
    with AccessRules(store, R) as access:
        access.rules()
        for number in range(20):
            access.set_rule("t", Rule(create=(f"p{number}",)))
            access.check("create", f"p{number}", "t")
            assert denied(access, "create", f"p{number - 1}", "t")
            access.remove_rule("t")
            access.check("create", "anybody", "t")


def test_a_damaged_rule_denies(store: bk.MetadataStore) -> None:
    """It denies everybody, in favour of no shorter prefix, and the error names its place."""
    with AccessRules(store, R) as access:
        access.set_rule("", Rule(("*",), ("*",), ("*",)))
        for raw in (
            b"",
            b"\xff",
            b"[]",
            b'{"v":2,"create":["*"]}',
            b'{"v":1,"create":"*"}',
            b'{"v":1,"create":[1]}',
            b'{"v":1,"create":[""]}',
            b'{"v":1,"create":{"*":1}}',
        ):
            result(store.put(f"{R}/access/a", raw))
            until(lambda: denied(access, "create", "alice", "ab"))
            with pytest.raises(AccessDeniedError, match=f"{R}/access/a is no Rule") as caught:
                access.check("create", "alice", "ab")
            assert caught.value.path == f"{R}/access/a"
            access.check("create", "alice", "b")
            with pytest.raises(bk.ValueDecodeError, match=f"{R}/access/a"):
                access.rules()
            access.set_rule("a", Rule(("*",)))
            access.check("create", "alice", "ab")


def test_foreign_values_are_no_rules(store: bk.MetadataStore) -> None:
    """A value below an invalid prefix, or at the path itself, is neither a rule nor an error."""
    for path in ("/access", "/access/!zz", "/access/a/b", "/access/.x", "/access2/a"):
        result(store.put(R + path, b"x"))
    with AccessRules(store, R) as access:
        assert access.rules() == {}
        access.check("create", "alice", "a/b")


def test_unknown_members_stay(store: bk.MetadataStore) -> None:
    """A rule that a newer program has written keeps what this one does not know."""
    raw = b'{"v":1,"until":"2030","create":["alice"],"subscribe":[],"publish":[]}'
    result(store.put(f"{R}/access/a", raw))
    with AccessRules(store, R) as access:
        rule = access.rules()["a"]
        access.set_rule("a", replace(rule, create=("bob",)))
    found = result(store.get(f"{R}/access/a"))
    assert found is not None
    assert found.value == raw.replace(b"alice", b"bob")


def test_arguments(store: bk.MetadataStore) -> None:
    """An invalid rule, action, client or topic is refused."""
    with AccessRules(store, R) as access:
        for rule in (("*",), None, {}):
            with pytest.raises(IllegalOperationError):
                access.set_rule("a", rule)  # type: ignore[arg-type]
        for principals in ("alice", ["alice"], ("",), (1,)):
            with pytest.raises(IllegalOperationError):
                Rule(create=principals)  # type: ignore[arg-type]
        with pytest.raises(bk.InvalidSettingError):
            access.check("delete", "alice", "a")  # type: ignore[arg-type]
        for who, topic in (("", "a"), (None, "a"), ("alice", ""), ("alice", b""), ("alice", 1)):
            with pytest.raises(IllegalOperationError):
                access.check("create", who, topic)  # type: ignore[arg-type]


def test_a_check_makes_no_request(fresh_url: Callable[[str], str]) -> None:
    """Once the rules are there, checks need no store, also while no server answers."""
    faults = FaultInjector()
    with (
        bk.open_store(fresh_url("memory"), wrap=faults, operation_timeout=1.0) as store,
        AccessRules(store, R) as access,
    ):
        access.set_rule("a", Rule(create=("alice",)))
        access.check("create", "alice", "a")
        before = len(faults.calls)
        for number in range(1000):
            access.check("create", "alice", f"a{number}")
        assert not [call for call in faults.calls[before:] if call.kinds or call.method == "scan"]


def test_no_rules_means_no_answer(fresh_url: Callable[[str], str]) -> None:
    """While the rules were never read, a check is an error: nobody is allowed by default."""
    faults = FaultInjector()
    with (
        bk.open_store(fresh_url("memory"), wrap=faults, operation_timeout=PATIENCE) as store,
        AccessRules(store, R) as access,
    ):
        faults.delay("scan")
        with pytest.raises(bk.OperationTimeoutError, match="access"):
            access.check("create", "alice", "a", timeout=0.1)


def test_after_the_end(store: bk.MetadataStore) -> None:
    """After a close of the rules or of the store, each method raises StoreClosedError."""
    access, later = AccessRules(store, R), AccessRules(store, R)
    later.check("create", "alice", "a")
    access.check("create", "alice", "a")
    access.close()
    access.close()
    until(lambda: store.metrics().watches == 1)
    store_closed = [access]
    for _ in range(2):
        for each in store_closed:
            for call in (
                lambda each=each: each.check("create", "alice", "a"),
                lambda each=each: each.rules(),
                lambda each=each: each.set_rule("a", Rule()),
                lambda each=each: each.remove_rule("a"),
            ):
                with pytest.raises(bk.StoreClosedError):
                    call()
        store.close()
        store_closed = [later]
    assert "access" in repr(access)


def test_rules_for_tasks(store_url: str) -> None:
    """Set, check, list and remove, with the same results as for threads."""

    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(store_url) as store,
            AsyncAccessRules(store, R) as access,
        ):
            await access.check("create", "alice", "a")
            await access.set_rule("a", Rule(create=("bob",)))
            with pytest.raises(AccessDeniedError):
                await access.check("create", "alice", "a")
            await asyncio.gather(*(access.check("create", "bob", "a") for _ in range(10)))
            assert await access.rules() == {"a": Rule(create=("bob",))}
            await access.remove_rule("a")
            await access.check("create", "alice", "a")

    asyncio.run(main())
