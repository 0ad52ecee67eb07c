"""Generate the synchronous twins of asynchronous modules: ``python tools/faces.py``.

A module for tasks is written by hand, and this tool generates the one for threads from it:
``async_x.py`` becomes ``_sync/x.py``, which is committed. Nothing in a folder ``_sync`` is written
by hand: the tool removes a twin that has no source any more. ``--check`` writes nothing, and fails
if a twin differs from the text that its source generates, or has no source. The tool needs ruff for
imports and format, and nothing from the package.

The tool edits the text of the source and does not print its tree, so comments and layout stay.
These are the changes:

- ``async def``, ``async with``, ``async for`` and ``await`` lose their first word.
- ``await store.get(path)`` becomes ``store.get(path).result()``, for each of ``OPERATIONS`` and
  ``submit``, on any name that ends in ``store``.
- The methods of these names in a store class return ``Future[T]`` instead of ``T``.
- ``await asyncio.to_thread(call, x)`` becomes ``call(x)``. A name in ``_TWINS`` becomes its twin.
- Names lose ``Async``, ``async_`` and ``_async``, in comments, docstrings and ``__all__`` as well;
  ``_WORDS`` lists the names that differ otherwise. So a hand-written pair, ``async_y.py`` and
  ``y.py``, can give both faces code that has no twin, under one name. All other strings are data
  and stay.
- Relative imports become those of a module one folder deeper, where the other twins are, too.
- A marked pair has separate code for each face; either half may be missing::

      # async:
      await self._task
      # sync:
      # | self._thread.join()
      # end

  In a synchronous half, operations of a store are called as threads call them.

The tool refuses code that it cannot turn, and names file, line and remedy. It does not know the
coroutines of other libraries: ``await other.call()`` becomes ``other.call()``.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

COMMAND: Final = "python tools/faces.py"

ROOT: Final = Path(__file__).parent.parent

# The folder of the twins, below that of their sources, and the text of its ``__init__.py``.
FOLDER: Final = "_sync"
_INIT: Final = f'"""The modules for threads, generated from ``async_*.py`` by ``{COMMAND}``."""\n'

# Both halves of these pairs are written by hand, and lie side by side.
_BY_HAND: Final = ("async_background", "async_store_base", "async_watches")

# The sources, from the root of the repository.
SOURCES: Final = tuple(
    source.relative_to(ROOT).as_posix()
    for folder in (
        "batching",
        "coordination",
        "hubs/ledgers",
        "hubs/managers",
        "hubs/serving",
        "hubs/tables",
        "hubs/topics",
    )
    for source in sorted((ROOT / folder).glob("async_*.py"))
    if source.stem not in _BY_HAND
)

# The methods of a store that are coroutines for tasks and return a future to threads.
OPERATIONS: Final = (
    "get",
    "put",
    "delete",
    "get_children",
    "exists",
    "transaction",
    "delete_recursive",
)

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
    "push_async_callback": "callback",
}

# The scopes whose names must differ in the twin, too.
_SCOPES: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# Parts of the messages.
_PAIR: Final = "mark a pair (# async:, # sync:, # end)"
_ASYNCIO: Final = "asyncio is recognized as asyncio.NAME only; write 'import asyncio' and that"


class RefusedError(Exception):
    """The source contains code that cannot be made synchronous."""


def synchronous(source: str) -> str:
    """Return the twin of a module, with the imports and the layout of its source.

    Raises:
        RefusedError: the source is not Python, or contains code without a twin. The message names
            the line.
    """
    text, numbers, halves = _synchronous_halves(source)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        number = numbers[min(error.lineno or 1, len(numbers)) - 1]
        raise RefusedError(f"line {number}: this is not Python: {error.msg}") from error
    text = _with_names_for_threads(_Rewriting(text, tree, numbers, halves).rewritten())
    try:
        compile(text, "twin", "exec", dont_inherit=True)
    except SyntaxError as error:
        line = text.splitlines()[(error.lineno or 1) - 1].strip()
        why = f"the twin is not Python: {error.msg}: {line!r}"
        raise RefusedError(f"{why}; rename what became that, or {_PAIR}") from error
    return _without_repeated_types(text)


def _synchronous_halves(source: str) -> tuple[str, list[int], set[int]]:
    """Return a source with the synchronous half of each pair.

    Returns:
        the text; the number in the source of each of its lines; the numbers of those in a half.
    """
    lines: list[str] = []
    numbers: list[int] = []
    halves: set[int] = set()
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
            halves.add(number)
            rest = mark.removeprefix("# |")
            lines.append(indent + rest.removeprefix(" ") if rest.strip() else "\n")
        else:
            lines.append(line)
        numbers.append(number)
    if half:
        raise RefusedError(f"line {opened}: '# {half}:' has no '# end'")
    return "".join(lines), numbers, halves


class _Rewriting(ast.NodeVisitor):
    """Finds the changes of a text in its tree, and makes them."""

    def __init__(self, text: str, tree: ast.Module, numbers: list[int], halves: set[int]) -> None:
        self._text = text.encode()  # the tree's columns are in bytes
        self._tree = tree
        self._numbers = numbers
        self._halves = halves
        self._lines = [0]
        for line in self._text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._edits: list[tuple[int, int, str]] = []
        self._imports: set[str] = set()
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def rewritten(self) -> str:
        """Return the text for threads, before names are replaced."""
        self._check_names()
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
            raise self._refused(node, f"only calls are awaited; await the call itself, or {_PAIR}")
        if _is_operation(call.func):
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
        if not _is_to_thread(node.func):
            self.generic_visit(node)
            return
        awaited = isinstance(self._parents[node], ast.Await)
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
        if self._is_loose_operation(node):
            why = "a store's operation is awaited where it is called"
            raise self._refused(node, f"{why}; await it here, or {_PAIR}")
        if not (isinstance(node.value, ast.Name) and node.value.id == "asyncio"):
            self.generic_visit(node)
        elif node.attr in _TWINS:
            needed, name = _TWINS[node.attr]
            self._imports.add(needed)
            self._edit(self._start(node), self._end(node), name)
        else:
            raise self._refused(node, f"asyncio.{node.attr} has no synchronous twin; {_PAIR}")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "asyncio":  # visit_Attribute does not come here for asyncio.NAME
            raise self._refused(node, _ASYNCIO)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Before Python 3.12, the tree has no positions of expressions in an f-string.
        for part in ast.walk(node):
            operation = isinstance(part, ast.Attribute) and _is_operation(part)
            if _changes(part) or (operation and not self._in_half(node)):
                why = "an f-string contains nothing that the twin would change"
                raise self._refused(node, f"{why}; assign it to a name first")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.startswith("asyncio.") or (alias.name == "asyncio" and alias.asname):
                raise self._refused(node, _ASYNCIO)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if str(node.module).split(".")[0] == "asyncio":
            raise self._refused(node, _ASYNCIO)
        if not node.level:
            return
        *packages, module = (node.module or "").split(".")
        deeper = [*packages, FOLDER, module] if _is_source(module) else [*packages, module]
        level = node.level + 1
        if node.level == 1 and deeper[0] == FOLDER:  # of the same folder, as the twin is
            level, deeper = 1, deeper[1:]
        if node.module is None and any(_is_source(alias.name) for alias in node.names):
            raise self._refused(node, "a source is not imported itself; import names from it")
        imported = re.compile(rb"from\s+([.]+[\w.]*)").match(self._text, self._start(node))
        assert imported is not None
        self._edit(*imported.span(1), "." * level + ".".join(deeper))

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
            first = next((node for node in self._tree.body if isinstance(node, imports)), None)
            if first is None:
                why = f"the twin needs {missing[0]!r}, but the source imports nothing"
                remedy = "begin it with 'from __future__ import annotations'"
                raise RefusedError(f"line 1: {why}; {remedy}")
            at = self._end(first)  # behind `from __future__`, which comes first
            self._edit(at, at, "".join(f"\n{line}" for line in missing))

    def _check_names(self) -> None:
        """Refuse names that would be wrong in the twin, although the twin may be valid Python."""
        for scope in ast.walk(self._tree):
            if not isinstance(scope, _SCOPES):
                continue
            names: dict[str, str] = {}
            for name, node in _defined(scope):
                new = _renamed(name)
                other = names.setdefault(new, name)
                if other != name:
                    why = f"{other!r} and {name!r} would both become {new!r}"
                    raise self._refused(node, f"{why}; rename one, or {_PAIR}")
        for part in _of_annotations(self._tree):
            match part:
                case ast.Constant(str(text)) if "asyncio" in text or _words_renamed(text) != text:
                    why = "a string stays as it is, also in a type"
                    raise self._refused(part, f"{why}; write the type without quotes")

    def _is_loose_operation(self, node: ast.Attribute) -> bool:
        """Say whether a store's operation is named without a call that is awaited."""
        call = self._parents[node]
        called = isinstance(call, ast.Call) and call.func is node
        awaited = called and isinstance(self._parents[call], ast.Await)
        return _is_operation(node) and not awaited and not self._in_half(node)

    def _in_half(self, node: ast.expr) -> bool:
        """Say whether code comes from the synchronous half of a pair."""
        return self._numbers[node.lineno - 1] in self._halves

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

    def _refused(self, node: ast.expr | ast.stmt | ast.arg, why: str) -> RefusedError:
        return RefusedError(f"line {self._numbers[node.lineno - 1]}: {why}")


def _is_source(module: str) -> bool:
    """Say whether a module has a generated twin, from its name."""
    return module.startswith("async_") and module not in _BY_HAND


def _is_operation(called: ast.expr) -> bool:
    """Say whether an expression is one of a store's operations."""
    match called:
        case ast.Attribute(ast.Name(of) | ast.Attribute(_, of), name):
            return of.endswith("store") and name in {*OPERATIONS, "submit"}
    return False


def _changes(part: ast.AST) -> bool:
    """Say whether the twin would have other text, or none, for one node of an f-string."""
    match part:
        case ast.Await() | ast.comprehension(is_async=1):
            return True
        case ast.Name(name) | ast.Attribute(_, name) | ast.arg(name) | ast.keyword(str(name)):
            return name == "asyncio" or _renamed(name) != name
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


def _words_renamed(text: str) -> str:
    return re.sub(r"\b\w+\b", lambda word: _renamed(word.group()), text)


def _defined(scope: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt | ast.arg]]:
    """Yield the names that a scope defines; for a class, with the attributes that methods set."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name, node
            case ast.Name(name, ast.Store()) | ast.arg(name):
                yield name, node
            case _:
                yield from _defined(node)
    if isinstance(scope, ast.ClassDef):
        for node in ast.walk(scope):
            match node:
                case ast.Attribute(ast.Name("self"), name, ast.Store()):
                    yield name, node


def _of_annotations(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes in annotations."""
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                yield from ast.walk(annotation)


def _with_names_for_threads(text: str) -> str:
    """Replace names in code, comments, docstrings and ``__all__``, and in no other string."""
    lines: set[int] = set()  # those of docstrings and `__all__`
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str())) | ast.Assign([ast.Name("__all__")]):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    pieces: list[str] = []
    at = 0
    for kind, old, (row, column), *_ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind in {tokenize.NAME, tokenize.COMMENT} or (kind == tokenize.STRING and row in lines):
            start = starts[row - 1] + column
            pieces += text[at:start], _words_renamed(old)
            at = start + len(old)
    return "".join(pieces) + text[at:]


def _without_repeated_types(text: str) -> str:
    """Replace ``X | X`` by ``X`` in annotations, where two types have become one."""
    encoded = text.encode()
    lines = encoded.splitlines(keepends=True)
    cuts: list[tuple[int, int]] = []
    for node in _of_annotations(ast.parse(text)):
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
    if not source.name.startswith("async_"):
        raise RefusedError(f"{source.name}: the name of a source begins with 'async_'; rename it")
    try:
        text = synchronous(source.read_text("utf-8"))
    except RefusedError as error:
        raise RefusedError(f"{source.name}: {error}") from error
    header = f"# Made from {source.name} by `{COMMAND}`: change that file, and run this command.\n"
    text = _ruff(["check", "--fix", "--select", "F401,I001"], header + text, target)
    return _ruff(["format"], text, target)


def twin(source: Path) -> Path:
    """Return the path of a module's synchronous twin."""
    return source.parent / FOLDER / source.name.removeprefix("async_")


def _without_source(folder: Path) -> list[Path]:
    """Return the modules in a folder of twins that no source generates any more."""
    present = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    return [
        path
        for path in present
        if f"async_{path.stem}" in _BY_HAND
        or not path.parent.with_name(f"async_{path.name}").exists()
    ]


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
    texts: dict[Path, str] = {}  # what the folders of the twins shall contain
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Half of the time, ruff works.
        making = {
            twin(source): pool.submit(made, source, twin(source))
            for source in (ROOT / name for name in asked.sources)
        }
    for target, future in making.items():
        try:
            texts[target] = future.result()
        except RefusedError as error:
            sys.stderr.write(f"{error}\n")
            failed = True
        texts[target.with_name("__init__.py")] = _INIT
    for target, new in texts.items():
        old = target.read_text("utf-8") if target.exists() else ""
        if new == old:
            continue
        if not asked.check:
            target.parent.mkdir(exist_ok=True)
            target.write_text(new, "utf-8")
            continue
        failed = True
        sys.stderr.writelines(
            difflib.unified_diff(old.splitlines(True), new.splitlines(True), "there", "made")
        )
        sys.stderr.write(f"{target.name} is out of date with its source: run `{COMMAND}`\n")
    for folder in sorted({target.parent for target in texts}):
        for path in _without_source(folder):
            if not asked.check:
                path.unlink()
                continue
            failed = True
            sys.stderr.write(f"{path.name} has no source any more: run `{COMMAND}`\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
