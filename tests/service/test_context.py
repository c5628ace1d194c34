"""Settings, pinned tables, caches, the memory limit, and held signals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.memory import held_memory, reserve
from impctl.errors import OutOfMemoryError, UsageError, WorkloadError
from impctl.measure.scratch import scratch_copy
from impctl.reuse import verdict as reuse
from impctl.rules.optimize import KEPT
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.service import context as context_module
from impctl.service.context import Context, Memory, SilentReporter, open_context, spark_of
from impctl.service.memory_limit import MemoryLimit, limited_to, machine_memory, memory_from
from impctl.service.output import held_signals
from impctl.service.pinned import check_credentials
from impctl.service.settings import Policy, Settings, store_folder
from impctl.tables.write.maintenance import create_table
from impctl.workload.load import load_workload
from impctl.workload.models import SparkSpec, Workload
from tests.plan.catalogs import read
from tests.support.run_cli import MonkeyPatch, interruptible, spied, write_files

REQUESTED = read("SELECT brand, SUM(price) AS s FROM sales GROUP BY brand HAVING SUM(price) > 20")
CAPTURED = read("SELECT brand, SUM(price) AS s FROM sales GROUP BY brand HAVING SUM(price) > 10")
BRAND = (("sales#1", "brand"),)
PRICE = (("sales#1", "price"),)
POSITIVE = Fact("sales", "price", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)


@pytest.fixture
def checks(monkeypatch: MonkeyPatch) -> list[object]:
    """The calls that compute a verdict."""
    return spied(monkeypatch, reuse, "check_reuse")


def test_verdict_is_computed_once(checks: list[object]) -> None:
    memory = Memory()
    first = memory.reuse(REQUESTED, CAPTURED, BRAND, [])
    assert first.allowed
    assert memory.reuse(REQUESTED, CAPTURED, BRAND, ()) is first
    assert len(checks) == 1
    assert Memory().reuse(REQUESTED, CAPTURED, BRAND, ()) == first
    assert len(checks) == 2


def test_verdict_depends_on_all_inputs(checks: list[object]) -> None:
    memory = Memory()
    assert memory.reuse(REQUESTED, CAPTURED, BRAND, ()).allowed
    assert not memory.reuse(CAPTURED, REQUESTED, BRAND, ()).allowed
    assert not memory.reuse(REQUESTED, CAPTURED, PRICE, ()).allowed
    assert memory.reuse(REQUESTED, CAPTURED, PRICE, [POSITIVE]).allowed
    assert not memory.reuse(REQUESTED, CAPTURED, PRICE, ()).allowed
    assert len(checks) == 4


@pytest.mark.slow
def test_old_verdicts_are_dropped(checks: list[object]) -> None:
    memory, kind, source = Memory(), FactKind.NONNEGATIVE, FactSource.CONSTRAINT
    facts = [Fact("sales", f"c{number}", kind, source) for number in range(KEPT + 1)]
    for fact in (*facts, facts[-1]):
        memory.reuse(REQUESTED, CAPTURED, BRAND, [fact])
    assert len(checks) == KEPT + 1
    memory.reuse(REQUESTED, CAPTURED, BRAND, [facts[0]])
    assert len(checks) == KEPT + 2


TEXT = 'version: 1\ntables: {t: {path: "${WHERE}"}}\nqueries: {q: {sql: "SELECT a FROM t"}}\n'


def test_changes_are_reloaded(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    parsed = spied(monkeypatch, context_module, "workload_of")
    file, memory = tmp_path / "w.yaml", Memory()
    file.write_text(TEXT)
    first = memory.workload(file, {"WHERE": "x"})
    assert memory.workload(file, {"WHERE": "x"}) is first
    assert len(parsed) == 1
    assert memory.workload(file, {"WHERE": "y"}).tables["t"].path == str(tmp_path / "y")
    file.write_text(TEXT.replace("SELECT a", "SELECT b"))
    assert memory.workload(file, {"WHERE": "y"}).queries["q"].sql == "SELECT b FROM t"
    assert len(parsed) == 3  # noqa: PLR2004
    # The same relative path is another file in another folder.
    other = tmp_path / "other"
    other.mkdir()
    (other / "w.yaml").write_text(file.read_text())
    for folder in (tmp_path, other):
        monkeypatch.chdir(folder)
        relative = memory.workload(Path("w.yaml"), {"WHERE": "y"})
        assert relative.tables["t"].path == str(folder / "y")


def test_invalid_or_missing_file_fails_each_time(tmp_path: Path) -> None:
    file, memory = tmp_path / "w.yaml", Memory()
    file.write_text(TEXT)
    memory.workload(file, {"WHERE": "x"})
    file.write_text("version: 1\n")
    for _ in range(2):
        with pytest.raises(WorkloadError):
            memory.workload(file, {"WHERE": "x"})
    file.unlink()
    with pytest.raises(UsageError, match="no file"):
        memory.workload(file, {"WHERE": "x"})


SPEC = SparkSpec("local[2]", {"a": "1", "b": "2"})


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    query = {"sql": "SELECT a FROM t GROUP BY a", "policy": "strict"}
    spark = {"master": SPEC.master, "conf": SPEC.conf}
    document = {"tables": "t", "queries": {"q": query}, "store": "kept", "spark": spark}
    return load_workload(write_files(tmp_path, document), {})


def test_file_applies_without_settings(workload: Workload) -> None:
    settings = Settings(Path(workload.file))
    ctx = Context(settings, workload, SilentReporter())
    assert ctx.store_path == Path(workload.file).parent / "kept"
    assert ctx.policy(workload.queries["q"]) is Policy.STRICT
    assert spark_of(workload, None) == workload.spark == SPEC


def test_settings_win(workload: Workload, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    file, store = Path(workload.file), Path("mine")
    settings = Settings(file, store=store, policy=Policy.AUTO, lock_timeout=0.0)
    ctx = Context(settings, workload, SilentReporter())
    assert ctx.store_path == tmp_path / "mine"
    assert ctx.policy(workload.queries["q"]) is Policy.AUTO
    merged = spark_of(workload, SparkSpec(None, {"b": "3", "c": "4"}))
    assert merged == SparkSpec("local[2]", {"a": "1", "b": "3", "c": "4"})
    assert spark_of(workload, SparkSpec("yarn", {})).master == "yarn"


def test_store_at_a_uri_is_refused() -> None:
    for store in ("s3://bucket/kept", Path("s3://bucket/kept")):
        with pytest.raises(UsageError, match=r"cannot be at a URI: s3://bucket/kept") as caught:
            store_folder(store)
        assert "object store" in (caught.value.hint or "")
    assert store_folder("kept") == Path("kept")


GROUPS = {
    "tables": "tu",
    "partitions": {"t": {"id": {"boundaries": [2]}}},
    "queries": {"q": "SELECT id, COUNT(*) n FROM t GROUP BY id HAVING COUNT(*) > 1"},
}
TWO, THREE = pa.table({"id": [1, 2]}), pa.table({"id": [1, 2, 3]})


def test_repinned_table_is_read_again(tmp_path: Path) -> None:
    with open_context(Settings(write_files(tmp_path, GROUPS, t=TWO, u=TWO))) as ctx:
        old, other = ctx.tables.snapshot("t"), ctx.tables.snapshot("u")
        shutil.rmtree(tmp_path / "t")
        create_table(str(tmp_path / "t"), THREE)
        repin = ctx.tables.repin("t")
        assert (repin.version, repin.table_id != old.table_id) == (old.version, True)
        new = ctx.tables.snapshot("t")
        assert (new.table_id, new.rows) == (repin.table_id, 3)
        assert ctx.tables.snapshot("u") is other


@pytest.mark.parametrize("running", [False, True])
def test_a_scratch_copy_knows_running_spark(
    tmp_path: Path, monkeypatch: MonkeyPatch, running: bool
) -> None:
    """Otherwise its captures would load row by row although a running Spark is faster."""
    monkeypatch.setattr(context_module.OwnSession, "is_running", running)
    file = write_files(tmp_path, GROUPS, t=TWO)
    with open_context(Settings(file)) as ctx, scratch_copy(ctx, ("t",)) as scratch:
        assert scratch.has_spark is running


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500_000_000), ("2 GiB", 2 << 30), ("1.5kb", 1500), ("77", 77)]
)
def test_sizes(text: str, size: int) -> None:
    assert memory_from(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "2 TB of it", "0%", "101%", "GB"])
def test_invalid_size(text: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(text) + "$"):
        memory_from(text)


def test_percentage_of_memory() -> None:
    whole = machine_memory()
    assert memory_from("50%") == whole // 2
    assert MemoryLimit(None).bytes == whole // 2


def test_limit_detects_usage() -> None:
    before = held_memory()
    assert before is not None
    limit = MemoryLimit(50_000_000)
    limit.check()
    allocated = b"x" * 120_000_000
    with pytest.raises(OutOfMemoryError, match="50 MB"):
        limit.check()
    assert len(allocated) == 120_000_000


def test_too_large_reservation_fails() -> None:
    limit = MemoryLimit(50_000_000)
    with limited_to(limit):
        reserve(10_000_000)
        with limited_to(MemoryLimit(None)), pytest.raises(OutOfMemoryError, match="50 MB"):
            reserve(90_000_000)
    reserve(90_000_000)


def test_failed_allocation_has_a_code() -> None:
    raises = pytest.raises(OutOfMemoryError, match="no more memory")
    with raises as caught, limited_to(MemoryLimit(None)):
        np.empty(1 << 62, dtype=np.int8)
    assert (caught.value.code, caught.value.exit_code) == ("out_of_memory", 3)


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_comes_after_the_block(number: signal.Signals) -> None:
    done: list[str] = []

    def commit() -> None:
        with held_signals():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            done.append("the commit")

    with interruptible():
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            commit()
        assert done == ["the commit"]
        assert signal.getsignal(number) is before


@pytest.mark.usefixtures("heard_signals")
def test_failure_of_the_block_is_kept() -> None:
    def commit() -> None:
        with held_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("disk full")

    with interruptible(), pytest.raises(KeyboardInterrupt) as caught:
        commit()
    assert str(caught.value.__context__) == "disk full"


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_hold_nothing() -> None:
    result = []

    def work() -> None:
        with held_signals():
            result.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [before]


BOTH = {"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s"}


@pytest.mark.parametrize(
    ("path", "options", "lacks"),
    [
        ("/data/t", {}, None),
        ("file:///data/t", {}, None),
        ("uc://main.shop.t", {}, None),
        ("s3://b/t", BOTH, None),
        ("S3A://b/t", {"aws_skip_signature": "true"}, None),
        ("s3://b/t", {"aws_skip_signature": "false"}, "`aws_access_key_id` and"),
        ("s3://b/t", {"access_key_id": "k"}, "`aws_secret_access_key` not set"),
        ("s3://b/t", {**BOTH, "AWS_ACCESS_KEY_ID": ""}, "`aws_access_key_id` not set"),
        ("s3://b/t", {"aws_endpoint_url": "http://127.0.0.1:9"}, "`aws_access_key_id` and"),
        ("gs://b/t", {"google_service_account": "/k.json"}, None),
        ("gs://b/t", {}, "no key in"),
        ("abfss://c@a/t", {"azure_storage_account_name": "a"}, "no key in"),
        ("abfss://c@a/t", {"azure_storage_sas_key": "sig"}, None),
    ],
)
def test_missing_credentials_are_named(
    path: str, options: dict[str, str], lacks: str | None
) -> None:
    env = {"AWS_ACCESS_KEY_ID": "k"}
    if lacks is None:
        check_credentials("t", path, options, env)
        return
    with pytest.raises(UsageError, match=f"has no credentials: .*{lacks}") as caught:
        check_credentials("t", path, options, env)
    assert caught.value.code == "credentials_missing"
    assert "`credentials: ambient`" in (caught.value.hint or "")


def test_session_token_is_not_mixed_with_keys_of_the_file() -> None:
    env = {"AWS_SESSION_TOKEN": "strange"}
    with pytest.raises(UsageError) as caught:
        check_credentials("t", "s3://b/t", BOTH, env)
    assert caught.value.code == "credentials_mixed"
    assert "strange" not in str(caught.value)
    check_credentials("t", "s3://b/t", {**BOTH, "aws_session_token": "own"}, env)
    check_credentials("t", "/data/t", {}, env)
