"""Tables in object stores, as Hadoop's file systems read them.

Law: one set of credentials serves both sides. What the workload gives deltalake as storage options
goes to Spark as options of this very read, so that neither the session nor another table sees it;
an option that Hadoop has no word for is left to the settings of the session. Nothing is looked up
in the environment here.
Out of scope: deltalake's own reading of these options (`tables.storage`), the JARs themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_SPELLED = {"s3": "s3a", "s3n": "s3a", "gcs": "gs", "adl": "abfss", "abfs": "abfss"}
"""Schemes that Hadoop calls otherwise."""

PACKAGES = MappingProxyType(
    {
        "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
        "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
        "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    }
)
"""What to put into `spark.jars.packages`, where `{hadoop}` is the version of Spark's own Hadoop."""

_OF_S3 = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "endpoint_url": "fs.s3a.endpoint",
    "endpoint": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
    "default_region": "fs.s3a.endpoint.region",
}
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
_PROVIDER = "fs.s3a.aws.credentials.provider"
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://")


def spark_uri(uri: str) -> str:
    """The same place under the scheme that Hadoop has for it; paths without one stay."""
    match = _SCHEME.match(uri)
    if match is None or match[1] not in _SPELLED:
        return uri
    return _SPELLED[match[1]] + uri[len(match[1]) :]


def reader_options(uri: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """Options of Spark's reader for a file there, from deltalake's storage options."""
    match = _SCHEME.match(spark_uri(uri))
    given = {name.lower(): value for name, value in (options or {}).items()}
    if match is None or not given:
        return {}
    match match[1]:
        case "s3a":
            return _s3(given)
        case "abfss":
            return _azure(uri, given)
        case "gs":
            return _google(given)
    return {}


def _s3(given: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("aws_"): value for name, value in given.items()}
    made = {_OF_S3[name]: value for name, value in plain.items() if name in _OF_S3}
    if "fs.s3a.endpoint" in made:
        # Addresses of one's own servers hold the bucket in the path, unless it is said otherwise.
        hosted = plain.get("virtual_hosted_style_request", "false").lower() == "true"
        made["fs.s3a.path.style.access"] = str(not hosted).lower()
        secure = made["fs.s3a.endpoint"].startswith("https://")
        made["fs.s3a.connection.ssl.enabled"] = str(secure).lower()
    if plain.get("skip_signature", "").lower() == "true":
        made[_PROVIDER] = _ANONYMOUS
    elif "fs.s3a.access.key" in made:
        made[_PROVIDER] = _TEMPORARY if "fs.s3a.session.token" in made else _SIMPLE
    return made


def _azure(uri: str, given: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("azure_storage_"): value for name, value in given.items()}
    plain = {name.removeprefix("azure_"): value for name, value in plain.items()}
    host = uri.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if "." not in host and "account_name" in plain:
        host = f"{plain['account_name']}.dfs.core.windows.net"
    key = plain.get("account_key", plain.get("access_key"))
    if key is not None:
        return {f"fs.azure.account.key.{host}": key}
    token = plain.get("sas_token", plain.get("sas_key"))
    if token is not None:
        return {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": token,
        }
    return {}


def _google(given: Mapping[str, str]) -> dict[str, str]:
    plain = {name.removeprefix("google_"): value for name, value in given.items()}
    file = plain.get("service_account", plain.get("service_account_path"))
    if file is None:
        return {}
    return {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": file,
    }
