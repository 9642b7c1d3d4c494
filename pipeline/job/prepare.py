"""Before anything is measured: what targets mean for conversion; models found, converted, referenced and checked; what
is expected of each run, and runs with the profiler on beside that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts, core_count
from device_runner.files import cache_folder, scratch_folder
from device_runner.profile import measured_coverage, with_profile, with_profiler
from device_runner.providers import provider_named
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec, Stream
from pipeline.accuracy.evaluate import AccuracyRequest, measure_accuracy
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.accuracy.score import check_outputs
from pipeline.campaign.planned import ALL_FILES, PlannedRun, planned_id
from pipeline.campaign.record import Host, Prediction, RecordedRun, RefusedNodes, place
from pipeline.campaign.run_options import options_name, run_options
from pipeline.check.compare import OutputCheck, sound, worst_sqnr
from pipeline.check.many import CheckedModel, check_all, check_all_inputs, make_references
from pipeline.check.reference import saturates_here
from pipeline.check.result import Reference
from pipeline.compat.contexts import NpuContext
from pipeline.config import (
    AccuracyConfig,
    CheckConfig,
    Config,
    MeasureConfig,
    ModelConfig,
    Platform,
    Target,
    wanted_variants,
)
from pipeline.config.tables import is_function
from pipeline.convert.aware import choose_reference
from pipeline.convert.many import convert_models, require_compiler, with_contexts, with_shared_weights
from pipeline.convert.precisions import AutoProviders, Conversion, ModelInPrecision, cpu_of_abi, make_precisions
from pipeline.convert.request import AwareSpec, OptimizerPlatform
from pipeline.core.abis import abis_of_target, deciding_abi
from pipeline.core.errors import ConfigError, ExitCode, Finding, PipelineError, common_exit_code, warning
from pipeline.core.features import Place
from pipeline.core.files import ARTIFACTS, REFERENCES, make_folder, safe_name
from pipeline.core.progress import Progress
from pipeline.core.providers import WEBGPU, on_any_chip, rules_of_run
from pipeline.core.releases import line_of
from pipeline.core.variant import Artifact, Level, Style
from pipeline.core.workers import (
    Task,
    TaskOutcome,
    memory_budget,
    needed_bytes,
    run_tasks,
    shared_children,
    time_limit,
)
from pipeline.dataset import Dataset, Part, dataset_of, labelled_data, part_of
from pipeline.dataset.guess import output_names
from pipeline.job.sessions import app_sessions
from pipeline.model.sources import NamedModel, SourceModel, find_models, name_models
from pipeline.partition.answer import ModelAnswer, Settings, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.placement import Placement, placement_of
from pipeline.passes.precisions import AUTO, PRECISIONS, resolve_precisions
from pipeline.passes.registry import options_of
from pipeline.release.shipped import library_release
from pipeline.report.model import MeasuredRun
from pipeline.report.profiles import Profiled


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


def precision_orders(config: Config, models: Sequence[tuple[NamedModel, ModelConfig]]) -> list[Conversion]:
    """What is wanted of each model: precisions by their own names, and passes before everything else.

    ConfigError, with the place in the config, for a precision or pass that there is not and for wrong options.
    """
    level = lowest_api_level(config)
    general = resolve_precisions(config.variants.precisions, level, "[variants] precisions")
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    for number, table in enumerate(config.models):
        where = f"models[{number}]"
        names[table.precisions] = resolve_precisions(table.precisions, level, f"{where}.precisions") or general
        for at, step in enumerate(table.transforms):
            options_of(step, f"{where}.transforms[{at}]")
    return [
        Conversion(
            model=model,
            base=ModelInPrecision(model=model, steps=table.transforms),
            precisions=names[table.precisions],
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
    decides = config.accuracy.has_budget or table.labels or table.calibration or table.evaluation
    apart = part_of(table, Part.CALIBRATION)
    return apart if decides else msgspec.structs.replace(apart, least=LEAST_DIVIDED)


def auto_providers(config: Config) -> AutoProviders:
    """What `auto` chooses precisions for: the providers of the runs that targets have, the CPU by its processor."""
    precisions = [config.variants.precisions, *(model.precisions for model in config.models)]
    if not any(AUTO in names for names in precisions):
        return {}
    settings = {row.provider: row for row in provider_settings(config)}
    names: dict[str, None] = {}
    for target, run in product(config.targets, config.runs):
        for options in run_options(run):
            rules = rules_of_run(options.provider, options.provider_options)
            if options.provider == "cpu":
                names[cpu_of_abi(_abi_of(target))] = None
            elif rules and not rules.run.never_on(target.platform.value):
                names[rules.name] = None
    return {name: settings.get(name) for name in names}


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
    variants, measure = config.variants, config.measure
    fewer = msgspec.structs.replace(
        variants,
        levels=tuple(level for level in variants.levels if level in LEVELS) or variants.levels,
        styles=tuple(style for style in variants.styles if style in STYLES) or variants.styles,
    )
    return msgspec.structs.replace(config, variants=fewer, measure=shorter(measure))


def shorter(measure: MeasureConfig) -> MeasureConfig:
    """The same with fewer rounds of fewer inferences, for a first look."""
    return msgspec.structs.replace(
        measure,
        rounds=min(measure.timed_rounds, ROUNDS),
        min_seconds=min(measure.min_seconds, MIN_SECONDS),
        min_runs=min(measure.min_runs, MIN_RUNS),
        warmup=1 if isinstance(measure.warmup, str) else min(measure.warmup, 1),
    )


def left_out(config: Config, less: Config) -> str:
    """What the quick job with `less` does not do of a config, in one sentence for the terminal and the reports."""
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
class SecondTry:
    """The config with which some models are prepared again, and why."""

    config: Config
    why: str
    names: frozenset[str]


def with_none(config: Config, whole: Config, prepared: Sequence["Prepared"]) -> SecondTry | None:
    """A quick config with level none, where the levels of it leave a model nothing that is sound.

    Optimizers break some models, and level none is one of the `whole` config's that the quick one leaves out. Sizes of
    one model share their weights, and are prepared again together.
    """
    levels, none = config.variants.levels, Level.NONE
    tried = [row for row in prepared if not row.converted.error and (row.references or not row.artifacts)]
    broken = [row.name for row in tried if not any(map(row.sound, row.artifacts))]
    if not broken or none in levels or none not in whole.variants.levels:
        return None
    variants = msgspec.structs.replace(config.variants, levels=(none, *levels))
    named = ", ".join(level.value for level in levels)
    why = f"quick: level none was converted after all, since nothing of {', '.join(broken)} works at {named}"
    of_sizes = sizes_of({row.name: row.table for row in prepared})
    families = {of_sizes.get(name, name) for name in broken}
    return SecondTry(
        config=msgspec.structs.replace(config, variants=variants),
        why=why,
        names=frozenset(row.name for row in prepared if of_sizes.get(row.name, row.name) in families),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One model with what was made of it. Artifacts carry the model's short name; `checks` are by variant name.

    `references` are by the name of the model in each precision (`Artifact.source`), its own first.
    """

    model: NamedModel
    table: ModelConfig
    converted: Conversion
    artifacts: tuple[Artifact, ...] = ()
    references: dict[str, Reference] = field(default_factory=dict)
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
        return sound(self.checks.get(artifact.variant.name, ()))


SOURCES = Place[Callable[[str, Path], object]]("find.sources")
"""Who makes the ONNX file of a model's `source`."""


def find(config: Config) -> list[tuple[NamedModel, ModelConfig]]:
    """Every model of the config with its table, made of its source first; ConfigError for a path with no models.

    Where a dimension has several sizes there is one more for each of them, if providers want it fixed.
    """
    for table in config.models:
        if table.source:
            # The file is made where it is not there, or older than its source: a file, or the module of a function.
            path, (parent, _, function) = Path(table.path), table.source.rpartition("/")
            module = Path(parent, *function.partition(":")[0].split(".")).with_suffix(".py")
            made_of = module if is_function(table.source) else Path(table.source)
            if not path.exists() or (made_of.exists() and made_of.stat().st_mtime_ns > path.stat().st_mtime_ns):
                for make in SOURCES:
                    make(table.source, path)
    pairs = [(source, table) for table in config.models for source in find_models([table.path])]
    models = name_models(
        [source for source, _ in pairs], [table.name for _, table in pairs], [table.sizes for _, table in pairs]
    )
    fixed = any(provider_named(name).fixed_shapes for run in config.runs for name in run.providers)
    forms = []
    for plain, (_, table) in zip(models, pairs, strict=True):
        model = replace(plain, optional_inputs=table.optional_inputs)
        forms.append((model, table))
        for name, sizes in table.sized(model.name).items() if fixed or config.variants.contexts else ():
            sized = replace(model, name=name, dimensions=sizes, numbered=False)
            forms.append((sized, msgspec.structs.replace(table, name=name, dimensions=sizes)))
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


def _subject(model: NamedModel, table: ModelConfig) -> CheckedModel:
    stream = Stream(steps=table.stream_steps, states=table.state) if table.state else None
    return CheckedModel(model=model, data=dataset_of(table), labelled=labelled_data(table), stream=stream)


def check_named_outputs(accuracy: AccuracyConfig, models: Sequence[tuple[NamedModel, ModelConfig]], work: Path) -> None:
    """Raise ConfigError for an output of [accuracy] that no model has, before any work is done."""
    named = [name for name in (accuracy.output, *accuracy.outputs) if name is not None]
    if not named:
        return
    work.mkdir(parents=True)
    tasks = [
        Task(
            label=model.name, call=partial(output_names, model.source, str(work)),
            memory_bytes=needed_bytes(model.size_bytes),
        )
        for model, _ in models
    ]  # fmt: skip
    limit = time_limit(model.size_bytes for model, _ in models)
    outcomes = list(run_tasks(tasks, memory_bytes=memory_budget(), timeout_seconds=limit))
    if all(outcome.value for outcome in outcomes):  # what is wrong with a model is said when it is converted
        check_outputs(accuracy, [name for outcome in outcomes for name in outcome.value or ()])


@shared_children()
def prepare(
    config: Config, models: Sequence[tuple[NamedModel, ModelConfig]], folder: Path, work: Path, progress: Progress
) -> list[Prepared]:
    """Convert, compute references and check; what fails for one model or artifact is in its `errors`.

    Raises the first error where every model failed and all for want of the same: a wrong command line, a full disk.
    """
    variants, release = config.variants, oldest_release(config)
    require_compiler(variants.contexts)
    orders = precision_orders(config, models)
    tables = {model.name: table for model, table in models}
    check_named_outputs(config.accuracy, models, work / "outputs")
    check_all_inputs([_subject(row.model, tables[row.model.name]) for row in orders if not row.base.steps], work)
    sets = make_precisions(orders, auto_providers(config), work, cache_folder() / "passes", progress)
    changed = [row.base for row in sets if row.base.steps and not row.base.error]
    check_all_inputs([_subject(row.model, tables[row.model.name]) for row in changed], work / "changed")
    aware = AwareSpec()
    # What provider-aware variants may count on: the lowest API level, OS version and release among the targets. Nothing
    # where the config wants none: rules of claims begin with a later release than conversion. The session that saves
    # them is that of an Android target's own library before others of its release.
    if variants.aware:
        ships = [t.library for t in config.targets if t.platform is Platform.ANDROID and t.library]
        chosen = choose_reference(variants.reference.value, release, ships, abi=_abi_of(*config.targets))
        aware = msgspec.structs.replace(chosen, providers=provider_settings(config))
    with progress.stage("convert", sum(len(row.models) for row in sets)) as stage:
        converted = convert_models(
            sets,
            lambda precision: tuple(wanted_variants(variants, precision)),
            output=folder / ARTIFACTS,
            cache=cache_folder() / "artifacts",
            release=release,
            platform=OptimizerPlatform.of_abi(_abi_of(*config.targets)),
            aware=aware,
            done=stage.done,
        )
    sizes = sizes_of(tables)
    converted = with_contexts(
        converted, variants.contexts, folder / ARTIFACTS, progress, sizes=sizes, share=variants.share_weights
    )
    converted = with_shared_weights(converted, sizes, folder / ARTIFACTS, release, progress)
    failed = [row.error for row in converted if row.error]
    if failed and len(failed) == len(converted) and common_exit_code(failed) is not ExitCode.SOME_FAILED:
        raise failed[0]
    artifacts = [
        tuple(msgspec.structs.replace(artifact, model=model.name) for artifact in row.artifacts)
        for (model, _), row in zip(models, converted, strict=True)
    ]
    # what could not be converted is not tried a second time: it may have taken its whole time
    sources = {artifact.source for rows in artifacts for artifact in rows}
    sources |= {context.source for row in converted for context in row.contexts}
    usable = [
        replace(_subject(replace(form.model, name=form.name), tables[form.model.name]), original=row.original_of(form))
        for row in converted
        for form in row.models
        if form.name in sources
    ]
    outcomes = make_references(usable, folder / REFERENCES, work, progress)
    wrong = [outcome.error for outcome in outcomes.values()]
    if wrong and wrong[0] and all(isinstance(error, ConfigError) for error in wrong):
        raise wrong[0]  # it costs every model: no size is known for an open dimension
    references = {name: outcome.value for name, outcome in outcomes.items() if outcome.value}
    compared = [(row, references[row.source]) for rows in artifacts for row in rows if row.source in references]
    checks = check_all(compared, folder / ARTIFACTS, config.check, progress, partial(app_sessions, config.runs))
    if contexts := [context for row in converted for context in row.contexts]:
        checks |= _simulated(contexts, references, folder, config.check, progress)
    prepared = []
    for (model, table), row, named in zip(models, converted, artifacts, strict=True):
        names = [form.name for form in row.models if form.name in outcomes]
        results = {variant: result for (name, variant), result in checks.items() if name == model.name}
        errors = [row.error, *(outcomes[name].error for name in names)]
        errors += [result for result in results.values() if isinstance(result, PipelineError)]
        prepared.append(
            Prepared(
                model=model,
                table=table,
                converted=row,
                artifacts=named,
                references={name: references[name] for name in names if name in references},
                checks={name: result for name, result in results.items() if not isinstance(result, PipelineError)},
                errors=tuple(error for error in errors if error),
            )
        )
    return prepared


def _simulated(
    contexts: Sequence[NpuContext],
    references: dict[str, Reference],
    folder: Path,
    config: CheckConfig,
    progress: Progress,
) -> dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError]:
    """The checks of contexts by model and variant; what the simulator computes of them comes into the references."""
    from pipeline.convert.contexts import check_contexts

    checks: dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError] = {}
    for context, compared, outputs in check_contexts(
        contexts, folder / ARTIFACTS, references, config, progress, folder / REFERENCES
    ):
        checks[context.model, context.variant.name] = compared
        reference = references[context.source]
        simulated = {**reference.simulated, context.variant.name: outputs}
        references[context.source] = msgspec.structs.replace(reference, simulated=simulated)
    return checks


NO_DATA = "there are no evaluation data: give `test_data`, or `evaluation` of the model in the config"


def with_accuracy(prepared: Sequence[Prepared], config: Config, folder: Path, progress: Progress) -> list[Prepared]:
    """The same with the accuracy of every artifact in another precision than the model's own, beside the model's own.

    The others compute what the model does, as their check shows. Equal files are measured once in each of their
    sessions, of which the worst counts; what could not be measured has the reason, and those with wrong outputs are
    left out. Where this computer's processor would be at fault, the model in its precision is measured in place of the
    artifact: ONNX Runtime computes it exactly.
    """
    changed = [
        (model, artifact)
        for model in prepared
        for artifact in model.artifacts
        if artifact.variant.precision and model.sound(artifact)
    ]
    requests: dict[tuple[str, str, str], AccuracyRequest] = {}
    for model, artifact in changed:
        data = part_of(model.table, Part.EVALUATION)
        for session in app_sessions(config.runs, artifact) if data.test_data else ():
            key = model.name, artifact.sha256, session.text
            if key in requests:
                continue
            file, base = folder / ARTIFACTS / artifact.file, model.converted.base.model
            form = next(form for form in model.converted.models if form.precision == artifact.variant.precision)
            calibrated = PRECISIONS[form.precision].needs_data
            requests[key] = AccuracyRequest(
                model=form.model.source.path if saturates_here(file) else str(file),
                reference=base.source,
                data=data,
                dimensions=base.dimensions,
                session_options=artifact.session_options,
                app=session,
                accuracy=config.accuracy,
                calibration=calibration_data(config, model.table) if calibrated else None,
                states=model.table.state or None,
                steps=model.table.stream_steps,
            )
    measured = measure_accuracy(list(requests.values()), progress) if requests else []
    outcomes = dict(zip(requests, measured, strict=True))
    rows: dict[str, list[ArtifactAccuracy]] = {model.name: [] for model in prepared}
    for model, artifact in changed:
        outcome = _worst_of(
            outcomes[key]
            for session in app_sessions(config.runs, artifact)
            if (key := (model.name, artifact.sha256, session.text)) in outcomes
        )
        why = outcome.error.text if outcome and outcome.error else "" if outcome else NO_DATA
        # What was run may lie in a folder that is gone after the job, and no path of a computer goes into a bundle.
        result = msgspec.structs.replace(outcome.value, model=artifact.file) if outcome and outcome.value else None
        ratio = worst_sqnr(model.checks[artifact.variant.name])
        row = ArtifactAccuracy(
            model=model.name, variant=artifact.variant.name, result=result, why=why,
            sqnr_db=ratio if isinstance(ratio, float) else None,
        )  # fmt: skip
        rows[model.name].append(row)
    return [replace(model, accuracy=tuple(rows[model.name])) for model in prepared]


def _worst_of(outcomes: Iterable[TaskOutcome[AccuracyResult]]) -> TaskOutcome[AccuracyResult] | None:
    """Of one file's accuracy in several sessions the worst; None where it was not measured."""

    def gravity(outcome: TaskOutcome[AccuracyResult]) -> tuple[bool, bool, float]:
        result = outcome.value
        return result is None, bool(result and result.refused), (result.drop if result else None) or 0.0

    return max(outcomes, key=gravity, default=None)


def predict(
    planned_runs: Sequence[PlannedRun], facts: Mapping[str, DeviceFacts], release: str, folder: Path, progress: Progress
) -> tuple[dict[str, Prediction], tuple[Placement, ...]]:
    """What is expected of runs with providers whose rules are known, by their ids; equal questions are asked once.

    And of each model and provider the graph that it claims most of.
    """
    asked: dict[str, tuple[PartitionRequest, int, list[PlannedRun]]] = {}
    for planned in planned_runs:
        settings = settings_of(planned.options, facts[planned.device], release)
        if settings:
            request = PartitionRequest(source=SourceModel(path=str(folder / planned.file)), settings=settings)
            key = f"{planned.sha256} {settings}"
            asked.setdefault(key, (request, planned.size_bytes, []))[2].append(planned)
    predictions: dict[str, Prediction] = {}
    most_claimed: dict[tuple[str, str], Placement] = {}
    if not asked:
        return predictions, ()

    tasks = [
        Task(label=key, call=partial(judge, request), memory_bytes=needed_bytes(size))
        for key, (request, size, _) in asked.items()
    ]
    with progress.stage("predict", len(tasks)) as stage:
        limit = time_limit(size for _, size, _ in asked.values())
        for outcome in run_tasks(tasks, memory_bytes=memory_budget(), timeout_seconds=limit):
            runs, answer = asked[outcome.task.label][2], outcome.value
            prediction = summarized(answer) if answer else Prediction(error=str(outcome.error))
            predictions |= {planned_id(planned): prediction for planned in runs}
            if answer and answer.decisions:
                placement = placement_of(answer, model=runs[0].model, variant=runs[0].variant, device=runs[0].device)
                graph = placement.model, placement.provider
                # Most nodes by share, then fewest partitions, then the first by name: tasks end in any order
                most_claimed[graph] = min(
                    placement,
                    most_claimed.get(graph, placement),
                    key=lambda row: (-row.claimed / len(row.nodes), row.partitions, row.variant, row.device),
                )
            stage.done()
    return predictions, tuple(most_claimed[graph] for graph in sorted(most_claimed))


def settings_of(options: RunOptions, facts: DeviceFacts, release: str) -> Settings | None:
    """What a run's options mean to the rules; None where there are none: provider, release or processor unknown."""
    rules = rules_of_run(options.provider, options.provider_options)
    if rules is None:
        return None
    level = min(facts.api_level, 31) if facts.api_level >= 27 else None
    given = [f"{key}={value}" for key, value in options.provider_options.items()]
    try:
        return make_settings(
            rules.name,
            release=release,
            abi=facts.abis[0] if facts.abis else "",
            android=facts.platform == "android",
            api_level=level,
            coreml_options=given if rules.run.name == "coreml" else (),
            webgpu_options=given if rules.name == WEBGPU else (),
            plugin=facts.platform != "android",
            nnapi_flags=[flag.value for flag in options.flags],
            stop_ops=options.session_config.get("ep.nnapi.partitioning_stop_ops"),
        )
    except ConfigError:
        return None


def summarized(answer: ModelAnswer) -> Prediction:
    """The part of an answer that a report shows and a run is compared with."""
    load = answer.load
    refused: dict[tuple[str, str], list[str]] = {}
    for decision in answer.decisions:
        if not decision.claimed:
            refused.setdefault((decision.op_type, decision.reason or ""), []).append(decision.name)
    return Prediction(
        nodes=answer.nodes,
        claimed=answer.claimed,
        partitions=load.compiled if load else len(answer.partitions),
        estimate=bool(load and load.estimate),
        rules=answer.rules_release if answer.rules_release != answer.ort_release else "",
        error=answer.error or (load.error if load and not load.at_run else None),
        refused=tuple(
            RefusedNodes(operator=key[0], reason=key[1], nodes=tuple(names)) for key, names in refused.items()
        ),
    )


AFTER_LOAD = frozenset({"inputs", "first_run", "run", "outputs", "release", "done"})
"""The probe's stages after a session was created. A refused session has a `load_ns`, too: the time until it failed."""


def finding(prediction: Prediction | None, results: Sequence[RunResult]) -> str:
    """Where what was measured is not what was predicted, in words; "" where they agree or nothing can be compared."""
    if not prediction:
        return ""
    loaded = any(
        result.load_ns and (result.failure is None or result.failure.stage in AFTER_LOAD) for result in results
    )
    if prediction.error:
        return f"a failure was predicted, but the session was created: {prediction.error}" if loaded else ""
    measured = next((partitions for result in results if (partitions := measured_partitions(result)) is not None), None)
    if measured is None or measured == prediction.partitions:
        return ""
    sure = "estimated" if prediction.estimate else "predicted"
    return f"{measured} partitions were measured where {prediction.partitions} were {sure}"


def unexpected(measured: Iterable[MeasuredRun], profiles: Iterable[Profiled]) -> Iterator[Finding]:
    """Runs that were not as predicted; profile runs log most, and tell what others leave out."""
    for planned, runs in measured:
        prediction = next((run.prediction for run in runs if run.prediction is not None), None)
        if text := finding(prediction, [run.result for run in runs]):
            yield warning(text, planned.place)
    yield from (
        warning(profile.finding, place(profile.device, profile.name, profile.run))
        for profile in profiles
        if profile.finding
    )


def crowded_text(threads: int, cores: int) -> str:
    """That some threads wait for a core."""
    return f"{threads} threads on {cores} cores: more threads than cores"


def crowded(
    runs: Iterable[PlannedRun] | Iterable[RecordedRun], devices: Iterable[DeviceFacts], host: Host
) -> Iterator[Finding]:
    """Runs with more threads than the device has cores, once for each number."""
    cores = {facts.name: core_count(facts, host.cores) for facts in devices}
    for device, threads in dict.fromkeys((run.device, run.options.intra_op_threads) for run in runs):
        if 0 < cores.get(device, 0) < threads:
            told = f"{crowded_text(threads, cores[device])}, which stalls single inferences: see mean and p90"
            yield warning(told, device)


def measured_partitions(result: RunResult) -> int | None:
    """Partitions that the provider logged when it was asked last (NHWC providers are asked twice); None for no log."""
    coverage = measured_coverage(reversed(result.log))
    return coverage.partitions if coverage else None


def profiled(
    model: str, variant: str, options: RunOptions, result: RunResult, prediction: Prediction | None
) -> Profiled:
    """What one profile run says."""
    # Nodes as the provider saw the model, partitions as it was asked last. Providers that want NHWC are asked
    # again when Transposes were put in, which are no nodes of the model.
    first, last = measured_coverage(result.log), measured_coverage(reversed(result.log))
    return Profiled(
        name=variant if model == ALL_FILES else f"{model} / {variant}",
        model=model,
        variant=variant,
        run=options_name(options),
        provider=options.provider,
        device=result.device,
        file=result.profile_file or "",
        profile=result.profile,
        coverage=msgspec.structs.replace(first, partitions=last.partitions) if first and last else None,
        prediction=prediction,
        finding=finding(prediction, [result]),
        failure=result.failure.message if result.failure else "",
    )


def profile_run(device: Device, facts: DeviceFacts, name: str, spec: RunSpec, folder: Path) -> Profiled:
    """Run a spec once more with the profiler on; its trace lies in `folder`. Raises PipelineError for a bad folder."""
    trace = f"{safe_name(f'{name}-{options_name(spec.options)}')}.json.gz"
    make_folder(folder)
    with scratch_folder(".run.", folder) as work:
        result = device.run(with_profiler(spec, str(work)))
        result = with_profile(result, folder / trace)
    # What the rules of the library's release say of the file; nothing where they have no word for the provider.
    settings = settings_of(spec.options, facts, ".".join(result.ort_version.split(".")[:2]))
    request = settings and PartitionRequest(source=SourceModel(path=spec.model), settings=settings)
    return profiled(ALL_FILES, name, spec.options, result, summarized(judge(request)) if request else None)
