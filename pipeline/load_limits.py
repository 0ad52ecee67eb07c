"""The limits that ``batchkeeper load`` and the Spark job ``load`` share."""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST_LINE", "MOST_REPORTED"]

#: The length in bytes at which a line of JSON is too long. A line with the largest value that
#: stores accept by default, 16 MiB, is shorter even in JSON's longest spelling.
LONGEST_LINE: Final = 128 * 1024 * 1024

#: The most bad records to report one by one. Further ones are only counted.
MOST_REPORTED: Final = 20
