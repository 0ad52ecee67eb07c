"""The command ``batchkeeper top``: shows a running client, live.

It asks the server that the application has switched on with ``serve_metrics``, and shows what has
happened between two looks.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from ..batching import Histogram
from ..batching.settings import check_seconds
from ..observability.server import FORMAT
from ..ops.errors import StoreUnavailableError
from ..ops.exit_codes import OK
from ..pipeline.arguments import add_output, at_least, seconds
from .arguments import InputError
from .output import write_json
from .top_view import Screen

__all__ = ["add_arguments", "run"]

_LANES: Final = ("reads", "writes", "singles")

#: Counts of the whole store, shown as rates and in total.
_COUNTS: Final = (
    "conflicts",
    "waits",
    "aborts",
    "splits",
    "retries",
    "settled",
    "reconnects",
    "watch_events",
    "watch_drops",
    "session_losses",
)

# Less than this, and the looks themselves would be what is shown.
_INTERVAL: Final = at_least(0.1, seconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "client",
        metavar="URL-or-PORT",
        help="where the application serves metrics: a port of this machine, host:port or a URL",
    )
    parser.add_argument(
        "--interval",
        type=_INTERVAL,
        default=1.0,
        metavar="TIME",
        help="between two looks, such as 500ms (default: 1s)",
    )
    parser.add_argument("--once", action="store_true", help="show one interval, and end")
    # A default here would overwrite an option given before the command.
    common = parser.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    add_output(common, "json: one interval, as with --once; jsonl: a line for each")
    common.add_argument(
        "--connect-timeout", type=seconds, metavar="TIME", help="such as 500ms (default: 10s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show what the client does until Ctrl-C, and return the exit code.

    Raises:
        InputError: an argument is invalid, or something else answers.
        StoreUnavailableError: nothing answers.
    """
    host, port = _address(arguments.client)
    check_seconds("--connect-timeout", arguments.connect_timeout)
    shown = _figures(_looks(host, port, arguments.connect_timeout, arguments.interval))
    output: str = arguments.output
    if output != "table":
        for figures in shown:
            write_json(figures, "json" if output == "json" else "jsonl")
            sys.stdout.flush()
            if arguments.once or output == "json":
                break
        return OK
    with Screen(live=not arguments.once) as screen:
        for figures in shown:
            screen.show(figures)
            if arguments.once:
                break
    return OK


def _address(client: str) -> tuple[str, int]:
    """Return the host and the port that the argument names."""
    if client.isascii() and client.isdigit():
        client = f"127.0.0.1:{client}"
    try:
        parts = urlsplit(client if "://" in client else f"http://{client}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or not port:
        raise InputError(f"not a port, host:port or http URL with a port: {client!r}")
    if parts.scheme != "http":
        raise InputError(f"only http is supported, not {parts.scheme}: {client!r}")
    return host, port


def _looks(host: str, port: int, timeout: float, interval: float) -> Iterator[Mapping[str, Any]]:
    """Yield what the server shows, an interval apart."""
    due = time.monotonic()
    while True:
        yield _look(host, port, timeout)
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _look(host: str, port: int, timeout: float) -> Mapping[str, Any]:
    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/metrics.json")
        answer = connection.getresponse()
        body = answer.read()
    except OSError as error:
        raise StoreUnavailableError(
            f"no metrics at {where}: {error.strerror or error}; does the application run, and call "
            f"serve_metrics(store, port={port})?"
        ) from error
    except http.client.HTTPException as error:
        raise InputError(f"{where} does not answer as HTTP: {error!r}") from error
    finally:
        connection.close()
    try:
        page = json.loads(body)
        known = page["format"] == FORMAT
    except (ValueError, TypeError, LookupError):
        raise InputError(
            f"{where} answers, but not with metrics of batchkeeper ({answer.status})"
        ) from None
    if not known:
        raise InputError(
            f"{where} has metrics in the format {page['format']!r}; this command knows {FORMAT}"
        )
    found: Mapping[str, Any] = page
    return found


def _figures(looks: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what has happened between each two looks."""
    before = next(looks)
    for after in looks:
        # Another process has other counts: the application was restarted.
        yield _between(before if before["pid"] == after["pid"] else after, after)
        before = after


def _between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    interval = max(after["time"] - before["time"], 1e-9)
    old, new = before["metrics"], after["metrics"]

    def rate(name: str) -> float:
        found: float = round((new[name] - old[name]) / interval, 2)
        return found

    def rates(name: str) -> dict[str, float]:
        return {
            key: round((count - old[name].get(key, 0)) / interval, 2)
            for key, count in sorted(new[name].items())
        }

    return {
        **{name: after[name] for name in ("store", "version", "pid", "time", "session")},
        "interval": round(interval, 3),
        "lanes": {name: _lane(old[name], new[name], interval) for name in _LANES},
        "queued_bytes": new["queued_bytes"],
        "watches": new["watches"],
        "per_second": {
            "operations": rates("operations"),
            "failures": rates("failures"),
            "errors": rates("errors"),
            **{name: rate(name) for name in _COUNTS},
        },
        "totals": {
            "operations": sum(new["operations"].values()),
            "failures": sum(new["failures"].values()),
            **{name: new[name] for name in _COUNTS},
        },
    }


def _lane(old: Mapping[str, Any], new: Mapping[str, Any], interval: float) -> dict[str, Any]:
    batches = new["batches"] - old["batches"]
    operations = new["operations"] - old["operations"]
    figures: dict[str, Any] = {
        "operations_per_second": round(operations / interval, 2),
        "batches_per_second": round(batches / interval, 2),
        "operations_per_batch": round(operations / batches, 2) if batches else None,
        **{name: new[name] for name in ("queued", "waiting", "in_flight")},
    }
    for name in ("queue", "store"):
        times = _difference(old[f"{name}_seconds"], new[f"{name}_seconds"])
        for percent in (50, 99):
            value = times.percentile(percent) if times.count else None
            figures[f"{name}_seconds_p{percent}"] = value
    return figures


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Histogram:
    counts = tuple(b - a for a, b in zip(old["counts"], new["counts"], strict=True))
    # The largest value of all time bounds that of the interval.
    return Histogram(tuple(new["bounds"]), counts, new["sum"] - old["sum"], new["max"])
