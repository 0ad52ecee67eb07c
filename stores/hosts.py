"""Messages about hosts whose names cannot be looked up.

Such a name is no final error: where programs start together, as on Kubernetes, that of a server may
be there a moment later. So clients try again until their time-out, and name the host then.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["lookup_failure"]

# What the C library, c-ares and gRPC say of a name that nobody knows, or that has no address.
_UNKNOWN: Final = re.compile(
    "name or service not known|nodename nor servname|no address associated|not found|no data",
    re.IGNORECASE,
)


def lookup_failure(host: str, reason: str) -> str:
    """Return a message that names the host, and says whether a server of names knows it.

    Args:
        host: the name of the host.
        reason: the text of the failed look-up.
    """
    if _UNKNOWN.search(reason):
        return f"no such host {host}"
    return f"cannot look up the host {host}: {reason}"
