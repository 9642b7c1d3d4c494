"""From a model where it was found to the view that is judged, or to a file of our own for others to judge."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runner.reading import open_regular
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.files import share_file, storage_errors
from pipeline.core.ort_session import HostSession, make_session, ort_errors
from pipeline.dataset.guess import assignments, units, with_sums
from pipeline.model.edit import copied
from pipeline.model.guards import check_constants, check_structure, computed_constants, shaped_bytes
from pipeline.model.onnx_model import LeanModel, LoadedModel, fix_dimensions, load_model, read_in
from pipeline.model.signature import names_of, open_axes, own_inputs, resolve_dimensions
from pipeline.model.sources import SourceModel, Spool
from pipeline.model.types import CODES, NUMPY_KINDS
from pipeline.partition.graph import Graph
from pipeline.partition.view import infer, read_tensor, slim_copy

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from pipeline.model import ort_format


def write_model(model: LeanModel, target: Path, *, named: bool = False, external: bool = True) -> None:
    """Write a model for another process, its weights in files next to it (`TARGET.0`…): links, where these can be.

    `named` names nodes after their outputs. With `external` False weights come into the message, but for those that the
    model itself keeps outside. ModelError for a message that is too large.
    """
    from google.protobuf.message import EncodeError

    proto = copied(model.proto)
    if named:
        name_nodes(proto)
    files: dict[Path, str] = {}
    for tensor in proto.graph.initializer:
        place = model.weights.get(tensor.name)
        if place and (external or tensor.name in model.outside):
            name = files.setdefault(place.file, f"{target.name}.{len(files)}")
            del tensor.external_data[:]
            for key, value in {"location": name, "offset": place.offset, "length": place.length}.items():
                tensor.external_data.add(key=key, value=str(value))
        elif place:
            read_in(tensor, place)
    try:
        content: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(
            "the model is too large to be written",
            where=str(target),
            why=f"it is no single message: {error}",
            remedy="keep its large weights in an external data file",
        ) from error
    with storage_errors(target):
        target.write_bytes(content)
        for file, name in files.items():
            share_file(file, target.with_name(name))


def remove_model(target: Path) -> None:
    """Remove what `write_model` wrote."""
    for path in _written(target):
        path.unlink()


def written_bytes(target: Path) -> int:
    """The size of what `write_model` wrote; 0 where it wrote nothing."""
    return sum(path.stat().st_size for path in _written(target) if path.is_file())


def _written(target: Path) -> list[Path]:
    return [target, *target.parent.glob(f"{target.name}.*")]


def name_nodes(proto: "ModelProto") -> None:
    """Name every node of the main graph after its first output that has a name: libraries report names only.

    The name that it had becomes its documentation: forceCpuNodeNames is about that.
    """
    for node in proto.graph.node:
        node.doc_string = node.name
        node.name = next((output for output in node.output if output), node.name)


ORT_IDENTIFIER = b"ORTM"
log = logging.getLogger(__name__)
NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInput:
    """A model file that is available: an ORT format file, or a loaded ONNX model."""

    source: SourceModel
    path: Path
    loaded: LoadedModel | None


def open_subject(source: SourceModel, work_folder: Path, sizes: Mapping[str, int] = NO_SIZES) -> PartitionInput:
    """Find out what a file is and load its graph without the weights, with `sizes` for its dynamic dimensions.

    ModelError when it is no model, ConfigError for sizes of dimensions that it does not have.
    """
    if _head(source, work_folder)[4:8] == ORT_IDENTIFIER:
        if sizes:
            raise ConfigError(
                "dimensions of an ORT format file cannot be fixed",
                where=source.name,
                remedy="name the ONNX model that it was made from",
            )
        path = Spool(source, work_folder).fetch_model() if source.member else Path(source.path)
        return PartitionInput(source=source, path=path, loaded=None)
    loaded = load_model(source, work_folder)
    check_structure(loaded.proto, source.name)
    if sizes:
        loaded = resized(loaded, sizes, work_folder)
    return PartitionInput(source=source, path=loaded.path, loaded=loaded)


def resized(loaded: LoadedModel, sizes: Mapping[str, int], work_folder: Path) -> LoadedModel:
    """The model with sizes for its dynamic dimensions, as a file in `work_folder`: sessions read files."""
    proto = copied(loaded.proto)
    fix_dimensions(proto, sizes, loaded.source.name)
    target = work_folder / "resized.onnx"
    write_model(replace(loaded, proto=proto), target)
    again = load_model(SourceModel(path=str(target)), work_folder)
    return replace(again, source=loaded.source, outside=loaded.outside)


def _head(source: SourceModel, work_folder: Path) -> bytes:
    if source.member:
        return Spool(source, work_folder).head(8)
    try:
        with open_regular(Path(source.path)) as opened:
            return opened.read(8)
    except OSError as error:
        raise ModelError(
            "the model cannot be read", where=source.name, why=str(error), remedy="check the path"
        ) from error


def tensor_reader(loaded: LeanModel) -> "Callable[[TensorProto], Any]":
    """Reads the numbers of the model's initializers by their messages, large ones from where they lie in a file."""
    weights = loaded.weights

    def read(tensor: "TensorProto") -> Any:
        import numpy as np

        place = weights.get(tensor.name) if tensor.data_location == 1 else None
        kind = NUMPY_KINDS.get(tensor.data_type)
        if place is None or kind is None:
            return read_tensor(tensor)
        count = place.length // np.dtype(kind).itemsize
        return np.fromfile(place.file, dtype=kind, count=count, offset=place.offset).reshape(tuple(tensor.dims))

    return read


def body_types(
    model: "ModelProto", work_folder: Path, unknown: Callable[[str], None] = log.warning
) -> "ort_format.OrtGraph | None":
    """The model as ONNX Runtime saves it in ORT format without optimization: types inside bodies are found there (A.4).

    None when the session cannot be made, which is reported to `unknown`: then nothing in a body is known or claimed.
    """
    from pipeline.model.ort_format import read_ort

    target = work_folder / "bodies.ort"
    settings = HostSession(save_to=target, config={"session.save_model_format": "ORT"})
    refusals: tuple[type[Exception], ...] = (ModelError, *ort_errors())
    try:
        make_session(slim_copy(model).SerializeToString(), settings)
        return read_ort(target).graph
    except refusals as error:
        unknown(f"nothing inside If, Loop and Scan counts as supported, because no session can be made: {error}")
        return None


def check_computed(loaded: LoadedModel, shown: Graph, where: str) -> None:
    """ModelError for constants that no phone could compute when it loads the model; `shown` has their shapes."""

    def size_of(name: str) -> int:
        value = shown.value(name)
        return shaped_bytes(CODES.get(value.dtype or "", 0), [dim or 0 for dim in value.shape or (0,)])

    check_constants(computed_constants(loaded.proto.graph), size_of, where)


MOST_TRIALS = 12
"""Loading a model needs a tenth of a second, and the first sizes are nearly always accepted."""


def dynamic_names(model: "ModelProto") -> tuple[str, ...]:
    """The shortest names of the inputs' dimensions that have no size."""
    return tuple(names_of(open_axes(own_inputs(model))))


def unnamed(model: "ModelProto", given: Mapping[str, int]) -> tuple[str, ...]:
    """The dynamic dimensions for which no size is given."""
    takes = own_inputs(model)
    sizes = resolve_dimensions(takes, given, "the model")
    return tuple(name for name, axes in names_of(open_axes(takes)).items() if any(a.key not in sizes for a in axes))


def likely_sizes(loaded: LoadedModel, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes for all dynamic dimensions that ONNX Runtime's shape inference accepts, the likeliest first.

    Nothing is run: claims hardly depend on which size it is, as long as it is one. ConfigError when a size is given for
    a dimension that the model does not have.
    """
    takes = own_inputs(loaded.proto)
    names = names_of(open_axes(takes))
    known = resolve_dimensions(takes, given, loaded.source.name)
    asked = {name: known[axes[0].key] for name, axes in names.items() if axes[0].key in known}
    left = tuple(axis for axis in open_axes(takes) if axis.key not in known)
    for assignment in islice(assignments(units(loaded.proto, takes, left)), MOST_TRIALS):
        sizes = with_sums(asked | {name: size for name, (size, _) in assignment.items()}, list(names))
        model = slim_copy(loaded.proto)
        fix_dimensions(model, sizes, loaded.source.name)
        try:
            infer(model)
        except ModelError:
            continue
        yield {name: sizes[name] for name in names}
