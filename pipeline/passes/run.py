"""Runs steps over a model file: with a cache by content, compared with the original, saved whole or not at all."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

from device_runner import untrusted_files
from device_runner.spec import ElementType
from pipeline import dataset as datasets
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check.compare import OutputCheck
from pipeline.config import tables as config_tables
from pipeline.core import custom_ops as core_custom_ops
from pipeline.core import files as storage
from pipeline.core import own_sources, workers
from pipeline.core import progress as core_progress
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.progress import Progress
from pipeline.dataset import Dataset, TensorInfo
from pipeline.dataset import guess as data_guess
from pipeline.dataset import states as stream_states
from pipeline.model import guards, onnx_model, signature
from pipeline.model import session as model_session
from pipeline.model import sources as model_sources
from pipeline.model.session import Array
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Effect, Feeds, MixedSearch, Model, PassContext, PassResult, StepChange
from pipeline.passes.mixed import search_of
from pipeline.passes.registry import find_pass, options_of, run_passes
from pipeline.passes.saving import DATA_SUFFIX, SavedModel, save_model, write_model
from pipeline.passes.surgery import ExternalOptions, expose

MOST_BATCHES = 64
"""Up to so many runs of the smaller model are compared with one of the larger."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """How far the outputs of a changed model are from the original's.

    `checks` has the outputs that both have, `data` says on what inputs; with `why` nothing was compared, for that
    reason. `judged` is false where a pass changes the numbers by design: then errors are shown and nothing fails.
    """

    checks: tuple[OutputCheck, ...] = ()
    data: str = ""
    why: str = ""
    judged: bool = True

    @property
    def failed(self) -> bool:
        """Whether an output was shown to be wrong."""
        return self.judged and any(check.failed for check in self.checks)


def verify(original: SourceModel, changed: Path, effects: Iterable[Effect], data: Dataset, work: Path) -> Verification:
    """Run both models on this computer's CPU without further optimizations and compare them by the rule of every check.

    Exact passes must give equal numbers. ModelError when the changed model does not load or run; ConfigError for data
    that are no input of the original.
    """
    import numpy as np

    storage.make_folder(work)
    before, after = onnx_model.load_model(original, work), onnx_model.load_model(SourceModel(path=str(changed)), work)
    kinds = set(effects)
    judged = Effect.LOSSY not in kinds
    try:
        before = _with_outputs_of(before, after, work)
        fixed, batch, times = _differing(signature.own_inputs(before.proto), signature.own_inputs(after.proto))
    except _IncomparableError as error:
        return Verification(why=str(error), judged=judged)
    try:
        reference = check_reference.make_reference(before.source, fixed, data, str(work / "reference"), str(work))
    except ConfigError:
        raise
    except PipelineError as error:
        return Verification(why=error.reason, judged=judged)
    # Another sample for each run of the original in one of the changed model: the values of what has a batch, moved on
    feeds = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.inputs}
    parts = [
        {
            name: np.roll(array.reshape(-1), number).reshape(array.shape) if name in batch else array
            for name, array in feeds.items()
        }
        for number in range(times)
    ]
    joined = {
        info.name: np.concatenate([part[info.name] for part in parts], batch[info.name])
        if info.name in batch
        else feeds[info.name]
        for info in signature.own_inputs(after.proto)
    }
    narrow = {info.name for info in signature.own_inputs(after.proto) if info.dtype is ElementType.FLOAT32}
    narrow = {name for name in narrow if joined[name].dtype.name != "float32"}
    joined |= {name: joined[name].astype("float32") for name in narrow}
    # A pass is judged, not what a session would fuse. What computes as it is defined must give equal numbers.
    exact = kinds <= {Effect.EXACT}
    settings = replace(model_session.ORIGINAL, role=model_session.Role.CHANGED, defined=exact)
    given = model_session.outputs_of(after, joined, settings, original.name)
    expected = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.outputs}
    if narrow and times == 1:  # on what float32 holds of the inputs, which alone the changed model gets
        feeds |= {name: joined[name].astype(feeds[name].dtype) for name in narrow}
        expected = model_session.run_session(model_session.open_session(before), feeds, before.source.name)
    if times > 1:  # the original's outputs for one part after the other, joined where the changed model's are longer
        session = model_session.open_session(before)
        runs = [model_session.run_session(session, part, before.source.name) for part in parts]
        for name, array in runs[0].items():
            longer = [axis for axis, (x, y) in enumerate(zip(array.shape, given[name].shape, strict=False)) if x != y]
            expected[name] = np.concatenate([run[name] for run in runs], longer[0]) if longer else array
    tolerance = reference.tolerance(0.0 if exact else None)
    both = {name: array for name, array in expected.items() if name in given}
    checks = tuple(output_compare.compare_outputs(both, given, tolerance))
    if times == 1 and any(check.failed for check in checks) and model_session.in_fewer_bits(Path(before.source.path)):
        checks = tuple(
            _of_original(
                checks,
                model_session.outputs_of(before, feeds, replace(settings, role=model_session.Role.ORIGINAL)),
                given,
            )
        )
    return Verification(checks=checks, data=reference.data.source, judged=judged)


def _of_original(
    checks: Iterable[OutputCheck], original: Mapping[str, Array], changed: Mapping[str, Array]
) -> Iterator[OutputCheck]:
    """The checks, unknown where the original in an app's session is as far from its definition: no step made that."""
    import numpy as np

    why = "the original is as far from its definition in apps, which compute in 8 bits as its accuracy_level allows"
    for check in checks:
        before, after = (np.asarray(arrays.get(check.output, [])) for arrays in (original, changed))
        same = before.shape == after.shape and np.allclose(before, after, rtol=0, atol=check.limit or 0.0)
        if check.failed and same:
            check = msgspec.structs.replace(check, unknown=True, reason=f"{check.reason}: {why}")
        yield check


class _IncomparableError(Exception):
    """Why two models cannot be run on the same inputs."""


def _with_outputs_of(
    original: onnx_model.LoadedModel, changed: onnx_model.LoadedModel, work: Path
) -> onnx_model.LoadedModel:
    """The original, with those inner values as outputs that the changed model gives."""
    outputs = {value.name for value in original.proto.graph.output}
    inner = {name for node in original.proto.graph.node for name in node.output if name}
    lacking = [value.name for value in changed.proto.graph.output if value.name not in outputs]
    if lost := [name for name in lacking if name not in inner]:
        raise _IncomparableError(f"the original has no value {lost[0]!r}")
    if not lacking:
        return original
    path = work / "exposed.onnx"
    write_model(expose(original, tuple(lacking)), path)
    return replace(onnx_model.load_model(SourceModel(path=str(path)), work), source=SourceModel(path=str(path)))


class _Differing(NamedTuple):
    """Where the inputs of a changed model differ: sizes for axes that were open, by `input[axis]`; the batch's axis by
    input, where the changed model takes more samples; and how many times as many.
    """

    fixed: dict[str, int]
    batch: dict[str, int]
    times: int


def _differing(takes: Sequence[TensorInfo], changed: Sequence[TensorInfo]) -> _Differing:
    """Compare the inputs of two models; _IncomparableError where one run of them says nothing of the other."""
    infos = {info.name: info for info in takes}
    fixed, batch, times = dict[str, int](), dict[str, int](), 1
    for after in changed:
        if (before := infos.get(after.name)) is None:
            raise _IncomparableError(f"the original has no input {after.name!r}")
        if before.shape is None or after.shape is None:
            continue
        widened = after.dtype is ElementType.FLOAT32 and before.dtype in WIDENED
        if len(before.shape) != len(after.shape) or not (before.dtype == after.dtype or widened):
            raise _IncomparableError(f"the input {after.name!r} has another type or rank")
        for axis, (old, new) in enumerate(zip(before.shape, after.shape, strict=True)):
            if not isinstance(new, int) or old == new:
                continue
            if not isinstance(old, int):
                fixed[f"{after.name}[{axis}]"] = new
            elif new % old or not old or new // old > MOST_BATCHES or times not in (1, new // old):
                raise _IncomparableError(f"{new} samples are not whole batches of the original, which takes {old}")
            else:
                batch[after.name], times = axis, new // old
    return _Differing(fixed, batch, times)


WIDENED = frozenset({ElementType.FLOAT64, ElementType.FLOAT16, ElementType.BOOL})
"""Types of inputs that a pass may make float32 (`surgery.float_io`)."""
LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnxslim", "onnx-ir", "sympy")
"""Packages whose versions do, where they are installed."""


class TransformReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a model: each step's change, the files, and how the outputs compare (None: not asked).

    `search` is that of the pass mixed-precision, where it is among the steps; `notes` are warnings about the result.
    """

    model: str
    steps: tuple[StepChange, ...]
    saved: SavedModel
    verification: Verification | None = None
    reused: bool = False
    search: MixedSearch | None = None
    notes: tuple[str, ...] = ()


class CachedPasses(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of steps that were run: entries/KEY.json beside objects/SHA256.onnx."""

    key: str
    sha256: str
    outside: tuple[str, ...] = ()
    steps: tuple[StepChange, ...] = ()
    notes: tuple[str, ...] = ()


def run_cached(
    model: Model, steps: Sequence[config_tables.Step], context: PassContext, cache: Path | None
) -> tuple[PassResult, bool]:
    """Run steps, or find what the same steps gave for the same content; whether it was found.

    The key covers the model's content, the steps, the calibration data where one of them uses it, our sources and the
    versions of the libraries. An object is used only when its digest is that of its entry. Raises as `run_passes`.
    """
    if cache is None:
        return run_passes(model, steps, context), False
    digests = onnx_model.range_digests(model.weights.values())
    content = onnx_model.content_digest(model, {name: digests[span] for name, span in model.weights.items()})
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    data = hashlib.sha256()
    uses_data = any(used.needs_data or used.measures for used in (find_pass(step.do) for step in steps))
    for sample in context.samples() if uses_data and context.samples else ():
        for name, array in sorted(sample.items()):
            data.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode() + array.tobytes())
    parts = (
        content,
        sorted(model.outside),
        steps,
        own_sources.sources_digest(__name__),
        versions,
        core_custom_ops.digests(),
        data.hexdigest(),
    )
    key = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
    entry = cache / "entries" / f"{key}.json"
    if (cached := _found(cache, entry, key, context)) is not None:
        return cached, True
    result = run_passes(model, steps, context)
    path = context.new_file(".onnx")
    save_model(replace(result.model, outside=frozenset()), path)
    if not path.with_name(path.name + DATA_SUFFIX).exists():  # over 2 GiB nothing is kept
        digest = storage.sha256_of(path)
        storage.copy_file(path, cache / "objects" / f"{digest}.onnx")
        outside = tuple(sorted(result.model.outside))
        kept = CachedPasses(key=key, sha256=digest, outside=outside, steps=result.changes, notes=result.notes)
        storage.write_bytes(entry, msgspec.json.encode(kept))
    return result, False


def _found(cache: Path, entry: Path, key: str, context: PassContext) -> PassResult | None:
    try:
        kept = untrusted_files.decode_json(untrusted_files.read_regular(entry), CachedPasses)
        path = cache / "objects" / f"{kept.sha256}.onnx"
        if kept.key != key or storage.sha256_of(path) != kept.sha256:
            return None
        model = onnx_model.load_model(SourceModel(path=str(path)), context.folder)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PipelineError):
        return None
    cached = replace(model, outside=frozenset(kept.outside))
    return PassResult(model=cached, changes=kept.steps, notes=kept.notes)


PASSES_FACTOR = 4.0
"""Peak memory of passes relative to the model's bytes: a quantizer has the whole model, its copy and the result."""


def passes_bytes(model_bytes: int, data: Dataset) -> int:
    """Peak memory of a worker that runs passes on a model of that size, one sample of the data at a time."""
    return workers.needed_bytes(model_bytes, PASSES_FACTOR) + data.file_bytes


def transform(
    source: SourceModel,
    steps: tuple[config_tables.Step, ...],
    folder: str,
    name: str,
    *,
    data: Dataset | None = None,
    check: bool = True,
    cache: str = "",
) -> TransformReport:
    """Run the steps on a model, save the result in `folder` under `name` and compare it with the original.

    `data` is what passes are calibrated with and both models are compared on. Scratch files go beside the result;
    `cache` is a folder or "". Errors as `load_model`, `run_passes`, `save_model` and `verify` raise them.
    """
    data = data or Dataset()
    work, target = Path(folder) / "work", Path(folder) / name
    storage.make_folder(work)
    loaded = onnx_model.load_model(source, work)
    guards.check_structure(loaded.proto, source.name)
    takes = signature.own_inputs(loaded.proto)
    states = data.states or stream_states.states_of(loaded.proto, takes)
    gives, names = [value.name for value in loaded.proto.graph.output], [info.name for info in takes]
    effects = [find_pass(step.do).effect for step in steps]
    if Effect.INTERFACE in effects:  # a step may make inputs and outputs of a state
        states = {output: name for output, name in states.items() if output in gives and name in names}
    signature.check_states(states, names, gives, source.name)

    def feeds() -> Iterator[Feeds]:
        for inputs in _along_stream(loaded, (sample.inputs for sample in datasets.samples(data, takes)), states):
            workers.still_at_work()  # how long all take is for the user to end; one that does not end is a hang
            yield inputs

    def usual() -> Feeds:
        return datasets.first_sample(data_guess.complete_data(loaded, {}, data), takes).inputs

    context = PassContext(
        folder=work, where=source.name, samples=feeds if data.given else None, say=workers.note, usual=usual
    )
    result, reused = run_cached(loaded, steps, context, Path(cache) if cache else None)
    if (shared := _shared(steps)) and (there := Path(folder).parent / shared).exists():
        target.with_name(shared).symlink_to(there.resolve())  # saving puts a file in its place
    saved = save_model(result.model, target, shared)
    verification = None
    if check:
        workers.still_at_work()
        verification = verify(source, target, effects, data, work / "check")
    return TransformReport(
        model=source.name,
        steps=result.changes,
        saved=saved,
        verification=verification,
        reused=reused,
        search=search_of(result.model.proto),
        notes=result.notes,
    )


def _along_stream(model: onnx_model.LoadedModel, steps: Iterable[Feeds], states: Mapping[str, str]) -> Iterator[Feeds]:
    """The steps with the states that the model gave in the one before, where the data leave them at 0.

    Ranges of states that are always 0 would be those of no state that the app has. A state that changes its size stays
    as the data have it.
    """
    session = model_session.open_session(onnx_model.prepare_model(model, {}), model_session.ASKED) if states else None
    carried = model_session.StreamStates(states)
    for step in steps:
        feeds = {**carried.feeds(step), **{name: step[name] for name in states.values() if step[name].any()}}
        yield feeds
        if session:
            carried.take(feeds, model_session.run_session(session, feeds, model.source.name))


def _shared(steps: Sequence[config_tables.Step]) -> str:
    """The file that weights go to beside those of other models; "" for one of the result's own."""
    options = (options_of(step) for step in reversed(steps))
    return next((step_options.file for step_options in options if isinstance(step_options, ExternalOptions)), "")


def transform_file(
    source: SourceModel,
    steps: Sequence[config_tables.Step],
    destination: Path,
    *,
    data: Dataset | None = None,
    check: bool = True,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> TransformReport:
    """`transform` in a process of its own, so that no model can crash this one; DESTINATION is replaced at the end.

    It stays as it is when the work fails, and when an output was shown to be wrong (`verification.failed`).
    ConfigError for a destination that is the model itself or a folder; errors as those of `transform`.
    """
    model = Path(source.path)
    if destination.exists() and not destination.is_file():
        raise ConfigError(
            "the result is a file",
            where=str(destination),
            why="a folder or a device has that name",
            remedy="name a file, as in out.onnx",
        )
    if destination.exists() and destination.samefile(model):
        raise ConfigError("the result would replace the model", where=str(destination), remedy="name another file")
    size, shared = model_sources.source_bytes(source), _shared(steps)
    there = destination.parent / shared
    if shared and (there.is_symlink() or (there.exists() and not there.is_file())):
        raise ConfigError("the file of the weights is a link or no file", where=str(there), remedy="name another one")
    if shared == destination.name:
        raise ConfigError("the result would replace its weights", where=str(there), remedy="name another file")
    before = there.stat().st_size if there.is_file() else 0
    with storage.scratch(destination.parent) as folder:
        data = data or Dataset()
        call = partial(
            transform,
            source,
            tuple(steps),
            str(folder),
            destination.name,
            data=data,
            check=check,
            cache=str(cache.resolve()) if cache else "",
        )
        with_data = any(find_pass(step.do).needs_data for step in steps)
        task = workers.Task(label=source.name, call=call, memory_bytes=passes_bytes(size, data))
        shown = progress if progress and with_data else core_progress.NoProgress()
        with shown.stage("passes", len(steps)) as stage:
            (outcome,) = workers.run_tasks(
                [task], timeout_seconds=workers.time_limit([size]), heard=lambda _, text: stage.at(text)
            )
            stage.done(len(steps))
        if outcome.value is None:
            raise outcome.error or ModelError("no answer", where=source.name)
        report = outcome.value
        data_file = destination.parent / report.saved.data_file
        if (there.stat().st_size if there.is_file() else 0) != before:
            raise ConfigError(
                "another command has written these weights meanwhile",
                where=str(there),
                remedy="run it again, one after the other",
            )
        if report.saved.data_file and data_file.exists() and not (destination.exists() or shared):
            raise ConfigError(
                "the file of the weights is there already",
                where=str(data_file),
                why="it may be another model's: there is no model of that name beside it",
                remedy="remove it, or name another result",
            )
        if not (report.verification and report.verification.failed):
            for name in (report.saved.data_file, report.saved.file):
                if name:
                    with storage.storage_errors(destination.parent / name):
                        (folder / name).replace(destination.parent / name)
    return report
