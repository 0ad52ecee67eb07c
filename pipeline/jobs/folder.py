"""A folder in which a job keeps files: on this machine, or wherever pyarrow can reach."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs, parquet

from ...ops.errors import MetadataStoreError
from .places import FOLDER_SCHEMES
from .spark_session import JobError

__all__ = ["PATTERN", "FileState", "Folder", "Output"]

_CHUNK: Final = 4 * 1024 * 1024
# Hadoop's schemes, and pyarrow's names for the same file systems.
_SAME: Final = {"s3a": "s3", "gs": "gcs"}
#: The characters that Spark reads as patterns in a name.
PATTERN: Final = re.compile(r"[{}\[\]*?\\]")


class FileState(NamedTuple):
    """A file's length in bytes, and the SHA-256 of its content in hexadecimal."""

    length: int
    sha256: str


class Output(RawIOBase):
    """A file that is being written, with its length and checksum so far."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all the bytes, and return their number."""
        self._stream.write(data)
        self._digest.update(data)
        self._length += len(data)
        return len(data)

    def state(self) -> FileState:
        """Return the length and checksum of the bytes written so far."""
        return FileState(self._length, self._digest.hexdigest())


class Folder:
    """A folder, named by a path on this machine or a URI. ``uri`` is its name for Spark.

    Errors of the file system become ``JobError``s that name the file.
    """

    def __init__(self, name: str) -> None:
        scheme = urlsplit(name).scheme
        # Make it absolute: Java's working directory may differ from ours.
        self.uri = name if scheme in FOLDER_SCHEMES else str(Path(name).absolute())
        try:
            if scheme in FOLDER_SCHEMES:
                same = _SAME.get(scheme, scheme)
                self._system, self._root = fs.FileSystem.from_uri(same + name.removeprefix(scheme))
            else:
                # pyarrow accepts an absolute path as a URI of a local file.
                self._system, self._root = fs.FileSystem.from_uri(self.uri)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise JobError(f"{name}: the folder cannot be used: {error}", "InputError") from error
        self._local = isinstance(self._system, fs.LocalFileSystem)

    def names(self, below: str = "") -> Sequence[str]:
        """Return the names of the files directly in a folder, sorted; none if it is missing."""
        found = self._listed(below)
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def entries(self, below: str = "") -> Sequence[str]:
        """Return the names of the files and folders directly in a folder, sorted."""
        return sorted(info.base_name for info in self._listed(below))

    def empty(self) -> bool:
        """Say whether the folder is empty or missing."""
        return not self._listed("")

    def for_spark(self, *names: str) -> str:
        """Return the name for Spark's readers of a file or folder in this folder.

        The readers expand patterns, so their characters are escaped. They do not decode the quoting
        of URIs.
        """
        root = f"file:{self._root}" if self._local else self.uri.rstrip("/")
        return PATTERN.sub(r"\\\g<0>", "/".join((root, *names)))

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or ``None`` if it is missing."""
        try:
            with self._system.open_input_stream(self._path(name)) as stream:
                data: bytes = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("cannot be read", name, error) from error
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, completely or not at all."""
        path = self._path(name)
        unfinished = self._path(f".{name}.unfinished")
        try:
            self._system.create_dir(self._root, recursive=True)
            with self._system.open_output_stream(unfinished) as stream:
                stream.write(data)
            self._system.move(unfinished, path)
        except OSError as error:
            raise self._failed("cannot be written", name, error) from error

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        try:
            self._system.delete_file(self._path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._failed("cannot be removed", name, error) from error

    def state(self, name: str) -> FileState | None:
        """Return a file's length and checksum, or ``None`` if it is missing."""
        digest, length = hashlib.sha256(), 0
        try:
            with self._system.open_input_stream(self._path(name)) as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    length += len(chunk)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("cannot be read", name, error) from error
        return FileState(length, digest.hexdigest())

    def move(self, name: str, to: str) -> None:
        """Rename a file, and replace a file of the new name."""
        try:
            self._system.move(self._path(name), self._path(to))
        except OSError as error:
            raise self._failed("cannot be renamed", name, error) from error

    @contextmanager
    def output(self, name: str) -> Generator[Output, None, None]:
        """Write a file sequentially. It is removed if the block raises."""
        path = self._path(name)
        with (
            self._removed_by_errors(path, name),
            self._system.open_output_stream(path) as stream,
        ):
            yield Output(stream)

    @contextmanager
    def table(self, name: str, schema: pa.Schema) -> Generator[parquet.ParquetWriter, None, None]:
        """Write a Parquet file, batch by batch. It gets its name if the block succeeds."""
        path = self._path(name)
        above, _, last = path.rpartition("/")
        # A unique name, because an earlier attempt may still be writing the same file.
        unfinished = f"{above}/.{last}.{uuid.uuid4().hex}"
        with self._removed_by_errors(unfinished, name):
            with parquet.ParquetWriter(unfinished, schema, filesystem=self._system) as writer:
                yield writer
            self._system.move(unfinished, path)

    @contextmanager
    def _removed_by_errors(self, path: str, name: str) -> Generator[None, None, None]:
        """Create the folder of a file, and remove the file if the block raises."""
        try:
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
            yield
        except BaseException as error:
            with suppress(OSError):
                self._system.delete_file(path)
            # A store's time-out is an OSError, too.
            if isinstance(error, OSError) and not isinstance(error, MetadataStoreError):
                raise self._failed("cannot be written", name, error) from error
            raise

    def _listed(self, below: str) -> Sequence[fs.FileInfo]:
        try:
            selector = fs.FileSelector(self._path(below), allow_not_found=True)
            found: Sequence[fs.FileInfo] = self._system.get_file_info(selector)
        except OSError as error:
            raise self._failed("cannot be listed", below, error) from error
        return found

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _failed(self, what: str, name: str, error: OSError) -> JobError:
        where = f"{self.uri.rstrip('/')}/{name}" if name else self.uri
        return JobError(f"{where} {what}: {error.strerror or error}", "InputError")
