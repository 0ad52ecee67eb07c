"""The modules for threads, generated from ``async_*.py`` by ``python tools/faces.py``."""
