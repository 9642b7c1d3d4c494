"""The original model in a session without optimizations on the CPU: what every artifact is compared with."""

from collections.abc import Mapping
from typing import Any

from pipeline.core.errors import ModelError
from pipeline.dataset import Array
from pipeline.model.onnx_model import PreparedModel


def open_session(model: PreparedModel, *, optimized: bool = False) -> Any:
    """A session on the CPU, weights mapped from where they lie; ModelError when it does not load."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.folder))
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        return onnxruntime.InferenceSession(
            model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise ModelError(
            "the original model does not run on this computer's CPU",
            where=model.source.name,
            why=first_line(error),
            remedy="nothing can be compared without it: fix the model, or try another onnxruntime",
        ) from error


def run_session(session: Any, feeds: Mapping[str, Array], where: str) -> dict[str, Array]:
    """The outputs that are tensors, by name; ModelError when the model fails on these inputs."""
    names = [output.name for output in session.get_outputs()]
    try:
        values = session.run(None, dict(feeds))
    except Exception as error:
        raise _failed(error, feeds, where) from error
    return {name: value for name, value in zip(names, values, strict=True) if hasattr(value, "dtype")}


def _failed(error: Exception, feeds: Mapping[str, Array], where: str) -> ModelError:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
    if isinstance(error, MemoryError) or "Failed to allocate memory" in str(error):
        return ModelError(
            "not enough memory for these inputs", where=where, why=f"inputs: {shapes}",
            remedy="give smaller dimensions (`dimensions` in the config, --dimension), or smaller test data",
        )  # fmt: skip
    return ModelError(
        "the original model fails on these inputs",
        where=where,
        why=f"{first_line(error)}; inputs: {shapes}",
        remedy="give test data that fits the model (`test_data` in the config, --test-data), or change `dimensions`",
    )


def first_line(error: Exception) -> str:
    """The first line of what an exception says, or its type."""
    return str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__
