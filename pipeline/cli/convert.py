"""`ort-mobile convert`: models to ORT format in every variant."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pipeline.cli.callbacks import release, sizes, words
from pipeline.cli.command import Command
from pipeline.cli.data_options import data_options
from pipeline.cli.options import LEVELS, custom_ops_option, keep_float_option, precision_option, progress
from pipeline.cli.outputs import Condition, Outputs, Watched, end, fail_on_option, json_option, quiet
from pipeline.cli.provider_options import (
    ProviderWords,
    chips_named,
    either,
    provider_names,
    provider_options,
    refuse_divided,
)
from pipeline.core import providers as provider_rules
from pipeline.core.features import Place

if TYPE_CHECKING:
    from pipeline.convert import command_job
    from pipeline.convert import request as convert_request
    from pipeline.dataset import Dataset
    from pipeline.report import wording


OPTIONS = Place[Callable[[], list[click.Parameter]]]("convert.options")
"""Options of features: `show_changes`."""
CHANGES = Place[Callable[["command_job.ConversionJob"], "Iterable[wording.Part]"]]("convert.changes")
"""Says what became of the nodes in each artifact."""


NOTHING_SHARED = (
    "--share-weights is for ONNX files and contexts, files in ORT format have their weights in them; add --format onnx "
    "or --context CHIP"
)


def styles_asked(
    ctx: click.Context, styles: tuple[str, ...], file_format: str, providers: tuple[str, ...]
) -> tuple[str, ...]:
    """--style with what --format and --ep make of it; a usage error for what they do not go with."""
    by_default = ctx.get_parameter_source("styles") is ParameterSource.DEFAULT
    if file_format == "onnx":
        if not by_default and styles != ("onnx",):
            raise click.UsageError("--format onnx is --style onnx; use one of them", ctx)
        styles, by_default = ("onnx",), False
    if providers and not by_default and styles != ("fixed",):
        raise click.UsageError(
            "--ep makes files of style fixed alone: a session asks its providers itself about an ONNX file and one of "
            "style runtime; leave --style and --format out, or run the command again without --ep",
            ctx,
        )
    return styles


@click.command(
    cls=Command,
    examples=(
        "ort-mobile convert my.onnx --output out --check",
        "ort-mobile convert my.onnx --level basic,all --style fixed --output out",
        "ort-mobile convert my.onnx --ep nnapi,coreml-mlprogram --output out",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the artifacts."
)
@click.option(
    "--level",
    "levels",
    callback=words(LEVELS),
    metavar="LEVEL,…",
    default="none,basic,extended,all",
    show_default=True,
    help="Optimization levels: none, basic, extended, layout (from 1.23), all.",
)
@click.option(
    "--style",
    "styles",
    callback=words(("fixed", "runtime", "onnx")),
    metavar="STYLE,…",
    default="fixed,runtime",
    show_default=True,
    help="fixed saves the optimized graph; runtime saves the basic graph and records fusions that the device applies; "
    "onnx saves the optimized graph as an ONNX file, for full libraries and GPUs.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["ort", "onnx"]),
    default="ort",
    show_default=True,
    help="onnx is the same as --style onnx: the optimized graph as ONNX, for full builds, GPUs and other tools.",
)
@click.option(
    "--ep",
    "providers",
    callback=provider_names(provider_rules.aware_names()),
    multiple=True,
    metavar="EP,…",
    help=f"Leave the nodes unfused that {either(provider_rules.aware_names())} runs (EP-aware); several share one "
    "file.",
)
@provider_options
@click.option("--safe", is_flag=True, help="Leave nodes to the CPU that the provider claims but cannot compile.")
@click.option(
    "--reference",
    default="auto",
    metavar="auto|none|installed|LIBRARY",
    show_default=True,
    help="What decides which nodes an EP runs: an Android library (AAR, .so or release), the installed onnxruntime, or "
    "none (the rules of ort-mobile). auto uses a library of the release for --abi that is here; it downloads none.",
)
@click.option(
    "--ort-release",
    callback=release,
    metavar="X.Y",
    help="ONNX Runtime release that will run the artifacts.  [default: the installed one]",
)
@click.option(
    "--build-kind",
    type=click.Choice(["full", "extended", "minimal"]),
    default="full",
    show_default=True,
    help="Kind of that release's build in the app: artifacts are checked against what it can load.",
)
@click.option(
    "--target-platform",
    type=click.Choice(["unspecified", "arm", "amd64"]),
    help="Processor that the optimizer may assume.  [default: arm for an ARM --abi, else unspecified]",
)
@click.option(
    "--dimension",
    "dimensions",
    callback=sizes,
    metavar="NAME=N",
    multiple=True,
    help="Fix a dynamic dimension, by its name or as INPUT[AXIS]; repeatable.",
)
@click.option(
    "--optional-input",
    "optional_inputs",
    callback=words(),
    metavar="NAME,…",
    help="Keep an input that has a value in the model's file, so that apps can set it; others become constants.",
)
@precision_option
@keep_float_option
@click.option(
    "--context",
    "chips",
    callback=words(),
    metavar="CHIP,…",
    help="Compile EP context models for the NPU of these Snapdragon chips, too, such as SM8650 (needs the extra qnn).",
)
@click.option(
    "--share-weights",
    is_flag=True,
    help="Put the weights of all models, sizes of one, into one file: beside ONNX files, in the contexts of each chip.",
)
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
    share_weights: bool,
    target_platform: str | None,
    dimensions: dict[str, int],
    optional_inputs: tuple[str, ...],
    provider_words: ProviderWords,
    check: bool,
    data: "Dataset",
    config: bool,
    cache: Path | None,
    jobs: int,
    fail_on: tuple[Condition, ...],
    outputs: Outputs,
    show_changes: bool = False,
) -> None:
    """Convert .onnx files, folders or zip archives of them to ORT format, or to optimized ONNX.

    The files (artifacts) are OUTPUT/MODEL.VARIANT.ort, where VARIANT is level and style, such as basic-fixed; the
    operator configs for reduced builds are in the same folder. A model that cannot be converted is reported, the others
    are converted, and the exit code is 1.

    With --ep, nodes that these execution providers run at level basic are kept unfused, and fixed style files are
    created.

    With --context, OUTPUT/MODEL.qnn-CHIP.onnx and the binary beside it are what a chip's NPU runs of a model.
    """
    import msgspec

    from pipeline.core import workers

    ctx.with_resource(workers.shared_children("pipeline.convert.engine", "onnx", "onnxruntime"))
    from pipeline.convert import command_job
    from pipeline.convert import request as convert_request
    from pipeline.core import abis as core_abis
    from pipeline.core import custom_ops as core_custom_ops
    from pipeline.core import variant as core_variant
    from pipeline.passes import precisions as passes_precisions
    from pipeline.report import conversion as report_conversion
    from pipeline.report import show as terminal

    core_custom_ops.of_this_computer()  # a library that is missing is said before anything is written
    named = core_abis.read_abi(provider_words.abi, "--abi") if provider_words.abi else ""
    platform = (
        convert_request.OptimizerPlatform(target_platform)
        if target_platform
        else convert_request.OptimizerPlatform.of_abi(named or core_abis.ARM64)
    )
    named = named or "".join(platform.abis if target_platform else ())
    abi = named or core_abis.ARM64
    aware = convert_request.AwareSpec()
    if providers:
        from pipeline.convert import aware_reference

        aware = aware_reference.choose_reference(reference, ort_release, (), providers, named)
    provider_words = replace(provider_words, abi=_abi_of_claims(aware, abi))
    if data.given and not (check or precisions):
        raise click.UsageError("--test-data and --input are for --check and --precision; add one of them", ctx)
    refuse_divided(providers, ctx)
    styles = styles_asked(ctx, styles, file_format, providers)
    if share_weights and not (chips or "onnx" in styles):
        raise click.UsageError(NOTHING_SHARED, ctx)
    job = command_job.ConversionJob(
        levels=levels,
        styles=styles,
        release=ort_release,
        abi=abi,
        platform=platform,
        dimensions=dimensions,
        output=output,
        cache=cache,
        check=check,
        config=config,
        processes=jobs,
        aware=msgspec.structs.replace(aware, providers=provider_words.settings(providers, ort_release), safe=safe),
        build_kind=build_kind,
        data=data,
        precisions=passes_precisions.resolve_precisions(
            precisions or (core_variant.OWN_PRECISION,), provider_words.api_level, "--precision"
        ),
        api_level=provider_words.api_level,
        keep_float=keep_float,
        chips=chips_named(chips, "--context"),
        share_weights=share_weights,
        optional_inputs=optional_inputs,
    )
    if data.given:
        from pipeline.check import many as check_many

        check_many.check_paths_inputs(paths, dimensions, data, output)
    report = command_job.convert_paths(paths, job, progress())
    outputs.write_json(report.document())
    if outputs.text:
        terminal.show(report_conversion.conversion_parts(report))
        for changes in CHANGES if show_changes else ():
            terminal.show(changes(report))
    terminal.show(report_conversion.problem_lines(report, warnings=not quiet()), err=True)
    ctx.exit(end(fail_on, _watched(report), report.exit_code))


def _abi_of_claims(aware: "convert_request.AwareSpec", abi: str) -> str:
    """The ABI for which providers are asked: that of the library that must save, else that of the app."""
    from pipeline.core import abis as core_abis

    return (aware.by.abi or core_abis.X86_64) if aware.library and not aware.optional else abi


def _watched(report: "command_job.ConversionJob") -> Iterator[Watched]:
    """Each artifact with what speaks against it, and for each provider that it is made for."""
    from pipeline.core import errors as core_errors

    for artifact in (artifact for conversion in report.converted for artifact in conversion.artifacts):
        against = report.findings.get((artifact.model, artifact.variant.name), ())
        yield Watched(
            artifact.file, findings=[*against, *(core_errors.warning(note, artifact.file) for note in artifact.notes)]
        )
        nodes = sum(artifact.operators.values())
        for provider, claimed in artifact.claimed.items() if nodes else ():
            yield Watched(artifact.file, provider, {"coverage": claimed / nodes})


convert.params += [option for options in OPTIONS for option in options()]
