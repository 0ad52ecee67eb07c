"""The documents: their examples run, and their links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import itertools
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import cli
from batchkeeper.testing import FaultInjector

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def examples(document: str) -> list[str]:
    """Return the Python examples of a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


#: The documents whose examples run on a store in memory, and on a real etcd.
IN_MEMORY = (
    "README.md",
    "docs/barriers-and-queues.md",
    "docs/batching.md",
    "docs/cache.md",
    "docs/elections.md",
    "docs/fencing.md",
    "docs/groups.md",
    "docs/guarantees.md",
    "docs/hbase.md",
    "docs/locks.md",
    "docs/tooz.md",
    "docs/watches.md",
)
ON_ETCD = ("docs/counters.md", "docs/operations.md", "docs/quickstart.md", "docs/stores.md")
#: Those that have tests of their own: below, in tests/pipeline and in tests/testing.
ELSEWHERE = (
    "docs/hubs.md",
    "docs/observability.md",
    "docs/reference/extending.md",
    "docs/spark.md",
    "docs/spark-cluster.md",
    "docs/testing.md",
)


def run_examples(document: str, url: str) -> None:
    """Run the examples of a document one after the other, with the names of those before.

    Each finds an open ``store`` and the package as ``bk``. It may use ``await`` as if inside a
    coroutine; then the store is one for tasks.
    """
    space: dict[str, Any] = {"bk": bk}
    for number, example in enumerate(examples(document)):
        source = example.replace("etcd://127.0.0.1:2379", url)
        code = compile(source, f"{document}:{number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(_run_as_coroutine(code, space, url))
        else:
            with bk.open_store(url) as space["store"]:
                exec(code, space)


async def _run_as_coroutine(code: CodeType, space: dict[str, Any], url: str) -> None:
    async with bk.open_async_store(url) as space["store"]:
        await eval(code, space)


@pytest.mark.slow
@pytest.mark.parametrize("document", IN_MEMORY)
def test_the_examples_run(document: str) -> None:
    """Each example runs, in the order of the document, without a server."""
    run_examples(document, "memory://example-of-a-document")


@pytest.mark.server
@pytest.mark.parametrize("document", ON_ETCD)
def test_the_examples_run_on_etcd(document: str, fresh_url: Callable[[str], str]) -> None:
    """Each example runs, in the order of the document, on a real server."""
    run_examples(document, fresh_url("etcd"))


def test_all_examples_run() -> None:
    """No document with examples is missing in the lists above."""
    found = {str(path.relative_to(ROOT)) for path in DOCUMENTS if "```python" in path.read_text()}
    assert found == {*IN_MEMORY, *ON_ETCD, *ELSEWHERE}


def test_the_first_example_of_the_readme_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first example prints what its comments say."""
    exec(compile(examples("README.md")[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("GetResult(value=b'hub-1', stat=Stat(")
    assert printed[1] == "['t1']"


#: The blocks of shell of each document, joined.
SHELL = {
    str(path.relative_to(ROOT)): "\n".join(blocks)
    for path in DOCUMENTS
    if (blocks := re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL))
}


@pytest.mark.slow
@pytest.mark.parametrize("document", SHELL)
def test_shell_examples_run(document: str, tmp_path: Path) -> None:
    """The blocks marked ``sh`` run as they stand, in an empty folder and a bare environment.

    Each line succeeds. Those that name no store find one by the variable that the pages explain.
    """
    command, home, empty = tmp_path / "bin" / "batchkeeper", tmp_path / "home", tmp_path / "empty"
    for folder in (command.parent, home, empty):
        folder.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m batchkeeper "$@"\n')
    command.chmod(0o755)
    env = {
        "PATH": f"{command.parent}{os.pathsep}{os.defpath}",
        "HOME": str(home),
        "BATCHKEEPER_STORE": f"rocksdb://{tmp_path}/store",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", SHELL[document]],
        cwd=empty,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (document, done.stderr)


def commands(document: Path) -> Iterator[list[str]]:
    """Yield the arguments of each call of ``batchkeeper`` in a document's blocks of shell."""
    fences = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    blocks = fences.findall(document.read_text())
    for block in (text for language, text in blocks if language in {"", "sh", "text"}):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"[|&;]+", line):
                if call := re.match(r"\s*(?:\w+=\S+ +)*batchkeeper\b(.*)", part):
                    arguments = shlex.split(call[1], comments=True)
                    yield list(itertools.takewhile(lambda word: word not in "<>", arguments))


@pytest.mark.slow
def test_the_command_knows_the_documented_calls() -> None:
    """Each call of the command in a document has commands and options that there are."""
    for arguments in itertools.chain.from_iterable(map(commands, DOCUMENTS)):
        if arguments != ["COMMAND", "--help"]:
            cli._parser(arguments).parse_args(arguments)


def test_the_documents_call_the_command() -> None:
    """The search for calls finds them: with variables before them, on several lines, in pipes."""
    found = {str(path.relative_to(ROOT)): list(commands(path)) for path in DOCUMENTS}
    assert ["servers", "install", "etcd@3.7", "zookeeper@3.6", "hbase"] in found["docs/stores.md"]
    assert ["scan", "/", "--no-ephemeral", "-o", "jsonl"] in found["docs/command.md"]
    assert any("--master" in arguments for arguments in found["docs/spark-cluster.md"])


def test_documented_names_exist() -> None:
    """The attributes of the package and of a store that a document uses exist."""
    for document in DOCUMENTS:
        text = document.read_text()
        for name in re.findall(r"\bbk\.(\w+)", text):
            assert hasattr(bk, name), (document, name)
        for name in re.findall(r"\bstore\.(\w+)\(", text):
            assert hasattr(bk.MetadataStore, name), (document, name)


#: The faces that the reference covers, with the page of each.
FACES = (
    ("batchkeeper", ("stores", "operations", "errors", "coordination", "extending")),
    ("batchkeeper.hubs", ("hubs",)),
    ("batchkeeper.observability", ("observability",)),
    ("batchkeeper.pipeline", ("extending",)),
    ("batchkeeper.testing", ("extending",)),
)
#: Types that only annotations name: unions, literals and functions.
ALIASES = {"Capability", "Operation", "Result", "SessionEvent", "SessionState", "Target", "Wrapper"}


@pytest.mark.parametrize(("module", "pages"), FACES, ids=[module for module, _ in FACES])
def test_the_reference_is_complete(module: str, pages: tuple[str, ...]) -> None:
    """Each public name has its place in the reference, once."""
    text = "".join((ROOT / f"docs/reference/{page}.md").read_text() for page in pages)
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE)
    assert set(importlib.import_module(module).__all__) - set(listed) - ALIASES == set()
    assert len(listed) == len(set(listed))


def test_the_worked_example_of_faults_runs() -> None:
    """The tests in the example pass, unchanged; the examples of choices are those of the API."""
    worked, choices = examples("docs/testing.md")
    space: dict[str, Any] = {}
    exec(compile(worked, "docs/testing.md", "exec"), space)
    tests = [found for name, found in space.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()
    space["faults"] = faults = FaultInjector()
    exec(compile(choices, "docs/testing.md", "exec"), space)
    assert len(faults.armed) == 5


@pytest.mark.parametrize("example", examples("docs/hubs.md"))
def test_the_examples_of_hubs_run(example: str) -> None:
    """Each of them runs unchanged, without a server."""
    code = compile(example, "docs/hubs.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, {})
    if inspect.iscoroutine(found):
        asyncio.run(found)


@pytest.mark.parametrize("example", examples("docs/observability.md"))
def test_the_examples_of_observability_run(
    example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them runs unchanged, and prints what its comments say."""
    logger = logging.getLogger("batchkeeper")
    level, handlers = logger.level, [*logger.handlers]
    try:
        exec(compile(example, "docs/observability.md", "exec"), {})
    finally:  # One of them configures logging, and other tests see what is logged.
        logger.setLevel(level)
        logger.handlers[:] = handlers
    printed = capsys.readouterr().out.splitlines()
    # Of each print, its comment; the ones without are numbers that differ from run to run.
    prints = re.findall(r"^ *print\(.*?\)(?: +# (.*))?$", example, re.MULTILINE)
    assert len(printed) == len(prints)
    for line, said in zip(printed, prints, strict=True):
        assert not said or said == line or said.startswith("an estimate")


def test_the_examples_of_watches_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    """The first prints its events, the second what a view has."""
    threads, view, _ = examples("docs/watches.md")
    for example in (threads, view):
        exec(compile(example, "docs/watches.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[:6] == [
        "WatchEvent(kind='created', path='/topics/t1', version=0, revision=1)",
        "WatchEvent(kind='modified', path='/topics/t1', version=1, revision=2)",
        "deleted /topics/t1",
        "hub-1",
        "['t1']",
        "None",
    ]


def test_links_lead_somewhere() -> None:
    """A link within the repository names a file that is there, and one of its headings."""
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = document.parent / name if name else document
            assert target.is_file(), (document, link)
            assert not anchor or anchor in anchors(target), (document, link)


def test_the_design_names_files_that_are_there() -> None:
    """A module with its folder, as in ``stores/memory.py``, is there."""
    names = re.compile(r"`([\w*]+(?:/[\w*]+)*/[\w*]+\.(?:py|md|toml))`")
    for document in [ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/design/*.md")]:
        for name in names.findall(document.read_text()):
            inside = name.startswith(("etcd/", "zookeeper/", "rocksdb/"))
            assert list(ROOT.glob(f"stores/{name}" if inside else name)), (document, name)


PACKAGED = {
    "batching",
    "bench",
    "commands",
    "coordination",
    "hubs",
    "observability",
    "ops",
    "pipeline",
    "stores",
    "testing",
}
PACKAGES = sorted(
    path.parent
    for path in ROOT.glob("*/**/__init__.py")
    if path.relative_to(ROOT).parts[0] in PACKAGED and path.parent.name != "_sync"
)


def test_each_package_lists_its_modules() -> None:
    """The docstring of a package has a line for each of its modules, and no others."""
    for package in PACKAGES:
        head = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
        listed = re.findall(r"^- ``(\w+)``: .", head, re.MULTILINE)
        modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
        folders = {path.parent.name for path in package.glob("*/__init__.py")} - {"_sync"}
        assert sorted(listed) == sorted(modules | folders), package
