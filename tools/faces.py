"""Generate the synchronous twins of asynchronous modules: ``python tools/faces.py``.

A module for tasks is written by hand, and this tool generates the one for threads from it:
``async_x.py`` becomes ``x.py`` beside it, which is committed. ``--check`` writes nothing, and fails
if a twin differs from the text that its source generates. The tool needs ruff for imports and
format, and nothing from the package.

The tool edits the text of the source and does not print its tree, so comments and layout stay.
These are the changes:

- ``async def``, ``async with``, ``async for`` and ``await`` lose their first word.
- ``await store.get(path)`` becomes ``store.get(path).result()``, for each of ``OPERATIONS`` and
  ``submit``, on any name that ends in ``store``.
- The methods of these names in a store class return ``Future[T]`` instead of ``T``.
- ``await asyncio.to_thread(call, x)`` becomes ``call(x)``. A name in ``_TWINS`` becomes its twin.
- Names lose ``Async``, ``async_`` and ``_async``, in comments and docstrings as well; ``_WORDS``
  lists the names that differ otherwise. So a hand-written pair, ``async_y.py`` and ``y.py``, can
  give both faces code that has no twin, under one name.
- A marked pair has separate code for each face; either half may be missing::

      # async:
      await self._task
      # sync:
      # | self._thread.join()
      # end

The tool refuses code that has no twin, and names its line, so nothing asynchronous is left by
mistake.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

COMMAND: Final = "python tools/faces.py"

ROOT: Final = Path(__file__).parent.parent

# The sources, from the root of the repository.
SOURCES: Final = ("batching/async_store.py",)

# The methods of a store that are coroutines for tasks and return a future to threads.
OPERATIONS: Final = ("get", "put", "delete", "get_children", "exists", "delete_recursive")

# The store classes.
_STORES: Final = ("AsyncMetadataStore",)

# Names of asyncio with a twin for threads: the import that the twin needs, and its name.
_TWINS: Final = {
    "Condition": ("import threading", "threading.Condition"),
    "Event": ("import threading", "threading.Event"),
    "Future": ("from concurrent.futures import Future", "Future"),
    "Lock": ("import threading", "threading.Lock"),
    "Semaphore": ("import threading", "threading.Semaphore"),
    "sleep": ("import time", "time.sleep"),
}

_WORDS: Final = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "anext": "next",
    "asend": "send",
    "asynccontextmanager": "contextmanager",
    "athrow": "throw",
}


class RefusedError(Exception):
    """The source contains code that cannot be made synchronous."""


def synchronous(source: str) -> str:
    """Return the twin of a module, with the imports and the layout of its source.

    Raises:
        RefusedError: the source contains code without a twin. The message names the line.
        SyntaxError: the source, or a synchronous half, is not Python.
    """
    text, numbers = _synchronous_halves(source)
    text = _Rewriting(text, numbers).rewritten()
    text = re.sub(r"\b\w+\b", lambda word: _renamed(word.group()), text)
    return _without_repeated_types(text)


def _synchronous_halves(source: str) -> tuple[str, list[int]]:
    """Return a source with the synchronous half of each pair, and its original line numbers."""
    lines: list[str] = []
    numbers: list[int] = []
    half, opened = "", 0
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        indent, mark = re.match(r"(\s*)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
        match mark.rstrip(), half:
            case ("# async:", "") | ("# sync:", "" | "async"):
                half, opened = mark.strip("# :\n"), number
                continue
            case "# end", "async" | "sync":
                half = ""
                continue
            case (("# async:" | "# sync:" | "# end"), _):
                raise RefusedError(f"line {number}: {mark.rstrip()!r} has no place here")
        if half == "async":
            continue
        if half == "sync":
            if not mark.startswith("# |"):
                raise RefusedError(f"line {number}: a synchronous line begins with '# | '")
            rest = mark.removeprefix("# |")
            lines.append(indent + rest.removeprefix(" ") if rest.strip() else "\n")
        else:
            lines.append(line)
        numbers.append(number)
    if half:
        raise RefusedError(f"line {opened}: '# {half}:' has no '# end'")
    return "".join(lines), numbers


class _Rewriting(ast.NodeVisitor):
    """Finds the changes of a text in its tree, and makes them."""

    def __init__(self, text: str, numbers: list[int]) -> None:
        self._text = text.encode()  # the tree's columns are in bytes
        self._numbers = numbers
        self._lines = [0]
        for line in self._text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._edits: list[tuple[int, int, str]] = []
        self._imports: set[str] = set()
        self._tree = ast.parse(text)
        self._parents = {
            child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)
        }

    def rewritten(self) -> str:
        """Return the text for threads, before names are replaced."""
        self.visit(self._tree)
        self._import()
        pieces: list[bytes] = []
        at = 0
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            assert start >= at, (self._text[start:end], new)
            pieces += self._text[at:start], new.encode()
            at = end
        pieces.append(self._text[at:])
        return b"".join(pieces).decode()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._cut_word(self._start(node))
        around = self._parents[node]
        if isinstance(around, ast.ClassDef) and around.name in _STORES and node.name in OPERATIONS:
            self._return_future(node)
        self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._cut_word(self._start(node))
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._cut_word(self._start(node))
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if node.is_async:  # The node has no position, but its target has one.
            before = self._text[: self._start(node.target)]
            word = re.search(rb"\basync\s+for\s*\(?\s*$", before)
            assert word is not None
            self._cut_word(word.start())
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        call = node.value
        if not isinstance(call, ast.Call):
            raise self._refused(node, "only calls are awaited")
        if _is_operation(call):
            self._edit(self._end(call), self._end(call), ".result()")
        start, end = self._start(node), self._end(node)
        parent = self._parents[node]
        # Remove parentheses that only `await` needs: (await store.get(path)).value
        if isinstance(parent, ast.Attribute | ast.Subscript | ast.Compare) and (
            self._text[start - 1 : start] + self._text[end : end + 1] == b"()"
        ):
            self._edit(start - 1, start, "")
            self._edit(end, end + 1, "")
        self._cut_word(start)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        awaited = isinstance(self._parents[node], ast.Await)
        if _is_operation(node) and not awaited:
            raise self._refused(node, "a store's operation is awaited where it is called")
        if not _is_to_thread(node.func):
            self.generic_visit(node)
            return
        if not (awaited and node.args and isinstance(node.args[0], ast.Attribute | ast.Name)):
            raise self._refused(node, "to_thread is awaited, and takes a function by its name")
        call = node.args[0]
        rest: list[ast.expr | ast.keyword] = [*node.args[1:], *node.keywords]
        self._edit(self._start(node), self._start(call), "")
        self._edit(self._end(call), self._start(rest[0]) if rest else self._end(call), "(")
        self.visit(call)
        for part in rest:
            self.visit(part)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id == "asyncio"):
            self.generic_visit(node)
        elif node.attr in _TWINS:
            needed, name = _TWINS[node.attr]
            self._imports.add(needed)
            self._edit(self._start(node), self._end(node), name)
        else:
            raise self._refused(node, f"asyncio.{node.attr} has no synchronous twin")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Before Python 3.12, the tree has no positions of expressions in an f-string.
        for part in ast.walk(node):
            if isinstance(part, ast.Await) or (isinstance(part, ast.Name) and part.id == "asyncio"):
                raise self._refused(node, "an f-string neither awaits nor names asyncio")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "asyncio":
            raise self._refused(node, "names of asyncio are recognized as asyncio.NAME only")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        of = node.slice
        if name == "AsyncGenerator":
            self._edit(self._end(of), self._end(of), ", None")
        elif name == "Awaitable":
            self._leave(node, of)
        elif name == "Coroutine":
            if not (isinstance(of, ast.Tuple) and len(of.elts) == 3):
                raise self._refused(node, "a Coroutine has three types")
            self._leave(node, of.elts[2])
            self.visit(of.elts[2])
            return
        self.generic_visit(node)

    def _return_future(self, node: ast.AsyncFunctionDef) -> None:
        """Make an operation of a store return the future that it awaits."""
        awaits = [part for part in ast.walk(node) if isinstance(part, ast.Await)]
        # The code of a synchronous half has no await.
        if node.returns is None or not all(
            isinstance(self._parents[a], ast.Return) for a in awaits
        ):
            raise self._refused(node, "an operation has a type, and awaits only what it returns")
        self._imports.add(_TWINS["Future"][0])
        self._edit(self._start(node.returns), self._start(node.returns), "Future[")
        self._edit(self._end(node.returns), self._end(node.returns), "]")

    def _import(self) -> None:
        """Add the new imports. ruff then removes unused ones, and sorts and merges the rest."""
        present = {ast.unparse(node) for node in self._tree.body}
        if missing := sorted(self._imports - present):
            imports = (ast.Import, ast.ImportFrom)
            first = next(node for node in self._tree.body if isinstance(node, imports))
            at = self._end(first)  # behind `from __future__`, which comes first
            self._edit(at, at, "".join(f"\n{line}" for line in missing))

    def _leave(self, node: ast.expr, inner: ast.expr) -> None:
        """Replace an expression by an expression within it."""
        self._edit(self._start(node), self._start(inner), "")
        self._edit(self._end(inner), self._end(node), "")

    def _cut_word(self, at: int) -> None:
        word = re.compile(rb"(async|await)\s*").match(self._text, at)
        assert word is not None
        self._edit(at, word.end(), "")

    def _edit(self, start: int, end: int, new: str) -> None:
        self._edits.append((start, end, new))

    def _start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _refused(self, node: ast.expr | ast.stmt, why: str) -> RefusedError:
        return RefusedError(f"line {self._numbers[node.lineno - 1]}: {why}")


def _is_operation(call: ast.Call) -> bool:
    """Say whether a call is one of a store's operations."""
    match call.func:
        case ast.Attribute(ast.Name(of) | ast.Attribute(_, of), name):
            return of.endswith("store") and name in {*OPERATIONS, "submit"}
    return False


def _is_to_thread(called: ast.expr) -> bool:
    match called:
        case ast.Attribute(ast.Name("asyncio"), "to_thread"):
            return True
    return False


def _renamed(word: str) -> str:
    """Return the name for threads of a name in the source."""
    if word in _WORDS:
        return _WORDS[word]
    word = re.sub(r"^(_*)(Async(?=[A-Z])|async_(?=\w))", r"\1", word)
    return re.sub(r"(?<=\w)_async(?=_|$)", "", word)


def _without_repeated_types(text: str) -> str:
    """Replace ``X | X`` by ``X`` in annotations, where two types have become one."""
    encoded = text.encode()
    lines = encoded.splitlines(keepends=True)
    cuts: list[tuple[int, int]] = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
            continue
        left = node.left.right if isinstance(node.left, ast.BinOp) else node.left
        if isinstance(left, ast.Name | ast.Subscript) and ast.dump(left) == ast.dump(node.right):
            ends = [
                sum(map(len, lines[: part.end_lineno - 1])) + part.end_col_offset
                for part in (node.left, node)
                if part.end_lineno is not None and part.end_col_offset is not None
            ]
            cuts.append((ends[0], ends[1]))
    for start, end in sorted(cuts, reverse=True):
        encoded = encoded[:start] + encoded[end:]
    return encoded.decode()


def made(source: Path, target: Path) -> str:
    """Return the text of a twin, with a header, sorted imports and ruff's format.

    Raises:
        RefusedError: the source contains code without a twin. The message names file and line.
    """
    try:
        text = synchronous(source.read_text("utf-8"))
    except RefusedError as error:
        raise RefusedError(f"{source.name}: {error}") from error
    header = f"# Made from {source.name} by `{COMMAND}`: change that file, and run this command.\n"
    text = _ruff(["check", "--fix", "--select", "F401,I001"], header + text, target)
    return _ruff(["format"], text, target)


def twin(source: Path) -> Path:
    """Return the path of a module's synchronous twin."""
    return source.with_name(source.name.removeprefix("async_"))


def _ruff(command: list[str], text: str, target: Path) -> str:
    arguments = [*command, "--quiet", "--stdin-filename", str(target), "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise RefusedError(f"{target.name}: ruff: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def main(arguments: list[str] | None = None) -> int:
    """Write the twins, or compare them with ``--check``; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Make the synchronous modules.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument("sources", nargs="*", default=SOURCES, help="async_*.py; all by default")
    asked = parser.parse_args(arguments)
    failed = False
    for name in asked.sources:
        source = ROOT / name
        target = twin(source)
        try:
            new = made(source, target)
        except RefusedError as error:
            sys.stderr.write(f"{error}\n")
            failed = True
            continue
        old = target.read_text("utf-8") if target.exists() else ""
        if new == old:
            continue
        if not asked.check:
            target.write_text(new, "utf-8")
            continue
        failed = True
        sys.stderr.writelines(
            difflib.unified_diff(old.splitlines(True), new.splitlines(True), "there", "made")
        )
        sys.stderr.write(f"{target.name} is out of date with {source.name}: run `{COMMAND}`\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
