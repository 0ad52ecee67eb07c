"""Mixes: which operations a load consists of, on which keys, with which values.

A mix is a TOML file. The ready-made ones lie beside this module and serve as examples::

    description = "settings that many read and few change"

    [operations]                 # shares, which add up to 1
    get = 0.95
    update = 0.05

    [keys]
    count = 10000                # keys that exist when the load begins
    distribution = "zipf"        # or "uniform", or "hot"
    skew = 0.99

    [values]
    bytes = 200                  # or: file = "records.jsonl"

    [conflicts]
    share = 0.01                 # of the conditional operations, that must be refused

    [transactions]
    size = 3                     # writes in each transaction
"""

from __future__ import annotations

import dataclasses
import difflib
import gzip
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeAlias

from ...ops.errors import InvalidSettingError

#: The kinds of operations, with what each is.
KINDS: Final[Mapping[str, str]] = {
    "get": "reads a key, which may be deleted",
    "put": "puts a value, whatever the version",
    "update": "puts a value at the known version; creates the key if it is deleted",
    "create": "puts a new key, which must not exist",
    "delete": "deletes a key at the known version; creates it if it is deleted",
    "children": "lists the names below a parent of keys",
    "transaction": "checks one key and puts others, all or nothing",
    "ephemeral": "puts an ephemeral value, or deletes it",
}

#: The names of the mixes that come with the package.
READY_MADE: Final = ("hub", "ledger", "read-mostly", "bulk-load", "hot-path")

#: In the class of values, a field has the name of the type.
Records: TypeAlias = tuple[bytes, ...]

_DISTRIBUTIONS: Final = ("uniform", "zipf", "hot")
_MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a load.

    Attributes:
        count: the keys that exist when the load begins, over all callers together.
        distribution: how often each is used. ``uniform``: all alike. ``zipf``: the k-th most used
            with a weight of ``1 / k ** skew``, as in YCSB. ``hot``: ``hot_keys`` of them share
            ``hot_share`` of the operations.
        skew: the exponent of ``zipf``.
        hot_keys: the number of hot keys. Each thread, task or process has hot keys of its own.
        hot_share: the share of the operations on hot keys.
        folder: keys below one parent.
    """

    count: int = 4096
    distribution: str = "uniform"
    skew: float = 0.99
    hot_keys: int = 1
    hot_share: float = 0.9
    folder: int = 64


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a load.

    Attributes:
        bytes: the size of each value.
        file: a file of real records instead, drawn at random: JSON Lines, with the text of
            ``value`` where a line is an object that has one, and the whole line otherwise; also
            compressed, as ``.gz``. A counter replaces the first bytes of each, so that no two
            values are equal.
        records: the values of the file, up to 100,000.
    """

    bytes: int = 100
    file: str | None = None
    records: Records = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix.

    Attributes:
        name: its name, or the path of its file.
        description: what it stands for.
        operations: the share of each kind of operation (:data:`KINDS`); they add up to 1.
        keys: the keys.
        values: the values.
        conflicts: the share of the conditional operations that carry a wrong version, and that the
            store has to refuse.
        transaction_size: the puts of a transaction, beside its check.

    Raises:
        InvalidSettingError: a value is out of its range. The message names the mix and the rule.
    """

    name: str
    description: str
    operations: Mapping[str, float]
    keys: Keys = field(default_factory=Keys)
    values: Values = field(default_factory=Values)
    conflicts: float = 0.0
    transaction_size: int = 3

    def __post_init__(self) -> None:
        for kind, share in self.operations.items():
            if kind not in KINDS:
                raise _bad(self.name, unknown("kind of operation", kind, KINDS))
            self._check_number(f"operations.{kind}", share, 0, 1)
        total = sum(self.operations.values())
        if abs(total - 1) > 1e-9:
            shares = " + ".join(f"{kind} {share:g}" for kind, share in self.operations.items())
            raise _bad(
                self.name,
                "the shares of [operations] must add up to 1, "
                f"not to {total:g}: {shares or 'none'}",
            )
        keys, values = self.keys, self.values
        self._check_int("keys.count", keys.count, 0, 10_000_000)
        if keys.distribution not in _DISTRIBUTIONS:
            raise _bad(
                self.name,
                f"keys.distribution must be one of {', '.join(_DISTRIBUTIONS)}, "
                f"not {keys.distribution!r}",
            )
        self._check_number("keys.skew", keys.skew, 0, 10)
        self._check_int("keys.hot_keys", keys.hot_keys, 1, 1_000_000)
        self._check_number("keys.hot_share", keys.hot_share, 0, 1)
        self._check_int("keys.folder", keys.folder, 1, 1_000_000)
        self._check_int("values.bytes", values.bytes, 0, _MOST_BYTES)
        self._check_number("conflicts.share", self.conflicts, 0, 1)
        self._check_int("transactions.size", self.transaction_size, 1, 100)
        used = {kind for kind, share in self.operations.items() if share}
        if not keys.count and (needy := used - {"create", "ephemeral"}):
            raise _bad(self.name, f"keys.count must be more than 0 for {', '.join(sorted(needy))}")

    def as_table(self) -> dict[str, Any]:
        """Return the mix as the table of its file, for results."""
        values = dataclasses.asdict(self.values)
        del values["records"]
        return {
            "name": self.name,
            "description": self.description,
            "operations": dict(self.operations),
            "keys": dataclasses.asdict(self.keys),
            "values": values,
            "conflicts": {"share": self.conflicts},
            "transactions": {"size": self.transaction_size},
        }

    def _check_number(self, name: str, value: Any, low: float, high: float) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise _bad(self.name, f"{name} must be from {low:g} to {high:g}, not {value!r}")

    def _check_int(self, name: str, value: Any, low: int, high: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _bad(self.name, f"{name} must be an int from {low} to {high}, not {value!r}")


def _bad(name: str, message: str) -> InvalidSettingError:
    return InvalidSettingError(f"the mix {name}: {message}")


def load_mix(name: str) -> Mix:
    """Return a ready-made mix by its name, or the one of a TOML file.

    Raises:
        InvalidSettingError: there is no such mix or file, it is not TOML, it has an unknown key, or
            a value is out of its range. The message names the file and what to change.
    """
    if name in READY_MADE:
        text = (resources.files(__package__) / "mixes" / f"{name}.toml").read_text()
        return _mix(name, text, Path())
    file = Path(name)
    if not file.suffix and not file.exists():
        raise InvalidSettingError(unknown("mix", name, dict.fromkeys(READY_MADE), or_file=True))
    try:
        return _mix(name, file.read_text(), file.parent)
    except OSError as error:
        raise InvalidSettingError(f"the mix {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad(name, f"not TOML: {error}") from error


def unknown(what: str, name: str, known: Mapping[str, Any], *, or_file: bool = False) -> str:
    """Return a message for a name that is not among those known, with the nearest ones."""
    near = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    there = f"there are {', '.join(known)}{', or a TOML file' if or_file else ''}"
    return f"unknown {what} {name!r}{meant} ({there})"


_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "operations": tuple(KINDS),
    "keys": tuple(f.name for f in dataclasses.fields(Keys)),
    "values": ("bytes", "file"),
    "conflicts": ("share",),
    "transactions": ("size",),
}


def _mix(name: str, text: str, folder: Path) -> Mix:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad(name, f"not TOML: {error}") from error
    description = document.pop("description", "")
    _check_keys(name, document)
    if "operations" not in document:
        raise _bad(name, "the table [operations] is missing")
    values = document.get("values", {})
    records: Records = ()
    if "file" in values:
        if "bytes" in values:
            raise _bad(name, "[values] has either bytes or file")
        records = _records(name, folder / str(values["file"]))
    return Mix(
        name=name,
        description=str(description),
        operations=document["operations"],
        keys=Keys(**document.get("keys", {})),
        values=Values(**values, records=records),
        conflicts=document.get("conflicts", {}).get("share", 0.0),
        transaction_size=document.get("transactions", {}).get("size", 3),
    )


def _check_keys(name: str, document: Mapping[str, Any]) -> None:
    for key, table in document.items():
        if key not in _TABLES:
            raise _bad(name, unknown("key", key, dict.fromkeys(("description", *_TABLES))))
        if not isinstance(table, dict):
            raise _bad(name, f"{key} must be a table, [{key}]")
        for inner in table:
            if inner not in _TABLES[key]:
                raise _bad(name, unknown(f"key in [{key}]", inner, dict.fromkeys(_TABLES[key])))


_MOST_RECORDS: Final = 100_000


def _records(name: str, file: Path) -> tuple[bytes, ...]:
    found: list[bytes] = []
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                found.append(_value(line.rstrip("\n")))
                if len(found) == _MOST_RECORDS:
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(name, f"values.file {file} cannot be read: {error}") from error
    if not found:
        raise _bad(name, f"values.file {file} is empty")
    return tuple(found)


def _value(line: str) -> bytes:
    try:
        record = json.loads(line)
    except ValueError:
        return line.encode()
    if isinstance(record, dict) and isinstance(record.get("value"), str):
        return str(record["value"]).encode()
    return line.encode()
