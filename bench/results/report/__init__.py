"""A run as one HTML file with pictures, which opens from disk and fetches nothing.

- ``page``: the page, with advice, conditions, pictures and tables
- ``pictures``: the pictures, drawn by Matplotlib
- ``svg``: their form inside a page, with its colours
"""

from __future__ import annotations

from pathlib import Path

from ....ops.errors import UnsupportedError
from ....stores.kinds import own_module
from ..runs import Run


def check_extra() -> None:
    """Check that the extra ``plots`` is installed, so that a run does not end without its report.

    Raises:
        UnsupportedError: a package is missing. The message says how to install it.
    """
    try:
        from . import pictures  # noqa: F401
    except ImportError as error:
        if own_module(error):
            raise
        raise UnsupportedError(
            f"a report needs the extras 'bench' and 'plots' ({error}): "
            f"pip install 'batchkeeper[bench,plots]'"
        ) from error


def write_report(run: Run, file: Path) -> None:
    """Write a run as one HTML file.

    Raises:
        UnsupportedError: the extra ``plots`` is missing. The message says how to install it.
        InvalidSettingError: a histogram of the run is damaged.
        OSError: the file cannot be written.
    """
    check_extra()
    from .page import page
    from .pictures import pictures

    file.write_text(page(run, pictures(run)), encoding="utf-8")
