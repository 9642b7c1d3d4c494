"""One model to all its artifacts: load once, optimize each distinct way once, write each distinct file once."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import files as runner_files
from device_runner.errors import RunnerError, SpecError, UnavailableError
from pipeline.compat import defects as compat_defects
from pipeline.compat import release_table
from pipeline.compat import written as compat_written
from pipeline.convert import steps
from pipeline.convert.cache import Cache, cache_key, semantic_digest
from pipeline.convert.request import (
    AwareSpec,
    ConvertRequest,
    ConvertResult,
    FileNeeds,
    SessionSettings,
    VariantFailure,
    needs_of_file,
    refusal,
    run_time_options,
    session_settings,
)
from pipeline.core import files as storage
from pipeline.core import ort_session
from pipeline.core import releases as ort_releases
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError, DiskError, ModelError, PipelineError
from pipeline.core.releases import Release
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.dataset import guess as data_guess
from pipeline.model import guards, onnx_model, onnx_view, ort_format, ort_writer
from pipeline.model import types as onnx_types
from pipeline.model.onnx_model import LeanModel
from pipeline.partition import types as partition_types
from pipeline.passes import base as passes_base
from pipeline.passes import optimize
from pipeline.required_ops import value as required_ops_value

if TYPE_CHECKING:
    from pipeline.convert.aware import ShownModel

BASIC = SessionSettings(level=Level.BASIC)
BASIC_AGAIN = SessionSettings(level=Level.BASIC, keep_constants=True)


class Optimizer:
    """Gives the parts of the ORT format file for each optimization of one model."""

    def __init__(self, model: LeanModel, context: passes_base.PassContext) -> None:
        self.model = model
        self.context = context
        self.claims: dict[AwareSpec, ShownModel] = {}
        self.differences: dict[AwareSpec, tuple[str, ...]] = {}
        """What a library claims otherwise than our rules."""
        self.unrecorded: steps.OrtParts | None = None
        """A small model's basic graph, where it was asked for fusions to be recorded and there are none."""
        self._digests: dict[onnx_model.ByteRange, str] = {}
        hasher = ThreadPoolExecutor(1)
        self._first = hasher.submit(
            onnx_model.range_digests, set(model.weights.values())
        )  # while onnxruntime optimizes
        hasher.shutdown(wait=False)

    def parts(self, settings: SessionSettings) -> steps.OrtParts:
        """The optimized model, ready to be written. ModelError when onnxruntime refuses it."""
        if settings.aware:
            # The rules of providers are a third of all that this process would import.
            from pipeline.convert.aware import aware_parts

            return aware_parts(self, settings, settings.aware)
        if settings.level is Level.NONE:
            return self._plain
        if not self.model.weights:
            if settings == BASIC and self.unrecorded:
                return self.unrecorded
            return steps.OrtParts(skeleton=steps.save_ort(self._message, settings, {}, self.context))
        if settings.level is Level.BASIC:
            return self._basic_parts
        if settings.save_records:
            # The basic graph with the fusions that the session would make of it, which optimizes it once more at basic
            # level: where that changes it, or half precision Casts are about, the whole way from the model is taken.
            if not _has_half(self.model):
                again = msgspec.structs.replace(settings, keep_constants=True)
                parts = steps.to_parts(self.basic, again, self.context)
                if self._graph_digest(parts) == self._graph_digest(self._basic_parts):
                    return parts
            message, extra = (
                onnx_model.loadable(self.model).SerializeToString(),
                {ort_session.WEIGHTS_FOLDER: str(self.model.folder)},
            )
            return steps.OrtParts(skeleton=steps.save_ort(message, settings, extra, self.context))
        start = self._start
        again = msgspec.structs.replace(settings, keep_constants=start is not self.model)
        return steps.to_parts(steps.optimize(start, again, self.context), steps.PLAIN, self.context)

    def check(self) -> None:
        """ModelError for what would keep onnxruntime busy without end (see guards)."""
        guards.check_structure(self.model.proto, self.context.where)
        guards.refuse_context((node.op_type for node in self.model.proto.graph.node), self.context.where)
        computed = guards.computed_constants(self.model.proto.graph)
        if computed:
            typed = self._plain.read(inner_types=True).graph.node_args
            guards.check_constants(computed, lambda name: guards.stored_bytes(typed.get(name)), self.context.where)

    def digests(self, weights: Mapping[str, onnx_model.ByteRange]) -> dict[str, str]:
        """sha256 of the bytes of weights, by name; each range is read once, those of the model from the start on."""
        self._digests |= self._first.result()
        self._digests |= onnx_model.range_digests(set(weights.values()) - self._digests.keys())
        return {name: self._digests[span] for name, span in weights.items()}

    def known(self, parts: steps.OrtParts) -> dict[str, str]:
        """Digests of the weights behind a skeleton, by name."""
        return self.digests({tensor.name: span for tensor, span in parts.weights})

    @cached_property
    def _message(self) -> bytes:
        """A model without large weights, serialized once for all of its optimizations."""
        message: bytes = self.model.proto.SerializeToString()
        return message

    @cached_property
    def _plain(self) -> steps.OrtParts:
        if self.model.weights:
            return steps.to_parts(self.model, steps.PLAIN, self.context)
        return steps.OrtParts(skeleton=steps.save_ort(self._message, steps.PLAIN, {}, self.context))

    @cached_property
    def basic(self) -> LeanModel:
        """The model after level basic."""
        return steps.optimize(self.model, BASIC, self.context)

    @cached_property
    def _basic_parts(self) -> steps.OrtParts:
        return steps.to_parts(self.basic, steps.PLAIN, self.context)

    @cached_property
    def _start(self) -> LeanModel:
        """Where levels above basic begin: the model, or the basic result when that saves folding large weights again.

        Level extended is level basic and more. Beginning with a basic result is the same when a second basic
        optimization finds nothing to do, and when saving added nothing: for half precision types onnxruntime inserts
        Casts at the very end, which a second pass would take for the model's own.
        """
        return self.basic if steps.changes_large_weights(self.model) and self.is_settled else self.model

    @cached_property
    def is_settled(self) -> bool:
        """Whether the basic result can be begun with: optimizing it at level basic again changes nothing."""
        if _has_half(self.model):
            return False
        again = steps.to_parts(steps.optimize(self.basic, BASIC_AGAIN, self.context), steps.PLAIN, self.context)
        return self._graph_digest(again) == self._graph_digest(self._basic_parts)

    def _graph_digest(self, parts: steps.OrtParts) -> str:
        """The semantic digest without records."""
        model = parts.read()
        graph = msgspec.structs.replace(model.graph, runtime_optimizations=())
        bare: ort_format.OrtModel = msgspec.structs.replace(model, graph=graph)
        return semantic_digest(bare, parts.skeleton, self.known(parts))


def _has_half(model: LeanModel) -> bool:
    """Whether 16-bit floats occur among initializers, inputs, outputs or Casts."""
    graph = model.proto.graph
    types = {t.data_type for t in graph.initializer}
    types |= {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    casts = (a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to")
    return not types.isdisjoint((onnx_types.FLOAT16, onnx_types.BFLOAT16)) or any(
        to in {onnx_types.FLOAT16, onnx_types.BFLOAT16} for to in casts
    )


ONE_FILES_ERRORS = (ModelError, ConfigError, UnavailableError, SpecError)
"""What costs the variants of one file: onnxruntime's refusals, and a reference that cannot serve them.

A full disk is none of them: it costs all.
"""


def convert_here(request: ConvertRequest) -> ConvertResult:
    """What `request.convert_model` says, in this process."""
    work, where = Path(request.work_folder), request.source.name
    for folder in (work, Path(request.output_folder)):
        storage.make_folder(folder)
    clock = _Clock()
    with clock("load"):
        loaded = onnx_model.load_model(request.source, work / "source")
        model = _prepared(loaded, request)
    if model.weights:
        steps.return_freed_memory()
    optimizer = Optimizer(model, passes_base.PassContext(folder=work, where=model.source.name))
    with clock("check"):
        try:
            optimizer.check()
        except ModelError as error:
            raise data_guess.blame_optimization(loaded, request.fixed_dimensions, error) from error
    maker = _Maker(request, optimizer, clock)

    variants = tuple(dict.fromkeys(request.variants))
    failures: dict[Variant, VariantFailure] = {}
    by_settings: dict[SessionSettings, list[Variant]] = {}
    for variant in variants:
        if reason := refusal(variant, maker.target, maker.installed):
            why, remedy = reason
            failures[variant] = VariantFailure(
                variant=variant, what=f"{variant.name} is left out", where=where, why=why, remedy=remedy, skipped=True
            )
        else:
            settings = session_settings(variant, request.platform, request.aware_spec(variant, maker.target))
            reader = str(maker.target) if maker.target < maker.installed else ""
            settings = msgspec.structs.replace(settings, reader=reader)
            by_settings.setdefault(settings, []).append(variant)

    files: dict[Variant, core_variant.ConvertedFile] = {}
    causes: dict[tuple[str, str], RunnerError] = {}
    with ThreadPoolExecutor(1) as disk:  # it works while the next file is made
        # Those that record first: where there is nothing to record, that file is the one of level basic, too.
        for settings, alike in sorted(by_settings.items(), key=lambda pair: not pair[0].save_records):
            try:
                file, path = maker.make(settings)
            except DiskError:
                raise
            except ONE_FILES_ERRORS as error:
                key = (error.what, error.why)
                if key not in causes:
                    causes[key] = data_guess.blame_optimization(loaded, request.fixed_dimensions, error)
                what, why, remedy = causes[key].what, causes[key].why, causes[key].remedy
                failures |= {
                    variant: VariantFailure(variant=variant, what=what, where=where, why=why, remedy=remedy)
                    for variant in alike
                }
                continue
            for variant in alike:
                if (
                    file.unreplayable
                    and variant.style is Style.RUNTIME
                    and maker.target < compat_defects.REPLAY_NEEDS_KEY_SINCE
                ):
                    # Before 1.30 a release replays what was recorded, and fails where it cannot
                    failures[variant] = VariantFailure(
                        variant=variant,
                        what="ONNX Runtime cannot replay the fusions that it recorded",
                        where=where,
                        why=f"it saves {', '.join(file.unreplayable)} without the values that these fusions give, and "
                        "fails to open the file then",
                        remedy="use style fixed for this model, or a target of release 1.30 or later",
                        skipped=True,
                    )
                else:
                    files[variant] = file
                    maker.place(path, variant, disk)
        with clock("write"):
            maker.wait_for_disk()
    operators = model.operators
    left = tuple(name for name in onnx_model.optional_inputs(loaded.proto) if name not in request.optional_inputs)
    dropped = (onnx_model.constants_note(left),) if left else ()
    return ConvertResult(
        model=where,
        content_digest=maker.content,
        artifacts=tuple(
            Artifact(
                **{**msgspec.structs.asdict(files[variant]), "notes": (*files[variant].notes, *dropped)},
                constant_inputs=left,
                model=where,
                variant=variant,
                file=maker.file_name(variant),
                source_operators=operators,
                session_options=run_time_options(variant, maker.target, files[variant]),
            )
            for variant in variants
            if variant in files
        ),
        failures=tuple(failures[variant] for variant in variants if variant in failures),
        dynamic=model.dynamic,
        reused=maker.reused,
        needs={
            maker.file_name(variant): maker.needs[file.sha256]
            for variant, file in files.items()
            if file.sha256 in maker.needs
        },
        timings_ns=clock.spent_ns,
    )


def _prepared(loaded: onnx_model.LoadedModel, request: ConvertRequest) -> onnx_model.LoadedModel:
    """The model as it is asked for, with opsets that the release takes before ONNX Runtime puts versions into nodes."""
    model = onnx_model.prepare_model(loaded, request.fixed_dimensions, request.optional_inputs)
    if not request.release:
        return model
    return replace(model, proto=compat_written.with_opsets_for(model.proto, ort_releases.line_of(request.release)))


def for_release(parts: steps.OrtParts, release: Release) -> steps.OrtParts:
    """The parts as the release reads them, where that loses nothing: opsets, and attributes at their default."""
    table = release_table.release_table()

    def unknown(node: ort_format.OrtNode) -> frozenset[str]:
        values = {name: attribute.value for name, attribute in node.attributes.items()}
        return table.unknown_attributes(node.domain, node.op_type, node.since_version, values, release)

    model = ort_format.parse_ort(parts.skeleton, "the file that onnxruntime wrote", inner_types=False)
    operators = {(node.domain, node.op_type) for graph in model.graph.walk() for node in graph.nodes}
    lower = table.lower_opsets(model.opset_import, operators, release)
    skeleton = ort_writer.with_opsets(ort_writer.without_attributes(parts.skeleton, unknown), lower)
    return replace(parts, skeleton=skeleton)


class _Clock:
    """Adds up the time of each stage."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spent_ns[stage] = self.spent_ns.get(stage, 0) + time.perf_counter_ns() - start


class _Maker:
    """Makes the file of each optimization, from the cache where it can; equal files are one file."""

    def __init__(self, request: ConvertRequest, optimizer: Optimizer, clock: _Clock) -> None:
        import onnxruntime

        self.request = request
        self.optimizer = optimizer
        self.clock = clock
        self.reused = 0
        self.wheel: str = onnxruntime.__version__
        self.installed = ort_releases.line_of(self.wheel)
        self.target = ort_releases.line_of(request.release) if request.release else self.installed
        self.cache = Cache(Path(request.cache_folder)) if request.cache_folder else None
        self.written: dict[str, tuple[core_variant.ConvertedFile, Path]] = {}
        self.unstorable: dict[str, str] = {}
        """By files in ORT format that were made, the constant that no release loads; "" where there is none."""
        self.placing: list[tuple[Path, Future[Path]]] = []
        self.on_disk: dict[Path, Path] = {}
        """By files that were made, the copy of each for the output folder."""
        self.needs: dict[str, FileNeeds] = {}
        self.tensors: dict[str, tuple[bytes, bytes]] = {}
        """The last bytes of each constant with their digest: most are the same in every file."""

    @cached_property
    def content(self) -> str:
        """The digest of all that is converted. Without a cache nobody needs it before the end."""
        model = self.optimizer.model
        with self.clock("digest"):
            return onnx_model.content_digest(model, self.optimizer.digests(model.weights))

    def make(self, settings: SessionSettings) -> tuple[core_variant.ConvertedFile, Path]:
        """The file of an optimization, somewhere on this disk. ModelError when onnxruntime refuses the model."""
        aware = settings.aware
        # A library is known by its digest; a build of onnxruntime in this Python is not.
        repeatable = aware is None or aware.way is not core_variant.Way.INSTALLED
        cache = self.cache if repeatable else None
        key = cache_key(self.content, settings, self.wheel) if cache else ""
        with self.clock("cache"):
            kept = cache.find(key) if cache else None
        if kept:
            self.reused += 1
            return self._with_needs(*kept)
        if settings.onnx and settings.level is not Level.NONE and _has_half(self.optimizer.model):
            raise ModelError(
                "an optimized ONNX file of half precision would compute in float",
                why="onnxruntime optimizes for this computer's CPU, which gets Casts around what it has no kernel for",
                remedy="use none-onnx: the device's own session optimizes the file for its provider",
            )
        with self.clock("optimize"):
            parts = self.optimizer.parts(msgspec.structs.replace(settings, onnx=False, reader=""))
            parts = for_release(parts, self.target) if settings.reader else parts
        file, path = self._write(parts, recorded=settings.save_records)
        stuck = self.unstorable.get(file.sha256)
        if stuck and not (settings.onnx and settings.level is Level.NONE):
            made = settings.level not in (Level.NONE, Level.BASIC) and not settings.save_records
            raise ModelError(
                guards.UNSTORED,
                where=self.optimizer.context.where,
                why=f"{stuck}, which no ORT file can have",
                remedy="use 8 bits, or ship the model itself: --format onnx --level none" if made else guards.PACKED,
            )
        if settings.onnx:
            file, path = self._as_onnx(file, parts, settings.level)
        # Why a library gave up, or there is no compiler, is not for ever: such files are made again.
        by = file.aware_by
        as_asked = aware is None or (
            by is not None and (aware.way is not core_variant.Way.LIBRARY or by.way is core_variant.Way.LIBRARY)
        )
        if cache and as_asked:
            with self.clock("cache"), suppress(PipelineError):  # a cache that is full or read-only costs time only
                file, path = self._with_needs(*cache.keep(key, file, path))
        return file, path

    def _with_needs(self, file: core_variant.ConvertedFile, path: Path) -> tuple[core_variant.ConvertedFile, Path]:
        """A file of the cache, after what it needs was read where that is asked for."""
        if self.request.preflight and file.sha256 not in self.needs:
            with suppress(ModelError):
                self.needs[file.sha256] = needs_of_file(
                    ort_format.read_artifact(path), compat_defects.weight_reader(path)
                )
        return file, path

    def _write(self, parts: steps.OrtParts, *, recorded: bool) -> tuple[core_variant.ConvertedFile, Path]:
        with self.clock("digest"):
            weight_digests = self.optimizer.known(parts)
        plan = ort_writer.FilePlan(parts.skeleton, parts.weights)
        identity = plan.identity(weight_digests)
        if identity not in self.written:
            path = self.optimizer.context.new_file(".ort")
            with self.clock("write"), storage.storage_errors(path):
                digest = plan.write(path, "" if parts.weights else identity)
            with self.clock("digest"):
                model = parts.read(inner_types=self.request.preflight)
                if recorded and not self.optimizer.model.weights and not required_ops_value.replays(model):
                    self.optimizer.unrecorded = parts
                self.unstorable[digest] = guards.unstorable(model.graph)
                file = core_variant.ConvertedFile(
                    size_bytes=path.stat().st_size,
                    sha256=digest,
                    semantic_digest=semantic_digest(model, parts.skeleton, weight_digests, self.tensors),
                    operators=dict(sorted(Counter(node.operator for node in model.graph.nodes).items())),
                    unreplayable=compat_defects.unreplayable(
                        (record.action, bool(record.produced_ops)) for record in model.graph.runtime_optimizations
                    ),
                    unmappable=guards.unmappable(model.graph),
                )
                if self.request.preflight:
                    with suppress(ModelError):  # who wants the operator config then learns it from the file
                        self.needs[file.sha256] = needs_of_file(model, parts.int8_weights)
            self.written[identity] = (file, path)
        file, path = self.written[identity]
        notes = (*parts.notes, *optimize.for_processors(file.operators))
        return msgspec.structs.replace(file, claimed=dict(parts.claimed), notes=notes, aware_by=parts.aware_by), path

    def _as_onnx(
        self, file: core_variant.ConvertedFile, parts: steps.OrtParts, level: Level
    ) -> tuple[core_variant.ConvertedFile, Path]:
        """The same graph as an ONNX file with its weights in it; its notes say which other tools load it.

        What was checked of the ORT format file holds for it. At level none it is the model itself: a session would put
        Casts for this computer's CPU into it.
        """
        path = self.optimizer.context.new_file(".onnx")
        before = self.optimizer.model
        model = before if level is Level.NONE else steps.as_onnx(parts, before, self.optimizer.context)
        model = replace(model, proto=partition_types.with_types(model.proto))
        compat_written.written_for(model.proto, self.target)
        model.proto.graph.name = before.proto.graph.name or "main"  # the ORT format has no place for these
        model.proto.model_version = before.proto.model_version
        with self.clock("write"):
            steps.write_whole(model, path)
        with self.clock("digest"):
            digest = runner_files.sha256(path)
        if file.sha256 in self.needs:
            needs = self.needs[file.sha256]
            read = onnx_view.model_of(
                onnx_view.whole_of(model.proto) if model.proto.functions else model.proto, str(path)
            )
            asked = release_table.release_table().file_demands(read)
            facts = msgspec.structs.replace(
                needs.facts,
                format_version=onnx_view.ONNX_FORMAT,
                defects=compat_defects.marks_of(read),
                small=(),
                demands=asked.demands,
                unjudged=asked.unjudged,
            )
            self.needs[digest] = msgspec.structs.replace(needs, facts=facts)
        notes = tuple(dict.fromkeys((*file.notes, *optimize.loads_where(model.proto))))
        return msgspec.structs.replace(file, sha256=digest, size_bytes=path.stat().st_size, notes=notes), path

    def wait_for_disk(self) -> None:
        """Return when all files are in their places and on the disk; DiskError when it is full or read-only.

        They get their names at the end: onnxruntime that crashes on a later variant leaves no file of the model.
        """
        ready = [(target, placing.result()) for target, placing in self.placing]
        for target, temporary in ready:
            with storage.storage_errors(target):
                temporary.replace(target)
                temporary.unlink(missing_ok=True)  # renaming a file to another name of itself leaves both

    def place(self, path: Path, variant: Variant, disk: Executor) -> None:
        """Begin to bring a file on the disk for its name in the output folder, on the one thread of `disk`."""
        target = Path(self.request.output_folder) / self.file_name(variant)
        self.placing.append((target, disk.submit(self._place, path)))

    def _place(self, path: Path) -> Path:
        """Equal files of an output folder are one file; the cache's is another, which nobody changes by an edit."""
        temporary = self.optimizer.context.new_file(".part")
        if path in self.on_disk:
            storage.share_file(self.on_disk[path], temporary)
        elif self.cache:
            storage.copy_file(path, temporary)
        else:
            storage.share_file(path, temporary)
            with storage.storage_errors(temporary):
                runner_files.sync(temporary)
        self.on_disk.setdefault(path, temporary)
        return temporary

    def file_name(self, variant: Variant) -> str:
        """The name of a variant's file in the output folder."""
        return f"{self.request.stem}.{variant.name}{variant.style.suffix}"
