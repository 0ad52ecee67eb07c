"""The summary at the end of a job, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..row_report import STATUSES, Report

__all__ = ["left_out", "print_summary", "written"]


def written(job: str, report: Report, seconds: float) -> dict[str, Any]:
    """Return the summary of a job that has written rows."""
    summary: dict[str, Any] = {
        "job": job,
        "rows": report.rows,
        "outcomes": {status: report.counts.get(status, 0) for status in STATUSES},
        "seconds": round(seconds, 3),
        "operations_per_second": round(report.rows / seconds) if seconds else 0,
        "retries": report.resent,
    }
    if report.failed_rows:
        summary["first_failed_rows"] = [str(row) for row in report.failed_rows]
    return summary


def left_out(count: int | None, names: Sequence[str], side: str = "") -> dict[str, Any]:
    """Return the entries of a summary about keys left out because they are not valid paths.

    Args:
        count: the number of keys; ``None`` if they were not counted.
        names: the first keys.
        side: the side of the job that has them, if it has two.
    """
    end = f"_{side}" if side else ""
    said: dict[str, Any] = {f"foreign_keys{end}": "not counted" if count is None else count}
    return said | {f"first_foreign_keys{end}": [*names]} if names else said


def print_summary(summary: Mapping[str, Any], output: str) -> None:
    """Write a summary to standard output: as lines of name and value, or as JSON."""
    if output == "table":
        rows = list(_lines(summary))
        width = max(len(name) for name, _ in rows)
        text = "".join(f"{name:<{width}}  {value}\n" for name, value in rows)
    else:
        indent = 2 if output == "json" else None
        text = json.dumps(summary, ensure_ascii=False, indent=indent) + "\n"
    # Data is UTF-8 in every locale.
    sys.stdout.buffer.write(text.encode())
    sys.stdout.flush()


def _lines(summary: Mapping[str, Any]) -> Sequence[tuple[str, object]]:
    lines: list[tuple[str, object]] = []
    for name, value in summary.items():
        if isinstance(value, Mapping):
            counts = ", ".join(f"{count} {what}" for what, count in value.items() if count)
            lines.append((name, counts or "none"))
        elif isinstance(value, list):
            lines += [(name if place == 0 else "", entry) for place, entry in enumerate(value)]
        else:
            lines.append((name, "none" if value is None else value))
    return lines
