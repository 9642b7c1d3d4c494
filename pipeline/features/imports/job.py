"""Importing: a source is exported to ONNX by its framework and both are run on the same inputs.

Other sizes and numbers are among the inputs.
"""

import contextlib
import importlib
import json
import logging
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import failures
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check.compare import OutputCheck
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import CheckFailed, ConfigError, MissingError, ModelError
from pipeline.dataset import functions as data_functions
from pipeline.features.imports.estimators import by_class, excused, in_form_of, open_estimator
from pipeline.features.imports.trained import REWRITE, Trained, chain_of, check_arguments, every_word, explained, said
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model, signature
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.check.compare import Array


SAVED_MODEL = "saved_model.pb"
"""The file by which a folder is a SavedModel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One row: its title and extra, the modules that it needs, the endings of its files, and how it is opened.

    `kinds` are the classes of objects that functions give, by module and name.
    """

    title: str
    extra: str
    modules: tuple[str, ...]
    open: Callable[[Any, Sequence[Any], Mapping[str, Any]], Trained]
    kinds: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()

    def need(self, where: str) -> None:
        """MissingError where a module is not installed."""
        for name in self.modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise MissingError(
                    f"{self.title} models need the package {name}",
                    where=where,
                    why=str(error)[:200],
                    remedy=core_errors.install_extra(self.extra),
                ) from error

    def has(self, model: Any) -> bool:
        """Whether an object is one of its models; a framework that nobody has imported has none."""
        return any(
            module in sys.modules and isinstance(model, getattr(sys.modules[module], name, ()))
            for module, name in self.kinds
        )


def open_source(source: str) -> Trained:
    """The model behind `module:function`, or in a file of a framework.

    ConfigError for a source that there is not, or that no framework knows; MissingError where its framework is not
    installed; ModelError for what the framework cannot read.
    """
    path, signature = Path(source), ""
    folder, _, name = source.rpartition(":")
    if not path.exists() and folder and (Path(folder) / SAVED_MODEL).is_file():
        path, signature = Path(folder), name
    if ":" in path.name and not path.exists():
        return _of_function(source)
    if not path.exists():
        raise ConfigError(
            "there is no such source",
            where=source,
            remedy="name MODULE:FUNCTION, or a file: .pt2, .tflite, .keras, .h5, a SavedModel folder",
        )
    ending = SAVED_MODEL if (path / SAVED_MODEL).is_file() else path.suffix.lower()
    framework = next((framework for framework in FRAMEWORKS if ending in framework.files), None)
    if framework is None:
        pickled = ending in (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin")
        why = (
            "such files are programs of their own: to read one is to run it"
            if pickled
            else "no framework has such files"
        )
        raise ConfigError(
            "this is no source of a model",
            where=source,
            why=why,
            remedy="write a function that gives the model with example inputs, and name MODULE:FUNCTION",
        )
    framework.need(source)
    try:
        return framework.open(path, (), {"signature": signature} if signature else {})
    except (ConfigError, ModelError):
        raise
    except Exception as error:
        again = LOAD_IT if has_code(path) else "save it again with the installed release"
        what, remedy = _or_gpu(error, f"{framework.title} cannot read the file", again)
        raise ModelError(what, where=source, why=said(error), remedy=remedy) from error


LOAD_IT = (
    "it has a Lambda layer, whose code is in the file: write a function that loads it with safe_mode=False, and name "
    "MODULE:FUNCTION"
)


def has_code(path: Path) -> bool:
    """Whether a file of Keras has a Lambda layer, which is read only where Keras is told that the file is trusted."""
    config: Any = ""
    with contextlib.suppress(OSError, KeyError, ImportError, zipfile.BadZipFile):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                config = packed.read("config.json")
        else:
            h5py = importlib.import_module("h5py")  # comes with Keras
            with h5py.File(path) as opened:
                config = opened.attrs["model_config"]
    with contextlib.suppress(ValueError):
        return '"class_name": "Lambda"' in json.dumps(json.loads(config))
    return False


def _of_function(source: str) -> Trained:
    """What the function gives: (model, example inputs), with further names for the exporter in a third part."""
    function = data_functions.load_function(source, "a model")
    try:
        answer = function()
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else ""
        for framework in FRAMEWORKS:
            if missing in framework.modules:
                framework.need(source)
        alone = "run it alone in Python; it is called without arguments"
        what, remedy = _or_gpu(error, "the function for a model failed", alone)
        raise ConfigError(what, where=source, why=said(error), remedy=remedy) from error
    shape = "give (model, example inputs) or (model, example inputs, arguments of the exporter)"
    if not isinstance(answer, tuple) or len(answer) not in (2, 3):
        raise ConfigError(
            "the function gives no model", where=source, why=f"it gave {type(answer).__name__}", remedy=shape
        )
    model, example, options = (*answer, {})[:3]
    chosen = next((framework for framework in FRAMEWORKS if framework.has(model)), None)
    if chosen is None:
        booster = type(model).__name__ == "Booster"
        raise ConfigError(
            "the function gives no model of a known framework",
            where=source,
            why=f"it gave {type(model).__module__}.{type(model).__name__}",
            remedy="give the estimator, such as LGBMClassifier or XGBRegressor" if booster else shape,
        )
    chosen.need(source)
    parts = example if isinstance(example, (tuple, list)) else (example,)
    try:
        return chosen.open(model, tuple(parts), options)
    except ConfigError as error:
        error.at(source)
        raise


NO_GPU = re.compile(
    r"NVIDIA driver|CUDA (?:enabled|device|GPUs|driver|error|unknown)|'CUDA' backend|'cuda' device|\bcuda:\d"
    r"|device:GPU|\bCudnn",
    re.IGNORECASE,
)
"""What frameworks say without a GPU; torch's list of the backends of any operator names CUDA, too."""


def _or_gpu(error: BaseException, what: str, remedy: str) -> tuple[str, str]:
    """What happened and what to do, of which a GPU that this computer lacks is the plainest case."""
    if NO_GPU.search(every_word(error)):
        return "the model needs a GPU", "load it on the CPU (map_location='cpu'), with example inputs there"
    return what, remedy


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Exporters print progress and advice: nothing of it belongs to a result."""
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w", encoding="utf-8") as nowhere,  # noqa: PTH123
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def fixed_or_unknown(error: BaseException) -> str:
    """What to do about an export that torch refuses: leave a dimension that its code fixes, or rewrite."""
    for cause in chain_of(error):
        kind = getattr(getattr(cause, "error_type", None), "name", "")
        if kind == "CONSTRAINT_VIOLATION" or type(cause).__name__ == "ConstraintViolationError":
            return "leave the dimension that it names out of dynamic_shapes: the model's code fixes its size"
    return REWRITE


def _open_torch(model: Any, example: Sequence[Any], options: Mapping[str, Any]) -> Trained:
    """A torch.nn.Module with its example arguments, an ExportedProgram, or a .pt2 file of one."""
    import torch
    from torch.utils import _pytree as trees

    check_arguments(options, ("dynamic_shapes", "input_names", "output_names"), "torch.onnx.export")
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(
            "a ScriptModule cannot be exported",
            why="torch.export reads the code of Python modules",
            remedy="give the torch.nn.Module that it was made from",
        )
    program = torch.export.load(model) if isinstance(model, Path) else model
    if isinstance(program, torch.export.ExportedProgram):
        args, kwargs = program.example_inputs or ((), {})
        module = program.module()
    else:
        args, kwargs = tuple(example), {}
        module = program.eval()
    if not args and not kwargs:
        raise ConfigError(
            "there are no example inputs",
            where=str(model)[:80],
            remedy="give them beside the module, or save the .pt2 file with them",
        )
    leaves, spec = trees.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise ModelError("the model needs a GPU", why="its example inputs are not on the CPU", remedy="give them there")

    def run(inputs: Sequence["Array"]) -> list["Array"]:
        fresh = iter(inputs)
        filled = [torch.from_numpy(next(fresh).copy()) if isinstance(x, torch.Tensor) else x for x in leaves]
        args, kwargs = trees.tree_unflatten(filled, spec)
        with torch.no_grad():
            given = module(*args, **kwargs)
        return [leaf.numpy() for leaf in trees.tree_leaves(given) if isinstance(leaf, torch.Tensor)]

    exported: list[Any] = []

    def export(target: Path, opset: int | None) -> None:
        graph = program
        if not isinstance(program, torch.export.ExportedProgram):
            shapes = {"dynamic_shapes": options["dynamic_shapes"]} if "dynamic_shapes" in options else {}
            graph = torch.export.export(module, tuple(args), dict(kwargs), **shapes, strict=False)
        exported.append(graph)
        names = {key: options[key] for key in ("input_names", "output_names", "dynamic_shapes") if key in options}
        version = {"opset_version": opset} if opset else {}
        torch.onnx.export(graph, dynamo=True, external_data=False, **names, **version).save(target)

    def layers(error: BaseException) -> list[str]:
        """Calls of operators that the complaint names, by the module that they are in."""
        calls, text = [], every_word(error)
        for node in exported[0].graph.nodes if exported else ():
            if node.op == "call_function" and (str(node.target) in text or repr(node.target) in text):
                stack = list((node.meta.get("nn_module_stack") or {}).values())
                path, kind = stack[-1] if stack else ("", "")
                calls.append(f"{node.target} in {path or 'the model'} ({str(kind).rpartition('.')[2]})")
        return calls

    return Trained(
        title=f"PyTorch {torch.__version__.partition('+')[0]}",
        run=run,
        export=export,
        layers=layers,
        remedy=fixed_or_unknown,
        example=tuple(tensor.detach().numpy() for tensor in tensors),
    )


def _open_tflite(path: Path, _example: Sequence[Any], _options: Mapping[str, Any]) -> Trained:
    """A .tflite file; its own interpreter runs it. A dimension that it leaves open counts 1 in the example."""
    import tensorflow as tf
    import tf2onnx

    interpreter = tf.lite.Interpreter(model_path=str(path))
    sparse = [tensor["name"] for tensor in interpreter.get_tensor_details() if tensor.get("sparsity_parameters")]
    if sparse:
        raise ModelError(
            "the .tflite file has sparse weights, which tf2onnx cannot read",
            where=str(path),
            why=f"{len(sparse)} of its tensors, {sparse[0]!r} first",
            remedy="convert the TensorFlow model without Optimize.EXPERIMENTAL_SPARSITY",
        )
    takes = interpreter.get_input_details()

    def run(inputs: Sequence["Array"]) -> list["Array"]:
        for detail, array in zip(takes, inputs, strict=True):
            interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for detail, array in zip(takes, inputs, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]

    return Trained(
        title=f"TensorFlow {tf.__version__}",
        run=run,
        example=tuple(_numbers(detail["shape"], detail["dtype"]) for detail in takes),
        export=lambda target, opset: tf2onnx.convert.from_tflite(str(path), opset=opset, output_path=str(target)),
        quantized=any(detail["dtype"].__name__ in ("int8", "uint8") for detail in interpreter.get_tensor_details()),
    )


def _open_keras(model: Any, example: Sequence[Any], options: Mapping[str, Any]) -> Trained:
    """A Keras model with or without example inputs, or a .keras or .h5 file of one."""
    import tensorflow as tf

    check_arguments(options, (), "tf2onnx")
    if isinstance(model, Path):
        model = tf.keras.models.load_model(model, compile=False, safe_mode=True)
    call = tf.function(lambda *inputs: model(inputs[0] if len(inputs) == 1 else list(inputs), training=False))
    specs = [tf.TensorSpec(value.shape, value.dtype, name=value.name) for value in model.inputs]
    return _of_tensorflow(call, specs, example)


def chosen_signature(names: Sequence[str], asked: str, where: str) -> str:
    """The signature to import: the one asked for, the only one, or `serving_default`; ConfigError where none is it."""
    if not names:
        raise ModelError(
            "the SavedModel has no signature", where=where, remedy="save it with signatures=…, or with model.export"
        )
    listed = ", ".join(sorted(names))
    if asked and asked not in names:
        raise ConfigError(f"the SavedModel has no signature {asked!r}", where=where, remedy=f"it has {listed}")
    default = names[0] if len(names) == 1 else "serving_default"
    if not asked and default not in names:
        raise ConfigError(
            f"the SavedModel has {len(names)} signatures",
            where=where,
            why=f"they are {listed}",
            remedy=f"name one, as in {where}:{min(names)}",
        )
    return asked or default


def _open_saved_model(path: Path, _example: Sequence[Any], options: Mapping[str, Any]) -> Trained:
    """A SavedModel folder: the signature that is asked for, or the one of `chosen_signature`."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures[chosen_signature(list(loaded.signatures), options.get("signature", ""), str(path))]
    takes = signature.structured_input_signature[1]
    call = tf.function(lambda *inputs: signature(**dict(zip(takes, inputs, strict=True))))
    call.kept = loaded  # its variables go with it
    return _of_tensorflow(call, list(takes.values()), ())


def _of_tensorflow(call: Any, specs: Sequence[Any], example: Sequence[Any]) -> Trained:
    import numpy as np
    import tensorflow as tf
    import tf2onnx

    given = tuple(np.asarray(array) for array in example)
    generated = tuple(_numbers([size or 1 for size in spec.shape], spec.dtype.as_numpy_dtype) for spec in specs)

    def export(target: Path, opset: int | None) -> None:
        tf2onnx.convert.from_function(call, input_signature=list(specs), opset=opset, output_path=str(target))

    return Trained(
        title=f"TensorFlow {tf.__version__}",
        example=given or generated,
        export=export,
        run=lambda inputs: [value.numpy() for value in tf.nest.flatten(call(*map(tf.constant, inputs)))],
    )


def _numbers(shape: Sequence[int], dtype: Any) -> "Array":
    """Random numbers for an input of which only the type is known."""
    import numpy as np

    random = np.random.default_rng(0)
    kind = np.dtype(dtype)
    values = random.standard_normal(tuple(shape)) if kind.kind == "f" else random.integers(0, 2, tuple(shape))
    return values.astype(kind)


FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        title="PyTorch",
        extra="torch",
        modules=("torch", "onnxscript"),
        open=_open_torch,
        files=(".pt2",),
        kinds=(("torch.nn", "Module"), ("torch.export", "ExportedProgram")),
    ),
    Framework(
        title="scikit-learn",
        extra="sklearn",
        modules=("sklearn", "skl2onnx"),
        open=open_estimator,
        kinds=(("sklearn.base", "BaseEstimator"),),
    ),
    Framework(
        title="TFLite", extra="tensorflow", modules=("tensorflow", "tf2onnx"), open=_open_tflite, files=(".tflite",)
    ),
    Framework(
        title="Keras",
        extra="tensorflow",
        modules=("tensorflow", "tf2onnx"),
        open=_open_keras,
        files=(".keras", ".h5", ".hdf5"),
        kinds=(("keras", "Model"), ("keras.models", "Model")),
    ),
    Framework(
        title="TensorFlow",
        extra="tensorflow",
        modules=("tensorflow", "tf2onnx"),
        open=_open_saved_model,
        files=(SAVED_MODEL,),
    ),
)
"""Every framework whose models can be imported."""

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
            what, remedy = _or_gpu(error, f"{trained.title} fails on the example inputs", "give inputs that it takes")
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
