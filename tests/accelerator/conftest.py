"""Leaves out the tests that need what is not there, because no test may be skipped.

``test_loading.py`` asserts that the accelerator is there if it could be compiled.
"""

from __future__ import annotations

from pathlib import Path

import batchkeeper as bk

from ..compiling import COMPILES

collect_ignore = [] if COMPILES else ["test_compiling.py"]
if not bk.accelerated:
    everywhere = {"test_compiling.py", "test_loading.py"}
    found = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    collect_ignore += sorted(found - everywhere)
