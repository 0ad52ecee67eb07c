"""The arguments for opening a back end: the parts of a URL, and the options."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from ..ops.errors import InvalidSettingError
from ..ops.paths import check_path

__all__ = ["SASL", "ConnectOptions", "Sasl", "StoreURL", "read_password"]

#: A SASL mechanism for a login to ZooKeeper.
Sasl: TypeAlias = Literal["digest-md5", "gssapi"]
SASL: Final[tuple[Sasl, ...]] = get_args(Sasl)

# An IPv6 address may have a zone; a label of a host's name is limited as in DNS.
_IN_BRACKETS: Final = re.compile(r"\[([0-9A-Fa-f:.]+)(?:%[\w.~-]+)?\]", re.ASCII)
_LABEL: Final = re.compile("(?!-)[A-Za-z0-9_-]{1,63}")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store's address in its parts.

    Attributes:
        scheme: the scheme, in lower case.
        hosts: the hosts, each ``host:port`` or ``host``, as given.
        path: the decoded path: a directory, a chroot, a prefix, or ``""``.
        options: the decoded query.
        text: the URL as given. It contains no password.
    """

    scheme: str
    hosts: tuple[str, ...]
    path: str
    options: Mapping[str, str]
    text: str

    def check_options(self, allowed: tuple[str, ...]) -> None:
        """Refuse an option that the store does not know.

        Raises:
            InvalidSettingError: an option is unknown. The message names it and the known ones.
        """
        for name in self.options:
            if name not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                raise InvalidSettingError(
                    f"{self.scheme} URLs have no option {name!r} (known: {known}): {self.text}"
                )

    def flag(self, name: str, default: bool) -> bool:
        """Return the option ``name`` as a bool: true or false, 1 or 0, yes or no, on or off.

        Raises:
            InvalidSettingError: the value is invalid. The message names it and the rule.
        """
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() in {"1", "true", "yes", "on"}:
            return True
        if text.lower() in {"0", "false", "no", "off"}:
            return False
        raise InvalidSettingError(
            f"option {name!r} must be true or false, not {text!r}: {self.text}"
        )

    def number(self, name: str, default: int, lowest: int = 1) -> int:
        """Return the option ``name`` as an int of at least ``lowest``.

        Raises:
            InvalidSettingError: the value is invalid. The message names it and the rule.
        """
        text = self.options.get(name)
        if text is None:
            return default
        # Python refuses to convert thousands of digits.
        if text.isascii() and text.isdigit() and len(text) < 20 and int(text) >= lowest:
            return int(text)
        raise InvalidSettingError(
            f"option {name!r} must be an int of at least {lowest}, not {text!r}: {self.text}"
        )

    def prefix(self) -> str:
        """Return the path as a chroot or key prefix: ``""`` or a valid path without a final ``/``.

        Raises:
            InvalidPathError: it is not a valid path.
        """
        trimmed = self.path.rstrip("/")
        return check_path(trimmed) if trimmed else ""

    def addresses(self, default_port: int) -> tuple[str, ...]:
        """Return the hosts as ``host:port``.

        Raises:
            InvalidSettingError: there is no host, or a port is invalid.
        """
        if not self.hosts:
            raise InvalidSettingError(
                f"{self.scheme} URLs must name at least one host: {self.text}"
            )
        return tuple(self._address(host, default_port) for host in self.hosts)

    def _address(self, host: str, default_port: int) -> str:
        name, colon, port = host.rpartition(":")
        # In a bare IPv6 address in brackets, the last colon does not precede a port.
        if not colon or "]" in port:
            name, port = host, ""
        given = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
        if _is_host(name) and (given or host == name):
            return f"{name}:{int(port) if given else default_port}"
        # A login that contains '/' also ends up here, and must not reach a log.
        if "@" in self.text:
            raise InvalidSettingError("not a host and port; does the URL contain a login?")
        raise InvalidSettingError(
            f"not a host and port: {host!r} in {self.text} (a host is a name in ASCII, an IPv4 "
            f"address, or an IPv6 address in brackets; a port is from 1 to 65535)"
        )


def _is_host(text: str) -> bool:
    # The libraries that get it differ in what they take for something else: a further host, a port,
    # the name of a service.
    address = _IN_BRACKETS.fullmatch(text)
    labels = text.removesuffix(".").split(".")
    try:
        if address:
            IPv6Address(address[1])
        elif labels[-1].isdigit():
            IPv4Address(text)
    except ValueError:
        return False
    return bool(address) or (len(text) < 254 and all(map(_LABEL.fullmatch, labels)))


class Abandonment:
    """Lets a caller give an opening up, while another thread opens the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the others
        self._given_up = False
        self._end: Callable[[], None] | None = None

    def ends_with(self, end: Callable[[], None]) -> None:
        """Name the function that ends what has been opened so far, in place of an earlier one.

        It runs when the opening is given up, on any thread; at once, if that has happened.
        """
        with self._lock:
            self._end = end
            given_up = self._given_up
        if given_up:
            end()

    def give_up(self) -> None:
        with self._lock:
            self._given_up, end = True, self._end
        if end is not None:
            end()


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The options for opening a back end, beside its URL. Durations are in seconds.

    With ``create``, opening creates a missing RocksDB directory or ZooKeeper chroot. Without it,
    opening creates nothing.

    ``password`` and ``acl``, which may have hashes, do not appear in the representation, so they
    reach no log. With ``password_file``, ``password`` is what the file held at opening;
    :meth:`password_now` reads it again.

    A back end whose opening waits tells ``abandonment`` how to end it early.
    """

    connect_timeout: float = 10.0
    session_timeout: float = 30.0
    create: bool = True
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    sasl: Sasl | None = None
    sasl_service: str = "zookeeper"
    acl: str | Sequence[str] | None = field(default=None, repr=False)
    abandonment: Abandonment = field(default_factory=Abandonment, repr=False, compare=False)

    def password_now(self) -> str | None:
        """Return the password for a login: from ``password_file``, if that still holds one."""
        file = self.password_file
        with suppress(InvalidSettingError, OSError):
            if file is not None and Path(file).is_file():  # a pipe can be read only once
                return read_password(file) or self.password
        return self.password


def read_password(file: str) -> str:
    """Return the first line of a file.

    Raises:
        InvalidSettingError: it cannot be read.
    """
    try:
        return Path(file).read_text("utf-8-sig").partition("\n")[0]
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no name of a file
        what = "password_file (BATCHKEEPER_PASSWORD_FILE)"
        raise InvalidSettingError(f"cannot read the {what}: {error}") from error
