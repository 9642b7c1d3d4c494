"""Artifacts run on this computer's CPU and compared with the original; in worker processes, a crash costs one."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from device_runner import spec as run_spec
from pipeline import config as configs
from pipeline.check.compare import (
    OutputCheck,
    OutputPrecision,
    Tolerance,
    compare_outputs,
    read_tensor,
    with_first_step,
)
from pipeline.check.reference import excused, make_reference, run_steps
from pipeline.check.result import Reference
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import ConfigError, Finding, MissingError, PipelineError, Severity
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact, Style
from pipeline.dataset import Dataset
from pipeline.dataset import guess as data_guess
from pipeline.model import onnx_model
from pipeline.model import session as model_session
from pipeline.model import sources as model_sources
from pipeline.model import types as onnx_types
from pipeline.model.sources import SourceModel
from pipeline.passes import half as passes_half

GIVE_TENSORS = "export the model with tensors as outputs (skl2onnx: options={'zipmap': False})"


Result = TypeVar("Result")
Key = TypeVar("Key")

References = Mapping[str, workers.TaskOutcome[Reference]]
"""What computing the reference of each model gave, by the model's name."""


def tolerance_for(reference: Reference, config: configs.CheckConfig) -> Tolerance:
    """What may differ: as configured, or what the model's precision brings with it; and what the reference is worth."""
    tolerance = reference.tolerance(config.max_relative_error)
    return msgspec.structs.replace(tolerance, min_top1_agreement=config.min_top1_agreement)


def check_artifact(
    file: str,
    session_options: dict[str, str],
    reference: Reference,
    tolerance: Tolerance,
    *,
    asked: model_session.AppSession = model_session.DEFAULT,
    prepacked: bool = True,
) -> tuple[OutputCheck, ...]:
    """Run an artifact once on the reference's inputs, and check each output; ModelError when it does not load or run.

    The session is the app's: that which is `asked` for, with the entries that the file ships with. Without `prepacked`,
    where memory forbids it, files that compute otherwise then are not judged.

    Where the model has a stream, the outputs of its steps are checked as well. Sequences and maps are not compared:
    they are unknown. What this computer's processor computes less exactly than phones is not held against a file.
    """
    feeds = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    original = {tensor.name: read_tensor(tensor) for tensor in reference.original}
    settings = model_session.CpuSettings(
        role=model_session.Role.ARTIFACT,
        level=asked.level,
        config=session_options | asked.config,
        brief=True,
        prepacked=prepacked,
    )
    session = model_session.open_session(Path(file), settings)
    outputs = model_session.run_session(session, feeds, file, settings.role)
    checks = list(compare_outputs(expected, outputs, tolerance, original))
    no_tensors = [output.name for output in session.get_outputs() if output.name not in outputs]
    checks += [
        OutputCheck(
            output=name,
            passed=False,
            unknown=True,
            random_inputs=tolerance.random_inputs,
            constants=tolerance.constants,
            reason="it is a sequence, a map or nothing, and only tensors are compared",
            remedy=GIVE_TENSORS,
        )
        for name in no_tensors
    ]
    if streamed := reference.stream:
        try:
            outputs, _ = run_steps(session, feeds, streamed.stream)
        except ort_session.ort_errors() as error:
            raise model_session.failed(error, file, model_session.Role.ARTIFACT) from error
        steps = {tensor.name: read_tensor(tensor) for tensor in streamed.outputs}
        in_float = {tensor.name: read_tensor(tensor) for tensor in streamed.original}
        compared = compare_outputs(steps, outputs, tolerance, in_float)
        checks += [
            msgspec.structs.replace(check, output=f"{check.output} in {streamed.stream.steps} steps")
            for check in with_first_step(compared, steps, outputs, streamed.stream.tracked)
        ]
    checks = [msgspec.structs.replace(check, session=asked.text) for check in checks]
    if not prepacked:
        checks = _not_prepacked(checks, file)
    elif any(check.failed for check in checks) and (operator := model_session.in_fewer_bits(Path(file))):
        in_float = model_session.outputs_of(Path(file), feeds, replace(settings, prepacked=False))
        right = {check.output for check in compare_outputs(expected, in_float, tolerance) if check.passed}
        checks = [_told_why(check, operator) if check.failed and check.output in right else check for check in checks]
    return excused(checks, Path(file))


def _told_why(check: OutputCheck, operator: str) -> OutputCheck:
    """A failed check of a file that is right where its products are computed in float, with that cause."""
    why = (
        f"{operator} computes in 8 bits in apps, as its accuracy_level of {model_session.IN_BYTES} allows; in "
        "float it is right"
    )
    remedy = "make the file with accuracy_level 1 (an option of the pass weight-only, or of what quantized the model)"
    return msgspec.structs.replace(check, reason=f"{check.reason}: {why}", remedy=remedy)


def _not_prepacked(checks: Iterable[OutputCheck], file: str) -> list[OutputCheck]:
    """The checks with the session that judged; unknown where the app's would compute otherwise."""
    fewer = model_session.in_fewer_bits(Path(file))
    unknown = {
        "passed": False,
        "unknown": True,
        "remedy": "check it where more memory is free",
        "reason": f"memory is too short for an app's session, in which {fewer} computes in fewer bits",
    }
    return [
        msgspec.structs.replace(
            check,
            session=" ".join(filter(None, (check.session, model_session.WITHOUT_PREPACKING))),
            **(unknown if fewer and check.passed else {}),
        )
        for check in checks
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """A model that is to have a reference: what it is run on, and labelled samples for devices.

    `original` is the float model that it was made from, where it is in another precision, `stream` how one with state
    is run.
    """

    model: model_sources.NamedModel
    original: SourceModel | None = None
    data: Dataset = field(default_factory=Dataset)
    labelled: Dataset | None = None
    stream: run_spec.Stream | None = None


def check_all_inputs(subjects: Sequence[CheckedModel], work: Path) -> None:
    """Raise ConfigError for the first model whose sizes or data do not fit it, before any work is done on it.

    What is wrong with a model itself is no matter of this: it is reported when the model is converted.
    """
    tasks = []
    for subject in subjects:
        model = subject.model
        states = subject.stream.states if subject.stream else {}
        if subject.data.given or subject.data.sizes or model.dimensions or states:
            folder = work / "inputs" / model.name
            folder.mkdir(parents=True)
            call = partial(data_guess.check_inputs, model.source, model.dimensions, subject.data, str(folder), states)
            needed = workers.needed_bytes(2 * model.size_bytes) + subject.data.file_bytes
            tasks.append(workers.Task(label=model.source.name, call=call, memory_bytes=needed))
    limit = workers.time_limit(subject.model.size_bytes for subject in subjects)
    for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
        if isinstance(outcome.error, ConfigError | MissingError):
            raise outcome.error


def make_references(subjects: Sequence[CheckedModel], folder: Path, work: Path, progress: Progress) -> References:
    """The reference of each model by its name; raw tensors go to a folder of the model's name in `folder`."""
    names = {}
    for subject in subjects:
        model = subject.model
        scratch = work / "reference" / model.name
        scratch.mkdir(parents=True)
        room = model_session.room_for(model.size_bytes)
        call = partial(
            make_reference,
            model.source,
            model.dimensions,
            subject.data,
            str(folder / model.name),
            str(scratch),
            labelled=subject.labelled,
            original=subject.original,
            stream=subject.stream,
            prepacked=room.prepacked,
        )
        needed = room.memory_bytes + subject.data.file_bytes
        names[workers.Task(label=model.source.name, call=call, memory_bytes=needed)] = model.name
    return dict(_outcomes("reference", names, (subject.model.size_bytes for subject in subjects), progress))


def require_references(outcomes: References) -> dict[str, Reference]:
    """The references that were made; ConfigError, the first, where all lack what only the user can say.

    That costs every model: no size is known for an open dimension.
    """
    errors = [outcome.error for outcome in outcomes.values()]
    if errors and errors[0] and all(isinstance(error, ConfigError) for error in errors):
        raise errors[0]
    return {name: outcome.value for name, outcome in outcomes.items() if outcome.value}


def _outcomes(
    stage: str, tasks: Mapping[workers.Task[Result], Key], sizes_bytes: Iterable[int], progress: Progress
) -> Iterator[tuple[Key, workers.TaskOutcome[Result]]]:
    """What each task gives, beside what it stands for, as they end; `sizes_bytes` are those of the models."""
    limit = workers.time_limit(sizes_bytes)
    with progress.stage(stage, len(tasks)) as shown:
        for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            yield tasks[outcome.task], outcome
            shown.done()


def check_all(
    compared: Sequence[tuple[Artifact, Reference]],
    folder: Path,
    config: configs.CheckConfig,
    progress: Progress,
    sessions: Callable[[Artifact], Sequence[model_session.AppSession]] = lambda _artifact: (model_session.DEFAULT,),
) -> dict[tuple[str, str], tuple[OutputCheck, ...] | PipelineError]:
    """Run every artifact of a folder on this computer's CPU and compare it with its reference.

    It runs in each of its `sessions`, and the worst counts. The checks are by model and variant name, in the order
    given; an artifact that cannot be run has its error there.
    """
    tasks: dict[workers.Task[tuple[OutputCheck, ...]], tuple[Artifact, model_session.AppSession]] = {}
    for artifact, reference in compared:
        tolerance, file = tolerance_for(reference, config), str(folder / artifact.file)
        room, entries = model_session.room_for(artifact.total_bytes), artifact.session_options
        for session in sessions(artifact):
            call = partial(check_artifact, file, entries, reference, tolerance, asked=session, prepacked=room.prepacked)
            label = f"{artifact.model} {artifact.variant.name}"
            tasks[workers.Task(label=label, call=call, memory_bytes=room.memory_bytes)] = artifact, session
    done: dict[tuple[str, str], list[tuple[OutputCheck, ...] | PipelineError]] = {
        (artifact.model, artifact.variant.name): [] for artifact, _ in tasks.values()
    }
    for (artifact, session), outcome in _outcomes(
        "check", tasks, (artifact.size_bytes for artifact, _ in compared), progress
    ):
        error = _of_session(outcome.error, session) if outcome.error and session.text else outcome.error
        done[artifact.model, artifact.variant.name].append(error or outcome.value or ())
    return {key: _worst(results) for key, results in done.items()}


def _of_session(error: PipelineError, session: model_session.AppSession) -> PipelineError:
    """The error of an artifact in a session that [[runs]] ask for, with that session."""
    return type(error)(
        f"{error.what} in a session {session.text}",
        where=error.where,
        why=error.why,
        remedy=f"change what [[runs]] ask for, or the variants of it; where it is not that: {error.remedy}",
    )


def _worst(results: Sequence[tuple[OutputCheck, ...] | PipelineError]) -> tuple[OutputCheck, ...] | PipelineError:
    """The checks of an artifact in all its sessions as one for each output; the error, where one could not be run."""
    outputs: dict[str, OutputCheck] = {}
    for result in results:
        if isinstance(result, PipelineError):
            return result
        for check in result:
            outputs[check.output] = max(outputs.get(check.output, check), check, key=_gravity)
    return tuple(outputs.values())


def _gravity(check: OutputCheck) -> tuple[bool, bool, float, bool, str]:
    """Orders the checks of one output, the worst last; of equal ones the default session's, whichever ended first."""
    return check.failed, check.unknown, check.max_rel_error or 0.0, not check.session, check.session


def check_paths_inputs(paths: Sequence[str], dimensions: dict[str, int], data: Dataset, output: Path) -> None:
    """Raise ConfigError for data that do not fit one of the models under the paths."""
    sources = model_sources.find_models(paths)
    models = model_sources.name_models(sources, [None] * len(sources), [dimensions] * len(sources))
    with storage.scratch(output) as work:
        check_all_inputs([CheckedModel(model=model, data=data) for model in models], work)


def gpu_losses(
    compared: Sequence[tuple[Artifact, Reference]], folder: Path, progress: Progress
) -> dict[tuple[str, str], Finding]:
    """By model and variant name, what a GPU's sums do to ONNX files in half precision, where that is too much.

    Files in ORT format compute in float, behind Casts.
    """
    tasks = {
        workers.Task(
            label=f"{artifact.model} {artifact.variant.name}",
            call=partial(_gpu_loss, str(folder / artifact.file), reference),
            memory_bytes=workers.needed_bytes(6 * artifact.size_bytes),
        ): (artifact.model, artifact.variant.name)
        for artifact, reference in compared
        if reference.precision is OutputPrecision.FLOAT16 and artifact.variant.style is Style.ONNX
    }
    losses: dict[tuple[str, str], Finding] = {}
    if not tasks:
        return losses
    for key, outcome in _outcomes("half precision", tasks, (artifact.size_bytes for artifact, _ in compared), progress):
        loss = core_errors.finding_of(outcome.error, "", Severity.WARNING) if outcome.error else outcome.value
        if loss is not None:
            losses[key] = loss
    return losses


def _gpu_loss(file: str, reference: Reference) -> Finding | None:
    return passes_half.gpu_loss(
        onnx_model.load_model(SourceModel(path=file), Path(file).parent), reference, Path(file).name
    )


LARGEST_RUN_BYTES = 256 << 20
"""Models that are run to say what a GPU's half precision does to them; larger ones by `convert --check` alone."""


def gpu_loss_alone(
    loaded: onnx_model.LoadedModel, sizes: dict[str, int], data: Dataset, folder: Path
) -> Finding | None:
    """The same of one model that has no reference yet; None for a float one, and one that does not run here."""
    types = [tensor.data_type for tensor in loaded.proto.graph.initializer]
    if (
        types.count(onnx_types.FLOAT16) <= len(types) / 2
        or model_sources.source_bytes(loaded.source) > LARGEST_RUN_BYTES
    ):
        return None
    try:
        reference = make_reference(loaded.source, sizes, data, str(folder / "reference"), str(folder))
        return passes_half.gpu_loss(loaded, reference, loaded.source.name)
    except PipelineError:
        return None


def gpu_losses_of_files(files: Collection[Path], sizes: dict[str, int], data: Dataset) -> Iterator[Finding]:
    """The same of ONNX files, each in a process of its own."""
    tasks = [
        workers.Task(
            label=str(file),
            call=partial(_gpu_loss_of_file, str(file), sizes, data),
            memory_bytes=workers.needed_bytes(6 * file.stat().st_size),
        )
        for file in files
    ]
    limit = workers.time_limit(file.stat().st_size for file in files)
    for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
        if outcome.value:
            yield outcome.value


def _gpu_loss_of_file(file: str, sizes: dict[str, int], data: Dataset) -> Finding | None:
    with storage.scratch() as folder:
        return gpu_loss_alone(onnx_model.load_model(SourceModel(path=file), folder), sizes, data, folder)
