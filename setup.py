"""Builds the accelerator where that is possible. All else about the build is in pyproject.toml.

This cannot be declared there: an interpreter without the stable ABI gets a package without the
accelerator, and so does a machine without a C compiler or Python's headers. Such a wheel is pure.
"""

from __future__ import annotations

import platform
import sysconfig
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

# Relative, as setuptools wants them; builds run in this folder.
SOURCES = sorted(str(path) for path in Path("accelerator").glob("*.[ch]"))
STABLE_ABI = platform.python_implementation() == "CPython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)


class Wheel(bdist_wheel):
    """Tags a wheel by what has been built."""

    def get_tag(self) -> tuple[str, str, str]:
        if any(Path(self.bdist_dir).glob("batchkeeper/_accelerator.*")):
            return super().get_tag()
        return "py3", "none", "any"


def accelerator() -> Extension:
    """Return the extension; a failure to compile it does not fail the build."""
    # ops/acceleration.py compares this with the sources in an editable tree.
    checksum = zlib.crc32(b"".join(Path(name).read_bytes() for name in SOURCES))
    return Extension(
        "batchkeeper._accelerator",
        [name for name in SOURCES if name.endswith(".c")],
        depends=[name for name in SOURCES if name.endswith(".h")],
        define_macros=[("BATCHKEEPER_SOURCES", f'"{checksum:08x}"')],
        extra_compile_args=["-fvisibility=hidden"],
        optional=True,
        py_limited_api=True,
    )


setup(
    script_name="setup.py",  # A build by pip has another name, and would install this as a module.
    cmdclass={"bdist_wheel": Wheel},
    ext_modules=[accelerator()] if STABLE_ABI else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
