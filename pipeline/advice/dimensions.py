"""Fix open dimensions of the inputs: providers for phones want every size."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.advice.known import Known
from pipeline.dataset import Dataset, first_sample
from pipeline.dataset.signature import tensor_infos

if TYPE_CHECKING:
    from onnx import ModelProto, TensorShapeProto


def fix_dimensions(model: "ModelProto", known: Known) -> "ModelProto | None":
    """Open dimensions get the sizes that were asked for, else 1; None when all have sizes."""
    import onnx

    from pipeline.onnx_model import subgraphs

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    chosen: dict[str, int] = {}
    found = list(open_dimensions(changed))
    for label, dim in found:
        size = known.sizes.get(dim.dim_param) or known.sizes.get(label) or 1
        if dim.dim_param:
            size = chosen.setdefault(dim.dim_param, size)
        dim.dim_value = size
    for graph in subgraphs(changed.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in chosen:
                    dim.dim_value = chosen[dim.dim_param]
    return changed if found else None


def sizes_of(model: "ModelProto", data: Dataset) -> dict[str, int]:
    """The sizes that test data give to open dimensions, by `input[axis]`; none without test data. Raises ConfigError
    for data that do not fit the model.
    """
    if not data.test_data:
        return {}
    constants = {tensor.name for tensor in model.graph.initializer}
    takes = tensor_infos(value for value in model.graph.input if value.name not in constants)
    arrays = first_sample(data, takes).inputs
    return {
        f"{info.name}[{axis}]": int(arrays[info.name].shape[axis])
        for info in takes
        for axis, size in enumerate(info.shape or ())
        if not isinstance(size, int)
    }


def open_dimensions(model: "ModelProto") -> "Iterator[tuple[str, TensorShapeProto.Dimension]]":
    """Dimensions of inputs that have no size, with `input[axis]`; a negative size counts as none (ep_rules A.4)."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name not in constants and not (dim.HasField("dim_value") and dim.dim_value >= 0):
                yield f"{value.name}[{axis}]", dim
