"""When the accelerator is loaded, and what happens without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.ops import acceleration

from ..compiling import COMPILER, COMPILES, INCLUDE
from ..programs import run_python

ROOT = Path(__file__).parent.parent.parent
SHOW = "from batchkeeper.ops import acceleration as a; print(a.ACCELERATED, a.REASON)"
PURE = os.environ.get("BATCHKEEPER_PURE", "0") not in {"", "0"}
INSTALLED = Path(bk.__file__).parent


def test_the_accelerator_is_there_if_it_could_be_compiled() -> None:
    """With a C compiler and Python's headers, an installation has it, and uses it."""
    if COMPILES and not PURE:
        assert acceleration.REASON == ""
    assert bk.accelerated is (acceleration.REASON == "")


def test_every_function_with_a_twin_has_it() -> None:
    """No twin has a name that the extension does not know."""
    missing = {name for name, (_, compiled) in acceleration.PAIRS.items() if compiled is None}
    assert missing == (set() if bk.accelerated else set(acceleration.PAIRS))


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_a_variable_turns_it_off(value: str, off: bool) -> None:
    """BATCHKEEPER_PURE decides, unless it is empty or 0."""
    shown = run_python("-c", SHOW, env={**os.environ, "BATCHKEEPER_PURE": value}, check=True)
    assert (shown.stdout == "False BATCHKEEPER_PURE is set\n") is off


needs_extension = pytest.mark.skipif(
    not COMPILES, reason="the accelerator cannot be compiled on this machine"
)


@needs_extension
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


@needs_extension
def test_a_subinterpreter_does_without() -> None:
    """In another interpreter of the process, the import fails with a reason."""
    module = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
    pytest.importorskip(module)
    inner = f"import sys; sys.path[:] = {sys.path!r}; {SHOW}; sys.stdout.flush()"
    program = f"import {module} as i; made = i.create(); i.run_string(made, {inner!r})"
    environment = {**os.environ, "BATCHKEEPER_PURE": "0"}
    shown = run_python("-c", program, env=environment, check=True).stdout
    assert shown.startswith("False ")
    assert "interpreter" in shown


@needs_extension
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
