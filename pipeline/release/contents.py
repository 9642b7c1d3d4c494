"""What a bundle keeps beside its models: their signatures, what the originals compute, every way to run them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from device_runner.custom_ops import CustomLibrary, fitting
from device_runner.device import DeviceFacts
from device_runner.library import name_of, release_of
from device_runner.options import AFFINITY_KEY, BLOCK_KEY
from device_runner.spec import TYPES_BY_CODE, ElementType, RunOptions, TensorFile
from pipeline.campaign.options import PREPACKING_KEY, SPINNING_KEYS
from pipeline.campaign.plan import plan_runs
from pipeline.check.many import tolerance_for
from pipeline.check.result import Reference
from pipeline.config import CheckConfig, Config, ModelConfig, Platform, Target
from pipeline.core.abis import abis_of_target
from pipeline.core.files import sha256_of
from pipeline.dataset import preprocess_of
from pipeline.model.ort_format import OrtGraph, TensorType, read_artifact
from pipeline.release.choose import Choice
from pipeline.release.manifest import KeptReference, KeptTensor, ModelSignature, TensorSignature

KEPT_FOLDER = "evidence/reference"
"""Where a bundle has raw tensors of the original models, in one folder for each model."""
MOST_KEPT_BYTES = 8 << 20
"""A model's inputs, or its outputs, that are larger than this do not go into the bundle."""
SPEED_KEYS = frozenset({*SPINNING_KEYS, PREPACKING_KEY, AFFINITY_KEY, BLOCK_KEY})
"""Session config entries that change times and nothing that is computed."""


def signature_of(model: str, file: Path, table: ModelConfig) -> ModelSignature:
    """The inputs and outputs of a model as its ORT format file declares them, with what the config says of them."""
    graph = read_artifact(file).graph
    return ModelSignature(
        model=model,
        inputs=tuple(_tensor(name, graph) for name in graph.inputs if name not in graph.initializers),
        outputs=tuple(_tensor(name, graph) for name in graph.outputs),
        dimensions=table.sizes,
        guessed=table.guessed,
        preprocess=preprocess_of(table),
        values=dict(table.inputs),
        license=table.license or "",
    )


def _tensor(name: str, graph: OrtGraph) -> TensorSignature:
    value_type = graph.node_args.get(name)
    if not isinstance(value_type, TensorType):
        return TensorSignature(name=name, dtype=None, shape=None)
    dtype: ElementType | None = TYPES_BY_CODE.get(value_type.elem_type)
    return TensorSignature(name=name, dtype=dtype, shape=value_type.shape)


def keep_reference(model: str, reference: Reference, folder: Path, check: CheckConfig) -> KeptReference:
    """What a bundle keeps of a reference whose raw tensors lie in `folder`: outputs only beside their inputs."""
    inputs = _tensors(model, reference.inputs, folder)
    outputs = _tensors(model, reference.outputs, folder) if inputs or not reference.inputs else ()
    return KeptReference(
        model=model,
        inputs=inputs,
        outputs=outputs,
        tolerance=tolerance_for(reference, check),
    )


def _tensors(model: str, tensors: Sequence[TensorFile], folder: Path) -> tuple[KeptTensor, ...]:
    """Tensors with what their files are; none where one is not there any more, or all together are large."""
    files = [folder / Path(tensor.file).name for tensor in tensors]
    if not all(file.is_file() for file in files) or sum(file.stat().st_size for file in files) > MOST_KEPT_BYTES:
        return ()
    return tuple(
        KeptTensor(
            path=f"{KEPT_FOLDER}/{model}/{file.name}",
            size_bytes=file.stat().st_size,
            sha256=sha256_of(file),
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
        )
        for tensor, file in zip(tensors, files, strict=True)
    )


def library_name(target: Target) -> str:
    """How the bundle calls the library that a target names: a release as it is, a file without its folder."""
    given = target.library or ""
    return given if name_of(given) else Path(given).name


def libraries_of(targets: Iterable[Target], given: str | None) -> dict[str, tuple[str, ...]]:
    """The libraries for Android and Linux to prove, each with the targets that ship it.

    A library of the command line may be any computer's: it counts where it is an AAR or a release, of the platform that
    the release is for.
    """
    name = name_of(given or "")
    spare = {
        Platform.ANDROID: given if given and (given.endswith(".aar") or release_of(given)) else None,
        Platform.LINUX: given if name and name.scheme in ("jvm", "wheel") else None,
    }
    libraries: dict[str, tuple[str, ...]] = {}
    for target in dict.fromkeys(targets):
        library = target.library or spare.get(target.platform)
        if target.platform in spare and library:
            libraries[library] = (*libraries.get(library, ()), target.name)
    return libraries


CUSTOM_OPS = "custom_ops/"
"""The bundle's folder of libraries of custom operators, by system and ABI."""
LINKED = (Platform.IOS, Platform.MACOS)
"""Platforms whose apps link such libraries."""


def custom_libraries(config: Config, target: Target) -> tuple[CustomLibrary, ...]:
    """Libraries of custom operators that ship to a target; UnavailableError where one for an ABI of it is missing."""
    abis = () if target.platform in LINKED else abis_of_target(target.platform, target.abis)
    return tuple(row for abi in abis for row in fitting(config.custom_ops, target.platform.value, abi))


def runs_of(config: Config, choice: Choice) -> tuple[RunOptions, ...]:
    """The chosen way to run an artifact, then every other that the config has for it and that is legal there.

    Ways that differ in speed alone count once. Whatever depends on the phone's API level is left in: the proof says
    where it has no effect.
    """
    target, artifact = choice.target, choice.artifact
    place = DeviceFacts(name=target.name, platform=target.platform.value, abis=target.abis)
    planned_runs, _ = plan_runs(config.runs, [artifact], [place])
    ways: dict[bytes, RunOptions] = {}
    names = tuple(dict.fromkeys(row.path.name for row in custom_libraries(config, target)))
    for options in (choice.options, *(planned.options for planned in planned_runs)):
        session_config = artifact.session_options | options.session_config
        whole = msgspec.structs.replace(options, session_config=session_config, custom_ops=names)
        computed = {key: value for key, value in session_config.items() if key not in SPEED_KEYS}
        parts = (whole.provider, whole.provider_options, whole.flags, computed)
        ways.setdefault(msgspec.json.encode(parts, order="sorted"), whole)
    return tuple(ways.values())
