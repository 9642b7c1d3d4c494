"""Inputs for files that are measured as they are: .onnx and .ort models with the sizes and data of the command line."""

from pathlib import Path

import msgspec

from device_runner.spec import TensorFile
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset, TensorInfo, element_of, first_sample
from pipeline.dataset.tensor_files import write_tensor
from pipeline.model.dimensions import names_of, open_axes, resolve_dimensions
from pipeline.model.onnx_model import load_model
from pipeline.model.ort_format import read_ort
from pipeline.model.ort_format.values import TensorType
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.sizes.guess import complete_data


class FeedsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model file, sizes for its open dimensions, data, and the folder for raw files."""

    file: str
    dimensions: dict[str, int] = {}
    data: Dataset = Dataset()
    folder: str


class Feeds(msgspec.Struct, frozen=True, kw_only=True):
    """What each input gets."""

    tensors: tuple[TensorFile, ...]


def make_feeds(request: FeedsRequest) -> Feeds:
    """The inputs of one model as raw files. Open dimensions of .onnx files that nobody sizes get likely sizes.

    ConfigError for names, sizes and data that do not fit, and for open dimensions of .ort files without a size.
    """
    path = Path(request.file)
    if path.suffix.lower() == ".ort":
        takes = ort_inputs(path)
        sizes = resolve_dimensions(takes, request.dimensions, path.name)
        _refuse_open(takes, sizes, request)
        data = msgspec.structs.replace(request.data, sizes=sizes)
    else:
        loaded = load_model(SourceModel(path=request.file), Path(request.folder))
        takes = own_inputs(loaded.proto)
        sizes = resolve_dimensions(takes, request.dimensions, path.name)
        data = complete_data(loaded, request.dimensions, request.data)
        data = msgspec.structs.replace(data, sizes=data.sizes | sizes)
    arrays = first_sample(data, takes).inputs
    return Feeds(
        tensors=tuple(
            write_tensor(Path(request.folder) / f"input_{n}.bin", name, array)
            for n, (name, array) in enumerate(arrays.items())
        )
    )


def ort_inputs(path: Path) -> tuple[TensorInfo, ...]:
    """The inputs of an ORT format file that are no initializers."""
    graph = read_ort(path).graph
    found = []
    for name in graph.inputs:
        kind = graph.node_args.get(name)
        if name not in graph.initializers:
            plain = kind if isinstance(kind, TensorType) else None
            found.append(
                TensorInfo(
                    name=name,
                    dtype=element_of(plain.elem_type) if plain else None,
                    shape=plain.shape if plain else None,
                )
            )
    return tuple(found)


def _refuse_open(takes: tuple[TensorInfo, ...], sizes: dict[str, int], request: FeedsRequest) -> None:
    missing = [axis for axis in open_axes(takes) if axis.key not in sizes and axis.input not in request.data.inputs]
    if missing and not request.data.test_data:
        names = list(names_of(missing))
        raise ConfigError(
            f"no size is given for {', '.join(names)}", where=request.file,
            remedy=f"give --dimension {names[0]}=N …, or --test-data",
        )  # fmt: skip
