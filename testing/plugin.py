"""The pytest plugin that runs the conformance suite on a store.

::

    pytest -p batchkeeper.testing --batchkeeper-store 'consul://127.0.0.1:8500/{unique}'

The suite reads the capabilities that the store's kind states. It runs the tests of those, and for
each missing one a test that the store refuses it. Without arguments that name tests, only the suite
runs. The suite's fixtures can be replaced, as usual, in the ``conftest.py`` of the root directory.
"""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from .. import MetadataStoreError, open_store, store_kind
from ..stores import parse_url

__all__: list[str] = []

_SUITE: Final = f"{__package__}.conformance"
_UNIQUE: Final = "{unique}"

pytest.register_assert_rewrite(_SUITE, f"{__package__}.waiting", f"{__package__}.contents")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that names the store."""
    parser.getgroup("batchkeeper").addoption(
        "--batchkeeper-store",
        metavar="URL",
        help="run batchkeeper's conformance suite on this store. {unique} in the URL becomes a "
        "different name in each test. Without it, the store must be empty, and is emptied after "
        "each test.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the store's URL, and prepare the suite."""
    config.addinivalue_line(
        "markers", "needs(*capabilities): runs on the stores that state these capabilities"
    )
    config.addinivalue_line("markers", "call: the call decides, before any store is reached")
    config.addinivalue_line("markers", "slow: takes more than half a second")
    url: str | None = config.getoption("batchkeeper_store")
    if url is None:
        return
    try:
        store_kind(parse_url(url.replace(_UNIQUE, "name")))
    except MetadataStoreError as error:
        raise pytest.UsageError(f"--batchkeeper-store: {error}") from error
    if _UNIQUE not in url and hasattr(config, "workerinput"):  # a process of pytest-xdist
        raise pytest.UsageError(
            f"--batchkeeper-store: processes can share the tests only if the URL contains "
            f"{_UNIQUE}: {url}"
        )
    _suite()
    config.pluginmanager.import_plugin(f"{_SUITE}.conftest")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = []


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the store and its capabilities."""
    url: str | None = config.getoption("batchkeeper_store")
    if url is None:
        return None
    stated = ", ".join(sorted(store_kind(url.replace(_UNIQUE, "name")).capabilities)) or "none"
    return f"batchkeeper: conformance of {url} (capabilities: {stated})"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the URL to the tests that use it, also to those of the user."""
    url: str | None = metafunc.config.getoption("batchkeeper_store")
    if url is not None and "store_url" in metafunc.fixturenames:
        metafunc.parametrize("store_url", [url], ids=[url.partition(":")[0]], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of the suite."""
    if config.getoption("batchkeeper_store") is None:
        return
    for path in sorted(Path(_suite().__path__[0]).glob("test_*.py")):
        node = f"{_SUITE.replace('.', '/')}/{path.name}"
        module = _SuiteModule.from_parent(session, path=path, name=node, nodeid=node)
        items += session.genitems(module)


class _SuiteModule(pytest.Module):
    """A module of the suite. It is imported by its name, whatever the way of importing tests."""

    def _getobj(self) -> ModuleType:
        return importlib.import_module(f"{_SUITE}.{self.path.stem}")


def _suite() -> ModuleType:
    """Import the package of the suite."""
    try:
        return importlib.import_module(_SUITE)
    except ModuleNotFoundError as error:
        if error.name != _SUITE:
            raise
        # An editable install does not find it, because it lies among the tests of the checkout.
        package = ModuleType(_SUITE)
        package.__path__ = [str(Path(__file__).parents[1] / "tests" / "conformance")]
        sys.modules[_SUITE] = package
        return package


@pytest.fixture(scope="session")
def _batchkeeper_store_is_empty(request: pytest.FixtureRequest) -> None:
    """Refuse a store with values before the suite removes any."""
    url: str = request.config.getoption("batchkeeper_store")
    with open_store(url) as store:
        found = next(store.scan("/"), None)
    if found is not None:
        pytest.exit(
            f"--batchkeeper-store: the suite removes all values of {url}, which is not empty: it "
            f"holds {found.path!r}",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty store for one test."""
    given: str | None = getattr(request, "param", None)
    if given is None:
        raise pytest.UsageError("store_url needs the option --batchkeeper-store")
    if _UNIQUE in given:
        url = given.replace(_UNIQUE, f"test-{uuid.uuid4().hex}")
    else:
        url = given
        request.getfixturevalue("_batchkeeper_store_is_empty")
    yield url
    if not store_kind(url).in_process:
        with open_store(url, create=False) as store:
            store.delete_recursive("/").result()
