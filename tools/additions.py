"""Show that nobody can add to the operations without being told of every store.

``python tools/additions.py`` runs in the environment of the types, as ``tox -e additions`` does. In
a copy of the installed package, it adds what a developer might add first: a kind of writes, and an
option of puts. Whatever a store would do with them unasked is wrong: it would acknowledge what it
has not done. So mypy names for the kind every place that decides by kinds, in each store, and the
option ends the import until it has a capability, which no store states by itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import batchkeeper

#: The modules of stores that do different things for different kinds of writes.
DECIDE: Final = {
    *("backend.py", "memory.py", "rocksdb/backend.py", "rocksdb/drafts.py"),
    *("etcd/lost_answers.py", "etcd/plan.py", "etcd/transactions.py", "etcd/txn.py"),
}
_OPERATIONS: Final = "ops/operations.py"
_KINDS: Final = 'WriteKind: TypeAlias = Literal["put", "delete", "transaction"]'
_OPTIONS: Final = "    expected_revision: int | None = None\n\n    def __post_init__"
_UNHANDLED: Final = re.compile(r'stores/([^:]+):\d+: error: .*"assert_never".*touch')


def add_kind(folder: Path) -> str | None:
    """Add a kind of writes; return what is wrong with what mypy says."""
    _change(folder, _KINDS, _KINDS.replace('"transaction"', '"transaction", "touch"'))
    output = _run(folder, "-m", "mypy", "--strict", "-p", "batchkeeper.stores")
    if unnamed := DECIDE - set(_UNHANDLED.findall(output)):
        return f"mypy names no place in {', '.join(sorted(unnamed))}:\n{output}"
    return None


def add_option(folder: Path) -> str | None:
    """Add an option of puts; return what is wrong with how the package takes it."""
    _change(folder, _OPTIONS, _OPTIONS.replace("\n\n", "\n    must_exist: bool = False\n\n"))
    output = _run(folder, "-c", "import batchkeeper; batchkeeper.open_store('memory://x')")
    if "options without a capability" not in output or "must_exist" not in output:
        return f"a store opens, although the option must_exist needs no capability:\n{output}"
    return None


def _change(folder: Path, old: str, new: str) -> None:
    file = folder / "batchkeeper" / _OPERATIONS
    text = file.read_text("utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"{_OPERATIONS} does not have once: {old}")
    file.write_text(text.replace(old, new), "utf-8")


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
    """Try each addition; return the number of those that a store would not notice."""
    wrong = 0
    for add in (add_kind, add_option):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(Path(batchkeeper.__file__).parent, folder / "batchkeeper")
            said = add(folder)
        sys.stdout.write(f"{add.__name__}: {said or 'every store is named'}\n")
        wrong += said is not None
    return wrong


if __name__ == "__main__":
    sys.exit(main())
