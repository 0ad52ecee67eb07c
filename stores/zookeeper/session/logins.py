"""The security of a connection to ZooKeeper: TLS, and a login with digest or SASL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

from ....ops.errors import InvalidSettingError, UnsupportedError
from ...tls import NO_FILES, TlsFiles
from ...urls import ConnectOptions, Sasl, StoreURL
from ..wire.kazoo_client import Security

__all__ = ["security"]

# ZooKeeper's servers use this host for DIGEST-MD5, whatever theirs is (SecurityUtils).
_DIGEST_HOST: Final = "zk-sasl-md5"


def security(url: StoreURL, options: ConnectOptions) -> Security:
    """Return the security that a URL and the options ask for.

    Raises:
        InvalidSettingError: the credentials or the files are invalid, or do not go together.
        UnsupportedError: a package for SASL cannot be imported.
    """
    digest = sasl = None
    if options.sasl is not None:
        sasl = _sasl(options, options.sasl)
    elif options.username is not None or options.password is not None:
        digest = _digest(options)
    files = TlsFiles(**{name: url.options.get(name) for name in ("ca", "cert", "key")})
    use_ssl = url.flag("use_ssl", False)
    if not use_ssl and files != NO_FILES:
        raise InvalidSettingError(f"certificates require use_ssl=true: {url.text}")
    if use_ssl:
        files.context()  # kazoo would try files that are of no use until the time-out
    return Security(
        digest, sasl, use_ssl, url.flag("check_hostname", True), files, options.username
    )


def _digest(options: ConnectOptions) -> Callable[[], str]:
    username = options.username
    if not username or options.password is None:
        raise InvalidSettingError("ZooKeeper needs both a username and a password, or neither")
    if ":" in username:
        raise InvalidSettingError(f"a username for ZooKeeper must not contain ':': {username!r}")
    # Evaluated at each login: the password may come from a file.
    return lambda: f"{username}:{options.password_now()}"


def _sasl(options: ConnectOptions, mechanism: Sasl) -> Callable[[str], Any]:
    """Return a function that returns a new SASL client for a host."""
    extra, needed = "sasl", "pure-sasl"
    try:
        client = import_module("puresasl.client").SASLClient
        if mechanism == "gssapi":
            extra, needed = "kerberos", "kerberos"
            import_module("kerberos")
    except ImportError as error:
        raise UnsupportedError(
            f"sasl={mechanism!r} needs the package {needed}, which cannot be imported ({error}); "
            f"install it with: pip install 'batchkeeper[{extra}]'"
        ) from error
    new = partial(client, mechanism=mechanism.upper(), service=options.sasl_service)
    if mechanism == "gssapi":
        if options.password is not None:
            raise InvalidSettingError(
                "sasl='gssapi' takes no password: kinit puts the login into the ticket cache"
            )
        return lambda host: new(host, principal=options.username)
    if not options.username or options.password is None:
        raise InvalidSettingError(f"sasl={mechanism!r} needs both a username and a password")

    def digest_md5(_: str = "") -> Any:
        # Java takes what comes without a charset for Latin-1 (RFC 2831), and pure-sasl names none.
        login = (options.username or "", options.password_now() or "")
        username, password = (text.encode("latin-1") for text in login)
        return new(_DIGEST_HOST, username=username, password=password)

    try:
        digest_md5()
    except UnicodeError:
        raise InvalidSettingError(
            f"sasl={mechanism!r} takes a username and a password in Latin-1 only"
        ) from None
    return digest_md5
