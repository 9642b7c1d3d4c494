"""One model to all its artifacts: load once, optimize each distinct way once, write each distinct file once."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import msgspec

from device_runner.errors import RunnerError, SpecError, UnavailableError
from pipeline.compat.defects import REPLAY_NEEDS_KEY_SINCE, unreplayable
from pipeline.convert.aware import is_repeatable
from pipeline.convert.cache import Cache, CachedResult, cache_key, semantic_digest
from pipeline.convert.optimizer import Optimizer
from pipeline.convert.request import (
    ConvertRequest,
    ConvertResult,
    SessionSettings,
    VariantFailure,
    refusal,
    run_time_options,
    session_settings,
)
from pipeline.convert.steps import ConvertContext, OrtParts, return_freed_memory
from pipeline.core.errors import ConfigError, DiskFullError, ModelError, PipelineError
from pipeline.core.files import copy_file, make_folder, share_file, storage_errors, sync_file
from pipeline.core.releases import Release, line_of
from pipeline.core.variant import Artifact, Style, Variant
from pipeline.dataset.guess import blame_optimization
from pipeline.model.onnx_model import LoadedModel, content_digest, load_model, prepare_model
from pipeline.model.ort_writer import FilePlan, plan_file, write_file

ONE_FILES_ERRORS = (ModelError, ConfigError, UnavailableError, SpecError)
"""What costs the variants of one file: onnxruntime's refusals, and a reference that cannot serve them.

A full disk is none of them: it costs all.
"""


def convert_model(request: ConvertRequest) -> ConvertResult:
    """Convert one model to the variants of the request; what fails for one variant costs no other.

    ModelError (ConfigError for a dimension that the model lacks) when the model itself cannot be used, DiskFullError
    when the disk is full. Runs in a process of its own where models are not trusted: onnxruntime can crash on them.
    """
    work = Path(request.work_folder)
    for folder in (work, Path(request.output_folder)):
        make_folder(folder)
    clock = _Clock()
    with clock("load"):
        loaded = load_model(request.source, work / "source")
        model = prepare_model(loaded, request.fixed_dimensions)
    if model.weights:
        return_freed_memory()
    optimizer = Optimizer(model, ConvertContext(folder=work, where=model.source.name))
    maker = _Maker(request, optimizer, clock)
    with clock("check"):
        try:
            optimizer.check()
        except ModelError as error:
            raise blame_optimization(loaded, request.fixed_dimensions, error) from error
    refused, wanted = _plan(request, maker.target, maker.installed)
    made, failures = _make_all(maker, wanted)
    failures = _blamed(failures, loaded, request)
    failures += refused
    made.sort(key=lambda one: request.variants.index(one[0]))
    failures.sort(key=lambda failure: request.variants.index(failure.variant))
    return ConvertResult(
        model=request.source.name,
        content_digest=maker.content,
        artifacts=tuple(maker.artifact(*one, dict(model.operators)) for one in made),
        failures=tuple(failures),
        dynamic=model.dynamic,
        reused=maker.reused,
        timings_ns=clock.spent_ns,
    )


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


def _plan(
    request: ConvertRequest, target: Release, installed: Release
) -> tuple[list[VariantFailure], dict[SessionSettings, list[Variant]]]:
    """Variants that the releases forbid, and the others by the optimization that makes them, lowest level first."""
    refused = []
    wanted: dict[SessionSettings, list[Variant]] = {}
    for variant in sorted(set(request.variants), key=request.variants.index):
        reason = refusal(variant, target, installed)
        if reason:
            what, where = f"{variant.name} is left out", request.source.name
            refused.append(
                VariantFailure(
                    variant=variant, what=what, where=where, why=reason.why, remedy=reason.remedy, skipped=True
                )
            )
        else:
            settings = session_settings(variant, request.platform, request.wish(variant, target))
            wanted.setdefault(settings, []).append(variant)
    return refused, wanted


def _make_all(
    maker: "_Maker", wanted: Mapping[SessionSettings, list[Variant]]
) -> tuple[list[tuple[Variant, CachedResult]], list[VariantFailure]]:
    """Make every file, and only then wait until all are in their places: the disk works while the next one is made."""
    made: list[tuple[Variant, CachedResult]] = []
    failures: list[VariantFailure] = []
    with ThreadPoolExecutor(1) as disk:
        for settings, variants in wanted.items():
            try:
                file, path = maker.make(settings)
                loadable = [variant for variant in variants if maker.can_load(variant, file, failures)]
                maker.place(path, loadable, disk)
                made += [(variant, file) for variant in loadable]
            except DiskFullError:
                raise
            except ONE_FILES_ERRORS as error:
                failures += [_failure(variant, error, maker.request.source.name) for variant in variants]
        with maker.clock("write"):
            maker.wait_for_disk()
    return made, failures


def _blamed(failures: list[VariantFailure], loaded: LoadedModel, request: ConvertRequest) -> list[VariantFailure]:
    """The failures of variants, with the dimensions as their cause where the optimizer succeeds without them."""
    causes: dict[tuple[str, str], RunnerError] = {}
    found = []
    for failure in failures:
        key = (failure.what, failure.why)
        if key not in causes and not failure.skipped:
            error = ModelError(failure.what, where=failure.where, why=failure.why, remedy=failure.remedy)
            causes[key] = blame_optimization(loaded, request.fixed_dimensions, error)
        cause = causes.get(key)
        found.append(_failure(failure.variant, cause, failure.where) if cause and not failure.skipped else failure)
    return found


def _failure(variant: Variant, error: RunnerError, where: str) -> VariantFailure:
    return VariantFailure(variant=variant, what=error.what, where=where, why=error.why, remedy=error.remedy)


class _Maker:
    """Makes the file of each optimization, from the cache where it can; equal files are one file."""

    def __init__(self, request: ConvertRequest, optimizer: Optimizer, clock: _Clock) -> None:
        import onnxruntime

        self.request = request
        self.optimizer = optimizer
        self.clock = clock
        self.reused = 0
        self.wheel: str = onnxruntime.__version__
        self.installed = line_of(self.wheel)
        self.target = line_of(request.release) if request.release else self.installed
        self.cache = Cache(Path(request.cache_folder)) if request.cache_folder else None
        self.written: dict[str, tuple[CachedResult, Path]] = {}
        self.placing: list[tuple[Path, Future[Path]]] = []
        self.placed: dict[Path, Path] = {}

    @cached_property
    def content(self) -> str:
        """The digest of all that is converted. Without a cache nobody needs it before the end."""
        model = self.optimizer.model
        with self.clock("digest"):
            return content_digest(model, self.optimizer.digests(model.weights))

    def make(self, settings: SessionSettings) -> tuple[CachedResult, Path]:
        """The file of an optimization, somewhere on this disk. ModelError when onnxruntime refuses the model."""
        cache = self.cache if is_repeatable(settings.aware) else None
        key = cache_key(self.content, settings, self.wheel) if cache else ""
        with self.clock("cache"):
            found = cache.find(key) if cache else None
        if found:
            self.reused += 1
            return found
        with self.clock("optimize"):
            parts = self.optimizer.parts(settings)
        made, path = self._write(parts)
        if cache and is_repeatable(settings.aware, made.aware_by):
            with self.clock("cache"), suppress(PipelineError):  # a cache that is full or read-only costs time only
                cache.keep(key, made, path)
        return made, path

    def _write(self, parts: OrtParts) -> tuple[CachedResult, Path]:
        with self.clock("digest"):
            known = self.optimizer.known(parts)
        plan = plan_file(parts.skeleton, parts.weights)
        identity = _identity(plan, known)
        if identity not in self.written:
            path = self.optimizer.shop.new_file(".ort")
            with self.clock("write"), storage_errors(path):
                file = write_file(plan, path)
            with self.clock("digest"):
                model = parts.read()
                made = CachedResult(
                    size_bytes=file.size_bytes,
                    sha256=file.sha256,
                    semantic_digest=semantic_digest(model, parts.skeleton, known),
                    operators=dict(sorted(Counter(node.operator for node in model.graph.nodes).items())),
                    unreplayable=unreplayable(
                        (record.action, bool(record.produced_ops)) for record in model.graph.runtime_optimizations
                    ),
                )
            self.written[identity] = (made, path)
        made, path = self.written[identity]
        return msgspec.structs.replace(
            made, claimed=dict(parts.claimed), notes=parts.notes, aware_by=parts.aware_by
        ), path

    def can_load(self, variant: Variant, made: CachedResult, failures: list[VariantFailure]) -> bool:
        """Whether the target can load the file: before 1.30 it replays what was recorded, and fails where it cannot."""
        broken = made.unreplayable and variant.style is Style.RUNTIME and self.target < REPLAY_NEEDS_KEY_SINCE
        if broken:
            failures.append(
                VariantFailure(
                    variant=variant,
                    what="ONNX Runtime cannot replay the fusions that it recorded",
                    where=self.request.source.name,
                    why=f"it writes {', '.join(made.unreplayable)} without what they produce, and fails to load that",
                    remedy="use style fixed for this model, or a target of release 1.30 or later",
                    skipped=True,
                )
            )
        return not broken

    def wait_for_disk(self) -> None:
        """Return when all files are in their places and on the disk; DiskFullError when it is full.

        They get their names at the end: onnxruntime that crashes on a later variant leaves no file of the model.
        """
        ready = [(target, placing.result()) for target, placing in self.placing]
        for target, temporary in ready:
            with storage_errors(target):
                temporary.replace(target)
                temporary.unlink(missing_ok=True)  # renaming a file to another name of itself leaves both

    def place(self, path: Path, variants: Sequence[Variant], disk: Executor) -> None:
        """Begin to bring a file on the disk for its names in the output folder, on the one thread of `disk`."""
        folder = Path(self.request.output_folder)
        self.placing += [(folder / self._file_name(variant), disk.submit(self._place, path)) for variant in variants]

    def _place(self, path: Path) -> Path:
        """Equal files of an output folder are one file; the cache's is another, which nobody changes by an edit."""
        temporary = self.optimizer.shop.new_file(".part")
        if self.cache and path not in self.placed:
            copy_file(path, temporary)
        else:
            share_file(self.placed.get(path, path), temporary)
            with storage_errors(temporary):
                sync_file(temporary)
        self.placed.setdefault(path, temporary)
        return temporary

    def _file_name(self, variant: Variant) -> str:
        return f"{self.request.stem}.{variant.name}.ort"

    def artifact(self, variant: Variant, made: CachedResult, source_operators: dict[str, int]) -> Artifact:
        """What was made for a variant, by its name."""
        return Artifact(
            model=self.request.source.name,
            variant=variant,
            file=self._file_name(variant),
            size_bytes=made.size_bytes,
            sha256=made.sha256,
            semantic_digest=made.semantic_digest,
            operators=made.operators,
            source_operators=source_operators,
            session_options=run_time_options(variant, self.target, replayable=not made.unreplayable),
            unreplayable=made.unreplayable,
            claimed=made.claimed,
            notes=made.notes,
            aware_by=made.aware_by,
        )


def _identity(plan: FilePlan, known: dict[str, str]) -> str:
    """Equal for plans that would write the same bytes."""
    digest = hashlib.sha256(plan.head)
    digest.update(plan.body)
    for start, weight in plan.blobs:
        digest.update(f"{start} {known[weight.name]} ".encode())
    return digest.hexdigest()
