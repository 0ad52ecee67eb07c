"""How values become bytes and bytes become values, for caches and views."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from .errors import InvalidSettingError, UnsupportedError, ValueDecodeError, shape
from .results import GetResult

__all__ = ["Serde", "bytes_serde", "dataclass_serde", "decoded", "json_serde", "msgspec_serde"]

T = TypeVar("T")


class Serde(NamedTuple, Generic[T]):
    """Encodes values of one type as bytes, and decodes them.

    Attributes:
        encode: returns the bytes of a value. An exception in it is raised to the writer.
        decode: returns a new value for its bytes. An exception in it becomes a
            ``ValueDecodeError``.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def decoded(path: str, found: GetResult, decode: Callable[[bytes], T]) -> T:
    """Decode a value again.

    Raises:
        ValueDecodeError: it cannot be decoded.
    """
    try:
        return decode(found.value)
    except Exception as error:
        version = found.stat.version
        why = f"version {version} of {path} cannot be decoded: {type(error).__name__}: {error}"
        raise ValueDecodeError(why, path=path, version=version) from error


def _same(value: bytes) -> bytes:
    return value


#: The bytes themselves.
bytes_serde: Final[Serde[bytes]] = Serde(_same, _same)


def _to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


#: JSON in UTF-8, for whatever the module ``json`` takes.
json_serde: Final[Serde[Any]] = Serde(_to_json, json.loads)


def msgspec_serde(type_: type[T]) -> Serde[T]:
    """Return JSON for a type that msgspec knows, such as a ``msgspec.Struct``.

    Raises:
        UnsupportedError: the package msgspec is missing.
    """
    try:
        import msgspec  # noqa: PLC0415 - only those who use it need the package
    except ImportError as error:
        raise UnsupportedError(f"msgspec_serde needs the package msgspec ({error})") from error
    return Serde(msgspec.json.Encoder().encode, msgspec.json.Decoder(type_).decode)


def dataclass_serde(type_: type[T]) -> Serde[T]:
    """Return JSON objects for a dataclass.

    Its fields may be ``str``, ``int``, ``float``, ``bool``, ``None``, ``Any``, other dataclasses,
    and ``list``, ``tuple[X, ...]``, ``dict[str, X]`` and unions of these with ``None``. Fields with
    values of other types are neither decoded nor encoded: ``encode`` raises ``TypeError`` for a
    value that could not be decoded again. Unknown fields of a JSON object are ignored, so that
    older programs can read what newer ones write; a missing field needs a default.

    Raises:
        InvalidSettingError: it is not a dataclass, or has a field of another type.
    """
    if not (isinstance(type_, type) and dataclasses.is_dataclass(type_)):
        raise InvalidSettingError(f"dataclass_serde needs a dataclass, not {type_!r:.80}")
    read = _reader(type_, {})

    def encode(value: T) -> bytes:
        if type(value) is not type_:
            raise TypeError(f"a value must be a {type_.__name__}, not {shape(value)}")
        raw = _to_json(dataclasses.asdict(typing.cast("Any", value)))
        try:
            decode(raw)
        except Exception as error:
            raise TypeError(f"a {type_.__name__} could not be decoded again: {error}") from error
        return raw

    def decode(value: bytes) -> T:
        made: T = read(json.loads(value))
        return made

    return Serde(encode, decode)


_Reader: typing.TypeAlias = Callable[[Any], Any]

# The JSON types that a field's type accepts. An int is a float in JSON, but a bool is no int.
_PLAIN: Final[Mapping[Any, tuple[type, ...]]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    bool: (bool,),
    type(None): (type(None),),
}


def _reader(of: Any, known: dict[type, _Reader]) -> _Reader:
    """Return a function that makes a value of a type from what JSON gives."""
    if of is Any:
        return lambda value: value
    if of in _PLAIN:
        return _plain(of)
    if isinstance(of, type) and dataclasses.is_dataclass(of):
        return _fields(of, known)
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if origin in {typing.Union, types.UnionType} and type(None) in arguments:
        rest = [argument for argument in arguments if argument is not type(None)]
        if len(rest) == 1:
            inner = _reader(rest[0], known)
            return lambda value: None if value is None else inner(value)
    if origin is list and arguments:
        inner = _reader(arguments[0], known)
        return lambda value: [inner(one) for one in _checked(value, list)]
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = _reader(arguments[0], known)
        return lambda value: tuple(inner(one) for one in _checked(value, list))
    if origin is dict and arguments[:1] == (str,):
        inner = _reader(arguments[1], known)
        return lambda value: {name: inner(one) for name, one in _checked(value, dict).items()}
    raise InvalidSettingError(f"dataclass_serde has no JSON for {of!r:.80}; write a Serde for it")


def _plain(of: type) -> _Reader:
    accepted = _PLAIN[of]

    def read(value: Any) -> Any:
        if type(value) not in accepted:
            raise TypeError(f"must be {of.__name__}, not {type(value).__name__}")
        return float(value) if of is float else value

    return read


def _fields(of: type, known: dict[type, _Reader]) -> _Reader:
    if of in known:
        return known[of]
    readers: dict[str, _Reader] = {}

    def read(value: Any) -> Any:
        given = _checked(value, dict)
        made = {}
        for name, make in readers.items():
            if name in given:
                try:
                    made[name] = make(given[name])
                except TypeError as error:
                    raise TypeError(f"{of.__name__}.{name}: {error}") from error
        return of(**made)

    known[of] = read  # before its fields, one of which may be of the same type
    hints = typing.get_type_hints(of)
    for field in dataclasses.fields(typing.cast("Any", of)):
        if field.init:
            readers[field.name] = _reader(hints[field.name], known)
    return read


def _checked(value: Any, of: type[T]) -> T:
    if not isinstance(value, of):
        raise TypeError(f"must be {of.__name__}, not {type(value).__name__}")
    return value
