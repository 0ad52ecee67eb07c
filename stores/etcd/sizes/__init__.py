"""How much goes into one request.

- ``requests``: sends transactions, and learns how large they may be
- ``limits``: the limits of a server: probes and learns them, and returns them as ``Limits``
- ``estimates``: the size of the next request, estimated from recent answers
"""
