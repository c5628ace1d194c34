"""Credentials of a table, in Hadoop's words, and what is said where its file system is missing."""

from __future__ import annotations

import pytest

from impctl.errors import UsageError
from impctl.spark.run import plain_failures
from impctl.spark.session import reader_options, spark_uri

_KEYS = {"AWS_ACCESS_KEY_ID": "key", "aws_secret_access_key": "secret"}


@pytest.mark.parametrize(
    ("uri", "read"),
    [
        ("s3://lake/t/part 1.parquet", "s3a://lake/t/part 1.parquet"),
        ("s3a://lake/t", "s3a://lake/t"),
        ("gs://lake/t", "gs://lake/t"),
        ("abfs://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"),
        ("/data/s3://odd", "/data/s3://odd"),
        ("file:///data/t", "file:///data/t"),
    ],
)
def test_the_scheme_is_hadoops(uri: str, read: str) -> None:
    assert spark_uri(uri) == read


def test_keys_of_s3_serve_both() -> None:
    simple = reader_options("s3://lake/t", _KEYS)
    assert simple.pop("fs.s3a.aws.credentials.provider").endswith(".SimpleAWSCredentialsProvider")
    assert simple == {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
    own = {"aws_endpoint_url": "http://minio:9000", "region": "eu", "aws_session_token": "token"}
    made = reader_options("s3a://lake/t", {**_KEYS, **own})
    assert made["fs.s3a.endpoint"] == "http://minio:9000"
    assert made["fs.s3a.path.style.access"] == "true"
    assert made["fs.s3a.connection.ssl.enabled"] == "false"
    assert made["fs.s3a.endpoint.region"] == "eu"
    assert made["fs.s3a.session.token"] == "token"
    assert "TemporaryAWS" in made["fs.s3a.aws.credentials.provider"]
    public = reader_options("s3://lake/t", {"aws_skip_signature": "true"})
    assert "Anonymous" in public["fs.s3a.aws.credentials.provider"]


def test_keys_of_the_other_stores() -> None:
    host = "acc.dfs.core.windows.net"
    key = {"azure_storage_account_name": "acc", "azure_storage_account_key": "k"}
    for uri in (f"abfss://c@{host}/t", "abfs://c/t"):
        assert reader_options(uri, key) == {f"fs.azure.account.key.{host}": "k"}
    token = reader_options(f"abfss://c@{host}/t", {"sas_token": "sig"})
    assert token[f"fs.azure.sas.fixed.token.{host}"] == "sig"
    file = {"google_service_account": "/keys/a.json"}
    assert reader_options("gs://lake/t", file)["fs.gs.auth.service.account.json.keyfile"] == (
        "/keys/a.json"
    )


def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ambient")
    assert reader_options("s3://lake/t", None) == {}
    assert reader_options("s3://lake/t", {"aws_region": "eu"}) == {"fs.s3a.endpoint.region": "eu"}
    assert reader_options("/data/t", _KEYS) == {}


@pytest.mark.parametrize(
    ("said", "scheme", "package"),
    [
        (
            "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "s3a",
            "org.apache.hadoop:hadoop-aws:3",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"',
            "gs",
            "com.google.cloud.bigdataoss:gcs-connector:",
        ),
        ('UnsupportedFileSystemException: No FileSystem for scheme "oss"', "oss", "`spark.jars"),
    ],
)
def test_a_missing_file_system_is_named(said: str, scheme: str, package: str) -> None:
    from pyspark.core.context import Py4JError
    from pyspark.errors import PySparkException

    for kind in (PySparkException, Py4JError):
        with pytest.raises(UsageError) as caught, plain_failures():
            raise kind(said)
        assert caught.value.code == "spark_file_system_missing"
        assert f"`{scheme}://`" in caught.value.message
        assert package in (caught.value.hint or "")
