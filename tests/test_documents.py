"""The documents: their first example runs, and their links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from batchkeeper.testing import FaultInjector

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def examples(document: str) -> list[str]:
    """Return the Python examples of a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example runs unchanged without a server, and prints what its comments say."""
    first = examples("README.md")[0]
    assert "memory://" in first
    exec(compile(first, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("GetResult(value=b'hub-1', stat=Stat(")
    assert printed[1] == "['t1']"


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
    exec(compile(example, "docs/observability.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    # Of each print, its comment; the ones without are numbers that differ from run to run.
    prints = re.findall(r"^ *print\(.*?\)(?: +# (.*))?$", example, re.MULTILINE)
    assert len(printed) == len(prints)
    for line, said in zip(printed, prints, strict=True):
        assert not said or said == line or said.startswith("an estimate")


@pytest.mark.parametrize(
    "document", ["README.md", "docs/stores.md", "docs/spark.md", "docs/testing.md"]
)
def test_the_examples_are_python(document: str) -> None:
    """Each example compiles, and may use await as if inside a coroutine."""
    for example in examples(document):
        compile(example, document, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_examples_of_watches_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example runs unchanged without a server, and prints its events."""
    threads, tasks = examples("docs/watches.md")
    exec(compile(threads, "docs/watches.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "WatchEvent(kind='created', path='/topics/t1', version=0, revision=1)",
        "WatchEvent(kind='modified', path='/topics/t1', version=1, revision=2)",
        "deleted /topics/t1",
    ]
    compile(tasks, "docs/watches.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


# The tests of the others, in tests/coordination, also look at what their examples print.
RECIPES = ("barriers-and-queues", "counters", "fencing", "groups")


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_examples_of_recipes_run(recipe: str) -> None:
    """Each example that opens a store in memory runs unchanged; the others are Python."""
    name = f"docs/{recipe}.md"
    found = [compile(e, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT) for e in examples(name)]
    whole = [e for e in examples(name) if "memory://" in e]
    assert found
    assert whole
    for example in whole:
        exec(compile(example, name, "exec"), {})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document: Path) -> None:
    """A link within the repository names a file that is there, and one of its headings."""
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


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
    if path.relative_to(ROOT).parts[0] in PACKAGED
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_package_lists_its_modules(package: Path) -> None:
    """The docstring of a package has a line for each of its modules, and no others."""
    head = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    listed = re.findall(r"^- ``(\w+)``: .", head, re.MULTILINE)
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert len(listed) == len(set(listed))
    assert set(listed) == modules | folders
