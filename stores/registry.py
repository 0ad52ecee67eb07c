"""Finds the kind of store for a URL, and opens its back end.

The kinds of this package are in a table (see ``kinds.py``). A back end is imported when one of its
URLs is opened. Other packages add kinds through the entry-point group ``batchkeeper.stores``. The
name of an entry is the scheme; its object is a :class:`StoreKind`, or a function that connects
(:data:`Connect`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    StoreUnavailableError,
    UnsupportedError,
)
from .backend import Backend
from .kinds import BUILT_IN, Connect, StoreKind
from .urls import ConnectOptions, StoreURL

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Connect", "ConnectOptions", "StoreURL", "connect", "parse_url", "store_kind"]

ENTRY_POINTS: Final = "batchkeeper.stores"
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")

_OURS: Final = {scheme: kind for kind in BUILT_IN.values() for scheme in kind.schemes}


def parse_url(text: str) -> StoreURL:
    """Split a store's URL into its parts.

    Raises:
        InvalidSettingError: the URL has no scheme, is not UTF-8, contains a password or a fragment,
            or gives an option twice. The message does not repeat a password.
    """
    if not isinstance(text, str):
        raise InvalidSettingError(f"a store's URL must be a str, not {type(text).__name__}")
    shown = _without_secrets(text)
    if not _SCHEME.match(text):
        raise InvalidSettingError(f"not a store's URL (known: {_known_forms()}): {shown!r}")
    if re.search(r"[\t\r\n]", text.rstrip()):  # urlsplit would drop them
        raise InvalidSettingError(f"a store's URL must be one line without tabs: {shown!r}")
    try:
        # A command line with bytes that are not UTF-8 has lone surrogates here.
        text.encode()
        # urlsplit keeps everything up to the next '/', '?' or '#' as netloc, commas included.
        parts: SplitResult = urlsplit(text)
        path = unquote(parts.path, errors="strict")
        pairs = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
        names = parts.netloc.split(",") if parts.netloc else []
        hosts = tuple(unquote(name, errors="strict") for name in names)
    except UnicodeError:
        raise InvalidSettingError(f"a store's URL must be UTF-8: {shown!r}") from None
    except ValueError as error:
        # The error may repeat the login, where there is one.
        reason = shown if "@" in text else error
        raise InvalidSettingError(f"not a store's URL: {reason}") from None
    if "@" in parts.netloc:
        raise InvalidSettingError(
            f"a store's URL must not contain a user or password; pass them as arguments, or set "
            f"BATCHKEEPER_USERNAME and BATCHKEEPER_PASSWORD (or BATCHKEEPER_PASSWORD_FILE): "
            f"{shown}"
        )
    if parts.fragment:
        raise InvalidSettingError(f"a store's URL must not have a fragment ('#'): {shown}")
    options = _options(pairs, shown)
    return StoreURL(parts.scheme, hosts, path, options, text)


def _options(pairs: Sequence[tuple[str, str]], shown: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options:
            raise InvalidSettingError(f"the option {name!r} is given twice: {shown}")
        if "password" in name.lower():
            raise InvalidSettingError(
                f"a store's URL must not contain a password; remove the option {name!r}: {shown}"
            )
        options[name] = value
    return options


def store_kind(url: StoreURL | str) -> StoreKind:
    """Return the record of a URL's kind of store, with its capabilities.

    The call opens nothing and imports no back end.

    Raises:
        InvalidSettingError: it is not a store's URL, or its scheme is unknown.
        UnsupportedError: the package that provides the kind cannot be imported, or does not provide
            a record for this scheme.
    """
    scheme = (url if isinstance(url, StoreURL) else parse_url(url)).scheme
    if built_in := _OURS.get(scheme):
        return built_in
    # This import takes a third as long as all of `import batchkeeper`, and few callers need it.
    from importlib.metadata import entry_points

    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if scheme not in others:
        known = ", ".join(sorted({*_OURS, *others}))
        raise InvalidSettingError(f"unknown store scheme {scheme!r} (known: {known})")
    return _provided(others[scheme])


def connect(text: str, options: ConnectOptions) -> Backend:
    """Open the store at a URL.

    Raises:
        InvalidSettingError: the URL, or an option in it, is invalid.
        UnsupportedError: the store's package cannot be imported. The message says what to install.
        StoreUnavailableError: the store cannot be reached or opened within ``connect_timeout``.
        AuthenticationError: the store refuses the credentials.
    """
    url = parse_url(text)
    try:
        return store_kind(url).load()(url, options)
    except OSError as error:
        if isinstance(error, MetadataStoreError):  # A timeout is both.
            raise
        shown = _without_secrets(text)
        raise StoreUnavailableError(f"{shown} cannot be opened: {error}") from error


def _provided(entry: EntryPoint) -> StoreKind:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"the {entry.name} store cannot be imported ({error}); its entry point is {entry.value}"
        ) from error
    if isinstance(found, StoreKind):
        if entry.name not in found.schemes:
            raise UnsupportedError(
                f"{entry.value} is the record for {', '.join(found.schemes)}, not for {entry.name}"
            )
        return found
    if callable(found):
        return StoreKind(
            scheme=entry.name,
            title=entry.name,
            url_form=f"{entry.name}://...",
            connect=found,
            capabilities=frozenset(),
        )
    raise UnsupportedError(
        f"the {entry.name} store's entry point, {entry.value}, is neither a StoreKind nor a "
        f"function to connect with: {found!r:.80}"
    )


def _known_forms() -> str:
    return ", ".join(kind.url_form for kind in BUILT_IN.values())


def _without_secrets(text: str) -> str:
    """Return a URL for a message, without the parts that may contain a password."""
    if "@" in text:
        scheme = _SCHEME.match(text)
        return f"{scheme[0] if scheme else ''}..."
    return re.split("[?#]", text, maxsplit=1)[0]
