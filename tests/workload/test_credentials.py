"""Whether a table in an object store has credentials, and who may use those of the environment."""

from __future__ import annotations

import pytest

from impctl.errors import UsageError
from impctl.workload.sections import missing_credentials, require_credentials
from tests.workload.conftest import Load, Problems

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
def test_what_is_missing_is_named(path: str, options: dict[str, str], lacks: str | None) -> None:
    missing = missing_credentials(path, options)
    assert (missing is None) == (lacks is None)
    if lacks is None:
        require_credentials("t", path, options, {"AWS_ACCESS_KEY_ID": "k"})
        return
    assert lacks in (missing or "")
    with pytest.raises(UsageError, match="has no credentials") as caught:
        require_credentials("t", path, options, {"AWS_ACCESS_KEY_ID": "k"})
    assert caught.value.code == "credentials_missing"
    assert "`credentials: ambient`" in (caught.value.hint or "")


def test_a_token_of_the_environment_goes_with_no_keys_of_the_file() -> None:
    env = {"AWS_SESSION_TOKEN": "strange"}
    with pytest.raises(UsageError) as caught:
        require_credentials("t", "s3://b/t", BOTH, env)
    assert caught.value.code == "credentials_mixed"
    assert "strange" not in str(caught.value)
    require_credentials("t", "s3://b/t", {**BOTH, "aws_session_token": "own"}, env)
    require_credentials("t", "/data/t", {}, env)


def test_the_file_says_who_may(load: Load, problems: Problems) -> None:
    text = (
        "version: 1\ncredentials: ambient\nqueries: {q: {sql: SELECT 1}}\n"
        "tables: {a: {path: 's3://b/a'}, c: {path: 's3://b/a', credentials: options}}\n"
    )
    tables = load(text).tables
    assert {name: spec.ambient for name, spec in tables.items()} == {"a": True, "c": False}
    plain = load(text.replace("credentials: ambient\n", "")).tables
    assert [(spec.ambient, spec.names) for spec in plain.values()] == [(False, ("c",))]
    (wrong,) = problems(text.replace("ambient", "somewhere"))
    assert "`credentials` must be one of `options`, `ambient`" in wrong
