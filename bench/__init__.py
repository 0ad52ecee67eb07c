"""The benchmark harness, and throw-away real servers for it and for the tests."""
