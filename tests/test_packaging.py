"""The repository's root is the package: the installed and built files."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import batchkeeper
from batchkeeper.ops.acceleration import ACCELERATED, REASON

from .compiling import COMPILES
from .programs import run_python, spark_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
# Packages in folders with other names, with their places once installed.
ELSEWHERE = {
    "pipeline/registration/": "pyspark_batchkeeper/",
    "tests/conformance/": "batchkeeper/testing/conformance/",
}
# Programs that are run in a clone only.
CLONE_ONLY = "bench/targets/"
TARGETS = str(ROOT / CLONE_ONLY)
SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(*spark.read.format("batchkeeper").option("url", "etcd://127.0.0.1:1").load().columns)
"""
BUILD = """
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1])
"""


EXTENSION = "batchkeeper/_accelerator.abi3.so"


def sources(root: Path) -> set[str]:
    """Return the files of the package: its modules, its data, and the marker for its types.

    Of the root's folders, packages are those with an ``__init__.py``, and the conformance suite.
    """
    found = {"py.typed", *(path.name for path in root.glob("*.py"))} - {"setup.py"}
    found.update(str(path.relative_to(root)) for path in root.glob("tests/conformance/*.py"))
    for data in ("observability/*.json", "bench/load/mixes/*.toml", "bench/**/page.html"):
        found.update(str(path.relative_to(root)) for path in root.glob(data))
    for package in root.glob("*/__init__.py"):
        found.update(str(path.relative_to(root)) for path in package.parent.rglob("*.py"))
    return {name for name in found if not name.startswith(CLONE_ONLY)}


def as_installed(root: Path) -> set[str]:
    """Return the places of these files once installed."""

    def place(name: str) -> str:
        for folder, other in ELSEWHERE.items():
            if name.startswith(folder):
                return other + name.removeprefix(folder)
        return f"batchkeeper/{name}"

    return {place(name) for name in sources(root)}


@pytest.fixture(
    scope="module", params=["bk-clone", pytest.param("batchkeeper", marks=pytest.mark.full)]
)
def clone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, or of the source archive, as a new clone under another name."""
    target = tmp_path_factory.mktemp("clones") / str(request.param)
    of_build = {"pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md"}
    of_build.update(str(path.relative_to(ROOT)) for path in ROOT.glob("accelerator/*"))
    for name in sources(ROOT) | of_build:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    # A clone has more than the package, and none of it may reach the wheel.
    for name in (
        "tests/stores/test_x.py",
        "tools/faces.py",
        "tox.ini",
        "run",
        "notes.md",
        "bench/targets/rows.py",
    ):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("")
    return target


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """A folder with what the wheel would install."""
    target = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    """The wheel built in the clone."""
    return build(clone, clone.parent / "wheel")


def build(clone: Path, out: Path, **environment: str) -> Path:
    """Build a wheel in a clone, into an empty folder."""
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(out)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


def test_the_tests_run_on_the_installed_package() -> None:
    """The package under test is the one that was installed, and not the folder around the tests."""
    assert batchkeeper.__file__ is not None
    installed = Path(batchkeeper.__file__).parent
    assert installed.parent == Path(sysconfig.get_path("purelib"))
    assert installed != ROOT


def test_there_is_one_copy_of_the_package() -> None:
    """Every module is loaded from the installed package, and none from the tree."""
    assert batchkeeper.__file__ is not None
    installed = Path(batchkeeper.__file__).parent
    stray = {
        name: file
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and Path(file).is_relative_to(ROOT)
        and not Path(file).is_relative_to(ROOT / "tests")
        and not Path(file).is_relative_to(ROOT / CLONE_ONLY)
        and not Path(file).is_relative_to(installed)
        and not Path(file).is_relative_to(sys.prefix)
    }
    assert stray == {}


def test_the_installed_files_are_those_of_the_tree() -> None:
    """The installed files are those of the tree, without omissions or additions."""
    # Looked for in site-packages only: `python -m pytest` also sees what a build left in the tree.
    (distribution,) = importlib.metadata.distributions(
        name="batchkeeper", path=[sysconfig.get_path("purelib")]
    )
    files = distribution.files or []
    installed = {
        str(file)
        for file in files
        if file.parts[0] in {"batchkeeper", "pyspark_batchkeeper"} and file.suffix != ".pyc"
    }
    assert installed - {EXTENSION} == as_installed(ROOT)


def test_a_wheel_holds_the_packages_and_nothing_else(clone: Path, wheel: Path) -> None:
    """Whatever a clone is called, its wheel holds each module once, and no other tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        license_files = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
    assert sorted(names) == sorted(as_installed(clone) | ({EXTENSION} if COMPILES else set()))
    assert len(license_files) == 1
    tags = wheel.stem.split("-", 2)[2]
    assert tags.startswith("cp311-abi3-linux_" if COMPILES else "py3-none-any")


@pytest.mark.parametrize("clone", ["bk-clone"], indirect=True)
def test_a_wheel_built_without_a_compiler_is_pure(clone: Path, tmp_path: Path) -> None:
    """If the accelerator cannot be compiled, the wheel has everything else, for all Pythons."""
    shutil.rmtree(clone / "build", ignore_errors=True)  # It may hold an extension.
    pure = build(clone, tmp_path, CC="false")
    assert pure.stem.endswith("-py3-none-any")
    with zipfile.ZipFile(pure) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path)
    assert names == as_installed(clone)
    program = "from batchkeeper.ops.acceleration import REASON; print(REASON)"
    found = run_python("-c", program, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)
    assert found.stdout == "it was not built\n"


def test_a_wheel_is_one_package_for_whoever_imports_it(clone: Path, unpacked: Path) -> None:
    """From inside a clone, as in a shell there, `import batchkeeper` finds the installed one."""
    program = "import batchkeeper; print(batchkeeper.__file__)"
    found = run_python(
        "-c", program, cwd=clone, env={**os.environ, "PYTHONPATH": str(unpacked)}, check=True
    )
    assert Path(found.stdout.strip()) == unpacked / "batchkeeper" / "__init__.py"


@pytest.mark.parametrize("clone", ["bk-clone"], indirect=True)
def test_the_wheel_brings_the_conformance_suite(unpacked: Path, tmp_path: Path) -> None:
    """Where only the wheel is installed, the plugin runs the suite on a store."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # or that of this project would count
    done = run_python(
        *("-m", "pytest", "-q", "-p", "batchkeeper.testing", "-p", "no:cacheprovider"),
        *("--batchkeeper-store", "memory://{unique}", "-k", "test_bulk"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.full
@pytest.mark.server
@pytest.mark.parametrize("clone", ["bk-clone"], indirect=True)
def test_spark_finds_the_data_source_by_itself(unpacked: Path, tmp_path: Path) -> None:
    """If the wheel is installed, a session finds the format without any registration."""
    done = run_python(
        "-c",
        SPARK,
        cwd=tmp_path,
        env={**os.environ, **spark_environment(), "PYTHONPATH": str(unpacked)},
    )
    assert done.stdout.split()[:3] == ["path", "value", "version"], done.stderr


@pytest.mark.parametrize("clone", ["bk-clone"], indirect=True)
@pytest.mark.parametrize(
    ("before", "offered"),
    [("import pyspark.sql.datasource", True), ("sys.modules['pyspark'] = None", False)],
    ids=["spark", "no-spark"],
)
def test_what_spark_imports_is_cheap_and_never_fails(
    before: str, offered: bool, unpacked: Path
) -> None:
    """Spark's entry loads no module of batchkeeper, and without Spark has no data source."""
    program = (
        f"import sys; {before}; known = set(sys.modules); import pyspark_batchkeeper as entry; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - known}; "
        "print('batchkeeper' in new, hasattr(entry, 'DefaultSource'))"
    )
    done = run_python("-c", program, env={**os.environ, "PYTHONPATH": str(unpacked)}, check=True)
    assert done.stdout.split() == ["False", str(offered)]


def test_importing_the_package_is_cheap() -> None:
    """`import batchkeeper` loads nothing slow that only a store, a log event or a command needs."""
    heavy = {
        *("etcd3", "grpc", "kazoo", "rocksdict", "google.protobuf"),
        *("hdrh", "pandas", "pyarrow", "pyspark", "rich"),
        *("importlib.metadata", "structlog"),
    }
    assert loads("batchkeeper") & (heavy | {"asyncio", "batchkeeper.ops"}) == set()
    assert loads("batchkeeper.opening") & (heavy | {"batchkeeper.coordination"}) == set()
    commands_own = {"batchkeeper.coordination", "difflib", "tomllib"}
    assert loads("batchkeeper.cli") & (heavy | commands_own) == set()
    assert loads("batchkeeper.stores.etcd.backend") & {"http.client", "structlog"} == set()


def loads(module: str) -> set[str]:
    """Return the modules that a new interpreter loads with this one."""
    # Some may be there before: what else is installed may load them with the interpreter.
    program = f"import sys; known = set(sys.modules); import {module}; "
    program += "print(*set(sys.modules) - known)"
    loaded = run_python("-c", program, check=True)
    new = set(loaded.stdout.split())
    assert module in new
    return new


def test_the_names_of_the_package_are_loaded_when_they_are_used() -> None:
    """All of them are found, also before any other; an unknown one is an error as elsewhere."""
    program = "import batchkeeper as bk; assert set(bk.__all__) <= set(dir(bk)); "
    program += "[getattr(bk, name) for name in bk.__all__]; bk.ops.errors; "
    program += "print(hasattr(bk, 'Locks'))"
    assert run_python("-c", program, check=True).stdout == "False\n"


def test_the_bench_can_be_imported_without_its_extras() -> None:
    """The benchmarks can be imported without the packages of `bench` and `spark`, but for jobs."""
    missing = ["hdrh", "psutil", "pyarrow", "pyspark", "scipy"]
    program = f"import sys; sys.modules.update(dict.fromkeys({missing})); "
    program += "import batchkeeper.bench.command"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("command", "missing", "advice"),
    [
        (["batchkeeper", "bench", "memory"], "hdrh", "pip install 'batchkeeper[bench]'"),
        ([TARGETS, "limits", "rocksdb"], "hdrh", "pip install 'batchkeeper[bench]'"),
        ([TARGETS, "spark"], "pyspark", "pip install 'batchkeeper[servers,spark]'"),
    ],
    ids=["bench", "limits", "spark"],
)
def test_a_benchmark_without_its_extra_says_how_to_get_it(
    command: list[str], missing: str, advice: str, tmp_path: Path
) -> None:
    """The command ends at once with one line that says what to type, and leaves nothing behind."""
    # Runs a module or a folder as Python does, in an interpreter that lacks a package.
    program = f"import runpy, sys; sys.modules[{missing!r}] = None; sys.argv = {command!r}; "
    if command[0] == TARGETS:
        program += "sys.path.insert(0, sys.argv[0]); "
        program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    else:
        program += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    done = run_python("-c", program, cwd=tmp_path, timeout=60)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert advice in line
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_the_command_for_python_m() -> None:
    """`python -m batchkeeper` is the command, with its exit codes, and calls itself by its name."""
    command = [sys.executable, "-m", "batchkeeper"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    state = "accelerated" if ACCELERATED else f"not accelerated: {REASON}"
    version = importlib.metadata.version("batchkeeper")
    assert shown.stdout == f"batchkeeper {version} ({state})\n"
    bad = [*command, "--store", "no-url", "ls"]
    assert subprocess.run(bad, capture_output=True, check=False).returncode == 3


def test_the_command_is_installed() -> None:
    """The wheel brings the command `batchkeeper`, which starts as `python -m` does."""
    (command,) = importlib.metadata.distribution("batchkeeper").entry_points.select(
        group="console_scripts"
    )
    assert (command.name, command.value) == ("batchkeeper", "batchkeeper.__main__:main")
    assert callable(command.load())
