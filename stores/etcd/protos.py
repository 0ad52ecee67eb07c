"""etcd's messages and stubs, from the package etcd3, on protobuf 4 and newer.

etcd3 0.12 ships code from an old protoc, which protobuf refuses to run since version 4. The file
descriptors in that code are still right. So this module reads them from etcd3's ``*_pb2.py`` files
before etcd3 is imported, and makes message classes from them. Modules with these classes replace
etcd3's own, and etcd3 then imports unchanged.

The descriptors go into a pool of their own, not into protobuf's default one. The default pool
accepts the names of etcd's messages only once per process, so a second etcd client would fail to
import.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

__all__ = ["grpc_stubs", "messages"]

_PACKAGE: Final = "etcd3.etcdrpc"
# In the order of their imports: rpc.proto needs the two others.
_MODULES: Final = ("kv_pb2", "auth_pb2", "rpc_pb2")

# The call that makes the file's descriptor. protoc indents its lines, but a last parenthesis.
_DESCRIPTOR: Final = re.compile(r"^DESCRIPTOR = [\w.]+\(\n(?:[ \t].*\n|\)\n)+", re.MULTILINE)

_lock = threading.Lock()  # lets one thread at a time import etcd3


def _load() -> tuple[Any, Any]:
    """Return etcd3's modules ``rpc_pb2`` and ``rpc_pb2_grpc``, or equal ones.

    Modules of etcd3 that the process has already imported, and that work, are used as they are.

    Raises:
        ImportError: etcd3 is missing, or another package has its name.
    """
    with _lock:
        if f"{_PACKAGE}.rpc_pb2" not in sys.modules:
            sources = _outdated_sources()
            if sources:
                _install(sources)
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


def _outdated_sources() -> list[Path]:
    """Return etcd3's generated modules if protobuf refuses such code, otherwise nothing."""
    # find_spec() of a submodule would import its parents, which is not possible yet.
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("No module named 'etcd3'", name="etcd3")
    for location in spec.submodule_search_locations:
        sources = [Path(location, "etcdrpc", f"{name}.py") for name in _MODULES]
        if all(source.is_file() for source in sources):
            outdated = any(_serialized_file(source) is not None for source in sources)
            return sources if outdated else []
    raise ImportError(
        "the installed package etcd3 has no etcdrpc/rpc_pb2.py; it may be another package of the "
        "same name",
        name="etcd3",
    )


def _serialized_file(source: Path) -> bytes | None:
    """Return the file descriptor in a generated module of the old kind.

    Modules of the new kind pass theirs to ``AddSerializedFile`` and need no help.
    """
    # Parsing this statement only, and not thousands of lines, saves a tenth of the time that the
    # command takes to start.
    statement = _DESCRIPTOR.search(source.read_text("utf-8"))
    if statement is None:
        return None
    (node,) = ast.parse(statement[0]).body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        for keyword in node.value.keywords:
            if keyword.arg == "serialized_pb":
                return _literal(keyword.value)
    return None


def _literal(node: ast.expr) -> bytes:
    # The literal is either b"..." or _b("..."), where _b encodes to latin-1 on Python 3.
    if isinstance(node, ast.Call):
        node = node.args[0]
    value = ast.literal_eval(node)
    return value if isinstance(value, bytes) else str(value).encode("latin-1")


def _install(sources: list[Path]) -> None:
    pool = descriptor_pool.DescriptorPool()
    for source in sources:
        serialized = _serialized_file(source)
        if serialized is None:
            raise ImportError(f"{source} holds no file descriptor", name="etcd3")
        module = ModuleType(f"{_PACKAGE}.{source.stem}", f"Made from {source.name} of etcd3.")
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
