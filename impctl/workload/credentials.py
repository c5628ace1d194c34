"""Whether a table in an object store comes with the credentials to read it.

Law: credentials of the surroundings (variables, profiles, the machine's role) are used only for a
table whose workload says so; any other needs its own, whatever server it lies on. The environment
comes as an argument.
Out of scope: whether credentials are right, which the object store says (`tables.source`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from impctl.errors import UsageError
from impctl.types import TableName

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_S3 = ("s3", "s3a", "s3n")
_OTHERS = {
    **dict.fromkeys(
        ("gs", "gcs"),
        ("service_account", "service_account_path", "service_account_key", "skip_signature"),
    ),
    **dict.fromkeys(
        ("abfss", "abfs", "az", "azure", "adl"),
        (
            *("account_key", "access_key", "master_key", "sas_token", "sas_key", "bearer_token"),
            *("token", "client_secret", "federated_token_file", "use_emulator", "skip_signature"),
        ),
    ),
}
_TOKEN = "AWS_SESSION_TOKEN"
_NEEDS_NO_TOKEN = ("session_token", "token", "skip_signature")
_PREFIX = re.compile(r"^(aws_|google_|azure_storage_|azure_)")


def require_credentials(
    name: TableName, path: str, options: Mapping[str, str], env: Mapping[str, str]
) -> None:
    """Refuse a table in an object store whose storage options hold no credentials of its own.

    Raises UsageError: `credentials_missing` names what is missing, `credentials_mixed` the variable
    that deltalake would send with the keys given.
    """
    missing = missing_credentials(path, options)
    if missing is not None:
        raise UsageError(
            f"Table `{name}` is in an object store and has no credentials: {missing}",
            code="credentials_missing",
            hint=f"set them in `tables.{name}.storage_options`, or write `credentials: ambient` "
            "there or at the top of the file to use those of the environment",
        )
    # deltalake fills in what the options leave open, so a stranger's token would go with the keys.
    keys = {_PREFIX.sub("", key.lower()) for key in options}
    if _scheme(path) in _S3 and env.get(_TOKEN) and keys.isdisjoint(_NEEDS_NO_TOKEN):
        raise UsageError(
            f"Table `{name}` has keys without a session token, and `{_TOKEN}` from the environment "
            "would be sent with them",
            code="credentials_mixed",
            hint=f"unset `{_TOKEN}`, set `aws_session_token` in `tables.{name}.storage_options`, "
            "or write `credentials: ambient`",
        )


def missing_credentials(path: str, options: Mapping[str, str]) -> str | None:
    """What the options lack to read this path; None where nothing, and for other places."""
    scheme = _scheme(path)
    given = {_PREFIX.sub("", key.lower()): value for key, value in options.items() if value}
    if given.get("skip_signature", "").lower() not in ("true", "1"):
        given.pop("skip_signature", None)
    if scheme in _S3:
        if "skip_signature" in given:
            return None
        lacking = [key for key in ("access_key_id", "secret_access_key") if key not in given]
        words = " and ".join(f"`aws_{key}`" for key in lacking)
        return None if not lacking else f"{words} not set, and no `credentials: ambient`"
    known = _OTHERS.get(scheme)
    if known is None or not given.keys().isdisjoint(known):
        return None
    return "no key in `storage_options`, and no `credentials: ambient`"


def _scheme(path: str) -> str:
    match = _SCHEME.match(path)
    return "" if match is None else match[1].lower()
