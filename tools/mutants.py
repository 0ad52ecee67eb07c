"""Show what the tests protect: seed faults one by one, and see which of them the tests find.

``python tools/mutants.py`` runs all faults of ``tools/mutants/*.toml``, as ``tox -e mutants`` does.
It needs the installed package with the dependencies of its tests, and ruff. For each fault, it
changes one place in a copy of the installed package, and runs the tests that should notice::

    [[fault]]
    file = "batching/lines.py"     # from the root of the repository
    old = "..."                    # occurs exactly once in the file
    new = "..."
    why = "a read does not wait for the earlier write of its path"
    tests = "tests/batching/test_lines.py -k order"  # arguments for pytest

A fault is *found* if a test fails or hangs. A fault in an asynchronous source goes into its
generated twin as well. A fault in a function that has a compiled twin runs without the accelerator.
A list that does not fit the sources is refused as a whole.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import py_compile
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

import faces

import batchkeeper

ROOT: Final = Path(__file__).parent.parent

# Seconds for one test, and for all tests of one fault.
_LONGEST_TEST: Final = 60
_LONGEST_RUN: Final = 300

_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+)", re.MULTILINE)
_BEGUN: Final = re.compile(r"^(tests/\S+::\S+)", re.MULTILINE)
# The first option leaves out what compares the files of the package, and would find every fault.
_PYTEST: Final = (
    "--ignore=tests/test_packaging.py",
    *("-x", "-v", "--tb=line", "--import-mode=importlib", "-p", "no:cacheprovider"),
    *("-o", f"faulthandler_timeout={_LONGEST_TEST}"),
)


class ListError(Exception):
    """The list does not fit the sources."""


@dataclass(frozen=True)
class Fault:
    """One place of a source, how to break it, and the tests that should notice."""

    file: str
    old: str
    new: str
    why: str
    tests: str

    @property
    def title(self) -> str:
        return f"{self.file}: {self.why}"

    def applied(self, package: Path) -> str:
        """Return the text of the file with the fault; raise ``ListError`` if it does not fit."""
        source = package / self.file
        text = source.read_text("utf-8") if source.is_file() else ""
        if (count := text.count(self.old)) != 1:
            raise ListError(f"{self.title}: the old text occurs {count} times, not once")
        changed = text.replace(self.old, self.new)
        try:
            same = ast.dump(ast.parse(changed)) == _dumped(text)
        except SyntaxError as error:
            raise ListError(f"{self.title}: with the new text: {error}") from error
        if same:
            raise ListError(f"{self.title}: the new text means the same")
        return changed

    def has_compiled_twin(self, package: Path) -> bool:
        """Say whether the place is in a function that the accelerator replaces, or one it calls."""
        text = (package / self.file).read_text("utf-8")
        first = text.count("\n", 0, text.index(self.old)) + 1
        last = first + self.old.count("\n")
        tree = [*ast.walk(ast.parse(text))]
        parts = [node for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        replaced = [
            node
            for node in parts
            if any("accelerated" in ast.unparse(mark) for mark in node.decorator_list)
        ]
        inside = [part for node in replaced for part in ast.walk(node)]
        called = {part.id for part in inside if isinstance(part, ast.Name)}
        return any(
            node.lineno <= last and first <= (node.end_lineno or node.lineno)
            for node in parts
            if node in replaced or node.name in called
        )


@functools.cache
def _dumped(text: str) -> str:
    return ast.dump(ast.parse(text))


class Result(NamedTuple):
    """What the tests say about one fault; ``by`` is the first one that failed or hung."""

    file: str
    why: str
    verdict: str
    by: str
    seconds: float


class Copy:
    """A copy of the installed package, which tests import instead of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._package = folder / "batchkeeper"
        shutil.copytree(Path(batchkeeper.__file__).parent, self._package)
        self._environment = {**os.environ, "PYTHONPATH": str(folder), "BATCHKEEPER_PURE": "0"}
        command = [sys.executable, "-c", "import batchkeeper; print(batchkeeper.__file__)"]
        place = subprocess.check_output(command, text=True, cwd=ROOT, env=self._environment)
        if Path(place.strip()).parent != self._package:
            raise ListError(f"the tests would import {place.strip()}, not {self._package}")

    def run(self, fault: Fault, tests: str) -> Result:
        """Run tests with a fault until one fails."""
        began = time.monotonic()
        pure = fault.has_compiled_twin(self._package)
        with self._broken(fault):
            code, output = self._pytest(tests, "1" if pure else "0")
        by = ""
        if code == 0:
            verdict = "not found"
        elif code is None or code <= 1:  # Below 0, a signal has ended a run that hung.
            verdict = "found"
            failed, begun = _FAILED.search(output), _BEGUN.findall(output)
            by = failed[1] if failed else f"{begun[-1]} (hung)" if begun else ""
        else:
            verdict = f"cannot be said: pytest ended with {code}"
            sys.stderr.write(output[-2000:])
        return Result(fault.file, fault.why, verdict, by, round(time.monotonic() - began, 1))

    @contextmanager
    def _broken(self, fault: Fault) -> Iterator[None]:
        """Have a fault in the copy, and in the twin that is generated from its file."""
        source = self._package / fault.file
        twins = [faces.twin(source)] if fault.file in faces.SOURCES else []
        texts = {path: path.read_bytes() for path in (source, *twins)}
        try:
            _write(source, fault.applied(self._package).encode())
            for twin in twins:
                _write(twin, faces.made(source, twin).encode())
            yield
        finally:
            for path, text in texts.items():
                _write(path, text)

    def _pytest(self, tests: str, pure: str) -> tuple[int | None, str]:
        """Return pytest's exit code, ``None`` if it took too long, and its output."""
        with subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", *_PYTEST),
                *(f"--basetemp={self._folder / 'pytest'}", *shlex.split(tests)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env={**self._environment, "BATCHKEEPER_PURE": pure},
            start_new_session=True,  # so that its servers end with it
        ) as process:
            code = None
            try:
                output, _ = process.communicate(timeout=_LONGEST_RUN)
                code = process.returncode
            except subprocess.TimeoutExpired:
                _kill(process.pid)
                output, _ = process.communicate()
            finally:
                _kill(process.pid)
        return code, output


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _write(path: Path, text: bytes) -> None:
    """Write a module, so that no bytecode of its text before is used, however alike they are."""
    path.write_bytes(text)
    py_compile.compile(str(path), doraise=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the faults; return 1 if the tests miss one, 2 if the list does not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="a pattern for FILE: WHY")
    parser.add_argument("--tests", help="run these instead of the tests that a fault names")
    parser.add_argument("--check", action="store_true", help="only check that the list fits")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    parser.add_argument("-j", type=int, default=2, help="the faults to run at a time")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    paths = sorted(ROOT.glob("tools/mutants/*.toml"))
    rows = [row for path in paths for row in tomllib.loads(path.read_text("utf-8"))["fault"]]
    faults = [fault for row in rows if re.search(asked.only, (fault := Fault(**row)).title)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies: SimpleQueue[Copy] = SimpleQueue()
        try:
            for fault in faults:
                fault.applied(ROOT)
            if asked.check:
                return 0
            for number in range(asked.j):
                copies.put(Copy(Path(scratch, str(number))))
        except ListError as error:
            sys.stderr.write(f"{error}\n")
            return 2

        def run(fault: Fault) -> Result:
            copy = copies.get()
            try:
                result = copy.run(fault, asked.tests or fault.tests)
            finally:
                copies.put(copy)  # Or the other faults would wait for it for ever.
            print(
                f"{result.verdict:9} {result.seconds:5} s  {fault.title}  [{result.by}]", flush=True
            )
            return result

        with ThreadPoolExecutor(asked.j) as pool:
            results = list(pool.map(run, faults))
    if asked.json:
        asked.json.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    verdicts = Counter(result.verdict for result in results)
    print(f"\n{len(results)} faults in {time.monotonic() - began:.0f} s:", dict(verdicts))
    return int(verdicts["found"] < len(results))


if __name__ == "__main__":
    sys.exit(main())
