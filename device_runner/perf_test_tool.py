"""The program onnxruntime_perf_test as a file: whether it can be used for a spec, and what must lie in its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_runner.perf_test import DATA_FOLDER, refusal, tensor_proto
from device_runner.probe.elf import NotElf, read_elf
from device_runner.result import Failure, FailureKind
from device_runner.spec import RunSpec

OUTPUT_TAIL_BYTES = 16_384
"""What it prints ends with what matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """The program, and the name by which it loads ONNX Runtime ("" for one that has it within)."""

    path: Path
    library_name: str


def tool_of(spec: RunSpec) -> Tool | Failure:
    """The program that a spec names, looked into; a Failure when it cannot run the spec."""
    path = Path(str(spec.perf_test)).absolute()
    if not path.is_file():
        text = f"{path}: no such file"
        return Failure(
            kind=FailureKind.MISSING_LIBRARY,
            message=text,
            cause="onnxruntime_perf_test is not there",
            remedy="give the path of the program: a build of ONNX Runtime with its unit tests makes it",
        )
    name = _library_name(path)
    if not name and spec.library:
        return Failure(
            kind=FailureKind.WRONG_LIBRARY,
            message=f"{path} has ONNX Runtime within, and cannot take {spec.library}",
            cause="it was linked without --build_shared_lib",
            remedy="give no library, or a program that loads libonnxruntime",
        )
    return refusal(spec) or Tool(path=path, library_name=name)


def _library_name(path: Path) -> str:
    try:
        needed = read_elf(path).needed
    except (NotElf, OSError):
        return "libonnxruntime.dylib"
    return next((name for name in needed if name.startswith("libonnxruntime")), "")


def input_files(spec: RunSpec) -> Iterator[tuple[str, bytes]]:
    """Names in the run folder and bytes of the inputs; the tool takes them by the number in their names."""
    for index, tensor in enumerate(spec.inputs):
        yield f"{DATA_FOLDER}/input_{index}.pb", tensor_proto(tensor, Path(tensor.file).read_bytes())


def text_of(path: Path) -> str:
    """What is in a file, "" where there is none."""
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def model_name(spec: RunSpec) -> str:
    """How the model is called in the run folder: the tool knows the format by the suffix."""
    return f"model{Path(spec.model).suffix.lower()}"
