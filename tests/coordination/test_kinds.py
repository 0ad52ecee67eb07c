"""Constructors refuse objects of other kinds, such as the stores of the other face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import coordination as face

URL = "etcd://me:secret@127.0.0.1:1"


def makers(prefix: str) -> dict[str, Callable[[Any], object]]:
    """Return what makes an object of each class of one face from a store."""

    def of(name: str, *args: Any) -> Callable[[Any], object]:
        return lambda store: getattr(face, prefix + name)(store, "/p", *args)

    fence = face.async_fenced if prefix else face.fenced
    lock: Any = type("Held", (), {"check": lambda _: bk.Check("/p", 0)})()
    simple = (
        "Lock",
        "Election",
        "Group",
        "WorkQueue",
        "Counter",
        "MetadataCache",
        "PersistentEphemeral",
        "Barrier",
    )
    return {
        **{name: of(name) for name in simple},
        "Semaphore": of("Semaphore", 1),
        "DoubleBarrier": of("DoubleBarrier", 1),
        "fenced": lambda store: fence(store, lock),
    }


def test_objects_that_are_no_store_of_this_face() -> None:
    """Each is refused at once, without its text. So are other arguments of another kind."""

    async def main() -> None:
        async with bk.open_async_store("memory://kinds") as tasks:
            with bk.open_store("memory://kinds") as threads:
                for prefix, store, other in (("", threads, tasks), ("Async", tasks, threads)):
                    for name, make in makers(prefix).items():
                        make(store)
                        for wrong in (
                            other,
                            None,
                            URL,
                            bk.open_store,
                            type(store),
                            bk.open_async_store(URL[:18]),
                        ):
                            with pytest.raises(bk.InvalidSettingError, match="Async") as refused:
                                make(wrong)
                            assert "secret" not in str(refused.value), name

    asyncio.run(main())
    with bk.open_store("memory://kinds") as store:
        silent = {"__init__": lambda _: None, "__repr__": lambda _: "a job"}
        job = type("Claimed", (face.AsyncJob,), silent)()
        for lock in (None, "/lock", store, job):
            with pytest.raises(bk.InvalidSettingError, match="lock"):
                face.fenced(store, lock)  # type: ignore[arg-type]
        with pytest.raises(bk.InvalidSettingError, match="serde"):
            face.MetadataCache(store, "/p", None)  # type: ignore[arg-type]
