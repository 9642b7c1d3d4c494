"""What systems of continuous integration read, written where it is asked for, and in GitHub Actions unasked."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pipeline.partition.answer import PartitionDocument
    from pipeline.report.ci import CiDocument


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


def write_claims(
    documents: "Sequence[PartitionDocument]", *, sarif_to: Path | None, svg: Path | None, page: Path | None
) -> None:
    """Claims as what a CI reads, as a drawing of one model, and as a page, where they are asked for."""
    from pipeline.core.errors import ConfigError
    from pipeline.core.files import write_text
    from pipeline.partition.draw import draw
    from pipeline.report.ci_campaign import of_partition
    from pipeline.report.html import render_answers

    answers = [answer for document in documents for answer in document.models]
    write_ci(of_partition(answers), sarif_to=sarif_to)
    if svg and len(answers) != 1:
        remedy = "name one model, or leave --svg out"
        raise ConfigError("--svg draws one model", why=f"{len(answers)} are named", remedy=remedy)
    if svg and not answers[0].error:
        write_text(svg, draw(answers[0]))
    if page:
        write_text(page, render_answers(answers))
