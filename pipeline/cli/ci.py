"""Options that write what systems of continuous integration read, and what is done in GitHub Actions unasked."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pipeline.report.ci import CiDocument

Function = TypeVar("Function", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, dir_okay=False)

junit_option = click.option(
    "--junit", "junit_to", type=FILE, metavar="FILE", help="Write JUnit XML: a test case for each run."
)
sarif_option = click.option(
    "--sarif", "sarif_to", type=FILE, metavar="FILE",
    help="Write SARIF 2.1.0: failures and findings, with fingerprints that stay the same from run to run.",
)  # fmt: skip
markdown_option = click.option(
    "--markdown", "markdown_to", type=FILE, metavar="FILE",
    help="Write the result as Markdown of at most 60,000 characters, as for a comment on a pull request.",
)  # fmt: skip

FILES = ("junit_to", "sarif_to", "markdown_to")
"""What commands with `ci_options` get of them, for `write_ci`."""


def ci_options(command: Function) -> Function:
    """Add the three options to a command, which gets their values as keywords for `write_ci`."""
    for option in (markdown_option, sarif_option, junit_option):
        command = option(command)
    return command


def write_ci(
    document: "CiDocument",
    *,
    junit_to: Path | None = None,
    sarif_to: Path | None = None,
    markdown_to: Path | None = None,
) -> None:
    """Write the files that are asked for; in GitHub Actions also annotations on stderr and the step's summary."""
    from pipeline import __version__
    from pipeline.core.files import write_bytes, write_text
    from pipeline.report import ci

    if junit_to:
        write_bytes(junit_to, ci.junit(document.name, document.cases))
    if sarif_to:
        write_bytes(sarif_to, ci.sarif(document.findings, __version__))
    if markdown_to:
        write_text(markdown_to, document.summary)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in ci.annotations(document.findings):
            click.echo(line, err=True)
    if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) and document.summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(f"{document.summary}\n")
        except OSError as error:
            click.echo(f"the step's summary was not written: {summary}: {error.strerror}", err=True)
