"""The accelerator: compiled twins of hot functions, in an optional extension module.

A function with a twin is decorated with :func:`accelerated`. It is the specification of its twin:
both give equal results and errors for every input, so nobody needs to know which one runs.

The extension is ``batchkeeper._accelerator``, written in C (``accelerator/``). ``setup.py`` builds
it if there is a C compiler. Without it, or with ``BATCHKEEPER_PURE=1`` in the environment, the
functions here run as they are.
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, overload

__all__ = ["ACCELERATED", "PAIRS", "REASON", "accelerated", "bind"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, or the reason why there is none."""
    if os.environ.get("BATCHKEEPER_PURE", "0") not in {"", "0"}:
        return None, "BATCHKEEPER_PURE is set"
    if "t" in sys.abiflags:
        return None, "a free-threaded Python cannot load it"
    try:
        module = importlib.import_module(".._accelerator", __package__)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and str(error.name).endswith("_accelerator")
        return None, "it was not built" if absent else str(error)
    # An editable tree has the sources, and may have changed since the extension was built.
    sources = sorted(Path(__file__).parent.parent.joinpath("accelerator").glob("*.[ch]"))
    checksum = zlib.crc32(b"".join(source.read_bytes() for source in sources))
    if sources and module.sources != f"{checksum:08x}":
        return None, "it was built from other sources; install the package again"
    return module, ""


_module, REASON = _load()
#: Whether hot functions run compiled; if not, ``REASON`` says why.
ACCELERATED: Final = _module is not None
#: The functions that may have a compiled twin, each with its twin, by the name of the twin.
PAIRS: Final[dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]]] = {}


@overload
def accelerated(twin: _F, /) -> _F: ...
@overload
def accelerated(twin: str, /) -> Callable[[_F], _F]: ...
def accelerated(twin: Any, /) -> Any:
    """Return the compiled twin of a function if there is one, otherwise the function.

    The twin has the same name, or the name in ``@accelerated("name")``. It can call the function
    for inputs that it does not handle: the function is bound to the twin's name.
    """
    return _choose(twin, twin.__name__) if callable(twin) else lambda f: _choose(f, twin)


def _choose(function: _F, name: str) -> _F:
    compiled = getattr(_module, name, None)
    PAIRS[name] = (function, compiled)
    bind(**{name: function})
    return function if compiled is None else compiled


def bind(**objects: object) -> None:
    """Give the extension classes and functions that it needs, by name."""
    if _module is not None:
        _module.bound.update(objects)
