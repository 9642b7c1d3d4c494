"""`ort-mobile check`: is a model fit for NNAPI, CoreML and XNNPACK, in one look."""

from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import (
    json_option,
    provider_options,
    release,
    settings_of,
    shows_text,
    sizes,
    write_json,
)
from pipeline.core.providers import PROVIDER_RULES


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--dimension", "dimensions", multiple=True, callback=sizes, metavar="NAME=N",
    help="Size of a dynamic dimension, by its name or as INPUT[AXIS]; a likely one when left out.",
)  # fmt: skip
@click.option(
    "--ort-release", callback=release, metavar="X.Y",
    help="ONNX Runtime in the app.  [default: the installed one]",
)  # fmt: skip
@provider_options
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Models at once.")
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    dimensions: dict[str, int],
    ort_release: str,
    jobs: int,
    json_to: str | None,
    **answers: Any,
) -> None:
    """Show how much of a model NNAPI, CoreML, XNNPACK and the CPU support, and what would help most.

    PATHs are .onnx and .ort files, folders or zip archives. Each model is judged as it is and, where dimensions are
    dynamic, with sizes for them. A model that cannot be judged is reported and does not cost the others; the exit code
    is then 1. Verdicts never change the exit code.
    """
    from pipeline.advice.fitness import check_models
    from pipeline.core.errors import ExitCode
    from pipeline.report.partition import show_fits

    document = check_models(paths, settings_of(tuple(PROVIDER_RULES), ort_release, answers), dimensions, processes=jobs)
    if json_to:
        write_json(document, json_to)
    if shows_text(json_to):
        show_fits(document)
    ctx.exit(ExitCode.SOME_FAILED if any(model.error for model in document.models) else ExitCode.DONE)
