"""The conformance suite as a pytest plugin, on stores of other packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk

pytestmark = pytest.mark.slow

# A package with a store of its own, as an index would install it: the module, and the metadata that
# announce the store. It keeps its values in memory, and may lack a capability, or have a fault.
MODULE = '''
import os
from dataclasses import replace

from batchkeeper import StoreKind, store_kind
from batchkeeper.ops.results import Stat
from batchkeeper.stores import ConnectOptions, PassingBackend, parse_url

inner = store_kind("memory://x")
lacking = set(os.environ.get("SHELF_LACKS", "").split())


class Shelf(PassingBackend):
    """Passes everything on to a store in memory."""

    def write(self, requests, deadline):
        answers = super().write(requests, deadline)
        if os.environ.get("SHELF_FAULT") == "versions":
            answers = [
                answer._replace(version=answer.version + 1) if isinstance(answer, Stat) else answer
                for answer in answers
            ]
        return answers


def connect(url, options):
    below = parse_url(url.text.replace("shelf://", "memory://", 1))
    return Shelf(inner.load()(below, options))


KIND = StoreKind(
    scheme="shelf",
    title="shelf",
    url_form="shelf://NAME",
    connect=connect,
    capabilities=inner.capabilities - lacking,
    in_process=True,
)
'''
METADATA = "Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n"
ENTRY_POINT = "[batchkeeper.stores]\nshelf = shelf:KIND\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the installed package."""
    folder = tmp_path / "site"
    for name, text in (
        ("shelf.py", MODULE),
        ("shelf-1.0.dist-info/METADATA", METADATA),
        ("shelf-1.0.dist-info/entry_points.txt", ENTRY_POINT),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def suite(
    package: Path, *arguments: str, url: str = "shelf://{unique}", **environment: str
) -> tuple[int, dict[str, int], str]:
    """Run pytest with the plugin in an empty folder; return its code, its counts and its output."""
    project = package.parent / "project"
    project.mkdir(exist_ok=True)
    # Or pytest would find the settings of this project, if the folder lies in it. Many projects
    # allow only the markers that they know.
    (project / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "batchkeeper.testing",
                "-p",
                "no:cacheprovider",
            ),
            *(f"--basetemp={package.parent / 'basetemp'}", "--batchkeeper-store", url, *arguments),
        ],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(package), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    return done.returncode, counts, output


@pytest.mark.full
def test_a_store_of_another_package_passes_the_suite(package: Path) -> None:
    """The store is found by its entry point, and all tests of its capabilities run and pass."""
    code, counts, output = suite(package, "-k", "not batched")
    assert code == 0, output
    assert counts["passed"] > 200
    assert "skipped" not in counts
    stated = ", ".join(sorted(bk.store_kind("memory://x").capabilities))
    assert f"conformance of shelf://{{unique}} (capabilities: {stated})" in output


@pytest.mark.full
def test_a_store_with_fewer_capabilities_passes_with_fewer_tests(package: Path) -> None:
    """Capabilities that it does not state are not tested, except that it refuses them."""
    chosen = ("-k", "single and (test_capabilities or test_revisions or test_sequences)")
    _, whole, _ = suite(package, *chosen)
    code, counts, output = suite(package, *chosen, SHELF_LACKS="expected_revisions sequences")
    assert code == 0, output
    assert 0 < counts["passed"] < whole["passed"]


def test_a_store_with_a_fault_fails(package: Path) -> None:
    """A store that gives wrong versions fails the tests of versions, with the compared values."""
    code, counts, output = suite(package, "-k", "test_answers and single", SHELF_FAULT="versions")
    assert code == 1
    assert counts["failed"] > 5
    # The assertions of the suite are rewritten, as those of any test module.
    assert "At index 1 diff: 1 != 0" in output


@pytest.mark.full
def test_tests_of_the_user_run_beside_the_suite(package: Path) -> None:
    """Where the arguments name tests, those run too, and may use the suite's fixtures."""
    own = package.parent / "project" / "test_own.py"
    own.parent.mkdir()
    own.write_text(
        "def test_own(store, store_url):\n"
        "    assert store_url.startswith('shelf://test-')\n"
        "    assert store.put('/a', b'').result().version == 0\n"
    )
    code, counts, output = suite(package, "-k", "test_own")
    assert (code, counts) == (5, {**counts, "deselected": counts["deselected"]}), output
    assert "passed" not in counts
    code, counts, output = suite(package, "test_own.py", "-k", "test_own")
    assert (code, counts["passed"]) == (0, 2), output


@pytest.mark.full
def test_a_fixture_of_the_suite_can_be_replaced(package: Path) -> None:
    """A conftest.py in the root directory may give each test a store in its own way."""
    conftest = package.parent / "project" / "conftest.py"
    conftest.parent.mkdir()
    conftest.write_text(
        "import uuid, pytest\n"
        "@pytest.fixture\n"
        "def store_url():\n"
        "    return f'shelf://mine-{uuid.uuid4().hex}'\n"
        "@pytest.fixture(autouse=True)\n"
        "def seen(store_url):\n"
        "    assert store_url.startswith('shelf://mine-')\n"
    )
    code, counts, output = suite(package, "-k", "test_bulk and single")
    assert code == 0, output
    assert counts["passed"] > 3


@pytest.mark.full
def test_a_store_without_a_unique_name_is_emptied(package: Path, tmp_path: Path) -> None:
    """The tests share one store, and each finds it empty."""
    url = f"rocksdb://{tmp_path}/store"
    code, counts, output = suite(package, "-k", "test_bulk and single", url=url)
    assert code == 0, output
    assert counts["passed"] > 3
    with bk.open_store(url) as store:
        assert list(store.scan("/")) == []


def test_a_store_with_values_is_spared(package: Path, tmp_path: Path) -> None:
    """Nobody loses a store by a wrong URL: the run ends at once, and nothing is removed."""
    url = f"rocksdb://{tmp_path}/store"
    with bk.open_store(url) as store:
        store.put("/precious", b"1").result()
    code, counts, output = suite(package, "-k", "test_bulk", url=url)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "passed" not in counts
    assert "which is not empty: it holds '/precious'" in output
    with bk.open_store(url) as store:
        assert store.exists("/precious").result()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no-url", "not a store's URL"),
        ("gopher://{unique}", "unknown store scheme 'gopher'"),
    ],
)
def test_a_wrong_url_is_one_line(package: Path, url: str, message: str) -> None:
    """A mistake in the option is a usage error, without a traceback."""
    code, _, output = suite(package, url=url)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --batchkeeper-store: {message}" in output
    assert "Traceback" not in output


@pytest.mark.full
def test_processes_share_the_tests(package: Path) -> None:
    """pytest-xdist works if the tests have stores of their own; otherwise it is refused."""
    code, counts, output = suite(package, "-n", "2", "-k", "test_bulk and single")
    assert code == 0, output
    assert counts["passed"] > 3
    code, _, output = suite(package, "-n", "2", "-k", "test_bulk", url="shelf://one")
    assert code != 0
    assert "only if the URL contains {unique}" in output


def test_without_the_option_the_plugin_does_nothing(package: Path) -> None:
    """A project that loads the plugin always, in its pytest.ini, runs its own tests only."""
    project = package.parent / "project"
    project.mkdir()
    (project / "test_own.py").write_text("def test_own(): pass\n")
    (project / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "batchkeeper.testing"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1][:8]) == (0, "1 passed")


def test_the_package_needs_pytest_only_as_a_plugin() -> None:
    """Programs may use the faults where pytest is not installed."""
    program = "import sys; sys.modules['pytest'] = None; import batchkeeper.testing as t; "
    program += "print(t.FaultInjector.__name__)"
    environment: dict[str, Any] = dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "FaultInjector\n"
