"""The files of a TLS client: checked before anything connects, and without a word on the terminal.

OpenSSL asks on the terminal for the passphrase of an encrypted key, and its errors name no file.
"""

from __future__ import annotations

import codecs
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..ops.errors import InvalidSettingError
from ..ops.log import get_logger

__all__ = ["NO_FILES", "REFUSED_CERTIFICATE", "TlsFiles", "TlsSettings"]

_log = get_logger(__name__)

#: Is in OpenSSL's reason if a server refuses the client's certificate, or misses it.
REFUSED_CERTIFICATE: Final = re.compile("ALERT_(.*CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The names of PEM files: the authorities to trust, the client's certificate, and its key.

    ``key_passphrase_file`` names a file whose first line is the passphrase of the key.

    Raises:
        InvalidSettingError: there is a certificate without a key, or a key without a certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_passphrase_file: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidSettingError(
                "a client certificate needs both options: 'cert' and 'key' must both be given"
            )
        if self.key is None and self.key_passphrase_file is not None:
            raise InvalidSettingError("option 'key_passphrase_file' needs the option 'key'")

    def read(self) -> tuple[bytes | None, ...]:
        """Return the contents of the four files as they are now.

        Raises:
            InvalidSettingError: a file cannot be read.
        """
        return tuple(_read(option) for option in self._named())

    def context(self) -> ssl.SSLContext:
        """Return settings made from the files as they are now. Without ``ca``, trust the system's.

        Raises:
            InvalidSettingError: a file is of no use. The message names its option and the reason.
        """
        *_, secret = self.read()  # whose errors name the file
        ca, cert, key, _ = self._named()
        option = ca
        decrypts = False

        def passphrase() -> bytes:
            nonlocal decrypts
            if secret is None:
                raise _EncryptedError
            decrypts = True
            return secret.partition(b"\n")[0].rstrip(b"\r")

        try:
            context = ssl.create_default_context(cafile=self.ca)
            # Python 3.13 refuses certificates that gRPC and kazoo accept.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.cert is not None:
                option = cert
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.cert)
                option = key
                context.load_cert_chain(self.cert, self.key, password=passphrase)
        except _EncryptedError:
            raise InvalidSettingError(
                f"option 'key': {self.key!r} is encrypted; name a key without a passphrase (or, "
                "with hbases://, the passphrase's file in the option 'key_passphrase_file')"
            ) from None
        except (OSError, ValueError) as error:  # SSLError; ValueError: an overlong passphrase
            unread = re.search("PEM lib|NO_CERTIFICATE|longer than", str(error))
            fault = "is no valid PEM file" if unread else "cannot be used"
            beside = f" with {self.cert!r}" if option is key and not unread else ""
            if decrypts and unread:
                fault = f"is not decrypted by the passphrase in {self.key_passphrase_file!r}"
            raise InvalidSettingError(
                f"option {option[0]!r}: {option[1]!r} {fault}{beside}: {error}"
            ) from error
        return context

    def _named(self) -> tuple[tuple[str, str | None], ...]:
        return (
            ("ca", self.ca),
            ("cert", self.cert),
            ("key", self.key),
            ("key_passphrase_file", self.key_passphrase_file),
        )


NO_FILES: Final = TlsFiles()


class TlsSettings:
    """The settings of a TLS client, which follow its files.

    Args:
        files: see :class:`TlsFiles`.
        check_hostname: whether a server's certificate must have its host's name.

    Raises:
        InvalidSettingError: a file is of no use.
    """

    def __init__(self, files: TlsFiles, *, check_hostname: bool = True) -> None:
        self._files = files
        self._check_hostname = check_hostname
        self._made = files.read(), self._context()
        self._fault = ""

    def now(self) -> ssl.SSLContext:
        """Return the settings for a new connection, made again if the files have changed.

        Files that have become useless, for example while they are replaced, change nothing.
        """
        fault = ""
        try:
            if (contents := self._files.read()) != self._made[0]:
                self._made = contents, self._context()
        except InvalidSettingError as error:
            fault = str(error)
        if fault and fault != self._fault:
            _log.warning("certificates not renewed", reason=fault)
        self._fault = fault
        return self._made[1]

    def _context(self) -> ssl.SSLContext:
        context = self._files.context()
        context.check_hostname = self._check_hostname
        return context


class _EncryptedError(Exception):
    """A key has a passphrase."""


def _read(option: tuple[str, str | None]) -> bytes | None:
    name, file = option
    if file is None:
        return None
    try:
        # gRPC finds no certificate behind a byte order mark, and OpenSSL does.
        return Path(file).read_bytes().removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InvalidSettingError(
            f"option {name!r} must name a file; cannot read {file!r}: {error}"
        ) from error
