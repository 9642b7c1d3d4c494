"""Which models get test vectors, and what is known of each; a feature makes them of the files that ship."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import RunOptions, TensorFile
from pipeline.campaign import record as campaign_record
from pipeline.core import features
from pipeline.core import files as storage
from pipeline.dataset import Dataset
from pipeline.release import kept as kept_files
from pipeline.release import manifest as bundle_manifest

MOST_BYTES = 64 << 10
"""Of a model's vectors, for all targets together."""


class VectorOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A file that ships, and what its vectors are made of.

    `file` is its path here; `library` is that of the target, "" for none. `data` is what the model was compared on;
    `inputs` are those of the first sample, and of a model with state the first values. `number` tells targets apart.
    """

    number: int
    shipped: bundle_manifest.Shipped
    signature: bundle_manifest.ModelSignature
    file: str
    library: str
    data: Dataset
    inputs: tuple[TensorFile, ...] = ()
    stream: run_spec.Stream | None = None
    most_bytes: int = MOST_BYTES

    @property
    def options(self) -> RunOptions:
        """The first way on the CPU: what another provider computes is no phone's on this computer."""
        return next((options for options in self.shipped.runs if options.on_cpu), RunOptions())


class MadeVectors(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest says of vectors, and their files by their paths in the bundle."""

    kept: kept_files.KeptVectors
    files: dict[str, bytes] = {}


VECTORS = features.Place[Callable[[Sequence[VectorOrder]], Iterator[MadeVectors]]]("ship.vectors")


def vectors_of(
    record: campaign_record.JobRecord,
    folder: Path,
    ships: Sequence[tuple[Path, bundle_manifest.Shipped]],
    models: Collection[bundle_manifest.ModelSignature],
    libraries: Mapping[str, tuple[str, ...]],
) -> list[MadeVectors]:
    """The vectors of what ships, with its file here, of an app's data and of features; none where nobody wants any.

    `folder` is the job's, `libraries` are those that ship, each with its targets.
    """
    if not record.config.release.vectors:
        return []
    signatures = {signature.model: signature for signature in models}
    library_of = {target: library for library, targets in libraries.items() for target in targets}
    wanted = [
        (file, shipped)
        for file, shipped in ships
        if _has_app_data(record, shipped.model) and shipped.model in signatures
    ]
    orders = []
    for number, (file, shipped) in enumerate(wanted):
        reference = record.references.get(shipped.model)
        if reference is None:
            continue
        tensors = folder / storage.REFERENCES / shipped.model
        stream = reference.stream.stream if reference.stream and reference.stream.declared else None
        targets = sum(other.model == shipped.model for _, other in wanted)
        order = VectorOrder(
            number=number,
            shipped=shipped,
            signature=signatures[shipped.model],
            file=str(file),
            library=library_of.get(shipped.target, ""),
            data=reference.data,
            inputs=_placed(reference.inputs, tensors),
            stream=stream and msgspec.structs.replace(stream, sequences=_placed(stream.sequences, tensors)),
            most_bytes=MOST_BYTES // targets,
        )
        orders.append(order)
    return [made for make in VECTORS for made in make(orders)] if orders else []


def _has_app_data(record: campaign_record.JobRecord, model: str) -> bool:
    table = record.tables.get(model)
    names = {feature.name for feature in record.config.features}
    return model in names or bool(table and (table.takes or table.gives))


def _placed(tensors: Sequence[TensorFile], folder: Path) -> tuple[TensorFile, ...]:
    return tuple(
        msgspec.structs.replace(tensor, file=str(folder / Path(tensor.file).name), crc32=None) for tensor in tensors
    )
