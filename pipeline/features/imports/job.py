"""Importing: a source is exported to ONNX by its framework and both are run on the same inputs.

Other sizes and numbers are among the inputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import failures
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check.compare import OutputCheck
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import CheckFailed, ModelError
from pipeline.features.imports.estimators import by_class, excused, in_form_of
from pipeline.features.imports.frameworks import open_source, or_gpu, quietly
from pipeline.features.imports.trained import REWRITE, Trained, explained
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model, signature
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.check.compare import Array


SEEDS = (0, 1)
"""Random inputs beside the example, each like it in mean and spread."""
GROWN = ((1, 1), (2, 1))
"""Other sizes of dynamic dimensions, as factor and summand of the example's."""
TIME_LIMIT = 1800.0


class ComparedInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs on which both were run. `sizes` has dynamic dimensions where they are not the example's; `refused` is why
    the framework itself does not take these.
    """

    inputs: str
    sizes: dict[str, int] = {}
    checks: tuple[OutputCheck, ...] = ()
    refused: str = ""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was imported. `inputs` and `outputs` are as the ONNX model has them, in text; `notes` what to know of it."""

    source: str
    framework: str
    opset: int
    nodes: int
    size_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compared: tuple[ComparedInputs, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> list[tuple[ComparedInputs, OutputCheck]]:
        """The outputs that were shown to be wrong."""
        return [(comparison, check) for comparison in self.compared for check in comparison.checks if check.failed]


def import_source(source: str, destination: Path, *, opset: int | None = None, check: bool = True) -> ImportReport:
    """Import in a process of its own, and put the model in its place if no output was shown to be wrong.

    ConfigError, MissingError and ModelError as `open_source` raises them; ModelError for what cannot be exported.
    """
    with storage.scratch(destination.parent) as folder:
        file = folder / destination.name
        task = workers.Task(
            label=source,
            at_work="the framework or ONNX Runtime",
            call=partial(do_import, source, str(file), opset=opset, check=check),
        )
        (outcome,) = workers.run_tasks([task], timeout_seconds=TIME_LIMIT)
        if outcome.value is None:
            raise outcome.error or ModelError("no answer", where=source)
        if not outcome.value.failed:
            with storage.replacing(destination) as temporary:
                file.replace(temporary)
        return outcome.value


def make_model(source: str, destination: Path) -> None:
    """Import a source for a run; raises as `import_source` and `refuse_failed`."""
    refuse_failed(import_source(source, destination))


def refuse_failed(report: ImportReport) -> None:
    """CheckFailed for outputs that are not those of the framework."""
    if report.failed:
        why = "; ".join(f"{beside.inputs}, output {check.output!r}: {check.reason}" for beside, check in report.failed)
        rounded = "keep 64 bits by initial_types, where the estimator has such a form, or scale the inputs"
        fixed = "look for code that depends on values or sizes, which an export fixes"
        raise CheckFailed(
            "the exported model's outputs are not those of the framework",
            where=report.source,
            why=why[:500],
            remedy=f"{rounded if report.notes else fixed}; `ort-mobile import --no-check` writes it anyway",
        )


def do_import(source: str, file: str, *, opset: int | None, check: bool) -> ImportReport:
    """Export the source to its file, and compare. Without an opset the exporter chooses."""
    target = Path(file)
    storage.make_folder(target.parent)
    with quietly():
        trained = open_source(source)
        workers.still_at_work()
        try:
            trained.export(target, opset)
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            layers = ", ".join(trained.layers(error)[:5])
            what = f"{trained.title} cannot export {layers}" if layers else f"{trained.title} cannot export the model"
            raise ModelError(what, where=source, why=explained(error), remedy=trained.remedy(error)) from error
        workers.still_at_work()
        model = onnx_model.load_model(SourceModel(path=str(target)), target.parent).proto
        refuse_unknown(model, trained, source)
        compared = tuple(compare(trained, model, target)) if check else ()
    return ImportReport(
        source=source,
        framework=trained.title,
        opset=next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 0),
        nodes=len(model.graph.node),
        size_bytes=target.stat().st_size,
        inputs=tuple(f"{info}" for info in signature.own_inputs(model)),
        outputs=tuple(value.name for value in model.graph.output),
        compared=compared,
        notes=trained.notes,
    )


def refuse_unknown(model: "ModelProto", trained: Trained, source: str) -> None:
    """ModelError with the layers of operators that ONNX has not: tf2onnx leaves those of TensorFlow as they are."""
    from onnx import defs

    unknown = [node for node in onnx_edit.all_nodes(model.graph) if not node.domain and not defs.has(node.op_type)]
    if unknown:
        raise ModelError(
            f"{trained.title} cannot export {', '.join(f'{node.op_type} in {node.name}' for node in unknown[:5])}",
            where=source,
            why="ONNX has no such operators, and the exporter leaves them as they are",
            remedy=REWRITE,
        )


def compare(trained: Trained, model: "ModelProto", target: Path) -> Iterator[ComparedInputs]:
    """Both on the example, on random inputs like it, and on other sizes of the dimensions that the file leaves open."""
    try:
        session = ort_session.make_session(target, ort_session.session_options())
    except ort_session.ort_errors() as error:
        text = failures.text_of_message(str(error), failures.Topic.MODEL, failures.Topic.OPERATOR)
        raise ModelError(
            "ONNX Runtime does not load the exported model",
            where=target.name,
            why=(f"{text.why}; " if text else "") + ort_session.first_line(error).replace(str(target), target.name),
            remedy=trained.unloadable or (text.remedy if text else trained.remedy(error)),
        ) from error
    takes = signature.own_inputs(model)
    if len(takes) != len(trained.example):
        raise ModelError(
            "the exported model takes other inputs",
            where=target.name,
            why=f"it takes {len(takes)} ({', '.join(info.name for info in takes)}), the example has "
            f"{len(trained.example)}",
            remedy="give an example input for each tensor that the model reads, and none besides",
        )
    outputs = [value.name for value in model.graph.output]
    tolerance = output_compare.usual_tolerance(
        output_compare.OutputPrecision.QUANTIZED if trained.quantized else check_reference.precision_of(model)
    )

    def both(inputs: Sequence["Array"], label: str, sizes: Mapping[str, int]) -> ComparedInputs:
        workers.still_at_work()
        try:
            expected = trained.run(inputs)
        except Exception as error:
            if inputs is not trained.example:
                return ComparedInputs(inputs=label, sizes=dict(sizes), refused=explained(error))
            what, remedy = or_gpu(error, f"{trained.title} fails on the example inputs", "give inputs that it takes")
            raise ModelError(what, where=target.name, why=explained(error), remedy=remedy) from error
        try:
            computed = session.run(outputs, dict(zip((info.name for info in takes), inputs, strict=True)))
        except ort_session.ort_errors() as error:
            failed = OutputCheck(
                output=outputs[0], passed=False, reason=f"ONNX Runtime fails: {ort_session.first_line(error)}"
            )
            return ComparedInputs(inputs=label, sizes=dict(sizes), checks=(failed,))
        if trained.classes is not None:
            expected = by_class(expected, len(outputs), trained.classes)
        named = dict(zip(outputs, expected, strict=False))
        given = {
            name: in_form_of(value, named[name], trained.classes)
            for name, value in zip(outputs, computed, strict=True)
            if name in named
        }
        checks = list(output_compare.compare_outputs(named, given, tolerance))
        if trained.rows:
            checks = list(excused(checks, expected, list(given.values()), trained, inputs))
        why = "the framework gives nothing that it could be compared with"
        checks += [
            OutputCheck(output=name, passed=False, unknown=True, reason=why) for name in outputs[len(expected) :]
        ]
        return ComparedInputs(inputs=label, sizes=dict(sizes), checks=tuple(checks))

    yield both(trained.example, "the example", {})
    for seed in SEEDS:
        yield both([_like(array, array.shape, seed) for array in trained.example], f"random numbers {seed}", {})
    axes = [  # those without a size, by their names or as `input[axis]`
        {axis: x or f"{info.name}[{axis}]" for axis, x in enumerate(info.shape or ()) if not isinstance(x, int)}
        for info in takes
    ]
    open_sizes = {
        name: array.shape[axis]
        for array, named in zip(trained.example, axes, strict=True)
        for axis, name in named.items()
    }
    for factor, summand in GROWN if open_sizes else ():
        sizes = {name: size * factor + summand for name, size in open_sizes.items()}
        inputs = [
            _like(array, [sizes[named[a]] if a in named else size for a, size in enumerate(array.shape)], 2)
            for array, named in zip(trained.example, axes, strict=True)
        ]
        yield both(inputs, "other sizes", sizes)


def _like(array: "Array", shape: Sequence[int], seed: int) -> "Array":
    """Random numbers of the mean and spread of an array; what is no float is drawn of its own, by column of a table."""
    import numpy as np

    random = np.random.default_rng(seed)
    if array.dtype.kind == "f" and array.size:
        spread = float(array.std()) or 1.0
        return random.normal(float(array.mean()), spread, shape).astype(array.dtype)
    if array.size and array.ndim == len(shape) == 2 and array.shape[1] == shape[1]:
        return np.stack([random.choice(column, shape[0]) for column in array.T], 1)
    return random.choice(array.reshape(-1), tuple(shape)) if array.size else np.zeros(shape, array.dtype)
