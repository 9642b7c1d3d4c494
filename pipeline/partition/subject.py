"""From a model where it was found to the view that is judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ModelError
from pipeline.guards import check_structure
from pipeline.model_sources import SourceModel, Spool
from pipeline.onnx_model import ByteRange, LeanModel, LoadedModel, load_model

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from pipeline import ort_format

ORT_IDENTIFIER = b"ORTM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model file that is at hand: an ORT format file, or a loaded ONNX model."""

    source: SourceModel
    path: Path
    loaded: LoadedModel | None


def open_subject(source: SourceModel, work_folder: Path) -> Subject:
    """Find out what a file is and load its graph without the weights; ModelError when it is no model."""
    if _head(source, work_folder)[4:8] == ORT_IDENTIFIER:
        path = Spool(source, work_folder).fetch_model() if source.member else Path(source.path)
        return Subject(source=source, path=path, loaded=None)
    loaded = load_model(source, work_folder)
    check_structure(loaded.proto, source.name)
    return Subject(source=source, path=loaded.path, loaded=loaded)


def _head(source: SourceModel, work_folder: Path) -> bytes:
    if source.member:
        return Spool(source, work_folder).head(8)
    try:
        with Path(source.path).open("rb") as opened:
            return opened.read(8)
    except OSError as error:
        raise ModelError(
            "the model cannot be read", where=source.name, why=str(error), remedy="check the path"
        ) from error


def tensor_reader(loaded: LeanModel) -> "_Reader":
    """Reads numbers of the model's initializers, large ones from where they lie in a file."""
    return _Reader(loaded.weights)


class _Reader:
    """Gives the numbers of a tensor by its message."""

    def __init__(self, weights: Mapping[str, ByteRange]) -> None:
        self.weights = weights

    def __call__(self, tensor: "TensorProto") -> Any:
        import numpy as np

        from pipeline.partition.onnx_view import read_tensor
        from pipeline.partition.ort_view import NUMPY_KINDS

        place = self.weights.get(tensor.name) if tensor.data_location == 1 else None
        kind = NUMPY_KINDS.get(tensor.data_type)
        if place is None or kind is None:
            return read_tensor(tensor)
        found = np.fromfile(place.file, dtype=kind, count=place.length // np.dtype(kind).itemsize, offset=place.offset)
        return found.reshape(tuple(tensor.dims))


def body_types(model: "ModelProto", work_folder: Path) -> "ort_format.Graph | None":
    """The model as ONNX Runtime saves it in ORT format without optimization: types inside bodies are found there (A.4).

    None when the session cannot be made: then nothing in a body is known, and nothing there is claimed.
    """
    import onnxruntime

    from pipeline.ort_format import read_ort
    from pipeline.partition.ort_types import slim_copy

    target = work_folder / "bodies.ort"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        onnxruntime.InferenceSession(slim_copy(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
        return read_ort(target).graph
    except Exception:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base but Exception
        return None
