"""Stores that the user's configuration file names: ``--store NAME`` in place of a URL.

The file is TOML::

    [stores]
    dev = "etcd://127.0.0.1:2379"

    [stores.prod]
    url = "etcds://etcd-1:2379,etcd-2:2379/hubs?ca=/etc/hubs/ca.pem"
    username = "hub"
    password_file = "/etc/hubs/password"
    connect_timeout = "5s"
    timeout = "1m"

It never holds a password itself. If a password file is readable by its group or by everyone, a
message to the user says so.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..ops.durations import parse_duration
from ..ops.errors import InvalidSettingError
from ..pipeline.local_load import InputError
from ..stores import BUILT_IN, parse_url
from .output import tell

__all__ = ["NamedStore", "find", "for_spark", "in_place", "settle"]

# The time-outs where neither an option nor the file gives others, in seconds.
_CONNECT_TIMEOUT: Final = 10.0
_TIMEOUT: Final = 30.0

_VARIABLE: Final = "BATCHKEEPER_CONFIG"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The arguments of Spark's jobs that name stores, and the options of the store that each names.
_SIDES: Final = {
    "store": "option",
    "source": "from_option",
    "target": "to_option",
    "left": "left_option",
    "right": "right_option",
}
# The settings of a login, by their names as options; variables have the same names.
_LOGIN: Final = ("username", "sasl", "sasl_service", "acl")
_KEYS: Final = ("url", *_LOGIN, "password_file", "connect_timeout", "timeout")


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store as the file describes it; ``None`` stands for what it leaves out."""

    url: str
    username: str | None = None
    password_file: str | None = None
    sasl: Any = None
    sasl_service: str | None = None
    acl: str | tuple[str, ...] | None = None
    connect_timeout: float | None = None
    timeout: float | None = None

    def warn(self) -> None:
        """Report a file of the password that others can read."""
        with suppress(OSError, ValueError):  # Opening the store says what is wrong.
            if self.password_file and os.stat(self.password_file).st_mode & 0o044:
                tell(f"others can read {self.password_file}: chmod 600 {self.password_file}")


def _stores_file(given: str | None) -> tuple[Path, bool]:
    """Return the configuration file, and whether the user has named it, so that it must be there.

    Args:
        given: the argument of ``--config``.
    """
    if named := given or os.environ.get(_VARIABLE):
        return Path(named), True
    # A relative path in this variable does not count, says the specification of these folders.
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    folder = home if home.is_absolute() else Path("~/.config").expanduser()
    return folder / "batchkeeper" / "config.toml", False


def _read(file: Path, *, required: bool) -> dict[str, NamedStore]:
    """Return the stores of a configuration file, by name.

    Args:
        file: the file.
        required: whether it is an error if there is no such file.

    Raises:
        InputError: the file cannot be read or is not TOML, or has an unknown key or a bad value.
    """
    try:
        # Loaded on demand, because most commands read no such file.
        found = importlib.import_module("tomllib").loads(file.read_text("utf-8-sig"))
    except FileNotFoundError:
        if required:
            raise InputError(f"there is no configuration file {file}") from None
        return {}
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:  # of the decoder, or of UTF-8
        raise InputError(f"{file} is not TOML: {error}") from error
    _check_keys(file, "the file", found, ("stores",))
    stores = found.get("stores", {})
    if not isinstance(stores, dict):
        raise InputError(f"{file}: stores must be a table, not {stores!r:.80}")
    return {name: _store(file, name, entry) for name, entry in stores.items()}


def find(text: str, config: str | None) -> NamedStore:
    """Return the store at a URL, or that of a name in the configuration file.

    Args:
        text: the URL or the name.
        config: the argument of ``--config``.

    Raises:
        InputError: the name is unknown, or the file is bad. ``open_store`` judges any other text.
    """
    if not _NAME.fullmatch(text):
        return NamedStore(text)
    file, named = _stores_file(config)
    stores = _read(file, required=named)
    if text not in stores:
        known = f"known: {', '.join(sorted(stores))}" if stores else "it names none"
        what = f"{text!r} is not a store's URL, such as etcd://HOST:PORT"
        raise InputError(f"{what}, and no store in {file} has this name ({known})")
    return stores[text]


@contextmanager
def in_place(arguments: argparse.Namespace, *names: str) -> Iterator[None]:
    """Put the URL of a named store in its place, and its login into the environment, for a block.

    This is for commands that start processes or have names of their own for stores. A name that is
    not in the configuration file stays, for the command to judge.

    Args:
        arguments: the arguments of the command. They get the time-outs, too.
        names: those arguments that may name a store.

    Raises:
        InputError: the file is bad.
    """
    login: dict[str, str] = {}
    chosen = NamedStore("")
    file, named = _stores_file(getattr(arguments, "config", None))
    for name in names:
        text = getattr(arguments, name, None)
        if not text or "://" in text:
            continue
        if (store := _read(file, required=named).get(text)) is not None:
            setattr(arguments, name, store.url)
            chosen = store
            for option, value in _login(store):
                login[f"BATCHKEEPER_{option.upper()}"] = value
            if store.password_file is not None:
                store.warn()
                secret = os.path.abspath(store.password_file)  # for processes that start elsewhere
                login |= {"BATCHKEEPER_PASSWORD_FILE": secret, "BATCHKEEPER_PASSWORD": ""}
    settle(arguments, chosen)
    before = dict(os.environ)
    os.environ.update(login)
    try:
        yield
    finally:
        for name in login:
            del os.environ[name]
            if name in before:
                os.environ[name] = before[name]


def for_spark(arguments: argparse.Namespace) -> None:
    """Put the URLs of named stores in their places, and their logins among a job's options.

    Raises:
        InputError: a name is unknown, or the file is bad.
    """
    two = any(hasattr(arguments, side) for side in ("source", "left"))
    if not two and not arguments.store:
        arguments.store = os.environ.get("BATCHKEEPER_STORE")
    for side, options in _SIDES.items():
        text = getattr(arguments, side, None)
        if not text or "://" in text or (two and side == "store"):
            continue
        if side in {"left", "right"}:  # It may also be the folder of an export.
            file, named = _stores_file(arguments.config)
            store = _read(file, required=named).get(text)
        else:
            store = find(text, arguments.config)
        if store is not None:
            setattr(arguments, side, store.url)
            given = [*_options(arguments, store), *getattr(arguments, options)]
            setattr(arguments, options, given)
    settle(arguments, NamedStore(""))


def _options(arguments: argparse.Namespace, store: NamedStore) -> Iterator[str]:
    """Yield a store's settings as options of the data source, unless the command has them."""
    for option, value in _login(store):
        yield f"{option}={value}"
    if store.password_file is not None:
        yield f"password_file={store.password_file}"
    if arguments.connect_timeout is None and store.connect_timeout is not None:
        yield f"connect_timeout={store.connect_timeout}"
    if arguments.timeout is None and store.timeout is not None:
        yield f"operation_timeout={store.timeout}"


def _login(store: NamedStore) -> list[tuple[str, str]]:
    """Return the settings of a store's login that the file has."""
    pairs = [(name, getattr(store, name)) for name in _LOGIN]
    return [
        (name, value if isinstance(value, str) else ",".join(value))
        for name, value in pairs
        if value is not None
    ]


def settle(arguments: argparse.Namespace, store: NamedStore) -> None:
    """Give time-outs that no option has given: those of the store, or the defaults."""
    for name, default in (("connect_timeout", _CONNECT_TIMEOUT), ("timeout", _TIMEOUT)):
        if getattr(arguments, name, None) is None:
            of_store = getattr(store, name)
            setattr(arguments, name, default if of_store is None else of_store)


def _store(file: Path, name: str, entry: object) -> NamedStore:
    what = f"stores.{name}"
    if not _NAME.fullmatch(name) or name in BUILT_IN:
        raise InputError(
            f"{file}: {name!r} cannot name a store: a name has letters, digits, '.', '_' and '-', "
            f"and is none of {', '.join(sorted(BUILT_IN))}"
        )
    if isinstance(entry, str):
        entry = {"url": entry}
    if not isinstance(entry, dict):
        raise InputError(f"{file}: {what} must be a URL or a table, not {entry!r:.80}")
    if "password" in entry:
        raise InputError(
            f"{file}: {what} must not hold a password; name a file with it as password_file"
        )
    _check_keys(file, what, entry, _KEYS)
    values = {key: _value(file, what, key, value) for key, value in entry.items()}
    if "url" not in values:
        raise InputError(f"{file}: {what} has no url")
    try:
        parse_url(values["url"])
    except InvalidSettingError as error:
        raise InputError(f"{file}: {what}.url: {error}") from error
    if "password_file" in values:
        values["password_file"] = os.path.expanduser(values["password_file"])
    return NamedStore(**values)


def _value(file: Path, what: str, key: str, value: object) -> Any:
    if key in {"connect_timeout", "timeout"}:
        return _seconds(file, f"{what}.{key}", value)
    if key == "acl" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if isinstance(value, str):
        return value
    raise InputError(f"{file}: {what}.{key} must be a text, not {value!r:.80}")


def _seconds(file: Path, what: str, value: object) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return parse_duration(str(value))
    except ValueError:
        pass
    raise InputError(f"{file}: {what} must be a duration such as 5s or 100ms, not {value!r:.80}")


def _check_keys(file: Path, what: str, found: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            raise InputError(f"{file}: {what} has no key {key!r:.80} (known: {', '.join(known)})")
