"""`impctl completion`: the script that makes a shell complete commands, options and names."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.completion import COMPLETION_VARIABLE
from impctl.cli.job import Display, Job

if TYPE_CHECKING:
    from impctl.app.workbench.reporter import Reporter


Shell = StrEnum("Shell", ("bash", "zsh", "fish"))
"""Shells that completion is made for."""


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)],
) -> Job:
    """Print the script by which a shell completes words of impctl.

    Have the shell read it when it starts: eval "$(impctl completion bash)" in ~/.bashrc.

    Example: impctl completion bash
    """

    def work(reporter: Reporter) -> str:
        # Typer gives the scripts no public name.
        from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as above

        return get_completion_script(
            prog_name="impctl", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )

    return Job("completion", Display(), work)
