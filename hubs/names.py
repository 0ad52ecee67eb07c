"""Names as path components: any name is valid, none collide, and their byte order is kept."""

from __future__ import annotations

import re
from typing import Final

from .errors import IllegalOperationError

__all__ = ["escaped", "name_text", "text_of", "unescaped"]

# Each byte of a name becomes a word. Most bytes stand for themselves. The others become a word that
# starts with a character of the same rank: ``!`` for the bytes up to it, ``.`` for the dot and the
# slash, ``~`` for the bytes from it on. No word is a prefix of another, so escaped names sort like
# the names.
_WORDS: Final = [
    f"!{byte:02x}"
    if byte <= ord("!")
    else f"~{byte:02x}"
    if byte >= ord("~")
    else {".": ".0", "/": ".1"}.get(chr(byte), chr(byte))
    for byte in range(256)
]
_BYTES: Final = {word: bytes([byte]) for byte, word in enumerate(_WORDS)}
_WORD: Final = re.compile(r"[!~].{2}|\..|[^!~.]", re.DOTALL)
_PLAIN: Final = re.compile(r'["-\-0-}]+')


def escaped(name: str | bytes) -> str:
    """Return a name as a path component. Text is encoded as UTF-8.

    Bytes that are not UTF-8 also have a text: that of ``os.fsdecode`` on Linux (PEP 383).

    Raises:
        IllegalOperationError: the name is neither ``str`` nor ``bytes``, is empty, or cannot be
            encoded as UTF-8.
    """
    text = name_text(name)
    if _PLAIN.fullmatch(text):
        return text
    if not text:
        raise IllegalOperationError("a name must not be empty")
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise IllegalOperationError(f"a name must be text or bytes: {error}") from None
    if name_text(raw) != text:
        raise IllegalOperationError(f"a name must have one text only: this is {name_text(raw)!r}")
    return "".join([_WORDS[byte] for byte in raw])


def unescaped(part: str) -> bytes | None:
    """Return the name that a path component was made from; ``None`` if no name makes it."""
    words = _WORD.findall(part)
    found = [_BYTES.get(word) for word in words]
    if None in found or sum(map(len, words)) < len(part):
        return None
    return b"".join(byte for byte in found if byte is not None)


def text_of(part: str) -> str | None:
    """Return the text that a path component was made from; ``None`` if no name makes it."""
    if _PLAIN.fullmatch(part):
        return part
    name = unescaped(part)
    return None if name is None else name_text(name)


def name_text(name: str | bytes) -> str:
    """Return the text of a name; see :func:`escaped`. Different names have different texts.

    Raises:
        IllegalOperationError: the name is neither ``str`` nor ``bytes``.
    """
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    if isinstance(name, str):
        return name
    raise IllegalOperationError(f"a name must be a str or bytes, not {name!r:.80}")
