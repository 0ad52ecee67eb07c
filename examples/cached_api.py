"""Settings that many requests read and few change: a cache in a FastAPI application.

Needs ``fastapi[standard]`` and a server. Run it against a local etcd:

    BATCHKEEPER_URL=etcd://127.0.0.1:2379 fastapi run cached_api.py

    curl -X PUT -H 'content-type: application/json' -d '{"rate": 5}' localhost:8000/settings/mail
    curl localhost:8000/settings/mail
    curl -X POST localhost:8000/settings/mail/double

All instances of the application share the settings. Each of them reads from memory, and a change
through one of them reaches the others in milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

import batchkeeper as bk


@dataclass
class Settings:
    """The settings of one service."""

    rate: int
    paused: bool = False


Cache: TypeAlias = bk.AsyncMetadataCache[Settings]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store and the cache with the application."""
    async with (
        bk.open_async_store(os.environ.get("BATCHKEEPER_URL", "memory://settings")) as store,
        bk.AsyncMetadataCache(store, "/settings", bk.dataclass_serde(Settings)) as cache,
    ):
        app.state.cache = cache
        yield


def cache_of(request: Request) -> Cache:
    """Return the application's cache."""
    found: Cache = request.app.state.cache
    return found


CacheOf: TypeAlias = Annotated[Cache, Depends(cache_of)]

app = FastAPI(lifespan=lifespan)


@app.exception_handler(bk.MetadataStoreError)
async def failed(request: Request, error: bk.MetadataStoreError) -> JSONResponse:
    """Answer 503 if another attempt may succeed, otherwise 500."""
    return JSONResponse({"detail": str(error)}, 503 if error.retriable else 500)


@app.get("/settings")
async def names(cache: CacheOf) -> list[str]:
    """List the services."""
    return await cache.get_children("/settings")


@app.get("/settings/{service}")
async def read(service: str, cache: CacheOf) -> Settings:
    """Return the settings of a service; nearly always from memory."""
    found = await cache.get(f"/settings/{service}")
    if found is None:
        raise HTTPException(404, f"no settings of {service}")
    return found


@app.put("/settings/{service}")
async def write(service: str, settings: Settings, cache: CacheOf) -> int:
    """Replace the settings of a service; return their version."""
    return (await cache.put(f"/settings/{service}", settings)).version


@app.post("/settings/{service}/double")
async def double(service: str, cache: CacheOf) -> Settings:
    """Double the rate of a service. Of several such requests at once, none is lost."""

    def doubled(settings: Settings) -> Settings:
        settings.rate *= 2
        return settings

    try:
        return await cache.read_modify_update(f"/settings/{service}", doubled)
    except bk.NotFoundError:
        raise HTTPException(404, f"no settings of {service}") from None
