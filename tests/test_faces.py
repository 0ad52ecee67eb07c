"""The faces for threads and tasks have the same names, arguments and defaults."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import coordination, hubs

TYPING = Path(__file__).parent / "typing"
API = TYPING / "api.py"


def public(cls: type) -> set[str]:
    """Return the names that a class has for its users."""
    return {name for name in dir(cls) if not name.startswith("_")}


def arguments(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return what a function takes, without the types: those may be wider for tasks."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def test_both_are_opened_alike() -> None:
    """Both functions take the same arguments, with the same types."""
    threads, tasks = inspect.signature(bk.open_store), inspect.signature(bk.open_async_store)
    assert list(threads.parameters.values()) == list(tasks.parameters.values())


FACES = {"MetadataStore": (bk.MetadataStore, bk.AsyncMetadataStore)} | {
    name: (getattr(part, name), getattr(part, f"Async{name}"))
    for part in (coordination, hubs)
    for name in part.__all__
    if f"Async{name}" in part.__all__ and isinstance(getattr(part, name), type)
}


def test_both_have_the_same_names() -> None:
    """No method or property is for threads only, or for tasks only."""
    assert {name: public(threads) for name, (threads, _) in FACES.items()} == {
        name: public(tasks) for name, (_, tasks) in FACES.items()
    }


def test_both_are_made_alike() -> None:
    """Both classes take the same arguments. A store is opened, not made."""
    made = {name: faces for name, faces in FACES.items() if name != "MetadataStore"}
    assert {name: arguments(threads) for name, (threads, _) in made.items()} == {
        name: arguments(tasks) for name, (_, tasks) in made.items()
    }


def test_each_method_is_called_alike() -> None:
    """A method takes the same arguments in both faces, and both are documented."""
    for face in FACES.values():
        for method in public(face[0]):
            threads, tasks = (getattr(of, method) for of in face)
            assert threads.__doc__, threads
            assert tasks.__doc__, tasks
            if callable(threads):  # and no property
                assert arguments(threads) == arguments(tasks), threads


def test_flags_of_a_put_are_named() -> None:
    """No put takes ``ephemeral`` or ``sequential`` by position: a call would not say what it is."""
    faces = (bk.MetadataStore, bk.AsyncMetadataStore)
    fenced = (coordination.FencedStore, coordination.AsyncFencedStore)
    for put in (*(face.put for face in (*faces, *fenced)), bk.Put):
        kinds = {name: kind for name, kind, _ in arguments(put)}
        named = inspect.Parameter.KEYWORD_ONLY
        assert kinds["ephemeral"] == kinds["sequential"] == kinds["expected_revision"] == named
        assert kinds["expected_version"] == inspect.Parameter.POSITIONAL_OR_KEYWORD


def attributes(tree: ast.AST, of: str) -> set[str]:
    """Return the attributes of a name that a piece of code uses."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == of}


def test_the_types_of_all_public_names_are_checked() -> None:
    """The users of the public face that mypy checks use every name of it, and no other."""
    users = [ast.parse(user.read_text("utf-8")) for user in TYPING.glob("*.py")]
    assert set().union(*(attributes(user, "bk") for user in users)) == set(bk.__all__)


@pytest.mark.parametrize("face", [bk.MetadataStore, bk.AsyncMetadataStore])
def test_the_types_of_all_methods_are_checked(face: type) -> None:
    """That user calls every method of both stores."""
    called: set[str] = set()
    for function in ast.parse(API.read_text("utf-8")).body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            takes = [ast.unparse(arg.annotation or arg) for arg in function.args.args]
            if f"bk.{face.__name__}" in takes:
                called |= attributes(function, "store")
    assert called == public(face)


def apply_with_threads(ops: Callable[[Any], Iterator[bk.Operation]], config: Any) -> None:
    with bk.open_store("memory://apply", config) as store:
        store.apply(ops(store))


def apply_with_tasks(ops: Callable[[Any], Iterator[bk.Operation]], config: Any) -> None:
    async def main() -> None:
        async with bk.open_async_store("memory://apply", config) as store:
            await store.apply(ops(store))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("apply", "face"),
    [(apply_with_threads, bk.MetadataStore), (apply_with_tasks, bk.AsyncMetadataStore)],
)
def test_apply_reads_as_many_operations_at_a_time_as_it_says(apply: Any, face: type) -> None:
    """Before any of them is submitted, ``apply`` has read the number that its docstring names."""
    (said,) = re.findall(r"(\d+) +operations at a time", " ".join(face.apply.__doc__.split()))
    chunk = int(said)
    queued: list[int] = []

    def ops(store: Any) -> Iterator[bk.Operation]:
        for n in range(2 * chunk):
            queued.append(store.metrics().reads.queued)
            yield bk.Exists(f"/{n}")

    # Nothing leaves the queue before the last operation is in it.
    apply(ops, bk.BatchingConfig(linger="fixed", max_delay=60, max_ops=2 * chunk))
    assert queued == [0] * chunk + [chunk] * chunk
