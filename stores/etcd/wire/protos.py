"""etcd's messages and stubs, from the package etcd3, on protobuf 4 and newer.

etcd3 0.12 ships code from an old protoc, which protobuf refuses to run since version 4. The file
descriptors in that code are still right. So this module reads them from etcd3's ``*_pb2`` modules
before etcd3 is imported, and makes message classes from them. Modules with these classes replace
etcd3's own, and etcd3 then imports unchanged.

The descriptors go into a pool of their own, not into protobuf's default one. The default pool
accepts the names of etcd's messages only once per process, so a second etcd client would fail to
import.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

__all__ = ["grpc_stubs", "messages"]

_PACKAGE: Final = "etcd3.etcdrpc"
# In the order of their imports: rpc.proto needs the two others.
_MODULES: Final = ("kv_pb2", "auth_pb2", "rpc_pb2")

_lock = threading.Lock()  # lets one thread at a time import etcd3


def _load() -> tuple[Any, Any]:
    """Return etcd3's modules ``rpc_pb2`` and ``rpc_pb2_grpc``, or equal ones.

    Modules of etcd3 that the process has already imported, and that work, are used as they are.

    Raises:
        ImportError: etcd3 is missing, or another package has its name.
    """
    with _lock:
        if f"{_PACKAGE}.rpc_pb2" not in sys.modules:
            _install(_outdated_files())
        try:
            # Import the package itself first, as a user of etcd3 would.
            importlib.import_module("etcd3")
            return (
                importlib.import_module(f"{_PACKAGE}.rpc_pb2"),
                importlib.import_module(f"{_PACKAGE}.rpc_pb2_grpc"),
            )
        except ImportError:
            raise
        except Exception as error:  # a generated module may raise anything: TypeError, mostly
            raise ImportError(f"etcd3 cannot be imported: {error}", name="etcd3") from error


def _outdated_files() -> dict[str, bytes]:
    """Return the file descriptors of etcd3's generated modules, if protobuf refuses such code."""
    # find_spec() of a submodule would import its parents, which is not possible yet.
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("No module named 'etcd3'", name="etcd3")
    package = _find(_PACKAGE, spec)
    files = {name: _serialized_file(name, package) for name in _MODULES}
    return {name: file for name, file in files.items() if file is not None}


def _find(name: str, parent: ModuleSpec) -> ModuleSpec:
    """Find a module below another without importing it: in a folder, an archive or a program."""
    for finder in sys.meta_path:
        if found := finder.find_spec(name, parent.submodule_search_locations):
            return found
    raise ImportError(
        f"etcd3 at {parent.origin} has no module {name}; it may be another package of the same "
        f"name, or what bundled it has left the module out",
        name="etcd3",
    )


def _serialized_file(name: str, package: ModuleSpec) -> bytes | None:
    """Return the file descriptor in a generated module of the old kind.

    Modules of the new kind pass theirs to ``AddSerializedFile`` and need no help. The compiled code
    is read, because archives and frozen programs may have no sources.
    """
    full_name = f"{_PACKAGE}.{name}"
    loader: Any = _find(full_name, package).loader
    code: CodeType = loader.get_code(full_name)
    if "AddSerializedFile" in code.co_names:
        return None
    file_name = f"{name.removesuffix('_pb2')}.proto".encode()
    for constant in code.co_consts:
        if isinstance(constant, str | bytes):
            # protoc wrote b"...", or _b("..."), where _b encodes to latin-1 on Python 3.
            value = constant.encode("latin-1", "replace") if isinstance(constant, str) else constant
            # A descriptor begins with a field that holds the name of its file.
            if (
                value[:1] == b"\n"
                and len(value) > 2
                and value[2 : 2 + value[1]].endswith(file_name)
            ):
                return value
    raise ImportError(f"{full_name} holds no file descriptor", name="etcd3")


def _install(files: dict[str, bytes]) -> None:
    pool = descriptor_pool.DescriptorPool()
    for name, serialized in files.items():
        module = ModuleType(f"{_PACKAGE}.{name}", f"Made from {name} of etcd3.")
        _fill(module, pool.AddSerializedFile(serialized))
        sys.modules[module.__name__] = module


def _fill(module: ModuleType, file: Any) -> None:
    names = module.__dict__
    names["DESCRIPTOR"] = file
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        for value in enum.values:
            names[value.name] = value.number
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)


#: The messages of etcd's API (``TxnRequest`` and so on), and the stubs of its services.
messages, grpc_stubs = _load()
