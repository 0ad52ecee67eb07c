"""``batchkeeper load``: turns the lines of one file into puts and counts the outcomes.

It runs without Spark.
"""

from __future__ import annotations

import gzip
import io
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from stat import S_ISREG
from typing import Final

from ..ops.errors import BadVersionError, MetadataStoreError, passes
from ..ops.json_lines import parse_record
from ..ops.operations import Put
from ..ops.results import Outcome
from .load_limits import LONGEST_LINE, MOST_REPORTED

__all__ = ["InputError", "LineLoad", "lines", "opened", "progress"]

# The seconds between two progress reports, as lines and as a bar on a terminal.
_LINE_EVERY: Final = 5.0
_BAR_EVERY: Final = 0.1


class InputError(Exception):
    """The user's input cannot be used. The message is for the user."""


class LineLoad:
    """Turns the lines of a file into puts, and counts their outcomes.

    Args:
        name: the file's name, for messages.
        expected_version: the expected version of every put.
        skip_bad: whether to count and skip bad lines.
        tell: a function that shows a message to the user.
    """

    def __init__(
        self, name: str, expected_version: int | None, skip_bad: bool, tell: Callable[[str], None]
    ) -> None:
        self.written = 0
        self.conflicts = 0
        self.errors = 0
        self.skipped = 0
        #: The first error that shows that the store is out of reach. It ends the load, because each
        #: further record would wait until its deadline and fail.
        self.lost: MetadataStoreError | None = None
        self._name = name
        self._expected_version = expected_version
        self._skip_bad = skip_bad
        self._say = tell
        # The numbers of the lines under way, in order: at most as many as the store's queues hold.
        self._numbers: deque[int] = deque()
        self._reported = 0

    def puts(self, lines: Iterable[bytes]) -> Iterator[Put]:
        """Yield a put for each line.

        Raises:
            InputError: a line is bad, and ``skip_bad`` is false. The message has its number.
        """
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if self.lost is not None:
                    return
                if line.isspace():
                    continue
                try:
                    if len(line) >= LONGEST_LINE:
                        raise ValueError(f"longer than {LONGEST_LINE} bytes")
                    put = parse_record(line, self._expected_version)
                except ValueError as error:
                    if not self._skip_bad:
                        raise InputError(f"{self._name}:{number}: {error}") from None
                    self.skipped += 1
                    self._tell(number, f"skipped: {error}")
                    continue
                self._numbers.append(number)
                yield put
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self._name}: unreadable after line {number}: {error}") from error

    def count(self, outcome: Outcome) -> None:
        """Count the next outcome. Outcomes arrive in the order of the puts."""
        number = self._numbers.popleft()
        if outcome.error is None:
            self.written += 1
        elif isinstance(outcome.error, BadVersionError):
            self.conflicts += 1
        else:
            self.errors += 1
            self._tell(number, str(outcome.error))
            if passes(outcome.error):
                self.lost = self.lost or outcome.error

    def _tell(self, number: int, message: str) -> None:
        self._reported += 1
        if self._reported <= MOST_REPORTED:
            self._say(f"{self._name}:{number}: {message}")
        elif self._reported == MOST_REPORTED + 1:
            self._say(f"{self._name}: further errors are counted, but not shown")


def lines(file: io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    """Yield a file's lines; of an overlong line, only the beginning, to bound the memory."""
    while line := file.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE)
        yield line


@contextmanager
def opened(
    name: str,
) -> Iterator[tuple[io.BufferedReader | gzip.GzipFile, Callable[[], int], int | None]]:
    """Open a file, or standard input for ``-``, and decompress it if it is a gzip file.

    Yields the open file, a function that returns the position in the file on the disk, and the size
    of that file, or ``None`` if it is unknown.
    """
    with ExitStack() as stack:
        try:
            raw = open(0 if name == "-" else name, "rb", closefd=name != "-")  # noqa: SIM115
            stack.enter_context(raw)
            status = os.fstat(raw.fileno())
            compressed = raw.peek(2)[:2] == b"\x1f\x8b"
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror}") from error
        size = status.st_size if S_ISREG(status.st_mode) else None
        if compressed:
            with gzip.GzipFile(fileobj=raw) as plain:
                yield plain, raw.tell, size
        else:
            yield raw, raw.tell, size


@contextmanager
def progress(
    load: LineLoad,
    position: Callable[[], int],
    size: int | None,
    tell: Callable[[str], None],
) -> Iterator[Callable[[], None]]:
    """Show the progress of a load: a bar on a terminal, otherwise a line every few seconds.

    Yields a function that updates the display if an update is due. Call it often.

    Args:
        load: the load.
        position: a function that returns the position in the file.
        size: the size of the file; ``None`` if it is unknown.
        tell: a function that shows a line to the user.
    """
    # It takes as long to import as a third of the command's start.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    interval = _BAR_EVERY if console.is_terminal else _LINE_EVERY
    shown = time.monotonic()

    def due() -> bool:
        nonlocal shown
        now = time.monotonic()
        if now - shown < interval:
            return False
        shown = now
        return True

    if not console.is_terminal:
        yield lambda: tell(f"{load.written} records written") if due() else None
        return
    columns = (BarColumn(), TextColumn("{task.fields[written]} records"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=size, written=0)

        def update() -> None:
            bar.update(task, completed=position() if size else 0, written=load.written)

        yield lambda: update() if due() else None
        update()
