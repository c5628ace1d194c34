"""Signatures, tokens and passwords in a table's URI: used, and shown or kept nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.errors import ImpctlError, Problem, WorkloadError, masked
from tests.support.run_cli import Cli
from tests.support.small_workload import WORKLOAD

SECRET = "tellNobody"
SIGNED = (
    "https://a.blob.core.windows.net/c/t?sv=1&sig=SECRET&se=2",
    "https://a/t?X-Amz-Algorithm=h&X-Amz-Credential=SECRET%2F1&X-Amz-Signature=SECRET",
    "https://a/t?X-Amz-Security-Token=SECRET",
    "https://a/t?AWSAccessKeyId=SECRET&Expires=1&Signature=SECRET%2B%3D",
    "https://a/t?GoogleAccessId=SECRET&X-Goog-Signature=SECRET",
    "https://a/t?TOKEN=SECRET#x",
    "https://a/t?x=1&access_token=SECRET",
    "https://a/t%3Fsig%3DSECRET%26se%3D1",
    "https://SECRET@a/t",
    "https://me:SECRET@a/t",
    "s3a://AKIA:SEC/SECRET+/x@bucket/t",
    "sftp://me:SECRET@a/t",
    "https://a/t#access_token=SECRET&x=1",
    "s3a://me:a@SECRET@bucket/t",
    "sftp://me:SEC@SECRET@a/t",
)
HARMLESS = (
    "abfss://box@account.dfs.core.windows.net/t",
    "s3://bucket/a@b/c?versionId=1",
    "file:///data/t",
    "/data/signature=1/t",
    "ratio a:b@c, e-mail me@example.org, sig=1",
)


@pytest.mark.parametrize("uri", SIGNED)
def test_what_opens_a_door_is_masked(uri: str) -> None:
    shown = masked(f"Reading `{uri.replace('SECRET', SECRET)}` failed")
    assert SECRET not in shown
    assert "***" in shown
    assert shown.endswith("` failed")


@pytest.mark.parametrize("text", HARMLESS)
def test_all_else_stays_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_each_error_masks_what_it_says() -> None:
    uri = SIGNED[0].replace("SECRET", SECRET)
    error = WorkloadError(uri, [Problem(uri, hint=uri)], hint=uri)
    told = [
        error.message,
        str(error),
        error.hint,
        error.problems[0].message,
        error.problems[0].hint,
    ]
    assert [SECRET in str(text) for text in told] == [False] * 5
    assert SECRET not in str(ImpctlError("x", hint=uri).hint)


def signed(cli: Cli, secret: str, place: str) -> None:
    uri = f"file://{place}?sv=1&sig={secret}"
    text = WORKLOAD.replace("POLICY", "incremental").replace("{path: t}", f"{{path: '{uri}'}}")
    cli.workload.write_text(text)


def test_nothing_of_it_is_in_the_store_and_a_new_signature_is_no_new_table(
    cli: Cli, tmp_path: Path, table: str
) -> None:
    signed(cli, SECRET, table)
    cli.good("capture")
    files = [file for file in (tmp_path / ".impctl").rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    signed(cli, "another", table)
    assert cli.good("maintain").results[0]["action"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--json"], ["-vv"]])
@pytest.mark.parametrize("command", ["doctor", "check", "plan"])
def test_no_command_prints_it(
    cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, words: list[str]
) -> None:
    signed(cli, SECRET, str(tmp_path / "gone"))
    assert run(build_app(), [command, str(cli.workload), *words])
    assert_masked("".join(capsys.readouterr()))


@pytest.mark.parametrize(
    "words", [["-vv"], *(pytest.param(words, marks=pytest.mark.slow) for words in ([], ["--json"]))]
)
def test_no_process_prints_it(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    """What libraries say while they load and when all ends is printed too."""
    signed(cli, SECRET, str(tmp_path / "gone"))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "impctl", "capture", str(cli.workload), *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode
    assert_masked(done.stdout + done.stderr)


def assert_masked(printed: str) -> None:
    assert SECRET not in printed
    assert re.search(r"sig=\*\*\*", printed)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", "s3://", "a:", "&x.", "?key=", "://a:b@"])
def test_a_long_text_takes_no_long_time(piece: str) -> None:
    text = "://" + piece * (200_000 // len(piece))
    before = time.process_time()
    masked(text)
    assert time.process_time() - before < 5
