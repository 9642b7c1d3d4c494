"""`ort-mobile convert`: models to ORT format in every variant; `transform`: steps, each checked; `accuracy`: what a
changed model has lost.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pipeline.cli.command import Command
from pipeline.cli.options import (
    LEVELS,
    ProviderWords,
    chips_named,
    custom_ops_option,
    data_options,
    dimension_option,
    either,
    keep_float_option,
    labels_option,
    precision_option,
    progress,
    provider_names,
    provider_options,
    refuse_divided,
    release,
    sample_options,
    sizes,
    words,
)
from pipeline.cli.outputs import Condition, Outputs, Watched, end, fail_on_option, json_option, quiet
from pipeline.core import providers as provider_rules
from pipeline.core.features import Place

if TYPE_CHECKING:
    from pipeline.check.compare import OutputCheck
    from pipeline.convert import many as convert_many
    from pipeline.dataset import Dataset
    from pipeline.passes import base as passes_base
    from pipeline.passes import run as passes_run
    from pipeline.report import wording


OPTIONS = Place[Callable[[], list[click.Parameter]]]("convert.options")
"""Options of features: `show_changes`."""
CHANGES = Place[Callable[["convert_many.ConversionJob"], "Iterable[wording.Part]"]]("convert.changes")
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


@click.command(cls=Command)
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
    rules: ProviderWords,
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
    from pipeline.convert import many as convert_many
    from pipeline.convert import request as convert_request
    from pipeline.core import abis as core_abis
    from pipeline.core import custom_ops as core_custom_ops
    from pipeline.core import variant as core_variant
    from pipeline.passes import precisions as passes_precisions
    from pipeline.report import conversion as report_conversion
    from pipeline.report import show as terminal

    core_custom_ops.of_this_computer()  # a library that is missing is said before anything is written
    named = core_abis.read_abi(rules.abi, "--abi") if rules.abi else ""
    platform = (
        convert_request.OptimizerPlatform(target_platform)
        if target_platform
        else convert_request.OptimizerPlatform.of_abi(named or core_abis.ARM64)
    )
    named = named or "".join(platform.abis if target_platform else ())
    abi = named or core_abis.ARM64
    aware = convert_request.AwareSpec()
    if providers:
        from pipeline.convert import aware as convert_aware

        aware = convert_aware.choose_reference(reference, ort_release, (), providers, named)
    rules = replace(rules, abi=(aware.by.abi or core_abis.X86_64) if aware.library and not aware.optional else abi)
    if data.given and not (check or precisions):
        raise click.UsageError("--test-data and --input are for --check and --precision; add one of them", ctx)
    refuse_divided(providers, ctx)
    styles = styles_asked(ctx, styles, file_format, providers)
    if share_weights and not (chips or "onnx" in styles):
        raise click.UsageError(NOTHING_SHARED, ctx)
    job = convert_many.ConversionJob(
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
        aware=msgspec.structs.replace(aware, providers=rules.settings(providers, ort_release), safe=safe),
        build_kind=build_kind,
        data=data,
        precisions=passes_precisions.resolve_precisions(
            precisions or (core_variant.OWN_PRECISION,), rules.api_level, "--precision"
        ),
        api_level=rules.api_level,
        keep_float=keep_float,
        chips=chips_named(chips, "--context"),
        share_weights=share_weights,
        optional_inputs=optional_inputs,
    )
    if data.given:
        from pipeline.check import many as check_many

        check_many.check_paths_inputs(paths, dimensions, data, output)
    report = convert_many.convert_paths(paths, job, progress())
    outputs.write_json(report.document())
    if outputs.text:
        terminal.show(report_conversion.conversion_parts(report))
        for changes in CHANGES if show_changes else ():
            terminal.show(changes(report))
    terminal.show(report_conversion.problem_lines(report, warnings=not quiet()), err=True)
    ctx.exit(end(fail_on, _watched(report), report.exit_code))


def _watched(report: "convert_many.ConversionJob") -> Iterator[Watched]:
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


def show_passes(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """A callback that lists every pass in one line and ends the command."""
    if not value or ctx.resilient_parsing:
        return
    from pipeline.passes import registry
    from pipeline.report import show as terminal
    from pipeline.report import wording

    terminal.show(wording.Line(pass_line(step)) for step in registry.PASSES.values())
    ctx.exit()


def show_options(ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    """A callback that shows one pass with its options and ends the command."""
    if not name or ctx.resilient_parsing:
        return
    from pipeline.passes import registry

    step = registry.find_pass(name, "--options")
    click.echo(pass_line(step))
    for option, text in option_lines(step):
        click.echo(f"    {option:<28} {text}".rstrip())
    ctx.exit()


def pass_line(step: "passes_base.Pass") -> str:
    """A pass in one line."""
    return f"{step.name:<24} {step.title}" + (f" Needs the extra {step.extra!r}." if step.extra else "")


def option_lines(step: "passes_base.Pass") -> list[tuple[str, str]]:
    """The options of a pass as `name=default`, each with what it means."""
    import msgspec

    from pipeline import config as configs

    texts = configs.key_texts(step.options)
    lines = []
    for field in msgspec.structs.fields(step.options):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        shown = "" if default in (None, "") or field.required else f"={default}"
        lines.append((f"{field.name}{shown}", texts.get(field.name, "")))
    return lines


@click.command(cls=Command)
@click.argument("model", metavar="IN")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--do",
    "steps",
    multiple=True,
    metavar="NAME[:OPTION=VALUE]…",
    help="A step; repeatable, in this order. Values of a list are joined by +.",
)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=show_passes, help="List all passes, one a line."
)
@click.option(
    "--options",
    is_eager=True,
    expose_value=False,
    metavar="NAME",
    callback=show_options,
    help="Show the options of a pass.",
)
@click.option("--check/--no-check", default=True, help="Compare the result's outputs with the original's.")
@data_options
@sample_options
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Cache folder: the same steps on the same model are not run again.",
)
@json_option
@click.pass_context
def transform(
    ctx: click.Context,
    /,
    model: str,
    output: Path,
    steps: tuple[str, ...],
    check: bool,
    data: "Dataset",
    cache: Path | None,
    outputs: Outputs,
) -> None:
    """Change the ONNX model IN by steps and write it to OUT.

    Each step is a pass with options: other outputs, fixed dimensions, another batch size or opset, weights in a file
    of their own, folded shapes, fixes for execution providers. OUT is written only when every step applies and, where
    a step keeps the outputs, only when they are those of IN on the same inputs (random ones without --test-data).
    """
    import msgspec

    from pipeline.core.errors import CheckFailed, ConfigError
    from pipeline.model import sources as model_sources
    from pipeline.passes import registry
    from pipeline.passes import run as passes_run
    from pipeline.report import show as terminal

    if not steps:
        raise click.UsageError("name at least one step with --do; --list shows all", ctx)
    models = model_sources.find_models([model])
    if len(models) > 1:
        raise ConfigError("one model at a time", where=model, why=f"{len(models)} are there", remedy="name one of them")
    report = passes_run.transform_file(
        models[0],
        [registry.parse_step(text) for text in steps],
        output,
        data=data,
        check=check,
        cache=cache,
        progress=progress(),
    )
    for note in report.notes:
        click.echo(f"warning: {note}", err=True)
    verification = report.verification
    document = msgspec.to_builtins(report)
    for change, shown in zip(report.steps, document["steps"], strict=True):
        shown["text"] = change.step.text  # as it was written on the command line
    if verification:
        document["verification"]["failed"] = verification.failed
    outputs.write_json({"output": str(output), **document})
    if outputs.text:
        terminal.show(_parts(report, output))
    if verification and not verification.failed:
        for left_out in _not_compared(verification):
            click.echo(f"warning: the output {left_out.output!r} was not compared: {left_out.reason}", err=True)
    if verification and verification.failed:
        why = "; ".join(f"output {c.output!r}: {c.reason}" for c in verification.checks if c.failed)
        raise CheckFailed(
            "the changed model's outputs differ",
            where=model,
            why=why[:500],
            remedy="leave a step out; --no-check writes the model all the same",
        )


def _parts(report: "passes_run.TransformReport", output: Path) -> "Iterator[wording.Part]":
    """What each step changed, what was written and how its outputs compare."""
    from pipeline.report import wording

    rows = (
        (
            change.step.text,
            f"{change.nodes_before} → {change.nodes_after}",
            f"{wording.size(change.bytes_before)} → {wording.size(change.bytes_after)}",
        )
        for change in report.steps
    )
    yield wording.Listing(title="", head=("step", "nodes", "size"), rows=tuple(rows), right=("nodes", "size"))
    if verification := report.verification:
        lacking = _not_compared(verification)
        error = max((check.max_rel_error or 0.0 for check in verification.checks), default=0.0)
        apart = f"largest relative error {error:.2g}" if error else "" if lacking else "equal to the last bit"
        apart = "; ".join(filter(None, (apart, *(f"{check.output}: {check.reason}" for check in lacking))))
        if verification.why:
            text = f"not checked: {verification.why}"
        elif not verification.checks:
            text = "not checked: no output is a tensor of numbers"
        elif not verification.judged:
            text = f"outputs: {apart}, on {verification.data} (not judged: a step changes numbers by design)"
        else:
            passed = sum(check.passed for check in verification.checks)
            unknown = [check for check in verification.checks if check.unknown and check not in lacking]
            doubt = f"; {unknown[0].output}: {unknown[0].reason}" if unknown else ""
            of_all = f"{passed} of {len(verification.checks)} outputs are the original's"
            text = f"{of_all}, {apart}, on {verification.data}{doubt}"
        yield wording.Line(text)
    if not (report.verification and report.verification.failed):
        beside = f", weights in {report.saved.data_file} ({wording.size(report.saved.data_bytes)})"
        tail = (beside if report.saved.data_file else "") + (", unchanged since the last time" if report.reused else "")
        yield wording.Line(f"{output}: {wording.size(report.saved.size_bytes)}{tail}")


def _not_compared(verification: "passes_run.Verification") -> list["OutputCheck"]:
    """The outputs of whose differences there is no figure: NaN, infinity, another shape, strings that differ."""
    return [check for check in verification.checks if check.max_rel_error is None and not check.passed]


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="MODEL...")
@click.option("--reference", required=True, metavar="ORIGINAL", help="The .onnx file that the models were made from.")
@data_options
@sample_options
@labels_option("CSV file with a line `file,label` for each sample.")
@dimension_option
@click.option(
    "--ep",
    type=click.Choice(["cpu", "qnn"]),
    default="cpu",
    show_default=True,
    help="Run the models on the CPU, or in the simulator of a Snapdragon's NPU; ORIGINAL on the CPU.",
)
@click.option(
    "--chip", metavar="CHIP", default="", help="With --ep qnn: whose NPU, by Build.SOC_MODEL, such as SM8650."
)
@click.option(
    "--metric",
    metavar="NAME",
    help="top-1, top-5, f1, map, miou, wer, cer, agreement, r2, equal, cosine, psnr, sqnr, max-error or "
    "module:function.  [default: top-1 with labels; for outputs without, agreement of scores of classes, equal of "
    "whole numbers and texts, else r2]",
)
@click.option("--model-output", metavar="NAME", help="The only output that is judged.  [default: every one]")
@click.option("--vocabulary", metavar="FILE", help="For wer and cer: the symbol of each class, one a line.")
@click.option(
    "--max-drop",
    type=click.FloatRange(0, 1),
    help="Largest drop from ORIGINAL, as in 0.01; exit code 4 where a larger one is not excluded.",
)
@json_option
def accuracy(
    paths: tuple[str, ...],
    reference: str,
    data: "Dataset",
    dimensions: dict[str, int],
    ep: str,
    chip: str,
    metric: str | None,
    model_output: str | None,
    max_drop: float | None,
    vocabulary: str | None,
    outputs: Outputs,
) -> None:
    """Measure the accuracy of .onnx and .ort files beside the model that they were made from.

    Each MODEL and ORIGINAL run over the same samples on this computer's CPU. The drop has an interval that holds at
    95 %; with --max-drop a model passes only when the interval excludes a larger drop, and the table says how many
    samples would tell where these do not. Every output is judged, the worst decides; without labels, by ORIGINAL's.
    Below 10 dB from it a model passes only with a budget that allows it.
    """
    import msgspec

    from device_runner import providers as runner_providers
    from pipeline import config as configs
    from pipeline.accuracy import evaluate
    from pipeline.cli.main import show_error
    from pipeline.core import errors as core_errors
    from pipeline.core.errors import ConfigError
    from pipeline.model import sources as model_sources
    from pipeline.partition import kept
    from pipeline.report import accuracies

    if not data.test_data:
        raise ConfigError(
            "accuracy is measured on test data",
            where="--test-data",
            why="random inputs show nothing of it",
            remedy="give a folder of samples, an .npz file with inputs and labels, or module:function",
        )
    asked = configs.AccuracyConfig(metric=metric, max_drop=max_drop, output=model_output, vocabulary=vocabulary)
    (original, *_) = model_sources.find_models([reference])
    models = [source.path for source in model_sources.find_models(paths, (".onnx", ".ort"))]
    if chip and not provider_rules.of_chips(ep):
        raise click.UsageError("--chip is for qnn: add --ep qnn")
    if provider_rules.of_chips(ep):
        if not chip:
            remedy = "name one with --chip, such as SM8650"
            raise ConfigError("what an NPU computes depends on the chip, and none is named", remedy=remedy)
        if wrong := next((path for path in models if path.lower().endswith(".ort")), ""):
            raise ConfigError(
                "the simulator runs no ORT format files",
                where=wrong,
                remedy="name the ONNX model that the file was made from",
            )
        kept.compiler_name()
        chip = runner_providers.chip_named(chip).name
    requests = [
        evaluate.AccuracyRequest(
            model=path, reference=original, data=data, dimensions=dimensions, chip=chip, accuracy=asked
        )
        for path in models
    ]
    outcomes = evaluate.measure_accuracy(requests, progress())
    results = [outcome.value for outcome in outcomes if outcome.value]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if not results and errors:
        raise errors[0]
    for error in errors:
        show_error(error)
    code = core_errors.ExitCode.SOME_FAILED if errors else core_errors.ExitCode.DONE
    outputs.finish(
        {
            "reference": reference,
            "models": [
                {"model": outcome.task.label, "error": str(outcome.error), "remedy": outcome.error.remedy}
                if outcome.error
                else msgspec.to_builtins(outcome.value)
                for outcome in outcomes
            ],
        },
        accuracies.accuracy_parts(results),
        code=core_errors.ExitCode.CHECK_FAILED if any(result.refused for result in results) else code,
        failed=(accuracies.refusal_text(result) for result in results if result.refused),
    )
