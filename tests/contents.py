"""Puts and reads contents. They live in the package, because the conformance suite needs them."""

from batchkeeper.testing.contents import contents, put_all

__all__ = ["contents", "put_all"]
