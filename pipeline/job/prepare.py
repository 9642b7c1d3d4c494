"""Before anything is measured: models converted, referenced and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import spec as run_spec
from pipeline import config as configs
from pipeline import dataset as datasets
from pipeline.accuracy import result as accuracy_result
from pipeline.check import compare as output_compare
from pipeline.check import many as check_many
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.config import Config
from pipeline.convert import aware_reference, shared_weights
from pipeline.convert import many as convert_many
from pipeline.convert import precisions as convert_precisions
from pipeline.convert import request as convert_request
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import workers
from pipeline.core.errors import PipelineError
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.job import attachment as job_attachment
from pipeline.job import tokens as job_tokens
from pipeline.job.models import check_named_outputs, sizes_of
from pipeline.job.precisions import auto_providers, precision_orders
from pipeline.job.sessions import app_sessions
from pipeline.job.targets import CommonTarget, common_target
from pipeline.model import sources as model_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One model with what was made of it. Artifacts carry the model's short name; `checks` are by variant name.

    `references` are by the name of the model in each precision (`Artifact.source`), its own first.
    """

    model: model_sources.NamedModel
    table: configs.ModelConfig
    converted: convert_precisions.Conversion
    artifacts: tuple[Artifact, ...] = ()
    references: dict[str, check_result.Reference] = field(default_factory=dict)
    accuracy: tuple[accuracy_result.ArtifactAccuracy, ...] = ()
    checks: dict[str, tuple[OutputCheck, ...]] = field(default_factory=dict)
    errors: tuple[PipelineError, ...] = ()
    oracle: str = ""
    """Who confirmed what is at the model's ends, and how far; "" where nobody did."""

    @property
    def name(self) -> str:
        """The model's short name."""
        return self.model.name

    @property
    def reference(self) -> check_result.Reference | None:
        """What the model computes: its inputs are those of every precision."""
        return next(iter(self.references.values()), None)

    def sound(self, artifact: Artifact) -> bool:
        """Whether its outputs were compared, and none was shown to be wrong."""
        return output_compare.sound(self.checks.get(artifact.variant.name, ()))


def _subject(model: model_sources.NamedModel, table: configs.ModelConfig) -> check_many.CheckedModel:
    stream = run_spec.Stream(steps=table.stream_steps, states=table.state) if table.state else None
    return check_many.CheckedModel(
        model=model, data=datasets.dataset_of(table), labelled=datasets.labelled_data(table), stream=stream
    )


@workers.shared_children()
def prepare(
    config: Config,
    models: Sequence[tuple[model_sources.NamedModel, configs.ModelConfig]],
    folder: Path,
    work: Path,
    progress: Progress,
) -> list[Prepared]:
    """Convert, compute references and check; what fails for one model or artifact is in its `errors`.

    Raises the first error where every model failed and all for want of the same: a wrong command line, a full disk.
    """
    variants, common = config.variants, common_target(config)
    convert_many.require_compiler(variants.contexts)
    # A conversion for each model, in its stages: ordered, in its precisions, converted.
    ordered = precision_orders(config, models, common)
    tables = {model.name: table for model, table in models}
    check_named_outputs(config.accuracy, models, work / "outputs")
    check_many.check_all_inputs(
        [
            _subject(conversion.model, tables[conversion.model.name])
            for conversion in ordered
            if not (conversion.base.steps or conversion.base.error)
        ],
        work,
    )
    in_precisions = convert_precisions.make_precisions(
        ordered, auto_providers(config, common), work, runner_files.cache_folder() / "passes", progress
    )
    changed = [conversion.base for conversion in in_precisions if conversion.base.steps and not conversion.base.error]
    check_many.check_all_inputs([_subject(base.model, tables[base.model.name]) for base in changed], work / "changed")
    job_tokens.keep(tables, folder / storage.ARTIFACTS)
    confirmed = job_attachment.confirmations(_attached(in_precisions, tables), work, progress)
    in_precisions = [_unless_refuted(conversion, confirmed) for conversion in in_precisions]
    with progress.stage("convert", sum(len(conversion.models) for conversion in in_precisions)) as stage:
        converted = convert_many.convert_models(
            in_precisions,
            lambda precision: tuple(configs.wanted_variants(variants, precision)),
            output=folder / storage.ARTIFACTS,
            cache=runner_files.cache_folder() / "artifacts",
            release=common.release,
            platform=convert_request.OptimizerPlatform.of_abi(common.abi),
            aware=_aware_spec(config, common),
            done=stage.done,
        )
    sizes = sizes_of(tables)
    converted = convert_many.with_contexts(
        converted, variants.contexts, folder / storage.ARTIFACTS, progress, sizes=sizes, share=variants.share_weights
    )
    converted = shared_weights.with_shared_weights(
        converted, sizes, folder / storage.ARTIFACTS, common.release, progress
    )
    _refuse_all_failed(converted)
    artifacts = [
        tuple(msgspec.structs.replace(artifact, model=model.name) for artifact in conversion.artifacts)
        for (model, _), conversion in zip(models, converted, strict=True)
    ]
    # what could not be converted is not tried a second time: it may have taken its whole time
    sources = {artifact.source for rows in artifacts for artifact in rows}
    sources |= {context.source for conversion in converted for context in conversion.contexts}
    usable = [
        replace(
            _subject(replace(form.model, name=form.name), tables[form.model.name]),
            original=conversion.original_of(form),
        )
        for conversion in converted
        for form in conversion.models
        if form.name in sources
    ]
    outcomes = check_many.make_references(usable, folder / storage.REFERENCES, work, progress)
    references = check_many.require_references(outcomes)
    compared = [(row, references[row.source]) for rows in artifacts for row in rows if row.source in references]
    checks = check_many.check_all(
        compared, folder / storage.ARTIFACTS, config.check, progress, partial(app_sessions, config.runs)
    )
    if contexts := [context for conversion in converted for context in conversion.contexts]:
        checks |= _simulated(contexts, references, folder, config.check, progress)
    return [
        _prepared(model, table, conversion, named, outcomes, checks, confirmed.get(model.name))
        for (model, table), conversion, named in zip(models, converted, artifacts, strict=True)
    ]


def _attached(
    conversions: Sequence[convert_precisions.Conversion], tables: Mapping[str, configs.ModelConfig]
) -> dict[str, job_attachment.ModelWithEnds]:
    """The models in float that have something at their ends."""
    return {
        conversion.model.name: job_attachment.ModelWithEnds(model=conversion.base.model, table=table)
        for conversion in conversions
        for table in (tables[conversion.model.name],)
        if (table.takes or table.gives) and not conversion.base.error
    }


def _unless_refuted(
    conversion: convert_precisions.Conversion, said: Mapping[str, job_attachment.Confirmation | PipelineError]
) -> convert_precisions.Conversion:
    """A model as it is, or without any form where its oracle gives something else: nothing of it is converted."""
    error = said.get(conversion.model.name)
    if not isinstance(error, PipelineError):
        return conversion
    forms = tuple(replace(form, error=error) for form in conversion.models)
    return replace(conversion, base=replace(conversion.base, error=error), models=forms)


def _prepared(
    model: model_sources.NamedModel,
    table: configs.ModelConfig,
    conversion: convert_precisions.Conversion,
    artifacts: tuple[Artifact, ...],
    outcomes: Mapping[str, workers.TaskOutcome[check_result.Reference]],
    checks: Mapping[tuple[str, str], tuple[OutputCheck, ...] | PipelineError],
    said: job_attachment.Confirmation | PipelineError | None,
) -> Prepared:
    """What became of one model; `outcomes` are references and `checks` results, of all models; `said` by its oracle."""
    names = [form.name for form in conversion.models if form.name in outcomes]
    results = {variant: result for (name, variant), result in checks.items() if name == model.name}
    errors = [conversion.error, *(outcomes[name].error for name in names)]
    errors += [result for result in results.values() if isinstance(result, PipelineError)]
    return Prepared(
        model=model,
        table=table,
        converted=conversion,
        artifacts=artifacts,
        references={name: reference for name in names if (reference := outcomes[name].value)},
        checks={name: result for name, result in results.items() if not isinstance(result, PipelineError)},
        errors=tuple(error for error in errors if error),
        oracle=said.text if isinstance(said, job_attachment.Confirmation) else "",
    )


def _aware_spec(config: Config, common: CommonTarget) -> convert_request.AwareSpec:
    """What provider-aware variants may count on: the lowest API level, OS version and release among the targets.

    Nothing where the config wants none: rules of claims begin with a later release than conversion. The session that
    saves them is that of an Android target's own library before others of its release.
    """
    if not config.variants.aware:
        return convert_request.AwareSpec()
    ships = [t.library for t in config.targets if t.platform is configs.Platform.ANDROID and t.library]
    wanted = config.variants.reference.value
    chosen = aware_reference.choose_reference(wanted, common.release, ships, abi=common.abi)
    return msgspec.structs.replace(chosen, providers=common.settings())


def _refuse_all_failed(converted: Sequence[convert_precisions.Conversion]) -> None:
    """Raise the first error where every model failed and all for want of the same."""
    failed = [conversion.error for conversion in converted if conversion.error]
    common = core_errors.common_exit_code(failed) if failed and len(failed) == len(converted) else None
    if common not in (None, core_errors.ExitCode.SOME_FAILED):
        raise failed[0]


def _simulated(
    contexts: Sequence[npu_contexts.NpuContext],
    references: dict[str, check_result.Reference],
    folder: Path,
    config: configs.CheckConfig,
    progress: Progress,
) -> dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError]:
    """The checks of contexts by model and variant; what the simulator computes of them comes into the references."""
    from pipeline.convert import contexts as convert_contexts

    checks: dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError] = {}
    for context, compared, outputs in convert_contexts.check_contexts(
        contexts, folder / storage.ARTIFACTS, references, config, progress, folder / storage.REFERENCES
    ):
        checks[context.model, context.variant.name] = compared
        reference = references[context.source]
        simulated = {**reference.simulated, context.variant.name: outputs}
        references[context.source] = msgspec.structs.replace(reference, simulated=simulated)
    return checks
