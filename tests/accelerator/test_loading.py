"""When the accelerator is loaded, and what happens without it."""

from __future__ import annotations

import os

import pytest

import batchkeeper as bk
from batchkeeper.ops import acceleration

from ..compiling import COMPILES
from ..programs import run_python

SHOW = "from batchkeeper.ops import acceleration as a; print(a.ACCELERATED, a.REASON)"
PURE = os.environ.get("BATCHKEEPER_PURE", "0") not in {"", "0"}


def test_the_accelerator_is_there_if_it_could_be_compiled() -> None:
    """With a C compiler and Python's headers, an installation has it, and uses it."""
    if COMPILES and not PURE:
        assert acceleration.REASON == ""
    assert bk.accelerated is (acceleration.REASON == "")


def test_every_function_with_a_twin_has_it() -> None:
    """No twin has a name that the extension does not know."""
    missing = {name for name, (_, compiled) in acceleration.PAIRS.items() if compiled is None}
    assert missing == (set() if bk.accelerated else set(acceleration.PAIRS))


@pytest.mark.slow
@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_a_variable_turns_it_off(value: str, off: bool) -> None:
    """BATCHKEEPER_PURE decides, unless it is empty or 0."""
    shown = run_python("-c", SHOW, env={**os.environ, "BATCHKEEPER_PURE": value}, check=True)
    assert (shown.stdout == "False BATCHKEEPER_PURE is set\n") is off
