"""Requests and answers over one session with an ensemble.

- ``connection``: requests and answers, each with a certain outcome
- ``logins``: the security of a connection: TLS, and a login with digest or SASL
- ``session``: the events of the session, and proofs of how long it lives
- ``write_ids``: the slots that make sending a multi again safe
- ``sizes``: finds the longest request that the server accepts
- ``fitness``: finds out whether the server does what the package relies on
"""
