"""Leaves out the tests of a browser where there is none.

No test is skipped (see ``tests/conftest.py``), and Chromium is no requirement of this project. So
tests with the mark ``browser`` are deselected where no Chromium is found, and the summary of the
run counts them. The other tests of the report look at its text, and run everywhere.
"""

from __future__ import annotations

import pytest

from .browser import find


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need a browser, if there is none."""
    if find() is not None:
        return
    left_out = [item for item in items if item.get_closest_marker("browser")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
