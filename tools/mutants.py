"""Show what the tests protect: seed faults one by one, and see which of them the tests find.

``python tools/mutants.py`` runs every fault of ``tools/mutants/*.toml``, as ``tox -e mutants`` does.
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
A list that no longer fits the sources is refused as a whole: repair it with the change that it no
longer fits.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import faces

COMMAND: Final = "python tools/mutants.py"
ROOT: Final = Path(__file__).parent.parent

# Seconds for one test, and for all tests of one fault. A fault that makes a test hang is found.
_LONGEST_TEST: Final = 60
_LONGEST_RUN: Final = 300

_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+)", re.MULTILINE)
_BEGUN: Final = re.compile(r"^(tests/\S+::.+?)(?: (?:PASSED|FAILED|ERROR).*)?$", re.MULTILINE)
# It compares the files of the installed package, and so would find every fault.
_LEFT_OUT: Final = "tests/test_packaging.py"


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

    def applied(self, source: Path) -> str:
        """Return the text of the file with the fault.

        Raises:
            ListError: the old text does not occur exactly once, or the new text is no Python.
        """
        if not source.is_file():
            raise ListError(f"{self.title}: there is no such file")
        text = source.read_text("utf-8")
        if (count := text.count(self.old)) != 1:
            raise ListError(f"{self.title}: the old text occurs {count} times, not once")
        changed = text.replace(self.old, self.new)
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise ListError(f"{self.title}: with the new text: {error}") from error
        if same:
            raise ListError(f"{self.title}: the new text means the same")
        return changed

    def has_compiled_twin(self, source: Path) -> bool:
        """Say whether the place is in a function that the accelerator replaces."""
        text = source.read_text("utf-8")
        line = text.count("\n", 0, text.index(self.old)) + 1
        last = line + self.old.count("\n")
        return any(
            isinstance(node, ast.FunctionDef)
            and node.lineno <= last
            and line <= (node.end_lineno or node.lineno)
            and any("accelerated" in ast.unparse(mark) for mark in node.decorator_list)
            for node in ast.walk(ast.parse(text))
        )


@dataclass(frozen=True)
class Result:
    """What the tests say about one fault."""

    file: str
    why: str
    verdict: str  # "found", "not found", or why it could not be said
    by: str  # the first test that failed, or that hung
    seconds: float


def read_faults(folder: Path, only: str) -> list[Fault]:
    """Return the faults of a folder whose title matches a pattern, in order of the files."""
    faults = [
        Fault(**row)
        for path in sorted(folder.glob("*.toml"))
        for row in tomllib.loads(path.read_text("utf-8"))["fault"]
    ]
    twice = [title for title, n in Counter(fault.title for fault in faults).items() if n > 1]
    if twice:
        raise ListError(f"{twice[0]}: occurs twice")
    return [fault for fault in faults if re.search(only, fault.title)]


class Copy:
    """A copy of the installed package, which is imported instead of it."""

    def __init__(self, folder: Path) -> None:
        found = importlib.util.find_spec("batchkeeper")
        assert found is not None
        assert found.origin is not None
        self.folder = folder
        self.package = folder / "batchkeeper"
        shutil.copytree(Path(found.origin).parent, self.package)
        self.environment = {**os.environ, "PYTHONPATH": str(folder)}
        self.environment.pop("BATCHKEEPER_PURE", None)
        code = "import batchkeeper; print(batchkeeper.__file__)"
        place = subprocess.check_output([sys.executable, "-c", code], text=True, **self._where())
        if Path(place.strip()).parent != self.package:
            raise ListError(f"the tests would import {place.strip()}, not {self.package}")

    def _where(self) -> dict[str, object]:
        return {"cwd": ROOT, "env": self.environment}

    @contextmanager
    def broken(self, fault: Fault) -> Iterator[None]:
        """Have the fault in the copy, and in the twin that is generated from its file."""
        source = self.package / fault.file
        texts = {source: source.read_bytes()}
        changed = fault.applied(source)
        if fault.file in faces.SOURCES:
            twin = faces.twin(source)
            texts[twin] = twin.read_bytes()
        try:
            _write(source, changed.encode())
            for twin in list(texts)[1:]:
                _write(twin, faces.made(source, twin).encode())
            yield
        finally:
            for path, text in texts.items():
                _write(path, text)

    def run(self, fault: Fault, tests: str) -> Result:
        """Run tests with the fault."""
        began = time.monotonic()
        pure = fault.has_compiled_twin(self.package / fault.file)
        with self.broken(fault):
            code, output = self._run_tests(shlex.split(tests), pure=pure)
        failed = _FAILED.search(output)
        begun = _BEGUN.findall(output)
        if code is None or code <= 1:  # below 0: a signal has ended a run that hung
            verdict = "found" if code != 0 else "not found"
        else:
            verdict = f"cannot be said: pytest ended with {code}"
            sys.stderr.write(output[-2000:])
        by = "" if code == 0 else failed[1] if failed else f"{begun[-1]} (hung)" if begun else "?"
        return Result(fault.file, fault.why, verdict, by, round(time.monotonic() - began, 1))

    def _run_tests(self, tests: Sequence[str], *, pure: bool) -> tuple[int | None, str]:
        """Run tests until one fails; return pytest's exit code, or ``None`` if they hang."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-v",
            "--tb=line",
            "-p",
            "no:cacheprovider",
        ]
        command += ["--import-mode=importlib", f"--basetemp={self.folder / 'pytest'}"]
        command += ["-o", f"faulthandler_timeout={_LONGEST_TEST}", f"--ignore={_LEFT_OUT}"]
        where = self._where()
        if pure:
            where["env"] = {**self.environment, "BATCHKEEPER_PURE": "1"}
        with subprocess.Popen(
            [*command, *tests],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its servers end with it
            **where,
        ) as process:
            try:
                return _answer(process, _LONGEST_RUN)
            finally:
                _kill(process.pid)


def _answer(process: subprocess.Popen[str], seconds: float) -> tuple[int | None, str]:
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        output, _ = process.communicate()
        return None, output
    return process.returncode, output


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _write(path: Path, text: bytes) -> None:
    """Write a module, so that no bytecode of its text before is used, however alike they are."""
    path.write_bytes(text)
    py_compile.compile(str(path), doraise=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the faults; return 1 if the tests miss one, 2 if the list does not fit."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="a pattern that FILE: WHY must contain")
    parser.add_argument("--tests", help="run these instead of the tests that a fault names")
    parser.add_argument("--check", action="store_true", help="only check that the list fits")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    parser.add_argument("-j", type=int, default=2, help="the faults to run at a time")
    parser.add_argument("--list", type=Path, default=ROOT / "tools" / "mutants")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        try:
            faults = read_faults(asked.list, asked.only)
            for fault in faults:
                fault.applied(ROOT / fault.file)
            if asked.check:
                return 0
            copies: SimpleQueue[Copy] = SimpleQueue()
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
                copies.put(copy)
            print(
                f"{result.verdict:9} {result.seconds:5} s  {fault.title}  [{result.by}]", flush=True
            )
            return result

        with ThreadPoolExecutor(asked.j) as pool:
            results = list(pool.map(run, faults))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    verdicts = Counter(result.verdict for result in results)
    print(f"\n{len(results)} faults in {time.monotonic() - began:.0f} s:", dict(verdicts))
    return int(verdicts["found"] < len(results))


if __name__ == "__main__":
    sys.exit(main())
