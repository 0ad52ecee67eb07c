"""The etcd back end with authentication: logins, certificates, permissions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest

import batchkeeper as bk
from batchkeeper.cli import main
from batchkeeper.ops import (
    ABSENT,
    AuthenticationError,
    BadVersionError,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    IndeterminateError,
    NotEmptyError,
    Put,
    Range,
    Stat,
    StoreUnavailableError,
    Transaction,
    TransactionRefusedError,
)
from batchkeeper.stores import Backend, ConnectOptions, RequestRefusedError, connect
from batchkeeper.stores.etcd import backend as backend_module
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire import connection as connection_module
from batchkeeper.stores.etcd.wire import members
from batchkeeper.stores.etcd.wire.connection import EtcdConnection, FlatOnlyError
from batchkeeper.stores.etcd.wire.members import (
    Credentials,
    checks_nested_permissions,
    may_lose_writes,
)
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.stores.etcd.writes.write_ids import WriteIds
from batchkeeper.testing.servers import EtcdServer

from ...idle import no_data_left
from ...waiting import PATIENCE, soon, until
from ..secured import LIMITED, ROOT, TlsEtcd, secured
from .test_faults import under_way

LATER = ConnectOptions(PATIENCE)


@pytest.fixture
def secured_etcd(own_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """An etcd that asks for a login; it keeps tokens in memory, and a restart loses them."""
    server = own_etcd()
    secured(server)
    return server


def version_of(server: EtcdServer) -> str:
    """Return the version that a server shows everyone."""
    with urlopen(f"http://{server.address}/version") as answer:
        return str(json.load(answer)["etcdserver"])


def outcomes(backend: Backend, operations: list[Any]) -> list[Any]:
    """Execute a batch as the engine does: halve what is refused whole."""
    execute = backend.read if operations[0].kind in {"get", "get_children"} else backend.write
    try:
        return list(execute(operations, soon()))
    except RequestRefusedError:
        half = len(operations) // 2
        return [*outcomes(backend, operations[:half]), *outcomes(backend, operations[half:])]


@pytest.mark.parametrize(
    "options",
    [
        ConnectOptions(),
        ConnectOptions(username="limited", password="wrong-secret"),
        ConnectOptions(username="nobody", password="wrong-secret"),
    ],
    ids=["none", "password", "user"],
)
def test_wrong_credentials_are_refused(secured_etcd: EtcdServer, options: ConnectOptions) -> None:
    """A wrong login fails at opening, with a message that repeats no password."""
    with pytest.raises(AuthenticationError) as caught:
        connect(secured_etcd.url, options)
    assert "secret" not in str(caught.value)


def test_a_login_is_of_no_harm_where_none_is_asked_for(etcd_server: EtcdServer) -> None:
    """An etcd without authentication takes anybody."""
    with closing(connect(etcd_server.url, LIMITED)) as backend:
        assert backend.read([Exists("/no/such")], soon()) == [False]


def test_a_login_that_is_asked_for_only_later_is_made(own_etcd: Callable[..., EtcdServer]) -> None:
    """A store with a login goes on when authentication is turned on while it is open."""
    server = own_etcd()
    with closing(connect(f"{server.url}/ok", LIMITED)) as backend:
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
        secured(server)
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
        assert backend.read([Exists("/a")], soon()) == [True]


def test_write_ids_that_are_no_longer_permitted_are_given_up(
    own_etcd: Callable[..., EtcdServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Permitted writes are written, even if their write ids have become forbidden."""
    server = own_etcd()
    with closing(connect(server.url, LIMITED)) as backend:
        assert type(backend.write([Put("/ok/a", b"")], soon())[0]) is Stat
        secured(server)  # From now on the user may not write write ids, at the top.
        for version in (1, 2):
            (stat,) = outcomes(backend, [Put("/ok/a", b"")])
            assert stat.version == version
        answers = outcomes(backend, [Put("/ok/a", b""), Put("/no/x", b"")])
        assert [type(answer) for answer in answers] == [Stat, AuthenticationError]
    said = [record for record in caplog.records if "write ids refused" in record.getMessage()]
    assert len(said) == 1


def test_a_refused_login_is_not_tried_for_each_call(
    secured_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login costs etcd a tenth of a second; calls meanwhile end with the same refusal."""
    logins = []

    class Counted(Credentials):
        def request(self) -> Any:
            logins.append(1)
            return super().request()

    monkeypatch.setattr(connection_module, "_LOGIN_PAUSE", 600)
    wrong = Counted(username="limited", password="wrong")
    with closing(EtcdConnection([secured_etcd.address], wrong)) as connection:
        errors = []
        for _ in range(5):
            with pytest.raises(AuthenticationError, match="refused the login") as caught:
                connection.open(soon())
            errors.append(caught.value)
        assert len(logins) == 1
        assert len({id(error) for error in errors}) == 5
    monkeypatch.undo()

    def tried_again() -> bool:
        with pytest.raises(AuthenticationError):
            connection.open(soon())
        return len(logins) == 3

    with closing(EtcdConnection([secured_etcd.address], wrong)) as connection:
        until(tried_again)


def test_permissions_hold_for_each_operation(secured_etcd: EtcdServer) -> None:
    """Batching lets nothing through that a single call would refuse, and finds the culprit."""
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        answers = outcomes(
            backend,
            [
                Put("/ok/a", b"1"),
                Put("/no/x", b"1"),
                Put("/ok/b", b"1", -1),
                Put("/no/y", b"1", -1),
                Put("/ok/c", b"1", 7),
                Delete("/ok"),
                Delete("/no/x"),
            ],
        )
        assert [type(answer) for answer in answers] == [
            Stat,
            AuthenticationError,
            Stat,
            AuthenticationError,
            BadVersionError,
            NotEmptyError,
            AuthenticationError,
        ]
        reads = outcomes(
            backend, [Get("/ok/a"), Get("/no/x"), GetChildren("/ok"), GetChildren("/")]
        )
        assert reads[0].value == b"1"
        assert reads[2] == ["a", "b"]
        assert [type(answer) for answer in reads[1::2]] == [AuthenticationError] * 2
        whole = [Transaction([Put("/ok/a", b""), Put("/no/x", b"")])]
        denied = [answers[1], answers[6], *reads[1::2], *outcomes(backend, whole)]
        for call in (
            lambda: next(backend.scans.scan("/no", Range(), None, PATIENCE)),
            lambda: backend.scans.split("/no", 2, PATIENCE),
            lambda: backend.scans.delete_recursive("/no", PATIENCE),
            lambda: backend.watches.watch("/no", None, print, print, soon()),
            lambda: next(backend.history.changes("/no", 0, 9, PATIENCE)),
        ):
            with pytest.raises(AuthenticationError) as refused:
                call()
            denied.append(refused.value)
        for error in denied:
            assert re.match(
                "etcd refused user 'limited' access to '/.*: permission denied", str(error)
            )
        assert str(denied[4]).count("'/ok/a', '/no/x'") == 1


def test_without_a_permission_for_write_ids_writes_go_without(
    secured_etcd: EtcdServer, proxy: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, nothing is left behind, and writes without an answer are indeterminate."""
    line = proxy(secured_etcd.address)
    # The whole space of keys is the store's; the permission does not cover the write ids' place.
    with closing(connect(f"etcd://{line.address}", LIMITED)) as backend:
        for version in range(3):
            (stat,) = backend.write([Put("/ok/a", b"")], soon())
            assert stat.version == version
        said = [r.levelname for r in caplog.records if "write ids refused" in r.getMessage()]
        assert said == ["WARNING"]
        line.swallows = True
        with under_way(lambda: backend.write([Put("/ok/a", b"")], soon())) as (call,):
            assert line.swallowed.wait(PATIENCE)
            line.restore()
            assert type(call.exception(PATIENCE)) is IndeterminateError
    with closing(EtcdConnection([secured_etcd.address], ROOT)) as connection:
        link = connection.open(soon())
        stub = grpc_stubs.LeaseStub(grpc.insecure_channel(link.address))
        found = stub.LeaseLeases(messages.LeaseLeasesRequest(), metadata=link.metadata)
        assert list(found.leases) == []


def test_a_limited_user_has_all_kinds_of_writes_below_its_prefix(
    secured_etcd: EtcdServer,
) -> None:
    """Ephemeral and sequential values and transactions need permissions for the prefix alone."""
    url = f"{secured_etcd.url}/ok"
    with closing(connect(url, LIMITED)) as backend, closing(connect(url, LIMITED)) as other:
        for turn in range(2):
            answers = outcomes(
                backend,
                [
                    Put("/plain", b""),
                    Put("/e", b"", ephemeral=True),
                    Put("/s/n-", b"", sequential=True),
                    Put("/s/n-", b"", sequential=True, ephemeral=True),
                    Transaction([Put("/t", b""), Put("/te", b"", ephemeral=True)]),
                    Transaction([Check("/t", 7), Put("/never", b"")]),
                ],
            )
            assert [stat.path for stat in answers[2:4]] == [
                f"/s/n-{number:010}" for number in (2 * turn, 2 * turn + 1)
            ]
            assert [stat.owned for stat in answers[:4]] == [False, True, False, True]
            assert [stat.version for stat in answers[4]] == [turn, turn]
            assert type(answers[5]) is TransactionRefusedError
        (stat,) = outcomes(other, [Put("/e", b"")])
        assert (stat.version, stat.ephemeral, stat.owned) == (2, True, False)


def test_no_kind_of_write_reaches_what_is_forbidden(secured_etcd: EtcdServer) -> None:
    """Each is refused alone, and its neighbours take effect, in whatever form they are sent."""
    forbidden = [
        Put("/no/x", b"", ephemeral=True),
        Put("/no/x-", b"", sequential=True),
        Put("/ok/x-", b"", sequential=True),  # The counters are out of reach, too.
        Put("/no/x", b"", expected_revision=5),
        Transaction([Put("/ok/a", b""), Put("/no/x", b"")]),
        Transaction([Check("/no/x", ABSENT), Put("/ok/a", b"")]),
        Transaction([Delete("/no/x")]),
    ]
    # The whole space of keys is the store's; the permission covers neither sessions nor counters.
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        for version in range(2):
            answers = outcomes(backend, [Put("/ok/b", b""), *forbidden, Put("/ok/c", b"")])
            assert [type(answer) for answer in answers[1:-1]] == [AuthenticationError] * 7
            assert [answers[0].version, answers[-1].version] == [version, version]
        assert backend.read([Exists("/ok/a")], soon()) == [False]
    root = ConnectOptions(username="root", password="root's")
    with closing(connect(secured_etcd.url, root)) as backend:
        assert backend.read([GetChildren("/no")], soon()) == [[]]


def test_write_ids_are_asked_for_again_where_permissions_may_have_changed(
    own_etcd: Callable[..., EtcdServer],
    proxy: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Write ids accompany writes only while they are permitted."""
    server = own_etcd()
    secured(server)
    line = proxy(server.address)
    place = {"key": b"/.batchkeeper/", "range_end": b"/.batchkeeper0"}
    monkeypatch.setattr(WriteIds, "reconsider", 0)
    with (
        closing(connect(f"etcd://{line.address}", LIMITED)) as backend,
        closing(EtcdConnection([server.address], ROOT)) as connection,
    ):
        stub = grpc_stubs.AuthStub(grpc.insecure_channel(server.address))

        def change(method: Any, request: Any) -> None:
            link = connection.open(soon())
            method(request, metadata=link.metadata)
            connection.broken(link, None, 0, soon(), said="logged in before the change")

        backend.write([Put("/ok/a", b"")], soon())
        permission = messages.AuthRoleGrantPermissionRequest(name="some")
        permission.perm.permType = 2  # READWRITE
        permission.perm.key, permission.perm.range_end = place["key"], place["range_end"]
        change(stub.RoleGrantPermission, permission)
        line.swallows = True
        with under_way(lambda: backend.write([Put("/ok/a", b"", 0)], soon())) as (call,):
            assert line.swallowed.wait(PATIENCE)
            line.restore()
            assert [stat.version for stat in call.result(PATIENCE)] == [1]
        change(
            stub.RoleRevokePermission,
            messages.AuthRoleRevokePermissionRequest(role="some", **place),
        )
        monkeypatch.setattr(WriteIds, "renew", 0)
        (stat,) = backend.write([Put("/ok/a", b"", 1)], soon())
        assert type(stat) is Stat


def test_with_a_login_writes_are_settled_too(
    secured_etcd: EtcdServer, proxy: Callable[[str], Any]
) -> None:
    """If the permission covers the prefix, it covers the write ids; a lost answer does no harm."""
    line = proxy(secured_etcd.address)
    with closing(connect(f"etcd://{line.address}/ok", LIMITED)) as backend:
        backend.write([Put("/a", b"")], soon())
        line.swallows = True
        with under_way(lambda: backend.write([Put("/a", b"", 0), Put("/b", b"")], soon())) as calls:
            assert line.swallowed.wait(PATIENCE)
            line.restore()
            assert [stat.version for stat in calls[0].result(PATIENCE)] == [1, 0]


def test_an_expired_login_is_renewed(secured_etcd: EtcdServer) -> None:
    """A token that etcd no longer knows costs one more login: neither reads nor writes notice."""
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        assert backend.write([Put("/ok/a", b"0")], soon())[0].version == 0
        secured_etcd.restart()
        assert backend.write([Put("/ok/a", b"1", 0)], soon())[0].version == 1
        secured_etcd.restart()
        assert backend.read([Get("/ok/a")], soon())[0].stat.version == 1


def test_a_login_that_is_taken_back_ends_calls(secured_etcd: EtcdServer, tmp_path: Path) -> None:
    """When the password no longer holds, calls say so until its file has another one."""
    file = tmp_path / "password"
    file.write_text("limited's\n")
    login = ConnectOptions(username="limited", password="limited's", password_file=str(file))
    with closing(connect(secured_etcd.url, login)) as backend:
        with closing(EtcdConnection([secured_etcd.address], ROOT)) as connection:
            link = connection.open(soon())
            stub = grpc_stubs.AuthStub(grpc.insecure_channel(link.address))
            change = messages.AuthUserChangePasswordRequest(name="limited", password="other")
            stub.UserChangePassword(change, metadata=link.metadata)
        for call, operation in ((backend.write, Put("/ok/a", b"")), (backend.read, Get("/ok/a"))):
            with pytest.raises(AuthenticationError):
                call([operation], soon())
        file.write_bytes(b"\xef\xbb\xbfother\r\n")

        def goes_on() -> bool:
            try:
                return backend.read([Exists("/ok/a")], soon()) == [False]
            except AuthenticationError:  # refused a moment ago
                return False

        until(goes_on)


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.3.25", False),
        ("3.4.43", False),
        ("3.4.44", True),
        ("3.5.1", False),
        ("3.5.29", False),
        ("3.5.30", True),
        ("3.5.30-vendor1", True),
        ("3.6.10", False),
        ("3.6.11", True),
        ("3.6.0-rc.5", False),
        ("3.7.0-alpha.0", False),
        ("3.7.0-beta.0", True),
        ("3.7.0-rc.0", True),
        ("3.7.0", True),
        ("3.8.0-alpha.0", True),
        ("3.7.0+git", True),
        ("4.0.0", True),
        ("strange", False),
        ("", False),
        (None, False),
    ],
)
def test_nesting_with_a_login_depends_on_the_version(version: str | None, safe: bool) -> None:
    """Older versions do not look at permissions inside nested transactions."""
    assert checks_nested_permissions(version) is safe


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ("3.4.20", True),
        ("3.4.21", False),
        ("3.5.0", True),
        ("3.5.4-vendor1", True),
        ("3.5.5", False),
        ("3.6.0-rc.5", False),
        ("3.7.3", False),
        ("strange", False),
        (None, False),
    ],
)
def test_a_version_that_may_lose_writes_is_known(version: str | None, faulty: bool) -> None:
    """A fault that a server may have is said of versions that are known to have it."""
    assert may_lose_writes(version) is faulty


@pytest.mark.server
def test_a_version_that_may_lose_writes_is_warned_of_once(
    fresh_url: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The log says it once for a server, and stores and the summary of a load each time."""
    monkeypatch.setattr(backend_module, "_warned", set())
    monkeypatch.setattr(backend_module, "may_lose_writes", lambda _: True)
    url = fresh_url("etcd")
    for _ in range(2):
        with bk.open_store(url) as store:
            assert "may lose writes" in str(store.advisory)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"path": "/a", "value": ""}\n')
    assert main(["load", str(file), "--store", url, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["warning"] == store.advisory
    said = [record for record in caplog.records if "may lose" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]


def test_an_etcd_that_may_nest_with_a_login_checks_what_is_nested(
    secured_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of versions is right about this etcd: nesting lets nothing through.

    And a client that follows the table lets nothing through on any.
    """
    forbidden = [Put(f"/no/{n}", b"", -1) for n in range(3)]
    for trusting in (True, False):
        with monkeypatch.context() as patch:
            if trusting:
                patch.setattr(members, "checks_nested_permissions", lambda _: True)
            with closing(connect(secured_etcd.url, LIMITED)) as backend:
                nested = backend.limits.write_ops > 127
                answers = outcomes(backend, forbidden)
                version = version_of(secured_etcd)
        if trusting and not checks_nested_permissions(version):
            continue  # This one is not to be trusted, and may let through what it likes.
        assert nested is checks_nested_permissions(version)
        assert [type(answer) for answer in answers] == [AuthenticationError] * 3


def test_the_version_is_asked_for_in_another_way_where_status_is_refused(
    secured_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some etcds report their status only to root; then their version is read over HTTP.

    Where neither works, batches are flat, and everything else works.
    """
    limited = Credentials(username="limited", password="limited's")
    with closing(EtcdConnection([secured_etcd.address], limited)) as connection:
        assert connection.open(soon()).version == version_of(secured_etcd)
    monkeypatch.setattr(members, "_version_of", lambda *_: None)
    with closing(connect(f"{secured_etcd.url}/ok", LIMITED)) as backend:
        assert backend.limits.write_ops == 127
        assert type(backend.write([Put("/unknown", b"")], soon())[0]) is Stat


def test_a_nested_request_never_goes_to_a_member_that_would_not_check_it(
    secured_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover to an older member, batches are flat."""
    monkeypatch.setattr(members, "checks_nested_permissions", lambda _: True)
    limited = Credentials(username="limited", password="limited's")
    connection = EtcdConnection([secured_etcd.address], limited)
    with closing(EtcdBackend(connection, "", soon(), flat_only=False)) as backend:
        assert backend.limits.write_ops > 127
        monkeypatch.setattr(members, "checks_nested_permissions", lambda _: False)
        connection.broken(connection.open(soon()), None, 0, soon(), said="another member")
        with pytest.raises(FlatOnlyError):
            connection.call("txn", b"", soon(), write=True, nested=True)
        refused = backend.write([Put("/no/x", b"", -1)], soon())
        assert type(refused[0]) is AuthenticationError
        assert backend.limits.write_ops == 127


# --- encryption


@pytest.fixture(scope="module")
def tls_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEtcd]:
    """An etcd with TLS that takes any client."""
    with no_data_left(TlsEtcd(tmp_path_factory.mktemp("etcd"), asks=False)) as server:
        yield server


@pytest.fixture(scope="module", params=["open", "secured"])
def asking_etcd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsEtcd]:
    """An etcd that takes only clients with a certificate, once with permissions and once without.

    The attribute ``secured`` says which.
    """
    with no_data_left(TlsEtcd(tmp_path_factory.mktemp("etcd"), asks=True)) as server:
        server.secured = request.param == "secured"
        if server.secured:
            secured(server)
        yield server


def test_an_encrypted_connection_trusts_the_given_certificate(tls_etcd: TlsEtcd) -> None:
    """With ``ca``, the server is trusted, and everything works as without TLS."""
    with closing(connect(tls_etcd.tls_url(), LATER)) as backend:
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
        assert backend.limits.write_ops == 1024


def test_a_certificate_that_is_not_trusted_is_told_at_once(
    tls_etcd: TlsEtcd, tmp_path: Path
) -> None:
    """The message has the reason, and the time-out is not waited for."""
    port = tls_etcd.tls_address.rpartition(":")[2]
    for url, reason in (
        (f"etcds://{tls_etcd.tls_address}", "unable to get local issuer"),
        (tls_etcd.tls_url().replace("127.0.0.1", "localhost"), "Hostname mismatch"),
    ):
        with pytest.raises(StoreUnavailableError, match=f":{port} is not trusted.*{reason}"):
            connect(url, LATER)


def test_renewed_certificates_are_used_at_the_next_connection(tls_etcd: TlsEtcd) -> None:
    """An open store waits for a member whose certificate has expired, and reads its files again."""
    with closing(connect(tls_etcd.tls_url(), LATER)) as backend:
        tls_etcd.certificates.expired = True
        tls_etcd.restart()
        with pytest.raises(StoreUnavailableError, match="certificate has expired"):
            backend.read([Exists("/a")], time.monotonic() + 1)
        with pytest.raises(StoreUnavailableError, match="certificate has expired"):
            connect(tls_etcd.tls_url(), LATER)
        tls_etcd.certificates.expired = False
        tls_etcd.certificates.renew()
        tls_etcd.restart()
        assert backend.read([Exists("/none")], soon()) == [False]


@pytest.mark.parametrize("authority", [None, "other"])
def test_a_client_that_etcd_does_not_take_is_told_at_once(
    asking_etcd: TlsEtcd, authority: str | None
) -> None:
    """A missing certificate, or one of an unknown authority, is not reported as an outage."""
    url = asking_etcd.tls_url("limited", authority)
    with pytest.raises(AuthenticationError, match=r"certificate.*options 'cert' and 'key'"):
        connect(url, LATER)


def test_a_certificate_is_a_login(asking_etcd: TlsEtcd) -> None:
    """A certificate's common name is the user; batches nest only if etcd checks the nested part."""
    url = asking_etcd.tls_url("limited", "trusted")
    with closing(connect(url, LATER)) as backend:
        version = version_of(asking_etcd)
        assert backend.limits.write_ops == (1024 if checks_nested_permissions(version) else 127)
        answers = outcomes(backend, [Put("/ok/a", b""), Put("/no/x", b"")])
        refused = AuthenticationError if asking_etcd.secured else Stat
        assert [type(answer) for answer in answers] == [Stat, refused]


@pytest.mark.parametrize("name", [None, "somebody"])
def test_a_certificate_of_no_user_permits_nothing(asking_etcd: TlsEtcd, name: str | None) -> None:
    """Opening or, on other versions, the first operation is refused; without permissions, none."""
    try:
        with closing(connect(asking_etcd.tls_url(name, "trusted"), LATER)) as backend:
            (outcome,) = outcomes(backend, [Put("/ok/a", b"")])
    except AuthenticationError as error:
        outcome = error
    assert type(outcome) is (AuthenticationError if asking_etcd.secured else Stat)


def test_a_login_goes_before_a_certificate(asking_etcd: TlsEtcd) -> None:
    """With both, the login decides; a wrong password is refused at once."""
    url = asking_etcd.tls_url("somebody", "trusted")
    with closing(connect(url, LIMITED)) as backend:
        assert type(backend.write([Put("/ok/a", b"")], soon())[0]) is Stat
    wrong = ConnectOptions(PATIENCE, username="limited", password="wrong")
    if asking_etcd.secured:
        with pytest.raises(AuthenticationError, match="refused the login of user 'limited'"):
            connect(url, wrong)
