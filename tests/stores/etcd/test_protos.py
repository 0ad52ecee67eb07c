"""etcd's messages, beside other imports of the process. Each case runs in a new Python."""

from __future__ import annotations

import importlib.util
import py_compile
import shutil
from pathlib import Path

import pytest

from ...programs import run_python

pytestmark = pytest.mark.slow  # Each starts a Python.

LOAD = "from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages\n"
WORKS = (
    "request = messages.TxnRequest(success=[{'request_put': {'key': b'k', 'value': b'v'}}])\n"
    "assert messages.TxnRequest.FromString(request.SerializeToString()) == request\n"
    "assert grpc_stubs.KVStub\n"
)


def run(code: str, path: Path | None = None) -> str:
    """Run code in a new interpreter and return its output; fail if it fails."""
    before = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = run_python("-c", before + code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def etcd3_files() -> Path:
    """Return the folder of the installed etcd3, without importing it."""
    spec = importlib.util.find_spec("etcd3")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def test_etcd3_imports_after_us() -> None:
    """The whole package works afterwards, with the same messages."""
    run(
        LOAD + WORKS + "import etcd3\n"
        "assert etcd3.etcdrpc.TxnRequest is messages.TxnRequest\n"
        "etcd3.client().close()\n"
    )


def test_a_failed_import_of_etcd3_does_no_harm() -> None:
    """An earlier import of etcd3 by other code, successful or not, does no harm."""
    run("try:\n    import etcd3\nexcept TypeError:\n    pass\n" + LOAD + WORKS)


@pytest.mark.slow
def test_messages_that_are_there_already_are_used() -> None:
    """If other code has made etcd3 importable, its work stays unchanged."""
    run(
        LOAD + "import sys\n"
        "theirs = messages\n"
        "for name in [n for n in sys.modules if n.startswith('batchkeeper')]:\n"
        "    del sys.modules[name]\n" + LOAD + "assert messages is theirs\n" + WORKS
    )


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_another_client_s_messages_of_the_same_names(ours_first: bool) -> None:
    """Another etcd client may register other messages with etcd's names, before or afterwards."""
    theirs = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "for name, package in (('kv.proto', 'mvccpb'), ('api/rpc.proto', 'etcdserverpb')):\n"
        "    file = descriptor_pb2.FileDescriptorProto(name=name, package=package)\n"
        "    message = 'KeyValue' if package == 'mvccpb' else 'TxnRequest'\n"
        "    file.message_type.add(name=message)\n"
        "    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())\n"
    )
    run((LOAD + theirs if ours_first else theirs + LOAD) + WORKS)


@pytest.mark.slow
def test_an_etcd3_that_imports_by_itself_is_left_alone(tmp_path: Path) -> None:
    """A package with newly generated messages is imported unchanged."""
    package = tmp_path / "etcd3" / "etcdrpc"
    package.mkdir(parents=True)
    for file in [*etcd3_files().glob("*.py"), *etcd3_files().glob("etcdrpc/*.py")]:
        copy = tmp_path / "etcd3" / file.relative_to(etcd3_files())
        copy.write_text(file.read_text())
    descriptors = run(
        LOAD + "import sys\n"
        "for name in ('kv_pb2', 'auth_pb2', 'rpc_pb2'):\n"
        "    print(sys.modules['etcd3.etcdrpc.' + name].DESCRIPTOR.serialized_pb)\n"
    )
    names = ("kv_pb2", "auth_pb2", "rpc_pb2")
    for name, descriptor in zip(names, descriptors.splitlines(), strict=True):
        # What protoc writes since 3.20.
        (package / f"{name}.py").write_text(
            "from google.protobuf import descriptor_pool\n"
            "from google.protobuf.internal import builder\n"
            "if __name__.endswith('rpc_pb2'):\n"
            "    from etcd3.etcdrpc import auth_pb2, kv_pb2\n"
            f"DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({descriptor})\n"
            "builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())\n"
            "builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())\n"
        )
    said = run(LOAD + WORKS + "print(messages.__file__)", tmp_path)
    assert said.strip() == str(package / "rpc_pb2.py")


@pytest.mark.parametrize("kind", ["sources.zip", "compiled.zip", "compiled"])
def test_an_etcd3_without_source_files(kind: str, tmp_path: Path) -> None:
    """The messages come from compiled code, in a folder or in an archive."""
    package = tmp_path / "built" / "etcd3"
    for file in [*etcd3_files().glob("*.py"), *etcd3_files().glob("etcdrpc/*.py")]:
        copy = package / file.relative_to(etcd3_files())
        copy.parent.mkdir(parents=True, exist_ok=True)
        if kind == "sources.zip":
            copy.write_text(file.read_text())
        else:
            py_compile.compile(str(file), cfile=str(copy.with_suffix(".pyc")), doraise=True)
    place = package.parent
    if kind.endswith("zip"):
        place = Path(shutil.make_archive(str(tmp_path / "etcd3"), "zip", place))
    said = run(LOAD + WORKS + "import etcd3\nprint(etcd3.__file__)", place)
    assert said.startswith(str(place))


def test_a_missing_module_of_our_own_is_no_advice_to_install() -> None:
    """A bundle that has left one out is told which one."""
    run(
        "import sys\n"
        "sys.modules['batchkeeper.stores.etcd.session.guard'] = None\n"
        "import batchkeeper as bk\n"
        "try:\n"
        "    bk.open_store('etcd://127.0.0.1:1')\n"
        "except bk.UnsupportedError as error:\n"
        "    assert 'stores.etcd.session.guard' in str(error) and 'pip' not in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )


def test_a_package_that_is_not_the_etcd3_meant_is_named(tmp_path: Path) -> None:
    """Another package called etcd3 raises an ImportError that says so and what to install."""
    (tmp_path / "etcd3").mkdir()
    (tmp_path / "etcd3" / "__init__.py").write_text("")
    run(
        "from batchkeeper.ops import UnsupportedError\n"
        "from batchkeeper.stores import ConnectOptions, connect\n"
        "try:\n"
        "    connect('etcd://127.0.0.1:1', ConnectOptions())\n"
        "except UnsupportedError as error:\n"
        "    assert 'another package' in str(error) and 'pip install' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n",
        tmp_path,
    )
