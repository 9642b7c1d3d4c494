"""`ort-mobile check`: is a model fit for NNAPI, CoreML and XNNPACK, in one look."""

from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import provider_options, release, settings_of, sizes
from pipeline.cli.outputs import Outputs, json_option
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
    outputs: Outputs,
    **answers: Any,
) -> None:
    """Show how much of a model NNAPI, CoreML, XNNPACK and the CPU support, and what would help most.

    This is `ort-mobile partition` in short, which shows each node, and makes fixes.

    PATHs are .onnx and .ort files, folders or zip archives. Each model is judged as it is and, where dimensions are
    dynamic, with sizes for them; for the API level and the Core ML version that the heading names and, where these are
    not given and the verdict is another one, for the oldest (27 and 5). A model that cannot be judged is reported and
    does not cost the others; the exit code is then 1. Verdicts never change the exit code.
    """
    from pipeline.advice.fitness import check_models
    from pipeline.core.errors import ExitCode
    from pipeline.partition.answer import OLDEST
    from pipeline.report.partition import failed_models, show_fits
    from pipeline.report.show import show

    settings, oldest = (
        settings_of(tuple(PROVIDER_RULES), ort_release, {**answers, **levels})
        for levels in ({}, {name: level for name, level in OLDEST.items() if answers[name] is None})
    )
    document = check_models(paths, settings, dimensions, oldest=oldest, processes=jobs)
    outputs.write_json(document)
    show(failed_models(document.models), err=True)
    if outputs.text:
        show_fits(document)
    ctx.exit(ExitCode.SOME_FAILED if any(model.error for model in document.models) else ExitCode.DONE)
