"""The states and the events of a store's session."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["SessionEvent", "SessionState"]

#: ``new``: nothing has needed a session yet. ``connected``: the session stands. ``suspended``: the
#: connection is lost; the server may keep the session, or end it. ``lost``: the server has ended
#: the session, and there is no new one yet. ``closed``: the store is closed.
SessionState: TypeAlias = Literal["new", "connected", "suspended", "lost", "closed"]

#: ``connection_lost``: the server no longer answers, and the session may end. ``reconnected``: the
#: server answers again. ``session_lost``: the server has ended the session, and its ephemeral
#: values are gone. ``session_reestablished``: a new session stands, and watches go on.
SessionEvent: TypeAlias = Literal[
    "connection_lost", "reconnected", "session_lost", "session_reestablished"
]
