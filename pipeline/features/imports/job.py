"""Importing: a source is exported to ONNX and both are run on the same inputs, other sizes and numbers among them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner.result import Struct
from pipeline.check.compare import OutputCheck, OutputPrecision, compare_outputs, usual_tolerance
from pipeline.core.errors import CheckFailed, ModelError
from pipeline.core.files import make_folder, replacing, scratch
from pipeline.core.ort_session import HostSession, first_line, make_session, ort_errors
from pipeline.core.workers import Task, run_tasks, still_at_work
from pipeline.features.imports.frameworks import Trained, every_word, explained, open_source, quietly
from pipeline.model.onnx_model import load_model
from pipeline.model.signature import TensorInfo, own_inputs
from pipeline.model.sources import SourceModel
from pipeline.model.types import FLOAT16

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.check.compare import Array

SEEDS = (0, 1)
"""Random inputs beside the example, each like it in mean and spread."""
GROWN = ((1, 1), (2, 1))
"""Other sizes of dynamic dimensions, as factor and summand of the example's."""
TIME_LIMIT = 1800.0


class ImportRequest(Struct, frozen=True, kw_only=True):
    """A source, and the file in `folder` that it becomes. `opset` 0 is the exporter's own choice."""

    source: str
    folder: str
    name: str
    opset: int = 0
    check: bool = True


class ComparedInputs(Struct, frozen=True, kw_only=True):
    """Inputs on which both were run. `sizes` has dynamic dimensions where they are not the example's; `refused` is why
    the framework itself does not take these.
    """

    inputs: str
    sizes: dict[str, int] = {}
    checks: tuple[OutputCheck, ...] = ()
    refused: str = ""


class ImportReport(Struct, frozen=True, kw_only=True):
    """What was imported. `inputs` and `outputs` are as the ONNX model has them, in text."""

    source: str
    framework: str
    opset: int
    nodes: int
    size_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compared: tuple[ComparedInputs, ...] = ()

    @property
    def failed(self) -> list[tuple[ComparedInputs, OutputCheck]]:
        """The outputs that were shown to be wrong."""
        return [(row, check) for row in self.compared for check in row.checks if check.failed]


def import_source(source: str, destination: Path, *, opset: int | None = None, check: bool = True) -> ImportReport:
    """Import in a process of its own, and put the model in its place if no output was shown to be wrong.

    ConfigError, MissingError and ModelError as `open_source` raises them; ModelError for what cannot be exported.
    """
    with scratch(destination.parent) as folder:
        request = ImportRequest(
            source=source, folder=str(folder), name=destination.name, opset=opset or 0, check=check
        )  # fmt: skip
        task = Task(label=source, call=partial(do_import, request))
        (outcome,) = run_tasks([task], timeout_seconds=TIME_LIMIT)
        if outcome.value is None:
            raise outcome.error or ModelError("no answer", where=source)
        if not outcome.value.failed:
            with replacing(destination) as temporary:
                (folder / destination.name).replace(temporary)
        return outcome.value


def make_model(source: str, destination: Path) -> None:
    """Import a source for a run; raises as `import_source` and `refuse_failed`."""
    refuse_failed(import_source(source, destination))


def refuse_failed(report: ImportReport) -> None:
    """CheckFailed for outputs that are not those of the framework."""
    if report.failed:
        why = "; ".join(f"{row.inputs}, output {check.output!r}: {check.reason}" for row, check in report.failed)
        raise CheckFailed(
            "the exported model's outputs are not those of the framework", where=report.source, why=why[:500],
            remedy="look for code that depends on values or sizes, which an export fixes; "
            "`ort-mobile import --no-check` writes it anyway",
        )  # fmt: skip


def do_import(request: ImportRequest) -> ImportReport:
    """Export the source to its file, and compare."""
    target = Path(request.folder) / request.name
    make_folder(target.parent)
    with quietly():
        trained = open_source(request.source)
        still_at_work()
        export(trained, target, request)
        still_at_work()
        model = load_model(SourceModel(path=str(target)), target.parent).proto
        compared = tuple(compare(trained, model, target)) if request.check else ()
    return ImportReport(
        source=request.source,
        framework=trained.title,
        opset=next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0),
        nodes=len(model.graph.node),
        size_bytes=target.stat().st_size,
        inputs=tuple(f"{info}" for info in own_inputs(model)),
        outputs=tuple(value.name for value in model.graph.output),
        compared=compared,
    )


def export(trained: Trained, target: Path, request: ImportRequest) -> None:
    """Write the ONNX model; ModelError with the layers that the exporter refuses."""
    try:
        trained.export(target, request.opset or None)
    except (ModelError, MemoryError):
        raise
    except trained.refusals as error:
        layers = ", ".join(trained.layers(every_word(error))[:5])
        what = f"{trained.title} cannot export {layers}" if layers else f"{trained.title} cannot export the model"
        raise ModelError(
            what, where=request.source, why=explained(error),
            remedy="write that layer with other operators, or export with --opset of a newer release",
        ) from error  # fmt: skip


def compare(trained: Trained, model: "ModelProto", target: Path) -> Iterator[ComparedInputs]:
    """Both on the example, on random inputs like it, and on other sizes of the dimensions that the file leaves open."""
    try:
        session = make_session(target, HostSession())
    except ort_errors() as error:
        raise ModelError(
            "ONNX Runtime does not load the exported model", where=target.name, why=first_line(error),
            remedy="export with another --opset, or another release of the framework",
        ) from error  # fmt: skip
    takes = own_inputs(model)
    if len(takes) != len(trained.example):
        raise ModelError(
            "the exported model takes other inputs", where=target.name,
            why=f"it takes {len(takes)} ({', '.join(info.name for info in takes)}), the example has "
            f"{len(trained.example)}",
            remedy="give an example input for each tensor that the model reads, and none besides",
        )  # fmt: skip
    outputs = [value.name for value in model.graph.output]
    halves = any(tensor.data_type == FLOAT16 for tensor in model.graph.initializer)
    tolerance = usual_tolerance(OutputPrecision.FLOAT16 if halves else OutputPrecision.FLOAT32)

    def both(inputs: Sequence["Array"], label: str, sizes: Mapping[str, int]) -> ComparedInputs:
        still_at_work()
        try:
            expected = trained.run(inputs)
        except trained.refusals as error:
            return ComparedInputs(inputs=label, sizes=dict(sizes), refused=explained(error))
        try:
            computed = session.run(outputs, dict(zip((info.name for info in takes), inputs, strict=True)))
        except ort_errors() as error:
            failed = OutputCheck(output=outputs[0], passed=False, reason=f"ONNX Runtime fails: {first_line(error)}")
            return ComparedInputs(inputs=label, sizes=dict(sizes), checks=(failed,))
        named = dict(zip(outputs, expected, strict=False))
        checks = compare_outputs(named, dict(zip(outputs, map(_array, computed), strict=True)), tolerance)
        return ComparedInputs(inputs=label, sizes=dict(sizes), checks=tuple(checks))

    yield both(trained.example, "the example", {})
    for seed in SEEDS:
        yield both([_like(array, array.shape, seed) for array in trained.example], f"random numbers {seed}", {})
    axes = [_open_axes(info) for info in takes]
    known = {
        name: array.shape[axis]
        for array, named in zip(trained.example, axes, strict=True)
        for axis, name in named.items()
    }
    for factor, summand in GROWN if known else ():
        sizes = {name: size * factor + summand for name, size in known.items()}
        inputs = [
            _like(array, [sizes[named[a]] if a in named else size for a, size in enumerate(array.shape)], 2)
            for array, named in zip(trained.example, axes, strict=True)
        ]
        yield both(inputs, "other sizes", sizes)


def _open_axes(info: TensorInfo) -> dict[int, str]:
    """The axes without a size, by their names or as `input[axis]`."""
    return {
        axis: size or f"{info.name}[{axis}]" for axis, size in enumerate(info.shape or ()) if not isinstance(size, int)
    }


def _array(value: object) -> "Array":
    import numpy as np

    return np.asarray(value)


def _like(array: "Array", shape: Sequence[int], seed: int) -> "Array":
    """Random numbers of the mean and spread of an array; whole ones from between its least and its largest."""
    import numpy as np

    random = np.random.default_rng(seed)
    if array.dtype.kind == "f" and array.size:
        spread = float(array.std()) or 1.0
        return random.normal(float(array.mean()), spread, shape).astype(array.dtype)
    return random.choice(array.reshape(-1), tuple(shape)) if array.size else np.zeros(shape, array.dtype)


def document(report: ImportReport, output: Path) -> dict[str, object]:
    """The report as JSON."""
    fields: dict[str, object] = msgspec.to_builtins(report)
    return {"output": str(output), **fields}
