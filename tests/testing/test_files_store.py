"""The example of a store in another package: installed as a user would, and tried as users do."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.stores import ConnectOptions, parse_url

from ..waiting import PATIENCE, error, result, soon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "files_store"
PAGE = (ROOT / "docs" / "reference" / "extending.md").read_text()

# Tests that put thousands of values, or start processes. They run with --full, as single execution.
HEAVY = "many or large or thousands or is_even or outlive or forked or beside_a_scan or values_is_a"


class Installed:
    """The example in a copy, with the folder into which it was installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        paths = filter(None, [str(self.site), os.environ.get("PYTHONPATH")])
        programs = [str(Path(sys.executable).parent), os.defpath]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(folder),
            # pip takes them for options: nothing is fetched, and the tests' environment stays as it
            # is. The 0 switches isolation off, which would fetch setuptools.
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_TARGET": str(self.site),
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def shell(self, lines: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run lines of the page, in the folder that it begins in."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @contextmanager
    def python(self, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a program that finds the kind, and end it with the block."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", program, *arguments]
        with subprocess.Popen(command, env=self.environment, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The example, installed by the command of the page."""
    folder = tmp_path_factory.mktemp("clone")
    left_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(EXAMPLE, folder / "examples" / "files_store", ignore=left_out)
    made = Installed(folder)
    enter, install, _ = commands()
    done = made.shell(f"{enter}\n{install}")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def place(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a store, in a process that finds the kind."""
    monkeypatch.syspath_prepend(str(installed.site))
    yield tmp_path / "store"
    for name in [name for name in sys.modules if name.partition(".")[0] == "files_store"]:
        del sys.modules[name]


def commands() -> list[str]:
    """Return the lines of the page that install the example and run the suite on it."""
    (block,) = re.findall(r"```\n(cd examples/files_store\n.*?)```", PAGE, re.DOTALL)
    return block.replace("\\\n", "").splitlines()


@pytest.mark.parametrize(
    ("chosen", "least"),
    [
        (f"not single and not ({HEAVY})", 140),
        pytest.param(f"not single and ({HEAVY})", 15, marks=pytest.mark.full),
        pytest.param("single", 100, marks=pytest.mark.full),
    ],
    ids=["light", "heavy", "single"],
)
def test_the_example_passes_the_suite(installed: Installed, chosen: str, least: int) -> None:
    """Its entry point is found, and the command of the page runs the suite without a failure."""
    enter, _, suite = commands()
    done = installed.shell(f"{enter}\n{suite}", PYTEST_ADDOPTS=f"-p no:cacheprovider -k '{chosen}'")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", done.stdout)}
    assert counts["passed"] >= least
    assert not counts.keys() & {"failed", "errors", "skipped"}
    assert "(capabilities: expected_revisions, linearizable_reads, times)" in done.stdout


# Puts on one path, each at the version that it has read. A value is the one before with the name of
# the writer and the new version, so the last one shows all that was ever put.
WRITER = """
import builtins, os, signal, sys
import batchkeeper as bk

def write(store, name, going_on):
    done = 0
    while going_on(done):
        found = store.get("/a").result()
        before, expected = (found.value, found.stat.version) if found else (b"", bk.ABSENT)
        revision = found.stat.revision if found else 0
        mine = b"%s:%d " % (name.encode(), expected + 1)
        try:
            stat = store.put("/a", before + mine, expected_version=expected).result()
        except bk.BadVersionError:
            continue
        assert stat.version == expected + 1
        assert stat.revision > revision
        os.write(1, mine + b"\\n")
        done += 1

def die_after_call(number):
    # The process is killed at the end of one of its next calls of these functions.
    calls = iter(range(1, number))
    def counted(call):
        def wrapped(*arguments, **options):
            found = call(*arguments, **options)
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return found
        return wrapped
    builtins.open = counted(open)
    for name in ("pwrite", "fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))

def survive(url):
    with bk.open_store(url) as store:
        write(store, "survivor", lambda done: not store.exists("/stop").result())

def be_killed(url, points):
    for point in range(1, int(points) + 1):
        child = os.fork()
        if not child:
            with bk.open_store(url) as store:
                write(store, f"victim-{point}", lambda done: done < 2)
                die_after_call(point)
                write(store, f"victim-{point}", lambda done: True)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

globals()[sys.argv[1]](*sys.argv[2:])
"""
# A turn opens the value to read it; notes its revision and brings it to the disk; opens the value
# again, and the new one, brings that to the disk and renames it; brings the names to the disk; and
# notes its end. One more is in the next turn.
POINTS = 10


def test_a_kill_at_any_point_loses_no_version(installed: Installed, place: Path) -> None:
    """Writers are killed at each step of a put beside another: no version is lost or doubled."""
    url = f"files://{place}"
    with (
        installed.python(WRITER, "survive", url) as survivor,
        installed.python(WRITER, "be_killed", url, str(POINTS)) as victims,
        bk.open_store(url) as store,
    ):
        acknowledged = victims.communicate(timeout=PATIENCE)[0].splitlines()
        result(store.put("/stop", b""))
        acknowledged += survivor.communicate(timeout=PATIENCE)[0].splitlines()
        value, stat = result(store.get("/a"))
    assert (survivor.returncode, victims.returncode) == (0, 0)
    written = value.decode().split()
    versions = [int(entry.partition(":")[2]) for entry in written]
    assert versions == [*range(stat.version + 1)]
    assert {line.strip() for line in acknowledged} <= {*written}
    assert {entry.partition(":")[0] for entry in written} == {
        "survivor",
        *(f"victim-{point}" for point in range(1, POINTS + 1)),
    }


def test_a_put_is_on_the_disk_before_its_answer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revision, the value and then its name are flushed; nothing is, with ``sync=false``."""
    with bk.open_store(f"files://{place}") as store:
        done = calls_of(lambda: result(store.put("/a", b"")), monkeypatch)
    assert done == ["pwrite", "fsync", "fsync", "replace", "fsync", "pwrite"]
    with bk.open_store(f"files://{place}?sync=false") as store:
        done = calls_of(lambda: result(store.put("/a", b"")), monkeypatch)
    assert done == ["pwrite", "replace", "pwrite"]


def calls_of(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return which functions that change the disk are called."""
    done: list[str] = []
    with monkeypatch.context() as patched:
        for name in ("pwrite", "fsync", "replace"):
            patched.setattr(os, name, recorded(done, name, getattr(os, name)))
        call()
    return done


def recorded(done: list[str], name: str, function: Callable[..., object]) -> Callable[..., object]:
    def called(*arguments: object) -> object:
        done.append(name)
        return function(*arguments)

    return called


def test_what_others_change_is_listed(place: Path) -> None:
    """A client that has listed the paths notices what another one puts and deletes."""
    url = f"files://{place}"
    with bk.open_store(url) as store, bk.open_store(url) as other:
        result(store.put("/a/b", b""))
        assert result(store.get_children("/a")) == ["b"]
        result(other.put("/a", b""))
        result(other.put("/a/c", b""))
        result(other.delete("/a/b"))
        assert result(store.get_children("/a")) == ["c"]
        assert isinstance(error(store.delete("/a")), bk.NotEmptyError)
        result(other.delete("/a/c"))
        result(store.delete("/a"))
        assert result(other.get_children("/")) == []


# Forks in the middle of a batch, and is killed then. The child lives on until its input ends.
FORKS = """
import os, signal, sys
import batchkeeper as bk

flush = os.fsync

def fork(file):
    os.fsync = flush
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
    os._exit(0)

with bk.open_store(sys.argv[1]) as store:
    os.fsync = fork
    store.put("/a", b"").result()
"""


def test_a_forked_child_does_not_keep_the_lock(installed: Installed, place: Path) -> None:
    """A process dies in a batch, and its child lives on: others go on at once."""
    with installed.python(FORKS, f"files://{place}") as forks:
        assert forks.wait(PATIENCE) == -signal.SIGKILL
        with bk.open_store(f"files://{place}") as store:
            assert store.put("/b", b"", timeout=5).result(PATIENCE).version == 0


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Hold the lock of a store, as another process would."""
    with open(place / "files-store.lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_wait_for_the_lock_ends_at_the_deadline(place: Path) -> None:
    """While another process holds the lock, operations end at their deadlines, unapplied."""
    with bk.open_store(f"files://{place}", operation_timeout=0.1) as store:
        result(store.put("/a", b"", timeout=PATIENCE))
        with held(place):
            for call in (
                lambda: store.put("/a", b"late").result(PATIENCE),
                lambda: store.get("/a").result(PATIENCE),
                lambda: list(store.scan("/")),
            ):
                with pytest.raises(bk.OperationTimeoutError, match="busy") as caught:
                    call()
                assert caught.value.outcome == "not_applied"
        assert result(store.put("/a", b"", timeout=PATIENCE)).version == 1


def test_a_close_ends_a_wait_for_the_lock(place: Path) -> None:
    """A call that waits for the lock ends when the store is closed, and later calls too."""
    url = parse_url(f"files://{place}")
    backend = bk.store_kind(url).load()(url, ConnectOptions())
    with held(place), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backend.read, [bk.Get("/a")], soon())
        backend.close()
        assert isinstance(error(waiting), bk.StoreClosedError)
    backend.close()
    with pytest.raises(bk.StoreClosedError):
        backend.read([bk.Get("/a")], soon())


def test_a_path_is_no_file_name(place: Path) -> None:
    """Paths longer than any file name or path of the system work, and stay in the directory."""
    paths = ["/" + "long" * 2_000, "/..." + "/..x/deep" * 1_000]
    with bk.open_store(f"files://{place}") as store:
        for path in paths:
            result(store.put(path, b"1"))
        assert [found.path for found in store.scan("/")] == sorted(paths)
    assert [*place.parent.iterdir()] == [place]


def test_other_files_and_damaged_ones(place: Path) -> None:
    """Files of others do not count. A damaged one is an error of its path, and of scans."""
    with bk.open_store(f"files://{place}") as store:
        result(store.put("/a", b"1"))
        (file,) = place.glob("?" * 64)
        (place / "README").write_text("notes")
        result(store.put("/b", b"2"))
        file.write_bytes(file.read_bytes()[3:])
        for call in (store.get("/a"), store.put("/a", b"")):
            refused = error(call)
            assert isinstance(refused, bk.StoreUnavailableError)
            assert (refused.path, refused.retriable) == ("/a", False)
        assert result(store.get("/b")).value == b"2"
        with (
            bk.open_store(f"files://{place}") as other,
            pytest.raises(bk.StoreUnavailableError, match="is damaged"),
        ):
            list(other.scan("/"))


def test_a_directory_that_was_replaced_is_left_alone(place: Path) -> None:
    """A store whose directory was removed, or replaced by another, refuses everything."""
    with bk.open_store(f"files://{place}") as store:
        result(store.put("/a", b""))
        place.rename(place.parent / "away")
        assert isinstance(error(store.put("/a", b"")), bk.StoreUnavailableError)
        with bk.open_store(f"files://{place}") as another:
            for call in (store.put("/a", b""), store.get("/a")):
                refused = error(call)
                assert isinstance(refused, bk.StoreUnavailableError)
                assert (refused.outcome, refused.retriable) == ("not_applied", False)
            assert result(another.exists("/a")) is False


def test_a_place_that_cannot_hold_a_store(place: Path) -> None:
    """What cannot be opened is refused with the reason, and nothing in it is changed."""
    file, others, newer = place.parent / "file", place.parent / "others", place.parent / "newer"
    file.write_text("a file")
    for folder, name in ((others, "LOCK"), (newer, "files-store.lock")):
        folder.mkdir()
        (folder / name).write_text("files-store 2")
    invalid, unavailable = bk.InvalidSettingError, bk.StoreUnavailableError
    refusals: list[tuple[str, type[bk.MetadataStoreError], str]] = [
        (f"files://{file}", invalid, "must be a directory"),
        (f"files://{others}", invalid, "contains 'LOCK'"),
        (f"files://{newer}", invalid, "another version"),
        ("files://relative/directory", invalid, "absolute directory"),
        ("files:///a%00b", invalid, "absolute directory"),
        (f"files://{place}?snyc=false", invalid, "no option 'snyc'"),
        (f"files://{file}/below", unavailable, "cannot be opened"),
        (f"files://{place}{'x' * 300}", unavailable, "File name too long"),
        ("files:///proc/store", unavailable, "cannot be opened"),
    ]
    for url, kind, reason in refusals:
        with pytest.raises(kind, match=reason):
            bk.open_store(url)
    with pytest.raises(unavailable, match="there is no files store"):
        bk.open_store(f"files://{place}", create=False)
    assert {*place.parent.iterdir()} == {file, others, newer}


def test_the_page_quotes_the_example() -> None:
    """Each block of code on the page stands in the example."""
    sources = "".join(file.read_text() for file in EXAMPLE.rglob("*.py"))
    quoted = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(quoted) > 2
    for block in quoted:
        assert block in sources or textwrap.indent(block, "    ") in sources, block
    (entry_point,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert entry_point in (EXAMPLE / "pyproject.toml").read_text()
