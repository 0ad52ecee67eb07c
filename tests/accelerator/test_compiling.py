"""The extension itself. These tests are left out where it cannot be compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import batchkeeper as bk

from ..compiling import COMPILER, INCLUDE
from ..programs import run_python
from .test_loading import SHOW

ROOT = Path(__file__).parent.parent.parent
INSTALLED = Path(bk.__file__).parent


@pytest.mark.slow
def test_an_extension_from_other_sources_is_not_used(tmp_path: Path) -> None:
    """In an editable tree, an extension is refused if its sources have changed since."""
    package = tmp_path / "batchkeeper"
    shutil.copytree(INSTALLED, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "accelerator", package / "accelerator", dirs_exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "BATCHKEEPER_PURE": "0"}
    assert run_python("-c", SHOW, env=environment, check=True).stdout == "True \n"
    with open(package / "accelerator" / "etcd.c", "a", encoding="utf-8") as source:
        source.write("\n")
    shown = run_python("-c", SHOW, env=environment, check=True).stdout
    assert shown == "False it was built from other sources; install the package again\n"


def test_a_subinterpreter_does_without() -> None:
    """In another interpreter of the process, the import fails with a reason."""
    module = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
    # Only the module that loads it: other imports of the package crash some interpreters.
    inner = "import sys, types\n"
    for name, folder in (("batchkeeper", INSTALLED), ("batchkeeper.ops", INSTALLED / "ops")):
        inner += f"sys.modules['{name}'] = made = types.ModuleType('{name}')\n"
        inner += f"made.__path__ = ['{folder}']\n"
    inner += f"{SHOW}\nsys.stdout.flush()"
    program = f"import {module} as i; made = i.create(); i.run_string(made, {inner!r}); "
    program += "i.destroy(made)"
    environment = {**os.environ, "BATCHKEEPER_PURE": "0"}
    shown = run_python("-c", program, env=environment, check=True).stdout
    assert shown.startswith("False ")
    assert "interpreter" in shown


@pytest.mark.slow
def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    """The compiler has nothing to remark, with the warnings of -Wall and -Wextra."""
    for source in sorted(ROOT.glob("accelerator/*.c")):
        options = ("-O2", "-Wall", "-Wextra", '-DBATCHKEEPER_SOURCES=""', f"-I{INCLUDE}")
        out = tmp_path / f"{source.stem}.o"
        done = subprocess.run(
            [*COMPILER, *options, "-c", str(source), "-o", str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
