"""`ort-mobile convert`: models to ORT format in every variant asked for."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pipeline.cli.command import Command
from pipeline.cli.fail_on import Condition, Watched, end, fail_on_option
from pipeline.cli.options import (
    chips_named,
    custom_ops_option,
    data_options,
    dataset_from,
    either,
    keep_float_option,
    precision_option,
    progress,
    provider_names,
    provider_options,
    release,
    settings_of,
    sizes,
    words,
)
from pipeline.cli.outputs import Outputs, json_option, quiet
from pipeline.core.features import Place
from pipeline.core.providers import aware_names

if TYPE_CHECKING:
    from pipeline.convert.many import ConversionReport
    from pipeline.report.wording import Part

OPTIONS = Place[Callable[[], list[click.Parameter]]]("convert.options")
"""Options of features: `show_changes`."""
CHANGES = Place[Callable[["ConversionReport"], "Iterable[Part]"]]("convert.changes")
"""Says what became of the nodes in each artifact."""
LEVELS = ("none", "basic", "extended", "layout", "all")


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the artifacts."
)
@click.option(
    "--level", "levels", callback=words(LEVELS), metavar="LEVEL,…", default="none,basic,extended,all",
    show_default=True,
    help="Optimization levels: none, basic, extended, layout (from 1.23), all.",
)  # fmt: skip
@click.option(
    "--style", "styles", callback=words(("fixed", "runtime", "onnx")), metavar="STYLE,…", default="fixed,runtime",
    show_default=True,
    help="fixed saves the optimized graph; runtime saves the basic graph and records fusions that the device applies; "
    "onnx saves the optimized graph as an ONNX file, for full libraries and GPUs.",
)  # fmt: skip
@click.option(
    "--format", "file_format", type=click.Choice(["ort", "onnx"]), default="ort", show_default=True,
    help="onnx is the same as --style onnx: the optimized graph as ONNX, for full builds, GPUs and other tools.",
)  # fmt: skip
@click.option(
    "--ep", "providers", callback=provider_names(aware_names()), multiple=True, metavar="EP,…",
    help=f"Leave the nodes unfused that {either(aware_names())} runs (EP-aware); several share one file.",
)  # fmt: skip
@provider_options
@click.option("--safe", is_flag=True, help="Leave nodes to the CPU that the provider claims but cannot compile.")
@click.option(
    "--reference", default="auto", metavar="auto|none|installed|LIBRARY", show_default=True,
    help="What decides which nodes an EP runs: an Android library (AAR, .so or release), the installed onnxruntime, or "
    "none (the rules of ort-mobile). auto uses a library of the release for --abi that is here; it downloads none.",
)  # fmt: skip
@click.option(
    "--ort-release", callback=release, metavar="X.Y",
    help="ONNX Runtime release that will run the artifacts.  [default: the installed one]",
)  # fmt: skip
@click.option(
    "--build-kind", type=click.Choice(["full", "extended", "minimal"]), default="full", show_default=True,
    help="Kind of that release's build in the app: artifacts are checked against what it can load.",
)  # fmt: skip
@click.option(
    "--target-platform", type=click.Choice(["unspecified", "arm", "amd64"]),
    help="Processor that the optimizer may assume.  [default: arm for an ARM --abi, else unspecified]",
)  # fmt: skip
@click.option(
    "--dimension", "dimensions", callback=sizes, metavar="NAME=N", multiple=True,
    help="Fix a dynamic dimension, by its name or as INPUT[AXIS]; repeatable.",
)  # fmt: skip
@precision_option
@keep_float_option
@click.option(
    "--context", "chips", callback=words(), metavar="CHIP,…",
    help="Compile EP context models for the NPU of these Snapdragon chips, too, such as SM8650 (needs the extra qnn).",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Compare each artifact's outputs with the original model's.")
@custom_ops_option
@data_options
@click.option("--config/--no-config", default=True, help="Write the operator configs of all artifacts in OUTPUT.")
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Cache folder: unchanged models are not converted again."
)
@click.option(
    "--jobs", type=click.IntRange(min=0), default=0, help="Models to convert in parallel; 0: as cores and memory allow."
)
@fail_on_option(("coverage",))
@json_option
@click.pass_context
def convert(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    output: Path,
    levels: tuple[str, ...],
    styles: tuple[str, ...],
    file_format: str,
    providers: tuple[str, ...],
    safe: bool,
    reference: str,
    ort_release: str,
    build_kind: str,
    keep_float: tuple[str, ...],
    precisions: tuple[str, ...],
    chips: tuple[str, ...],
    target_platform: str | None,
    dimensions: dict[str, int],
    check: bool,
    test_data: str | None,
    input_values: dict[str, Any],
    config: bool,
    cache: Path | None,
    jobs: int,
    fail_on: tuple[Condition, ...],
    outputs: Outputs,
    show_changes: bool = False,
    **answers: Any,
) -> None:
    """Convert .onnx files, folders or zip archives of them to ORT format, or to optimized ONNX.

    The files (artifacts) are OUTPUT/MODEL.VARIANT.ort, where VARIANT is level and style, such as basic-fixed; the
    operator configs for reduced builds are in the same folder. A model that cannot be converted is reported, the others
    are converted, and the exit code is 1.

    With --ep, nodes that these execution providers run at level basic are kept unfused, and fixed style files are
    created.

    With --context, OUTPUT/MODEL.qnn-CHIP.onnx and the binary beside it are what a chip's NPU runs of a model.
    """
    from pipeline.core.workers import shared_children

    ctx.with_resource(shared_children("pipeline.convert.engine", "onnx", "onnxruntime"))
    from pipeline.convert.many import ConversionOrder, convert_paths
    from pipeline.convert.request import OptimizerPlatform
    from pipeline.core.custom_ops import of_this_computer
    from pipeline.core.releases import ARM64, read_abi
    from pipeline.core.variant import OWN_PRECISION
    from pipeline.passes.precisions import resolve_precisions
    from pipeline.report.conversion import conversion_parts, problem_lines
    from pipeline.report.show import show

    of_this_computer()  # a library that is missing is said before anything is written
    data = dataset_from(test_data, input_values)
    named = read_abi(answers["abi"], "--abi") if answers["abi"] else ""
    platform = OptimizerPlatform(target_platform) if target_platform else OptimizerPlatform.of_abi(named or ARM64)
    named = named or "".join(platform.abis if target_platform else ())
    abi = named or ARM64
    chosen = None
    if providers:
        from pipeline.convert.aware import choose_reference

        chosen = choose_reference(reference, ort_release, (), providers, named)
    answers["abi"] = chosen.abi if chosen and chosen.library and not chosen.optional else abi
    if data.given and not (check or precisions):
        raise click.UsageError("--test-data and --input are for --check and --precision; add one of them", ctx)
    if file_format == "onnx":
        if ctx.get_parameter_source("styles") is not ParameterSource.DEFAULT and styles != ("onnx",):
            raise click.UsageError("--format onnx is --style onnx; use one of them", ctx)
        styles = ("onnx",)
    order = ConversionOrder(
        levels=levels, styles=styles, release=ort_release, abi=abi, platform=platform,
        dimensions=dimensions, output=output, cache=cache, check=check, config=config, processes=jobs,
        aware=settings_of(providers, ort_release, answers), safe=safe, build_kind=build_kind,
        reference=chosen, data=data,
        precisions=resolve_precisions(precisions or (OWN_PRECISION,), answers["api_level"], "--precision"),
        api_level=answers["api_level"], keep_float=keep_float, chips=chips_named(chips, "--context"),
    )  # fmt: skip
    if data.given:
        from pipeline.check.many import check_paths_inputs

        check_paths_inputs(paths, dimensions, data, output)
    report = convert_paths(paths, order, progress())
    outputs.write_json(report.document())
    if outputs.text:
        show(conversion_parts(report))
        for changes in CHANGES if show_changes else ():
            show(changes(report))
    show(problem_lines(report, warnings=not quiet()), err=True)
    ctx.exit(end(fail_on, _watched(report), report.exit_code))


def _watched(report: "ConversionReport") -> Iterator[Watched]:
    """Each artifact with what speaks against it, and for each provider that it is made for."""
    from pipeline.core.errors import warning

    for artifact in (artifact for row in report.converted for artifact in row.artifacts):
        against = report.findings.get((artifact.model, artifact.variant.name), ())
        yield Watched(artifact.file, findings=[*against, *(warning(note, artifact.file) for note in artifact.notes)])
        nodes = sum(artifact.operators.values())
        for provider, claimed in artifact.claimed.items() if nodes else ():
            yield Watched(artifact.file, provider, {"coverage": claimed / nodes})


convert.params += [option for options in OPTIONS for option in options()]
