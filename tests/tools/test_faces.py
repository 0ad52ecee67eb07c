"""The tool that generates the synchronous modules: its changes, refusals and checks."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import batchkeeper as bk

ROOT = Path(__file__).parent.parent.parent
TOOL = ROOT / "tools" / "faces.py"

# As a module of coordination would be: it stands on the public face of a store.
COUNTER = '''\
"""Counters that tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing

import batchkeeper as bk


class AsyncCounter:
    """A number at a path.

    Leaving the block of an :class:`AsyncCounter` is ``aclose()``, which removes the path.
    """

    def __init__(self, store: bk.AsyncMetadataStore, path: str) -> None:
        self._store = store
        self._path = path
        self._lock = asyncio.Lock()  # held from a look to its put
        self._moved = asyncio.Event()

    async def __aenter__(self) -> AsyncCounter:
        await self._store.put(self._path, b"0", expected_version=bk.ABSENT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._store.delete_recursive(self._path)

    async def add(self, n: int, meanwhile: Callable[[], Awaitable[object]] | None = None) -> int:
        """Add a number; return the sum. Who comes in between is no error."""
        async with self._lock:
            while True:
                # An "é" in a comment: the tree counts in bytes.
                é = await self._store.get(self._path); assert é is not None  # fmt: skip
                if meanwhile is not None:
                    await meanwhile()
                    meanwhile = None

                try:
                    await self._store.put(self._path, b"%d" % (int(é.value) + n), é.stat.version)
                except bk.BadVersionError:
                    await asyncio.sleep(0.001)  # let the other one finish
                    continue
                self._moved.set()
                await self._moved.wait()
                return int(é.value) + n

    async def note(self, names: Iterable[str]) -> None:
        """Put names below the counter."""
        for outcome in await self._store.apply(
            [bk.Put(f"{self._path}/{name}", name.encode()) for name in names]
        ):
            assert outcome.ok

    async def values(self) -> AsyncIterator[bytes]:
        """Give the counter, and what was noted."""
        async with aclosing(self._store.scan(self._path)) as found:
            async for _, value, _ in found:
                yield value

    async def face(self) -> str:
        # async:
        return await asyncio.to_thread(str.upper, "tasks")
        # sync:
        # | return "THREADS"
        # end


async def answers(store: bk.AsyncMetadataStore) -> list[object]:
    """Use a counter in every way there is, and return all that it says."""
    said: list[object] = []
    async with AsyncCounter(store, "/n") as counter:
        rival = AsyncCounter(store, "/n")
        said += [await counter.add(2), await counter.add(3, lambda: rival.add(10))]
        await counter.note(["b", "a"])
        said.append((await store.get("/n")).value)
        said.append([value async for value in counter.values()])
        said.append(await asyncio.to_thread(sorted, said[-1], reverse=True))
        said.append(await anext(aiter(counter.values())))
        said.append((await store.submit(bk.Get("/n/a"))).value)
        try:
            await store.put("/n", b"", 99)
        except bk.BadVersionError as error:
            said.append((error.path, error.expected))
    said.append([await store.exists("/n"), await store.get_children("/")])
    return said
'''


def tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the tool as from the command line."""
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def faces() -> dict[str, Any]:
    """The tool's functions. It is not in a package."""
    return runpy.run_path(str(TOOL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the counter's module and the repository's settings of format."""
    (tmp_path / "async_counter.py").write_text(COUNTER, "utf-8")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def loaded(path: Path) -> ModuleType:
    """Return a module that is not in a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_forms_of_a_module_give_the_same_answers(folder: Path) -> None:
    """A class on a store, with a lock, an event, a sleep and loops, serves threads as well."""
    assert tool(folder / "async_counter.py").returncode == 0
    tasks, threads = loaded(folder / "async_counter.py"), loaded(folder / "_sync" / "counter.py")

    async def main() -> Any:
        async with bk.open_async_store("memory://tasks") as store:
            return await tasks.answers(store)

    with bk.open_store("memory://threads") as store:
        given = threads.answers(store)
    assert given == asyncio.run(main())
    assert given[:4] == [2, 15, b"15", [b"15", b"a", b"b"]]
    assert given[-2:] == [("/n", 99), [False, []]]


def test_each_form_of_a_module_is_one_for_its_callers(folder: Path) -> None:
    """Many threads, or many tasks, count together, and each face has its own half of a pair."""
    assert tool(folder / "async_counter.py").returncode == 0
    tasks, threads = loaded(folder / "async_counter.py"), loaded(folder / "_sync" / "counter.py")

    async def main() -> tuple[list[int], str]:
        async with bk.open_async_store("memory://tasks") as store:
            counter = await tasks.AsyncCounter(store, "/n").__aenter__()
            sums = await asyncio.gather(*(counter.add(1) for _ in range(20)))
            return sorted(sums), await counter.face()

    with (
        bk.open_store("memory://threads") as store,
        threads.Counter(store, "/n") as counter,
        ThreadPoolExecutor(8) as pool,
    ):
        counted = sorted(pool.map(counter.add, [1] * 20))
        assert (counted, counter.face()) == (list(range(1, 21)), "THREADS")
    assert asyncio.run(main()) == (list(range(1, 21)), "TASKS")


def test_what_is_made_reads_as_if_written(folder: Path) -> None:
    """Comments, blank lines and docstrings stay, names in them follow, and imports are tidy."""
    assert tool(folder / "async_counter.py").returncode == 0
    text = (folder / "_sync" / "counter.py").read_text("utf-8")
    assert text.startswith(
        "# Made from async_counter.py by `python tools/faces.py`: change that file, and run this "
        'command.\n"""Counters that tasks share."""\n\nfrom __future__ import annotations\n\n'
        "import threading\nimport time\nfrom collections.abc import Callable, Iterable, Iterator\n"
        "from contextlib import closing\n\nimport batchkeeper as bk\n\n\nclass Counter:\n"
    )
    for lines in (
        "    Leaving the block of an :class:`Counter` is ``close()``, which removes the path.\n",
        "        self._lock = threading.Lock()  # held from a look to its put\n",
        "    def add(self, n: int, meanwhile: Callable[[], object] | None = None) -> int:\n",
        '                # An "é" in a comment: the tree counts in bytes.\n',
        "                    meanwhile()\n                    meanwhile = None\n\n",
        '        said.append(store.get("/n").result().value)\n',
    ):
        assert lines in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("async def f(): pass", "def f(): pass"),
        ("async def f(): return [x async for x in y if await g(x)]",
         "def f(): return [x for x in y if g(x)]"),
        ("async def f(): return await  g(await h())", "def f(): return g(h())"),
        ("async def f(): return (await g())[0]", "def f(): return g()[0]"),
        ("async def f(): return print(await g())", "def f(): return print(g())"),
        ("async def f(): return await my_store.get(p, timeout=1)",
         "def f(): return my_store.get(p, timeout=1).result()"),
        ("async def f(): return await self.cache.get(p)", "def f(): return self.cache.get(p)"),
        ("async def f(): return await store.split('/', 2)", "def f(): return store.split('/', 2)"),
        ("async def f(): await asyncio.to_thread(a.b)", "def f(): a.b()"),
        ("async def f(): await asyncio.to_thread(a, *b, c=d)", "def f(): a(*b, c=d)"),
        ("def f(x: Iterable[T] | AsyncIterable[T] | None): pass",
         "def f(x: Iterable[T] | None): pass"),
        ("def f() -> AsyncGenerator[T, None]: pass", "def f() -> Generator[T, None, None]: pass"),
        ("def f() -> Coroutine[Any, Any, Awaitable[T]]: pass", "def f() -> T: pass"),
        ("from .async_base import _AsyncBase, open_async_store, pages_async",
         "from .base import _Base, open_store, pages"),
        ("from ..ops.paths import a\nfrom . import b\nfrom .. import c\nfrom .d import e",
         "from ...ops.paths import a\nfrom .. import b\nfrom ... import c\nfrom ..d import e"),
        ("from ..topics.async_hosts import AsyncHosts", "from ...topics._sync.hosts import Hosts"),
        ("from .async_background import AsyncGate", "from ..background import Gate"),
        ("from ...batching.async_background import AsyncGate",
         "from ....batching.background import Gate"),
        ("class AsyncMetadataStore:\n    async def get(self) -> T | None: return await self.run()",
         "class MetadataStore:\n    def get(self) -> Future[T | None]: return self.run()"),
        ("class AsyncCache:\n    async def get(self) -> T: return await self._store.get(p)",
         "class Cache:\n    def get(self) -> T: return self._store.get(p).result()"),
        ("class AsyncMetadataStore:\n    async def flush(self) -> T: return await self.run()",
         "class MetadataStore:\n    def flush(self) -> T: return self.run()"),
        ("# async:\na = 1\n# end\n# sync:\n# | if x:\n# |     y = async_z\n# |\n# | z()\n# end",
         "if x:\n    y = z\n\nz()\n"),
        ("# sync:\n# | x = store.get(p)\n# | y = f'{store.get(p)}'\n# | z = store.put\n# end",
         "x = store.get(p)\ny = f'{store.get(p)}'\nz = store.put\n"),
        ("x = d['is_async'], '/AsyncTopic', b'_async', f'async_{x}', asyncs_async",
         "x = d['is_async'], '/AsyncTopic', b'_async', f'async_{x}', asyncs"),
        ("class A:\n    'An AsyncA, and\\\n    async_b'\n    c = 'AsyncA'",
         "class A:\n    'An A, and\\\n    b'\n    c = 'AsyncA'"),
        ("__all__ = [\n    'AsyncA',\n    'async_b',\n]", "__all__ = [\n    'A',\n    'b',\n]"),
        ("s = 'é'; é_async = async_é; s = 'AsyncA'  # AsyncB", "s = 'é'; é = é; s = 'AsyncA'  # B"),
        ("x: T | AsyncT = flags | flags\ny = f(a | a) or a | async_a",
         "x: T = flags | flags\ny = f(a | a) or a | a"),
        ("def f(x: list[T | AsyncT] = a | a, *y: T | AsyncT) -> T | AsyncT: return x | x",
         "def f(x: list[T] = a | a, *y: T) -> T: return x | x"),
        ("class A:\n    async def aclose(self): pass\nclass B:\n    def close(self): pass",
         "class A:\n    def close(self): pass\nclass B:\n    def close(self): pass"),
        ("from contextlib import aclosing, closing", "from contextlib import closing, closing"),
    ],
)  # fmt: skip
def test_each_rule(faces: dict[str, Any], before: str, after: str) -> None:
    """Each asynchronous form has the synchronous one that it becomes."""
    head = "import asyncio\nfrom concurrent.futures import Future\n"
    assert faces["synchronous"](head + before) == head + after


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("async def f(): await asyncio.gather()", "line 3: asyncio.gather has no synchronous twin"),
        ("x = asyncio.CancelledError", "line 3: asyncio.CancelledError has no"),
        ("from asyncio import Lock", "line 3: asyncio is recognized as asyncio.NAME only; write"),
        ("from asyncio.locks import Lock", "line 3: asyncio is recognized"),
        ("import json\nimport re, asyncio as aio", "line 4: asyncio is recognized"),
        ("import asyncio.locks", "line 3: asyncio is recognized"),
        ("async def f():\n    await getattr(asyncio, 'sleep')(1)", "line 4: asyncio is recognized"),
        ("async def f(): await future", "line 3: only calls are awaited; await the call itself"),
        ("async def f():\n    x = self._store.get(p)", "line 4: a store's operation is awaited"),
        ("async def f():\n    get = self._store.get", "line 4: a store's operation is awaited"),
        ("async def f(): await asyncio.to_thread(store.get, p)", "line 3: a store's operation is"),
        ("f = asyncio.to_thread(g)", "line 3: to_thread is awaited"),
        ("async def f(): await asyncio.to_thread(lambda: 1)", "line 3: to_thread is awaited"),
        ("async def f(): return f'{await g()}'", "line 3: an f-string contains nothing that the"),
        ("async def f(): return f'{[x async for x in y]}'", "line 3: an f-string contains nothing"),
        ("async def f(): return f'{x:{store.get(p)}}'", "line 3: an f-string contains nothing"),
        ("from . import async_b", "line 3: a source is not imported itself; import names from it"),
        ("f'{asyncio}'", "line 3: an f-string contains nothing that the twin would change; assign"),
        ("f'{AsyncCounter.name}'", "line 3: an f-string contains nothing that the twin would"),
        ("f'{counter.is_async}'", "line 3: an f-string contains nothing that the twin would"),
        ("f'{g(async_x=1)}'", "line 3: an f-string contains nothing that the twin would change"),
        ("x: Coroutine[T]", "line 3: a Coroutine has three types"),
        ("class AsyncMetadataStore:\n    async def get(self) -> T:\n        x = await self.run()",
         "line 4: an operation has a type, and awaits only what it returns"),
        ("# async:\nx\n", "line 3: '# async:' has no '# end'"),
        ("# end", "line 3: '# end' has no place here"),
        ("# sync:\n# async:\n# end", "line 4: '# async:' has no place here"),
        ("# sync:\nx = 1\n# end", "line 4: a synchronous line begins with '# | '"),
        ("# async:\n#\n# end\nasync def f(): await x", "line 6: only calls are awaited"),
        ("class A:\n    def close(self): pass\n    async def aclose(self): pass",
         "line 5: 'close' and 'aclose' would both become 'close'; rename one, or mark a pair"),
        ("class A:\n    def _get(self): pass\n    def f(self): self._async_get = 1",
         "line 5: '_get' and '_async_get' would both become '_get'"),
        ("class A: pass\nif x:\n    class AsyncA: pass", "line 5: 'A' and 'AsyncA' would both"),
        ("def f(x):\n    async_x = x\n    return x", "line 4: 'x' and 'async_x' would both become"),
        ("def f(x, *,\n      async_x): pass", "line 4: 'x' and 'async_x' would both become 'x'"),
        ("def f(store:\n      'AsyncStore'): pass",
         "line 4: a string stays as it is, also in a type; write the type without quotes"),
        ("def f() -> 'asyncio.Lock': pass", "line 3: a string stays as it is, also in a type"),
        ("x = 1\nx.is_async = 1",
         "the twin is not Python: invalid syntax: 'x.is = 1'; rename what became that, or mark"),
        ("f(x=1, async_x=2)", "the twin is not Python: keyword argument repeated: x: 'f(x=1,"),
        ("# async:\n# end\nx =", "line 5: this is not Python: invalid syntax"),
    ],
)  # fmt: skip
def test_what_has_no_twin_is_refused(faces: dict[str, Any], source: str, why: str) -> None:
    """Asynchronous code that cannot be converted is an error with the line and the reason."""
    with pytest.raises(faces["RefusedError"], match=f"^{re.escape(why)}"):
        faces["synchronous"](f"import asyncio\n\n{source}")


def test_a_source_without_imports_cannot_get_one(faces: dict[str, Any]) -> None:
    """Where the twin needs an import and has no place for it, the source is refused."""
    source = "class AsyncMetadataStore:\n    async def get(self) -> T: return await self.run()\n"
    why = "line 1: the twin needs 'from concurrent.futures import Future', but the source imports"
    with pytest.raises(faces["RefusedError"], match=f"^{why} nothing; begin it with 'from __fut"):
        faces["synchronous"](source)
    assert "import Future" in faces["synchronous"](f"from __future__ import annotations\n{source}")


@pytest.mark.slow
def test_a_check_names_the_command_and_writes_nothing(folder: Path) -> None:
    """A twin that is missing or was changed fails the check, which shows where, and what to run."""
    source, made = folder / "async_counter.py", folder / "_sync" / "counter.py"
    missing = tool("--check", source)
    assert (missing.returncode, made.exists()) == (1, False)
    assert tool(source).returncode == tool("--check", source).returncode == 0
    changed = made.read_text("utf-8").replace("+ n", "- n")
    made.write_text(changed, "utf-8")
    found = tool("--check", source)
    assert found.returncode == 1
    assert (
        "\n-                return int(é.value) - n\n+                return int(é.value) + n\n"
        in (found.stderr)
    )
    assert found.stderr.endswith(
        "counter.py is out of date with its source: run `python tools/faces.py`\n"
    )
    assert made.read_text("utf-8") == changed


@pytest.mark.slow
def test_a_twin_without_source_is_found_and_removed(folder: Path) -> None:
    """A twin whose source is gone fails the check, and the next run removes it, and no other."""
    assert tool(folder / "async_counter.py").returncode == 0
    other = folder / "_sync" / "other.py"
    other.write_text("", "utf-8")
    found = tool("--check", folder / "async_counter.py")
    assert found.returncode == 1
    assert found.stderr == "other.py has no source any more: run `python tools/faces.py`\n"
    assert other.exists()
    assert tool(folder / "async_counter.py").returncode == 0
    present = sorted(path.name for path in other.parent.glob("*.py"))
    assert present == ["__init__.py", "counter.py"]


@pytest.mark.slow
def test_a_source_that_is_refused_leaves_its_twin(folder: Path) -> None:
    """The tool names the file that it refuses and the reason, and changes nothing."""
    source, made = folder / "async_counter.py", folder / "_sync" / "counter.py"
    assert tool(source).returncode == 0
    before = made.read_bytes()
    source.write_text(COUNTER + "\n\nx = asyncio.gather\n", "utf-8")
    refused = tool(source)
    line = COUNTER.count("\n") + 3
    assert refused.returncode == 1
    assert refused.stderr == (
        f"async_counter.py: line {line}: asyncio.gather has no synchronous twin; "
        "mark a pair (# async:, # sync:, # end)\n"
    )
    assert made.read_bytes() == before


def test_a_source_is_not_its_own_twin(folder: Path) -> None:
    """A module whose name says nothing of tasks is refused, and not overwritten."""
    source = (folder / "async_counter.py").rename(folder / "counters.py")
    refused = tool(source)
    assert refused.returncode == 1
    assert refused.stderr == ("counters.py: the name of a source begins with 'async_'; rename it\n")
    assert source.read_text("utf-8") == COUNTER
