"""Make onnxruntime sessions that do nothing but optimize a model and save it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.convert.ort_messages import explain
from pipeline.convert.rules import SessionSettings
from pipeline.core.errors import DiskFullError
from pipeline.core.variant import Level

LEVELS = {
    Level.NONE: "ORT_DISABLE_ALL",
    Level.BASIC: "ORT_ENABLE_BASIC",
    Level.EXTENDED: "ORT_ENABLE_EXTENDED",
    Level.LAYOUT: "ORT_ENABLE_LAYOUT",
    Level.ALL: "ORT_ENABLE_ALL",
}
# The session is thrown away as soon as it has saved: prepacked weights, arenas and spinning threads serve nobody.
SAVE_ONLY = {
    "session.disable_prepacking": "1",
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
}
RECORD_CLAIMS = "session.record_ep_graph_assignment_info"
FATAL_ONLY = 4
SPARE_BYTES = 1 << 20
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 1 << 20


def save_optimized(
    model: bytes,
    settings: SessionSettings,
    target: Path,
    extra: Mapping[str, str],
    *,
    ort_format: bool,
    where: str,
    provider: tuple[str, dict[str, str]] | None = None,
) -> frozenset[str] | None:
    """Optimize a serialized ModelProto for the CPU provider and save it to `target`.

    `extra` are further session config entries, `provider` one that is asked before the CPU, with its options: then the
    names of the nodes that it took are returned, None from onnxruntime before 1.24, which does not tell.
    onnxruntime's low-level class is used because the public one answers a failure by trying the same thing again.
    ModelError with onnxruntime's reason when it refuses the model, DiskFullError when the disk is full.
    """
    from onnxruntime.capi import _pybind_state as ort

    entries = {
        **SAVE_ONLY,
        "session.save_model_format": "ORT" if ort_format else "ONNX",
        "session.qdqisint8allowed": "1" if settings.int8_allowed else "0",
        **({"optimization.minimal_build_optimizations": "save"} if settings.save_records else {}),
        **({"session.disable_quant_qdq": "1"} if settings.keep_shared_dq else {}),
        **({RECORD_CLAIMS: "1"} if provider else {}),
        **extra,
    }
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[settings.level])
    options.optimized_model_filepath = str(target)
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    try:
        session = ort.InferenceSession(options, model, False, False)
        asked = [*([provider] if provider else []), ("CPUExecutionProvider", {})]
        names, options_of = [name for name, _ in asked], [options for _, options in asked]
        session.initialize_session(names, options_of, _left_out(settings))
    except ort_errors(ort) as error:
        _check_disk(target, len(model))
        raise explain(error, where) from error
    return _taken(session, provider[0]) if provider else None


def _taken(session: Any, provider: str) -> frozenset[str] | None:
    """Recorded when the provider was asked: the saved file itself names the CPU for every node."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    groups = session.get_provider_graph_assignment_info()
    return frozenset(node.name for group in groups if group.ep_name == provider for node in group.get_nodes())


def _check_disk(target: Path, size_bytes: int) -> None:
    """DiskFullError when a file of the model's size does not fit any more: onnxruntime then says little of use."""
    free = shutil.disk_usage(target.parent).free
    if free < size_bytes + SPARE_BYTES:
        raise DiskFullError("cannot write", where=str(target.parent), why=f"the disk is full: {free} bytes are free",
                            remedy="free some space on that disk, or choose another folder with --output")  # fmt: skip


def return_freed_memory() -> None:
    """Make the C library give large blocks back to the system as soon as they are freed, for the rest of the process.

    By default it learns to keep blocks of up to 32 MiB, and folding large weights then holds half the model twice.
    Only glibc has this knob (mallopt(3)); elsewhere nothing happens.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def _left_out(settings: SessionSettings) -> set[str]:
    """Names of optimizers that this optimization must not run."""
    rules = {"NchwcTransformer": not settings.nchwc, "ConstantSharing": settings.keep_constants}
    return {name for name, applies in rules.items() if applies} | set(settings.left_out)


def ort_errors(ort: Any) -> tuple[type[BaseException], ...]:
    """Everything that onnxruntime raises: its own classes share no base but Exception."""
    own = [value for value in vars(ort).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*own, RuntimeError, ValueError, MemoryError)
