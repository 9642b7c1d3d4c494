"""Make onnxruntime sessions that do nothing but optimize a model and save it."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from device_runner.failures import CHECKER, Topic, text_of_message
from pipeline.convert.request import SessionSettings
from pipeline.core.errors import DiskFullError, ModelError
from pipeline.core.ort_session import CPU, HostSession, load_session, ort_errors

GENERAL = ("onnxruntime refuses the model", CHECKER)
MAX_WHY = 400


def explain(error: BaseException, where: str) -> ModelError:
    """The error that onnxruntime raised for a model as one of ours: the cause if known, its own words, a remedy."""
    text = str(error)
    found = text_of_message(text, Topic.MODEL, Topic.OPERATOR, Topic.KERNEL, Topic.ROOM)
    what, remedy = (found.cause, found.remedy) if found else GENERAL
    return ModelError(what, where=where, why=_shorten(text), remedy=remedy)


def _shorten(text: str) -> str:
    """One printable line without onnxruntime's prefix and its build machine's source paths."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S*onnxruntime/\S+\.(?:cc|h):\d+ .*?(?=\s[A-Z])", "", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= MAX_WHY else text[: MAX_WHY - 1] + "…"


RECORD_CLAIMS = "session.record_ep_graph_assignment_info"
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
    ModelError with onnxruntime's reason when it refuses the model, DiskFullError when the disk is full.
    """
    entries = {
        "session.save_model_format": "ORT" if ort_format else "ONNX",
        "session.qdqisint8allowed": "1" if settings.int8_allowed else "0",
        **({"optimization.minimal_build_optimizations": "save"} if settings.save_records else {}),
        **({"session.disable_quant_qdq": "1"} if settings.keep_shared_dq else {}),
        **({RECORD_CLAIMS: "1"} if provider else {}),
        **extra,
    }
    try:
        session = load_session(model, HostSession(level=settings.level, save_to=target, config=entries))
        asked = [*([provider] if provider else []), (CPU, {})]
        names, options_of = [name for name, _ in asked], [options for _, options in asked]
        session.initialize_session(names, options_of, _left_out(settings))
    except ort_errors() as error:
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
