"""Constructors of hubs refuse objects of other kinds, such as those of the other face."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import hubs as face


def makers(prefix: str, managers: Any, directory: Path) -> list[Callable[[Any], Any]]:
    """Return what makes an object of each class of one face from a store, or from another one."""

    def of(name: str) -> Any:
        return getattr(face, prefix + name)

    function = "async_" if prefix else ""
    tables, hosts = of("MetaStore"), of("Hosts")
    return [
        lambda store: of("LedgerTable")(tables(store, "/m")),
        lambda store: of("AccessRules")(store, "/r"),
        lambda store: of("EphemeralOwnership")(store, "/r"),
        lambda store: of("ComparedOwnership")(store, "/r", managers.ownership, hosts(store, "/r")),
        lambda store: of("TopicHub")(store, "/r", "hub-1:1", of("FileLogs")(directory)),
        lambda store: getattr(face, function + "open_managers")(store, "/r"),
        lambda store: getattr(face, function + "format_metadata")(store, "/r"),
        lambda store: getattr(face, function + "open_ownership")(store, managers, None),
    ]


async def made(make: Callable[[Any], Any], *args: Any) -> None:
    found = make(*args)
    if inspect.isawaitable(found):
        await found


def test_objects_of_another_kind(tmp_path: Path) -> None:
    """Each is refused by the call itself, before anything is read or written."""

    async def main() -> None:
        async with bk.open_async_store("memory://kinds") as tasks:
            with bk.open_store("memory://kinds") as threads:
                managers = face.open_managers(threads, "/r")
                async_managers = await face.async_open_managers(tasks, "/r")
                for store, other, all_makers in (
                    (threads, tasks, makers("", managers, tmp_path)),
                    (tasks, threads, makers("Async", async_managers, tmp_path)),
                ):
                    for make in all_makers:
                        for wrong in (other, None, "memory://kinds"):
                            with pytest.raises(bk.InvalidSettingError, match="Async"):
                                await made(make, wrong)
                    for make in all_makers[:5]:
                        await made(make, store)
                wrong_ones: list[Callable[[], object]] = [
                    lambda: face.LedgerTable(threads),  # type: ignore[arg-type]
                    lambda: face.ConsumeMarks(async_managers.subscriptions),  # type: ignore[arg-type]
                    lambda: face.open_ownership(threads, async_managers, None),  # type: ignore[arg-type]
                    lambda: face.open_ownership(threads, managers, None),  # type: ignore[arg-type]
                    lambda: face.ComparedOwnership(threads, "/r", None, None),  # type: ignore[arg-type]
                    lambda: face.TopicHub(threads, "/r", "h:1", face.AsyncFileLogs(tmp_path)),  # type: ignore[arg-type]
                    lambda: face.TopicHub(threads, "/r", "h:1", face.FileLogs(tmp_path), {}),  # type: ignore[arg-type]
                ]
                for call in wrong_ones:
                    with pytest.raises(bk.InvalidSettingError):
                        call()

    asyncio.run(main())
