"""A model with its weights as a file of our own, for whoever cannot be given a message."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError
from pipeline.core.files import share_file, storage_errors
from pipeline.model.onnx_model import ByteRange, LeanModel, read_in

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def write_model(model: LeanModel, target: Path, *, named: bool = False, external: bool = True) -> None:
    """Write a model for another process, its weights in files beside it (`TARGET.0`…): links, where these can be.

    `named` names nodes after their outputs. With `external` False weights come into the message, but for those that the
    model itself keeps outside. ModelError for a message that is too large.
    """
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    if named:
        name_nodes(proto)
    files: dict[Path, str] = {}
    for tensor in proto.graph.initializer:
        place = model.weights.get(tensor.name)
        if place and (external or tensor.name in model.outside):
            name = files.setdefault(place.file, f"{target.name}.{len(files)}")
            _point_to(tensor, name, place)
        elif place:
            read_in(tensor, place)
    with storage_errors(target):
        target.write_bytes(_serialized(proto, target))
        for file, name in files.items():
            share_file(file, target.with_name(name))


def _point_to(tensor: "TensorProto", name: str, place: ByteRange) -> None:
    del tensor.external_data[:]
    for key, value in {"location": name, "offset": place.offset, "length": place.length}.items():
        tensor.external_data.add(key=key, value=str(value))


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
    """Name every node of the main graph after its first output that has a name: libraries tell names only."""
    for node in proto.graph.node:
        node.name = next((output for output in node.output if output), node.name)


def _serialized(proto: "ModelProto", where: Path) -> bytes:
    from google.protobuf.message import EncodeError

    try:
        content: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(
            "the model is too large to be written",
            where=str(where),
            why=f"it is no single message: {error}",
            remedy="keep its large weights in an external data file",
        ) from error
    return content
