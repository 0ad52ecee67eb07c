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

__all__ = ["NO_FILES", "REFUSED_CERTIFICATE", "TlsFiles"]

#: Is in OpenSSL's reason if a server refuses the client's certificate, or misses it.
REFUSED_CERTIFICATE: Final = re.compile("ALERT_(.*CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The names of PEM files: the authorities to trust, the client's certificate, and its key.

    Raises:
        InvalidSettingError: there is a certificate without a key, or a key without a certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidSettingError(
                "a client certificate needs both options: 'cert' and 'key' must both be given"
            )

    def read(self) -> tuple[bytes | None, ...]:
        """Return the contents of the three files as they are now.

        Raises:
            InvalidSettingError: a file cannot be read.
        """
        return tuple(_read(option) for option in self._named())

    def context(self) -> ssl.SSLContext:
        """Return settings made from the files as they are now. Without ``ca``, trust the system's.

        Raises:
            InvalidSettingError: a file is of no use. The message names its option and the reason.
        """
        self.read()  # whose errors name the file
        ca, cert, key = self._named()
        option = ca
        try:
            context = ssl.create_default_context(cafile=self.ca)
            # Python 3.13 refuses certificates that gRPC and kazoo accept.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.cert is not None:
                option = cert
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.cert)
                option = key
                context.load_cert_chain(self.cert, self.key, password=_refuse_passphrase)
        except _EncryptedError:
            raise InvalidSettingError(
                f"option 'key': {self.key!r} is encrypted; name a key without a passphrase"
            ) from None
        except OSError as error:  # ssl.SSLError is one
            unread = re.search("PEM lib|NO_CERTIFICATE", str(error))
            fault = "is no valid PEM file" if unread else "cannot be used"
            beside = f" with {self.cert!r}" if option is key and not unread else ""
            raise InvalidSettingError(
                f"option {option[0]!r}: {option[1]!r} {fault}{beside}: {error}"
            ) from error
        return context

    def _named(self) -> tuple[tuple[str, str | None], ...]:
        return ("ca", self.ca), ("cert", self.cert), ("key", self.key)


NO_FILES: Final = TlsFiles()


class _EncryptedError(Exception):
    """A key has a passphrase."""


def _refuse_passphrase() -> str:
    raise _EncryptedError


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
