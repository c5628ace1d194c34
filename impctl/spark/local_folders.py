"""Where a session's JVM puts temporary files: folders of this process, known as such later.

Law: Spark removes its folders as it ends and leaves them where it is killed; below a scratch
folder the next run can tell that their process is gone. A disk that the user chose stays chosen.
Out of scope: removing them (`store.scratch`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from impctl.store.scratch import SPARK_SCRATCH, lasting_scratch_folder
from impctl.values import dataclass

_SETTING = "spark.local.dir"
_VARIABLE = "SPARK_LOCAL_DIRS"
"""What Spark asks before the setting."""


@dataclass(frozen=True, slots=True)
class LocalFolders:
    """Java's folder for temporary files, and settings and variables as the JVM is to see them."""

    temporary: Path
    conf: Mapping[str, str]
    environment: Mapping[str, str]

    @property
    def java_option(self) -> str:
        """The option that tells Java, quoted as Spark reads options."""
        path = str(self.temporary).replace("\\", "\\\\").replace('"', '\\"')
        return f'"-Djava.io.tmpdir={path}"'


def local_folders(
    master: str, conf: Mapping[str, str], environment: Mapping[str, str]
) -> LocalFolders:
    """Folders for the JVM that is about to start, gone when this process ends.

    Executors of a cluster run elsewhere: what names their folders is left as it is.
    """
    temporary = lasting_scratch_folder(SPARK_SCRATCH)
    if not master.startswith("local") or master.startswith("local-cluster"):
        return LocalFolders(temporary, {}, {})
    if _VARIABLE in environment:
        return LocalFolders(temporary, {}, {_VARIABLE: _below(environment[_VARIABLE])})
    if _SETTING in conf:
        return LocalFolders(temporary, {_SETTING: _below(conf[_SETTING])}, {})
    return LocalFolders(temporary, {}, {})


def _below(places: str) -> str:
    """A scratch folder in each of these places; one that is none yet is left to Spark."""
    return ",".join(
        str(lasting_scratch_folder(SPARK_SCRATCH, Path(place)))
        if os.path.isabs(place) and os.access(place, os.W_OK | os.X_OK)
        else place
        for place in map(str.strip, places.split(","))
    )
