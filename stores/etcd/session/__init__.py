"""The client's session, and those of others.

- ``session``: a lease, and the thread that keeps it alive
- ``keep_alives``: a stream of keep-alives for one lease at one member
- ``guard``: finds out whether any client has a session
"""
