"""Before anything is measured: what targets mean for conversion; models found, converted, referenced and checked."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner.files import cache_folder
from device_runner.providers import provider_named
from device_runner.spec import Stream
from pipeline.accuracy.evaluate import AccuracyRequest, measure_accuracy
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.advice.verdict import PrecisionVerdict
from pipeline.campaign.plan import run_options
from pipeline.campaign.record import PrecisionSearch
from pipeline.check.compare import OutputCheck
from pipeline.check.many import (
    CheckedModel,
    References,
    check_all,
    check_all_inputs,
    make_references,
)
from pipeline.check.reference import saturates_here
from pipeline.check.result import Reference
from pipeline.config import Config, MeasureConfig, ModelConfig, Platform, Target, wanted_variants
from pipeline.config.tables import is_function
from pipeline.convert.aware import choose_reference
from pipeline.convert.many import Converted, convert_models, require_compiler, with_contexts, with_shared_weights
from pipeline.convert.precisions import AutoProviders, PrecisionOrder, PrecisionSet, cpu_of_abi, make_precisions
from pipeline.convert.request import AwareSource, AwareSpec, OptimizerPlatform
from pipeline.core.abis import abis_of_target, deciding_abi
from pipeline.core.errors import ConfigError, ExitCode, PipelineError, common_exit_code
from pipeline.core.features import Place
from pipeline.core.files import ARTIFACTS, REFERENCES
from pipeline.core.progress import Progress
from pipeline.core.providers import on_any_chip, rules_of_run
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact, Level, Style
from pipeline.core.workers import TaskOutcome, shared_children
from pipeline.dataset import Dataset, Part, dataset_of, labelled_data, part_of
from pipeline.model.sources import NamedModel, find_models, name_models, numbered_lines
from pipeline.partition.answer import Settings, make_settings
from pipeline.passes.precisions import AUTO, PRECISIONS, resolve_precisions
from pipeline.passes.registry import options_of
from pipeline.release.shipped import library_release


def oldest_release(config: Config) -> str:
    """The oldest release among the targets: artifacts must run on all of them; "" for the installed one.

    A target that names none has that of its library, where this can be read.
    """
    named = [target.ort_release or library_release(target) for target in config.targets]
    return min((release for release in named if release), key=line_of, default="")


def _abi_of(*targets: Target) -> str:
    """The ABI that claims, graphs and precisions are made for: the first ARM one of the targets, if there is one."""
    return deciding_abi([abi for target in targets for abi in abis_of_target(target.platform, target.abis)])


COREML_VERSIONS = {15: 5, 16: 6, 17: 7, 18: 8}
"""iOS release to CoreML's version (ep_rules E.1); later ones have the last of these."""


def aware_source(config: Config) -> AwareSource | None:
    """Whose session saves aware variants: that of an Android target's own library before others of its release."""
    ships = [t.library for t in config.targets if t.platform is Platform.ANDROID and t.library]
    return choose_reference(
        config.variants.reference.value, oldest_release(config), ships, abi=_abi_of(*config.targets)
    )


def provider_settings(config: Config) -> tuple[Settings, ...]:
    """The settings of every provider that hold on all targets; ConfigError for a release older than the rules."""
    release = oldest_release(config)
    systems = [t.min_os_version for t in config.targets if t.platform is Platform.IOS and t.min_os_version]
    oldest = min((int(text.partition(".")[0]) for text in systems), default=None)
    return tuple(
        make_settings(
            provider,
            release=release,
            abi=_abi_of(*config.targets),
            android=any(t.platform is Platform.ANDROID for t in config.targets),
            api_level=nnapi_level(config),
            coreml_version=COREML_VERSIONS.get(oldest, 8 if oldest > 18 else 5) if oldest else None,
        )
        for provider in on_any_chip()
    )


def lowest_api_level(config: Config) -> int | None:
    """The lowest API level of the Android targets; None where none names one."""
    levels = [t.min_api_level for t in config.targets if t.platform is Platform.ANDROID and t.min_api_level]
    return min(levels, default=None)


def nnapi_level(config: Config) -> int | None:
    """`lowest_api_level` as ONNX Runtime's NNAPI distinguishes them, 27 to 31."""
    level = lowest_api_level(config)
    return min(max(27, level), 31) if level else None


def precision_orders(config: Config, models: Sequence[tuple[NamedModel, ModelConfig]]) -> list[PrecisionOrder]:
    """What is wanted of each model: precisions by their own names, and passes before everything else.

    ConfigError, with the place in the config, for a precision or pass that there is not and for wrong options.
    """
    level = lowest_api_level(config)
    general = resolve_precisions(config.variants.precisions, level, "[variants] precisions")
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    for number, table in enumerate(config.models):
        where = f"models[{number}]"
        names[table.precisions] = resolve_precisions(table.precisions, level, f"{where}.precisions") or general
        for place, step in enumerate(table.transforms):
            options_of(step, f"{where}.transforms[{place}]")
    return [
        PrecisionOrder(
            model=model,
            precisions=names[table.precisions],
            transforms=table.transforms,
            data=calibration_data(config, table),
            api_level=nnapi_level(config),
            keep_float=table.keep_float,
        )
        for model, table in models
    ]


LEAST_DIVIDED = 20
"""Samples of which one in four gives ranges even where nothing is decided: five, as few as are of use."""


def calibration_data(config: Config, table: ModelConfig) -> Dataset:
    """What ranges are taken from: never evaluation data that are labelled, named, or decide, or are enough to divide.

    Fewer samples than LEAST_DIVIDED serve both where accuracy is only shown: few people have more than three at first.
    """
    decides = config.accuracy.max_drop is not None or table.labels or table.calibration or table.evaluation
    apart = part_of(table, Part.CALIBRATION)
    return apart if decides else msgspec.structs.replace(apart, least=LEAST_DIVIDED)


def auto_providers(config: Config) -> AutoProviders:
    """What `auto` chooses precisions for: the providers of the runs, on the targets that have them."""
    precisions = [config.variants.precisions, *(model.precisions for model in config.models)]
    if not any(AUTO in names for names in precisions):
        return {}
    settings = {row.provider: row for row in provider_settings(config)}
    return {name: settings.get(name) for target in config.targets for name in _providers_of(target, config)}


def _providers_of(target: Target, config: Config) -> Iterator[str]:
    """The providers of the runs that a target's platform has, the CPU with the name of its processor."""
    for run in config.runs:
        for options in run_options(run):
            if options.provider == "cpu":
                yield cpu_of_abi(_abi_of(target))
            elif (rules := rules_of_run(options.provider, options.provider_options)) and not rules.run.never_on(
                target.platform.value
            ):
                yield rules.name


LEVELS = (Level.BASIC, Level.ALL)
"""What providers want and what the CPU wants (ONNX Runtime's documentation of the ORT format)."""

STYLES = (Style.FIXED,)
ROUNDS = 3
MIN_SECONDS = 0.05
MIN_RUNS = 5
QUICKER = f"Ctrl-C keeps what is done; `--quick` takes {ROUNDS} rounds of some {MIN_RUNS} inferences"
"""What a job that takes long says of a quick one."""


def quick(config: Config) -> Config:
    """The config with less to measure; what it names alone, as a level that LEVELS lacks, stays."""
    variants = config.variants
    fewer = msgspec.structs.replace(
        variants,
        levels=tuple(level for level in variants.levels if level in LEVELS) or variants.levels,
        styles=tuple(style for style in variants.styles if style in STYLES) or variants.styles,
    )
    return msgspec.structs.replace(config, variants=fewer, measure=_shorter(config.measure))


def _shorter(measure: MeasureConfig) -> MeasureConfig:
    return msgspec.structs.replace(
        measure,
        rounds=min(measure.timed_rounds, ROUNDS),
        min_seconds=min(measure.min_seconds, MIN_SECONDS),
        min_runs=min(measure.min_runs, MIN_RUNS),
        warmup=1 if isinstance(measure.warmup, str) else min(measure.warmup, 1),
    )


def left_out(config: Config) -> str:
    """What the quick job does not do of a config, in one sentence for the terminal and the reports."""
    less = quick(config)
    names = (*config.variants.levels, *config.variants.styles)
    kept = (*less.variants.levels, *less.variants.styles)
    missing = ", ".join(name.value for name in names if name not in kept)
    seconds = f"{less.measure.min_seconds:g} s instead of {config.measure.min_seconds:g} s each"
    variants = f"; not converted or measured: {missing}" if missing else ""
    return (
        f"quick: {less.measure.rounds} of {config.measure.timed_rounds} rounds, {seconds}{variants}. "
        "Run it without --quick before a release."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One model with what was made of it. Artifacts carry the model's short name; `checks` are by variant name.

    `references` are by the name of the model in each precision (`Artifact.source`), its own first.
    """

    model: NamedModel
    table: ModelConfig
    converted: Converted
    artifacts: tuple[Artifact, ...] = ()
    references: dict[str, Reference] = field(default_factory=dict)
    verdicts: tuple[PrecisionVerdict, ...] = ()
    searches: tuple[PrecisionSearch, ...] = ()
    accuracy: tuple[ArtifactAccuracy, ...] = ()
    checks: dict[str, tuple[OutputCheck, ...]] = field(default_factory=dict)
    errors: tuple[PipelineError, ...] = ()

    @property
    def name(self) -> str:
        """The model's short name."""
        return self.model.name

    @property
    def reference(self) -> Reference | None:
        """What the model computes: its inputs are those of every precision."""
        return next(iter(self.references.values()), None)

    def sound(self, artifact: Artifact) -> bool:
        """Whether its outputs were compared, and none was shown to be wrong."""
        checks = self.checks.get(artifact.variant.name, ())
        return bool(checks) and not any(check.failed for check in checks)


SOURCES = Place[Callable[[str, Path], object]]("find.sources")
"""Who makes the ONNX file of a model's `source`."""


def find(config: Config) -> list[tuple[NamedModel, ModelConfig]]:
    """Every model of the config with its table, made of its source first; ConfigError for a path with no models."""
    for table in config.models:
        if table.source and _is_stale(Path(table.path), table.source):
            for make in SOURCES:
                make(table.source, Path(table.path))
    pairs = [(source, table) for table in config.models for source in find_models([table.path])]
    models = name_models(
        [source for source, _ in pairs], [table.name for _, table in pairs], [table.sizes for _, table in pairs]
    )
    named = zip(models, (table for _, table in pairs), strict=True)
    forms = [form for model, table in named for form in _forms(model, table, config)]
    taken = Counter(model.name.lower() for model, _ in forms)
    for model, _ in forms:
        if taken[model.name.lower()] > 1:
            raise ConfigError(
                f"two models are called {model.name}", where="[[models]]",
                why="a list of sizes makes one of this name, and another has it", remedy="give that one another `name`",
            )  # fmt: skip
    return forms


def sizes_of(tables: Mapping[str, ModelConfig]) -> dict[str, str]:
    """By the names of models of one size, the open model that they are of."""
    return {sized: name for name, table in tables.items() for sized in table.sized(name)}


def _forms(model: NamedModel, table: ModelConfig, config: Config) -> Iterator[tuple[NamedModel, ModelConfig]]:
    """The model; and where a dimension has several sizes, one for each of them for providers that want it fixed."""
    yield model, table
    fixed = any(provider_named(name).fixed_shapes for run in config.runs for name in run.providers)
    for name, sizes in table.sized(model.name).items() if fixed or config.variants.contexts else ():
        sized = replace(model, name=name, dimensions=sizes, numbered=False)
        yield sized, msgspec.structs.replace(table, name=name, dimensions=sizes)


def _is_stale(path: Path, source: str) -> bool:
    """Whether the file is not there, or older than its source: a file, or the module of a function."""
    folder, _, function = source.rpartition("/")
    module = Path(folder, *function.partition(":")[0].split(".")).with_suffix(".py")
    made_of = module if is_function(source) else Path(source)
    return not path.exists() or (made_of.exists() and made_of.stat().st_mtime_ns > path.stat().st_mtime_ns)


def numbered(models: Sequence[tuple[NamedModel, ModelConfig]]) -> tuple[str, ...]:
    """What a reader must know of models that share a name."""
    return tuple(numbered_lines(model for model, _ in models))


@shared_children()
def prepare(
    config: Config, models: Sequence[tuple[NamedModel, ModelConfig]], folder: Path, work: Path, progress: Progress
) -> tuple[list[Prepared], list[PrecisionSet]]:
    """Convert, compute references and check; what fails for one model or artifact is in its `errors`.

    Raises the first error where every model failed and all for want of the same: a wrong command line, a full disk.
    """
    require_compiler(config.variants.contexts)
    orders = precision_orders(config, models)
    given = dict(zip((model.name for model, _ in models), models, strict=True))
    check_all_inputs([_subject(*given[order.model.name]) for order in orders if not order.transforms], work)
    sets = make_precisions(orders, auto_providers(config), work, cache_folder() / "passes", progress)
    changed = [group.base for group in sets if group.base.steps and not group.base.error]
    check_all_inputs(
        [_subject(original.model, given[original.model.name][1]) for original in changed], work / "changed"
    )
    with progress.stage("convert", sum(len(group.models) for group in sets)) as stage:
        # What provider-aware variants may count on: the lowest API level, OS version and release among the
        # targets. Nothing where the config wants none: rules of claims begin with a later release than
        # conversion.
        converted = convert_models(
            sets,
            lambda precision: tuple(wanted_variants(config.variants, precision)),
            output=folder / ARTIFACTS,
            cache=cache_folder() / "artifacts",
            release=oldest_release(config),
            platform=OptimizerPlatform.of_abi(_abi_of(*config.targets)),
            aware=AwareSpec(providers=provider_settings(config), reference=aware_source(config))
            if config.variants.aware
            else AwareSpec(),
            done=stage.done,
        )
    variants = config.variants
    sizes = sizes_of({model.name: table for model, table in models})
    converted = with_contexts(
        converted, sets, variants.contexts, folder / ARTIFACTS, progress, sizes=sizes, share=variants.share_weights
    )
    converted = with_shared_weights(converted, sizes, folder / ARTIFACTS, oldest_release(config), progress)
    errors = [model.error for model in converted if model.error]
    if errors and len(errors) == len(converted) and common_exit_code(errors) is not ExitCode.SOME_FAILED:
        raise errors[0]
    # what could not be converted is not tried a second time: it may have taken its whole time
    prepared = [
        _named(*pair, conversion, group) for pair, conversion, group in zip(models, converted, sets, strict=True)
    ]
    sources = {artifact.source for model in prepared for artifact in model.artifacts}
    sources |= {context.source for model in prepared for context in model.converted.contexts}
    usable = [
        replace(
            _subject(replace(form.model, name=form.name), given[form.model.name][1]), original=group.original_of(form)
        )
        for group in sets
        for form in group.models
        if form.name in sources
    ]
    references = make_references(usable, folder / REFERENCES, work, progress)
    _stop_at_config_errors(references)
    prepared = [_with_references(model, group, references) for model, group in zip(prepared, sets, strict=True)]
    compared = [
        (artifact, reference)
        for model in prepared
        for artifact in model.artifacts
        if (reference := model.references.get(artifact.source))
    ]
    checks = check_all(compared, folder / ARTIFACTS, config.check, progress)
    prepared, simulated = _simulated(prepared, folder, config, progress)
    checks |= simulated
    return [_with_checks(model, checks) for model in prepared], sets


def _simulated(
    prepared: list[Prepared], folder: Path, config: Config, progress: Progress
) -> tuple[list[Prepared], dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError]]:
    """The models with what the simulator computes of their contexts beside the references, and the checks of it, by
    model and variant name.
    """
    contexts = [context for model in prepared for context in model.converted.contexts]
    if not contexts:
        return prepared, {}
    from pipeline.convert.contexts import check_contexts

    references = {name: reference for model in prepared for name, reference in model.references.items()}
    checks: dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError] = {}
    where = folder / REFERENCES
    for context, compared, outputs in check_contexts(
        contexts, folder / ARTIFACTS, references, config.check, progress, where
    ):
        checks[context.model, context.variant.name] = compared
        reference = references[context.source]
        simulated = {**reference.simulated, context.variant.name: outputs}
        references[context.source] = msgspec.structs.replace(reference, simulated=simulated)
    return [replace(row, references={name: references[name] for name in row.references}) for row in prepared], checks


def _subject(model: NamedModel, table: ModelConfig) -> CheckedModel:
    stream = Stream(steps=table.stream_steps, states=table.state) if table.state else None
    return CheckedModel(model=model, data=dataset_of(table), labelled=labelled_data(table), stream=stream)


def _stop_at_config_errors(references: References) -> None:
    """Raise what is wrong with the config where it costs every model: no size is known for an open dimension."""
    errors = [outcome.error for outcome in references.values()]
    if errors and all(isinstance(error, ConfigError) for error in errors):
        raise next(error for error in errors if error)


def _named(model: NamedModel, table: ModelConfig, converted: Converted, group: PrecisionSet) -> Prepared:
    return Prepared(
        model=model,
        table=table,
        converted=converted,
        artifacts=tuple(msgspec.structs.replace(a, model=model.name) for a in converted.artifacts),
        verdicts=group.verdicts,
        searches=tuple(
            PrecisionSearch(model=model.name, precision=form.precision, search=form.search)
            for form in group.models
            if form.search
        ),
        errors=(converted.error,) if converted.error else (),
    )


def _with_references(prepared: Prepared, group: PrecisionSet, outcomes: References) -> Prepared:
    outcomes_by_form = {form.name: outcomes[form.name] for form in group.models if form.name in outcomes}
    values = {name: outcome.value for name, outcome in outcomes_by_form.items() if outcome.value}
    errors = [outcome.error for outcome in outcomes_by_form.values() if outcome.error]
    return replace(prepared, references=values, errors=(*prepared.errors, *errors))


def _with_checks(
    prepared: Prepared, checks: Mapping[tuple[str, str], tuple[OutputCheck, ...] | PipelineError]
) -> Prepared:
    results = {variant: result for (model, variant), result in checks.items() if model == prepared.name}
    errors = tuple(result for result in results.values() if isinstance(result, PipelineError))
    checked = {variant: result for variant, result in results.items() if not isinstance(result, PipelineError)}
    return replace(prepared, checks=checked, errors=(*prepared.errors, *errors))


NO_DATA = "there are no evaluation data: give `test_data`, or `evaluation` of the model in the config"


def with_accuracy(
    prepared: Sequence[Prepared], sets: Sequence[PrecisionSet], config: Config, folder: Path, progress: Progress
) -> list[Prepared]:
    """The same with the accuracy of every artifact in another precision than the model's own, beside the model's own.

    The others compute what the model does, as their check shows. Equal files are measured once; what could not be
    measured has the reason. Where this computer's processor would be at fault, the model in its precision is measured
    in place of the artifact: ONNX Runtime computes it exactly.
    """
    requests: dict[tuple[str, str], AccuracyRequest] = {}
    for model, group in zip(prepared, sets, strict=True):
        for artifact in model.artifacts:
            if artifact.variant.precision and model.sound(artifact) and part_of(model.table, Part.EVALUATION).test_data:
                request = _request(artifact, model.table, group, config, folder)
                requests.setdefault((model.name, artifact.sha256), request)
    if not requests:
        return [replace(model, accuracy=_of(model, {})) for model in prepared]
    outcomes = dict(zip(requests, measure_accuracy(list(requests.values()), progress), strict=True))
    return [replace(model, accuracy=_of(model, outcomes)) for model in prepared]


def _request(
    artifact: Artifact, table: ModelConfig, group: PrecisionSet, config: Config, folder: Path
) -> AccuracyRequest:
    file = folder / ARTIFACTS / artifact.file
    form = next(form for form in group.models if form.precision == artifact.variant.precision)
    return AccuracyRequest(
        model=form.model.source.path if saturates_here(file) else str(file),
        reference=group.base.model.source,
        data=part_of(table, Part.EVALUATION),
        dimensions=group.base.model.dimensions,
        session_options=artifact.session_options,
        accuracy=config.accuracy,
        calibration=calibration_data(config, table) if PRECISIONS[form.precision].needs_data else None,
    )


def _of(
    prepared: Prepared, outcomes: dict[tuple[str, str], TaskOutcome[AccuracyResult]]
) -> tuple[ArtifactAccuracy, ...]:
    """The accuracy of a model's artifacts in other precisions; those with wrong outputs are left out before."""
    rows = []
    for artifact in prepared.artifacts:
        if artifact.variant.precision and prepared.sound(artifact):
            outcome = outcomes.get((prepared.name, artifact.sha256))
            why = outcome.error.text if outcome and outcome.error else "" if outcome else NO_DATA
            # What was run may lie in a folder that is gone after the job, and no path of a computer goes into a bundle.
            result = msgspec.structs.replace(outcome.value, model=artifact.file) if outcome and outcome.value else None
            rows.append(ArtifactAccuracy(model=prepared.name, variant=artifact.variant.name, result=result, why=why))
    return tuple(rows)
