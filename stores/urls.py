"""What a back end is opened with: a URL in its parts, and the options beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..ops.errors import InvalidSettingError
from ..ops.paths import check_path

__all__ = ["ConnectOptions", "StoreURL"]


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store's address in its parts.

    Attributes:
        scheme: in lower case.
        hosts: ``host:port`` or ``host``, as given.
        path: what follows the hosts, decoded: a directory, a chroot, a prefix, or ``""``.
        options: the query, decoded.
        text: the URL as given; it holds no password.
    """

    scheme: str
    hosts: tuple[str, ...]
    path: str
    options: Mapping[str, str]
    text: str

    def check_options(self, allowed: tuple[str, ...]) -> None:
        """Refuse an option that the store does not know.

        Raises:
            InvalidSettingError: with the option and those that are known.
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
            InvalidSettingError: with the value and the rule.
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
            InvalidSettingError: with the value and the rule.
        """
        text = self.options.get(name)
        if text is None:
            return default
        if text.isascii() and text.isdigit() and int(text) >= lowest:
            return int(text)
        raise InvalidSettingError(
            f"option {name!r} must be an int of at least {lowest}, not {text!r}: {self.text}"
        )

    def prefix(self) -> str:
        """Return the path as a chroot or key prefix: ``""`` or a valid path without a final ``/``.

        Raises:
            InvalidPathError: if it is not a valid path.
        """
        trimmed = self.path.rstrip("/")
        return check_path(trimmed) if trimmed else ""

    def addresses(self, default_port: int) -> tuple[str, ...]:
        """Return the hosts as ``host:port``.

        Raises:
            InvalidSettingError: if there is none, or a port is not one.
        """
        if not self.hosts:
            raise InvalidSettingError(
                f"{self.scheme} URLs must name at least one host: {self.text}"
            )
        addresses = []
        for host in self.hosts:
            name, colon, port = host.rpartition(":")
            # The last colon of a bare IPv6 address in brackets is not a port's.
            if not colon or "]" in port:
                name, port = host, str(default_port)
            if not name or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                # A login with a '/' in it looks like this, too, and must not reach a log.
                if "@" in self.text:
                    raise InvalidSettingError("not a host and port; does the URL contain a login?")
                raise InvalidSettingError(f"not a host and port: {host!r} in {self.text}")
            addresses.append(f"{name}:{port}")
        return tuple(addresses)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """What a back end is opened with, beside its URL. Durations are in seconds.

    With ``create`` opening makes what the store needs: RocksDB's directory, ZooKeeper's chroot.
    Without it opening leaves nothing behind that was not there.

    ``password`` is kept out of the representation, so that it reaches no log.
    """

    connect_timeout: float = 10.0
    session_timeout: float = 30.0
    create: bool = True
    username: str | None = None
    password: str | None = field(default=None, repr=False)
