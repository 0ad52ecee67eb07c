"""Whether this machine can compile the accelerator."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Final

__all__ = ["COMPILER", "COMPILES", "INCLUDE"]

#: The command of the C compiler that Python was built with.
COMPILER: Final = (sysconfig.get_config_var("CC") or "cc").split()
#: The folder of Python's headers.
INCLUDE: Final = Path(sysconfig.get_path("include"))
#: Whether an installation compiles the accelerator.
COMPILES: Final = (
    shutil.which(COMPILER[0]) is not None
    and (INCLUDE / "Python.h").exists()
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
