"""Conversion of many models: found, made in every precision and variant, checked before loading and compared."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version as installed_version
from pathlib import Path

from pipeline.check.compare import OutputCheck
from pipeline.check.many import CheckedArtifact, CheckedModel, check_all, make_references
from pipeline.compat.preflight import judged, read_artifacts
from pipeline.compat.rules import Runtime, Use
from pipeline.config import BuildKind, CheckConfig
from pipeline.convert.batch import convert_models
from pipeline.convert.operator_configs import write_configs
from pipeline.convert.precisions import PrecisionOrder, PrecisionSet, make_precisions
from pipeline.convert.report import ConversionOrder, ConversionReport
from pipeline.core.errors import ConfigError, Finding, PipelineError
from pipeline.core.files import scratch
from pipeline.core.progress import NoProgress, Progress
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact
from pipeline.model.sources import find_models, name_models


def convert_paths(paths: Sequence[str], order: ConversionOrder, progress: Progress | None = None) -> ConversionReport:
    """Convert everything under the paths, and check it where that is asked for.

    Raises ConfigError when there is nothing to convert.
    """
    progress = progress or NoProgress()
    sources = find_models(paths)
    models = name_models(sources, [None] * len(sources), [order.dimensions] * len(sources))
    orders = [
        PrecisionOrder(model=model, precisions=order.precisions, data=order.data, api_level=order.api_level)
        for model in models
    ]
    cache = order.cache / "passes" if order.cache else None
    with scratch(order.output) as work:
        sets = make_precisions(orders, order.auto_providers(), work, cache, progress)
        converted = convert_models(
            sets,
            order.variants,
            output=order.output,
            cache=order.cache,
            release=order.release,
            platform=order.platform,
            aware=order.aware,
            safe=order.safe,
            reference=order.reference,
            processes=order.processes,
        )
        artifacts = [artifact for one in converted for artifact in one.artifacts]
        configs = write_configs(order.output, artifacts) if order.config and artifacts else ()
        report = ConversionReport(
            order=order,
            converted=converted,
            configs=configs,
            findings=_preflight(order, artifacts),
            verdicts={one.model.source.name: one.verdicts for one in sets},
        )
        return _checked(report, sets, work, progress) if order.check else report


def _preflight(order: ConversionOrder, artifacts: Sequence[Artifact]) -> dict[tuple[str, str], tuple[Finding, ...]]:
    """What speaks against the artifacts in the release and kind of build that the order names."""
    release = line_of(order.release or installed_version("onnxruntime"))
    abis = order.platform.abis
    runtime = Runtime(release=release, kind=BuildKind(order.build_kind), abis=abis)
    read = read_artifacts({artifact.file: order.output / artifact.file for artifact in artifacts})
    found = {
        (artifact.model, artifact.variant.name): judged(
            read, artifact.file, runtime, Use(session_config=artifact.session_options)
        )
        for artifact in artifacts
    }
    return {key: findings for key, findings in found.items() if findings}


def _checked(
    report: ConversionReport, sets: Sequence[PrecisionSet], work: Path, progress: Progress
) -> ConversionReport:
    """The same report with every artifact compared with its original (in its precision) on the order's data.

    What cannot be run on this computer fails its check, with the reason. ConfigError where no model has inputs that it
    can be run on.
    """
    artifacts = {(a.model, a.variant.name): a for one in report.converted for a in one.artifacts}
    origins = {
        (group.model.source.name, variant.name): one.name
        for group in sets
        for one in group.models
        for variant in report.order.variants(one.precision)
    }
    used = {origins[key] for key in artifacts}
    subjects = [
        CheckedModel(model=replace(one.model, name=one.name), data=report.order.data)
        for group in sets
        for one in group.models
        if one.name in used
    ]
    references = make_references(subjects, work / "tensors", work, progress)
    refused = [outcome.error for outcome in references.values()]
    if refused and all(isinstance(error, ConfigError) for error in refused):
        raise next(error for error in refused if error)
    exhibits, without = [], {}
    for key, artifact in artifacts.items():
        outcome = references[origins[key]]
        if outcome.value:
            file = report.order.output / artifact.file
            exhibits.append(CheckedArtifact(artifact=artifact, file=file, reference=outcome.value))
        elif outcome.error:
            without[key] = _not_run(outcome.error)
    checks = check_all(exhibits, CheckConfig(), progress)
    failed = {key: _not_run(error) for key, error in checks.errors.items()}
    return replace(report, checks=without | checks.passed_or_not | failed)


def _not_run(error: PipelineError) -> tuple[OutputCheck, ...]:
    return (OutputCheck(output="", passed=False, reason=f"{error.what}: {error.why}"),)
