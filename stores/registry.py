"""From a URL to an open back end.

The back ends of this package are named in a table and imported when a URL of theirs is opened, so
that nobody needs the packages of a store that he does not use. Others come through the
entry-point group ``batchkeeper.stores``, whose entries are called like :data:`Connect`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..ops.errors import InvalidSettingError, UnsupportedError
from ..ops.paths import check_path
from .backend import Backend

__all__ = ["Connect", "ConnectOptions", "StoreURL", "connect", "parse_url"]

ENTRY_POINTS: Final = "batchkeeper.stores"


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
        raise InvalidSettingError(f"option {name!r} is true or false, not {text!r}: {self.text}")

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
            f"option {name!r} is an int of at least {lowest}, not {text!r}: {self.text}"
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
            raise InvalidSettingError(f"{self.scheme} URLs name at least one host: {self.text}")
        addresses = []
        for host in self.hosts:
            name, colon, port = host.rpartition(":")
            # The last colon of a bare IPv6 address in brackets is not a port's.
            if not colon or "]" in port:
                name, port = host, str(default_port)
            if not name or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                # A login with a '/' in it looks like this, too, and must not reach a log.
                if "@" in self.text:
                    raise InvalidSettingError("not a host and port; is there a login in the URL?")
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


#: Opens a store; raises ``StoreUnavailableError`` with the address when it cannot be reached.
Connect: TypeAlias = Callable[[StoreURL, ConnectOptions], Backend]


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    module: str
    needs: str | None = None


_BUILT_IN: Final = {
    "memory": _BuiltIn("memory"),
    "rocksdb": _BuiltIn("rocksdb", needs="rocksdict"),
    "etcd": _BuiltIn("etcd", needs="etcd3"),
    "etcds": _BuiltIn("etcd", needs="etcd3"),
    "zookeeper": _BuiltIn("zookeeper", needs="kazoo"),
    "zk": _BuiltIn("zookeeper", needs="kazoo"),
}


def parse_url(text: str) -> StoreURL:
    """Take a store's URL apart.

    Raises:
        InvalidSettingError: if it is not a URL with a scheme, is not UTF-8, holds a password or a
            fragment, or names an option twice. A password is not repeated in the message.
    """
    if not isinstance(text, str):
        raise InvalidSettingError(f"a store's URL is a str, not {type(text).__name__}")
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme:
        raise InvalidSettingError(
            f"not a store's URL (memory://NAME, rocksdb:///path, etcd://host:port, "
            f"zookeeper://host:port): {_without_userinfo(text)!r}"
        )
    try:
        # The bytes of a command line that are not UTF-8 are lone surrogates here.
        text.encode()
        # urlsplit keeps everything up to the next '/', '?' or '#' as netloc, commas included.
        parts: SplitResult = urlsplit(f"{scheme}://{rest}")
        path = unquote(parts.path, errors="strict")
    except UnicodeError:
        raise InvalidSettingError(
            f"not a store's URL, for it is not UTF-8: {_without_userinfo(text)!r}"
        ) from None
    except ValueError as error:
        raise InvalidSettingError(f"not a store's URL: {error}") from None
    if "@" in parts.netloc:
        raise InvalidSettingError(
            f"a store's URL holds no user or password; give them as arguments, or in "
            f"BATCHKEEPER_USERNAME and BATCHKEEPER_PASSWORD (or BATCHKEEPER_PASSWORD_FILE): "
            f"{_without_userinfo(text)}"
        )
    if parts.fragment:
        raise InvalidSettingError(f"a store's URL has no fragment ('#'): {text}")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidSettingError(f"an option is given twice: {text}")
    for name in options:
        if "password" in name.lower():
            raise InvalidSettingError(
                f"a store's URL holds no password: the option {name!r} of a {scheme} URL is refused"
            )
    hosts = tuple(unquote(host) for host in parts.netloc.split(",")) if parts.netloc else ()
    return StoreURL(scheme.lower(), hosts, path, options, text)


def connect(text: str, options: ConnectOptions) -> Backend:
    """Open the store at a URL.

    Raises:
        InvalidSettingError: the URL, or an option in it, is not one that can be used.
        UnsupportedError: the store's package cannot be imported; the message says how to mend it.
        StoreUnavailableError: the store cannot be reached or opened within ``connect_timeout``.
        AuthenticationError: the store refuses the credentials.
    """
    url = parse_url(text)
    return _find(url)(url, options)


def _find(url: StoreURL) -> Connect:
    if built_in := _BUILT_IN.get(url.scheme):
        try:
            module = importlib.import_module(f".{built_in.module}", __package__)
        except ImportError as error:
            raise UnsupportedError(
                f"the {url.scheme} store needs the package {built_in.needs}, which cannot be "
                f"imported ({error}); mend it with: pip install --upgrade {built_in.needs}"
            ) from error
        found: Connect = module.connect
        return found
    # It takes a third as long to import as all of `import batchkeeper`, and few need it.
    from importlib.metadata import entry_points

    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if url.scheme not in others:
        known = ", ".join(sorted({*_BUILT_IN, *others}))
        raise InvalidSettingError(f"unknown store scheme {url.scheme!r} (known: {known})")
    try:
        loaded: Connect = others[url.scheme].load()
    except ImportError as error:
        raise UnsupportedError(
            f"the {url.scheme} store cannot be imported ({error}); it is provided by "
            f"{others[url.scheme].value}"
        ) from error
    return loaded


def _without_userinfo(text: str) -> str:
    scheme, separator, rest = text.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
