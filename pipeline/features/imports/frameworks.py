"""Models of each framework, opened: what they compute, their inputs, and how they become ONNX."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError, MissingError, ModelError
from pipeline.dataset import functions as data_functions
from pipeline.features.imports.estimators import open_estimator
from pipeline.features.imports.trained import REWRITE, Trained, chain_of, check_arguments, every_word, said

if TYPE_CHECKING:
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
        what, remedy = or_gpu(error, f"{framework.title} cannot read the file", again)
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
        what, remedy = or_gpu(error, "the function for a model failed", alone)
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


def or_gpu(error: BaseException, what: str, remedy: str) -> tuple[str, str]:
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
