"""The options of the data source, of ``bulk_apply`` and of the jobs: one parser for all of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from .. import (
    BatchingConfig,
    InvalidSettingError,
    RateLimit,
    StoreKind,
    UnsupportedError,
    store_kind,
)
from ..ops.durations import parse_duration
from ..ops.paths import check_parent

__all__ = ["OnError", "SourceOptions", "parse_options"]

#: What happens to a job if a row cannot be written. ``fail``: the first such row fails its task.
#: ``collect``: all other rows are written, and then the job fails with the report. ``skip``: the
#: job succeeds, and the report goes to the log.
OnError: TypeAlias = Literal["fail", "collect", "skip"]

# A year: longer than anybody waits, and below the limit of threading's timeouts.
_LONGEST: Final = 366 * 24 * 3600.0
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of the data source. They can be pickled and contain no secret.

    Each attribute is an option of the same name. So is each setting of
    :class:`batchkeeper.BatchingConfig`; ``batching=false`` stands for its ``enabled``.

    Attributes:
        url: the store's URL. A store that lives in one process (``memory://``) is refused.
        prefix: the path under which values are read or replaced.
        revision: on etcd, the revision to read; the newest by default.
        starting_revision: the revision after which a new stream of changes begins. By default, a
            stream begins with the changes after its start.
        max_revisions_per_batch: the most revisions in one micro-batch of a stream.
        partitions: the most parts of a read. A stream has one part by default, because the changes
            of a path keep their order only within a part.
        batching: the settings of batches and queues.
        rate_limit: writes per second of the whole job, and of all jobs with the same budget.
        rate_budget: the name of that budget in the store.
        rate_tasks: instead of a budget, the number of tasks at the same time, each of which has an
            equal share of ``rate_limit``, for a login that may not write the budget.
        on_error: what a failed row does to its job.
        batch_rows: the most rows of an Arrow batch that is read.
        batch_bytes: about the most bytes of paths and values in such a batch; a larger value has a
            batch of its own.
        connect_timeout: seconds within which the store must answer.
        session_timeout: seconds of silence after which the server ends the client's session.
        operation_timeout: seconds until the deadline of an operation.
        username: the user name of the login.
        username_env: the environment variable with the user name, on the driver and on executors.
        password_env: the environment variable with the password, on the driver and on executors.
        password_file: the file whose first line is the password, on the driver and on executors.
        sasl: the mechanism of a SASL login.
        sasl_service: the service that the servers have in Kerberos.
        acl: the permissions of new nodes.
    """

    url: str
    prefix: str = "/"
    revision: int | None = None
    starting_revision: int | None = None
    max_revisions_per_batch: int | None = None
    partitions: int | None = None
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    rate_limit: float | None = None
    rate_tasks: int | None = None
    rate_budget: str = "spark"
    on_error: OnError = "fail"
    batch_rows: int = 10_000
    batch_bytes: int = 8 * _MIB
    connect_timeout: float = 10.0
    session_timeout: float = 30.0
    operation_timeout: float = 30.0
    username: str | None = None
    username_env: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    sasl: Any = None
    sasl_service: str | None = None
    acl: str | None = None

    @property
    def kind(self) -> StoreKind:
        """The record of the store's kind."""
        return store_kind(self.url)

    @property
    def embedded(self) -> bool:
        """Whether the store is a directory, which one process has open for writing at a time."""
        return self.kind.local_directory

    @property
    def parents_count(self) -> bool:
        """Whether the first put of a path with others below it may create version 1, not 0."""
        return self.kind.parents_count


def parse_options(given: Mapping[str, object]) -> SourceOptions:
    """Parse the options of a caller, given as text or as values. The case of names is ignored.

    Raises:
        InvalidSettingError: an option is unknown, missing or invalid. The message names it, and
            repeats no password.
        InvalidPathError: the prefix is not a path.
        UnsupportedError: the store cannot be used from Spark.
    """
    fields: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for key, value in given.items():
        name = key.lower()
        if name in _SPARKS or value is None:
            continue
        if name in _OPTIONS:
            fields[name] = _OPTIONS[name](name, value)
        elif name in _BATCHING:
            settings[_BATCHING[name][0]] = _BATCHING[name][1](name, value)
        else:
            raise _unknown(name)
    if "url" not in fields:
        raise InvalidSettingError("the option 'url', the store's URL, is missing")
    if "password_env" in fields and "password_file" in fields:
        raise InvalidSettingError("'password_env' and 'password_file' exclude each other")
    if "username" in fields and "username_env" in fields:
        raise InvalidSettingError("'username' and 'username_env' exclude each other")
    if settings:
        fields["batching"] = BatchingConfig(**settings)
    return SourceOptions(**fields)


def _unknown(name: str) -> InvalidSettingError:
    if re.search("password|secret|token", name):
        return InvalidSettingError(
            f"the option {name!r} is refused, because options appear in plans and logs. Name an "
            "environment variable in 'password_env' or a file in 'password_file'"
        )
    if name == "path":
        return InvalidSettingError(
            "load() and save() take no path here: pass the store's URL in the option 'url', and "
            "the path to read or write under in the option 'prefix'"
        )
    known = sorted({*_OPTIONS, *_BATCHING})
    if near := difflib.get_close_matches(name, known, n=1):
        return InvalidSettingError(f"unknown option {name!r}: did you mean {near[0]!r}?")
    return InvalidSettingError(f"unknown option {name!r} (known: {', '.join(known)})")


def _url(_: str, value: object) -> str:
    text = cast("str", value)
    kind = store_kind(text)
    if kind.in_process:
        raise UnsupportedError(
            f"a {kind.scheme}:// store lives in one process, but Spark's tasks run in many: each "
            "would have its own empty store. Use a store that processes can share, such as etcd"
        )
    return text


def _prefix(_: str, value: object) -> str:
    return check_parent(cast("str", value))


def _text(name: str, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise InvalidSettingError(f"{name} must be a text that is not empty, not {value!r}")


def _flag(name: str, value: object) -> bool:
    text = str(value).lower()
    if text in {"true", "false"}:
        return text == "true"
    raise InvalidSettingError(f"{name} must be true or false, not {value!r}")


def _int(lowest: int, highest: int = 2**63 - 1) -> _Parser:
    def parse(name: str, value: object) -> int:
        text = str(value).strip()
        if re.fullmatch("-?[0-9]{1,19}", text) and lowest <= int(text) <= highest:
            return int(text)
        allowed = f"of {lowest} or more" if highest == 2**63 - 1 else f"from {lowest} to {highest}"
        raise InvalidSettingError(f"{name} must be a whole number {allowed}, not {value!r}")

    return parse


def _number(highest: float, what: str, parse: Callable[[str], float] = float) -> _Parser:
    def parsed(name: str, value: object) -> float:
        try:
            number = parse(str(value))
        except ValueError:
            number = 0.0
        if 0 < number <= highest:  # This refuses nan and inf, too.
            return number
        raise InvalidSettingError(f"{name} must be {what}, not {value!r}")

    return parsed


def _any_int(name: str, value: object) -> int:
    """Parse an integer of any size. The settings check its bounds."""
    return int(_int(-(2**63))(name, value))


def _duration(name: str, value: object) -> float:
    """Parse a duration of any length. The settings check its bounds."""
    try:
        return parse_duration(str(value))
    except ValueError:
        raise InvalidSettingError(
            f"{name} must be a number of seconds, or a duration such as 5ms, not {value!r}"
        ) from None


def _choice(allowed: tuple[str, ...]) -> _Parser:
    def parse(name: str, value: object) -> str:
        if value in allowed:
            return value
        raise InvalidSettingError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")

    return parse


def _budget(name: str, value: object) -> str:
    text = _text(name, value)
    RateLimit(1.0, text)  # refuses it
    return text


_Parser: TypeAlias = Callable[[str, object], Any]

_SECONDS: Final = _number(
    _LONGEST, "a number of seconds, more than 0 and at most a year", parse_duration
)

_OPTIONS: Final[Mapping[str, _Parser]] = {
    "url": _url,
    "prefix": _prefix,
    "revision": _int(1),
    "starting_revision": _int(0),
    "max_revisions_per_batch": _int(1),
    "partitions": _int(1, 100_000),
    "rate_limit": _number(1e12, "a number of operations per second, more than 0 and at most 1e12"),
    "rate_tasks": _int(1, 1_000_000),
    "rate_budget": _budget,
    "on_error": _choice(get_args(OnError)),
    "batch_rows": _int(1, 10_000_000),
    "batch_bytes": _int(1, 1024 * _MIB),
    "connect_timeout": _SECONDS,
    "session_timeout": _SECONDS,
    "operation_timeout": _SECONDS,
    "username": _text,
    "username_env": _text,
    "password_env": _text,
    "password_file": _text,
    "sasl": _text,
    "sasl_service": _text,
    "acl": _text,
}

# By option: the name of the setting, and the parser. The settings check the values themselves.
_BATCHING: Final[Mapping[str, tuple[str, _Parser]]] = {
    "batching": ("enabled", _flag),
    "max_ops": ("max_ops", _any_int),
    "max_bytes": ("max_bytes", _any_int),
    "max_delay": ("max_delay", _duration),
    "read_queue_size": ("read_queue_size", _any_int),
    "write_queue_size": ("write_queue_size", _any_int),
    "max_queued_bytes": ("max_queued_bytes", _any_int),
    "max_in_flight": ("max_in_flight", _any_int),
    "max_singles": ("max_singles", _any_int),
    "on_full": ("on_full", _text),
    "linger": ("linger", _text),
}

# Options that Spark itself adds to those of a stream.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})
