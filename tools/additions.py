"""Show that nobody can add to the operations without being told of every store.

``python tools/additions.py`` runs in the environment of the types, as ``tox -e additions`` does. In
a copy of the installed package, it adds what a developer might add first: a kind of writes, an
option of puts, a condition and an effect. Whatever a store would do with them unasked is wrong: it
would acknowledge what it has not done. So mypy names the lowering for a kind, and for a condition
or an effect each module that decides by them. Memory and RocksDB leave every condition to
``stores/refusals.py``. An option ends the import until it is listed and lowered, until it is
refused where it cannot go with ``sequential``, and until it has a capability, which no store states
by itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import batchkeeper

#: For each addition that mypy notices, the modules that it has to name.
NAMED: Final[dict[str, set[str]]] = {
    "kind": {"ops/steps.py"},
    "condition": {
        *("stores/refusals.py", "stores/zookeeper/writes/forms.py"),
        "stores/etcd/writes/forms.py",
    },
    "effect": {
        *("stores/refusals.py", "stores/memory.py"),
        *("stores/rocksdb/backend.py", "stores/rocksdb/drafts.py"),
        *("stores/zookeeper/writes/forms.py", "stores/etcd/writes/forms.py"),
    },
}


class Change(NamedTuple):
    """A text that a module has once, and what it becomes."""

    module: str
    old: str
    new: str


#: The additions that mypy notices.
TYPES: Final = {
    "kind": Change(
        "ops/operations.py",
        'Literal["put", "delete", "transaction"]',
        'Literal["put", "delete", "transaction", "touch"]',
    ),
    "condition": Change(
        "ops/steps.py",
        'Literal["any", "absent", "exists"]',
        'Literal["any", "absent", "exists", "touched"]',
    ),
    "effect": Change(
        "ops/steps.py", 'Literal["nothing", "delete"]', 'Literal["nothing", "delete", "touch"]'
    ),
}
_OPTION: Final = Change(
    "ops/operations.py",
    "    expected_revision: int | None = None\n\n    def __post_init__",
    "    expected_revision: int | None = None\n    touch: bool = False\n\n    def __post_init__",
)
_LISTED: Final = Change("ops/steps.py", '{"ephemeral",', '{"touch", "ephemeral",')
_LOWERED: Final = Change(
    "ops/steps.py",
    "    elif expected is not None or",
    "    elif getattr(options, 'touch', False):\n        condition = 'exists'\n"
    "    elif expected is not None or",
)
_REFUSED: Final = Change(
    "ops/operations.py",
    "        if self.sequential and self",
    "        if self.sequential and self.touch:\n            raise InvalidSettingError('touch')\n"
    "        if self.sequential and self",
)
_UNHANDLED: Final = re.compile(
    r'^batchkeeper/(\S+):\d+: error: .*"assert_never".*\'touch', re.MULTILINE
)


def unnoticed_type(folder: Path, name: str) -> str | None:
    """Add to a type; return what is wrong with what mypy says."""
    with _changed(folder, TYPES[name]):
        output = _run(folder, "-m", "mypy", "--strict", "-p", "batchkeeper.stores")
    if unnamed := NAMED[name] - set(_UNHANDLED.findall(output)):
        return f"mypy names no place in {', '.join(sorted(unnamed))}:\n{output}"
    return None


def unnoticed_option(folder: Path) -> str | None:
    """Add an option of puts; return what is wrong with how the package takes it."""
    opened = "import batchkeeper; batchkeeper.open_store('memory://x')"
    with _changed(folder, _OPTION):
        output = _run(folder, "-c", opened)
        if "options that are not lowered" not in output or "touch" not in output:
            return f"the import goes on, although the option is not lowered:\n{output}"
        with _changed(folder, _LISTED):
            output = _run(folder, "-c", opened)
            if "the lowering ignores" not in output or "touch" not in output:
                return f"the import goes on, although the lowering ignores the option:\n{output}"
            with _changed(folder, _LOWERED):
                output = _run(folder, "-c", opened)
                if "a sequential put creates its path" not in output:
                    return f"the import goes on, although a sequential put takes it:\n{output}"
                with _changed(folder, _REFUSED):
                    output = _run(folder, "-c", opened)
    if "options without a capability" not in output or "touch" not in output:
        return f"a store opens, although the option needs no capability:\n{output}"
    return None


@contextmanager
def _changed(folder: Path, change: Change) -> Generator[None, None, None]:
    file = folder / "batchkeeper" / change.module
    text = file.read_text("utf-8")
    if text.count(change.old) != 1:
        raise SystemExit(f"{change.module} does not have once: {change.old}")
    file.write_text(text.replace(change.old, change.new), "utf-8")
    try:
        yield
    finally:
        file.write_text(text, "utf-8")


def _run(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ended.stdout


def main() -> int:
    """Try each addition; return the number of those that somebody would not notice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(Path(batchkeeper.__file__).parent, folder / "batchkeeper")
        wrong = {kind: unnoticed_type(folder, kind) for kind in TYPES}
        wrong["option"] = unnoticed_option(folder)
    for added, said in wrong.items():
        sys.stdout.write(f"{added}: {said or 'all are named'}\n")
    return sum(said is not None for said in wrong.values())


if __name__ == "__main__":
    sys.exit(main())
