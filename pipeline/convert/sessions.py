"""Make onnxruntime sessions that do nothing but optimize a model and save it."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.convert.request import SessionSettings
from pipeline.core.errors import DiskFullError, ModelError
from pipeline.core.ort_session import CPU, HostSession, load_session, ort_errors

CHECKER = "check it with `onnx.checker.check_model(model, full_check=True)`"
# (fragment of the message, what it means, remedy); the first that fits is taken.
MEANINGS: tuple[tuple[str, str, str], ...] = (
    (r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
     "the model's IR version {0} is newer than this onnxruntime reads (at most {1})",
     "export with an older IR version, or install a newer onnxruntime"),
    (r"Opset \d+ is under development|only \*guarantees\* support for models stamped",
     "the model's opset is newer than this onnxruntime supports",
     "export with a lower opset, or install a newer onnxruntime"),
    (r"No Op registered for (\S+) with domain_version of (-?\d+)",
     "operator {0} does not exist in opset {1}", "export the model again with a consistent opset"),
    (r"(\S+?):(\S+?)\(-1\) is not a registered function/op",
     "operator {1} of domain {0} is unknown: it is custom, or misspelt",
     "replace it by standard operators; libraries of custom operators are not loaded here"),
    (r"[Mm]issing opset in the model|opset import.*(?:missing|not)|no opset import for domain",
     "the model does not say which opset it uses", "export the model again"),
    (r"Could not find an implementation for (\S+) node|Failed to find kernel for (\S+)",
     "onnxruntime has no kernel for one of its operators with these types", "use another data type or operator"),
    (r"We do not support type \[9\]", "it has values of optional type, which the ORT format cannot hold",
     "remove optional inputs, outputs and operators of type Optional"),
    (r"Failed to save ORT format model", "the file could not be written: the disk is full, or it passed 2 GiB",
     "free some space, or quantize the model"),
    (r"No space left on device", "the disk is full", "free some space, or choose another folder with --output"),
    (r"bad_alloc|[Ff]ailed to allocate memory|Not enough memory|ArenaExtend|Requested.*exceeds",
     "it asks for more memory than there is", "look for constants of an enormous shape in the model"),
    (r"Protobuf parsing failed|INVALID_PROTOBUF", "it is no valid ONNX protobuf", "export it again"),
    (r"Type Error|TypeInferenceError|[Tt]ype.*mismatch", "the types in its graph contradict each other", CHECKER),
    (r"ShapeInferenceError|[Mm]ismatch between number of|[Ii]nvalid (?:shape|rank|dimension)|incompatible dimensions",
     "the shapes in its graph contradict each other", CHECKER),
    (r"This is an invalid model|INVALID_GRAPH|Invalid model", "its graph breaks ONNX's rules", CHECKER),
)  # fmt: skip
GENERAL = ("onnxruntime refuses the model", CHECKER)
MAX_WHY = 400


def explain(error: BaseException, where: str) -> ModelError:
    """The error that onnxruntime raised for a model as one of ours: the cause if known, its own words, a remedy."""
    text = str(error)
    what, remedy = _meaning(text)
    return ModelError(what, where=where, why=_shorten(text), remedy=remedy)


def _meaning(text: str) -> tuple[str, str]:
    for pattern, what, remedy in MEANINGS:
        if found := re.search(pattern, text):
            return what.format(*(_shorten(g or "", 80) for g in found.groups())), remedy
    return GENERAL


def _shorten(text: str, limit: int = MAX_WHY) -> str:
    """One printable line without onnxruntime's prefix and its build machine's source paths."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S*onnxruntime/\S+\.(?:cc|h):\d+ .*?(?=\s[A-Z])", "", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
