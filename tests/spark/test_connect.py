"""Spark Connect: what is said without a server.

With SPARK_REMOTE set, every other test marked `spark` runs against that server.
"""

from __future__ import annotations

import socket
import time

import pytest

from impctl.errors import RetryableError, UsageError
from impctl.spark import session
from impctl.spark.session import is_connect, master_of, open_remote, shown


def test_the_environment_comes_before_the_file() -> None:
    assert master_of("local[2]", {"SPARK_REMOTE": "sc://host"}, "local[*]") == "sc://host"
    assert master_of("local[2]", {"SPARK_REMOTE": ""}, "local[*]") == "local[2]"
    assert master_of(None, {}, "local[*]") == "local[*]"


def test_a_token_is_not_printed() -> None:
    secret = "sc://me:hidden@host:15002/;token=hidden;use_ssl=true"
    assert shown(secret) == "sc://host:15002"
    assert shown("local[2]") == "local[2]"


def test_nobody_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_there", lambda name: True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"sc://127.0.0.1:{taken.getsockname()[1]}/;token=hidden"
        start = time.monotonic()
        with pytest.raises(RetryableError) as caught:
            open_remote(address)
    assert time.monotonic() - start < 15
    assert caught.value.code == "spark_connect_unreachable"
    assert "hidden" not in caught.value.message
    for wrong in ("sc://", "sc://host:port"):
        with pytest.raises(UsageError) as refused:
            open_remote(wrong)
        assert refused.value.code == "spark_connect_address"


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_there", lambda name: name != "grpc_status")
    with pytest.raises(UsageError) as caught:
        open_remote("sc://127.0.0.1")
    assert caught.value.code == "spark_connect_packages"
    assert caught.value.message.endswith("not installed: grpc_status")
    assert 'pip install "pyspark[connect]" "pandas<3"' in (caught.value.hint or "")


def test_what_is_no_session_of_connect() -> None:
    assert not is_connect(object())
