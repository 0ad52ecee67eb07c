"""The access rule that applies to a topic. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from ...ops.errors import InvalidSettingError, ValueDecodeError
from ..errors import AccessDeniedError, IllegalOperationError
from ..names import escaped, name_text, unescaped
from .region import EVERYBODY, Rule

__all__ = ["Action", "Rules", "check_access", "part_of", "prefix_of", "rules_of"]

#: What a client wants to do with a topic.
Action: TypeAlias = Literal["create", "subscribe", "publish"]

_ACTIONS: Final[tuple[Action, ...]] = get_args(Action)

# The empty prefix as a path component. No other prefix is escaped like this.
_EMPTY: Final = ".default"


class Rules(NamedTuple):
    """The rules by prefix, each with its error if it is damaged, and the lengths of prefixes."""

    by_prefix: Mapping[bytes, Rule | ValueDecodeError]
    lengths: tuple[int, ...]


def part_of(prefix: str | bytes) -> str:
    """Return a prefix of topics as a path component.

    Raises:
        IllegalOperationError: the prefix is neither text nor bytes.
    """
    return escaped(prefix) if name_text(prefix) else _EMPTY


def prefix_of(part: str) -> bytes | None:
    """Return the prefix that a path component was made from; ``None`` if no prefix makes it."""
    return b"" if part == _EMPTY else unescaped(part)


def rules_of(by_prefix: Mapping[bytes, Rule | ValueDecodeError]) -> Rules:
    """Return rules in a form that is quick to search."""
    return Rules(by_prefix, tuple(sorted({len(prefix) for prefix in by_prefix}, reverse=True)))


def check_access(rules: Rules, action: Action, who: str, topic: str | bytes) -> None:
    """Refuse an action that the rules do not allow. See ``AccessRules.check``."""
    if action not in _ACTIONS:
        raise InvalidSettingError(f"action must be one of {_ACTIONS}, not {action!r:.80}")
    if not (isinstance(who, str) and who):
        raise IllegalOperationError(f"who must be a text that is not empty, not {who!r:.80}")
    text = name_text(topic)
    if not text:
        raise IllegalOperationError("a topic must not be empty")
    name = _bytes_of(text)
    for length in rules.lengths:
        rule = rules.by_prefix.get(name[:length]) if length <= len(name) else None
        if rule is None:
            continue
        if isinstance(rule, ValueDecodeError):
            why = f"the rule that decides is damaged: {rule}"
            raise AccessDeniedError(_denied(action, who, text, why), path=rule.path) from rule
        allowed = getattr(rule, action)
        if who in allowed or EVERYBODY in allowed:
            return
        prefix = name_text(name[:length])
        raise AccessDeniedError(
            _denied(action, who, text, f"the rule for {prefix!r:.200} does not allow it")
        )


def _denied(action: Action, who: str, topic: str, why: str) -> str:
    to = "" if action == "create" else " to"
    return f"{who!r:.80} must not {action}{to} topic {topic!r:.200}: {why}"


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise IllegalOperationError(f"a name must be text or bytes: {error}") from None
