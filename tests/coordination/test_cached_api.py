"""The cache's example in FastAPI, and the example of its document."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

import batchkeeper as bk
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, on an empty store in memory."""
    monkeypatch.setenv("BATCHKEEPER_URL", f"memory://{uuid.uuid4()}")
    spec = importlib.util.spec_from_file_location("cached_api", ROOT / "examples/cached_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cached_api", module)  # FastAPI looks up annotations there.
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_application(example: ModuleType) -> None:
    """It answers reads, writes and fifty updates at once, and says what is wrong otherwise."""

    async def main() -> None:
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=example.app), base_url="http://settings"
        )
        async with asyncio.timeout(PATIENCE), example.lifespan(example.app), client:

            async def json(method: str, path: str, body: Any = None, status: int = 200) -> Any:
                response = await client.request(method, path, json=body)
                assert response.status_code == status, response.text
                return response.json()

            assert await json("GET", "/settings") == []
            await json("GET", "/settings/mail", status=404)
            await json("POST", "/settings/mail/double", status=404)
            await json("PUT", "/settings/mail", {"rate": "?"}, status=422)
            assert await json("PUT", "/settings/mail", {"rate": 1}) == 0
            assert await json("GET", "/settings/mail") == {"rate": 1, "paused": False}
            doubles = [json("POST", "/settings/mail/double") for _ in range(50)]
            rates = [answer["rate"] for answer in await asyncio.gather(*doubles)]
            assert sorted(rates) == [2**n for n in range(1, 51)]
            assert await json("PUT", "/settings/mail", {"rate": 7, "paused": True}) == 51
            assert await json("GET", "/settings/mail") == {"rate": 7, "paused": True}
            assert await json("GET", "/settings") == ["mail"]
            async with bk.open_async_store(os.environ["BATCHKEEPER_URL"]) as store:
                await store.put("/settings/mail", b"?")
            cached: Any = example.app.state.cache
            while await cached.exists("/settings/mail"):
                if (await client.get("/settings/mail")).status_code == 500:
                    break

    asyncio.run(main())


@pytest.mark.slow
def test_a_store_that_does_not_answer(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is answered with 503, so that the client tries again."""
    faults = FaultInjector()
    opened = bk.open_async_store
    monkeypatch.setattr(bk, "open_async_store", lambda url: opened(url, wrap=faults))

    async def main() -> None:
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=example.app), base_url="http://settings"
        )
        async with asyncio.timeout(PATIENCE), example.lifespan(example.app), client:
            faults.fail("get", "/settings/mail")
            assert (await client.get("/settings/mail")).status_code == 503
            assert (await client.get("/settings/mail")).status_code == 404

    asyncio.run(main())


def test_the_example_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example of docs/cache.md runs unchanged without a server."""
    (first,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/cache.md").read_text(), re.DOTALL)
    exec(compile(first, "docs/cache.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "{'owner': 'hub-1', 'epoch': 1}",
        "{'owner': 'hub-1', 'epoch': 2}",
        "['t1']",
        "None",
    ]
