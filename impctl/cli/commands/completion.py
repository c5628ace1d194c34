"""`impctl completion`: the script that makes a shell complete commands, options and names."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import COMPLETION_VARIABLE
from impctl.cli.help import INPUT
from impctl.cli.job import Display, Job

if TYPE_CHECKING:
    from impctl.service.context import Reporter


Shell = StrEnum("Shell", ("bash", "zsh", "fish"))
"""Shells that completion is made for."""


def completion(
    shell: Annotated[
        Shell,
        typer.Argument(
            help="Shell to complete for: bash, zsh or fish.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ],
) -> Job:
    """Print the shell completion script.

    Load it when the shell starts. For bash, add this line to ~/.bashrc: eval "$(impctl completion
    bash)".

    Example: impctl completion bash
    """

    def work(reporter: Reporter) -> str:
        # Typer gives the scripts no public name.
        from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as above

        return get_completion_script(
            prog_name="impctl", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )

    return Job("completion", Display(), work)
