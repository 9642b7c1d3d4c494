"""What a bundle keeps of a model: inputs and outputs as they are declared, and values of a reference."""

import zlib
from collections.abc import Sequence
from pathlib import Path

from device_runner import spec as run_spec
from device_runner.spec import ElementType, TensorFile
from pipeline import config as configs
from pipeline import dataset as datasets
from pipeline.check import many as check_many
from pipeline.check import result as check_result
from pipeline.core import files as storage
from pipeline.core.errors import CheckFailed
from pipeline.model import ort_format, signature
from pipeline.model.signature import TensorInfo
from pipeline.release.kept import KeptReference, KeptTensor
from pipeline.release.manifest import ModelSignature

KEPT_FOLDER = "evidence/reference"
"""Where a bundle has raw tensors of the original models, in one folder for each model."""

MOST_KEPT_BYTES = 8 << 20
"""A model's inputs, or its outputs, that are larger than this do not go into the bundle."""


def signature_of(
    model: str,
    file: Path,
    table: configs.ModelConfig,
    *,
    size_of: str = "",
    constant_inputs: tuple[str, ...] = (),
    text: signature.TextTokens | None = None,
) -> ModelSignature:
    """The inputs and outputs of a model as its ORT format file declares them, with what the config says of them."""
    graph = ort_format.read_artifact(file).graph
    return ModelSignature(
        model=model,
        inputs=tuple(_tensor(name, graph) for name in graph.inputs if name not in graph.initializers),
        outputs=tuple(_tensor(name, graph) for name in graph.outputs),
        dimensions=table.sizes,
        guessed=tuple(name for name in table.guessed if name in table.dimensions),
        preprocess=datasets.preprocess_of(table),
        values=dict(table.inputs),
        size_of=size_of,
        padding=table.padding,
        license=table.license or "",
        optional_inputs=tuple(_tensor(name, graph) for name in graph.inputs if name in graph.initializers),
        constant_inputs=constant_inputs,
        image=table.takes.image if table.takes and len(graph.inputs) == 1 else None,
        rate=(table.takes.rate or 0) if table.takes else 0,
        answer=table.gives.answer if table.gives else None,
        state=table.state,
        text=text,
    )


def _tensor(name: str, graph: ort_format.OrtGraph) -> TensorInfo:
    value_type = graph.node_args.get(name)
    if not isinstance(value_type, ort_format.TensorType):
        return TensorInfo(name=name, dtype=None, shape=None)
    dtype: ElementType | None = run_spec.TYPES_BY_CODE.get(value_type.elem_type)
    return TensorInfo(name=name, dtype=dtype, shape=value_type.shape)


def keep_reference(
    model: str, reference: check_result.Reference, folder: Path, check: configs.CheckConfig
) -> KeptReference:
    """What a bundle keeps of a reference whose raw tensors lie in `folder`: outputs only beside their inputs.

    Raises CheckFailed for a tensor that is not what the campaign recorded.
    """
    inputs = _tensors(model, reference.inputs, folder)
    outputs = _tensors(model, reference.outputs, folder) if inputs or not reference.inputs else ()
    return KeptReference(
        model=model,
        inputs=inputs,
        outputs=outputs,
        tolerance=check_many.tolerance_for(reference, check),
    )


def _tensors(model: str, tensors: Sequence[TensorFile], folder: Path) -> tuple[KeptTensor, ...]:
    """Tensors with what their files are; none where all together are large, or a text that may be is not there."""
    files = [folder / Path(tensor.file).name for tensor in tensors]
    strings = [file for tensor, file in zip(tensors, files, strict=True) if tensor.dtype is ElementType.STRING]
    sizes = (run_spec.tensor_bytes(tensor) for tensor in tensors if tensor.dtype is not ElementType.STRING)
    if sum(sizes) > MOST_KEPT_BYTES or not all(file.is_file() for file in strings):
        return ()
    for tensor, file in zip(tensors, files, strict=True):
        if not file.is_file():
            raise _unrecorded(file, "it is not there")
        if tensor.crc32 is not None and zlib.crc32(file.read_bytes()) != tensor.crc32:
            raise _unrecorded(file, "its checksum is another one than that which the campaign recorded")
    if sum(file.stat().st_size for file in files) > MOST_KEPT_BYTES:
        return ()
    return tuple(
        KeptTensor(
            path=f"{KEPT_FOLDER}/{model}/{file.name}",
            size_bytes=file.stat().st_size,
            sha256=storage.sha256_of(file),
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
        )
        for tensor, file in zip(tensors, files, strict=True)
    )


def _unrecorded(file: Path, why: str) -> CheckFailed:
    return CheckFailed(
        "a reference is not what the original model computed",
        where=str(file),
        why=f"{why}, and an app would judge its outputs by it",
        remedy="run the campaign again (unchanged models are not converted anew); where only the bundle was changed, "
        "make it again: `ort-mobile bundle rebuild FOLDER`",
    )
