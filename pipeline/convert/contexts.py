"""Contexts: models compiled ahead for the NPU of a chip, each in a process of its own, and run in the simulator."""

import contextlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from device_runner import device as runner_device
from device_runner import plugins, safe_text, untrusted_files
from device_runner import providers as runner_providers
from device_runner.spec import RunOptions, RunSpec, TensorFile
from pipeline import config as configs
from pipeline.check import compare as output_compare
from pipeline.check import many as check_many
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.convert.precisions import ModelInPrecision
from pipeline.convert.request import VariantFailure
from pipeline.core import files as storage
from pipeline.core import providers as provider_rules
from pipeline.core import variant as core_variant
from pipeline.core import workers
from pipeline.core.errors import MissingError, ModelError, PipelineError
from pipeline.core.progress import Progress
from pipeline.core.variant import Variant
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, signature
from pipeline.model import sources as model_sources
from pipeline.partition import answer as claim_answer
from pipeline.partition import claiming as partition_claiming
from pipeline.partition import judge, kept, provider_claims
from pipeline.partition import subject as partition_subject
from pipeline.passes import precisions as passes_precisions

if TYPE_CHECKING:
    from onnx import ModelProto

COMPILER_FACTOR = 4.0
"""Peak memory of a context relative to the model's bytes (ResNet-50: 481 MB for 102 MB)."""

NPU = runner_providers.provider_named(provider_rules.QNN)
"""The provider of the chips that contexts are for."""

QUANTIZE = "quantize every operator of the model (--precision qnn, or `precisions` in the config)"


class ContextSession(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiler's process wrote of each model, and of a kept one the digests of its files by their names."""

    subgraphs: tuple[tuple[tuple[str, int], ...], ...] = ()
    error: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0
    files: dict[str, str] = {}


def make_context(
    models: Sequence[model_sources.NamedModel], variant: Variant, output_folder: str, work_folder: str
) -> tuple[npu_contexts.NpuContext, ...]:
    """Compile a model for the chip of `variant`, or several with one binary, so that these share their weights.

    ModelError with the reason where the chip's NPU cannot have one. The files go to `output_folder`; `work_folder` is a
    scratch folder on the same file system.
    """
    kept.compiler_name()
    work, output, chip = Path(work_folder), Path(output_folder), runner_providers.CHIPS[variant.chip]
    folder = work / "compiled"
    for directory in (folder, output):
        storage.make_folder(directory)
    loaded = {
        f"{named_model.name}.{variant.name}.onnx": _for_chip(named_model, chip, work / f"source-{named_model.name}")
        for named_model in models
    }
    session = _compiled(loaded, chip, folder)
    contexts = []
    for (name, model), parts in zip(loaded.items(), session.subgraphs, strict=True):
        shared = tuple(other for other in loaded if other != name)
        _make_portable(folder / name, model.proto.ir_version, shared)
        binary, partitions = read_context(folder / name)
        properties = {entry.key: entry.value for entry in _wrapper(folder / name).metadata_props}
        compatibility = properties.get(npu_contexts.COMPATIBILITY_KEY, "")
        npu_contexts.built_for(
            compatibility, str(folder / name)
        )  # ModelError where the provider wrote nothing of chip and runtime
        context = npu_contexts.NpuContext(
            model=model.source.name,
            variant=variant,
            file=name,
            size_bytes=(folder / name).stat().st_size,
            sha256=storage.sha256_of(folder / name),
            binary=binary.name,
            binary_bytes=binary.stat().st_size,
            binary_sha256=storage.sha256_of(binary),
            compatibility=compatibility,
            plugin=version("onnxruntime-qnn"),
            onnxruntime=version("onnxruntime"),
            npu_nodes=sum(count for provider, count in parts if provider == NPU.ort_name),
            partitions=partitions,
            cpu_nodes=sum(count for provider, count in parts if provider != NPU.ort_name),
            seconds=session.seconds,
            memory_bytes=session.memory_bytes,
            shared=shared,
        )
        contexts.append(context)
    for name in (*{context.binary for context in contexts}, *loaded):  # files that name another appear last
        with storage.storage_errors(output / name):
            (folder / name).replace(output / name)
    return tuple(contexts)


def _for_chip(
    named_model: model_sources.NamedModel, chip: runner_providers.Chip, folder: Path
) -> onnx_model.LoadedModel:
    """A model with its sizes; ModelError where phones with the chip would refuse it."""
    model = onnx_model.prepare_model(onnx_model.load_model(named_model.source, folder), named_model.dimensions)
    refuse_impossible(model, chip)
    if not chip.floats:
        # Some floats its compiler takes, though phones with this chip have none
        request = judge.PartitionRequest(
            source=named_model.source,
            settings=_settings(chip),
            optimize=claim_answer.Optimize.BASIC,
            sizes=named_model.dimensions,
        )
        answer = judge.judge(request)
        if answer.load and answer.load.code == "float":
            raise ModelError(
                f"phones with {chip.title} would refuse it",
                where=named_model.source.name,
                why=answer.load.error or "",
                remedy=QUANTIZE,
            )
    return model


def refuse_impossible(model: onnx_model.LoadedModel, chip: runner_providers.Chip) -> None:
    """ModelError for what no session can be made of, before the compiler is asked: it crashes on some."""
    graph = model.proto.graph
    where = model.source.name
    guards.refuse_context((node.op_type for node in graph.node), where)
    if model.dynamic:
        raise ModelError(
            "an NPU takes fixed sizes only",
            where=where,
            why=f"open: {', '.join(model.dynamic)}",
            remedy="give them sizes (--dimension NAME=N, or `dimensions` of the model in the config)",
        )
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes |= {value.name: tuple(size for size in value.shape or ()) for value in signature.own_inputs(model.proto)}
    if empty := next((name for name, shape in shapes.items() if 0 in shape), None):
        raise ModelError(
            "an NPU takes no tensor without elements",
            where=where,
            why=f"'{empty}' has a dimension of size 0, on which the compiler crashes",
            remedy="leave the tensor out of the model, or give it another size",
        )
    if not chip.floats and not any(node.op_type == "DequantizeLinear" for node in graph.node):
        raise ModelError(
            f"the NPU of {chip.title} computes no floats",
            where=where,
            why=f"{chip.name} takes quantized models only, and this one is not quantized",
            remedy=QUANTIZE,
        )


def _compiled(
    models: Mapping[str, onnx_model.LoadedModel], chip: runner_providers.Chip, folder: Path
) -> ContextSession:
    """What the compiler's process did for models by the names of their contexts, or did before; files go to the folder.

    Of contexts that share a binary nothing is kept.
    """
    contents = folder.with_name("models")
    storage.make_folder(contents)
    for name, model in models.items():
        partition_subject.write_model(replace(model, outside=frozenset()), contents / name, external=False)
    name, *others = models
    if others:
        return _compile(models, chip, contents, folder)
    depends = (storage.sha256_of(contents / name), _program_digest(chip), name)
    entry = kept.entry_of(".context.json", chip, *depends)
    if (session := kept.kept(entry, ContextSession)) and _taken(session, entry, folder):
        return session
    session = _compile(models, chip, contents, folder)
    files = {path.name: storage.sha256_of(path) for path in sorted(folder.iterdir())}
    with contextlib.suppress(PipelineError):  # it is there all the same
        for file in files:
            storage.copy_file(folder / file, _kept_file(entry, file))
        kept.keep(entry, msgspec.structs.replace(session, files=files))
    return session


def _settings(chip: runner_providers.Chip) -> claim_answer.Settings:
    return claim_answer.Settings(provider=provider_rules.QNN, chip=chip.name)


def _compiler(chip: runner_providers.Chip) -> provider_claims.ChipCompiler:
    return partition_claiming.compiler_of(_settings(chip))


def _program_digest(chip: runner_providers.Chip) -> str:
    """Of the program that compiles: what it wrote before it was changed is not taken."""
    program = importlib.util.find_spec(_compiler(chip).session)
    return storage.sha256_of(Path(program.origin)) if program and program.origin else ""


def _kept_file(entry: Path, name: str) -> Path:
    return entry.with_suffix("").with_suffix(Path(name).suffix)


def _taken(session: ContextSession, entry: Path, folder: Path) -> bool:
    """Whether the kept files of a context could be put into a folder, as they were."""
    try:
        if any(storage.sha256_of(_kept_file(entry, name)) != digest for name, digest in session.files.items()):
            return False
        for name in session.files:
            storage.copy_file(_kept_file(entry, name), folder / name)
    except (OSError, PipelineError):
        return False
    return bool(session.files)


def _compile(
    models: Mapping[str, onnx_model.LoadedModel], chip: runner_providers.Chip, contents: Path, folder: Path
) -> ContextSession:
    answer = folder.parent / "answer.json"
    options = [f"{key}={value}" for key, value in chip.options.items()]
    command = [sys.executable, "-m", _compiler(chip).session, "contexts"]
    files = [str(path.absolute()) for path in (contents, folder)]
    where = " and ".join(model.source.name for model in models.values())
    limit = workers.time_limit(path.stat().st_size for path in contents.iterdir())
    try:
        done = subprocess.run(
            [*command, *files, "/".join(models), str(answer.absolute()), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            "Qualcomm's compiler does not end",
            where=where,
            why=f"{limit:.0f} s, compiling for {chip.name}",
            remedy="try again on an idle machine, or compile a part of the model",
        ) from error
    if done.returncode < 0:
        raise ModelError(
            "Qualcomm's compiler crashed",
            where=where,
            why=f"signal {-done.returncode}, compiling for {chip.name}",
            remedy=f"`ort-mobile partition MODEL --ep qnn --chip {chip.name}` names what it takes; see docs/npu.md",
        )
    try:
        session = untrusted_files.decode_json(untrusted_files.read_regular(answer), ContextSession)
    except (OSError, msgspec.MsgspecError) as error:
        last = (done.stderr.strip().splitlines() or [str(error)])[-1]
        raise MissingError(
            "Qualcomm's compiler does not work here", why=last, remedy="install the pair again"
        ) from error
    if session.error:
        cause = _compiler(chip).meaning(session.error)
        why, remedy = cause.what, cause.remedy
        if not chip.floats and cause.code in ("layout", "build"):
            why, remedy = f"a node computes floats, and the NPU of {chip.title} has none", QUANTIZE
        raise ModelError(f"no session is made for {chip.name} ({chip.title})", where=where, why=why, remedy=remedy)
    if not all(any(provider == NPU.ort_name for provider, _ in parts) for parts in session.subgraphs):
        raise ModelError(
            f"the NPU of {chip.title} takes nothing of this model",
            where=where,
            why="every node would run on the CPU",
            remedy=f"`ort-mobile partition MODEL --ep qnn --chip {chip.name} --advise` says why, and what helps",
        )
    return session


def _make_portable(path: Path, ir_version: int, shared: Sequence[str]) -> None:
    """Give a context's ONNX file the IR version of the model, and no opset that none of its nodes needs.

    It names the contexts with which it shares its binary.

    ONNX Runtime writes its own newest ones, which the release in an app may not read: 1.32 writes IR 14, and 1.29 reads
    13 at most.
    """
    wrapper = _wrapper(path)
    wrapper.ir_version = ir_version
    domains = {node.domain for body in onnx_edit.subgraphs(wrapper.graph) for node in body.node} | {""}
    onnx_edit.keep_only(wrapper.opset_import, lambda opset: opset.domain in domains)
    if shared:
        wrapper.metadata_props.add(key=plugins.SHARED_KEY, value="/".join(shared))
    storage.write_bytes(path, wrapper.SerializeToString(deterministic=True))


def _wrapper(path: Path) -> "ModelProto":
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(untrusted_files.read_regular(path))
    except DecodeError as error:
        raise ModelError("this is no context", where=str(path), why="it is no ONNX file", remedy=AGAIN) from error
    return model


AGAIN = "make it again: `ort-mobile convert MODEL --context CHIP`"


def read_context(path: Path) -> tuple[Path, int]:
    """The binary of a context's ONNX file, which lies beside it, and how many partitions it has.

    ModelError for what is no context of this provider, or whose binary is elsewhere.
    """
    nodes = [node for node in _wrapper(path).graph.node if node.op_type == "EPContext"]
    attributes = [{attribute.name: attribute for attribute in node.attribute} for node in nodes]
    sources = {
        node_attributes["source"].s.decode("utf-8", "replace")
        for node_attributes in attributes
        if "source" in node_attributes
    }
    if not nodes or sources - {NPU.ort_name, "QNN"}:
        why = f"it is of {', '.join(sorted(sources))}" if sources else "it has no EPContext node"
        raise ModelError("this is no context for Snapdragon's NPU", where=str(path), why=why, remedy=AGAIN)
    names = {
        node_attributes["ep_cache_context"].s.decode("utf-8", "replace")
        for node_attributes in attributes
        if "ep_cache_context" in node_attributes
        and not ("embed_mode" in node_attributes and node_attributes["embed_mode"].i)
    }
    named = ", ".join(sorted(names)) or "no file"
    if len(names) != 1 or re.search(r"[/\\\0]", named) or not (path.parent / named).is_file():
        raise ModelError(
            "the binary of this context is not beside it",
            where=str(path),
            why=f"its ONNX file names {safe_text.visible(named)}",
            remedy="keep both files in one folder, under the names that they were made with",
        )
    return path.parent / named, len(nodes)


def make_contexts(
    groups: Sequence[Sequence[ModelInPrecision]],
    chips: Sequence[str],
    output: Path,
    progress: Progress,
    *,
    sizes: Mapping[str, str],
    share: bool,
) -> list[tuple[tuple[npu_contexts.NpuContext, ...], tuple[VariantFailure, ...]]]:
    """Compile models in each of their precisions for each chip, in worker processes. For each model its contexts, and
    why there is none.

    `sizes` has, by the names of models of one size, the open model that they are of, which gets no context; with
    `share` they have one binary for each precision and chip.

    A form that a chip cannot have is skipped where another one serves the chip.
    """
    groups = [[form for form in forms if form.model.name not in sizes.values()] for forms in groups]
    pairs = [
        (form, core_variant.context_variant(chip, form.precision))
        for forms in groups
        for form in forms
        for chip in chips
    ]
    failures: dict[tuple[str, Variant], PipelineError | None] = {}
    jobs: dict[object, tuple[Variant, list[ModelInPrecision]]] = {}
    for form, variant in pairs:
        # Why a precision was not made, or is not for NPUs
        reason = passes_precisions.unsuited(variant.precision, provider_rules.QNN)
        refusal = form.error or (ModelError(reason, remedy="use qnn or qnn16") if reason else None)
        failures[form.name, variant] = refusal
        if refusal is None:
            name = sizes.get(form.model.name) if share else None
            jobs.setdefault((form.name if name is None else name, variant), (variant, []))[1].append(form)
    contexts: dict[tuple[str, Variant], npu_contexts.NpuContext] = {}
    with storage.scratch(output) as work, progress.stage("compile", len(jobs)) as stage:
        tasks = {_task(forms, variant, output, work): (variant, forms) for variant, forms in jobs.values()}
        start = max((_compiler(runner_providers.CHIPS[chip]).seconds for chip in chips), default=0.0)
        limit = start + workers.time_limit(form.model.size_bytes for forms in groups for form in forms)
        for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            variant, forms = tasks[outcome.task]
            if isinstance(outcome.error, MissingError):
                raise outcome.error
            for number, form in enumerate(forms):
                if outcome.value:
                    contexts[form.name, variant] = outcome.value[number]
                else:
                    failures[form.name, variant] = _failure(form, forms, outcome.error or ModelError("no answer"))
            stage.done()
    return [_of_model(forms, chips, contexts, failures) for forms in groups]


def _failure(form: ModelInPrecision, forms: Sequence[ModelInPrecision], error: PipelineError) -> PipelineError:
    """The error of a form, which names the form at fault where it is another one that would share the binary."""
    if error.where not in {other.model.source.name for other in forms} - {form.model.source.name}:
        return error
    return ModelError(f"{error.where}, with which it shares its binary: {error.reason}", remedy=error.remedy)


def _of_model(
    forms: Sequence[ModelInPrecision],
    chips: Sequence[str],
    contexts: Mapping[tuple[str, Variant], npu_contexts.NpuContext],
    failures: Mapping[tuple[str, Variant], PipelineError | None],
) -> tuple[tuple[npu_contexts.NpuContext, ...], tuple[VariantFailure, ...]]:
    """What one model has, under its name, and what it lacks."""
    pairs = [(form, core_variant.context_variant(chip, form.precision)) for form in forms for chip in chips]
    served = {variant.chip for form, variant in pairs if (form.name, variant) in contexts}
    return (
        tuple(
            msgspec.structs.replace(context, model=form.model.name, steps=tuple(step.text for step in form.steps))
            for form, variant in pairs
            if (context := contexts.get((form.name, variant)))
        ),
        tuple(
            VariantFailure(
                variant=variant,
                what=f"there is no {variant.name}",
                where=form.model.name,
                why=error.reason,
                remedy=error.remedy,
                skipped=variant.chip in served,
            )
            for form, variant in pairs
            if (error := failures[form.name, variant])
        ),
    )


def _task(
    forms: Sequence[ModelInPrecision], variant: Variant, output: Path, work: Path
) -> workers.Task[tuple[npu_contexts.NpuContext, ...]]:
    models = [form.model for form in forms]
    folder = work / f"{forms[0].name}-{variant.chip}"
    folder.mkdir()
    needed = workers.needed_bytes(sum(model.size_bytes for model in models), COMPILER_FACTOR)
    call = partial(make_context, models, variant, str(output), str(folder))
    return workers.Task(label=f"{models[0].name} {variant.name}", call=call, memory_bytes=needed)


def simulated_tolerance(tolerance: output_compare.Tolerance) -> output_compare.Tolerance:
    """What the outputs of a context may differ by: an NPU computes floats in half precision."""
    limit = max(tolerance.max_relative_error, output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.FLOAT16])
    return msgspec.structs.replace(tolerance, max_relative_error=limit)


SIMULATED_SECONDS = 600.0
"""For one inference in the simulator, which takes some 200 times a CPU's time."""


class SimulatedOutputs(NamedTuple):
    """A context after the simulator of its chip: its outputs as files, and how they compare with the original."""

    context: npu_contexts.NpuContext
    checks: tuple[OutputCheck, ...]
    outputs: tuple[TensorFile, ...] = ()


def check_contexts(
    contexts: Iterable[npu_contexts.NpuContext],
    folder: Path,
    references: Mapping[str, check_result.Reference],
    config: configs.CheckConfig,
    progress: Progress,
    outputs: Path,
) -> Iterator[SimulatedOutputs]:
    """Run each context in the simulator of its chip on the reference's inputs, and compare its outputs.

    References are by the source of a context; one without is left out, as one that cannot run here. The outputs stay as
    files in a folder for each source in `outputs`.
    """
    checked = [context for context in contexts if context.source in references and not context.not_run]
    with (
        progress.stage("simulate", len(checked)) as stage,
        runner_device.open_device("local") as device,
        storage.scratch(folder) as work,
    ):
        for context in checked:
            reference = references[context.source]
            spec = RunSpec(
                id=context.variant.name,
                model=str(folder / context.file),
                options=RunOptions(provider=provider_rules.QNN, provider_options={"soc_model": context.chip.name}),
                inputs=reference.inputs,
                warmup=0,
                min_runs=1,
                min_seconds=0.0,
                timeout_seconds=SIMULATED_SECONDS,
                outputs_folder=str(work / context.variant.name),
            )
            result = device.run(spec)
            if result.failure:
                why = f"the simulator refuses it: {result.failure.what}"
                yield SimulatedOutputs(context, (OutputCheck(output="", passed=False, reason=why),))
            else:
                expected = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.outputs}
                original = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.original}
                actual = {tensor.name: output_compare.read_tensor(tensor) for tensor in result.outputs}
                tolerance = simulated_tolerance(check_many.tolerance_for(reference, config))
                files = []
                for tensor in result.outputs:
                    file = outputs / context.source / f"{spec.id}.{Path(tensor.file).name}"
                    storage.copy_file(Path(tensor.file), file)
                    files.append(msgspec.structs.replace(tensor, file=str(file)))
                yield SimulatedOutputs(
                    context,
                    tuple(output_compare.compare_outputs(expected, actual, tolerance, original)),
                    tuple(files),
                )
            stage.done()
