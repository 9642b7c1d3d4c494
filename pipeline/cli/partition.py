"""`ort-mobile partition`: which nodes an execution provider will take, and why not the others."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.options import json_option, write_json
from pipeline.cli.provider_options import provider_options, settings_of

if TYPE_CHECKING:
    from pipeline.partition.answer import ModelAnswer

PROVIDERS = ("nnapi", "coreml-nn", "coreml-mlprogram", "xnnpack")


def _draw(answers: "tuple[ModelAnswer, ...]", destination: Path) -> None:
    from pipeline.errors import ConfigError
    from pipeline.files import write_bytes
    from pipeline.partition.draw import draw

    if len(answers) != 1:
        raise ConfigError(
            "--svg draws one model", why=f"{len(answers)} are named", remedy="name one model, or leave --svg out"
        )
    if not answers[0].error:
        write_bytes(destination, draw(answers[0]).encode())


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--ep", "provider", type=click.Choice(PROVIDERS), required=True, help="The execution provider.")
@click.option(
    "--optimize", type=click.Choice(["none", "basic"]), default="none", show_default=True,
    help="Judge the file as it stands, or what optimization level basic makes of it.",
)  # fmt: skip
@click.option("--ort-release", default="", metavar="X.Y", help="ONNX Runtime on the phone; default: the installed one.")
@provider_options
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the graph with its partitions, for one model.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Models at once.")
@json_option
@click.pass_context
def partition(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    provider: str,
    optimize: str,
    ort_release: str,
    svg: Path | None,
    jobs: int,
    json_to: str | None,
    **answers: Any,
) -> None:
    """Say which nodes of .onnx and .ort models an execution provider will take, and why not the others.

    PATHs are files, folders or zip archives. A model that cannot be judged is reported and does not cost the others;
    the exit code is then 1.
    """
    from pipeline.errors import ExitCode
    from pipeline.partition.answer import Optimize, PartitionDocument
    from pipeline.partition.run import judge_paths
    from pipeline.report.partition import show_answers

    (settings,) = settings_of((provider,), ort_release, answers)
    found = tuple(judge_paths(paths, settings, Optimize(optimize), processes=jobs))
    if json_to:
        write_json(PartitionDocument(models=found), json_to)
    if json_to != "-":
        show_answers(found)
    if svg:
        _draw(found, svg)
    ctx.exit(ExitCode.SOME_FAILED if any(answer.error for answer in found) else ExitCode.DONE)
