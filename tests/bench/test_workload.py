"""The work that the harness gives to a store."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.bench.workload import (
    STEPS,
    Chain,
    Expected,
    HubChain,
    PutChain,
    Workload,
    WrongAnswerError,
    check,
    hub_chains,
    make_script,
    put_chains,
)


class Recorder:
    """A store that records operations, and passes them on to another store."""

    def __init__(self, store: bk.MetadataStore) -> None:
        self._store = store
        self.calls: list[tuple[Any, ...]] = []

    def put(self, *arguments: Any) -> Future[bk.Stat]:
        self.calls.append(("put", *arguments))
        return self._store.put(*arguments)

    def get(self, path: str) -> Future[bk.GetResult | None]:
        self.calls.append(("get", path))
        return self._store.get(path)

    def delete(self, path: str, expected_version: int | None = None) -> Future[None]:
        self.calls.append(("delete", path, expected_version))
        return self._store.delete(path, expected_version)


def work(chain: Chain, store: Any, steps: int) -> None:
    for _ in range(steps):
        future = chain.submit(store)
        future.exception(10)
        chain.ended(future)


def calls_of(store: bk.MetadataStore, workload: Workload, root: str) -> list[tuple[Any, ...]]:
    recorder = Recorder(store)
    for chain in hub_chains(workload, root):
        work(chain, recorder, 50)
    return [tuple(str(part).replace(root, "") for part in call) for call in recorder.calls]


SMALL = Workload(hubs=2, outstanding=3, topics=12)


def test_the_same_seed_gives_the_same_operations(store: bk.MetadataStore) -> None:
    """Two runs with the same seed submit the same operations; another seed gives others."""
    first = calls_of(store, SMALL, "/a")
    assert first == calls_of(store, SMALL, "/b")
    other = Workload(hubs=2, outstanding=3, topics=12, seed=2)
    assert first != calls_of(store, other, "/c")


def test_steps_are_as_frequent_as_their_weights() -> None:
    """A script holds each step in proportion to its weight, and none without one."""
    script = Counter(make_script(Workload(mix={"advance": 3, "mark": 1})))
    assert set(script) == {STEPS.index("advance"), STEPS.index("mark")}
    assert script[STEPS.index("advance")] == pytest.approx(script.total() * 0.75, rel=0.02)


def test_a_chain_claims_before_anything_else_and_again_after_a_drop(
    store: bk.MetadataStore,
) -> None:
    """Ownership is taken with a put if absent, and dropped with the version that is held."""
    recorder = Recorder(store)
    (chain,) = hub_chains(
        Workload(hubs=1, outstanding=1, topics=1, mix={"advance": 1, "drop": 1}), "/r"
    )
    work(chain, recorder, 40)
    owner = [call for call in recorder.calls if "/owners/" in call[1]]
    assert recorder.calls[0] == owner[0]
    for number, call in enumerate(owner):
        if number % 2 == 0:
            assert (call[0], call[3]) == ("put", bk.ABSENT)
        else:
            assert (call[0], call[2]) == ("delete", 0)
    assert len(owner) > 4


def test_a_mark_advances_from_the_version_returned_before(store: bk.MetadataStore) -> None:
    """Each put of a mark expects the version from the previous put, across all claims."""
    recorder = Recorder(store)
    (chain,) = hub_chains(
        Workload(hubs=1, outstanding=1, topics=1, mix={"advance": 1, "drop": 1}), "/r"
    )
    work(chain, recorder, 40)
    expected = [call[3] for call in recorder.calls if "/marks/" in call[1]]
    assert expected == list(range(-1, len(expected) - 1))
    assert len(expected) > 4


def test_chains_know_what_the_store_must_hold(store: bk.MetadataStore) -> None:
    """A chain expects the contents that its paths have at the end, deleted owners included."""
    chains = [*hub_chains(SMALL, "/hub"), *put_chains(SMALL, "/puts")]
    for chain in chains:
        work(chain, store, 100)
    expected = [path for chain in chains for path in chain.expected()]
    assert len(expected) == 2 * SMALL.topics + 100 * SMALL.chains
    assert {item.value is None for item in expected} == {True, False}
    for item in expected:
        check(item, store.get(item.path).result())


def test_chains_share_no_path() -> None:
    """No two chains share a topic, so each knows the contents of its topics."""
    paths = [item.path for chain in hub_chains(SMALL, "/r") for item in chain.expected()]
    assert len(paths) == len(set(paths)) == 2 * SMALL.topics


def test_a_rival_loses(store: bk.MetadataStore) -> None:
    """A second claim must fail, and changes nothing for the owner."""
    (chain,) = hub_chains(Workload(hubs=1, outstanding=1, topics=1, mix={"rival": 1}), "/r")
    work(chain, store, 20)
    assert store.metrics().errors == {"BadVersionError": 19}
    owner, _mark = chain.expected()
    check(owner, store.get(owner.path).result())


def test_a_rival_that_wins_is_found_out(store: bk.MetadataStore) -> None:
    """If the owner's value vanished, the rival's claim succeeds, and that is a wrong answer."""
    (chain,) = hub_chains(Workload(hubs=1, outstanding=1, topics=1, mix={"rival": 1}), "/r")
    work(chain, store, 1)
    owner, _mark = chain.expected()
    store.delete(owner.path).result()
    with pytest.raises(WrongAnswerError, match=owner.path):
        work(chain, store, 1)


@pytest.mark.parametrize("step", ["owner", "mark"])
def test_a_wrong_read_is_found_out_while_the_work_goes_on(
    store: bk.MetadataStore, step: str
) -> None:
    """Reads are compared as they arrive, not only at the end."""
    (chain,) = hub_chains(Workload(hubs=1, outstanding=1, topics=1, mix={step: 1}), "/r")
    work(chain, store, 2)
    owner, mark = chain.expected()
    path = owner.path if step == "owner" else mark.path
    store.put(path, b"somebody else's").result()
    with pytest.raises(WrongAnswerError, match=path):
        work(chain, store, 1)


def test_a_put_of_a_path_that_was_there_is_found_out(store: bk.MetadataStore) -> None:
    """A plain put expects to create its path: another version means that the keys are not fresh."""
    chain = PutChain(SMALL, "/r", 0)
    store.put("/r/0", b"old").result()
    with pytest.raises(WrongAnswerError, match="version 1 instead of 0: /r/0"):
        work(chain, store, 1)


def test_what_ended_with_an_error_is_not_expected(store: bk.MetadataStore) -> None:
    """An operation's own error is passed on, and leaves the expectation as it was."""
    (chain,) = hub_chains(Workload(hubs=1, outstanding=1, topics=1, mix={"advance": 1}), "/r")
    work(chain, store, 3)
    before = list(chain.expected())
    store.put(before[1].path, b"of another").result()
    with pytest.raises(bk.BadVersionError):
        work(chain, store, 1)
    assert list(chain.expected()) == before


FOUND = bk.GetResult(b"v", bk.Stat("/p", 3, 9))


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        (Expected("/p", b"v", 3), None, "acknowledged at version 3, but missing: /p"),
        (Expected("/p", b"w", 3), FOUND, "acknowledged b'w', but holds b'v': /p"),
        (Expected("/p", b"v", 2), FOUND, "version 3 instead of 2: /p"),
        (Expected("/p", None, 0), FOUND, "deleted, but still at version 3: /p"),
    ],
)
def test_every_difference_is_named_with_its_path(
    expected: Expected, found: bk.GetResult | None, message: str
) -> None:
    """A missing value, another value, another version and a value that should be gone differ."""
    with pytest.raises(WrongAnswerError) as caught:
        check(expected, found)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hubs": 0}, "hubs must be an int from 1 to 10000, not 0"),
        ({"value_bytes": 1 << 21}, "value_bytes must be an int from 1 to 1048576, not 2097152"),
        ({"topics": 10}, "topics must be at least hubs times outstanding (2048)"),
        ({"mix": {"dance": 1}}, "the mix has no step 'dance'"),
        ({"mix": {"mark": -1}}, "a weight in the mix must be 0 or more: mark=-1"),
        ({"mix": {"mark": 0}}, "at least one step with a weight above 0"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(settings: Any, message: str) -> None:
    """The error names the value and the rule."""
    with pytest.raises(bk.InvalidSettingError) as caught:
        Workload(**settings)
    assert message in str(caught.value)


def test_values_have_the_size_asked_for(store: bk.MetadataStore) -> None:
    """Every value has exactly the bytes of the setting, and no two of a chain are equal."""
    recorder = Recorder(store)
    workload = Workload(hubs=1, outstanding=1, topics=2, value_bytes=33)
    work(HubChain(workload, "/r", 0, make_script(workload)), recorder, 60)
    values = [call[2] for call in recorder.calls if call[0] == "put"]
    assert {len(value) for value in values} == {33}
    assert len(set(values)) == len(values)
